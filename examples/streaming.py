"""Output while it is made: a line at a time, and the caller may stop it."""

import sys

from belljar import Outcome, Sandbox
from belljar.text import printable

CODE = """\
import time
for step in range(1000):
    print(f"step {step}")
    time.sleep(0.05)
"""


def main() -> None:
    with Sandbox(environment="python") as sandbox:
        seen: list[str] = []

        def show(text: str) -> None:
            # The guest may write escape sequences; a terminal shall show them, not obey.
            sys.stdout.write(printable(text))
            seen.append(text)
            if "step 5\n" in "".join(seen):
                sandbox.interrupt()

        execution = sandbox.run_code(CODE, on_stdout=show)
        assert execution.outcome is Outcome.cancelled
        print(f"stopped after {len(execution.stdout.splitlines())} lines")
        print("the loop stood at step", sandbox.run_code("step").value)


if __name__ == "__main__":
    main()
