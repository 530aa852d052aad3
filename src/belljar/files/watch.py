"""What happens to the files of a directory: an iterator of events.

The guest lists the directory, several times a second, and this host compares the lists: nothing of
a watch lives in the guest. inotify would need a system call that guests do not have, and does not
exist for every file system. A list is bounded, and an idle watch costs one small request each time.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import anyio

from belljar.backends.event_loop import move_to_loop
from belljar.backends.linux.safe_dir import Kind, is_file_name
from belljar.errors import GuestLost, ProtocolError, SandboxClosed
from belljar.files.tree_protocol import KINDS, parse_number
from belljar.protocol import messages

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles

INTERVAL = 0.2  # seconds between two lists
SHARE = 20  # a list is made at most once in so many times as long as it took
_PERMISSIONS = 0o7777
_NUMBERS = 5  # size, mtime, ctime, inode, mode

EventType = Literal["created", "written", "removed", "renamed", "chmod"]


@dataclass(frozen=True, kw_only=True)
class FileEvent:
    """One thing that happened to a file or directory."""

    type: EventType  # "chmod": its mode, its time or another attribute, but not its content
    path: str  # in the sandbox
    name: str  # the path, relative to the directory that is watched
    is_dir: bool
    old_path: str | None = None  # where a renamed one was before


class Entry(NamedTuple):
    """A file at the time of one list."""

    kind: Kind
    size: int
    mtime: int  # ns
    ctime: int
    inode: int
    mode: int

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for a file that was only renamed. A new file may get the inode of a removed one,
        but not its time too."""
        size = 0 if self.kind == "dir" else self.size
        return self.kind, self.inode, size, self.mtime


Entries = Mapping[str, Entry]


class AsyncWatch:
    """Events of one directory, as they are seen. `aclose()` ends it; so does the sandbox's end."""

    def __init__(self, files: AsyncFiles, path: str, *, recursive: bool) -> None:
        self._files, self.path, self._recursive = files, path, recursive
        self._data = b""  # the last list, as the guest sent it
        self._entries: Entries = {}
        self._events: deque[FileEvent] = deque()
        self._took = 0.0
        self._closed = False

    async def begin(self) -> None:
        """Make the first list: changes count from here on. Starts the guest if need be."""
        self._data = await self._list()
        self._entries = parse_entries(self._data)

    async def aclose(self) -> None:
        """End it. May be called twice, and while another task waits for the next event."""
        self._closed = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        while not self._events:
            await move_to_loop()
            await anyio.sleep(max(INTERVAL, SHARE * self._took))
            if self._closed:
                raise StopAsyncIteration
            try:
                data = await self._list(watching=True)
            except (SandboxClosed, GuestLost):  # there is nothing more to watch
                self._closed = True
                raise StopAsyncIteration from None
            if data != self._data:
                before, self._data, self._entries = self._entries, data, parse_entries(data)
                self._events.extend(compare_entries(self.path, before, self._entries))
        if self._closed:
            raise StopAsyncIteration
        return self._events.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def _list(self, *, watching: bool = False) -> bytes:
        header = {"op": "watch", "path": self.path, "recursive": self._recursive}
        began = time.perf_counter()
        _, data = await self._files.call(self.path, header, watching=watching)
        self._took = min(time.perf_counter() - began, 1.0)
        return data


def parse_entries(data: bytes) -> Entries:
    """Parse a list that a hostile guest may have made."""
    try:
        rows = json.loads(data) if len(data) <= messages.MAX_PART else None
        if not isinstance(rows, list) or len(rows) > messages.MAX_WATCHED:
            raise ProtocolError("the guest sent a listing that is too long")
        return {_parse_path(path): _parse_entry(entry) for path, entry in rows}
    except (ValueError, RecursionError, TypeError):
        raise ProtocolError("the guest sent a malformed listing") from None


def _parse_path(path: object) -> str:
    if not isinstance(path, str) or not all(is_file_name(part) for part in path.split("/")):
        raise ProtocolError("the guest sent an invalid file name")
    return path


def _parse_entry(entry: object) -> Entry:
    if not isinstance(entry, list) or len(entry) != 1 + _NUMBERS or entry[0] not in KINDS:
        raise ProtocolError("the guest sent a malformed listing")
    return Entry(entry[0], *(parse_number(number, low=-(2**63)) for number in entry[1:]))


def compare_entries(root: str, before: Entries, after: Entries) -> Iterator[FileEvent]:
    """The events that lead from one list to the next: what is removed first, then what is new,
    directories before what they contain."""
    fresh = [path for path, entry in after.items() if _is_new(before.get(path), entry)]
    gone = [path for path, entry in before.items() if _is_new(after.get(path), entry)]
    moved = _find_renamed(before, after, gone, fresh)
    left = set(moved.values())

    def event(type: EventType, path: str, entry: Entry, old: str | None = None) -> FileEvent:
        return FileEvent(
            type=type,
            path=posixpath.join(root, path),
            name=path,
            is_dir=entry.kind == "dir",
            old_path=None if old is None else posixpath.join(root, old),
        )

    for path in sorted(gone, reverse=True):
        if path not in left and path not in after:
            yield event("removed", path, before[path])
    for path in sorted(after):
        entry, old = after[path], moved.get(path)
        if old is not None:
            above, inner = posixpath.split(path)
            if moved.get(above) is None or posixpath.join(moved[above], inner) != old:
                yield event("renamed", path, entry, old)  # else its directory was
        elif path not in before:
            yield event("created", path, entry)
        elif entry.kind != before[path].kind:
            yield event("removed", path, before[path])
            yield event("created", path, entry)
        elif (type := _describe_change(before[path], entry)) is not None:
            yield event(type, path, entry)


def _is_new(before: Entry | None, now: Entry) -> bool:
    return before is None or before.inode != now.inode or before.kind != now.kind


def _find_renamed(
    before: Entries, after: Entries, gone: list[str], fresh: list[str]
) -> dict[str, str]:
    """New path -> old path."""
    sources = {before[path].identity: path for path in gone}
    # Of several names of one file, at most one is the old one under its new name.
    targets = {sources.get(after[path].identity): path for path in fresh}
    return {new: old for old, new in targets.items() if old is not None}


def _describe_change(before: Entry, now: Entry) -> EventType | None:
    if before.kind == "dir":  # its content has events of its own
        return "chmod" if (before.mode ^ now.mode) & _PERMISSIONS else None
    written = (before.inode, before.size, before.mtime) != (now.inode, now.size, now.mtime)
    if written:
        return "written"
    return "chmod" if (before.ctime, before.mode) != (now.ctime, now.mode) else None
