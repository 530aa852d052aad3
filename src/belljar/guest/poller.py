"""What init waits for: descriptors, and what is called when there is news of one.

As `selectors.PollSelector`, in fewer steps: init goes round several times for each cell. Not epoll,
whose watches are counted by the user, whose guests could use them all up.
"""

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
