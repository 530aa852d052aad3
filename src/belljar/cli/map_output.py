"""What `belljar map` writes: a line of JSON for each result, and how far it is."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.cli.map_input import Entry
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.results.execution import Execution


class Done:
    """The results that a file has, by their ids."""

    def __init__(self) -> None:
        self.digests: dict[str, str | None] = {}
        self.counts: Counter[str] = Counter()

    def has(self, entry: Entry) -> bool:
        """Whether there is a result of it; raises if there is one of something else."""
        if entry.id not in self.digests:
            return False
        digest = self.digests[entry.id]
        if digest is not None and digest != entry.digest:
            raise InvalidOption(
                f"{entry.where} has changed: the result {entry.id!r} is of something else",
                hint='run all of it again (--overwrite), or give each line an "id" that stays',
            )
        return True


def check(args: argparse.Namespace) -> None:
    """Nothing that is there already is lost, unless that is asked for."""
    if args.resume and not args.out:
        raise InvalidOption("--resume needs --out", hint="it is the file that says what is done")
    if args.resume and args.overwrite:
        raise InvalidOption("--resume keeps what --out has, --overwrite does not", hint="choose")
    if not args.out:
        return
    out = Path(args.out)
    if _same(args.input, out):
        raise InvalidOption(
            f"--out {args.out!r} is the input, not a file of results", hint="name another file"
        )
    if out.is_file() and out.stat().st_size and not (args.resume or args.overwrite):
        raise InvalidOption(
            f"{args.out!r} is there already",
            hint="--resume goes on with it, --overwrite begins anew",
        )


def _same(name: str, out: Path) -> bool:
    try:
        given = os.fstat(sys.stdin.fileno()) if name == "-" else os.stat(name)
        return out.is_file() and os.path.samestat(given, out.stat())
    except (OSError, ValueError):  # there is no such file, or nothing that has a number
        return False


def done(out: Path) -> Done:
    """What has a result. A last line that was cut off has none, and is taken away."""
    found = Done()
    if not out.exists():
        return found
    end = 0
    with open(out, "rb+") as file:
        for line in file:
            if not line.endswith(b"\n") and b'{"id": '.startswith(line[:7]):
                break
            end += len(line)
            try:
                result = json.loads(line)
                found.digests[str(result["id"])] = result.get("input")
                found.counts[result.get("outcome", "unknown")] += 1
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidOption(
                    f"{str(out)!r} is not a file of results", hint="--resume goes on with one"
                ) from error
        file.truncate(end)
    return found


def writer(
    args: argparse.Namespace, stack: contextlib.ExitStack
) -> Callable[[Entry, Execution], None]:
    files: list[Any] = [sys.stdout] if args.json or not args.out else []
    if args.out:
        try:
            file = open(args.out, "a" if args.resume else "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise InvalidOption(f"cannot write {args.out!r}: {error.strerror}") from error
        files.append(stack.enter_context(file))

    def write(entry: Entry, execution: Execution) -> None:
        own = {} if entry.metadata is None else {"metadata": entry.metadata}
        said = {"id": entry.id, **own, "input": entry.digest, **execution.to_dict()}
        line = json.dumps(said, allow_nan=False)
        for each in files:
            each.write(line + "\n")
            each.flush()  # whoever is interrupted has what was done

    return write


def progress(
    args: argparse.Namespace, stack: contextlib.ExitStack, total: int | None
) -> Callable[[Counter[str]], None]:
    """A bar on a terminal, nothing elsewhere."""
    if args.quiet or not sys.stderr.isatty():
        return lambda counts: None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("", total=total, said="")

    def show(counts: Counter[str]) -> None:
        said = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
        bar.update(task, completed=counts.total(), said=said)

    return show


def summary(counts: Counter[str], before: Counter[str]) -> None:
    from belljar.cli import terminal

    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    earlier = f" ({before.total()} were done before)" if before else ""
    what = "snippet" if counts.total() == 1 else "snippets"
    terminal.say(f"{counts.total()} {what}{earlier}{': ' if said else ''}{said}")
