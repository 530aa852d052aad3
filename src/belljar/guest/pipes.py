"""Two pipes in the place of a socket: how init talks to a host that is not on the same machine."""

import os
from typing import Any, List, Tuple


class Pipes:
    """As much of a socket as Inbox, Outbox and init use; descriptors cannot be handed over."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading = reading
        self.writing = writing

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self.reading, flag)
        os.set_blocking(self.writing, flag)

    def recvmsg(self, size: int, *unused: int) -> "Tuple[bytes, List[Any], int, None]":
        return os.read(self.reading, size), [], 0, None

    def send(self, data: "memoryview") -> int:
        return os.write(self.writing, data)

    def sendall(self, data: bytes) -> None:
        """While they still block."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.writing, view) :]
