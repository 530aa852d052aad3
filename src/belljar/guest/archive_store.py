"""A store of workspaces for containers: archives in memory that only init has.

In a container init and the code are one user, so the code can reach every directory. A workspace
that is not at /workspace is therefore packed into memfds, whose descriptors init alone has. An
archive never changes, so a copy of it is the same object.

To exchange the workspace takes as long as to copy it. Init does it itself and serves nothing else
meanwhile, because the code could kill a child of init in the middle, but not init. Memory is
limited: files are truncated while they are packed, and segments are freed while they are unpacked.
"""

import contextlib
import errno
import os
import stat as modes
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ..protocol import removal
from . import tree_pack
from .tree_pack import SegmentReader, TreeWalk
from .workspace_store import CURRENT, Store, Then

SEGMENTS = 16  # of an archive that is as large as the store


class WorkspaceLost(Exception):
    """The old workspace is packed and the new one is not there: the guest cannot go on."""


class Archive:
    """`segment`: the bytes that are freed at once."""

    def __init__(self, segment: int) -> None:
        self._segment = segment
        self._contents: List[int] = []
        self._records = tree_pack.create_memfd("records")

    @property
    def size(self) -> int:
        return sum(os.fstat(fd).st_size for fd in (self._records, *self._contents))

    def reserve(self, size: int) -> None:
        """Make memfds for a child of init to fill: a child cannot pass descriptors to init."""
        while (len(self._contents) - 1) * (self._segment - tree_pack.MAX_PIECE) < size:
            self._contents.append(_create_segment())

    def trim(self) -> None:
        """Close the memfds that were reserved and not used."""
        while self._contents and not os.fstat(self._contents[-1]).st_size:
            os.close(self._contents.pop())

    def pack(self, top: int, status: os.stat_result, room: int, move: bool = False) -> None:
        contents = tree_pack.SegmentWriter(
            self._contents, self._segment, _create_segment if move else None
        )
        try:
            with open(self._records, "wb", tree_pack.MAX_PIECE, closefd=False) as records:
                tree_pack.Packer(records, contents, room, move).pack(top, status)
        finally:
            contents.close()
            tree_pack.seal_memfd(self._records)

    def unpack(self, top: int, consume: bool = False) -> None:
        contents = tree_pack.SegmentReader(self._contents, consume)
        Unpacker(self._records, contents).unpack(top)

    def close(self) -> None:
        for fd in (self._records, *self._contents):
            os.close(fd)


