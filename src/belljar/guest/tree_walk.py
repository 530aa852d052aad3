"""The way down into a tree that somebody hostile has made, which may be thousands deep."""

import errno
import os
from collections import deque
from typing import Deque, List, Tuple, Union

MAX_OPEN = 64  # descriptors
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Descent:
    """Only the last part of the way is held open. What is above that is found again by "..",
    and must be where we came from: somebody may have moved a directory meanwhile."""

    def __init__(self, top: int) -> None:
        self._open: Deque[int] = deque()
        self._way: List[Tuple[int, int]] = []
        self.enter(".", top)

    @property
    def here(self) -> int:
        return self._open[-1]

    def enter(self, name: Union[str, bytes], below: int = -1) -> None:
        fd = os.open(name, _DIRECTORY, dir_fd=self.here if below < 0 else below)
        self._open.append(fd)
        self._way.append(_identity(fd))
        if len(self._open) > MAX_OPEN:
            os.close(self._open.popleft())

    def leave(self) -> int:
        """Go up. The descriptor of where we were, which is the caller's from now on."""
        if len(self._open) == 1:
            above = os.open("..", _DIRECTORY, dir_fd=self.here)
            self._open.appendleft(above)
            if _identity(above) != self._way[-2]:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self._way.pop()
        return self._open.pop()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


def _identity(fd: int) -> "Tuple[int, int]":
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
