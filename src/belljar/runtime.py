"""What belongs to the process, not to one sandbox: backends, the event loop, the minder; and how
blocking callers use that loop (`call`, `wait`).

Started on first use, closed at exit. After a fork of the host process the child starts its own
and never touches the parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import os
import queue
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, cast

# The event loop's modules are imported here, not by the runtime's thread: a fork of the process
# in the middle of an import would leave the child waiting for ever for the import to end.
import anyio
import anyio._backends._asyncio

import belljar
from belljar.backends.auto import AutoBackend, docker_backend, resolve_backend
from belljar.backends.base import Backend, Periodic
from belljar.backends.event_loop import CallerThread
from belljar.backends.native.backend import NativeBackend
from belljar.errors import InvalidOption, StartError

P = ParamSpec("P")
T = TypeVar("T")
MIND_INTERVAL = 0.1
CALLBACKS = ("on_stdout", "on_stderr", "on_result", "on_progress")
Events = queue.SimpleQueue[Callable[[], object] | None]  # None: the work has ended


class Runtime:
    loop: asyncio.AbstractEventLoop
    _context: contextvars.Context
    _stop: anyio.Event

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._making = threading.RLock()  # of backends, which may use this runtime meanwhile
        self._backends: dict[str, Backend] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._minded: list[Periodic] = []
        self._minding = False
        self._closed = threading.Event()
        self._callers: list[CallerThread] = []  # that run no call now
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon, because the interpreter waits for other threads before it runs atexit.
        self._thread = threading.Thread(target=self._run, name="belljar", daemon=True)
        try:
            self._thread.start()
            self._ready.result()
        except (OSError, RuntimeError) as error:
            raise StartError(
                f"no event loop could be started: {error}",
                hint="out of descriptors (ulimit -n), memory or processes?",
            ) from error
        belljar.on_runtime_start()

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        _own.runtime = self
        try:
            anyio.run(self._main)
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._stop = anyio.Event()
        self._ready.set_result(None)
        await self._stop.wait()  # tasks that are left are cancelled by the end of anyio.run

    def submit(
        self,
        function: Callable[[], Coroutine[None, None, None]],
        context: contextvars.Context | None = None,
    ) -> None:
        """Start a task on the runtime's thread, from any thread. It must not raise.

        Does not wait until the loop has taken it, as anyio's portal does: that would double the
        number of thread switches of every blocking call. `context`: None is a copy of the caller's.
        """
        context = context or contextvars.copy_context()  # the caller's variables, except those
        for variable, value in self._context.items():  # that say which event loop runs
            context.run(variable.set, value)
        self.loop.call_soon_threadsafe(self._start, function, context)

    def _start(
        self, function: Callable[[], Coroutine[None, None, None]], context: contextvars.Context
    ) -> None:
        task = self.loop.create_task(function(), context=context)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the runtime's thread, from any thread."""
        self.loop.call_soon_threadsafe(function)

    def take_caller(self) -> CallerThread | None:
        """For a blocking call; to be given back. None if this process cannot have more."""
        # Without a lock, here and below: the handler of a signal may call this in the middle of it.
        try:
            return self._callers.pop() if self._callers else CallerThread(self.loop)
        except (AttributeError, IndexError, OSError):  # not Linux; just taken; no descriptors
            return None

    def give_back(self, caller: CallerThread) -> None:
        self._callers.append(caller)
        self._close_callers(all_but=0 if self._closed.is_set() else 1)

    def _close_callers(self, all_but: int = 0) -> None:
        with contextlib.suppress(IndexError):  # another thread does the same
            while len(self._callers) > all_but:
                self._callers.pop().close()

    # -- backends ---------------------------------------------------------------------------

    def backend(self, name: str) -> Backend:
        """`auto` is native where the host allows it. A less safe one is never chosen silently."""
        name = resolve_backend(name)
        with self._making:
            if self._closed.is_set():
                raise StartError("this process is ending, and starts no more sandboxes")
            if name not in self._backends:
                try:
                    self._backends[name] = self._make(name)
                except OSError as error:
                    raise StartError(f"the backend {name} did not start: {error}") from error
            return self._backends[name]

    def _make(self, name: str) -> Backend:
        if name == "auto":
            return AutoBackend(self.backend)
        return NativeBackend(self) if name == "native" else docker_backend()(self)

    # -- the minder -------------------------------------------------------------------------

    def mind(self, minded: Periodic) -> None:
        """Look at it ten times a second until it is stopped.

        In a thread of its own: what a look costs is up to the guest, and must not delay others.
        """
        with self._lock:
            self._minded.append(minded)
            start, self._minding = not self._minding, True
        if start:
            threading.Thread(target=self._mind, name="belljar-minder", daemon=True).start()

    def _mind(self) -> None:
        while not self._closed.wait(MIND_INTERVAL):
            with self._lock:
                self._minded = [minded for minded in self._minded if not minded.stopped]
                if not self._minded:
                    self._minding = False
                    return
                now = list(self._minded)
            for minded in now:
                minded.look()

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End every guest and leave nothing behind."""
        with self._making:  # one that a start in the background has just begun to make ends too
            self._closed.set()
        for backend in self._backends.values():
            backend.close()
        self.call_soon(self._stop.set)
        self._thread.join(5.0)
        self._close_callers()

    def abandon(self) -> None:
        """In a fork: the threads do not exist here, and the rest belongs to the parent."""
        for backend in self._backends.values():
            backend.abandon()
        for caller in self._callers:
            caller.abandon()


_runtime: Runtime | None = None
_starting = threading.Lock()
_own = threading.local()  # `runtime`, in the thread of one


def current() -> Runtime:
    """The runtime of this process, started if need be.

    In a runtime's own thread it is that runtime: a task that runs while it is closed must not start
    another one, which would never be closed.
    """
    global _runtime
    own: Runtime | None = getattr(_own, "runtime", None)
    if own is not None:
        return own
    with _starting:
        if _runtime is None:
            _runtime = Runtime()
        return _runtime


def shutdown() -> None:
    """Close the runtime now instead of at exit; the next sandbox starts a new one."""
    global _runtime
    with _starting:
        runtime, _runtime = _runtime, None
    if runtime is not None and runtime.pid == os.getpid():
        runtime.close()


def _after_fork() -> None:
    global _runtime, _starting
    _starting = threading.Lock()
    _own.__dict__.clear()
    runtime, _runtime = _runtime, None
    if runtime is not None:
        runtime.abandon()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_after_fork)


# -- blocking callers -----------------------------------------------------------------------------


def call(function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `wait`, and faster: in this thread for as long as no event loop is needed. For functions
    that await move_to_loop() before they need one."""
    for name in CALLBACKS:  # they must not hold up what reads the guest's output
        if kwargs.get(name) is not None:
            return wait(function, *args, **kwargs)
    process = current()
    caller = process.take_caller()
    if caller is None:
        return wait(function, *args, **kwargs)
    context = contextvars.copy_context()
    moves, result = False, None
    try:
        context.run(caller.begin)
        coroutine = function(*args, **kwargs)
        context.run(coroutine.send, None)
        moves = True
    except StopIteration as done:
        result = done.value
    finally:
        caller.end()
        deferred, caller.deferred = caller.deferred, []
        on_move = caller.on_move
        process.give_back(caller)
    if moves:
        work: Work[T] = Work(functools.partial(_go_on, coroutine, on_move))
        work.begin(context, deferred)
        return work.finish()
    for handler in deferred:
        handler()
    return cast("T", result)


