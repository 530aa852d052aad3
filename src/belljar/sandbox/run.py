"""One run of code or of a command, from the host's side: collect, keep the limits, judge.

The guest reports; the verdict is the host's. Time and output are counted here, deaths come from
the kernel by way of init, memory from the cgroup.
"""

from __future__ import annotations

import codecs
import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio

from belljar.backends.base import Guest, UsageSample
from belljar.errors import ProtocolError
from belljar.files.script import Input, Script
from belljar.functions.registry import Registry
from belljar.protocol import messages, wire
from belljar.protocol.values import Encoded
from belljar.results.execution import ErrorInfo, FileChanges, Logs, Outcome, Result, Usage
from belljar.sandbox import value_transfer
from belljar.sandbox.calls import Calls
from belljar.sandbox.channel import Channel, Lost, drop

GRACE = 1.0  # seconds between KeyboardInterrupt and SIGKILL
DEATH = 5.0  # seconds a killed worker may take to be reported, before the whole guest goes
MAX_BACKGROUND = 64 * 1024
MAX_CHANGES = 1024 * 1024  # bytes to tell of changed files; init keeps to the same number
MAX_RESULTS = 1000
LOOK = 0.25  # seconds between looks at what a guest does while the host works for it
ALL_RESULTS = 64  # times the output limit that all results of a cell may take in memory
MAX_RESULT_BYTES = 128 * 1024 * 1024

_DECODER = codecs.getincrementaldecoder("utf-8")

