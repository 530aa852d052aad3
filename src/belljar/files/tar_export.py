"""A tree of a sandbox as a tar archive, as a stream.

This host writes the tar format; the guest gets the same requests as for `download`. Neither side
holds more than a part of a file in memory.
"""

from __future__ import annotations

import errno
import posixpath
import tarfile
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Self

from belljar.backends.linux.safe_dir import MAX_TIME, Found
from belljar.errors import file_error
from belljar.files import transfer, tree_protocol
from belljar.files.transfer import MAX_SIZE_HINT, too_large
from belljar.files.tree_protocol import ATTEMPTS, PART, ROWS, FilePart, FileReader

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles

MAX_MEMBERS = 50_000
SECOND = 10**9  # ns

Wanted = list[tuple[str, int, int]]  # path, offset, size
# Gives bytes of the archive, and asks for parts of files.
Steps = Generator[bytes | Wanted, list[FilePart], None]


class AsyncArchive:
    """The bytes of a tar archive, read from the sandbox while they are iterated."""

    def __init__(
        self, reader: FileReader, entries: dict[str, Found], most: int, left_out: tuple[str, ...]
    ) -> None:
        self.left_out = left_out  # sentences about what it does not have
        self._reader = reader
        self._steps = write_tar(reader.root, entries, most)
        self._asked: Wanted | None = None  # what a cancelled task did not get

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            step = self._asked or next(self._steps)
            while isinstance(step, list):
                self._asked = step
                parts = await self._reader.gather(step)
                self._asked = None
                step = self._steps.send(parts)
        except StopIteration:
            raise StopAsyncIteration from None
        return step

    async def aclose(self) -> None:
        """Read no more. May be called twice."""
        self._steps.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


async def export_tar(files: AsyncFiles, root: str, most: int) -> AsyncArchive:
    """Look at the whole tree first; its files are read later."""
    census = await tree_protocol.scan_tree(files, root, most=MAX_MEMBERS)
    if census.unseen and len(census.entries) == MAX_MEMBERS:
        raise file_error(errno.E2BIG, root, f"more than {MAX_MEMBERS} files: {root!r}")
    entries = dict(transfer.select_carried(census.entries, census.left_out))
    total = sum(entry.size for entry in entries.values() if entry.kind == "file")
    if total > most:
        raise too_large(root, total, most, MAX_SIZE_HINT)

    async def unused(parts: list[FilePart]) -> None:
        raise NotImplementedError

    reader = FileReader(files, root, most, unused)
    return AsyncArchive(reader, entries, most, tuple(census.left_out.sentences()))


def write_tar(root: str, entries: dict[str, Found], most: int) -> Steps:
    """Directories, then files, then links: so that no program writes through a link that it has
    unpacked."""
    yield from _write_empty(entries, "dir")
    room = most
    sizes = {path: entry.size for path, entry in entries.items() if entry.kind == "file"}
    for batch in _make_batches(sizes):
        parts = yield [(path, 0, min(size, PART)) for path, size in batch]
        for part in parts:
            step = _write_whole(part)
            if step is not None:
                room -= len(part.data)
                yield step
            elif part.error != errno.ENOENT:  # else it was removed meanwhile
                room -= yield from _write_parts(root, part.path, room)
            if room < 0:
                raise too_large(root, None, most, MAX_SIZE_HINT)
    yield from _write_empty(entries, "symlink")
    yield bytes(2 * tarfile.BLOCKSIZE)


def _write_empty(entries: dict[str, Found], kind: str) -> Iterator[bytes]:
    """Headers without content, several at once."""
    ready = bytearray()
    for path, entry in entries.items():
        if entry.kind == kind:
            ready += _write_header(path, entry)
            if len(ready) > PART:
                yield bytes(ready)
                ready.clear()
    if ready:
        yield bytes(ready)


def _make_batches(sizes: dict[str, int]) -> Iterator[list[tuple[str, int]]]:
    """A request's worth of files each."""
    batch: list[tuple[str, int]] = []
    room = PART
    for path, size in sizes.items():
        if batch and (size > room or len(batch) >= ROWS):
            yield batch
            batch, room = [], PART
        batch.append((path, size))
        room -= size
    if batch:
        yield batch


def _write_whole(part: FilePart) -> bytes | None:
    """A file that came in one part; None if it did not, or is being written to."""
    found = part.found
    if part.error or found is None or not part.steady or len(part.data) != found.size:
        return None
    return b"".join((_write_header(part.path, found), part.data, _pad(found.size)))


def _write_parts(root: str, path: str, most: int) -> Generator[bytes | Wanted, list[FilePart], int]:
    """One file by itself; return its size. It must not change while it is read: the header with
    the size goes first."""
    full = posixpath.join(root, path)
    busy = file_error(errno.EBUSY, full, f"the file changes while it is read: {full!r}")
    for _ in range(ATTEMPTS):
        (part,) = yield [(path, 0, PART)]
        if part.error or part.found is None:
            raise file_error(part.error or errno.EIO, full)
        if (step := _write_whole(part)) is not None:
            yield step
            return part.found.size
        if part.found.size > PART and len(part.data) == PART:
            break
    else:
        raise busy
    first, offset = part.found, PART
    if first.size > most:
        raise too_large(full, first.size, most, MAX_SIZE_HINT)
    yield _write_header(path, first) + part.data
    while offset < first.size:
        size = min(PART, first.size - offset)
        (part,) = yield [(path, offset, size)]
        if part.error or part.found != first or not part.steady or len(part.data) != size:
            raise busy
        offset += size
        yield bytes(part.data)
    yield _pad(first.size)
    return first.size


def _write_header(path: str, found: Found) -> bytes:
    """Nothing of the guest's modes but whether a file can be run, as for a download."""
    member = tarfile.TarInfo(path)
    member.mtime = min(max(found.mtime, 0), MAX_TIME) // SECOND
    member.mode = 0o755 if found.executable or found.kind == "dir" else 0o644
    if found.kind == "dir":
        member.type = tarfile.DIRTYPE
    elif found.kind == "symlink":
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, found.target, 0o777
    else:
        member.size = found.size
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _pad(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
