"""`belljar exec -- CMD ...` and `belljar shell`: a program in a sandbox that looks like one of this
host, so that other tools can take it for one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

from belljar.cli import sandbox_options, transfer
from belljar.errors import GuestLost, InvalidOption, SandboxError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from belljar.sandbox.process import AsyncProcess
    from belljar.sandbox.sandbox import AsyncSandbox

_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
HANG_UP = 5.0  # seconds for a program to end after the hang-up of its terminal
_SHELL = "command -v bash >/dev/null && exec bash {0} || exec sh {0}"
_EXAMPLES = """\
examples:
  belljar exec -- ls -la
  belljar exec --session work -- git log --oneline
  tar c . | belljar exec -- sh -c 'tar x && make test'
  belljar exec --put data.csv -- python3 -c 'print(open("data.csv").read())'
  belljar shell --session work

exit codes:
  N     the program's own; 128+N: signal N ended it; 124: it ran longer than --timeout
  126   it cannot be executed; 127: there is no such program
  2     wrong usage; nothing ran
  120   the sandbox could not be started or used
  122   the sandbox was lost while the program ran
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTION ...] -- CMD [ARG ...]"
    parser.description = (
        "Run a program in a new sandbox. Its standard input, output and errors are those of this\n"
        "command; signals and the exit code are passed on. It gets a terminal if this command has\n"
        "one: then the program controls it, as any program that you start there."
    )
    parser.epilog = _EXAMPLES
    _add_options(parser)


def add_shell_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTION ...]"
    parser.description = "Open a shell in a new sandbox: bash if there is one, else sh."
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--stdin", action="store_true", help="pass standard input on (it always is, but -n)"
    )
    parser.add_argument("-n", "--no-stdin", action="store_true", help="no standard input")
    terminal = parser.add_mutually_exclusive_group()
    terminal.add_argument("-t", "--tty", action="store_true", help="a terminal in any case")
    terminal.add_argument("-T", "--no-tty", action="store_true", help="no terminal, but pipes")
    parser.add_argument("-w", "--cwd", metavar="DIR", help="where it starts (default: --workdir)")
    transfer.add_put(parser)
    sandbox_options.add_record(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    if not args.arguments:
        raise InvalidOption("there is no program to run", hint="belljar exec -- ls -la")
    return _run(args, args.arguments)


def run_shell(args: argparse.Namespace) -> int:
    return _run(args, ["/bin/sh", "-c", _SHELL.format("-i" if _wants_terminal(args) else "")])


def _wants_terminal(args: argparse.Namespace) -> bool:
    return args.tty or (not args.no_tty and os.isatty(0) and os.isatty(1))


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    import anyio

    puts = transfer.load_all(args.put)
    with sandbox_options.watching(args):
        sandbox = sandbox_options.make(args)._sandbox
        return anyio.run(_execute, sandbox, args, argv, puts)


async def _execute(
    sandbox: AsyncSandbox, args: argparse.Namespace, argv: list[str], puts: dict[str, bytes]
) -> int:
    import anyio

    size = _terminal_size() if _wants_terminal(args) else None
    env = {"TERM": os.environ.get("TERM", "xterm")} if size else {}
    limit = sandbox.limits.timeout if args.limit_timeout is not None else None
    async with sandbox:
        for path, content in puts.items():
            await sandbox.files.write(path, content)
        process = await sandbox.commands.start(
            argv,
            stdin=None if args.no_stdin or size else True,
            pty=size,
            cwd=args.cwd,
            env=env,
            timeout=limit,
        )
        failure: Exception | None = None
        with _raw_terminal(bool(size)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pass_signals, process, tasks)
                if not args.no_stdin:
                    tasks.start_soon(_pass_input, process)
                try:
                    async for chunk in process:
                        fd = 1 if chunk.stream == "stdout" else 2
                        await anyio.to_thread.run_sync(_write, fd, chunk.data)
                except (OSError, SandboxError) as error:
                    failure = error  # raised below, and not as a group
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        result = await process.wait()
    return result.returncode & 0xFF


async def _pass_input(process: AsyncProcess) -> None:
    import anyio

    try:
        while data := await anyio.to_thread.run_sync(os.read, 0, 65536, abandon_on_cancel=True):
            await process.send(data)
        if not (process.info.pty and os.isatty(0)):
            await process.close_stdin()
            return
    except SandboxError:
        return  # it has ended, and the reader of its output says how
    except OSError:
        if not process.info.pty:
            return  # there is no input
    await _hang_up(process)


async def _pass_signals(process: AsyncProcess, tasks: TaskGroup) -> None:
    import anyio

    numbers = [getattr(signal, name) for name in _PASSED_ON]
    # Not one that is ignored: the command runs under nohup.
    heard = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(*heard, signal.SIGWINCH) as received:
        async for number in received:
            with contextlib.suppress(GuestLost):
                if number == signal.SIGHUP and process.info.pty:
                    tasks.start_soon(_hang_up, process)
                elif number != signal.SIGWINCH:
                    await process.signal(number)
                elif process.info.pty:
                    await process.resize(*_terminal_size())


async def _hang_up(process: AsyncProcess) -> None:
    """Its terminal has gone. A program that ignores that would go on unseen."""
    import anyio

    with contextlib.suppress(GuestLost):
        await process.signal(signal.SIGHUP)
        await anyio.sleep(HANG_UP)
        await process.kill()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _terminal_size() -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(0 if os.isatty(0) else 1)
    except OSError:
        return 80, 24
    return (columns or 80, rows or 24)


@contextlib.contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Keys go to the program as they are, Ctrl-C too."""
    if not wanted or not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    sys.stdout.flush()
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
