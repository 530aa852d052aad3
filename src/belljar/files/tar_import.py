"""A tar archive into a tree of a sandbox, as a stream.

This host reads the tar format; the guest gets the same requests as for `upload`. An archive is
never unpacked here, and no path in it is resolved here. Archives may come from anywhere, so what
tarfile keeps in memory is bounded.
"""

from __future__ import annotations

import errno
import io
import posixpath
import tarfile
from collections.abc import AsyncIterable, Iterable
from typing import IO, TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import anyio.from_thread

from belljar.backends.linux.safe_dir import MAX_TIME, fits, is_file_name, stays_inside
from belljar.errors import InvalidOption, file_error
from belljar.files import transfer, tree_protocol
from belljar.files.tar_export import MAX_MEMBERS, SECOND
from belljar.files.transfer import MAX_SIZE_HINT, Progress, Transfer, too_large
from belljar.files.tree_protocol import PART, ROWS, LeftOut, Order

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles

MAX_EXTENDED = 128 * 1024  # bytes of one header with long names
MAX_GLOBAL = 100  # settings for the whole archive
GZIP = b"\x1f\x8b"
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


@runtime_checkable
class Readable(Protocol):
    """A binary file."""

    def read(self, size: int, /) -> bytes: ...


Source = bytes | Readable | Iterable[bytes] | AsyncIterable[bytes]


async def import_tar(files: AsyncFiles, source: Source, root: str, most: int) -> Transfer:
    stream = Input(source)
    reader = MemberReader(stream, root, most)
    await tree_protocol.push_orders(files, root, [])  # makes the directory
    progress = Progress(None, 0)
    await transfer.send_orders(files, root, reader, progress)
    left_out = tuple(reader.left_out.sentences())
    return Transfer(files=reader.files, size=progress.done, left_out=left_out)


class Input(io.RawIOBase):
    """The source of an archive as a file. Read in a thread."""

    def __init__(self, source: Source) -> None:
        if isinstance(source, (bytes, bytearray, memoryview)):
            source = io.BytesIO(source)
        if isinstance(source, str) or not isinstance(source, Readable | Iterable | AsyncIterable):
            raise InvalidOption(
                f"an archive is bytes, a binary file or an iterable of bytes, not {source!r:.100}",
                hint="open the file first: import_tar(open(path, 'rb'))",
            )
        self._read = source.read if isinstance(source, Readable) else None
        self._chunks = iter(source) if isinstance(source, Iterable) else None
        self._async = aiter(source) if isinstance(source, AsyncIterable) else None
        self._rest = b""

    def peek(self, size: int) -> bytes:
        while len(self._rest) < size and (data := self._next(size)):
            self._rest += data
        return self._rest[:size]

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; empty at the end only."""
        data, self._rest = self._rest or self._next(size), b""
        data, self._rest = data[:size], data[size:]
        return data

    def _next(self, size: int) -> bytes:
        data: object = b""
        if self._read is not None:
            data = self._read(size)
        elif self._chunks is not None:
            data = next((chunk for chunk in self._chunks if chunk), b"")
        elif self._async is not None:
            data = anyio.from_thread.run(self._next_of_async, self._async)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidOption(f"an archive has bytes, and not {type(data).__name__}")
        return bytes(data)

    @staticmethod
    async def _next_of_async(chunks: Any) -> bytes:
        while not (chunk := await anext(chunks, None)) and chunk is not None:
            continue
        return b"" if chunk is None else chunk


class Member(tarfile.TarInfo):
    """Refuses what would take memory without bound, and an archive that ends too early."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise  # the mark at the end
        except tarfile.HeaderError as error:  # tarfile itself takes most of them for the end
            raise tarfile.ReadError(f"the archive is cut off or broken: {error}") from None

    # TarFile calls these; the first is meant to be overridden.
    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in EXTENDED and self.size > MAX_EXTENDED:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if len(archive.pax_headers) > MAX_GLOBAL:
            raise tarfile.ReadError("too many global headers")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member

    def _proc_gnusparse_10(self, *details: object) -> None:
        self._refuse_sparse()

    def _refuse_sparse(self) -> None:
        raise tarfile.ReadError("sparse files are not supported: make it without --sparse")


