"""What a system prompt is told of a sandbox: true, and short."""

import pytest

from belljar import Docker, Environment, HostFunction, Limits, Mount, Sandbox
from belljar.environment.requirement import canonical_name
from belljar.sandbox import advice


def price(item: str, *, most: int = 10) -> float:
    """The price of one item.

    More about it.
    """
    return float(most)


def test_a_sandbox_says_what_it_has(make_sandbox, tmp_path):
    tmp_path.chmod(0o755)
    limits = Limits(timeout=7, output="64k", processes=32)
    sandbox = make_sandbox(
        limits=limits, functions=[price], mounts=[Mount(tmp_path, "/data")], policy="permissive"
    )
    said = sandbox.describe()
    for part in (
        "There is no network.",
        "The current directory is /workspace, which holds 256 MiB",
        "/tmp and the home /home/user hold 100 MiB.",
        "/data has files of the host, read-only.",
        "7 s a run",
        "64.0 KiB of output, 32 processes.",
        "checked against a policy",
        "- price(item: str, *, most: int = 10) -> float: The price of one item.",
    ):
        assert part in said
    assert "More about it" not in said
    assert sandbox.run_code("price('bell')").value == 10.0


@pytest.mark.native_only("the Python of an image is known when it is there")
def test_versions_are_those_that_the_code_finds(data_sandbox):
    said = data_sandbox.describe()
    code = """
from importlib.metadata import distributions
import sys
sys.version_info[:2], {each.name: each.version for each in distributions()}
"""
    (major, minor), found = data_sandbox.run_code(code).value
    assert f"Python {major}.{minor} with" in said
    versions = {canonical_name(name): version for name, version in found.items()}
    for name in ("numpy", "pandas", "scikit-learn", "pyyaml"):
        assert f"{name} {versions[name]}" in said


def test_nothing_is_started_for_it():
    sandbox = Sandbox(environment="python", limits={"timeout": None})
    assert "no time limit" in sandbox.describe()
    assert not sandbox.alive


def test_what_is_not_known_is_not_said():
    image = Sandbox(environment="python", backend=Docker(image="x/y:1"))
    assert "with the packages of a container image." in image.describe()
    docker = Sandbox(environment="python", backend="docker", packages=["humanize"])
    assert "Python with the standard library and the packages humanize." in docker.describe()
    online = Sandbox(environment="python", backend="docker", network="open")
    assert "There is a network." in online.describe()


def test_an_environment_that_is_not_built_has_names_without_versions():
    packages = ["no-such-thing>=3", "another @ https://user:secret@example.org/x.whl"]
    said = Environment("unbuilt", packages=packages).describe()
    assert said.endswith("with the standard library and the packages another, no-such-thing")
    assert "secret" not in said


def test_a_description_is_short_whatever_there_is():
    functions = [
        HostFunction(price, name=f"f{number}" + "x" * 50) for number in range(advice.MOST_FUNCTIONS)
    ]
    many = [*functions, *(HostFunction(price, name=f"g{number}") for number in range(100))]
    environment = Environment("many", packages=[f"package-{number}" for number in range(500)])
    said = Sandbox(environment=environment, functions=many).describe()
    assert "440 more" in said
    assert said.endswith("- and 100 more")
    assert len(said) < 20_000