OnText = Callable[[str], object]
OnResult = Callable[[Result], object]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Code that shall run, as it was asked for: checked."""

    code: str
    payload: bytes  # the same, encoded
    script: Script  # and what comes with it
    given_timeout: float | None  # what the caller said,
    timeout: float | None  # and what that means
    env: Mapping[str, str] = field(default_factory=dict)
    on_stdout: OnText | None = None
    on_stderr: OnText | None = None
    on_result: OnResult | None = None
    undo_on_error: bool = False


class Stream:
    """One output stream: bytes in, text out, however the bytes are cut."""

    def __init__(self, callback: OnText | None) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None  # made for the first bytes
        self._callback = callback
        self.chunks: list[str] = []

    async def feed(self, data: bytes, *, final: bool = False) -> None:
        if self._decoder is None:
            self._decoder = _DECODER("replace")
        text = self._decoder.decode(data, final)
        if text:
            self.chunks.append(text)
            if self._callback is not None:
                await _settled(self._callback(text))

    @property
    def begun(self) -> bool:
        return self._decoder is not None

    @property
    def text(self) -> str:
        return "".join(self.chunks)


async def _settled(made: object) -> None:
    if inspect.isawaitable(made):
        awaitable: Awaitable[object] = made
        await awaitable


class WorkerDied(Exception):
    """The interpreter died while it was given a value."""


class Run:
    """A cell or a command under way."""

    def __init__(
        self,
        channel: Channel,
        guest: Guest,
        *,
        timeout: float | None,
        output: int,
        grace: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        functions: Registry | None = None,
        values: int = wire.INLINE,  # bytes of a value
        cpus: float = 1.0,
        host_time: float | None = None,  # seconds that calls of host functions are excused
        stdin: Input | None = None,
    ) -> None:
        self._channel = channel
        self._guest = guest
        self._exchange = channel.open()
        self._timeout = timeout
        self._grace = GRACE if grace is None else grace
        self._room = output
        self._background_room = MAX_BACKGROUND
        self._on_result = on_result
        self.streams = {
            "stdout": Stream(on_stdout),
            "stderr": Stream(on_stderr),
            "background": Stream(None),
        }
        self.results: list[Result] = []
        self._result_bytes = 0
        # Pictures are larger than text: results have their own, wider share of the limit.
        self._max_results = min(ALL_RESULTS * output, MAX_RESULT_BYTES)
        self.output_bytes = 0
        self.truncated = False
        self.dropped = False  # parts of results that were too large
        self.cut = False  # the text of a result was
        self.stopped_for: Outcome | None = None  # the limit that ended it
        self.interrupted = False  # by the caller
        self.done: wire.Frame | None = None
        self.lost: Exception | None = None
        self.files: FileChanges | None = FileChanges()
        self._values = value_transfer.Receiver(values, channel.held)
        self._value: value_transfer.Blob = b""
        self.no_room: str | None = None  # why there is no value, though one was sent
        self._taken: dict[int, anyio.Event] = {}
        self._worker: object = None  # the process that has taken parts of a value
        self._clock = anyio.CancelScope()
        self._excused = 0  # calls of host functions whose time does not count
        self._paused = 0.0  # since when
        self._left = math.inf  # of the guest's own time, and of what is excused
        self._excuse = math.inf if host_time is None else host_time
        self._cpus = max(cpus, 1.0)
        self.calls = Calls(functions, self._answer, values, self._pause, stdin)

    async def drive(
        self,
        kind: int,
        header: dict[str, object],
        payload: bytes = b"",
        value: Encoded | None = None,
    ) -> None:
        """Start it and see it to its end: `done` or `lost` is set afterwards.

        Cancelled, it interrupts the guest, then kills, and lets the cancellation go on.
        """
        if not self.calls.possible:
            try:
                return await self._drive(kind, header, payload, value)
            finally:
                self.calls.end()
        failure: BaseException | None = None
        async with self.calls:
            self.calls.look_after(self._spin)
            try:
                await self._drive(kind, header, payload, value)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error  # a callback's: a group of exceptions is nobody's expectation
        if failure is not None:
            raise failure

    async def _drive(
        self, kind: int, header: dict[str, object], payload: bytes, value: Encoded | None
    ) -> None:
        self._before = await self._guest.reading(from_now=True)
        self._began = time.perf_counter()
        begun, fd = False, -1
        try:
            if kind == wire.RUN and (held := self._channel.held.bytes):
                header = {**header, "held": held}
            if value is not None:
                header, payload, fd = await self._load(header, value)
                header = {**header, "worker": self._worker}
            begun = True
            await self._channel.send(kind, self._exchange.number, header, payload, fd)
            await self._stages()
        except Lost as lost:
            self.lost = lost
        except WorkerDied:
            died = {"status": "died", "lost": True}
            self.done = wire.Frame(wire.DONE, self._exchange.number, died, b"")
        except ProtocolError as error:
            self._kill()
            self.lost = error
        except BaseException:
            if begun:  # else there is nothing to end
                with anyio.CancelScope(shield=True):
                    await self._give_up()
            raise
        finally:
            self._exchange.close()
            self._values.forget()
            self._wall = time.perf_counter() - self._began
        for stream in self.streams.values():
            if stream.begun:
                await stream.feed(b"", final=True)

    async def _stages(self) -> None:
        if self._timeout is not None:
            self._clock.deadline = anyio.current_time() + self._timeout
        with self._clock:
            await self._collect()
        if self.done is not None:
            return
        if self.stopped_for is None:
            self.stopped_for = Outcome.timeout
        await self._end()

    async def _end(self) -> None:
        """End it, with all it started: politely if there is a grace, then by SIGKILL."""
        if self._grace:
            await self._channel.send(wire.INTERRUPT, self._exchange.number, {"end": True})
            with anyio.move_on_after(self._grace):
                await self._collect()
            if self.done is not None:
                return
        await self._channel.send(wire.KILL, self._exchange.number)
        with anyio.move_on_after(DEATH):
            await self._collect()
        if self.done is None:
            self._kill()
            raise Lost

    async def _give_up(self) -> None:
        for stream in self.streams.values():
            stream._callback = None
        self._on_result = None
        try:
            await self._end()
        except (Lost, ProtocolError):
            self._kill()

    def _kill(self) -> None:
        """It is of no more use, and takes a moment to die: nobody shall ask it for anything."""
        self._guest.kill()
        self._channel.abandon()

    async def interrupt(self) -> None:
        await self._channel.send(wire.INTERRUPT, self._exchange.number)

    # -- frames -----------------------------------------------------------------------------

    async def _collect(self) -> None:
        """Take frames until it is done, or a limit has been passed for the first time."""
        while self.done is None:
            within = not self.truncated
            await self._take(await self._exchange.next())
            if self.truncated and within:
                self.stopped_for = self.stopped_for or Outcome.output_limit
                if self.done is None:
                    return

    async def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.STREAM:
            await self._take_stream(frame)
        elif frame.kind == wire.RESULT:
            await self._take_result(frame)
        elif frame.kind == wire.CALL:
            call = frame.header.get("call")
            self.calls.start(frame, self._values.take(frame, call if type(call) is int else -1))
        elif frame.kind == wire.PART:
            self._values.add(frame)
        elif frame.kind == wire.TAKEN:
            self._note_taken(frame)
        elif frame.kind == wire.CHANGES:
            self.files = parse_changes(frame)
        elif frame.kind == wire.OVERFLOW:
            self.truncated = True
        elif frame.kind == wire.DONE:
            try:
                self._value = self._values.take(frame, wire.VALUE_KEY)
            except MemoryError as error:
                self.no_room = str(error)
            self.done = frame
        else:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")

    # -- values and calls -------------------------------------------------------------------

    def take_value(self) -> value_transfer.Blob:
        """Once: what is large shall not live as long as this."""
        if self.no_room is not None:
            raise MemoryError(self.no_room)
        value, self._value = self._value, b""
        return value

    async def _load(
        self, header: dict[str, object], value: Encoded
    ) -> tuple[dict[str, object], bytes, int]:
        number = self._exchange.number
        with anyio.move_on_after(self._timeout):
            return await value_transfer.load(
                self._channel, number, header, value, key=number, taken=self._see_taken
            )
        # The interpreter does not even read: there is nothing that could be kept of it.
        self.stopped_for = Outcome.timeout
        self._kill()
        raise Lost

    async def _see_taken(self) -> None:
        """Before the run has begun: nobody else reads what comes."""
        frame = await self._exchange.next()
        if frame.kind != wire.TAKEN:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")
        worker = frame.header.get("worker")
        if type(worker) is not int:
            raise ProtocolError("a worker that is none")
        if self._worker is not None and worker != self._worker:
            raise WorkerDied
        self._worker = worker

    def _note_taken(self, frame: wire.Frame) -> None:
        key = frame.header.get("key")
        if type(key) is int and key in self._taken:
            self._taken[key].set()

    async def _answer(self, call: int, header: dict[str, object], value: Encoded | None) -> None:
        async def taken() -> None:
            await self._taken[call].wait()
            self._taken[call] = anyio.Event()

        self._taken[call] = anyio.Event()  # before a part is sent: its answer may be quick
        number, payload, fd = self._exchange.number, b"", -1
        header = {**header, "held": self._channel.held.bytes}
        try:
            if value is not None:
                header, payload, fd = await value_transfer.load(
                    self._channel, number, header, value, key=call, taken=taken
                )
            await self._channel.send(wire.ANSWER, number, header, payload, fd)
        except (Lost, ProtocolError):
            return  # the run itself will notice
        finally:
            self._taken.pop(call, None)

    async def _spin(self) -> None:
        """Time that the host takes is excused, but not what the guest does meanwhile: it cannot
        use more processor time than it could have without any call."""
        while self._timeout is not None:
            await anyio.sleep(min(LOOK, self._timeout))
            cpu = (await self._guest.reading()).cpu
            if cpu is not None and cpu - (self._before.cpu or 0.0) > self._timeout * self._cpus:
                self._excused += 1  # for good
                self._clock.deadline = -math.inf
                return

    def _pause(self, paused: bool) -> None:
        """While the host works for the guest, the guest's own time stands still: all in all no
        longer than is excused, so that code which calls again and again comes to its end."""
        self._excused += 1 if paused else -1
        now = anyio.current_time()
        if paused and self._excused == 1:
            self._paused, self._left = now, self._clock.deadline - now
            self._clock.deadline += self._excuse
        elif not paused and self._excused == 0:
            excused = min(now - self._paused, self._excuse)
            self._excuse -= excused
            self._clock.deadline = self._paused + self._left + excused

    @property
    def host_time_is_up(self) -> bool:
        """Whether calls of host functions took more time than is excused."""
        return self.stopped_for is Outcome.timeout and self._excuse <= 0 and self.calls.possible

    async def _take_stream(self, frame: wire.Frame) -> None:
        stream = self.streams.get(str(frame.header.get("name")))
        if stream is None:
            raise ProtocolError("output of an unknown stream")
        if stream is self.streams["background"]:
            # Not the cell's output, so not on its account; init keeps to the same number.
            await stream.feed(frame.payload[: self._background_room])
            self._background_room -= min(len(frame.payload), self._background_room)
            return
        kept = frame.payload[: max(self._room, 0)]
        self._room -= len(frame.payload)
        self.output_bytes += len(kept)
        if len(kept) < len(frame.payload):
            self.truncated = True
        await stream.feed(kept)

    async def _take_result(self, frame: wire.Frame) -> None:
        # As it will lie in memory: a character may take four bytes, an empty part is not free.
        result = parse_result(frame)
        self._result_bytes += 4 * len(frame.payload) + 256 * len(result.raw)
        if len(self.results) >= MAX_RESULTS or self._result_bytes > self._max_results:
            self.truncated = True
            return
        self.dropped = self.dropped or bool(frame.header.get("dropped"))
        self.cut = self.cut or bool(frame.header.get("cut"))
        self.results.append(result)
        if self._on_result is not None:
            await _settled(self._on_result(result))

    # -- the verdict ------------------------------------------------------------------------

    async def after(self) -> UsageSample:
        return await self._guest.reading()

    def usage(self, after: UsageSample) -> Usage:
        cpu = None
        if after.cpu is not None and self._before.cpu is not None:
            cpu = max(after.cpu - self._before.cpu, 0.0)
        return Usage(
            wall=self._wall,
            cpu=cpu,
            peak_memory=after.peak_memory,
            output_bytes=self.output_bytes,
        )

    def memory_kills(self, after: UsageSample) -> int:
        return after.memory_kills - self._before.memory_kills

    def logs(self) -> Logs:
        stdout, stderr, background = (tuple(s.chunks) for s in self.streams.values())
        return Logs(stdout=stdout, stderr=stderr, background=background)

    def number(self, name: str) -> int | None:
        """A number out of the last frame, which is the guest's word: such as codes can have."""
        value = self.done.header.get(name) if self.done is not None else None
        return value if type(value) is int and -(2**31) <= value < 2**32 else None

    def text(self, name: str) -> str | None:
        value = self.done.header.get(name) if self.done is not None else None
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool:
        return self.done is not None and self.done.header.get(name) is True


