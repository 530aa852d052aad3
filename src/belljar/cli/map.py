"""`belljar map FILE.jsonl|DIR|-`: run many snippets, each in a new sandbox."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.cli import exit_codes, sandbox_options, terminal, transfer
from belljar.cli.run import read_code
from belljar.errors import InvalidOption, unknown_option

if TYPE_CHECKING:
    from io import BufferedRandom, RawIOBase

    from belljar.results.execution import Execution

_DESCRIPTION = """\
Run many snippets, each in a new sandbox from a warm pool. They come from a file of JSON lines
(`-`: standard input) or are the *.py files of a directory. A line is a string of code, or an
object:

  {"code": "...", "id": "a1", "then": "tests", "variables": {}, "files": {}, "env": {},
   "timeout": 5, "metadata": ...}

Only "code" is required. "then" is code that runs in the same sandbox after "code" succeeded; its
result then counts. Without "id", a line has its number and a file its name; ids are unique.
"metadata" is copied to the result. Results are JSON lines in the order of the input, each written
as soon as it is known: {"id": ..., "outcome": ..., "text": ..., "stdout": ..., ...}. "input" is a
digest of the snippet, by which --resume notices changes. A snippet that cannot be run (too large, a
file with an impossible name) has the outcome "error" and "execution_count" 0.
"""
_EPILOG = """\
examples:
  belljar map submissions.jsonl --timeout 5 --out results.jsonl
  belljar map submissions.jsonl --timeout 5 --out results.jsonl --resume
  belljar map solutions/ --env python --concurrency 8
  belljar map solutions/ --then tests.py --put cases.json
  generate | belljar map - --json | jq .outcome

exit codes:
  0     every snippet ran to its end, those of earlier runs (--resume) included
  1     at least one did not
  2     wrong usage, or an input that cannot be read
  120   sandboxes could not be started or used
  130   interrupted (Ctrl-C); --resume continues after what --out has
