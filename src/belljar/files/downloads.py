"""Whole files and trees of a sandbox to this host, streamed.

Where they land is decided by what the caller wrote, and below it by `beneath`.
"""

from __future__ import annotations

import errno
import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.to_thread

from belljar.backends.linux.safe_dir import Beneath, Found, Incoming
from belljar.errors import FileError, file_error
from belljar.files import tree_protocol
from belljar.files.transfer import MAX_FILES, OnProgress, Progress, Transfer, carryable
from belljar.files.tree_protocol import Budget, Census, Part
from belljar.limits import format_size

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles


async def download(
    files: AsyncFiles, path: str, local: str, most: int, on_progress: OnProgress | None
) -> Transfer:
    info = await files.stat(path)
    is_dir = info.type == "dir"
    if info.type == "symlink":
        is_dir = await _leads_to_a_directory(files, path)
    try:
        if is_dir:
            census = await _survey(files, path, most)
            with Beneath(local, make=True) as sink:
                return await _download_tree(files, path, sink, most, census, on_progress)
        if local.endswith("/") or os.path.isdir(local):
            local = os.path.join(local, posixpath.basename(path))
        parent, name = os.path.split(local)
        with Beneath(parent or ".", make=bool(parent)) as sink:
            return await _download_file(files, path, sink, name, most, on_progress)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise file_error(
            error.errno or errno.EIO, local, f"cannot write {local!r}: {error.strerror}"
        ) from error


async def _leads_to_a_directory(files: AsyncFiles, path: str) -> bool:
    try:
        await files.call(path, {"op": "scan", "path": path}, b"[]")
    except NotADirectoryError:
        return False
    return True


async def _download_file(
    files: AsyncFiles,
    path: str,
    sink: Beneath,
    name: str,
    most: int,
    on_progress: OnProgress | None,
) -> Transfer:
    parent, base = posixpath.split(path)
    progress = Progress(on_progress, 0)
    intake = Intake(sink, {base: name})
    receiving = _Receiving(intake, parent, most, progress)
    try:
        # Its size is not known yet, so it is read as a large one.
        wanted = [(base, tree_protocol.PART + 1)]
        await tree_protocol.fetch(files, parent, wanted, Budget(most), receiving.take, follow=True)
    finally:
        intake.close()
    return Transfer(files=1, size=progress.done, left_out=())


async def _survey(files: AsyncFiles, path: str, most: int) -> Census:
    """What there is, before anything is made of it here."""
    census = await tree_protocol.scan(files, path, most=MAX_FILES)
    if census.unseen and len(census.entries) == MAX_FILES:
        raise file_error(
            errno.E2BIG, path, f"the directory holds more than {MAX_FILES} files: {path!r}"
        )
    total = sum(entry.size for entry in census.entries.values() if entry.kind == "file")
    if total > most:
        raise _too_large(path, total, most)
    return census


async def _download_tree(
    files: AsyncFiles,
    path: str,
    sink: Beneath,
    most: int,
    census: Census,
    on_progress: OnProgress | None,
) -> Transfer:
    left_out = census.left_out
    carried = dict(carryable(census.entries, left_out))
    wanted = [(name, entry.size) for name, entry in carried.items() if entry.kind == "file"]
    progress = Progress(on_progress, sum(size for _, size in wanted))
    await anyio.to_thread.run_sync(_make_others, sink, carried)
    intake = Intake(sink)
    receiving = _Receiving(intake, path, most, progress)
    try:
        await tree_protocol.fetch(files, path, wanted, Budget(most), receiving.take)
    finally:
        intake.close()
    return Transfer(files=intake.count, size=progress.done, left_out=tuple(left_out.sentences()))


def _make_others(sink: Beneath, carried: dict[str, Found]) -> None:
    for path, entry in carried.items():
        if entry.kind == "dir":
            sink.make_dir(path)
        elif entry.kind == "symlink":
            sink.make_symlink(path, entry.target)


@dataclass(frozen=True, slots=True)
class _Receiving:
    """Where the parts of one download go. The first error ends it."""

    intake: Intake
    root: str
    most: int
    progress: Progress

    async def take(self, parts: list[Part]) -> None:
        for part in parts:
            full = posixpath.join(self.root, part.path)
            if part.error == errno.EFBIG:
                raise _too_large(full, None, self.most)
            if part.error:
                raise file_error(part.error, full)
            if part.last and not part.steady:
                raise file_error(errno.EBUSY, full, f"it changes while it is read: {full!r}")
        undone = await anyio.to_thread.run_sync(self.intake.take, parts)
        await self.progress.add(sum(len(part.data) for part in parts) - undone)


def _too_large(path: str, size: int | None, most: int) -> FileError:
    has = "has more" if size is None else f"has {format_size(size)}, more"
    return FileError(
        f"{path!r} {has} than {format_size(most)}",
        errno=errno.EFBIG,
        path=path,
        hint="allow more with max_size=",
    )


class Intake:
    """Writes parts to files of this host. Called in a thread, by one caller at a time."""

    def __init__(self, sink: Beneath, names: dict[str, str] | None = None) -> None:
        self._sink = sink
        self._names = names or {}
        self._incoming: Incoming | None = None
        self._written = 0
        self.count = 0

    def take(self, parts: list[Part]) -> int:
        """Write them all; how many bytes of earlier ones count no more."""
        undone = 0
        for part in parts:
            if part.offset == 0 and self._incoming is not None:
                undone += self._written
            self.write(part)
        return undone

    def write(self, part: Part) -> Found | None:
        """The file, when this was its last part."""
        if self._incoming is None:
            if part.offset:
                return None  # of a file that could not be written: its other parts neither
            self._incoming = Incoming(self._sink, self._names.get(part.path, part.path))
            self._written = 0
        elif part.offset == 0:
            self._incoming.restart()
            self._written = 0
        try:
            self._incoming.write(part.data)
            self._written += len(part.data)
            if not part.last or part.found is None:
                return None
            found = self._incoming.commit(executable=part.found.executable, mtime=part.found.mtime)
        except OSError:
            self.close()
            raise
        self._incoming = None
        self.count += 1
        return found

    def close(self) -> None:
        """Let go of a file that was not finished."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
