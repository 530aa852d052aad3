"""What init waits for: descriptors with their handlers, and the output pipes of cells and commands.

Poller does what `selectors.PollSelector` does, in fewer steps: init polls several times for each
cell. It does not use epoll, because the kernel counts epoll watches per user, and guests of one
user could use them all up.
"""

import os
import select
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

READ = select.POLLIN
WRITE = select.POLLOUT
PIPE_SIZE = 64 * 1024  # bytes that a pipe holds
SMALL_READ = 16 * 1024  # bytes; after less than that, the reader waits a moment for more
LONGEST = 3600.0  # seconds of one wait: poll() takes no more than 24 days
DRAIN_READS = 64  # reads of one pipe: a writer that never stops is not waited for

Handler = Callable[[Any, int], None]  # gets the descriptor or its object, and READ | WRITE


class Poller:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: Dict[int, Tuple[Any, Handler]] = {}
        self._timers: Dict[int, Tuple[float, Callable[[], None]]] = {}
        self._last = 0  # the number of a timer
        self._lost = 0.0  # seconds for which the clock of timers stood still
        self._stopped: Optional[float] = None  # since when it stands still

    def register(self, source: Any, events: int, handler: Handler) -> None:
        fd = source if isinstance(source, int) else source.fileno()
        if fd in self._handlers:
            raise KeyError(f"descriptor {fd} is registered already")
        self._poll.register(fd, events)
        self._handlers[fd] = source, handler

    def modify(self, source: Any, events: int, handler: Handler) -> None:
        self.unregister(source)
        self.register(source, events, handler)

    def unregister(self, source: Any) -> None:
        """Call this before the descriptor is closed."""
        fd = source if isinstance(source, int) else source.fileno()
        del self._handlers[fd]
        self._poll.unregister(fd)

    def call_later(self, seconds: float, function: "Callable[[], None]") -> int:
        """Give the number by which it can be cancelled."""
        self._last += 1
        self._timers[self._last] = self._clock() + seconds, function
        return self._last

    def cancel(self, timer: int) -> None:
        self._timers.pop(timer, None)

    def stop_clock(self) -> None:
        """The host pauses the guest: no time passes for timers."""
        if self._stopped is None:
            self._stopped = time.monotonic()

    def start_clock(self) -> None:
        if self._stopped is not None:
            self._lost += time.monotonic() - self._stopped
            self._stopped = None

    def _clock(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._lost

    def _run_timers(self) -> None:
        now = self._clock()
        for number, (when, function) in list(self._timers.items()):
            if when <= now and self._timers.pop(number, None) is not None:
                function()

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Call the handlers of descriptors that are ready. False if the time ran out first."""
        if self._timers and self._stopped is None:
            first = max(min(when for when, _ in self._timers.values()) - self._clock(), 0)
            first = min(first, LONGEST)
            seconds = first if seconds is None else min(first, seconds)
        milliseconds = None if seconds is None else seconds * 1000
        ready: List[Tuple[Any, Handler, int]] = []
        for fd, found in self._poll.poll(milliseconds):
            source, handler = self._handlers[fd]
            # A hang-up or an error wakes readers and writers alike.
            events = (READ if found & ~WRITE else 0) | (WRITE if found & ~READ else 0)
            ready.append((source, handler, events))
        for source, handler, events in ready:
            handler(source, events)
        if self._timers:
            self._run_timers()
        return bool(ready)


def is_readable(fd: int) -> bool:
    """Of a pidfd: whether its process has ended."""
    poll = select.poll()
    poll.register(fd, READ)
    return bool(poll.poll(0))


class OutputReader:
    """Reads standard output and error of a cell or a command, without ever blocking.

    After a small read it waits a moment: waking init and the host for each line would cost more
    than the line.
    """

    def __init__(
        self,
        init: Any,
        pipes: "Dict[int, str]",
        on_data: "Callable[[OutputReader, str, bytes], None]",
    ) -> None:
        """`pipes`: descriptor -> "stdout" or "stderr". The reader closes them."""
        self._init = init
        self.pipes = pipes  # those that are open
        self._on_data = on_data
        self.size = 0  # bytes so far
        self.on_end: Optional[Callable[[], None]] = None  # called when there is nothing to read
        self.patient = True  # wait a moment after a small read
        self._watched = False
        self._held = False
        self._paused = False  # init holds more than the host takes
        for fd in pipes:
            os.set_blocking(fd, False)
        self.watch()

    def watch(self) -> None:
        if not self._watched and not self._paused and not self._held:
            self._watched = True
            for fd in self.pipes:
                self._init.selector.register(fd, READ, self._on_ready)

    def unwatch(self) -> None:
        """Stop polling these pipes until `watch()`."""
        if self._watched:
            self._watched = False
            for fd in self.pipes:
                self._init.selector.unregister(fd)

    def hold(self, held: bool) -> None:
        """Do not read before this is called again."""
        if held != self._held:
            self._held = held
            if held:
                self.unwatch()
            else:
                self.watch()

    def resume(self) -> None:
        self._paused = False
        self.watch()

    def _on_ready(self, fd: int, events: int) -> None:
        if not self._watched or fd not in self.pipes:
            return  # the handler of the other pipe has just stopped the polling
        size = self.read(1, fd)
        if self._init.congested:
            self.unwatch()
            self._paused = True
            self._init.pause(self)
        elif size < SMALL_READ and self.patient and self.pipes:
            self.unwatch()
            self._init.watch_later(self)

    def read(self, times: int = DRAIN_READS, only: int = -1) -> int:
        """Take what is in the pipes now, or in one of them, and return how many bytes it was."""
        size = 0
        for fd in list(self.pipes) if only < 0 else [only]:
            for _ in range(times):
                try:
                    data = os.read(fd, PIPE_SIZE)
                except BlockingIOError:
                    break
                except OSError:  # of a terminal that no process has open, or of a connection
                    data = b""
                if not data:
                    if self._watched:
                        self._init.selector.unregister(fd)
                    os.close(fd)
                    del self.pipes[fd]
                    break
                size += len(data)
                self.size += len(data)
                self._on_data(self, self.pipes[fd], data)
        if not self.pipes and self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end()
        return size

    def close(self) -> None:
        self.unwatch()
        while self.pipes:
            os.close(self.pipes.popitem()[0])
