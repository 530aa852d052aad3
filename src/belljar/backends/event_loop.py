"""What runs this code: an event loop, or the thread of a blocking caller.

A sandbox may be made under one event loop and used under another, also of another kind (asyncio,
trio): a blocking Sandbox in trio's code, or two calls of asyncio.run(). Under two at the same time
it cannot be used, because neither would wake the other: that is an error.

A blocking call runs its coroutine in the caller's own thread, without any event loop, as long as
the coroutine waits for nothing but one socket (CallerThread). Where it needs a loop, it awaits
move_to_loop() and goes on under that of the runtime. So no code may use anyio before that, unless
it knows that a loop runs it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums: ten times slower
import asyncio
import contextlib
import contextvars
import math
import os
import select
import signal
import socket
import threading
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from belljar.errors import SandboxError

T = TypeVar("T")
# Signals whose handlers may raise, or use a sandbox.
_DEFERRED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class MoveToLoop(BaseException):
    """This thread waits no more: the coroutine must go on under the event loop."""


class CallerThread:
    """A thread that runs the coroutine of a blocking call by itself. Used for many calls.

    Only the methods `recall` and `_defer` are called from elsewhere: by other threads, and by
    handlers of signals. What a handler does (raise KeyboardInterrupt, use the sandbox) must not
    happen in the middle of our own work, so it is called after the coroutine has gone to the loop
    or has ended.
    """

    def __init__(self, loop: object) -> None:
        """`loop`: under which a coroutine goes on, if it must. Raises OSError."""
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pid = os.getpid()
        self.loop = loop
        self.on_move: Callable[[], None] | None = None  # called under it before that
        self.deferred: list[Callable[[], object]] = []  # what is to be called in this thread
        self._handlers: dict[int, Any] = {}  # of signals, in place of which are ours
        self._deadline = math.inf
        self._recalled = self._waiting = self._closed = False
        self._ringing = threading.RLock()  # until it is closed: then the number is another's
        self._outer: CallerThread | None = None

    def close(self) -> None:
        with self._ringing:
            self._closed = True
            os.close(self._bell)

    def abandon(self) -> None:
        """In a fork of the process: there is no other thread, though one may hold the lock."""
        os.close(self._bell)

    def begin(self) -> None:
        """This thread runs a coroutine from now on. `end` must be called, also if this raises."""
        self._outer, self.on_move, self._recalled = _thread.caller, None, False
        self.mark = object()
        _CALLS.set((*_CALLS.get(), self.mark))
        if self.deferred:
            self.deferred = []
        if threading.current_thread() is threading.main_thread():
            for number in _DEFERRED:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    _signal.signal(number, partial(self._defer, handler))
        _thread.caller = self

    def end(self) -> None:
        _thread.caller, self._outer = self._outer, None
        while self._handlers:  # that of SIGINT last: it may raise here
            _signal.signal(*self._handlers.popitem())

    def _defer(
        self, handler: Callable[..., object], number: int, frame: types.FrameType | None
    ) -> None:
        if _thread.caller is not self or os.getpid() != self._pid:  # a fork, by another thread
            handler(number, frame)
            return
        self.deferred.append(partial(handler, number, frame))
        if self._waiting:
            self._waiting = False
            raise MoveToLoop

    def recall(self) -> None:
        """Have the coroutine go on under the loop. From any thread."""
        if self.mark in _CALLS.get():
            raise SandboxError(
                "a finalizer or signal handler cannot use the sandbox whose call it interrupts",
                hint="let it only take note, and use the sandbox afterwards",
            )
        with self._ringing:
            if not self._closed:
                self._recalled = True
                os.eventfd_write(self._bell, 1)

    def limit(self, seconds: float | None) -> None:
        """How long it may wait from now on."""
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        if self._recalled or self.deferred or time.monotonic() >= self._deadline:
            raise MoveToLoop

    def wait_readable(self, sock: socket.socket) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        try:
            self._waiting = True
            while True:
                self.check()
                left = self._deadline - time.monotonic()
                # Rounded up: poll() counts milliseconds.
                ready = poll.poll(None if left == math.inf else max(math.ceil(left * 1000), 0))
                if ready and (ready[0][0] != self._bell or len(ready) > 1):
                    return
                if ready:  # of a call that has ended, or of this one
                    os.eventfd_read(self._bell)
        except MoveToLoop:
            raise
        except BaseException as error:  # of a handler that was not deferred
            self.deferred.append(partial(_raise, error))
            raise MoveToLoop from None
        finally:
            self._waiting = False


def _raise(error: BaseException) -> None:
    raise error


class _Thread(threading.local):
    caller: CallerThread | None = None  # while it runs a coroutine


_thread = _Thread()
_TASKS: set[asyncio.Task[object]] = set()  # asyncio itself keeps no reference
_CALLS: ContextVar[tuple[object, ...]] = ContextVar("belljar_calls", default=())


def caller_thread() -> CallerThread | None:
    """That of the code which calls this, if no event loop runs it."""
    return _thread.caller


@types.coroutine
def move_to_loop() -> Generator[None, None, None]:
    """Go on under an event loop. Awaited before anything that needs one."""
    if _thread.caller is not None:
        yield


async def finish_in_time(work: Callable[[], Awaitable[T]], seconds: float | None) -> T | None:
    """Do some work in the caller's thread. None: it must be done (again) under the event loop,
    which runs the coroutine from now on."""
    caller = _thread.caller
    if caller is None:
        return None
    caller.limit(seconds)
    try:
        return await work()
    except MoveToLoop:
        await move_to_loop()
        return None


async def see_through(work: Callable[[], Awaitable[None]]) -> None:
    """Do some work to its end. A cancellation comes after it, also that of asyncio itself, which
    goes through the shields of anyio."""
    with anyio.CancelScope(shield=True):
        if not isinstance(here(), asyncio.AbstractEventLoop):
            return await work()
        task, cancelled = asyncio.ensure_future(work()), None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            task.exception()  # else asyncio complains of it
            raise cancelled
        task.result()


def here() -> object:
    """The running event loop, as an object to compare."""
    if _thread.caller is not None:
        return _thread.caller.loop
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        import trio

        return trio.lowlevel.current_trio_token()


def post(loop: Any, function: Callable[[], object]) -> bool:
    """Have a loop, as `here` gives it, call a function. From any thread; False if it has ended."""
    is_asyncio = isinstance(loop, asyncio.AbstractEventLoop)
    schedule = loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon
    try:
        schedule(function)
    except RuntimeError:  # trio's error is a RuntimeError, too
        return False
    return True


def spawn(function: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], None]:
    """Have this event loop do something in the background. Gives what cancels it, under that loop.
    The function must not raise."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _spawn_in_trio(function)
    task = loop.create_task(function())
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)

    def cancel() -> None:
        task.cancel()

    return cancel