def decide(
    *,
    status: str | None,
    error: str | None,
    stopped_for: Outcome | None,
    memory_kills: int,
    interrupted: bool,
) -> Outcome:
    """The outcome of a cell. `status` is init's: ok, error, exit, died; None: init is gone."""
    gone = status is None or status == "died"
    if gone and memory_kills > 0:
        return Outcome.out_of_memory
    if stopped_for is not None:
        return stopped_for
    if status is None:
        return Outcome.lost
    if status == "died":
        return Outcome.killed
    if status == "exit":
        return Outcome.exit
    if status == "error":
        if interrupted and error == "KeyboardInterrupt":
            return Outcome.cancelled
        return Outcome.out_of_memory if error == "MemoryError" else Outcome.error
    return Outcome.ok if status == "ok" else Outcome.lost


def parse_result(frame: wire.Frame) -> Result:
    """A rich result out of a frame that a hostile guest may have made."""
    data: dict[str, str | bytes] = {}
    position = 0
    parts = frame.header.get("parts")
    if not isinstance(parts, list) or len(parts) > messages.MAX_PARTS:
        raise ProtocolError("a result without parts, or with too many")
    for part in parts:
        if not isinstance(part, dict):
            raise ProtocolError("a malformed result")
        mime, size = part.get("mime"), part.get("size")
        if not isinstance(mime, str) or len(mime) > messages.MAX_NAME:
            raise ProtocolError("a malformed result")
        if type(size) is not int or size < 0:
            raise ProtocolError("a malformed result")
        raw = frame.payload[position : position + size]
        position += size
        data[mime] = _text(raw) if part.get("text") is True else raw
    return Result(raw=data, is_main_result=frame.header.get("main") is True)


def parse_error(payload: bytes) -> ErrorInfo | None:
    if len(payload) > messages.MAX_ERROR:
        return None
    try:
        body = json.loads(payload)
        fields = {name: body[name] for name in ("name", "value", "traceback")}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not all(isinstance(value, str) for value in fields.values()):
        return None
    return ErrorInfo(**fields)


def parse_changes(frame: wire.Frame) -> FileChanges | None:
    """Which files a cell touched, in init's words; None if there were too many to tell."""
    if frame.header.get("unknown") is True:
        return None
    if len(frame.payload) > MAX_CHANGES:
        raise ProtocolError("more changes than may be told")
    try:
        body = json.loads(frame.payload)
        lists = {name: body[name] for name in ("created", "changed", "removed")}
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("malformed changes") from None
    if not all(isinstance(paths, list) for paths in lists.values()):
        raise ProtocolError("malformed changes")
    if not all(isinstance(path, str) for paths in lists.values() for path in paths):
        raise ProtocolError("malformed changes")
    return FileChanges(**{name: tuple(paths) for name, paths in lists.items()})


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
