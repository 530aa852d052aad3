"""AsyncProcess: a program in the sandbox that goes on beside everything else."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import shlex
import signal as signals
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import anyio

from belljar.errors import GuestLost, InvalidOption, ProtocolError, SandboxError, suggests
from belljar.protocol import messages, wire
from belljar.results.execution import CommandResult, Outcome, Usage
from belljar.sandbox import options
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.lifecycle import Lifecycle
from belljar.sandbox.output import Kept, Output
from belljar.sandbox.streams import Stream
from belljar.text import one_line

MAX_SIZE = 1000  # columns or rows of a terminal
MAX_NAME = 200  # characters
SHOWN = 1000  # characters of a command that `list` tells
DEATH = 5.0  # seconds for a killed program to end
GRACE = 10.0  # seconds for init to end a program whose time is over, and to say so


class Chunk(NamedTuple):
    """Some output. Characters of UTF-8 are whole, but for those that the program did not end."""

    stream: str  # "stdout" or "stderr"; a terminal has only the first
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """What `commands.list` tells of a program that `commands.start` has started."""

    pid: int
    name: str | None
    cmd: str | list[str]
    cwd: str
    pty: bool
    began: float  # seconds since 1970
    alive: bool
    exit_code: int | None = None
    signal: int | None = None


@suggests
class AsyncProcess:
    """A program that was started in a sandbox.

    async with await sandbox.commands.start("ping localhost") as process:
        async for chunk in process:
            print(chunk.text, end="")
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        stream: Stream,
        about: Mapping[str, object],
        timeout: float | None,
    ) -> None:
        self._lifecycle, self._stream = lifecycle, stream
        self._session = stream.session
        self._info = parse_info(about)
        self._takes_input = about.get("stdin") is True
        self._began = time.perf_counter()
        self._coming: list[Chunk] = []  # read, and not given to the caller yet
        self._cut: dict[str, bytes] = {}  # the beginning of a character
        self._outputs = {name: Output(name) for name in ("stdout", "stderr")}
        self._kept = Kept(lifecycle.limits.output)
        self._detached = False
        self._ended: float | None = None
        # On the clock of the guest, which stands still in a pause: when init ends it.
        now = time.monotonic() - self._session.channel.seconds_paused
        self._ends = None if timeout is None else now + timeout

    @property
    def pid(self) -> int:
        return self._info.pid

    @property
    def info(self) -> ProcessInfo:
        return self._info

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"ended, {self.returncode}"
        return f"<{type(self).__name__} {self.pid} ({state})>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Kill it if it still runs."""
        with anyio.CancelScope(shield=True):
            if self._stream.end is None and self._session.alive and await self.kill():
                with anyio.move_on_after(DEATH), contextlib.suppress(GuestLost):
                    await self.wait()  # so that `returncode` is known
            await self.detach()

    @property
    def returncode(self) -> int | None:
        """As a shell has it: the exit code, 124 for a time-out, or 128 and the number of the signal
        that ended it. None while the end was not read."""
        ended = self._stream.end and not self._detached
        return self._make_result().returncode if ended else None

    @property
    def skipped(self) -> int:
        """Bytes of output that this reader lost, because it came later, or another was faster."""
        return self._stream.skipped

    # -- output -----------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Chunk]:
        while chunk := await self.read():
            yield chunk

    async def read(self) -> Chunk | None:
        """The next output; None at the end."""
        while not self._coming:
            if not await self._receive():
                return None
        return self._coming.pop(0)

    async def _receive(self, *, wait: bool = True) -> bool:
        """False if there is nothing more to come."""
        if self._detached:
            return False
        with self._lifecycle.reading():
            found = (
                await self._receive_in_time() if wait else await self._stream.receive(wait=False)
            )
        for name, data in found:
            data = self._cut.pop(name, b"") + data
            whole = _whole(data)
            if whole < len(data):
                self._cut[name] = data[whole:]
            if whole:
                self._add(name, data[:whole])
        if self._stream.end is not None and self._ended is None:
            self._ended = time.perf_counter()
            for name, data in self._cut.items():
                self._add(name, data)
        return bool(found) or self._stream.end is None

    async def _receive_in_time(self) -> list[tuple[str, bytes]]:
        """Init ends a program whose time is over; code that has stopped init is stopped here."""
        if self._ends is None or self._session.shared:  # other forks stop the program, and its time
            return await self._stream.receive()
        left = self._ends + self._session.channel.seconds_paused - time.monotonic()
        found = await self._session.channel.within(max(left, 0.0) + GRACE, self._stream.receive)
        if found is None:
            self._session.kill()
            raise GuestLost("the guest did not end a program whose time was over, and was killed")
        return found

    def _add(self, name: str, data: bytes) -> None:
        self._coming.append(Chunk(name, data))
        self._outputs[name].keep(data)
        self._kept.fit(self._outputs.values())

    async def output(self) -> str:
        """What it has written so far, without waiting: head and tail, if that is more than the
        output limit of the sandbox. It counts as read."""
        await self._receive(wait=False)
        self._coming.clear()
        return "".join(output.text() for output in self._outputs.values())

    async def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for its end, and read the output on the way. TimeoutError after `timeout` seconds:
        then it goes on."""
        seconds = options.check_timeout(timeout, None)
        with anyio.move_on_after(seconds) as scope:
            while await self._receive():
                self._coming.clear()
        if scope.cancelled_caught:
            cmd = self.info.cmd if isinstance(self.info.cmd, str) else shlex.join(self.info.cmd)
            raise TimeoutError(
                f"process {self.pid} ({one_line(cmd)}) has not ended after {seconds:g} s, and goes "
                "on: wait() again, or kill() it"
            )
        self._coming.clear()
        return self._make_result()

    def _make_result(self) -> CommandResult:
        end = self._stream.end or {}
        if self._detached:
            raise SandboxError(
                f"process {self.pid} is not read any more", hint="commands.connect(pid) reads it"
            )
        code, signal = _number(end, "exit_code"), _number(end, "signal")
        outcome = Outcome.ok if code == 0 else Outcome.exit
        if end.get("timed_out") is True:
            outcome = Outcome.timeout
        elif code is None:
            outcome = Outcome.killed
        truncated = self._kept.fit(self._outputs.values(), final=True)
        stdout, stderr = (self._outputs[name] for name in ("stdout", "stderr"))
        written = sum(len(each) + each.left_out for each in (stdout, stderr))
        wall = (self._ended or self._began) - self._began
        return CommandResult(
            stdout=stdout.text(),
            stderr=stderr.text(),
            exit_code=code,
            signal=signal,
            outcome=outcome,
            usage=Usage(wall=wall, cpu=None, peak_memory=None, output_bytes=written),
            truncated=truncated or self.skipped > 0,
        )

    async def detach(self) -> None:
        """Read no more. The program goes on, and the last of its output is kept for `connect`."""
        if not self._detached and self._stream.end is None:
            self._detached = True
            await self._stream.close()

    # -- input and signals ------------------------------------------------------------------

    async def send(self, data: str | bytes) -> None:
        """Write to its input, or type on its terminal. Waits while the program does not read."""
        self._check_input()
        await self._stream.send(encode_input(data))

    async def close_stdin(self) -> None:
        """End its input; on a terminal, type Ctrl-D."""
        self._check_input()
        self._takes_input = self.info.pty
        await self._stream.end_input()

    def _check_input(self) -> None:
        if not self._takes_input:
            raise SandboxError(
                f"process {self.pid} has no input, or it was closed",
                hint="start it with stdin=True, or with pty=(80, 24)",
            )

    async def signal(self, number: int | str) -> bool:
        """Send a signal ("SIGINT", 2) to the program and its process group. False if it has
        ended."""
        return await self._ask({"op": "signal", "signal": check_signal(number)})

    async def kill(self) -> bool:
        """Kill it, with all that it started. False if it has ended."""
        return await self._ask({"op": "kill"})

    async def resize(self, columns: int, rows: int) -> bool:
        """The size of its terminal. False if it has ended."""
        if not self.info.pty:
            raise SandboxError(f"process {self.pid} has no terminal", hint="start it with pty=")
        return await self._ask({"op": "resize", "size": check_size((columns, rows))})

    async def _ask(self, header: dict[str, object]) -> bool:
        self._lifecycle.note_use()
        async with self._session.streaming():
            try:
                answer, _ = await self._session.channel.call(
                    wire.PROCESS, {**header, "pid": self.pid}
                )
            except GuestLost:
                return False
        return "error" not in answer


async def open_process(
    lifecycle: Lifecycle, session: GuestSession, asked: Mapping[str, object]
) -> AsyncProcess:
    stream = Stream(session, lifecycle.branch)
    about = await stream.open(asked)
    if "error" in about:
        what = f"process {asked['pid']}" if "pid" in asked else "the program could not be started"
        why, hint = str(about["error"])[:1000], None
        if f"[Errno {errno.EAGAIN}]" in why:
            most = lifecycle.limits.processes
            hint = f"{most} processes and threads may be alive at once: Limits(processes=...)"
        raise SandboxError(f"{what}: {why}", hint=hint)
    timeout = asked.get("timeout")
    return AsyncProcess(lifecycle, stream, about, timeout if isinstance(timeout, float) else None)


async def list_processes(session: GuestSession, *, ended: bool) -> list[ProcessInfo]:
    _, data = await session.channel.call(wire.PROCESS, {"op": "list"})
    try:
        found = json.loads(data) if len(data) <= messages.MAX_TABLE else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ProtocolError("the guest sent a malformed list of processes")
    every = [parse_info(each) for each in found]
    return [each for each in every if ended or each.alive]


def parse_info(about: Mapping[str, object]) -> ProcessInfo:
    """What init says of a process: all of it came from the host, but for pid and end."""
    pid, end, cmd = about.get("pid"), about.get("end"), about.get("cmd")
    if type(pid) is not int or pid <= 0 or not (end is None or isinstance(end, dict)):
        raise ProtocolError("the guest described a process in a malformed way")
    began = about.get("began")
    return ProcessInfo(
        pid=pid,
        name=None if about.get("name") is None else str(about["name"]),
        cmd=[str(part) for part in cmd] if isinstance(cmd, list) else str(cmd),
        cwd=str(about.get("cwd")),
        pty=about.get("pty") is True,
        began=began if isinstance(began, float) and math.isfinite(began) else 0.0,
        alive=end is None,
        exit_code=_number(end or {}, "exit_code"),
        signal=_number(end or {}, "signal"),
    )


def check_start(
    stdin: object, pty: object, timeout: float | None, name: str | None
) -> dict[str, Any]:
    if stdin not in (None, True, False):
        raise InvalidOption(
            f"stdin is True or None, not {stdin!r}",
            hint="start it with stdin=True, then call send()",
        )
    if name is not None and not (isinstance(name, str) and len(name) <= MAX_NAME):
        raise InvalidOption(f"name is a text of at most {MAX_NAME} characters, not {name!r:.100}")
    return {
        "stdin": bool(stdin) and pty is None,
        "pty": None if pty is None else check_size(pty),
        "timeout": options.check_timeout(timeout, None),
        "name": name,
    }


def shorten(cmd: str | Sequence[str]) -> str | list[str]:
    """What `list` tells of a command: its beginning."""
    if isinstance(cmd, str):
        return cmd[:SHOWN]
    room, words = SHOWN, []
    for word in cmd:
        words.append(word[:room])
        room -= len(word) + 1
        if room <= 0:
            break
    return words


def check_size(given: object) -> list[int]:
    sizes = list(given) if isinstance(given, (tuple, list)) else []
    if len(sizes) != 2 or not all(type(each) is int and 0 < each <= MAX_SIZE for each in sizes):
        found = f"the size of a terminal is (columns, rows), not {given!r}"
        raise InvalidOption(found, hint="for example (80, 24)")
    return sizes


def check_signal(given: int | str) -> int:
    try:
        if isinstance(given, str):
            name = given.upper()
            return signals.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
        return signals.Signals(given).value
    except (KeyError, ValueError):
        raise InvalidOption(f"there is no signal {given!r}", hint='for example "SIGTERM"') from None


def _whole(data: bytes) -> int:
    """How many bytes are whole characters of UTF-8, or none at all."""
    for back in range(1, min(len(data), 3) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needs > back else len(data)
    return len(data)


def _number(end: Mapping[str, object], name: str) -> int | None:
    value = end.get(name)
    return value if type(value) is int and 0 <= value < 2**31 else None


def encode_input(stdin: str | bytes | None) -> bytes:
    if stdin is None:
        return b""
    return stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else bytes(stdin)
