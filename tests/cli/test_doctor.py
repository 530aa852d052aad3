"""`belljar doctor`: what it measures and what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from belljar.backends.isolation import Isolation, Layer
from belljar.cli import doctor
from belljar.cli.host_facts import Fact
from command_line import Cli
from project import ROOT


def check_doctor(done: subprocess.CompletedProcess[str]) -> str:
    described = json.loads(done.stdout)
    guest = described["guest"]
    layers = guest["isolation"]["layers"] + list(guest["isolation"]["limits"])
    states = {layer["state"] for layer in layers}
    assert done.returncode == (0 if states == {"enforced"} else 1)
    assert {"kernel", "user namespaces", "seccomp", "landlock", "cgroups", "interpreter"} <= {
        fact["name"] for fact in described["host"]
    }
    for layer in layers:
        assert layer["state"] == "enforced" or layer["remedy"]
    assert 0 < guest["round_trip"] < guest["first_start"]
    return described["verdict"]


def test_doctor_measures_a_live_guest_and_its_exit_code_is_the_verdict(belljar: Cli) -> None:
    verdict = check_doctor(belljar("doctor", "--json"))
    done = belljar("doctor")
    assert done.returncode == {"enforced": 0, "best-effort": 1}[verdict]
    assert re.search(r"^  enforced +seccomp ", done.stdout, re.MULTILINE)
    assert re.search(r"^  run_code\('1\+1'\) +\S+ ms$", done.stdout, re.MULTILINE)


@pytest.mark.native_only("only native keeps environments in the cache")
def test_doctor_on_a_host_that_cannot_run_says_why_with_exit_code_2(belljar: Cli) -> None:
    belljar.environ["BELLJAR_CACHE"] = "/proc/no/such"
    belljar.environ["DOCKER_HOST"] = "unix:///nowhere.sock"
    done = belljar("doctor", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["problem"]["hint"].startswith("set BELLJAR_CACHE")
    assert belljar("doctor").returncode == 2


def test_doctor_says_a_reason_and_a_remedy_once(capsys: pytest.CaptureFixture[str]) -> None:
    why = [f"/{name} may not be written: run as root" for name in ("cpu", "memory")]
    facts = [
        Fact(name=f"cgroup {number}", state="no", detail=text) for number, text in enumerate(why)
    ]
    limits = tuple(
        Layer(name=name, state="best-effort", detail=f"watched; {text}", remedy="delegate")
        for name, text in zip(("cpus", "memory"), why, strict=True)
    )
    isolation = Isolation(backend="native", layers=(), limits=limits)
    measured = doctor.Measured(isolation=isolation, first_start=1, next_start=1, round_trip=1)
    doctor._show_host(facts)
    doctor._show_guest("python", facts, measured, None, doctor.BEST_EFFORT)
    shown = capsys.readouterr().out
    assert [shown.count(text) for text in ("run as root", "delegate", "/memory may")] == [1, 1, 1]
    assert "remedy (also for memory): delegate" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's already")
def test_doctor_of_an_ordinary_user_says_what_is_best_effort_and_the_remedy(
    tmp_path: Path,
) -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None or not _can_be_an_ordinary_users(python):
        pytest.skip("no Python of the system that can import what Belljar needs")
    # Not below tmp_path, which an ordinary user cannot enter.
    home = Path(tempfile.mkdtemp(dir="/tmp", prefix="belljar-test-"))
    try:
        os.chown(home, 65534, 65534)
        done = subprocess.run(
            [python, "-m", "belljar", "doctor", "--json"],
            capture_output=True,
            text=True,
            cwd=home,
            env=_ordinary_environ(home),
            user=65534,
            group=65534,
            extra_groups=[],
            check=False,
        )
        assert check_doctor(done) in ("enforced", "best-effort"), done.stderr
    finally:
        shutil.rmtree(home)


def _ordinary_environ(home: Path) -> dict[str, str]:
    import anyio

    packages = Path(anyio.__file__).parents[1]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'src'}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _can_be_an_ordinary_users(python: str) -> bool:
    done = subprocess.run(
        [python, "-c", "import belljar.sandbox.sandbox"],
        env=_ordinary_environ(Path("/nonexistent")),
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
        check=False,
        capture_output=True,
    )
    return done.returncode == 0


def test_colours_are_for_terminals_and_no_color_is_honoured(belljar: Cli) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*(?:3|4|9)[0-7]m")
    assert "\x1b" not in belljar("doctor").stdout
    with belljar.terminal("doctor") as terminal:
        assert colour.search(terminal.read_all())
    with belljar.terminal("doctor", NO_COLOR="1") as terminal:
        assert not colour.search(terminal.read_all())
