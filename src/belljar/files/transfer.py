"""What carrying files into a sandbox and out of it has in common: what is carried, and how far."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from belljar.backends.linux.safe_dir import Found, stays_inside
from belljar.files.tree_protocol import LeftOut

MAX_FILES = 10_000
OnProgress = Callable[[int, int], object]  # bytes so far, bytes in all


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What was carried."""

    files: int
    size: int  # bytes
    left_out: tuple[str, ...]  # sentences about what cannot be carried, such as links that lead out


class Progress:
    def __init__(self, callback: OnProgress | None, total: int) -> None:
        self._callback = callback
        self.total = total
        self.done = 0

    async def add(self, size: int) -> None:
        self.done += size
        self.total = max(self.total, self.done)
        if self._callback is not None:
            made = self._callback(self.done, self.total)
            if inspect.isawaitable(made):
                awaitable: Awaitable[object] = made
                await awaitable


def carryable(found: dict[str, Found], left_out: LeftOut) -> Iterator[tuple[str, Found]]:
    """Files, directories, and links that stay inside; the rest is told of."""
    for path, entry in found.items():
        if entry.kind == "other":
            left_out.add(path, "is neither a file nor a directory", by_kind=True)
        elif entry.kind == "symlink" and not stays_inside(path, entry.target):
            left_out.add(path, "is a link that leads out", by_kind=True)
        else:
            yield path, entry
