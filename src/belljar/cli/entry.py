"""`belljar`: parse the command line, run the command, turn every error into a message.

Nothing heavy is imported here, so that `belljar --version` and `--help` answer at once.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from belljar import __version__
from belljar.cli import exit_codes, terminal
from belljar.errors import (
    FileError,
    GuestLost,
    InvalidOption,
    LimitNotEnforceable,
    SandboxError,
    unknown_option,
)
from belljar.text import printable

Command = Callable[[argparse.Namespace], int | None]  # None: exit code 0


@dataclass(frozen=True)
class _Entry:
    """A command, or a group of commands, and where it is."""

    summary: str
    module: str
    add: str = "add_arguments"  # the function that adds its arguments to a parser
    run: str | None = "run"  # None: a group


def _group(summary: str, module: str) -> _Entry:
    return _Entry(summary, module, add="add_commands", run=None)


# Imported when it is used: each has modules that the others do not need.
_COMMANDS = {
    "run": _Entry("run a file of Python in a sandbox", "run"),
    "map": _Entry("run many snippets, each in a new sandbox", "map"),
    "exec": _Entry("run a program in a sandbox, with pipes or a terminal", "exec"),
    "shell": _Entry("open a shell in a sandbox", "exec", "add_shell_arguments", "run_shell"),
    "repl": _Entry("open a Python prompt in a sandbox", "repl"),
    "replay": _Entry("run a record again and show the differences", "replay"),
    "export": _Entry("turn a record into a notebook, a script or a page", "export"),
    "check": _Entry("apply a policy to code, without running it", "check"),
    "learn": _Entry(
        "run code and print the smallest policy that would allow it",
        *("check", "add_learn_arguments", "run_learn"),
    ),
    "ps": _Entry("list live sandboxes", "ps"),
    "top": _Entry("watch live sandboxes", "top"),
    "doctor": _Entry("report what this host allows, measured on a live sandbox", "doctor"),
    "gc": _Entry("remove what killed processes left behind", "ps", "add_gc_arguments", "run_gc"),
    "conformance": _Entry(
        "try the known attacks on this machine, and report what held", "conformance"
    ),
    "config": _group("show and check the configuration", "configuration"),
    "env": _group("list, build and remove environments (sets of packages)", "env"),
    "image": _group("build, list and remove images (environments for the docker backend)", "image"),
    "session": _group("list and remove sessions (workspaces kept by name)", "session"),
}
_EPILOG = """\
start here:
  belljar doctor                      what this host can enforce
  belljar run script.py               run a file
  belljar repl                        a Python prompt

