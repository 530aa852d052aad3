"""The host's requests about trees of a guest: list entries, fetch content, push content.

A hostile guest may have written every answer: names are checked before use, and the host counts
bytes and entries itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from belljar.backends.linux import safe_dir
from belljar.backends.linux.safe_dir import Found, is_file_name
from belljar.errors import ProtocolError, SandboxError, file_error
from belljar.protocol import messages

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles

PART = messages.MAX_PART
ROWS = 250  # in one request
ATTEMPTS = 3  # to read a file that changes meanwhile
SHOWN = 3  # names in one sentence
KINDS = ("file", "dir", "symlink", "other")
_MAX = 2**63
_SCRATCH = ("/tmp", "/var/tmp", "/home/user", "/dev/shm")  # within Limits.tmp
_MAX_ERRNO = 4095
_MALFORMED = "the guest sent a malformed answer"
# scan: number, name, kind, mode, size, mtime, ctime, inode (and the target of a link)
_ROW = 8
_NUMBERS = 5  # mode, size, mtime, ctime, inode


@dataclass
class LeftOut:
    """What was not carried, and why: a few sentences for any number of files."""

    reasons: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)  # reasons that hold for uncounted files too
    lost: bool = False  # an error or a limit prevented some of it

    def add(self, path: str, reason: str, *, by_kind: bool = False) -> None:
        """`by_kind`: such things are never carried, wherever they are."""
        self.lost = self.lost or not by_kind
        shown = self.reasons.setdefault(reason, [])
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if len(shown) < SHOWN:
            shown.append(repr(path[:200]))

    def add_uncounted(self, reason: str) -> None:
        """There are more files that were not looked at, so their number is unknown."""
        self.reasons.setdefault(reason, [])
        self.uncounted.add(reason)

    def sentences(self) -> list[str]:
        said = []
        for reason, shown in self.reasons.items():
            names = ", ".join(shown)
            if reason in self.uncounted:
                names += f"{' and ' * bool(shown)}others, which were not counted"
            elif more := self.counts[reason] - len(shown):
                names += f" and {more} more"
            said.append(f"not carried, because it {reason}: {names}")
        return said


@dataclass
class Census:
    """The entries of a tree, parents first."""

    entries: dict[str, Found] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)  # directories with entries that were not listed
    left_out: LeftOut = field(default_factory=LeftOut)
    mapped: set[int] = field(default_factory=set)  # inodes that may change without a trace

    def covers(self, path: str) -> bool:
        """True if the path would be in `entries` if it existed."""
        if not self.unseen:
            return True
        parts = path.split("/")
        return not any("/".join(parts[:depth]) in self.unseen for depth in range(len(parts)))


async def scan_tree(files: AsyncFiles, root: str, *, most: int, unlock: bool = False) -> Census:
    """List everything below `root`, at most `most` entries: those nearest to the root.

    `unlock`: also directories whose mode forbids their owner to list them.
    """
    census = Census()
    pending, after, rows = [""], "", 0
    while pending:
        # Rows that are left out count too: otherwise a listing could go on for ever.
        if len(census.entries) > most or rows > most + messages.MAX_NAMES:
            census.unseen.update(pending)
            census.left_out.add_uncounted(_too_many(most))
            break
        asked = pending[:ROWS]
        header = {"op": "scan", "path": root, "after": after, "unlock": unlock}
        answer, data = await files.call(root, header, json.dumps(asked).encode("ascii"))
        done, last = answer.get("done"), answer.get("after")
        if type(done) is not int or not 0 <= done <= len(asked) or not isinstance(last, str):
            raise ProtocolError("the guest sent a malformed listing")
        if done == 0 and last <= after:
            raise ProtocolError("the guest sent a listing that does not advance")
        count, inner = _add_page(census, asked, data)
        pending, after = pending[done:] + inner, last
        rows += count if done else max(count, messages.SCAN_PAGE)  # an unfinished page is full
    if len(census.entries) > most:
        _drop_beyond(census, most)
    return census


async def list_mapped(files: AsyncFiles, root: str) -> set[int]:
    """The inodes of files that processes have mapped for writing."""
    if (found := await files._find_mapped()) is not None:
        return found
    answer, _ = await files.call(root, {"op": "mapped", "path": root})
    inodes = answer.get("inodes")
    if not isinstance(inodes, list) or len(inodes) > messages.MAX_ROWS:
        raise ProtocolError(_MALFORMED)
    return {parse_number(inode) for inode in inodes}


def _drop_beyond(census: Census, most: int) -> None:
    """Keep the first `most` entries; directories that lose some become `unseen`."""
    for path in list(census.entries)[most:]:
        del census.entries[path]
        census.unseen.add(path.rpartition("/")[0])
        census.left_out.add(path, _too_many(most))


def _too_many(most: int) -> str:
    return f"is more than {most} files"


def _add_page(census: Census, asked: Sequence[str], data: bytes) -> tuple[int, list[str]]:
    """Add one page to the census; return its length and the directories in it."""
    try:
        page = json.loads(data)
        entries, failed = page["entries"], page["failed"]
        if len(entries) > messages.SCAN_PAGE + ROWS or len(failed) > ROWS:
            raise ProtocolError("the guest sent a listing that is too long")
        for number, code in failed:
            census.unseen.add(asked[parse_number(number)])
            if code != errno.ENOENT:
                census.left_out.add(asked[number] or "/", "cannot be read")
        inner = []
        for row in entries:
            path = _add_row(census, asked, row)
            if path is not None and census.entries[path].kind == "dir":
                inner.append(path)
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        raise ProtocolError("the guest sent a malformed listing") from None
    return len(entries), inner


def _add_row(census: Census, asked: Sequence[str], row: list[Any]) -> str | None:
    directory, name, kind = asked[parse_number(row[0])], row[1], row[2]
    if not is_file_name(name):
        raise ProtocolError("the guest sent an invalid file name")
    if kind not in KINDS or len(row) != _ROW + (kind == "symlink"):
        raise ProtocolError("the guest sent a malformed listing")
    path = f"{directory}/{name}" if directory else name
    target = row[_ROW] if kind == "symlink" else ""
    if not isinstance(target, str) or "\0" in target:
        raise ProtocolError("the guest sent a malformed link")
    try:
        os.fsencode(target)
        fits = safe_dir.fits(path) and len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        census.left_out.add(path, "has a name that this system cannot write")
        return None
    if not fits or name.startswith(safe_dir.PARTIAL):
        reason = "has a name that Belljar reserves" if fits else "is nested too deep"
        census.left_out.add(path, reason)
        return None
    if path in census.entries:
        return None  # listed twice
    census.entries[path] = parse_found(kind, row[3:_ROW], target)
    return path


def parse_found(kind: Any, numbers: Sequence[object], target: str = "") -> Found:
    """The description of a file, from numbers that the guest sent."""
    if len(numbers) != _NUMBERS:
        raise ProtocolError(_MALFORMED)
    mode, size, mtime, ctime, inode = (parse_number(number, low=-_MAX) for number in numbers)
    if size < 0:
        raise ProtocolError("the guest sent a negative size")
    return Found(kind, size, bool(mode & 0o100), mtime, ctime, inode, target)


def parse_number(value: object, low: int = 0) -> int:
    if type(value) is not int or not low <= value < _MAX:
        raise ProtocolError("the guest sent a malformed number")
    return value


def parse_errno(value: object) -> int:
    if type(value) is not int or not 0 < value <= _MAX_ERRNO:
        raise ProtocolError("the guest sent a malformed error number")
    return value


# -- fetch content ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some bytes of a file, or an error. Offset 0 starts the file, or starts it again."""

    path: str
    offset: int = 0
    data: bytes | memoryview = b""
    found: Found | None = None  # the file at the time of this read
    last: bool = False
    steady: bool = True  # False with the last part: the file changed while it was read
    settled: bool = True  # a later change will show in its time stamps
    error: int = 0


