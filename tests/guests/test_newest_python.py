"""Environment(python="newest"): which Python guests get, and when it does not change. Offline."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.environment import interpreter
from belljar.environment.environment import (
    BUILTIN,
    Environment,
    build,
    choose_interpreter,
    is_built,
    remove,
)
from interpreters import interpreters
from wheels import make_wheel

RUNNING = interpreter.find_interpreter()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, three wheels, and no Python on the PATH but those of the test."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    for name in ("bin", "wheels"):
        (tmp_path / name).mkdir()
    for name in ("alpha", "beta"):
        make_wheel(tmp_path / "wheels", name)
    own = "cp{}{}".format(*sys.version_info)
    make_wheel(tmp_path / "wheels", "gamma", tag=f"{own}-{own}-linux_x86_64")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "managed"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def install(machine: Path, version: str, **facts: object) -> None:
    """Put a Python of this version on the PATH, as far as asking it for its facts goes."""
    prefix = machine / version
    (prefix / "bin").mkdir(parents=True)
    binary = prefix / "bin" / f"python{version}"
    told = dataclasses.asdict(RUNNING) | {"implementation": "cpython", "system": "linux"}
    told |= {"version": [*map(int, version.split(".")), 2], "prefix": str(prefix)}
    told |= {"executable": str(binary), "complete": True, **facts}
    binary.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    binary.chmod(0o755)
    (machine / "bin" / binary.name).symlink_to(binary)


def chosen(**fields: object) -> str:
    fields = {"packages": ["alpha"], "python": "newest"} | fields
    return choose_interpreter(Environment("demo", **fields)).short_version


needs_314 = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="no supported Python is newer than the running one"
)


@needs_314
def test_the_newest_python_is_preferred_to_the_running_one(machine):
    assert chosen() == RUNNING.short_version
    install(machine, "3.14")
    assert chosen() == "3.14"
    assert chosen(python=None) == RUNNING.short_version
    assert chosen(python=sys.executable) == RUNNING.short_version


@needs_314
@pytest.mark.parametrize("version", ["3.9", "3.15"])
def test_an_older_python_and_one_without_wheels_yet_are_passed_over(machine, version):
    install(machine, version)
    assert chosen() == RUNNING.short_version


@needs_314
@pytest.mark.parametrize("facts", [{"complete": False}, {"implementation": "pypy"}])
def test_a_python_that_lacks_something_is_passed_over(machine, facts):
    install(machine, "3.14", **facts)
    assert chosen() == RUNNING.short_version


def test_a_build_without_c_libraries_says_that_it_is_not_complete(tmp_path):
    facts = Path(interpreter.interpreter_facts.__file__)
    code = f"""
import importlib.util, runpy
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "_lzma" else real(name)
runpy.run_path({str(facts)!r}, run_name="__main__")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(told.stdout)["complete"] is False
    assert RUNNING.complete


@needs_314
def test_what_is_built_keeps_its_python_and_so_does_what_adds_to_it(machine):
    demo = Environment("demo", packages=["alpha"], python="newest")
    first = build(demo, progress=None)
    install(machine, "3.14")
    assert is_built(demo)
    assert build(demo, progress=None).path == first.path
    assert chosen(packages=["alpha", "beta"]) == RUNNING.short_version
    assert chosen(packages=["beta"]) == "3.14"
    remove("demo")
    assert chosen() == "3.14"


def test_data_has_the_newest_python_unless_the_user_names_one():
    assert BUILTIN["data"].python == "newest"
    assert Environment(extends="data", packages=["x"]).python == "newest"
    assert Environment(extends="data", packages=["x"], python="3.11").python == "3.11"
    assert BUILTIN["python"].python is None


# --- with a real one -------------------------------------------------------------------------

NEWER = {
    version: path
    for version, path in interpreters().items()
    if (3, 14) >= tuple(map(int, version.split("."))) > sys.version_info[:2]
}


@pytest.fixture
def newer(machine: Path) -> str:
    if not NEWER:
        pytest.skip("no Python newer than the running one is installed here")
    version = max(NEWER, key=lambda each: int(each.split(".")[1]))
    (machine / "bin" / f"python{version}").symlink_to(NEWER[version])
    return version


def test_a_package_without_a_wheel_for_it_brings_back_the_running_python(newer, caplog):
    gamma = Environment("demo", packages=["gamma"], python="newest")
    assert choose_interpreter(gamma).short_version == newer
    built = build(gamma, progress=None)
    assert built.interpreter == RUNNING
    assert f"without a wheel for Python {newer}" in caplog.text
    caplog.clear()
    assert build(gamma, progress=None).path == built.path
    assert caplog.text == ""


def test_what_is_built_for_it_is_found_again_without_a_process(newer, monkeypatch):
    demo = Environment("demo", packages=["alpha"], python="newest")
    built = build(demo, progress=None)
    assert built.interpreter.short_version == newer
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    assert build(demo, progress=None) == built


@pytest.mark.native_only("the Python of a container is that of its image")
def test_a_guest_runs_on_it(newer, make_sandbox):
    sandbox: Sandbox = make_sandbox(
        environment=Environment("demo", packages=["alpha"], python="newest")
    )
    execution = sandbox.run_code("import sys, alpha; '%d.%d' % sys.version_info[:2]")
    assert execution.value == newer
