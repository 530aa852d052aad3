"""What is in files without their holes: a file may claim to be larger than any memory."""

import errno
import os
from typing import Iterator, Tuple

PIECE = 1024 * 1024  # bytes read at once
PAGE = 4096
MAX_LOOK = 16 * 1024 * 1024 * 1024  # bytes that are searched, where nobody tells what is a hole
_ZEROS = bytes(PAGE)


class Finder:
    def __init__(self) -> None:
        self._look = MAX_LOOK

    def pieces(self, source: int, size: int) -> "Iterator[Tuple[int, bytes]]":
        """Where there are data in a file, and the data."""
        position = 0
        while position < size:
            try:
                position = os.lseek(source, position, os.SEEK_DATA)
                end = min(os.lseek(source, position, os.SEEK_HOLE), size)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole is left
                if error.errno != errno.EINVAL:
                    raise
                yield from self._found_pieces(source, size)  # gVisor does not tell of holes
                return
            while position < end:
                data = os.pread(source, min(end - position, PIECE), position)
                if not data:
                    return  # it shrank
                yield position, data
                position += len(data)

    def _found_pieces(self, source: int, size: int) -> "Iterator[Tuple[int, bytes]]":
        self._look -= size
        if self._look < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        for position in range(0, size, PIECE):
            data = os.pread(source, min(size - position, PIECE), position)
            if not data:
                return  # it shrank
            for start, end in filled(data):
                yield position + start, data[start:end]


def filled(data: bytes) -> "Iterator[Tuple[int, int]]":
    """From where to where there are pages that are not all zeros."""
    if data == bytes(len(data)):
        return  # a large hole is passed in large steps
    begun = -1
    for page in range(0, len(data), PAGE):
        piece = data[page : page + PAGE]
        empty = piece == _ZEROS[: len(piece)]
        if empty and begun >= 0:
            yield begun, page
            begun = -1
        elif not empty and begun < 0:
            begun = page
    if begun >= 0:
        yield begun, len(data)
