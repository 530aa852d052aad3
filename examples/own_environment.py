"""An Environment of one's own: packages installed once, imported once, used by many sandboxes."""

from belljar import Environment, Sandbox

TEXT = Environment("text", packages=["humanize>=4"], preload=["humanize"])


def main() -> None:
    # The first use builds it (with a progress display on a terminal); later uses are cached.
    for number in (1_000_000, 2_500_000_000):
        with Sandbox(environment=TEXT) as sandbox:
            execution = sandbox.run_code(f"import humanize; humanize.intword({number})")
            print(execution.raise_for_outcome().value)


if __name__ == "__main__":
    main()
