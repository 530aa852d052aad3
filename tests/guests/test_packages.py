"""Packages on top of an environment: `packages=`, `--with`, and the header of a script."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import zipfile

import pytest

import engine_view
import setting
from belljar import AsyncSandbox, Environment, InvalidOption, Pool, Sandbox, SandboxManager, config
from belljar.cli import script_header
from belljar.environment.environment import BUILTIN
from wheels import make_wheel


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """An empty cache; installers know nothing but the wheels of this directory."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("BELLJAR_BUILD_NETWORK", "none")
    if not setting.DOCKER:  # a directory of this host means nothing in a build container
        monkeypatch.setenv("UV_FIND_LINKS", str(directory))
        monkeypatch.setenv("UV_NO_INDEX", "1")
        monkeypatch.setenv("UV_OFFLINE", "1")
    return directory


@pytest.fixture
def wheel(wheels):
    """A wheel that no engine has an image of yet; the image is removed at the end."""
    name = f"demo{os.urandom(6).hex()}"
    yield make_wheel(wheels, name)
    if setting.DOCKER:
        for listed in engine_view.ask("/images/json?all=0"):
            for tag in listed["RepoTags"] or ():
                if name in tag:
                    engine_view.ask(f"/images/{tag}?force=1", "DELETE")


@pytest.fixture
def belljar(tmp_path):
    def run(*args, code=""):
        return subprocess.run(
            [sys.executable, "-m", "belljar", *args],
            input=code,
            capture_output=True,
            cwd=tmp_path,
            text=True,
            check=False,
        )

    return run


# --- options -----------------------------------------------------------------------------------


@pytest.mark.contract("native", "docker", "gvisor")
def test_packages_are_added_to_the_environment(backend, wheel):
    module = wheel.name.partition("-")[0]
    with Sandbox(environment="python", packages=[str(wheel)]) as sandbox:
        code = f"import {module} as demo, json; demo.main(); demo.__file__"
        execution = sandbox.run_code(code).raise_for_outcome()
    assert execution.text.startswith("'/opt/env/lib/python3.")
    assert execution.logs.stdout == (f"{module} 1.0\n",)
    assert sandbox.environment.name == f"python-with-{module}"
    assert sandbox.environment.preload == BUILTIN["python"].preload


def test_every_way_in_takes_packages():
    assert "x" in AsyncSandbox(packages=["x"]).environment.packages
    assert "x" in config_of(packages=["x"]).environment.packages
    for wrong in ("x", ["-x"], [3]):
        with pytest.raises(InvalidOption):
            Sandbox(packages=wrong)
        with pytest.raises(InvalidOption):
            SandboxManager(packages=wrong)
        with pytest.raises(InvalidOption):
            Pool(min_ready=0, packages=wrong)
        with pytest.raises(InvalidOption):
            asyncio.run(AsyncSandbox.create(packages=wrong))


def config_of(**options):
    return Sandbox(**config.load(project=False).sandbox_options(**options))


def test_packages_can_be_configured(tmp_path, monkeypatch):
    file = tmp_path / "settings.toml"
    file.write_text('environment = {extends = "python", packages = ["a"]}\npackages = ["b>=1"]\n')
    made = Sandbox(**config.load(file, project=False).sandbox_options())
    assert made.environment.packages == ("a", "b>=1")
    monkeypatch.setenv("BELLJAR_PACKAGES", "c>=1,<2, d[e,f]")
    assert config.load(project=False)["packages"] == ("c<2,>=1", "d[e,f]")


def test_an_image_of_ones_own_takes_no_packages():
    with pytest.raises(InvalidOption, match="image= brings its own Python and packages"):
        Sandbox(image="python:3.12", packages=["x"])


@pytest.mark.native_only("the preload of a container runs in the container")
@pytest.mark.parametrize("preload", [(), ("json",)])
def test_what_packages_run_at_start_is_confined_unless_something_is_preloaded(
    backend, wheels, preload
):
    wheel = make_wheel(wheels, "starter")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("starter.pth", "import sys; sys.status = open('/proc/self/status').read()")
    environment = Environment("starter", packages=["starter"], preload=preload)
    with Sandbox(environment=environment) as sandbox:
        code = "import sys, starter; 'Seccomp:\\t2' in sys.status"
        assert sandbox.run_code(code).value is not bool(preload)
        sandbox.restart()
        assert sandbox.run_code(code).value is not bool(preload)
        assert sandbox.commands.run("python -c 'import starter'").exit_code == 0


@pytest.mark.contract("docker", "gvisor")
def test_packages_are_there_without_a_preload(backend, wheel):
    module = wheel.name.partition("-")[0]
    environment = Environment(module, packages=[str(wheel)])
    with Sandbox(environment=environment) as sandbox:
        assert sandbox.run_code(f"import {module}; exit").ok
        sandbox.restart()
        assert sandbox.run_code(f"import {module}").ok


# --- the command line --------------------------------------------------------------------------


@pytest.mark.native_only("the packages are found in a directory of this host")
def test_with_adds_packages(backend, wheels, belljar):
    for name in ("alpha", "beta", "gamma"):
        make_wheel(wheels, name)
    code = "import alpha, beta, gamma; print('there')"
    options = ("--env", "python", "--with", "alpha>=1,<2, beta", "--with", "gamma")
    done = belljar("run", *options, "-", code=code)
    assert done.stdout == "there\n", done.stderr
    assert "building environment 'python-with-alpha-beta-gamma' (3 packages), once" in done.stderr
    assert "building" not in belljar("run", *options, "-", code=code).stderr
    done = belljar("run", "--env", "python", "--with", "delta", "-", code="1")
    assert done.returncode == 120
    assert "there is no package 'delta' in the package index" in done.stderr