def _spawn_in_trio(function: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], None]:
    import trio

    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await function()

    trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
    return scope.cancel


def post_task(loop: Any, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Have a loop, as `here` gives it, do something, if it still runs. From any thread. The
    function must not raise."""
    post(loop, lambda: spawn(function))


def is_cancelled() -> bool:
    """True if this asyncio task was cancelled, not something that it awaited."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio: its cancellation is another class
        return False
    return task is None or task.cancelling() > 0


def in_use_elsewhere() -> SandboxError:
    return SandboxError(
        "this sandbox is in use under another event loop",
        hint="await it there; or use Sandbox, which any thread may use",
    )


class Lock:
    """A lock that moves to the event loop that uses it, first come, first served. A caller's thread
    may take it too. anyio's own lock stays with the kind of loop that first used it."""

    def __init__(self) -> None:
        self._loop: object | None = None
        self._held = threading.Lock()  # no thread ever waits for it
        self._waiting: deque[list[anyio.Event]] = deque()  # of each its event, the last one made

    def locked(self) -> bool:
        return self._held.locked()

    async def __aenter__(self) -> None:
        loop = here()
        if _thread.caller is None:
            await anyio.lowlevel.checkpoint_if_cancelled()
        if not self._waiting and self._held.acquire(blocking=False):
            self._loop = loop
            return
        if self._loop is not loop:
            raise in_use_elsewhere()
        await move_to_loop()
        place = [anyio.Event()]
        self._waiting.append(place)
        try:
            # Tried before each wait: it may have been released in another thread just now.
            while self._waiting[0] is not place or not self._held.acquire(blocking=False):
                await place[0].wait()
                place[0] = anyio.Event()
        except BaseException:
            self._waiting.remove(place)
            self._wake()
            raise
        self._waiting.popleft()

    async def __aexit__(self, *exception: object) -> None:
        self._held.release()
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Have the first that waits try again."""
        with contextlib.suppress(IndexError):
            event = self._waiting[0][0]
            if _thread.caller is None:
                event.set()
            else:
                post(self._loop, event.set)


def has_hung_up(sock: socket.socket) -> bool:
    """True if the other end of a non-blocking socket is known to be closed. Takes no bytes."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


async def wait_readable(sock: socket.socket) -> None:
    """Like anyio.wait_readable, for a descriptor with one waiter. Under asyncio it skips the turn
    of the loop that anyio takes first. Raises MoveToLoop in a caller's thread, see
    finish_in_time()."""
    if _thread.caller is not None:
        _thread.caller.wait_readable(sock)
        return
    if not _in_asyncio_task():
        await anyio.wait_readable(sock)
        return
    loop, number = asyncio.get_running_loop(), sock.fileno()
    news: asyncio.Future[None] = loop.create_future()
    loop.add_reader(number, _wake, news)
    try:
        await news
    finally:
        loop.remove_reader(number)


async def let_others_run() -> None:
    """Called now and then by what never waits. Raises MoveToLoop as `wait_readable` does."""
    if _thread.caller is not None:
        _thread.caller.check()
    else:
        await anyio.lowlevel.checkpoint()


def _in_asyncio_task() -> bool:
    """False under trio, also when trio runs as a guest of asyncio's loop."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _wake(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