Sink = Callable[[list[FilePart]], Awaitable[None]]


@dataclass(slots=True)
class FileReader:
    """Gives the content of files to `sink`. One request fetches several small files. The final part
    of each file is `last` or has an `error`."""

    files: AsyncFiles
    root: str
    room: int  # bytes that may still come
    sink: Sink
    follow: bool = False
    unlock: bool = False

    async def fetch(self, wanted: Iterable[tuple[str, int]]) -> None:
        """`wanted` has each path with its expected size."""
        batch: list[tuple[str, int]] = []
        room = PART
        for path, size in wanted:
            if batch and (size > room or len(batch) >= ROWS):
                await self._fetch_batch(batch)
                batch, room = [], PART
            batch.append((path, size))
            room -= size
        if batch:
            await self._fetch_batch(batch)

    def _take_room(self, size: int) -> bool:
        if size > self.room:
            return False
        self.room -= size
        return True

    async def _fetch_batch(self, batch: list[tuple[str, int]]) -> None:
        alone = [path for path, size in batch if size > PART]
        if not alone:
            whole = []
            for part in await self.gather([(path, 0, size) for path, size in batch]):
                complete = part.found is not None and len(part.data) == part.found.size
                if part.error:
                    whole.append(part)
                elif not complete or not part.steady:
                    alone.append(part.path)  # it is being written to: read it by itself
                elif self._take_room(len(part.data)):
                    whole.append(part)
                else:
                    whole.append(FilePart(part.path, error=errno.EFBIG))
            await self.sink(whole)
        for path in alone:
            for attempt in range(ATTEMPTS):
                if await self._fetch_one(path, final=attempt + 1 == ATTEMPTS):
                    break

    async def _fetch_one(self, path: str, *, final: bool) -> bool:
        """Part by part, up to its first size. False: it changed meanwhile, so read it again."""
        first: Found | None = None
        offset, steady = 0, True
        while True:
            size = PART if first is None else min(PART, first.size - offset)
            (part,) = await self.gather([(path, offset, size)])
            if first is None:
                first = part.found
            if part.error or part.found is None or first is None:
                await self.sink([FilePart(path, error=part.error or errno.EIO)])
                return True
            if offset == 0 and not self._take_room(first.size):
                await self.sink([FilePart(path, error=errno.EFBIG)])
                return True
            data = part.data[: first.size - offset]
            steady = steady and part.steady and part.found == first
            ended = not data or offset + len(data) >= first.size
            last = ended and (steady or final)
            await self.sink([FilePart(path, offset, data, part.found, last, steady, part.settled)])
            offset += len(data)
            if ended:
                # Give back what a file that shrank did not need, and what will be read again.
                self.room += first.size - offset if last else first.size
                return last

    async def gather(self, wanted: list[tuple[str, int, int]]) -> list[FilePart]:
        header = {"op": "gather", "path": self.root, "follow": self.follow, "unlock": self.unlock}
        answer, data = await self.files.call(self.root, header, json.dumps(wanted).encode("ascii"))
        rows = answer.get("rows")
        if not isinstance(rows, list) or len(rows) != len(wanted):
            raise ProtocolError(_MALFORMED)
        view, parts = memoryview(data), []
        for (path, offset, size), row in zip(wanted, rows, strict=True):
            if not isinstance(row, list) or len(row) not in (1, 9):
                raise ProtocolError(_MALFORMED)
            if len(row) == 1:
                parts.append(FilePart(path, error=parse_errno(row[0])))
                continue
            length = parse_number(row[1])
            if length > min(size, len(view)):
                raise ProtocolError("the guest sent more of a file than was asked for")
            found = parse_found("file", row[4:])
            parts.append(
                FilePart(path, offset, view[:length], found, True, row[2] is True, row[3] is True)
            )
            view = view[length:]
        return parts


