"""`belljar map FILE.jsonl|DIR|-`: many snippets, each in a sandbox of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.cli import exit_codes, sandbox_options
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.execution import Execution

SUMMARY = "run many snippets, each in a sandbox of its own"

_DESCRIPTION = """\
Run many snippets, each in a fresh sandbox out of a warm pool. They come from a file of JSON lines
(`-`: standard input) or are the *.py of a directory. A line is a text of code, or an object:

  {"code": "...", "id": "a1", "then": "tests", "variables": {}, "files": {}, "env": {},
   "timeout": 5}

Only "code" must be there. "then" runs after code that went well, in the same sandbox, and what
comes of it counts. Without "id", a line has its number, a file its name. Results are lines of JSON
in the order of the input: {"id": ..., "outcome": ..., "text": ..., "stdout": ..., ...}.
"""
_EPILOG = """\
examples:
  belljar map submissions.jsonl --timeout 5 --out results.jsonl
  belljar map submissions.jsonl --timeout 5 --out results.jsonl --resume
  belljar map solutions/ --env python --concurrency 8
  generate | belljar map - --json | jq .outcome

exit codes:
  0     every snippet ran to its end
  1     at least one did not
  2     wrong usage, or an input that cannot be read
  120   sandboxes could not be started or used
  130   interrupted (Ctrl-C); what --out has by then, --resume leaves out
"""
_PARTS = ("code", "then", "variables", "files", "env", "timeout")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "input", metavar="FILE", help="JSON lines; `-` is standard input; a directory: its *.py"
    )
    parser.add_argument(
        "--concurrency",
        "-j",
        metavar="N",
        type=_count,
        help="how many run at once (default: twice the number of processors)",
    )
    parser.add_argument("--out", metavar="FILE", help="write the results to FILE")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out what --out has a result of, and append the rest to it",
    )
    parser.add_argument("--json", action="store_true", help="write the results to standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    parser.set_defaults(record=None, workspace=None, session=None, mounts=[])
    sandbox_options.add_policy(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    if args.resume and not args.out:
        raise InvalidOption("--resume needs --out", hint="it is the file that says what is done")
    with sandbox_options.watching(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from belljar.pooling.blocking import Pool

    options = sandbox_options.options(args)
    known = _done(Path(args.out)) if args.resume else set[str]()
    ids = deque[str]()  # of what is under way: no more than the pool looks ahead
    counts: Counter[str] = Counter()

    def snippets() -> Iterator[dict[str, object]]:
        for id_, snippet in _read(args.input):
            if id_ not in known:
                ids.append(id_)
                yield snippet

    most = args.concurrency
    with contextlib.ExitStack() as stack:
        write = _writer(args, stack)
        show = _progress(args, stack, _total(args.input, known))
        pool = stack.enter_context(Pool(min_ready=0, max_total=max(32, 2 * (most or 1)), **options))
        for execution in pool.map(snippets(), concurrency=most):
            counts[execution.outcome.value] += 1
            write(ids.popleft(), execution)
            show(counts)
    if not args.quiet:
        _summary(counts, len(known))
    return exit_codes.OK if set(counts) <= {"ok"} else exit_codes.ERROR


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"a number, 1 or more, not {text!r}")
    return int(text)


# -- in ------------------------------------------------------------------------------------------


def _read(name: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Each snippet with its id, as it is needed."""
    if name != "-" and Path(name).is_dir():
        from belljar.cli.run import read_code

        for path in _sources(name):
            yield str(path.relative_to(name)), {"code": read_code(str(path))}
        return
    with _opened(name) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parse(name, number, line)


def _sources(name: str) -> list[Path]:
    found = sorted(path for path in Path(name).rglob("*.py") if path.is_file())
    if not found:
        raise InvalidOption(f"there is no *.py below {name!r}")
    return found


@contextlib.contextmanager
def _opened(name: str) -> Iterator[Iterator[bytes]]:
    if name == "-":
        yield iter(sys.stdin.buffer)
        return
    try:
        with open(name, "rb") as file:
            yield iter(file)
    except OSError as error:
        raise InvalidOption(f"cannot read {name!r}: {error.strerror}") from error


def _parse(name: str, number: int, line: bytes) -> tuple[str, dict[str, object]]:
    where = f"line {number} of {name!r}"
    try:
        given = json.loads(line)
    except ValueError as error:
        raise InvalidOption(f"{where} is not JSON: {error}") from error
    if isinstance(given, str):
        given = {"code": given}
    if not isinstance(given, dict) or not isinstance(given.get("code"), str):
        raise InvalidOption(f"{where} has no code", hint='{"code": "print(6 * 7)"}, or a text')
    id_ = given.pop("id", number)
    if isinstance(id_, bool) or not isinstance(id_, (str, int)):
        raise InvalidOption(f"{where}: id is a text or a number, not {id_!r}")
    # What else a line says is the business of whoever wrote it.
    return str(id_), {part: given[part] for part in _PARTS if given.get(part) is not None}


def _total(name: str, known: set[str]) -> int | None:
    """How many there will be, if that is known beforehand."""
    if name == "-" or not Path(name).exists():
        return None
    if Path(name).is_dir():
        return len(_sources(name)) - len(known)
    with open(name, "rb") as file:
        return max(sum(1 for line in file if line.strip()) - len(known), 0)


def _done(out: Path) -> set[str]:
    """The ids that have a result. A last line that was cut off has none, and is taken away."""
    found = set[str]()
    if not out.exists():
        return found
    end = 0
    with open(out, "rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            try:
                found.add(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidOption(
                    f"{str(out)!r} is not a file of results", hint="--resume goes on with one"
                ) from error
        file.truncate(end)
    return found


# -- out -----------------------------------------------------------------------------------------


def _writer(
    args: argparse.Namespace, stack: contextlib.ExitStack
) -> Callable[[str, Execution], None]:
    files: list[Any] = [sys.stdout] if args.json or not args.out else []
    if args.out:
        try:
            file = open(args.out, "a" if args.resume else "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise InvalidOption(f"cannot write {args.out!r}: {error.strerror}") from error
        files.append(stack.enter_context(file))

    def write(id_: str, execution: Execution) -> None:
        line = json.dumps({"id": id_, **execution.to_dict()}, allow_nan=False)
        for each in files:
            each.write(line + "\n")
            each.flush()  # whoever is interrupted has what was done

    return write


def _progress(
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


def _summary(counts: Counter[str], left_out: int) -> None:
    from belljar.cli import terminal

    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    before = f" ({left_out} were done before)" if left_out else ""
    terminal.say(f"{counts.total()} snippets{before}{': ' if said else ''}{said}")
