"""One cell or command under way: send it, collect what the guest sends, keep the limits.

The guest reports; the host decides. Time and output are counted here, deaths come from the kernel
by way of init, memory from the cgroup. outcome.py makes the Execution of the `Finished` record.
"""

from __future__ import annotations

import codecs
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio

from belljar.backends.event_loop import finish_in_time, move_to_loop
from belljar.errors import ProtocolError
from belljar.files.script import Input
from belljar.functions.registry import Registry
from belljar.limits import Limits
from belljar.protocol import messages, wire
from belljar.protocol.values import Encoded
from belljar.results.execution import FileChanges, Logs, Outcome, Result, Usage
from belljar.sandbox import outcome, value_transfer
from belljar.sandbox.calls import Calls, Deadline
from belljar.sandbox.channel import Lost, drop
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.outcome import FinalValue, Finished

GRACE = 1.0  # seconds between KeyboardInterrupt and SIGKILL
DEATH = 5.0  # seconds a killed worker may take to be reported, before the whole guest is killed
MAX_BACKGROUND = 64 * 1024
MAX_RESULTS = 1000
ALL_RESULTS = 64  # times the output limit that all results of a cell may take in memory
MAX_RESULT_BYTES = 128 * 1024 * 1024
STREAMS = ("stdout", "stderr", "background")
_DECODER = codecs.getincrementaldecoder("utf-8")

