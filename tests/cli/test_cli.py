"""The command itself: its version, help, wrong usage, and `belljar env`."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import Cli
from project import ROOT

# -- the command itself ---------------------------------------------------------------------------


def test_version_says_the_version(alone: Cli) -> None:
    assert re.fullmatch(r"belljar \d+\.\d+\.\d+\S*\n", alone("--version").stdout)


def test_console_script_of_the_package_is_the_same_command(alone: Cli) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["belljar"].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}(['--version']))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=alone.environ,
        check=True,
    )
    assert done.stdout == alone("--version").stdout


def test_version_imports_neither_anyio_nor_rich(alone: Cli) -> None:
    script = (
        "import sys\nfrom belljar.cli import main\ntry: main(['--version'])\n"
        "except SystemExit: print(sorted({'anyio', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=alone.environ,
        check=True,
    )
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_without_arguments_it_shows_a_short_help(alone: Cli) -> None:
    done = alone()
    assert done.returncode == 0
    for command in ("run", "repl", "doctor", "env"):
        assert re.search(rf"^\s+{command} ", done.stdout, re.MULTILINE)
    assert len(done.stdout.splitlines()) < 40


def test_help_of_run_documents_the_exit_codes(alone: Cli) -> None:
    text = alone("run", "--help").stdout
    for code in ("120", "121", "122", "123", "124", "125", "128+N", "130"):
        assert re.search(rf"^  {re.escape(code)} ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["rnu", "x.py"], "run"),
        (["doktor"], "doctor"),
        (["env", "biuld", "x"], "build"),
        (["run", "x.py", "--memmory", "1g"], "--memory"),
        (["run", "x.py", "--time-out=5"], "--timeout"),
        (["repl", "--enviroment", "data"], "--environment"),
        (["run", "--env", "pyhton", "-"], "python"),
        (["run", "--env", "python", "--backend", "nativ", "-"], "native"),
    ],
)
def test_unknown_word_names_the_nearest(alone: Cli, args: list[str], meant: str) -> None:
    done = alone(*args)
    assert done.returncode == 2
    assert f"did you mean '{meant}'?" in done.stderr


def test_help_speaks_of_set_env_only_where_there_is_such_an_option(alone: Cli) -> None:
    for command in ("run", "repl", "doctor", "env list", "env build", "env remove"):
        text = alone(*command.split(), "--help").stdout
        assert ("--set-env" in text) == (command in ("run", "repl"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run"], "FILE"),
        (["run", "missing.py"], "cannot read 'missing.py'"),
        (
            ["run", "a", "b"],
            "too many arguments: b\n  hint: put arguments for the code itself",
        ),
        (["run", "-", "--memory", "1k"], "16m to 1t"),
        (["run", "-", "--memory", "lots"], "is not a size"),
        (["run", "-", "--timeout", "soon"], "is not a number"),
        (["run", "-", "--set-env", "KEY"], "--set-env KEY=VALUE"),
        (["run", "-", "--env", "KEY=VALUE"], "--set-env KEY=VALUE"),
        (["run", "-", "--put", "missing.csv"], "cannot read 'missing.csv'"),
        (["run", "-", "--put", "."], "one file"),
        (["run", "-", "--get", "/"], "does not name a file"),
        (["run", "-", "--get", "a:nowhere/b"], "no directory 'nowhere'"),
        (["env", "build", "python", "--packages", "six"], "choose another name"),
        (["env", "remove", "nonesuch"], "unknown environment"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    alone: Cli, args: list[str], said: str
) -> None:
    done = alone(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("belljar: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.native_only("only native keeps environments in the cache")
def test_what_belljar_cannot_do_is_message_and_hint_without_traceback(belljar: Cli) -> None:
    belljar.environ["BELLJAR_CACHE"] = "/proc/no/such"
    done = belljar.run("1")
    assert done.returncode == 120
    assert re.match(r"belljar: .*\n  hint: set BELLJAR_CACHE", done.stderr)
    assert "Traceback" not in done.stderr


# -- env ------------------------------------------------------------------------------------------


def test_environment_of_ones_own_is_built_listed_used_and_removed(
    belljar: Cli, tmp_path: Path
) -> None:
    belljar.environ["BELLJAR_CACHE"] = str(tmp_path / "own-cache")
    assert "not built" in belljar("env", "list").stdout

    done = belljar("env", "build", "mine", "--preload", "json", "decimal", "--json")
    assert done.returncode == 0, done.stderr
    key = json.loads(done.stdout)["key"]

    (listed,) = (e for e in json.loads(belljar("env", "list", "--json").stdout) if e["built"])
    assert (listed["name"], listed["key"], listed["packages"]) == ("mine", key, [])
    assert re.search(rf"^  mine +{key} +3\.", belljar("env", "list").stdout, re.MULTILINE)

    done = belljar("run", "-e", "mine", "-", code="import sys; 'decimal' in sys.modules")
    assert done.stdout == "True\n", done.stderr

    assert belljar("env", "remove", "mine").returncode == 0
    assert not any(e["built"] for e in json.loads(belljar("env", "list", "--json").stdout))
    done = belljar("run", "-e", "mine", "-", code="1")
    assert (done.returncode, "unknown environment 'mine'" in done.stderr) == (2, True)


def test_environment_made_in_python_is_marked_and_why_its_name_is_not_known_is_said(
    belljar: Cli, tmp_path: Path
) -> None:
    belljar.environ["BELLJAR_CACHE"] = str(tmp_path / "own-cache")
    make = "from belljar import environment as e; e.build(e.Environment('mine', preload=['json']))"
    subprocess.run([sys.executable, "-c", make], env=belljar.environ, check=True)
    assert "mine (made in Python)" in belljar("env", "list").stdout
    listed = {
        each["name"]: each["named"] for each in json.loads(belljar("env", "list", "--json").stdout)
    }
    assert listed == {"mine": False, "python": True, "data": True}
    done = belljar("run", "-e", "mine", "-", code="1")
    assert done.returncode == 2
    assert "'mine' was made in Python" in done.stderr
    assert belljar("env", "build", "mine", "--preload", "json").returncode == 0
    assert "made in Python" not in belljar("env", "list").stdout
    assert belljar("run", "-e", "mine", "-", code="6 * 7").stdout == "42\n"


def test_description_that_somebody_else_could_have_written_is_refused(
    alone: Cli, tmp_path: Path
) -> None:
    alone.environ["BELLJAR_CACHE"] = str(tmp_path / "own-cache")
    assert alone("env", "build", "mine", "--preload", "json").returncode == 0
    (description,) = (tmp_path / "own-cache" / "named").iterdir()
    assert stat.S_IMODE(description.stat().st_mode) == 0o600
    description.chmod(0o666)
    done = alone("run", "-e", "mine", "-", code="1")
    assert done.returncode == 120
    assert "another user" in done.stderr
