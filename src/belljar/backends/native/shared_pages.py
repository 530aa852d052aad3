"""Memory of the zygote, arranged so that its forks share and copy as little of it as possible.

Forking and ending a process takes time for each of its pages: for every worker. Huge pages are few.
A fork that writes to one gets small pages instead, so memory that will be written to is kept
together. All of this is optional: a failure changes nothing else.
"""

import os
import re
import sys
from typing import List

from ..linux import syscalls as sys_

RESERVED = 48 * 1024 * 1024  # bytes for what is imported; about what pandas and matplotlib take
LARGEST_BLOCK = 512  # of Python's own allocator; what is larger is malloc's, and together anyway
SMALLEST_ARENA = 256 * 1024
MAX_SPAN = 256 * 1024 * 1024  # larger ones are address space that a library has only reserved


def reserve_arenas() -> List[object]:
    """Let the allocator's arenas lie side by side, before libraries are mapped between them: one
    object in each keeps it until it is used."""
    made: List[object] = [None] * (RESERVED // LARGEST_BLOCK)
    for index in range(len(made)):
        made[index] = _block(LARGEST_BLOCK)
    return made[:: SMALLEST_ARENA // LARGEST_BLOCK // 2]


def _block(size: int) -> object:
    """An object that takes one block of this size, of which the collector knows nothing."""
    if size <= sys.getsizeof(b""):
        return object() if size == sys.getsizeof(object()) else float(size)
    return bytes(size - sys.getsizeof(b""))


def fill_holes() -> List[List[object]]:
    """Fill what is free between the objects there are, so that guests make theirs elsewhere."""
    text = _allocator_statistics()
    # Rows of: class, size of a block, pools, blocks in use, blocks to be had.
    rows = [line.split() for line in text.splitlines() if line[:1] == " "]
    held = [
        [_block(int(row[1])) for _ in range(int(row[4]))]
        for row in rows
        if len(row) == 5 and all(map(str.isdigit, row))
    ]
    unused = re.search(r"^([0-9]+) unused pools \* ([0-9]+) bytes", text, re.M)
    if unused:
        pools, size = map(int, unused.groups())
        held.append([_block(LARGEST_BLOCK) for _ in range(pools * (size // LARGEST_BLOCK - 1))])
    return held


def _allocator_statistics() -> str:
    """The interpreter writes them to its standard error, and nowhere else."""
    paper, standard_error = os.memfd_create("statistics"), os.dup(2)
    try:
        os.dup2(paper, 2)
        sys._debugmallocstats()
        os.dup2(standard_error, 2)
        return os.pread(paper, os.fstat(paper).st_size, 0).decode("ascii", "replace")
    finally:
        os.close(paper)
        os.close(standard_error)


def take_huge_pages() -> None:
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        span, access, _, _, _, *name = line.split()
        first, last = (int(address, 16) for address in span.split("-"))
        if access == "rw-p" and name in ([], ["[heap]"]) and last - first <= MAX_SPAN:
            sys_.madvise_collapse(first, last)
