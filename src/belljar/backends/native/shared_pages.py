"""Memory of the zygote, arranged so that its forks share and copy as little of it as possible.

Forking and ending a process takes time for each of its pages: for every worker. Huge pages are few.
A fork that writes to one gets small pages instead, so memory that will be written to is kept
together. All of this is optional: a failure changes nothing else.
"""

import ctypes
import gc
import operator
import os
import re
import sys
from itertools import chain
from types import CodeType
from typing import List, Optional, Set

from ..linux import syscalls as sys_

RESERVED = 48 * 1024 * 1024  # bytes for what is imported; about what pandas and matplotlib take
LARGEST_BLOCK = 512  # of Python's own allocator; what is larger is malloc's, and together anyway
SMALLEST_ARENA = 256 * 1024
MAX_SPAN = 256 * 1024 * 1024  # larger ones are address space that a library has only reserved

# What CPython writes to the first two 32-bit words of an object that is never freed, by minor
# version (Include/object.h and Include/refcount.h). The second word keeps its other bits.
_IMMORTAL = {12: (2**32 - 1, 0), 13: (2**32 - 1, 0), 14: (3 << 30, 1 << 16)}
_LEAST_IMMORTAL = 2**31  # Py_DECREF leaves the count alone from here on
_ADDRESSES = 2**47  # bytes of a process's address space
_CODE_PARTS = operator.attrgetter("co_consts", "co_name", "co_qualname")  # those that are counted


def settle(*, thoroughly: bool) -> object:
    """Before the first fork. Keep what it returns for ever. `thoroughly` takes some time, for
    processes that fork often."""
    gc.collect()
    if thoroughly:
        make_immortal()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    # The second time fills what the first has used itself, and given back.
    return [fill_holes(), fill_holes()] if thoroughly else None


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


def make_immortal() -> int:
    """Let no fork write the reference counts of the objects there are: every use of an object
    would copy its page. Returns their number; 0 if this Python has no immortal objects, or is not
    as expected.

    Call it before `gc.freeze()`, which hides objects from the walk."""
    words = _open_memory()
    if words is None:
        return 0
    count, flag = _IMMORTAL[sys.version_info[1]]
    found = gc.get_objects()  # a list holds what is written to, so none of it was freed
    spared = _find_constants(found) if flag else set()
    made = 0
    while found:
        new = []
        for each in found:
            at = id(each) >> 2
            if words[at] < _LEAST_IMMORTAL and id(each) not in spared:
                words[at] = count
                if flag:
                    words[at + 1] |= flag
                new.append(each)
        made += len(new)
        found = gc.get_referents(*new)
        # The collector does not look into code.
        found += chain.from_iterable(_CODE_PARTS(each) for each in new if type(each) is CodeType)
    return made


def _find_constants(objects: List[object]) -> Set[int]:
    """Addresses of what code loads as constants. 3.14 has marked the instructions that load one
    which may be freed: they go on counting, so that its count could overflow."""
    found: Set[int] = set()
    codes = [each for each in gc.get_referents(*objects) if type(each) is CodeType]
    for code in codes:  # grows meanwhile
        new = [each for each in code.co_consts if id(each) not in found]
        found.update(map(id, new))
        codes += [each for each in new if type(each) is CodeType]
    return found


def _open_memory() -> Optional[memoryview]:
    """This process's memory in words of 32 bits; None unless reference counts are found to be as
    `_IMMORTAL` says."""
    version = sys.version_info
    if sys.implementation.name != "cpython" or version[0] != 3 or version[1] not in _IMMORTAL:
        return None
    # Debug builds check counts, and those without a global lock count in another way.
    if sys.abiflags or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    memory = (ctypes.c_char * _ADDRESSES).from_address(0)
    words = memoryview(memory).cast("B").cast("I")
    return words if _counts_are_known(words) else None


def _counts_are_known(words: memoryview) -> bool:
    count, flag = _IMMORTAL[sys.version_info[1]]
    for known in (None, True, Ellipsis, NotImplemented):
        at = id(known) >> 2
        if words[at] < _LEAST_IMMORTAL or words[at + 1] & flag != flag:
            return False
    probe = object()
    at = id(probe) >> 2
    before = list(words[at : at + 2])
    more = [probe] * 5
    if before != [1, 0] or list(words[at : at + 2]) != [6, 0]:
        return False
    words[at], words[at + 1] = count, flag
    more.append(probe)
    del more
    return list(words[at : at + 2]) == [count, flag]


def take_huge_pages() -> None:
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        span, access, _, _, _, *name = line.split()
        first, last = (int(address, 16) for address in span.split("-"))
        if access == "rw-p" and name in ([], ["[heap]"]) and last - first <= MAX_SPAN:
            sys_.madvise_collapse(first, last)
