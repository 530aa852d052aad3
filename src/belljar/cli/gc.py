"""`belljar gc`: remove what processes left behind that were killed before they could clean up."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from belljar.cli import exit_codes
from belljar.errors import SandboxError

SUMMARY = "remove what killed processes left behind"
BACKENDS = ("native", "docker", "all")
DOCKER_TIMEOUT = 300.0  # seconds; somebody waits for it, and wants it done

_DESCRIPTION = """\
Remove what is left of sandboxes whose process is dead: control groups and the processes in them,
half-built environments, containers. Each process does the same when it starts its first sandbox.
What belongs to a living process, to another host, or to somebody else is never touched.
"""
_EPILOG = """\
exit codes:
  0     nothing is left over (with --dry-run: or it was listed)
  1     something could not be removed; it is listed with the reason
  120   --backend docker, and there is no engine
"""

Kind = Literal["control group", "environment", "container", "build container"]


@dataclass(frozen=True, kw_only=True)
class Leftover:
    backend: Literal["native", "docker"]
    kind: Kind
    name: str
    owner: int | None  # the pid it had; None: nobody wrote it down
    removed: bool
    problem: str | None = None  # why it is still there


@dataclass(frozen=True, kw_only=True)
class Collected:
    leftovers: list[Leftover]
    skipped: dict[str, str]  # a backend that was not looked at, and why


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--dry-run", action="store_true", help="only list it")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="all", help="whose leftovers (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    collected = collect(args.backend, dry_run=args.dry_run)
    if args.json:
        print(json.dumps(dataclasses.asdict(collected) | {"dry_run": args.dry_run}, indent=2))
    else:
        _show(collected, dry_run=args.dry_run)
    failed = any(each.problem for each in collected.leftovers)
    return exit_codes.ERROR if failed else exit_codes.OK


def collect(backend: str = "all", *, dry_run: bool = False) -> Collected:
    """Sweep, or only look. Of a backend that is not there, `all` says so in `skipped`."""
    leftovers: list[Leftover] = []
    skipped: dict[str, str] = {}
    for name, sweep in (("native", _native), ("docker", _docker)):
        if backend not in (name, "all"):
            continue
        try:
            leftovers += sweep(dry_run)
        except SandboxError as error:
            if backend == name:
                raise
            skipped[name] = error.message
    return Collected(leftovers=leftovers, skipped=skipped)


def _native(dry_run: bool) -> list[Leftover]:
    from belljar.backends.native.backend import check_host

    check_host()
    return [*_control_groups(dry_run), *_environments(dry_run)]


def _control_groups(dry_run: bool) -> Iterator[Leftover]:
    from belljar.backends.native import cgroup
    from belljar.backends.native.cgroup.tree import Owner

    trees = cgroup.leftovers()
    if not dry_run:
        cgroup.sweep()
    left = cgroup.leftovers()
    for paths in trees:
        owner = Owner.parse(os.path.basename(paths[0]))
        stays = paths in left and not dry_run
        yield Leftover(
            backend="native",
            kind="control group",
            name=paths[0],
            owner=None if owner is None else owner.pid,
            removed=paths not in left,
            problem="it is still in use" if stays else None,
        )


def _environments(dry_run: bool) -> Iterator[Leftover]:
    from belljar.environment_store import Store

    for path in Store.default().sweep(dry_run=dry_run):
        yield Leftover(
            backend="native", kind="environment", name=str(path), owner=None, removed=not dry_run
        )


def _docker(dry_run: bool) -> list[Leftover]:
    import anyio

    from belljar.backends.docker import endpoint
    from belljar.backends.docker.engine import Engine
    from belljar.backends.docker.sweep import sweep

    engine = Engine(endpoint.find())
    swept = anyio.run(functools.partial(sweep, engine, dry_run=dry_run, timeout=DOCKER_TIMEOUT))
    return [
        Leftover(
            backend="docker",
            kind="build container" if each.build else "container",
            name=each.name,
            owner=each.owner,
            removed=each.removed,
            problem=each.problem,
        )
        for each in swept
    ]


def _show(collected: Collected, *, dry_run: bool) -> None:
    from belljar.cli import terminal

    rows = [
        [each.kind, each.name, "-" if each.owner is None else str(each.owner), _became(each)]
        for each in collected.leftovers
    ]
    if rows:
        terminal.table(rows, ("WHAT", "NAME", "OWNER", "WOULD BE" if dry_run else "WAS"))
    else:
        print("nothing is left over")
    for backend, why in collected.skipped.items():
        terminal.say(f"{backend} was left out: {why}")


def _became(leftover: Leftover) -> str:
    return f"not removed: {leftover.problem}" if leftover.problem else "removed"