"""
_PARTS = ("code", "then", "variables", "files", "env", "timeout")
_KNOWN = (*_PARTS, "id", "metadata")
_CHUNK = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        help="skip snippets that have a result in --out, and append the others to it",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace --out, even if it has results"
    )
    parser.add_argument(
        "--then", metavar="FILE", help='code to run after each snippet that has no "then" itself'
    )
    transfer.add_put(parser, "every sandbox")
    parser.add_argument("--json", action="store_true", help="write the results to standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    parser.set_defaults(record=None, workspace=None, session=None, mounts=[])
    sandbox_options.add_policy(parser)
    sandbox_options.add_all(parser)


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"a number, 1 or more, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    check_output(args)
    with sandbox_options.watching(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from belljar.pool.blocking import Pool

    options = sandbox_options.options(args)
    then = None if args.then is None else read_code(args.then)
    files = transfer.load_all(args.put)
    done = Done(args.out if args.resume else None)

    def entries() -> Iterator[Entry]:
        return (entry for entry in read_entries(args.input, then, files) if not done.has(entry))

    streamed = is_stream(args.input)
    # Report mistakes in a file before any of it runs.
    total = None if streamed else sum(1 for _ in entries())
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        write = open_writer(args, stack)
        show = open_progress(args, stack, total)
        most = args.concurrency
        pool = stack.enter_context(Pool(min_ready=0, max_total=max(32, 2 * (most or 1)), **options))
        snippets = ({**entry.parts, "metadata": entry} for entry in entries())
        results = pool.map(snippets, concurrency=most, read_in_thread=streamed)
        for item, execution in stack.enter_context(results).pairs():
            assert isinstance(item, dict)
            counts[execution.outcome.value] += 1
            write(item["metadata"], execution)
            show(counts)
    if not args.quiet:
        _print_summary(counts, done.counts)
    return exit_codes.OK if {*counts, *done.counts} <= {"ok", "unknown"} else exit_codes.ERROR


# -- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Entry:
    id: str
    where: str  # for messages
    metadata: object
    parts: dict[str, Any]  # of the Snippet

    @property
    def digest(self) -> str:
        """Of everything that runs; it is stored with the result."""
        text = json.dumps(self.parts, sort_keys=True, default=repr)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_stream(name: str) -> bool:
    """True for a pipe; its writer may wait for results before it writes more."""
    return name == "-" or not (Path(name).is_file() or Path(name).is_dir())


def read_entries(name: str, then: str | None, files: Mapping[str, bytes]) -> Iterator[Entry]:
    """Read snippets as they are needed. Raises if an id occurs twice.

    `then` and `files` are for every snippet that does not set them itself.
    """
    seen: dict[str, str] = {}
    read = _read_directory if Path(name).is_dir() else _read_file
    for entry in read(name):
        if entry.id in seen:
            raise InvalidOption(
                f"two snippets have the id {entry.id!r}: {seen[entry.id]}, and {entry.where}",
                hint='a line without "id" has its number as id',
            )
        seen[entry.id] = entry.where
        if then is not None:
            entry.parts.setdefault("then", then)
        if files and isinstance(own := entry.parts.get("files", {}), dict):
            entry.parts["files"] = {**files, **own}
        yield entry


def _read_directory(name: str) -> Iterator[Entry]:
    found = sorted(path for path in Path(name).rglob("*.py") if path.is_file())
    if not found:
        raise InvalidOption(f"there is no *.py below {name!r}")
    for path in found:
        parts = {"code": read_code(str(path))}
        id_ = str(path.relative_to(name))
        yield Entry(id=id_, where=repr(str(path)), metadata=None, parts=parts)


def _read_file(name: str) -> Iterator[Entry]:
    for number, line in enumerate(_read_lines(name), 1):
        if line.strip():
            yield _parse_line(f"line {number} of {name!r}", number, line)


def _read_lines(name: str) -> Iterator[bytes]:
    if name == "-":
        # Not through the buffer: a thread that waits in it would block the interpreter's exit.
        buffer: Any = sys.stdin.buffer
        yield from _split_stream(getattr(buffer, "raw", buffer))
        return
    try:
        with open(name, "rb", buffering=0) as file:
            yield from _split_stream(file)
    except OSError as error:
        raise InvalidOption(f"cannot read {name!r}: {error.strerror}") from error


def _split_stream(stream: RawIOBase) -> Iterator[bytes]:
    """Each line as soon as it is complete."""
    parts: list[bytes] = []
    while (chunk := stream.read(_CHUNK)) != b"":
        if chunk is None:  # a stream that does not block
            select.select([stream], [], [])
            continue
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts.clear()
        parts.append(last)
    yield b"".join(parts)


def _parse_line(where: str, number: int, line: bytes) -> Entry:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{where} is not JSON: {error}") from error
    if isinstance(given, str):
        given = {"code": given}
    if not isinstance(given, dict) or not isinstance(given.get("code"), str):
        raise InvalidOption(
            f"{where} has no code", hint='write {"code": "print(6 * 7)"}, or a string'
        )
    for key in given:
        if key not in _KNOWN:
            unknown = unknown_option("part of a snippet", key, _KNOWN)
            hint = f'{unknown.hint}; put your own data into "metadata"'
            raise InvalidOption(f"{where}: {unknown.message}", hint=hint)
    id_ = given.get("id")
    id_ = number if id_ is None else id_
    if isinstance(id_, bool) or not isinstance(id_, (str, int)):
        raise InvalidOption(f"{where}: id must be a string or a whole number, not {id_!r}")
    parts = {part: given[part] for part in _PARTS if given.get(part) is not None}
    return Entry(id=str(id_), where=where, metadata=given.get("metadata"), parts=parts)


# -- output ---------------------------------------------------------------------------------------


class Done:
    """The results that --out has, by their ids."""

    def __init__(self, out: str | None) -> None:
        """`out` is the file of an earlier run, if there is one. An incomplete last line is removed
        from it."""
        self.digests: dict[str, str | None] = {}
        self.counts: Counter[str] = Counter()
        if out is not None and os.path.exists(out):
            with open(out, "rb+") as file:
                self._read(file)

    def _read(self, file: BufferedRandom) -> None:
        end = 0
        for line in file:
            if not line.endswith(b"\n") and b'{"id": '.startswith(line[:7]):
                break
            end += len(line)
            try:
                result = json.loads(line)
                self.digests[str(result["id"])] = result.get("input")
                self.counts[result.get("outcome", "unknown")] += 1
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidOption(
                    f"{file.name!r} is not a file of results", hint="--resume needs one"
                ) from error
        file.truncate(end)

    def has(self, entry: Entry) -> bool:
        """True if there is a result of it; raises if it has changed since."""
        if entry.id not in self.digests:
            return False
        digest = self.digests[entry.id]
        if digest is not None and digest != entry.digest:
            raise InvalidOption(
                f"{entry.where} has changed since its result {entry.id!r} was written",
                hint='run everything again (--overwrite), or give each line a fixed "id"',
            )
        return True


def check_output(args: argparse.Namespace) -> None:
    """Existing results are kept, unless the user asks to replace them."""
    if args.resume and not args.out:
        raise InvalidOption("--resume needs --out", hint="--out names the file with the results")
    if args.resume and args.overwrite:
        raise InvalidOption("--resume and --overwrite exclude each other", hint="choose one")
    if not args.out:
        return
    out = Path(args.out)
    if _is_input(args.input, out):
        raise InvalidOption(
            f"--out {args.out!r} is the input, not a file of results", hint="name another file"
        )
    if out.is_file() and out.stat().st_size and not (args.resume or args.overwrite):
        raise InvalidOption(
            f"{args.out!r} exists already", hint="--resume continues it, --overwrite replaces it"
        )


def _is_input(name: str, out: Path) -> bool:
    try:
        given = os.fstat(sys.stdin.fileno()) if name == "-" else os.stat(name)
        return out.is_file() and os.path.samestat(given, out.stat())
    except (OSError, ValueError):  # no such file, or stdin has no descriptor
        return False


def open_writer(
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
        result = {"id": entry.id, **own, "input": entry.digest, **execution.to_dict()}
        line = json.dumps(result, allow_nan=False)
        for each in files:
            each.write(line + "\n")
            each.flush()  # an interrupted run keeps what it has done

    return write


def open_progress(
    args: argparse.Namespace, stack: contextlib.ExitStack, total: int | None
) -> Callable[[Counter[str]], None]:
    """A progress bar on a terminal, nothing elsewhere."""
    if args.quiet or not sys.stderr.isatty():
        return lambda counts: None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    outcomes = TextColumn("{task.fields[outcomes]}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), outcomes)
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("", total=total, outcomes="")

    def show(counts: Counter[str]) -> None:
        bar.update(task, completed=counts.total(), outcomes=_list_counts(counts))

    return show


def _list_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())


def _print_summary(counts: Counter[str], before: Counter[str]) -> None:
    listed = _list_counts(counts)
    earlier = f" ({before.total()} were done before)" if before else ""
    what = "snippet" if counts.total() == 1 else "snippets"
    terminal.say(f"{counts.total()} {what}{earlier}{': ' if listed else ''}{listed}")