@pytest.mark.native_only("the packages are found in a directory of this host")
def test_name_that_was_built_on_the_command_line_works_in_python(backend, wheels, belljar):
    make_wheel(wheels, "alpha")
    done = belljar("env", "build", "mine", "--extends", "python", "--packages", "alpha")
    assert done.returncode == 0, done.stderr
    with Sandbox(environment="mine") as sandbox:
        assert sandbox.run_code("import alpha").ok


HEADER = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.9"
# dependencies = [
#   "alpha>=1",
#
#   "beta",
# ]
# ///
import alpha, beta, sys
print(sys.argv[0], "ran")
"""


@pytest.mark.native_only("the packages are found in a directory of this host")
def test_header_of_a_script_is_honoured(backend, wheels, belljar, tmp_path):
    for name in ("alpha", "beta"):
        make_wheel(wheels, name)
    (tmp_path / "script.py").write_text(HEADER)
    done = belljar("run", "--env", "python", "script.py")
    assert done.stdout == "script.py ran\n", done.stderr
    assert done.stderr.count("packages that script.py asks for: alpha>=1, beta\n") == 1
    assert belljar("run", "--env", "python", "-q", "script.py").stderr == ""
    done = belljar("run", "--env", "python", "--no-script-packages", "script.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No module named 'alpha'" in done.stderr


@pytest.mark.contract("native", "docker")
def test_python_that_a_script_requires_is_compared_with_that_of_the_guest(backend, belljar):
    code = '# /// script\n# requires-python = "<3.9"\n# ///\nprint("ran")\n'
    done = belljar("run", "--env", "python", "-", code=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the code requires Python <3.9, but the sandbox has 3." in done.stderr
    done = belljar("run", "--env", "python", "-", code=code.replace("<3.9", ">=3.9"))
    assert (done.returncode, done.stdout) == (0, "ran\n")


def header(*lines):
    return "\n".join(("print()", "# /// script", *(f"# {line}" for line in lines), "# ///", ""))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (header('dependencies = ["a"', "x"), r"a\.py, line 4: the `# /// script` header is not"),
        (header("dependencies = ["), r"a\.py, line \d|its end"),
        (header('dependencies = "a"'), "must be a list of strings"),
        (header("dependencies = [3]"), "must be a list of strings"),
        (header("requires-python = 3"), "must be a string"),
        (header('requires-python = "new"'), "not a condition on the version"),
        (header('dependencies = ["a @ https://example.org/a.whl"]'), "packages of the index"),
        (header('dependencies = ["a @ file:///etc/a.whl"]'), "packages of the index"),
        (header('dependencies = ["/tmp/a-1-py3-none-any.whl"]'), "packages of the index"),
        (header('dependencies = ["--index-url=https://example.org"]'), "starts with '-'"),
        (header('dependencies = ["${HOME}"]'), "names a variable"),
        (header("") + header(""), r"line 6: this is a second"),
    ],
)
def test_header_that_cannot_be_followed_is_said(code, message):
    with pytest.raises(InvalidOption, match=message):
        script_header.read("a.py", code)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "# /// script\n# dependencies = ['a']\nprint()\n# ///\n",  # not closed
        "# /// pyproject\n# dependencies = ['a']\n# ///\n",
        "## /// script\n# dependencies = ['a']\n# ///\n",
        "# /// script\n#dependencies = ['a']\n# ///\n",
    ],
)
def test_comment_that_is_no_header_is_none(code):
    assert script_header.read("a.py", code) is None


def test_many_headers_without_an_end_take_no_longer_than_other_comments():
    began = time.perf_counter()
    assert script_header.read("a.py", "# /// script\n" * 100_000) is None
    assert time.perf_counter() - began < 10


def test_header_reaches_to_the_last_of_its_ends():
    code = header('dependencies = ["a"]', "[tool.x]", 'text = """', "///", '"""')
    assert script_header.read("a.py", code).packages == ("a",)


def test_packages_of_a_header_are_not_preloaded_and_not_built(monkeypatch):
    monkeypatch.delenv("BELLJAR_BACKEND", raising=False)
    found = script_header.read("a.py", header('dependencies = ["pandas", "x"]'))
    base = Environment("mine", extends="data", packages=["y"], allow_builds=True)
    made = found.add_to({"environment": base, "packages": ("z",)}, quiet=True)
    environment = made["environment"]
    assert {"x", "y", "z", "pandas"} <= set(environment.packages)
    assert (environment.preload, environment.warmup) == ((), "")
    assert not environment.allow_builds
    there = script_header.read("a.py", header('dependencies = ["pandas"]'))
    assert there.add_to({}, quiet=True)["environment"] == BUILTIN["data"]


def test_packages_of_a_header_are_left_out_beside_an_image(capsys):
    found = script_header.read("a.py", header('dependencies = ["x"]'))
    assert found.add_to({"image": "mine"}, quiet=False) == {"image": "mine"}
    assert "an image has its own packages; not added: x" in capsys.readouterr().err