# -- push content -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """One row of the guest's `scatter` request."""

    verb: str
    path: str
    arguments: tuple[object, ...] = ()
    data: bytes = b""


async def push_orders(
    files: AsyncFiles, root: str, orders: Sequence[Order], partial: str = ""
) -> list[Found | None]:
    """Let the guest carry out orders; return the files that are finished or begun.

    `partial` is the name under which it keeps a file until that is whole. The orders after one that
    failed are carried out too; the first error is raised.
    """
    text = json.dumps([[each.verb, each.path, *each.arguments] for each in orders]).encode("ascii")
    payload = b"".join((messages.LENGTH.pack(len(text)), text, *(each.data for each in orders)))
    header = {"op": "scatter", "path": root, "partial": partial}
    answer, _ = await files.call(root, header, payload)
    rows = answer.get("rows")
    if not isinstance(rows, list) or len(rows) != len(orders):
        raise ProtocolError(_MALFORMED)
    made: list[Found | None] = []
    for order, row in zip(orders, rows, strict=True):
        if not isinstance(row, list) or not row:
            raise ProtocolError(_MALFORMED)
        if row[0] != 0:
            code = parse_errno(row[0])
            hint = find_hint(code, answer, files.root)
            raise file_error(code, f"{root}/{order.path}", hint=hint)
        made.append(parse_found("file", row[2:]) if order.verb == "file" else None)
    return made


def find_hint(code: int, answer: dict[str, Any], workdir: str) -> str | None:
    """What to do if a file system is full. The guest names the mount point."""
    mount = answer.get("mount")
    if code not in (errno.ENOSPC, errno.EDQUOT) or not isinstance(mount, str):
        return None
    limit = "workspace" if mount == workdir else "tmp" if mount in _SCRATCH else ""
    more = f"allow more with Limits({limit}=...)" if limit else f"free space in {mount!r:.200}"
    return f"{more}; while a file is replaced, the old and the new one must both fit"


async def discard(files: AsyncFiles, root: str, partial: str) -> None:
    """Remove the file that the guest has in part. It has done so itself if the error is its own."""
    with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
        await files.call(root, {"op": "discard", "path": root, "partial": partial}, watching=True)
