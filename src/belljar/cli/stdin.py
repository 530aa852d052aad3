"""Standard input of `belljar run FILE`: read when the code asks for it, and never after its end.

Code that does not read leaves it to others (`while read line; do belljar run FILE; done`), and a
terminal or a pipe that stays silent keeps nobody waiting.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.files.script import Input

PATIENCE = 5.0  # seconds for a read that is under way to see that nobody wants it any more


@contextlib.contextmanager
def opened() -> Iterator[Input | None]:
    """What the code may read; None if this process has no standard input."""
    from belljar.files.script import Input

    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # it was closed, or is not a file
        yield None
        return
    ended, end = os.pipe()
    reading = threading.Lock()

    def read(size: int) -> bytes:
        with reading:
            # Not in read(2) itself: a thread that waits there cannot be told to stop.
            ready, _, _ = select.select([fd, ended], [], [])
            return b"" if ended in ready else os.read(fd, size)

    try:
        # A person who thinks about an answer does not use up the time of the code.
        yield Input(read, counts_time=not os.isatty(fd))
    finally:
        os.close(end)
        if reading.acquire(timeout=PATIENCE):
            os.close(ended)
