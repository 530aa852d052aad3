"""One run of code or of a command, from the host's side: collect, keep the limits, judge.

The guest reports; the verdict is the host's. Time and output are counted here, deaths come from
the kernel by way of init, memory from the cgroup.
"""

from __future__ import annotations

import codecs
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping

import anyio

from belljar.backends.base import Guest, Reading
from belljar.channel import Channel, Lost
from belljar.errors import ProtocolError
from belljar.execution import ErrorInfo, Logs, Outcome, Result, Usage
from belljar.guest import claims, values, wire

GRACE = 1.0  # seconds between KeyboardInterrupt and SIGKILL
DEATH = 5.0  # seconds a killed worker may take to be reported, before the whole guest goes
MAX_BACKGROUND = 64 * 1024
MAX_RESULTS = 1000
ALL_RESULTS = 64  # times the output limit that all results of a cell may take in memory
MAX_RESULT_BYTES = 128 * 1024 * 1024

OnText = Callable[[str], object]
OnResult = Callable[[Result], object]


class Stream:
    """One output stream: bytes in, text out, however the bytes are cut."""

    def __init__(self, callback: OnText | None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._callback = callback
        self.chunks: list[str] = []

    async def feed(self, data: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        if text:
            self.chunks.append(text)
            if self._callback is not None:
                await _settled(self._callback(text))

    @property
    def text(self) -> str:
        return "".join(self.chunks)


async def _settled(made: object) -> None:
    if inspect.isawaitable(made):
        awaitable: Awaitable[object] = made
        await awaitable


class Run:
    """A cell or a command under way."""

    def __init__(
        self,
        channel: Channel,
        guest: Guest,
        *,
        timeout: float | None,
        output: int,
        grace: float = GRACE,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        self._channel = channel
        self._guest = guest
        self._exchange = channel.open()
        self._timeout = timeout
        self._grace = grace
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
        self.stopped_for: Outcome | None = None  # the limit that ended it
        self.interrupted = False  # by the caller
        self.done: wire.Frame | None = None
        self.lost: Exception | None = None

    async def drive(self, kind: int, header: Mapping[str, object], payload: bytes) -> None:
        """Start it and see it to its end: `done` or `lost` is set afterwards.

        Cancelled, it interrupts the guest, then kills, and lets the cancellation go on.
        """
        self._before = self._guest.reading(from_now=True)
        self._began = time.perf_counter()
        try:
            await self._channel.send(kind, self._exchange.number, header, payload)
            await self._stages()
        except Lost as lost:
            self.lost = lost
        except ProtocolError as error:
            self._guest.kill()
            self.lost = error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._give_up()
            raise
        finally:
            self._exchange.close()
            self._wall = time.perf_counter() - self._began
        for stream in self.streams.values():
            await stream.feed(b"", final=True)

    async def _stages(self) -> None:
        with anyio.move_on_after(self._timeout):
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
            self._guest.kill()
            raise Lost

    async def _give_up(self) -> None:
        for stream in self.streams.values():
            stream._callback = None
        self._on_result = None
        try:
            await self._end()
        except (Lost, ProtocolError):
            self._guest.kill()

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
        elif frame.kind == wire.OVERFLOW:
            self.truncated = True
        elif frame.kind == wire.DONE:
            self.done = frame
        else:
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")

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
        self._result_bytes += 4 * len(frame.payload) + 256 * len(result.data)
        if len(self.results) >= MAX_RESULTS or self._result_bytes > self._max_results:
            self.truncated = True
            return
        self.dropped = self.dropped or bool(frame.header.get("dropped"))
        self.results.append(result)
        if self._on_result is not None:
            await _settled(self._on_result(result))

    # -- the verdict ------------------------------------------------------------------------

    def after(self) -> Reading:
        return self._guest.reading()

    def usage(self, after: Reading) -> Usage:
        cpu = None
        if after.cpu is not None and self._before.cpu is not None:
            cpu = max(after.cpu - self._before.cpu, 0.0)
        return Usage(
            wall=self._wall,
            cpu=cpu,
            peak_memory=after.peak_memory,
            output_bytes=self.output_bytes,
        )

    def memory_kills(self, after: Reading) -> int:
        return after.memory_kills - self._before.memory_kills

    def logs(self) -> Logs:
        stdout, stderr, background = (tuple(s.chunks) for s in self.streams.values())
        return Logs(stdout=stdout, stderr=stderr, background=background)

    def number(self, name: str) -> int | None:
        """A number out of the last frame, which is the guest's word: only its type is sure."""
        value = self.done.header.get(name) if self.done is not None else None
        return value if type(value) is int else None

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
    if not isinstance(parts, list) or len(parts) > claims.MAX_PARTS:
        raise ProtocolError("a result without parts, or with too many")
    for part in parts:
        if not isinstance(part, dict):
            raise ProtocolError("a malformed result")
        mime, size = part.get("mime"), part.get("size")
        if not isinstance(mime, str) or type(size) is not int or size < 0:
            raise ProtocolError("a malformed result")
        raw = frame.payload[position : position + size]
        position += size
        data[mime] = _text(raw) if part.get("text") is True else raw
    return Result(data=data, is_main_result=frame.header.get("main") is True)


def parse_error(payload: bytes) -> ErrorInfo | None:
    if len(payload) > claims.MAX_ERROR:
        return None
    try:
        body = json.loads(payload)
        fields = {name: body[name] for name in ("name", "value", "traceback")}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not all(isinstance(value, str) for value in fields.values()):
        return None
    return ErrorInfo(**fields)


def parse_value(payload: bytes, limit: int) -> object:
    """The value as data; None if there is none, or if the guest made up something else."""
    try:
        return values.decode(payload, limit) if payload else None
    except values.NotPlain:
        return None


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
