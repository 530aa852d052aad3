"""A pump: reads one pipe of the guest and hands on what comes, without ever blocking."""

import os
import selectors
from typing import Any, Callable

CHUNK = 64 * 1024


class Pump:
    def __init__(
        self, init: Any, fd: int, name: str, on_data: "Callable[[Pump, bytes], None]"
    ) -> None:
        self._init = init
        self._fd = fd
        self.name = name
        self._on_data = on_data
        self.closed = False
        os.set_blocking(fd, False)
        self.resume()

    def resume(self) -> None:
        if not self.closed:
            self._init.selector.register(self._fd, selectors.EVENT_READ, self._on_ready)

    def _on_ready(self, fd: Any, events: int) -> None:
        self._read()
        if self._init.congested and not self.closed:
            self._init.selector.unregister(self._fd)
            self._init.pause(self)

    def _read(self) -> bool:
        """Whether there may be more at once."""
        if self.closed:
            return False
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._on_data(self, data)
        return True

    def drain(self) -> None:
        """Take what is in the pipe now; a writer that never stops is not waited for."""
        for _ in range(64):
            if not self._read():
                return

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._init.selector.unregister(self._fd)
        except KeyError:
            pass  # paused
        os.close(self._fd)