OnText = Callable[[str], object]
OnResult = Callable[[Result], object]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Code, a command or an operation on variables that is to run. Its options are checked."""

    limits: Limits
    timeout: float | None  # seconds
    kind: int = wire.RUN
    header: dict[str, object] = field(default_factory=dict)
    payload: bytes = b""
    value: Encoded | None = None  # that goes in with it
    stdin: Input | None = None
    grace: float | None = None  # seconds after an interrupt; None: GRACE
    on_stdout: OnText | None = None
    on_stderr: OnText | None = None
    on_result: OnResult | None = None


class Stream:
    """One output stream: bytes in, text out, also if a character is cut in two."""

    def __init__(self, callback: OnText | None, name: str, order: list[str]) -> None:
        self._decoder = _DECODER("replace")
        self.callback, self._name, self._order = callback, name, order
        self.chunks: list[str] = []

    async def feed(self, data: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        if text:
            self.chunks.append(text)
            self._order.append(self._name)
            if self.callback is not None:
                made = self.callback(text)
                if inspect.isawaitable(made):
                    await made


class WorkerDied(Exception):
    """While it was given a value."""


class Run:
    """A cell or a command under way."""

    def __init__(
        self, session: GuestSession, cell: Cell, functions: Registry | None = None
    ) -> None:
        self._session, self._cell = session, cell
        self._channel, self._guest = session.channel, session.guest
        limits = cell.limits
        self._exchange = session.channel.open()
        self._room, self._background_room = limits.output, MAX_BACKGROUND
        self._streams: dict[str, Stream] = {}  # made for the first bytes
        self._silent = False  # callbacks are not called any more
        self._results, self._order = list[Result](), list[str]()  # order: of output, by stream
        # Pictures are larger than text: results have their own, wider share of the limit.
        self._max_results = min(ALL_RESULTS * limits.output, MAX_RESULT_BYTES)
        self._output_bytes = self._result_bytes = 0
        self._truncated = self._dropped = self._cut = False
        self._stopped_for: Outcome | None = None  # the limit that ended it
        self._interrupted = False  # by the caller
        self._done: wire.Frame | None = None  # the last frame,
        self._lost: Exception | None = None  # or why it did not come
        self._files: FileChanges | None = FileChanges()
        self._receiver: value_transfer.Receiver | None = None  # for values not in one frame
        self._value: list[value_transfer.Blob] = []
        self._no_room: str | None = None
        self._final: list[FinalValue] = []  # what ended the cell
        self._taken: dict[int, anyio.Event] = {}
        self._worker: object = None  # the process that has taken parts of a value
        self._clock: anyio.CancelScope | None = None  # of the time-out, under an event loop
        self._calls: Calls | None = None
        if functions is not None or cell.stdin is not None:
            self._clock = anyio.CancelScope()
            deadline = Deadline(self._clock, limits.host_time)
            known = functions or Registry()
            self._calls = Calls(
                known, self._answer, limits.memory, deadline, cell.stdin, self._final
            )

    async def execute(self) -> Finished:
        """Run it to its end. Cancelled, it interrupts the guest, then kills the worker, and lets
        the cancellation go on."""
        calls, failure = self._calls, None
        if calls is None:
            await self._perform()
        else:
            async with calls:
                try:
                    await self._perform()
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:
                    failure = error  # of a callback: the caller expects it, and not a group
            if failure is not None:
                raise failure
        before, after = self._before, await self._guest.read_usage()
        cpu = None
        if after.cpu is not None and before.cpu is not None:
            cpu = max(after.cpu - before.cpu, 0.0)
        chunks = {name: tuple(stream.chunks) for name, stream in self._streams.items()}
        timed_out = self._stopped_for is Outcome.timeout
        return Finished(
            done=self._done,
            lost=self._lost,
            stopped_for=self._stopped_for,
            interrupted=self._interrupted,
            results=tuple(self._results),
            logs=Logs(**{"stdout": (), "stderr": (), **chunks, "order": tuple(self._order)}),
            usage=Usage(
                wall=self._wall,
                cpu=cpu,
                peak_memory=after.peak_memory,
                output_bytes=self._output_bytes,
            ),
            truncated=self._truncated,
            dropped=self._dropped,
            cut=self._cut,
            files=self._files,
            memory_kills=after.memory_kills - before.memory_kills,
            memory_kills_in_all=after.memory_kills,
            calls=tuple(calls.made) if calls is not None else (),
            calls_left_out=calls.unrecorded if calls is not None else 0,
            host_time_is_up=timed_out and calls is not None and calls.deadline.excuse <= 0,
            value=self._value,
            no_room=self._no_room,
            final=self._final,
        )

    async def _perform(self) -> None:
        """Afterwards `_done` or `_lost` is set."""
        cell, number = self._cell, self._exchange.number
        self._before = await self._guest.read_usage(from_now=True)
        if (calls := self._calls) is not None and cell.timeout is not None:
            seconds = cell.timeout * max(cell.limits.cpus, 1.0)
            calls.start_task(calls.deadline.watch_cpu, self._guest, self._before.cpu, seconds)
        began = time.perf_counter() - self._channel.seconds_paused
        header: Mapping[str, object] = cell.header
        payload, fd, sent = cell.payload, -1, False
        try:
            if cell.kind == wire.RUN and (held := self._channel.held.bytes):
                header = {**header, "held": held}
            if cell.value is not None:
                if cell.value.size <= wire.INLINE:
                    payload = cell.value.join()
                else:
                    header, payload, fd = await self._load(header, cell.value)
                header = {**header, "worker": self._worker}
            sent = True
            await self._channel.send(cell.kind, number, header, payload, fd)
            await self._collect_in_time(cell.timeout)
            if self._done is None:
                await move_to_loop()
                self._stopped_for = self._stopped_for or Outcome.timeout
                await self._stop()
        except Lost as lost:
            self._lost = lost
        except WorkerDied:
            self._done = wire.Frame(wire.DONE, number, {"status": "died", "lost": True}, b"")
        except ProtocolError as error:
            self._session.kill()
            self._lost = error
        except BaseException:
            if sent:  # else there is nothing to end
                self._silent = True
                await move_to_loop()
                with anyio.CancelScope(shield=True):
                    try:
                        await self._stop()
                    except (Lost, ProtocolError):
                        self._session.kill()
            raise
        finally:
            self._exchange.close()
            self._receiver = None  # with what it has of values that are not whole
            self._wall = time.perf_counter() - self._channel.seconds_paused - began
        for stream in self._streams.values():
            await stream.feed(b"", final=True)

    async def _stop(self) -> None:
        """End it, with all it started: politely if there is a grace, then by SIGKILL."""
        number = self._exchange.number
        grace = GRACE if self._cell.grace is None else self._cell.grace
        if grace:
            await self._channel.send(wire.INTERRUPT, number, {"end": True})
            await self._channel.within(grace, self._collect)
            if self._done is not None:
                return
        await self._channel.send(wire.KILL, number)
        await self._channel.within(DEATH, self._collect)
        if self._done is None:
            self._session.kill()
            raise Lost

    async def interrupt(self) -> None:
        self._interrupted = True
        await self._channel.send(wire.INTERRUPT, self._exchange.number)

    # -- frames -----------------------------------------------------------------------------

    async def _collect_in_time(self, timeout: float | None) -> None:
        began, paused = time.monotonic(), self._channel.seconds_paused
        if await finish_in_time(self._collect, timeout):
            return
        clock = self._clock = self._clock or anyio.CancelScope()
        if timeout is not None:
            clock.deadline = anyio.current_time() + timeout - (time.monotonic() - began)
        with clock:
            await self._collect()
        if clock.cancelled_caught and clock.deadline > 0:  # else it is ended for its CPU time
            await self._channel.within(await self._channel.wait_for_resume(paused), self._collect)

    async def _collect(self) -> bool:
        """Take frames until it is done, or a limit has been passed for the first time."""
        while self._done is None:
            within = not self._truncated
            await self._take(await self._exchange.next())
            if self._truncated and within:
                self._stopped_for = self._stopped_for or Outcome.output_limit
                if self._done is None:
                    break
        return True

    async def _take(self, frame: wire.Frame) -> None:
        kind = frame.kind
        if kind == wire.STREAM:
            await self._take_stream(frame)
        elif kind == wire.RESULT:
            await self._take_result(frame)
        elif kind == wire.DONE:
            try:
                self._value.append(self._take_blob(frame, wire.VALUE_KEY))
            except MemoryError as error:
                self._no_room = str(error)
            self._done = frame
        elif kind == wire.CALL and self._calls is not None:
            call = frame.header.get("call")
            self._calls.start(frame, self._take_blob(frame, call if type(call) is int else -1))
        elif kind == wire.PART:
            self._receive().add(frame)
        elif kind == wire.TAKEN:
            key = frame.header.get("key")
            if type(key) is int and key in self._taken:
                self._taken[key].set()
        elif kind == wire.CHANGES:
            self._files = outcome.parse_changes(frame)
        elif kind == wire.OVERFLOW:
            self._truncated = True
        else:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {kind}")

    async def _take_stream(self, frame: wire.Frame) -> None:
        name = str(frame.header.get("name"))
        if name not in STREAMS:
            raise ProtocolError("output of an unknown stream")
        stream = self._streams.get(name)
        if stream is None:
            callback = getattr(self._cell, f"on_{name}", None)
            stream = self._streams[name] = Stream(callback, name, self._order)
        if self._silent:
            stream.callback = None
        if name == "background":
            # Output of earlier cells, so not on this one's account; init keeps to the same number.
            await stream.feed(frame.payload[: self._background_room])
            self._background_room -= min(len(frame.payload), self._background_room)
            return
        kept = frame.payload[: max(self._room, 0)]
        self._room -= len(frame.payload)
        self._output_bytes += len(kept)
        if len(kept) < len(frame.payload):
            self._truncated = True
        await stream.feed(kept)

    async def _take_result(self, frame: wire.Frame) -> None:
        # As it will lie in memory: a character may take four bytes, an empty part is not free.
        result = outcome.parse_result(frame)
        self._result_bytes += 4 * len(frame.payload) + 256 * len(result.raw)
        if len(self._results) >= MAX_RESULTS or self._result_bytes > self._max_results:
            self._truncated = True
            return
        if isinstance(final := result.raw.get(messages.FINAL), bytes):
            if not self._final:
                self._final.append(FinalValue(final, encoded=True))
            return
        self._dropped = self._dropped or bool(frame.header.get("dropped"))
        self._cut = self._cut or bool(frame.header.get("cut"))
        self._results.append(result)
        if self._cell.on_result is not None and not self._silent:
            made = self._cell.on_result(result)
            if inspect.isawaitable(made):
                await made

    # -- values -----------------------------------------------------------------------------

    def _receive(self) -> value_transfer.Receiver:
        if self._receiver is None:
            limit = self._cell.limits.memory if self._cell.kind == wire.RUN else wire.INLINE
            self._receiver = value_transfer.Receiver(limit, self._channel.held)
        return self._receiver

    def _take_blob(self, frame: wire.Frame, key: int) -> value_transfer.Blob:
        if frame.fd < 0 and "parts" not in frame.header:
            return frame.payload
        return self._receive().take(frame, key)

    async def _load(
        self, header: Mapping[str, object], value: Encoded
    ) -> tuple[Mapping[str, object], bytes, int]:
        number = self._exchange.number
        await move_to_loop()
        with anyio.move_on_after(self._cell.timeout):
            return await value_transfer.load(
                self._channel, number, header, value, key=number, taken=self._wait_taken
            )
        # The interpreter does not even read: nothing of it can be kept.
        self._stopped_for = Outcome.timeout
        self._session.kill()
        raise Lost

    async def _wait_taken(self) -> None:
        """Before the run is sent: no other task reads its frames."""
        frame = await self._exchange.next()
        if frame.kind != wire.TAKEN:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")
        worker = frame.header.get("worker")
        if type(worker) is not int:
            raise ProtocolError("the guest named no valid worker")
        if self._worker is not None and worker != self._worker:
            raise WorkerDied
        self._worker = worker

    # -- calls of host functions ------------------------------------------------------------

    async def _answer(self, call: int, header: dict[str, object], value: Encoded | None) -> None:
        async def taken() -> None:
            await self._taken[call].wait()
            self._taken[call] = anyio.Event()

        self._taken[call] = anyio.Event()  # before a part is sent: its answer may be quick
        number, payload, fd = self._exchange.number, b"", -1
        answer: Mapping[str, object] = {**header, "held": self._channel.held.bytes}
        try:
            if value is not None:
                answer, payload, fd = await value_transfer.load(
                    self._channel, number, answer, value, key=call, taken=taken
                )
            await self._channel.send(wire.ANSWER, number, answer, payload, fd)
        except (Lost, ProtocolError):
            return  # the run itself will notice
        finally:
            self._taken.pop(call, None)