@types.coroutine
def _go_on(
    coroutine: Coroutine[Any, Any, T], on_move: Callable[[], None] | None
) -> Generator[Any, Any, T]:
    """The rest of a coroutine that has begun in another thread."""
    if on_move is not None:
        on_move()
    result: T = yield from coroutine  # unlike `await`, this takes one that has begun
    return result


def wait(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an awaitable on the runtime's loop and wait for it here.

    Callbacks run in this thread, so that they may use the sandbox themselves. An exception here
    (Ctrl-C above all, or one of a callback) cancels the work, which ends what runs in the guest,
    and is raised when that is done.
    """
    events: Events = queue.SimpleQueue()
    for name in CALLBACKS:
        callback = kwargs.get(name)
        if callback is None:
            continue
        if inspect.iscoroutinefunction(callback):
            raise InvalidOption(
                f"{name} is a coroutine function, which a blocking Sandbox cannot await",
                hint="use AsyncSandbox, or an ordinary function",
            )
        if callable(callback):
            kwargs[name] = _deferred(events, callback)

    work: Work[T] = Work(functools.partial(function, *args, **kwargs), events)
    work.begin()
    return work.finish()


class Work(Generic[T]):
    """One awaitable on the runtime's loop. Unlike a cancelled future, a cancelled Work tells when
    it has really ended."""

    def __init__(self, function: Callable[[], Awaitable[T]], events: Events | None = None) -> None:
        self._function = function
        self._events: Events = queue.SimpleQueue() if events is None else events
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._made: list[T] = []
        self._error: BaseException = RuntimeError("cancelled")

    def begin(
        self,
        context: contextvars.Context | None = None,
        first: Iterable[Callable[[], object]] = (),
    ) -> None:
        """Start it. From any thread, once. `first`: what the thread that waits calls first."""
        for event in first:
            self._events.put(event)
        self._runtime = current()
        self._runtime.submit(self.run, context)

    def finish(self) -> T:
        """Wait for its end in this thread, as `wait` does."""
        try:
            while (event := self._events.get()) is not None:
                event()
        except BaseException:
            self._runtime.call_soon(self.cancel)
            while self._events.get() is not None:
                continue  # callbacks are not called any more
            raise
        return self.result()

    async def run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._made.append(await self._function())
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # it may have begun in another thread, with its signals
            self._error = error
        finally:
            # Twice: Ctrl-C may come just when the waiting thread has taken the first.
            self._events.put(None)
            self._events.put(None)

    def result(self) -> T:
        if not self._made:
            raise self._error
        return self._made[0]

    def cancel(self) -> None:
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()


def _deferred(events: Events, callback: Any) -> Any:
    return lambda *items: events.put(lambda: callback(*items))
