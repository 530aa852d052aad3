"""What is in files without their holes: a file may claim to be larger than any memory."""

import errno
import os
from typing import Iterator, List, Tuple

from .memfd_segments import PIECE

PAGE = 4096
MAX_LOOK = 16 * 1024 * 1024 * 1024  # bytes that are searched, where nobody tells what is a hole
_ZEROS = bytes(PAGE)


class Finder:
    def __init__(self) -> None:
        self._look = MAX_LOOK

    def pieces(self, source: int, size: int) -> "Iterator[Tuple[int, bytes]]":
        """Where there are data in a file, and the data: from the end to the beginning, so that
        what has been taken can be cut off."""
        told = True
        try:
            extents = _extents(source, size)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            told, extents = False, [(0, size)]  # gVisor does not tell of holes
            self._look -= size
            if self._look < 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
        for start, end in reversed(extents):
            for position in reversed(range(start, end, PIECE)):
                data = os.pread(source, min(end - position, PIECE), position)
                for first, last in [(0, len(data))] if told else reversed(filled(data)):
                    yield position + first, data[first:last]


def _extents(source: int, size: int) -> "List[Tuple[int, int]]":
    found: List[Tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # only a hole is left
            raise
        position = min(os.lseek(source, start, os.SEEK_HOLE), size)
        found.append((start, position))
    return found


def filled(data: bytes) -> "List[Tuple[int, int]]":
    """From where to where there are pages that are not all zeros."""
    found: List[Tuple[int, int]] = []
    if data == bytes(len(data)):
        return found  # a large hole is passed in large steps
    for start in range(0, len(data), PAGE):
        piece = data[start : start + PAGE]
        if piece == _ZEROS[: len(piece)]:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + len(piece))
        else:
            found.append((start, start + len(piece)))
    return found
