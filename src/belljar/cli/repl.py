"""`belljar repl`: a Python prompt at a terminal, or statements from a pipe."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from belljar.cli import exit_codes, sandbox_options, terminal, transfer
from belljar.cli.statements import Splitter
from belljar.cli.terminal import Presenter
from belljar.environment import store
from belljar.errors import InvalidOption, SandboxClosed, SandboxError, unknown_option
from belljar.text import format_bytes

if TYPE_CHECKING:
    from belljar.sandbox.blocking import Sandbox

HISTORY_LENGTH = 2000
PATIENCE = 1.0  # seconds after Ctrl-C before a message says what a second one does

HELP = """\
%help                 this text
%reset                start a new interpreter: variables are lost, files stay
%files [PATH]         list /workspace, or PATH
%put FILE[:PATH]      copy a file of this host into the sandbox
%get PATH[:DEST]      copy a file out of the sandbox
%isolation            show the layers and limits of this sandbox
%exit                 leave (also Ctrl-D)

Ctrl-C interrupts the code and keeps the session; a second Ctrl-C ends its process if needed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A Python prompt in a sandbox: variables persist, an empty line ends a block, %help lists\n"
        "the commands. Statements from a pipe run one after the other; the exit code is then that\n"
        "of the first one that failed (see `belljar run`)."
    )
    parser.add_argument(
        "--out", metavar="DIR", help="save pictures and other results: DIR/result-1.png, ..."
    )
    parser.add_argument(
        "--raw", action="store_true", help="do not escape control characters on a terminal"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no greeting, no notes")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print the time and memory of each statement"
    )
    sandbox_options.add_record(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_policy(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    presenter = Presenter(
        raw=args.raw, quiet=args.quiet, later=True, cost=args.verbose, out=args.out
    )
    at_terminal = sys.stdin.isatty()
    with sandbox_options.watching(args), sandbox_options.make(args) as sandbox:
        session = Session(sandbox, presenter, at_terminal=at_terminal)
        if not at_terminal:
            return _from_pipe(session)
        if not args.quiet:
            _greet(sandbox)
        return _at_terminal(session)


def _greet(sandbox: Sandbox) -> None:
    from belljar import __version__
    from belljar.limits import format_size

    memory = format_size(sandbox.limits.memory)
    timeout = sandbox.limits.timeout
    time = "no time limit" if timeout is None else f"{timeout:g} s for each statement"
    print(f"Belljar {__version__}, environment {sandbox.environment.name!r}")
    print(f"{memory} of memory, {time}; %help lists commands, Ctrl-D leaves")


# -- input --------------------------------------------------------------------------------------


def _at_terminal(session: Session) -> int:
    splitter = Splitter(empty_line_ends_block=True)
    with _history():
        while True:
            try:
                line = input("... " if splitter.pending else ">>> ")
            except EOFError:
                print()
                for statement in splitter.finish():
                    session.run(statement)
                return exit_codes.OK
            except KeyboardInterrupt:
                print("\nKeyboardInterrupt")
                splitter.clear()
                continue
            session.take(splitter, line)


def _from_pipe(session: Session) -> int:
    splitter = Splitter(empty_line_ends_block=False)
    # Bytes that are not text become an error in the guest, not here.
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    for line in sys.stdin:
        session.take(splitter, line.rstrip("\r\n"))
    for statement in splitter.finish():
        session.run(statement)
    return session.first_failure


@contextmanager
def _history() -> Iterator[None]:
    """Line editing and a persistent history, if this Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = store.user_directory(os.environ, "", "XDG_STATE_HOME", ".local/state") / "history"
    # The history is a convenience: an unwritable home directory is not an error.
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LENGTH)
    readline.set_completer(_indent)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with suppress(OSError):
            store.make_directory(path.parent, store.STATE_MODE)
            path.touch(mode=0o600)  # private: it has everything the user typed
            readline.write_history_file(path)


def _indent(text: str, state: int) -> str | None:
    """The tab key indents: the default, this host's file names, makes no sense for a guest."""
    return "    " if state == 0 and not text else None


# -- the session --------------------------------------------------------------------------------


class Session:
    def __init__(self, sandbox: Sandbox, presenter: Presenter, *, at_terminal: bool) -> None:
        self._sandbox = sandbox
        self._presenter = presenter
        self._at_terminal = at_terminal
        self.first_failure = exit_codes.OK

    def take(self, splitter: Splitter, line: str) -> None:
        """Add one line of input, and run the statements that it completes."""
        # No statement of Python begins with "%".
        if line.startswith("%") and splitter.at_rest:
            for statement in splitter.finish():
                self.run(statement)
            with self._reporting_errors():
                self.command(line)
            return
        if line.strip() in ("exit", "quit") and not splitter.pending:
            self._leave()
        for statement in splitter.feed(line):
            self.run(statement)

    def run(self, statement: str) -> None:
        from belljar.files.script import Script

        with self._reporting_errors():
            with _interrupting(self._sandbox):
                script = Script(code=statement, csv=self._presenter.saves)
                execution = self._presenter.run_code(self._sandbox, script)
            self._presenter.finish(execution)
            exit_code = exit_codes.from_execution(execution)
            if execution.outcome == "exit":
                self._leave(exit_code)
            self.first_failure = self.first_failure or exit_code

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Print an error and go on, as long as the sandbox is open."""
        try:
            yield
        except KeyboardInterrupt:
            terminal.say("the statement was stopped; its process may have been killed")
            self.first_failure = self.first_failure or exit_codes.INTERRUPTED
        except SandboxClosed:
            raise
        except SandboxError as error:
            terminal.say(str(error))
            code = exit_codes.USAGE if isinstance(error, InvalidOption) else exit_codes.CANNOT_RUN
            self.first_failure = self.first_failure or code

    # -- commands ---------------------------------------------------------------------------

    def command(self, line: str) -> None:
        try:
            name, *words = shlex.split(line)
        except ValueError as error:
            raise InvalidOption(f"cannot read {line!r}: {error}") from error
        commands: dict[str, Callable[[list[str]], None]] = {
            "%help": lambda _: print(HELP),
            "%reset": lambda _: self._sandbox.restart(),
            "%files": self._files,
            "%put": self._put,
            "%get": self._get,
            "%isolation": lambda _: self._show_isolation(),
            "%exit": lambda _: self._leave(),
        }
        if name not in commands:
            raise _unknown(name, commands)
        commands[name](words)

    def _files(self, words: list[str]) -> None:
        found = self._sandbox.files.list(words[0] if words else "/workspace")
        rows = [
            [each.name + "/" * (each.type == "dir"), each.type, format_bytes(each.size)]
            for each in found
        ]
        if rows:
            terminal.table(rows)

    def _put(self, words: list[str]) -> None:
        for path, content in transfer.load_all(words).items():
            self._sandbox.files.write(path, content)

    def _get(self, words: list[str]) -> None:
        for path, target in map(transfer.parse_get, words):
            transfer.fetch(self._sandbox, path, target)

    def _show_isolation(self) -> None:
        isolation = self._sandbox.isolation
        layers = (*isolation.layers, *isolation.limits)
        terminal.table([[each.state, each.name, each.detail] for each in layers])

    def _leave(self, exit_code: int = exit_codes.OK) -> NoReturn:
        """A person has seen the errors; a script gets the exit code of the first one."""
        raise SystemExit(exit_code if self._at_terminal else self.first_failure or exit_code)


def _unknown(name: str, commands: Iterable[str]) -> InvalidOption:
    """Suggest commands that begin with `name` before commands that are spelled like it."""
    begun = [each for each in commands if each.startswith(name) and name != "%"]
    if not begun:
        return unknown_option("command", name, commands)
    meant = " or ".join(map(repr, begun))
    return InvalidOption(
        f"unknown command {name!r}", hint=f"did you mean {meant}? options: {', '.join(commands)}"
    )


@contextmanager
def _interrupting(sandbox: Sandbox) -> Iterator[None]:
    """The first Ctrl-C interrupts the cell, which prints a traceback; the second stops waiting."""
    pressed = 0
    ended = threading.Event()

    def interrupt() -> None:
        # If the sandbox is closed meanwhile, the cell reports it.
        with suppress(SandboxError):
            sandbox.interrupt()
        if not ended.wait(PATIENCE):
            terminal.say("the code does not stop; press Ctrl-C again to end its process")

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        # In a thread, because a signal handler must not wait.
        threading.Thread(target=interrupt, daemon=True).start()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)
