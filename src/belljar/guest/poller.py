"""What init waits for: descriptors, and what is called when there is news of one.

As `selectors.PollSelector`, in fewer steps: init goes round several times for each cell. Not epoll,
whose watches are counted by the user, whose guests could use them all up.
"""

import os
import select
from typing import Any, Callable, Dict, List, Optional, Tuple

READ = select.POLLIN
WRITE = select.POLLOUT

Handler = Callable[[Any, int], None]  # gets the descriptor or its object, and READ | WRITE


class Poller:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: Dict[int, Tuple[Any, Handler]] = {}

    def register(self, source: Any, events: int, handler: Handler) -> None:
        fd = _number(source)
        if fd in self._handlers:
            raise KeyError(f"descriptor {fd} is watched already")
        self._poll.register(fd, events)
        self._handlers[fd] = source, handler

    def modify(self, source: Any, events: int, handler: Handler) -> None:
        self.unregister(source)
        self.register(source, events, handler)

    def unregister(self, source: Any) -> None:
        """Before it is closed."""
        fd = _number(source)
        del self._handlers[fd]
        self._poll.unregister(fd)

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Call who is to be called. Whether there was anybody before the time was up."""
        milliseconds = None if seconds is None else seconds * 1000
        ready: List[Tuple[Any, Handler, int]] = []
        for fd, found in self._poll.poll(milliseconds):
            source, handler = self._handlers[fd]
            # An end or an error is news for whoever waits, for whatever.
            news = (READ if found & ~WRITE else 0) | (WRITE if found & ~READ else 0)
            ready.append((source, handler, news))
        for source, handler, news in ready:
            handler(source, news)
        return bool(ready)


def _number(source: Any) -> int:
    return source if isinstance(source, int) else int(source.fileno())


PIPE_SIZE = 64 * 1024  # what a pipe holds
SMALL_READ = 16 * 1024  # bytes that are worth a moment's wait for more


class Pump:
    def __init__(
        self, init: Any, fd: int, name: str, on_data: "Callable[[Pump, bytes], None]"
    ) -> None:
        self._init = init
        self._fd = fd
        self.name = name
        self._on_data = on_data
        self.closed = False
        self._watched = False
        self._paused = False  # by init, which has more than the host takes
        os.set_blocking(fd, False)
        self.watch()

    def watch(self) -> None:
        if not self._watched and not self._paused and not self.closed:
            self._watched = True
            self._init.selector.register(self._fd, READ, self._on_ready)

    def rest(self) -> None:
        """Be not woken by what comes, until `watch`."""
        if self._watched:
            self._watched = False
            self._init.selector.unregister(self._fd)

    def resume(self) -> None:
        self._paused = False
        self.watch()

    def _on_ready(self, fd: Any, events: int) -> None:
        got = self.read()
        if self.closed:
            return
        if self._init.congested:
            self.rest()
            self._paused = True
            self._init.pause(self)
        elif got < SMALL_READ:
            self.rest()
            self._init.watch_later(self)

    def read(self) -> int:
        """How much came: 0, if there is nothing now, or never will be."""
        if self.closed:
            return 0
        try:
            data = os.read(self._fd, PIPE_SIZE)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
            return 0
        self._on_data(self, data)
        return len(data)

    def drain(self) -> None:
        """Take what is in the pipe now; a writer that never stops is not waited for."""
        for _ in range(64):
            if not self.read():
                return

    def close(self) -> None:
        if self.closed:
            return
        self.rest()
        self.closed = True
        os.close(self._fd)