class MemberReader:
    """Reads an archive as orders for the guest, as OrderReader reads files."""

    def __init__(self, source: Input, root: str, most: int) -> None:
        self._source, self._root = source, root
        self._room, self._most = most, most
        self._archive: tarfile.TarFile | None = None
        self._file: IO[bytes] | None = None  # the one of which parts are read
        self._current = ("", 0, 0)  # its name, mode and time
        self._offset = self._size = 0
        self._count, self._ended = 0, False
        self.files = 0
        self.left_out = LeftOut()

    def next(self) -> list[Order]:
        """The next orders; empty at the end. Reads the source, so it is called in a thread."""
        orders: list[Order] = []
        room = PART
        try:
            while room > 0 and len(orders) < ROWS:
                if self._file is not None:
                    orders.append(self._read_part(self._file, room))
                    room -= len(orders[-1].data) + 1
                elif not self._open_next(orders):
                    break
        except (tarfile.TarError, EOFError, RecursionError) as error:
            raise InvalidOption(
                f"cannot read the archive: {error}", hint="tar, and tar with gzip, can be read"
            ) from None
        return orders

    def _open_next(self, orders: list[Order]) -> bool:
        """Take the next member: a file is opened, others become orders. False at the end."""
        if self._archive is None:
            mode = "r|gz" if self._source.peek(2) == GZIP else "r|"
            self._archive = tarfile.open(  # noqa: SIM115
                fileobj=self._source,  # type: ignore[call-overload]
                mode=mode,
                tarinfo=Member,
                encoding="utf-8",
                errors="surrogateescape",
            )
        member = None if self._ended else self._archive.next()
        self._archive.members.clear()  # type: ignore[union-attr]
        if member is None:
            self._ended = True
            return False
        self._count += 1
        if self._count > MAX_MEMBERS:
            message = f"the archive has more than {MAX_MEMBERS} members"
            raise file_error(errno.E2BIG, self._root, message)
        path = _parse_name(member.name)
        if path:
            self._take(self._archive, member, path, orders)
        return True

    def _take(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, orders: list[Order]
    ) -> None:
        self._room -= member.size  # also of what is left out: it is read
        if member.size < 0 or self._room < 0:
            raise too_large(posixpath.join(self._root, path), None, self._most, MAX_SIZE_HINT)
        if not fits(path):
            self.left_out.add(path, "is nested too deep")
        elif member.isdir():
            orders.append(Order("dir", path))
        elif member.issym():
            if stays_inside(path, member.linkname):
                orders.append(Order("symlink", path, (member.linkname,)))
            else:
                self.left_out.add(path, "is a link that leads out", by_kind=True)
        elif member.islnk():
            orders.append(Order("link", path, (_parse_name(member.linkname),)))
        elif member.isreg():
            mtime = member.mtime if 0 <= member.mtime <= MAX_TIME // SECOND else 0
            self._current = (path, member.mode & 0o777, int(mtime * SECOND))
            self._offset, self._size = 0, member.size
            self._file = archive.extractfile(member)
        else:
            self.left_out.add(path, "is neither a file nor a directory", by_kind=True)

    def _read_part(self, file: IO[bytes], room: int) -> Order:
        path, mode, mtime = self._current
        data = file.read(min(room, self._size - self._offset))
        offset, self._offset = self._offset, self._offset + len(data)
        if not data and self._offset < self._size:
            raise tarfile.ReadError("the archive is cut off")
        if self._offset < self._size:
            return Order("file", path, (offset, len(data), None, None), data)
        self._file = None
        self.files += 1
        return Order("file", path, (offset, len(data), mode, mtime), data)

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()


def _parse_name(name: str) -> str:
    """The path of a member below the root; empty for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or not all(is_file_name(part) for part in parts):
        raise InvalidOption(
            f"the archive has a member {name!r:.200}, which leads out of it",
            hint="names in an archive must be relative, without '..'",
        )
    return "/".join(parts)
