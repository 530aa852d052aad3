"""One live guest, its channel, and the sandboxes that share it.

A sandbox and its forks share a guest, and with it their limits. Each is a branch, with its own
interpreter and its own files at /workspace. There is only one /workspace, so they take turns: all
that one branch has under way (cells, commands, files) ends before another branch goes on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from belljar.backends.base import Guest
from belljar.backends.event_loop import (
    CallerThread,
    caller_thread,
    here,
    in_use_elsewhere,
    move_to_loop,
    post,
    post_task,
)
from belljar.errors import CheckpointLost, GuestLost, ProtocolError, SandboxError
from belljar.protocol import wire
from belljar.sandbox.channel import REHEARSAL, Channel, Exchange, Lost, drop

T = TypeVar("T")
KEEP_TIMEOUT = 20.0  # seconds to copy an interpreter and its files, at most
GRACE = 1.0  # seconds more than the time-out of the caller: a copy takes longer than no code at all
UNKNOWN = -1  # the branch whose turn it is, while init changes it

# The cells, of any guest, for which the running code works: it is a host function they called.
SERVING: ContextVar[tuple[object, ...]] = ContextVar("belljar_serving", default=())


class GuestSession:
    def __init__(self, guest: Guest, shareable: int, *, after: int = REHEARSAL) -> None:
        """`shareable`, `after`: as those of Channel."""
        self.guest = guest
        self.started = time.perf_counter()
        self.channel = Channel(guest.stream, shareable, after=after)
        self.memory_kills = 0  # processes killed because memory ran out, up to the last cell
        self.functions: dict[int, int] = {}  # branch -> version of the functions it knows
        self._branches = {0}
        self._last = 0  # number of a branch or a checkpoint
        self._active = 0
        self._under_way = 0
        self._streams = 0  # that wait for bytes; other work need not wait for them
        self._alone = False  # nothing else may begin
        self._cells: set[object] = set()  # that run now
        self._free: anyio.Event | None = None  # made by the first task that waits for its turn
        self._loop: object | None = None  # that of the last turn
        self._lock = threading.RLock()  # of the fields above, while a turn begins or ends
        self._caller: CallerThread | None = None  # that has a turn, alone

    @property
    def alive(self) -> bool:
        return self.channel.alive

    def kill(self) -> None:
        """Kill the guest. It takes a moment to die, and must not be used meanwhile."""
        self.guest.kill()
        self.channel.kill()
        self.end_pause()

    def end_pause(self) -> None:
        """What waits for the end of a pause goes on. Called when the guest is killed."""
        if self.channel.pauses is not None:
            self.channel.pauses.end()

    @property
    def shared(self) -> bool:
        return len(self._branches) > 1

    def takes_turns(self, branch: int) -> bool:
        """True if programs of this branch may have to wait for its turn."""
        return self.shared or self._active != branch

    def check_free(self, branch: int | None = None) -> None:
        """Raise if a host function would wait for the end of the cell that called it."""
        serving = SERVING.get()
        if serving and not self._cells.isdisjoint(serving) and branch != self._active:
            raise SandboxError(
                "a host function cannot run code in the sandbox whose cell has called it",
                hint="files and commands of that sandbox work; or let the cell do it afterwards",
            )

    async def serve(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a cell: what it calls on the host knows that it is called by it."""
        cell = object()
        self._cells.add(cell)
        token = SERVING.set((*SERVING.get(), cell))
        try:
            return await run()
        finally:
            SERVING.reset(token)
            self._cells.discard(cell)

    @contextlib.asynccontextmanager
    async def turn(self, branch: int) -> AsyncIterator[None]:
        """While this lasts, /workspace is that of `branch`. Any number of one branch at once."""
        self.check_free(branch)
        await self.begin_turn(branch)
        try:
            yield
        finally:
            self.end_turn()

    async def begin_turn(self, branch: int | None) -> None:
        """Wait for a turn of `branch`; `end_turn` must follow. Call `check_free` before. None: for
        a request that any branch may make at any time."""
        if (caller := caller_thread()) is not None:
            if self._begin_alone(branch, caller):
                return
            await move_to_loop()
        loop = here()
        while (wait := self._count_in(branch, loop)) is not None:
            await wait()
        if branch is not None and self._active != branch:
            try:
                await self._switch(branch)
            except BaseException:
                self.end_turn()
                raise

    def _begin_alone(self, branch: int | None, caller: CallerThread) -> bool:
        """Begin a turn in the thread of a blocking caller, if nothing at all is under way."""
        with self._lock:
            busy = self._under_way or self._streams or self._alone or self._free is not None
            if busy or not self._branches or self._active != branch or not self.channel.polls:
                return False
            self._caller, self._loop, self._under_way = caller, caller.loop, 1
        caller.on_move = self._go_on
        return True

    def _go_on(self) -> None:
        """The one that had begun alone is under the event loop now."""
        with self._lock:
            self._caller = None
        self._tell_free()

    def _count_in(
        self, branch: int | None, loop: object
    ) -> Callable[[], Coroutine[Any, Any, object]] | None:
        """Begin a turn, or give what to wait for."""
        with self._lock:
            if (self._under_way or self._streams) and self._loop is not loop:
                raise in_use_elsewhere()
            caller = self._caller
            other = self._alone or (self._under_way and self._active != branch)
            if caller is None and (branch is None or not other):
                self._loop = loop
                self._under_way += 1
                return None
            self._free = self._free or anyio.Event()
            wait = self._free.wait
        if caller is not None:
            caller.recall()
        return wait

    @contextlib.asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """While this lasts, a stream may wait for the guest: under an event loop, and at the same
        time as any other work."""
        await move_to_loop()
        await self.begin_turn(None)
        self._streams += 1
        self.end_turn()
        try:
            yield
        finally:
            self._streams -= 1

    def abandon(self, exchange: Exchange) -> None:
        """Close a stream that no code can use any more. From any thread."""

        async def close() -> None:
            with contextlib.suppress(Lost, SandboxError):  # the guest has ended, or will
                async with self.streaming():
                    exchange.close()
                    await self.channel.send(wire.END, exchange.number)

        if self._loop is not None and self.alive:
            post_task(self._loop, close)

    async def settle(self) -> None:
        """Wait until no thread uses the guest by itself."""
        await self.begin_turn(None)
        self.end_turn()

    def end_turn(self) -> None:
        with self._lock:
            self._under_way -= 1
            caller, self._caller = self._caller, None
            waited_for = self._free is not None
        if caller is not None:
            caller.on_move = None
            if waited_for:
                post(self._loop, self._tell_free)
        elif waited_for:
            self._tell_free()

    def check_loop(self) -> None:
        """Raise if something is under way under another event loop."""
        if self._under_way and self._loop is not here():
            raise in_use_elsewhere()

    async def _wait(self) -> None:
        self._free = self._free or anyio.Event()
        await self._free.wait()

    def _tell_free(self) -> None:
        if self._free is not None:
            self._free.set()
            self._free = None

    async def _switch(self, branch: int) -> None:
        """Waits for the answer: if files have to be copied, that time must not count as time of
        the next cell."""
        before, self._active = self._active, UNKNOWN
        self._alone = True
        try:
            await self._ask(wire.SWITCH, {"branch": branch}, "could not change to this fork")
            self._active = branch
        except SandboxError:
            self._active = before
            raise
        finally:
            self._alone = False
            self._tell_free()

    async def keep(
        self, *, branch: bool, timeout: float | None = None
    ) -> tuple[int, tuple[str, ...]]:
        """Park a copy of the active interpreter and its files, as a branch or a checkpoint. Gives
        its number, and what the copy lacks. Called in a turn, between cells. `timeout` is that of a
        cell: hooks of the code run when it is copied, and may take as long."""
        self._last += 1
        number = self._last
        header: dict[str, object] = {"number": number, "branch": branch}
        try:
            answer = await self._ask(wire.KEEP, header, "could not keep the interpreter", timeout)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.release(number)  # no caller knows its number
            raise
        if branch:
            self._branches.add(number)
            self.functions[number] = self.functions.get(self._active, -1)
        lacks = answer.get("missing")
        texts = lacks if isinstance(lacks, list) else []
        return number, tuple(str(text)[:200] for text in texts[:20])

    async def go_back(self, checkpoint: int, timeout: float | None = None) -> None:
        """Let the active branch go on from a checkpoint. Called in a turn, between cells; waits for
        commands and files that are under way. `timeout`: as that of `keep`."""
        while self._alone or self._under_way > 1:
            await self._wait()
        self._alone = True
        try:
            await self._ask(wire.RETURN, {"number": checkpoint}, "could not go back", timeout)
        finally:
            self._alone = False
            self._tell_free()

    async def release(self, number: int) -> None:
        await self.begin_turn(None)
        try:
            await self.channel.call(wire.RELEASE, {"number": number})
        finally:
            self.end_turn()

    async def _ask(
        self, kind: int, header: dict[str, object], failed: str, timeout: float | None = None
    ) -> dict[str, object]:
        """Waits for the answer even if it is cancelled: the next cell must not come in between."""
        exchange = self.channel.open()
        seconds = KEEP_TIMEOUT if timeout is None else min(timeout + GRACE, KEEP_TIMEOUT)
        try:
            await self.channel.send(kind, exchange.number, header)
            try:
                answer = await self._answer(exchange, seconds)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await self._answer(exchange, seconds)
                raise
        except Lost:
            raise GuestLost("the guest died during the operation") from None
        finally:
            exchange.close()
        if error := answer.get("error"):
            words = f"{failed}: {str(error)[:200]}"
            if answer.get("lost") is True:
                raise CheckpointLost(words, hint="make a new one")
            raise SandboxError(words, hint=_hint(str(error)))
        return answer

    async def _answer(self, exchange: Exchange, seconds: float) -> dict[str, object]:
        if (frame := await self.channel.within(seconds, exchange.next)) is not None:
            return _header(frame)
        # The code may have hooks that hang when it is forked. Let init kill what is stuck.
        await self.channel.call(wire.RELEASE, {"stuck": True})
        if (frame := await self.channel.within(KEEP_TIMEOUT, exchange.next)) is not None:
            return _header(frame)
        self.guest.kill()
        raise GuestLost("the guest did not answer, and was killed")

    def drop(self, branch: int) -> bool:
        """Remove a branch whose sandbox was not closed. True if it was the last one."""
        with self._lock:
            self._branches.discard(branch)  # without any, no thread uses the guest by itself
        return not self._branches

    async def leave(self, branch: int) -> None:
        """Remove the branch of a sandbox that ends; with the last one, the guest is closed."""
        if self.drop(branch):
            self.guest.kill()
            self.end_pause()
            with anyio.CancelScope(shield=True):
                try:
                    await self.settle()
                    await self.channel.close()
                finally:  # a cancellation of asyncio's own goes through shields
                    await self.guest.close()
        elif self.alive:
            with contextlib.suppress(GuestLost):  # then it needs no releasing
                await self.release(branch)


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A parked copy of the interpreter, and a copy of the files in /workspace.

    It lives in the sandbox and counts against its limits, until `release()` or the sandbox's end.
    """

    id: int
    lacks: tuple[str, ...] = ()  # what could not be kept: threads, sockets, processes
    fresh: bool = field(default=False, repr=False)  # variables had been lost before it was made
    session: GuestSession = field(repr=False)


def _header(frame: wire.Frame) -> dict[str, object]:
    if frame.kind != wire.REPLY:
        drop(frame)
        raise ProtocolError(f"unexpected answer of kind {frame.kind}")
    return frame.header


def _hint(error: str) -> str | None:
    if "space" in error.lower():
        return "copies of the workspace count too: raise Limits(workspace=..., memory=...)"
    if "process" in error or "memory" in error or "Resource" in error:
        return "copies of the interpreter count too: raise Limits(memory=..., processes=...)"
    return None
