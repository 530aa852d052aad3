"""`belljar`: parse the command line, hand over to a command, answer for every error.

Nothing heavy is imported here: `belljar --version` and `--help` answer at once.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from belljar import __version__
from belljar.cli import (
    check,
    config,
    conformance,
    doctor,
    env,
    exit_codes,
    export,
    gc,
    image,
    learn,
    ps,
    repl,
    replay,
    run,
    session,
    top,
)
from belljar.cli import map as map_
from belljar.errors import (
    FileError,
    InvalidOption,
    LimitNotEnforceable,
    SandboxError,
    unknown_option,
)

Command = Callable[[argparse.Namespace], int]

_DESCRIPTION = "Run Python that nobody has read, and get back everything it did."
_EPILOG = """\
start here:
  belljar doctor                      what this host can enforce
  belljar run script.py               run a file
  belljar repl                        try things out

`belljar help COMMAND` tells the rest.
"""


class Parser(argparse.ArgumentParser):
    """Its errors are ours: one sentence and a hint, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise InvalidOption(message, hint=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Gives the exit code; see `exit_codes`."""
    _prepare_streams()
    try:
        args = parse(sys.argv[1:] if argv is None else list(argv))
        with _Signals(), warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            command: Command = args.command
            return command(args)
    except SandboxError as error:
        return _explain(error)
    except KeyboardInterrupt:
        print("belljar: interrupted", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # the reader has enough (`| head`)
        _give_up_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:  # output that cannot be written: the disk is full
        _give_up_stdout()
        print(f"belljar: {error.strerror}", file=sys.stderr)
        return exit_codes.FILE
    except Exception:
        # A mistake of ours must not look like one of the code (exit code 1).
        traceback.print_exc()
        return exit_codes.CANNOT_RUN


def _give_up_stdout() -> None:
    """The interpreter flushes once more at its end, and must not fail at it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    default: Callable[..., None], message: Warning | str, category: type[Warning], *rest: object
) -> None:
    if category is not RuntimeWarning:  # those of the engine are RuntimeWarnings
        return default(message, category, *rest)
    from belljar.cli import terminal

    terminal.say(f"warning: {message}".replace("strict=True", "--require-limits"))


def _explain(error: SandboxError) -> int:
    from belljar.text import printable

    text = str(error)
    if isinstance(error, LimitNotEnforceable):  # its own hint is for those who write Python
        text = f"{error.message}\n  hint: --best-effort starts all the same; see `belljar doctor`"
    # A message may quote the guest.
    print(f"belljar: {printable(text)}", file=sys.stderr)
    if isinstance(error, InvalidOption):
        return exit_codes.USAGE
    return exit_codes.FILE if isinstance(error, FileError) else exit_codes.CANNOT_RUN


# -- parsing ------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="belljar",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"belljar {__version__}")
    parser.set_defaults(command=lambda args: _help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parsers: dict[str, argparse.ArgumentParser] = {"": parser}
    for name, module in (
        *(("run", run), ("map", map_), ("repl", repl), ("replay", replay)),
        *(("export", export), ("check", check), ("learn", learn)),
        *(("ps", ps), ("top", top), ("doctor", doctor), ("gc", gc)),
        ("conformance", conformance),
    ):
        parsers[name] = commands.add_parser(name, help=module.SUMMARY, allow_abbrev=False)
        parsers[name].set_defaults(command=module.run)
        module.add_arguments(parsers[name])
    for name, group in (
        *(("config", config), ("env", env)),
        *(("image", image), ("session", session)),
    ):
        above = parsers[name] = commands.add_parser(name, help=group.SUMMARY, allow_abbrev=False)
        above.set_defaults(command=functools.partial(_show_help, above))
        parsers |= {f"{name} {each}": sub for each, sub in group.add_commands(above).items()}
    return _parse(argv, parser, parsers)


def _parse(
    argv: Sequence[str], top: Parser, parsers: dict[str, argparse.ArgumentParser]
) -> argparse.Namespace:
    """Before argparse says that a word is wrong, say which one was probably meant."""
    argv, arguments = _cut(_meant(argv, parsers))
    chosen = ""
    for word in argv[:2]:
        above = f"{chosen} " if chosen else ""
        deeper = {name.removeprefix(above) for name in parsers if name.startswith(above)}
        deeper = {name for name in deeper if name and " " not in name}
        if word.startswith("-") or not deeper:
            break
        if word not in deeper:
            if not chosen:
                deeper.add("help")
            raise unknown_option(f"{chosen} command".strip(), word, sorted(deeper))
        chosen = f"{chosen} {word}".strip()
    args, unknown = top.parse_known_args(argv)
    for word in unknown:
        if word.startswith("-"):
            known = [o for o in parsers[chosen]._option_string_actions if o.startswith("--")]
            raise unknown_option("option", word.partition("=")[0], known)
    if unknown:
        message = f"too many arguments: {' '.join(unknown)}"
        if chosen == "run":
            raise InvalidOption(message, hint="those for the code itself come after `--`")
        parsers[chosen].error(message)
    args.arguments = arguments
    return args


def _meant(argv: Sequence[str], parsers: dict[str, argparse.ArgumentParser]) -> Sequence[str]:
    """`belljar help COMMAND` is `belljar COMMAND --help`, `belljar FILE` is `belljar run FILE`."""
    first = argv[0] if argv else ""
    if first == "help":
        return [*argv[1:], "--help"]
    if first in parsers or first.startswith("-"):
        return argv
    is_file = first.endswith(".py") or os.path.isfile(first)
    return ["run", *argv] if is_file else argv


def _cut(argv: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """`belljar run FILE -- ARG...`: what follows is the code's, whatever it looks like."""
    if argv[:1] != ["run"] or "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], list(argv[at + 1 :])


def _show_help(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    return _help(parser)


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return exit_codes.OK


# -- the process --------------------------------------------------------------------------------


def _prepare_streams() -> None:
    """A stream that is closed, or cannot encode a character, is no reason to fail."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Signals:
    """Ends by SIGTERM and SIGHUP are orderly too: `with` blocks close their sandboxes.

    (Death without a chance, SIGKILL, is the backend's to survive.)
    """

    def __enter__(self) -> None:
        self._before: list[signal.Signals] = []
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup and the like stay as they are
                signal.signal(number, self._leave)
                self._before.append(number)

    def __exit__(self, *exception: object) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)

    @staticmethod
    def _leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
