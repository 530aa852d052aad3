"""A pump: reads one pipe of the guest and hands on what comes, without ever blocking.

What comes in small pieces is let gather for a moment after the first: a wake-up of init and of the
host for each line would cost more than the line.
"""

import os
from typing import Any, Callable

from . import poller

CHUNK = 64 * 1024  # what a pipe holds
LITTLE = 16 * 1024  # bytes that are worth a moment's wait for more


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
            self._init.selector.register(self._fd, poller.READ, self._on_ready)

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
        elif got < LITTLE:
            self.rest()
            self._init.watch_later(self)

    def read(self) -> int:
        """How much came: 0, if there is nothing now, or never will be."""
        if self.closed:
            return 0
        try:
            data = os.read(self._fd, CHUNK)
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
