"""Belljar beside what people use today: one run, one table, one picture, the ratios that matter.

    scripts/bench                 everything: about 25 minutes on two cores
    scripts/bench --quick         the same with few repetitions: three minutes
    scripts/bench --publish       also into docs/reports/ and the tables of the pages

It waits until nothing else runs. Only a run of a quiet machine is published: the README speaks of
milliseconds, and those of a busy one are not Belljar's. The run itself is kept in any case.

All who can do a kind of work take turns at it, so that a busy moment of the machine hits them
alike; look at the ratios before the milliseconds. docs/reports/benchmarks.md says what is
measured, and how each of the others is configured.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine
import report
from contender import Contender
from criteria import judge
from machine import sentence
from peers.contract import ALL
from peers.venvs import PEERS, ROOT, Interpreters, NotInstalled, pinned, surroundings
from quiet import Quiet, is_quiet
from rich.console import Console
from rounds import QUICK, SLOW_TRIPS, Course, Scale

from belljar.environment.environment import build

REPORTS = ROOT / "docs" / "reports"
# Seconds for every start: not part of a quick run, unless they are asked for by name.
SLOW = (
    "belljar_docker",
    "belljar_gvisor",
    "gvisor_run",
    "llm_sandbox",
    "pandasai_docker",
    "smolagents_docker",
)
PAGES = (ROOT / "README.md", REPORTS / "benchmarks.md")
WORKS = {
    "cold": "(a, b) from nothing to a first result with pandas, and the end; also from a pool",
    "command": "(i) `belljar run` against plain python: print(1), and a script with pandas",
    "trip": "(c) 1+1 in a live session",
    "frames": "(d) a frame of 10 MB and of 100 MB in and out",
    "throughput": "(e) one-shots per second, 1, 2, 8 and 32 at once; p50, p99, processor time",
    "memory": "(f) one more idle sandbox: private pages of all its processes",
    "streaming": "(g) output to a callback: writes of 64 KB, and lines",
    "cells": "(h) 1 → 50,000 cells in one session",
    "outputs": "(h) 1 KB → 100 MB of output of one run",
    "many": "(h) 1 → 500 sandboxes",
    "burst": "(h) a pool of 8 that is asked for 64 at once",
}
assert tuple(WORKS) == ALL
OF_FEW = ("command", "burst")  # by their nature: nothing is to be said of the others


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="WORK,…", help="kinds of work (see --list)")
    parser.add_argument("--peers", metavar="NAME,…", help="who is measured (see --list)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: three minutes")
    parser.add_argument(
        "--wait",
        type=float,
        metavar="MINUTES",
        help="at most, for a quiet machine (30; 5 with --quick); 0: none",
    )
    parser.add_argument("--python", metavar="PATH", help="of belljar_other (3.13, if installed)")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="also N one-shots (20000)")
    parser.add_argument("--json", action="store_true", help="JSON to stdout instead of tables")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    parser.add_argument("--name", help="of the files in DIR (the date and the hour)")
    parser.add_argument("--publish", action="store_true", help="into docs/reports/ too, if quiet")
    parser.add_argument("--show", type=Path, metavar="FILE", help="(publish) an earlier run")
    parser.add_argument("--list", action="store_true", help="the kinds of work, and who there is")
    given = parser.parse_args()
    if given.wait is None:
        given.wait = 5.0 if given.quick else 30.0
    given.left_out = [] if given.peers or not given.quick else list(SLOW)
    for option, known in (("only", WORKS), ("peers", PEERS)):
        chosen = getattr(given, option)
        names = [name.strip() for name in chosen.split(",")] if chosen else list(known)
        if unknown := [name for name in names if name not in known]:
            parser.error(f"--{option}: there is no {', '.join(unknown)}; see --list")
        setattr(given, option, names)
    given.peers = [name for name in given.peers if name not in given.left_out]
    return given


def start(given: argparse.Namespace, logs: Path) -> tuple[list[Contender], dict[str, Any]]:
    """All contenders, also those who cannot be here; and what is to be said of the machine."""
    built = build("data")
    told = surroundings(built, given.peers, given.python)
    interpreters = Interpreters(built)
    host = machine.describe(built, pinned(built))
    host["scratch"], host["plot"] = told["scratch"], ""
    contenders = []
    for name in given.peers:
        try:
            python = interpreters.of(name)
        except NotInstalled as error:
            contenders.append(Contender.absent(name, str(error)))
            continue
        contenders.append(Contender.start(name, python, told, logs))
        if contenders[-1].missing:
            print(f"missing: {name}: {contenders[-1].missing}", file=sys.stderr)
    try:
        host["plot"] = interpreters.of("python_c")  # has matplotlib
    except NotInstalled as error:
        print(f"no picture: {error}", file=sys.stderr)
    return contenders, host


def course_of(given: argparse.Namespace, logs: Path) -> tuple[dict[str, Any], str]:
    """The whole run as plain data; and the interpreter that can draw it."""
    contenders, host = start(given, logs)
    plot, scratch = host.pop("plot"), host.pop("scratch")
    scale = QUICK if given.quick else Scale()
    quiet = Quiet()
    course = Course(contenders, scale, given.soak, quiet.look)
    try:
        began = datetime.datetime.now()
        if not quiet.wait(given.wait) and given.publish:
            sys.exit("not measured: what is published comes from a quiet machine")
        began = datetime.datetime.now()
        course.run(given.only)
    except KeyboardInterrupt:
        print("interrupted: what there is follows", file=sys.stderr)
    finally:
        for one in contenders:
            one.close()
        shutil.rmtree(scratch, ignore_errors=True)
    took = (datetime.datetime.now() - began).total_seconds()
    quiet.end()
    host["quiet"] = quiet.found
    versions = {one.name: one.about["version"] for one in contenders if one.about}
    run = {
        "host": host,
        "how": how(scale, took),
        "took": course.took,
        "peers": {one.name: describe(one, given.only) for one in contenders if one.about},
        "missing": {one.name: one.missing for one in contenders if not one.about}
        | dict.fromkeys(given.left_out, "too slow for a quick run"),
        "figures": course.figures.as_json(),
        "courses": course.courses,
        "criteria": [asdict(verdict) for verdict in judge(course.figures, versions)],
    }
    return run, plot


def how(scale: Scale, took: float) -> str:
    return (
        f"Medians and quartiles of one run of {took / 60:.1f} minutes, in turns; {scale.cold} "
        f"turns of cold starts ({scale.cold_quick} in each of what takes less than 0.1 s; fewer of "
        f"what takes seconds) after one that is not counted, {scale.trips} round trips after 5 "
        f"({SLOW_TRIPS * scale.trip_rounds} of what takes more than 20 ms), "
        f"{scale.storm_rounds} × {scale.storm_seconds:.0f} s of one-shots after one (once where "
        f"there are less than 10 per second), {scale.places} idle places beside one more, "
        f"{scale.stream_rounds} streams after two"
    )


def describe(one: Contender, only: list[str]) -> dict[str, Any]:
    about = {name: one.about[name] for name in ("title", "settings", "isolation", "version")}
    asked = [work for work in only if work not in OF_FEW and not one.missing]
    left_out = {work: why for work in asked if (why := one.why_not(work))}
    return about | {"failures": one.failures, "left_out": left_out}


def write(run: dict[str, Any], plot: str, given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    name = given.name or run["host"]["date"].replace(" UTC", "").replace(" ", "-").replace(":", "")
    made = given.out / f"{name}.json"
    made.write_text(json.dumps(run, indent=1) + "\n", "utf-8")
    (given.out / f"{name}.md").write_text(
        report.markdown(run)["benchmark results"] + "\n", encoding="utf-8"
    )
    picture = made.with_suffix(".png")
    if plot:
        script = str(Path(__file__).with_name("plot.py"))
        subprocess.run([plot, "-P", script, str(made), str(picture)], check=True)
    print(f"written: {made} and beside it .md{' and .png' if plot else ''}", file=sys.stderr)
    if given.publish:
        publish(run, made)


def publish(run: dict[str, Any], made: Path) -> None:
    """Into the pages, each text between its two markers, where a page has them."""
    found = run["host"].get("quiet")
    if found is None or not is_quiet(found):
        sys.exit(f"not published, the machine was not quiet: {sentence(run['host'])}")
    shutil.copy(made, REPORTS / "benchmarks.json")
    if (picture := made.with_suffix(".png")).is_file():
        shutil.copy(picture, REPORTS / "benchmark.png")
    for page in PAGES:
        text = page.read_text("utf-8")
        for name, new in report.markdown(run).items():
            pattern = re.compile(
                rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL
            )
            text = pattern.sub(lambda match, new=new: f"{match[1]}{new}\n{match[2]}", text)
        page.write_text(text, "utf-8")


def said_of(peer: str) -> str:
    """The first line of its module, which only its own interpreter can import."""
    source = Path(__file__).with_name("peers").joinpath(f"{peer}.py").read_text("utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also an orderly end
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    if given.list:
        for title, table in (("work", WORKS), ("who", {name: said_of(name) for name in PEERS})):
            console.print(title + ":")
            for name, meaning in table.items():
                console.print(f"  {name:20}{meaning}", markup=False)
        return
    if given.show:
        run = json.loads(given.show.read_text("utf-8"))
        if given.publish:
            publish(run, given.show)
    else:
        with tempfile.TemporaryDirectory(prefix="belljar-bench-logs-") as logs:
            run, plot = course_of(given, Path(logs))
        write(run, plot, given)
    if given.json:
        json.dump(run, sys.stdout, indent=1)
        print()
    else:
        report.show(run, console)


if __name__ == "__main__":
    main()