`belljar help COMMAND` shows the options of a command.
"""


class Parser(argparse.ArgumentParser):
    """An error is one sentence and a hint, instead of a page of usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.commands: dict[str, Parser] = {}
        self.set_defaults(command=lambda args: self.print_help())

    def add_command(self, name: str, command: Command | None = None, **options: Any) -> Parser:
        """A command below this one; `options` are those of argparse, such as `help`."""
        if not self.commands:
            self._below = self.add_subparsers(title="commands", metavar="COMMAND")
        parser = self.commands[name] = self._below.add_parser(name, **options)
        if command is not None:
            parser.set_defaults(command=command)
        return parser

    def error(self, message: str) -> NoReturn:
        raise InvalidOption(message, hint=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; see `exit_codes`."""
    if argv is None:
        code = _run(sys.argv[1:])
        _exit(code)
        return code
    return _run(list(argv))


def _exit(code: int) -> None:
    """End this process without taking its modules apart, which would take 30 ms. Returns if
    something fails: the interpreter's own exit reports it."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(argv: list[str]) -> int:
    _prepare_streams()
    try:
        args = parse(argv)
        with _exiting_on_signals(), warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            command: Command = args.command
            return command(args) or exit_codes.OK
    except SandboxError as error:
        return _report(error)
    except KeyboardInterrupt:
        print("belljar: interrupted", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe (`| head`)
        _discard_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:  # the output cannot be written: the disk is full
        _discard_stdout()
        print(f"belljar: {error.strerror}", file=sys.stderr)
        return exit_codes.FILE
    except Exception:
        # A bug in Belljar must not look like an exception of the code (exit code 1).
        traceback.print_exc()
        return exit_codes.CANNOT_RUN


def _discard_stdout() -> None:
    """The interpreter flushes stdout once more when it exits; that must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    default: Callable[..., None], message: Warning | str, category: type[Warning], *rest: object
) -> None:
    if category is not RuntimeWarning:  # Belljar's own warnings are RuntimeWarnings
        return default(message, category, *rest)
    terminal.say(f"warning: {message}".replace("strict=True", "--require-limits"))


def _report(error: SandboxError) -> int:
    text = str(error)
    if isinstance(error, LimitNotEnforceable):  # its own hint is for Python callers
        text = f"{error.message}\n  hint: --best-effort starts without it; see `belljar doctor`"
    print(f"belljar: {printable(text)}", file=sys.stderr)  # a message may quote the guest
    if isinstance(error, InvalidOption):
        return exit_codes.USAGE
    if isinstance(error, GuestLost):
        return exit_codes.LOST
    return exit_codes.FILE if isinstance(error, FileError) else exit_codes.CANNOT_RUN


# -- parsing ------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="belljar",
        description="Run untrusted Python in a sandbox, and get back everything it did.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"belljar {__version__}")
    raw = argparse.RawDescriptionHelpFormatter
    for name, entry in _COMMANDS.items():
        formatter = argparse.HelpFormatter if entry.run is None else raw
        parser.add_command(name, help=entry.summary, formatter_class=formatter)
    return _parse(argv, parser)


def _add_arguments(parser: Parser, entry: _Entry) -> None:
    module = importlib.import_module(f"belljar.cli.{entry.module}")
    if entry.run is not None:
        parser.set_defaults(command=getattr(module, entry.run))
    getattr(module, entry.add)(parser)


def _parse(argv: Sequence[str], top: Parser) -> argparse.Namespace:
    """Suggests the right word for a mistyped one; argparse would only reject it."""
    argv, arguments = _split_arguments(_expand_shorthand(argv, top))
    if argv and argv[0] in _COMMANDS:
        _add_arguments(top.commands[argv[0]], _COMMANDS[argv[0]])
    chosen = top
    for word in argv[:2]:
        if word.startswith("-") or not chosen.commands:
            break
        if word not in chosen.commands:
            path = chosen.prog.partition(" ")[2]
            known = [*chosen.commands, *(["help"] if chosen is top else [])]
            raise unknown_option(f"{path} command".strip(), word, sorted(known))
        chosen = chosen.commands[word]
    args, unknown = top.parse_known_args(argv)
    for word in unknown:
        if word.startswith("-"):
            options = [o for o in chosen._option_string_actions if o.startswith("--")]
            raise unknown_option("option", word.partition("=")[0], options)
    if unknown:
        message = f"too many arguments: {' '.join(unknown)}"
        if chosen is top.commands["run"]:
            raise InvalidOption(message, hint="put arguments for the code itself after `--`")
        if chosen is top.commands["exec"]:
            raise InvalidOption(message, hint="put the program after `--`: belljar exec -- ls -l")
        chosen.error(message)
    args.arguments = arguments
    return args


def _expand_shorthand(argv: Sequence[str], top: Parser) -> Sequence[str]:
    """`belljar help COMMAND` is `belljar COMMAND --help`, `belljar FILE` is `belljar run FILE`."""
    first = argv[0] if argv else "-"
    if first == "help":
        return [*argv[1:], "--help"]
    if first in top.commands or first.startswith("-"):
        return argv
    is_file = first.endswith(".py") or os.path.isfile(first)
    return ["run", *argv] if is_file else argv


def _split_arguments(argv: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """`belljar run FILE -- ARG...`: everything after `--` goes to the code unchanged."""
    if not argv or argv[0] not in ("run", "exec") or "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], list(argv[at + 1 :])


# -- the process --------------------------------------------------------------------------------


def _prepare_streams() -> None:
    """Make sure that a closed stream, or a character it cannot encode, is not an error."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _exiting_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process in order: `with` blocks close their sandboxes.

    (The backend cleans up after a process that SIGKILL ended.)
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    handled: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        both = (signal.SIGTERM, signal.SIGHUP)
        # Not one that is ignored: the command runs under nohup.
        handled = [each for each in both if signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
