"""Mixed good and hostile load for a while: wrong outcomes, leaks, drift, and a neighbour.

`scripts/soak` runs it. The course is run by a child (soak_course.py), so that what is left after
the end of a process that uses Belljar can be seen by somebody who is still there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import machine
import soak_census
from soak_course import Course
from soak_criteria import judge
from soak_report import render

from belljar.environment.environment import build
from belljar.errors import SandboxError

ENVIRONMENT = "python"
UNCACHED = "glibc.malloc.tcache_count=0"  # what threads keep is neither in use nor given back
LATE = 900.0  # seconds after its time at which it is given up
ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "soak.md"
PUBLISHED = ROOT / "docs" / "reports" / "soak.md"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--backend", choices=("native", "docker"), default="native")
    parser.add_argument(
        "--seed", type=int, default=None, help="the same again, as far as chance goes"
    )
    parser.add_argument("--out", type=Path, help="the report, in Markdown (benchmarks/results/)")
    parser.add_argument("--json", type=Path, default=None, help="default: beside the report")
    parser.add_argument("--publish", action="store_true", help="the report is docs/reports/soak.md")
    parser.add_argument("--falsify", action="store_true", help=argparse.SUPPRESS)  # for the test
    parser.add_argument("--record", type=Path, default=None, help=argparse.SUPPRESS)  # the child
    given = parser.parse_args(words)
    if not 0 < given.minutes <= 24 * 60 or not 1 <= given.at_once <= 256:
        parser.error("--minutes is more than 0 and at most 1440, --at-once 1 to 256")
    if given.seed is None:
        given.seed = time.time_ns() % 10**6
    given.out = given.out or (PUBLISHED if given.publish else OUT)
    given.json = given.json or given.out.with_suffix(".json")
    return given


def main() -> int:
    given = parse()
    if given.record is not None:
        return inner(given)
    built = build(ENVIRONMENT)
    host = machine.describe(built, [f"environment {ENVIRONMENT}"])
    soak_census.become_subreaper()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        record = Path(scratch) / "record.json"
        child = start(given, record, Path(scratch) / "tmp")
        try:
            status = child.wait(timeout=given.minutes * 60 + LATE)
        except subprocess.TimeoutExpired:
            child.kill()  # its guests go with it
            status = child.wait()
        tempfile.tempdir = str(Path(scratch) / "tmp")
        leaks = soak_census.left(child.pid)
        tempfile.tempdir = None
        if not record.exists():
            print(f"the soak ended without a record, status {status}", file=sys.stderr)
            return 2 if status == 2 else 1
        found: dict[str, Any] = json.loads(record.read_text())
    found["machine"] = host
    found["command"] = command(given)
    found["leak_count"] += len(leaks)
    found["leaks"] += [f"after the end: {each}" for each in leaks[:50]]
    return publish(given, found)


def publish(given: argparse.Namespace, found: dict[str, Any]) -> int:
    verdicts = judge(found)
    found["verdicts"] = [
        {"wanted": each.wanted, "measured": each.measured, "holds": each.holds} for each in verdicts
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    given.out.write_text(render(found))
    print(f"written: {given.out} and {given.json.name}", file=sys.stderr)
    for each in verdicts:
        print(f"{each.word.strip('*'):17} {each.wanted}: {each.measured}")
    return 1 if any(each.holds is False for each in verdicts) else 0


def start(given: argparse.Namespace, record: Path, scratch: Path) -> subprocess.Popen[bytes]:
    """The child, which is told of signals that come here."""
    scratch.mkdir()
    words = ["--minutes", given.minutes, "--at-once", given.at_once, "--seed", given.seed]
    words += ["--backend", given.backend, "--record", record] + ["--falsify"] * given.falsify
    child = subprocess.Popen(
        [sys.executable, __file__, *map(str, words)],
        env={**os.environ, "TMPDIR": str(scratch), "GLIBC_TUNABLES": UNCACHED},
        start_new_session=True,  # Ctrl-C of a terminal comes here alone, and is passed on
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    return child


def inner(given: argparse.Namespace) -> int:
    course = Course(
        minutes=given.minutes,
        at_once=given.at_once,
        seed=given.seed,
        options={"backend": given.backend, "environment": ENVIRONMENT},
        falsify=given.falsify,
    )
    soak_census.become_subreaper()
    try:
        found = anyio.run(course.run)
    except SandboxError as error:
        print(f"no soak here: {error}", file=sys.stderr)
        return 2
    given.record.write_text(json.dumps(found))
    return 0


def command(given: argparse.Namespace) -> str:
    words = ["scripts/soak", "--minutes", f"{given.minutes:g}", "--at-once", given.at_once]
    words += ["--backend", given.backend, "--seed", given.seed]
    return shlex.join(map(str, words))


if __name__ == "__main__":
    sys.exit(main())
