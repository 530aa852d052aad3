"""The text of cells, for tracebacks and `inspect`: where Python looks for it, but not all of it."""

import io
import linecache
import types
from collections import deque
from typing import Any, Deque

LASTING = 1000  # cells that made functions or classes, whose text is asked for later too
PASSING = 50  # cells that made none: after them nothing leads there but a kept exception
MAX_TEXT = 16 * 1024 * 1024  # characters of each kind


class Sources:
    def __init__(self) -> None:
        self._lasting = _Shelf(LASTING)
        self._passing = _Shelf(PASSING)

    def add(self, name: str, text: str) -> None:
        """Before the cell is compiled."""
        # As linecache itself would keep them: every line ends, and None keeps the entry for good.
        lines = [line.rstrip("\n") + "\n" for line in io.StringIO(text, None)]
        if name in linecache.cache:  # a file that is run once more
            self._lasting.remove(name)
            self._passing.remove(name)
        linecache.cache[name] = (len(text), None, lines, name)
        self._passing.add(name, len(text))

    def keep(self, name: str, code: types.CodeType) -> None:
        """Of a cell that is about to run: longer, if it makes what runs later."""
        if any(type(const) is types.CodeType for const in code.co_consts):
            self._lasting.add(*self._passing.take_last())


class _Shelf:
    def __init__(self, most: int) -> None:
        self._most = most
        self._names: Deque[Any] = deque()  # and sizes
        self._size = 0

    def add(self, name: str, size: int) -> None:
        self._names.append((name, size))
        self._size += size
        while len(self._names) > self._most or (self._size > MAX_TEXT and len(self._names) > 1):
            old, freed = self._names.popleft()
            self._size -= freed
            linecache.cache.pop(old, None)

    def remove(self, name: str) -> None:
        self._size -= sum(size for each, size in self._names if each == name)
        self._names = deque(item for item in self._names if item[0] != name)

    def take_last(self) -> Any:
        name, size = self._names.pop()
        self._size -= size
        return name, size
