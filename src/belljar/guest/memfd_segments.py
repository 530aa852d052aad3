"""Memory without a name, in volumes: each is sealed when it is full, and freed when it was read.

Sealed, because not every kernel keeps the code from opening a descriptor of init's (gVisor does
not): what it can read there is its own, but it shall not change what it was.
"""

import errno
import fcntl
import io
import os
from typing import Callable, List, Optional

from ..protocol import blobs

MIN_VOLUME = 16 * 1024 * 1024  # bytes
PIECE = 1024 * 1024  # bytes at most that are written at once; none is in two volumes


def memory(name: str) -> int:
    """Closed in whatever init starts."""
    create = getattr(os, "memfd_create", None)
    if create is None:
        raise OSError(errno.ENOSYS, "this Python has no memfd_create")
    return int(create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, blobs.SEALS | fcntl.F_SEAL_SEAL)


class Writer:
    """Into the given volumes; then into those that `more` gives, or all the rest into the last."""

    def __init__(
        self, volumes: List[int], size: int, more: "Optional[Callable[[], int]]" = None
    ) -> None:
        self._volumes = volumes
        self._size = size
        self._more = more
        self._next = 0
        self._file: Optional[io.BufferedWriter] = None
        self._written = 0

    def write(self, data: bytes) -> None:
        if self._file is None or self._written + len(data) > self._size:
            self._turn()
        assert self._file is not None
        self._file.write(data)
        self._written += len(data)

    def _turn(self) -> None:
        if self._next == len(self._volumes):
            if self._more is None:
                return
            self._volumes.append(self._more())
        self.close()
        raw = io.FileIO(self._volumes[self._next], "wb", closefd=False)
        self._file = io.BufferedWriter(raw, PIECE)
        self._written = 0
        self._next += 1

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            seal(self._volumes[self._next - 1])


class Reader:
    """From the last piece to the first. To `consume` is to close a volume that has been read, and
    to take it from the list."""

    def __init__(self, volumes: List[int], consume: bool) -> None:
        self._volumes = volumes
        self._consume = consume
        self._left = 0  # bytes of the volume that have not been taken
        self._next = len(volumes)

    def take(self, size: int) -> bytes:
        while size and not self._left:
            if self._consume and self._next < len(self._volumes):
                os.close(self._volumes.pop())
            if not self._next:
                raise OSError(errno.EIO, "the archive is not whole")
            self._next -= 1
            self._left = os.fstat(self._volumes[self._next]).st_size
        self._left -= size
        if self._left < 0:
            raise OSError(errno.EIO, "the archive is not whole")
        return os.pread(self._volumes[self._next], size, self._left)