class ArchiveStore(Store):
    def __init__(self, workspace: str, size: int, fork: "Callable[[], int]") -> None:
        self._size = size  # bytes that all archives and /workspace may take
        self._archives: Dict[str, Archive] = {}
        self._leaving = ""  # the archive for what is at /workspace, until bring() packs it
        super().__init__(-1, fork)
        self._directory = os.open(workspace, removal.DIRECTORY)

    def make(self) -> str:
        self._numbers += 1
        name = f"w{self._numbers}"
        self._archives[name] = Archive(max(self._size // SEGMENTS, tree_pack.MIN_SEGMENT))
        return name

    def copy(self, source: str, target: str, then: Then) -> None:
        """Copying CURRENT takes room for its archive. Copying an archive takes none, but there must
        be room to unpack it into an empty /workspace."""
        room = self._size - sum(archive.size for archive in set(self._archives.values()))
        if source == CURRENT:
            self._copy_current(self._archives[target], max(room, 0) // 2, then)
        elif self._archives[source].size > room:
            then(errno.ENOSPC)
        else:
            self._remove_archive(target)
            self._archives[target] = self._archives[source]
            then(0)

    def _copy_current(self, archive: Archive, room: int, then: Then) -> None:
        status = os.fstat(self._directory)

        def done(error: int) -> None:
            archive.trim()
            then(error)

        try:
            archive.reserve(room)
        except OSError as error:
            then(error.errno or errno.EIO)
        else:
            self._run_in_child(lambda: self._pack(archive, status, room), done, self._copying)

    def _pack(self, archive: Archive, status: os.stat_result, room: int) -> None:
        mode = modes.S_IMODE(status.st_mode)
        self._make_accessible()
        try:
            archive.pack(self._directory, status, room)
        finally:
            if mode & 0o700 != 0o700:
                os.chmod(self._directory, mode)

    def set_aside(self) -> str:
        """The packing is left to bring(), because the host may remove it before."""
        self._leaving, self._spare = self._spare or self.make(), None
        return self._leaving

    def bring(self, name: str) -> None:
        """If it fails, /workspace is as it was before set_aside(), and `name` is kept."""
        leaving, self._leaving = self._leaving, ""
        archive = self._archives[name]
        if leaving:
            self._move_to(leaving)
        alone = list(self._archives.values()).count(archive) == 1
        try:
            self._empty()
            archive.unpack(self._directory, consume=bool(leaving) and alone)
        except OSError as error:
            if leaving:
                raise WorkspaceLost(f"a workspace could not be unpacked: {error}") from error
            raise
        self._remove_archive(name)
        if self._spare is None:
            self._spare = self.make()

    def _move_to(self, name: str) -> None:
        archive, status = self._archives[name], os.fstat(self._directory)
        self._make_accessible()
        try:
            archive.pack(self._directory, status, sys.maxsize, move=True)
        except OSError:
            try:
                archive.unpack(self._directory)
            except OSError as error:
                why = f"a workspace could not be packed, nor unpacked again: {error}"
                raise WorkspaceLost(why) from error
            self._remove_archive(name)
            raise

    def _empty(self) -> None:
        self._make_accessible()
        self._remove(*os.listdir(self._directory))

    def _make_accessible(self) -> None:
        """The code may have changed its mode."""
        if os.fstat(self._directory).st_mode & 0o700 != 0o700:
            os.chmod(self._directory, 0o700)

    def remove(self, name: str, then: "Optional[Then]" = None) -> None:
        if name == self._leaving:
            self._leaving = ""
        self._remove_archive(name)
        if then is not None:
            then(0)

    def _remove_archive(self, name: str) -> None:
        archive = self._archives.pop(name)
        if archive not in self._archives.values():
            archive.close()


def _create_segment() -> int:
    return tree_pack.create_memfd("contents")


def choose_store(setup: Dict[str, Any]) -> "Tuple[Optional[Store], str]":
    """Where this guest keeps workspaces; if nowhere, None and the reason."""
    fork = setup.get("fork", os.fork)
    try:
        if "store" in setup:
            return Store(setup["store"], fork), ""
        if "archive_size" in setup:
            return ArchiveStore(setup["workspace"], setup["archive_size"], fork), ""
    except OSError as error:
        return None, f"there is no room for workspaces: {error.strerror}"
    return None, "this backend has no place for workspaces"


_WINDOW = 65536  # bytes


class Record(NamedTuple):
    kind: bytes
    mode: int
    name: bytes
    link: int
    pieces: int
    size: int  # for a symbolic link: bytes of its target, which precede the name
    times: "Tuple[int, int]"  # last access and change, in nanoseconds


class Unpacker:
    def __init__(self, records: int, contents: SegmentReader) -> None:
        self._records = _Backwards(records)
        self._contents = contents
        # A file with several names has one more name at the top, which the last of them replaces.
        # So there are never more names than in the end: there may be no room for more.
        self._unused = f".belljar-link-{os.urandom(8).hex()}-"
        self._held: Set[int] = set()

    def unpack(self, top: int) -> None:
        """Unpack into a directory that is empty, or holds what could not be packed. Its own mode
        and times are restored, too."""
        way = TreeWalk(top)
        levels: List[Record] = []
        try:
            while not levels or not self._records.empty:
                record = self._take()
                if not levels and record.kind != tree_pack.DIRECTORY:
                    raise _incomplete()
                if record.kind == tree_pack.DIRECTORY:
                    if levels:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(record.name, 0o700, dir_fd=way.here)
                        way.enter(record.name)
                    levels.append(record)
                elif record.kind != tree_pack.BEGINNING:
                    self._unpack_entry(record, way.here, top)
                elif len(levels) > 1:
                    directory, level = way.leave(), levels.pop()
                    try:
                        tree_pack.restore_metadata(directory, level.mode, level.times)
                    finally:
                        os.close(directory)
        finally:
            way.close()
        if os.fstat(top).st_uid == os.geteuid():  # else the engine owns it, and it has not changed
            tree_pack.restore_metadata(top, levels[0].mode, levels[0].times)

    def _unpack_entry(self, record: Record, directory: int, top: int) -> None:
        name, held = record.name, os.fsencode(self._unused + str(record.link))
        if record.kind == tree_pack.FILE:
            if record.link in self._held:
                os.rename(held, name, src_dir_fd=top, dst_dir_fd=directory)
            self._unpack_file(record, directory)
        elif record.kind == tree_pack.LINK:
            if record.link not in self._held:
                os.close(_create_file(name, directory))
                os.link(name, held, src_dir_fd=directory, dst_dir_fd=top, follow_symlinks=False)
                self._held.add(record.link)
            else:
                os.link(held, name, src_dir_fd=top, dst_dir_fd=directory, follow_symlinks=False)
        elif record.kind == tree_pack.SYMLINK:
            os.symlink(self._records.take(record.size), name, dir_fd=directory)
            os.utime(name, ns=record.times, dir_fd=directory, follow_symlinks=False)
        elif record.kind == tree_pack.FIFO:
            os.mkfifo(name, 0o600, dir_fd=directory)
            os.chmod(name, record.mode, dir_fd=directory)
            os.utime(name, ns=record.times, dir_fd=directory, follow_symlinks=False)
        else:
            raise _incomplete()

    def _unpack_file(self, record: Record, directory: int) -> None:
        target = _create_file(record.name, directory)
        try:
            os.truncate(target, record.size)
            for _ in range(record.pieces):
                position, length = tree_pack.PIECE.unpack(self._records.take(tree_pack.PIECE.size))
                tree_pack.write_at(target, self._contents.take(length), position)
            tree_pack.restore_metadata(target, record.mode, record.times)
        finally:
            os.close(target)

    def _take(self) -> Record:
        kind, mode, length, link, pieces, size, *times = tree_pack.RECORD.unpack(
            self._records.take(tree_pack.RECORD.size)
        )
        accessed, changed = (times[i] * tree_pack.SECOND + times[i + 1] for i in (0, 2))
        name = self._records.take(length)
        if b"/" in name or name in (b".", b".."):
            raise OSError(errno.EIO, "the archive has a name with a slash or dots")
        return Record(kind, mode, name, link, pieces, size, (accessed, changed))


class _Backwards:
    """Reads a file from its end to its start."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = os.fstat(fd).st_size  # bytes that are not read yet
        self._window = b""
        self._end = 0  # of the bytes in the window that are not taken yet

    @property
    def empty(self) -> bool:
        return not self._before and not self._end

    def take(self, size: int) -> bytes:
        if size > self._end:
            start = max(self._before - max(size, _WINDOW), 0)
            more = os.pread(self._fd, self._before - start, start)
            self._window = more + self._window[: self._end]
            self._end = len(self._window)
            self._before = start
        if size > self._end:
            raise _incomplete()
        self._end -= size
        return self._window[self._end : self._end + size]


def _incomplete() -> OSError:
    return OSError(errno.EIO, "the archive is incomplete")


def _create_file(name: bytes, directory: int) -> int:
    """The file exists if it was moved in part, and its mode may not let its owner write."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, 0o600, dir_fd=directory)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=directory)
        return os.open(name, flags, 0o600, dir_fd=directory)
