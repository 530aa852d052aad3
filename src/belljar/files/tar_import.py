"""A tar archive into a tree of a sandbox, as a stream.

This host reads the tar format; the guest gets the same requests as for `upload`. An archive is
never unpacked here, and no path in it is resolved here. Archives may come from anywhere: what
no program writes is refused, and the time is linear in the length of what is read.
"""

from __future__ import annotations

import errno
import io
import tarfile
import zlib
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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
MAX_EXTENDED_IN_ALL = 256 * 1024 * 1024
MAX_IN_A_ROW = 4  # extended headers of one member
MAX_RECORDS = 100  # in one of them
USED = (b"path", b"linkpath", b"size", b"mtime")
GZIP = b"\x1f\x8b"
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_PIECE = 64 * 1024
_NEWLINE = ord("\n")
_MAX_DIGITS = 6  # of a length below MAX_EXTENDED
_MAX_NUMBER = 40  # characters of a size or a time
_MAX_PADDING = 1024 * 1024
_GZIP_MEMBER = 16 + zlib.MAX_WBITS
_SPARSE = "sparse files are not supported: make it without --sparse"


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


class Input:
    """The source of an archive. Read in a thread."""

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
        self._rest = memoryview(b"")  # a view: a chunk of any length is copied once

    def peek(self, size: int) -> bytes:
        while len(self._rest) < size and (data := self._next()):
            self._rest = memoryview(bytes(self._rest) + data)
        return bytes(self._rest[:size])

    def read(self, size: int) -> bytes:
        """At most `size` bytes; empty at the end only."""
        rest = self._rest or memoryview(self._next())
        self._rest = rest[size:]
        return bytes(rest[:size])

    def read_fully(self, size: int) -> bytes:
        """`size` bytes, or all that are left."""
        found = bytearray()
        while len(found) < size and (data := self.read(size - len(found))):
            found += data
        return bytes(found)

    def _next(self) -> bytes:
        data: object = b""
        if self._read is not None:
            data = self._read(_RECORD)
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


class Gunzip(Input):
    """What is packed in another input. As with gzip, it may have several members.

    `tarfile` unpacks all that it has read at once, and copies the rest of that for each header.
    """

    def __init__(self, packed: Input) -> None:
        super().__init__(())
        self._packed, self._tail = packed, b""
        self._member = zlib.decompressobj(_GZIP_MEMBER)

    def _next(self) -> bytes:
        taken = 0
        while not self._member.eof or self._open_member():
            size, data = self._inflate()
            if data:
                return data
            taken += size
            if taken > _MAX_PADDING:
                raise tarfile.ReadError("too much of it is empty")
        return b""

    def _open_member(self) -> bool:
        if tail := self._member.unused_data or self._packed.read(_RECORD):
            self._tail, self._member = tail, zlib.decompressobj(_GZIP_MEMBER)
        return bool(tail)

    def _inflate(self) -> tuple[int, bytes]:
        """How many bytes were there to unpack, and some of what is in them."""
        packed = self._tail or self._packed.read(_RECORD)
        if not packed:
            raise tarfile.ReadError("it is cut off")
        try:
            data = self._member.decompress(packed, _PIECE)
        except zlib.error as error:
            raise tarfile.ReadError(str(error)) from None
        self._tail = self._member.unconsumed_tail
        return len(packed), data

    def check_end(self) -> None:
        """Read a little beyond the end of the archive: there is the checksum of gzip."""
        read = 0
        while not self._member.eof and read < _MAX_PADDING:
            size, data = self._inflate()
            read += size + len(data)


@dataclass(slots=True)
class Member:
    """One entry of an archive. Its content follows, if it has any."""

    path: str
    type: bytes
    size: int  # of the content
    mode: int
    mtime: int  # ns
    target: str  # of a link


class HeaderReader:
    """Reads headers one by one, in time that is linear in their length.

    `tarfile` reads extended headers by patterns whose time is quadratic, goes a level deeper for
    each, and keeps all that they say. So only `frombuf` is taken from it, which reads 512 bytes.
    """

    def __init__(self, source: Input) -> None:
        self._source, self._extended = source, 0  # bytes of extended headers so far
        self._global: dict[str, str] = {}

    def next(self) -> Member | None:
        """The next member; None at the end mark."""
        records: dict[str, str] = {}
        for _ in range(MAX_IN_A_ROW + 1):
            block = _read_whole(self._source, _BLOCK)
            if block == bytes(_BLOCK) and not records:
                # The mark has two blocks. One alone is a hole, and what follows would be lost.
                if any(self._source.read_fully(_BLOCK)):
                    raise tarfile.ReadError("an empty header, and more behind it")
                if isinstance(self._source, Gunzip):
                    self._source.check_end()
                return None
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if info.size < 0:
                raise tarfile.ReadError("a negative size")
            if info.type not in EXTENDED:
                return _make_member(
                    info, block[156:157] == tarfile.AREGTYPE, self._global | records
                )
            self._read_extended(info, records)
        raise tarfile.ReadError(f"more than {MAX_IN_A_ROW} extended headers in a row")

    def _read_extended(self, info: tarfile.TarInfo, records: dict[str, str]) -> None:
        """Add to `records` what the header says of the next member."""
        self._extended += info.size
        if info.size > MAX_EXTENDED or self._extended > MAX_EXTENDED_IN_ALL:
            raise tarfile.ReadError(f"extended headers are too long ({info.size} bytes)")
        data = _read_whole(self._source, info.size + -info.size % _BLOCK)[: info.size]
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            key = "path" if info.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
            records[key] = _decode(data.partition(b"\0")[0])
        elif info.type == tarfile.XGLTYPE:
            self._global |= _parse_records(data)
            if self._global.keys() - {"mtime"}:
                raise tarfile.ReadError("a name or a size for all members")
        else:
            records |= _parse_records(data)


def _read_whole(source: Input, size: int) -> bytes:
    data = source.read_fully(size)
    if len(data) < size:
        raise tarfile.ReadError("it is cut off")
    return data


def _parse_records(data: bytes) -> dict[str, str]:
    """Parse the records of a pax header, each `length key=value` and a newline; keep what is used.

    >>> _parse_records(b"12 path=a/b\\n17 comment=hello\\n")
    {'path': 'a/b'}
    """
    records: dict[str, str] = {}
    start = count = 0
    while start < len(data) and data[start]:  # some programs fill it up with NUL
        count += 1
        space = data.find(b" ", start, start + _MAX_DIGITS + 1)
        length = data[start : max(space, start)]
        end = start + int(length) if length.isdigit() else 0
        key, equals, value = data[space + 1 : max(end - 1, 0)].partition(b"=")
        if end > len(data) or not key or not equals or data[end - 1] != _NEWLINE:
            raise tarfile.ReadError("a record of an extended header is broken")
        if count > MAX_RECORDS:
            raise tarfile.ReadError(f"an extended header has more than {MAX_RECORDS} records")
        if key.startswith(b"GNU.sparse."):
            raise tarfile.ReadError(_SPARSE)
        if key in USED:
            records[key.decode()] = _decode(value)
        start = end
    return records


def _make_member(info: tarfile.TarInfo, is_old: bool, records: dict[str, str]) -> Member:
    """An empty record stands for what the header itself says."""
    if info.type == tarfile.GNUTYPE_SPARSE:
        raise tarfile.ReadError(_SPARSE)
    path = records.get("path") or info.name
    if is_old and records.get("path"):  # a slash makes a directory; in the header it may be cut off
        info.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
    size = _parse_size(records["size"]) if records.get("size") else info.size
    if info.type in tarfile.SUPPORTED_TYPES and not info.isreg():
        size = 0  # some programs write one there, but no content
    mtime = _parse_time(records["mtime"]) if records.get("mtime") else info.mtime
    target = records.get("linkpath") or info.linkname if info.issym() or info.islnk() else ""
    mtime = mtime if 0 <= mtime <= MAX_TIME // SECOND else 0
    return Member(path, info.type, size, info.mode & 0o777, int(mtime * SECOND), target)


def _parse_size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER):
        raise tarfile.ReadError(f"a size of {text!r:.50}")
    return int(text)


def _parse_time(text: str) -> float:
    try:
        return float(text[:_MAX_NUMBER])
    except ValueError:
        raise tarfile.ReadError(f"a time of {text!r:.50}") from None


def _decode(name: bytes) -> str:
    if b"\0" in name:
        raise tarfile.ReadError("a name with NUL")
    return name.decode("utf-8", "surrogateescape")


class MemberReader:
    """Reads an archive as orders for the guest, as OrderReader reads files."""

    def __init__(self, source: Input, root: str, most: int) -> None:
        self._source, self._root = source, root
        self._room, self._most = most, most
        self._headers: HeaderReader | None = None
        self._file: Member | None = None  # the one of which parts are read
        self._offset = self._count = self.files = 0
        self._ended = False
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
                elif self._ended or not self._open_next(orders):
                    break
        except tarfile.TarError as error:
            raise InvalidOption(
                f"cannot read the archive: {error}", hint="tar, and tar with gzip, can be read"
            ) from None
        return orders

    def _open_next(self, orders: list[Order]) -> bool:
        """Take the next member: a file is opened, others become orders. False at the end."""
        if self._headers is None:
            if self._source.peek(len(GZIP)) == GZIP:
                self._source = Gunzip(self._source)
            self._headers = HeaderReader(self._source)
        if (member := self._headers.next()) is None:
            self._ended = True
            return False
        self._count += 1
        if self._count > MAX_MEMBERS:
            raise file_error(errno.E2BIG, self._root, f"more than {MAX_MEMBERS} members")
        member.path = _parse_name(member.path)
        self._room -= member.size  # also of what is left out: it is read
        if self._room < 0:
            raise too_large(f"{self._root}/{member.path}", None, self._most, MAX_SIZE_HINT)
        self._take(member, orders)
        return True

    def _take(self, member: Member, orders: list[Order]) -> None:
        path = member.path
        if not path:
            if member.type != tarfile.DIRTYPE:
                raise tarfile.ReadError("a file without a name")
        elif not fits(path) or not fits(member.target):
            self._leave_out(member, "is nested too deep")
        elif member.type == tarfile.DIRTYPE:
            orders.append(Order("dir", path))
        elif member.type == tarfile.SYMTYPE:
            if stays_inside(path, member.target):
                orders.append(Order("symlink", path, (member.target,)))
            else:
                self._leave_out(member, "is a link that leads out", by_kind=True)
        elif member.type == tarfile.LNKTYPE:
            orders.append(Order("link", path, (_parse_name(member.target),)))
        elif member.type in tarfile.REGULAR_TYPES:
            self._file, self._offset = member, 0
        else:
            self._leave_out(member, "is neither a file nor a directory", by_kind=True)

    def _leave_out(self, member: Member, reason: str, *, by_kind: bool = False) -> None:
        self.left_out.add(member.path, reason, by_kind=by_kind)
        end = member.size + -member.size % _BLOCK
        for start in range(0, end, _PIECE):
            _read_whole(self._source, min(end - start, _PIECE))

    def _read_part(self, file: Member, room: int) -> Order:
        data = _read_whole(self._source, min(room, file.size - self._offset))
        offset, self._offset = self._offset, self._offset + len(data)
        if self._offset < file.size:
            return Order("file", file.path, (offset, len(data), None, None), data)
        _read_whole(self._source, -file.size % _BLOCK)
        self._file = None
        self.files += 1
        return Order("file", file.path, (offset, len(data), file.mode, file.mtime), data)

    def close(self) -> None:
        """As OrderReader. The source is the caller's own."""


def _parse_name(name: str) -> str:
    """The path of a member below the root; empty for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or not all(is_file_name(part) for part in parts):
        raise InvalidOption(
            f"the archive has a member {name!r:.200}, which leads out of it",
            hint="names in an archive must be relative, without '..'",
        )
    return "/".join(parts)
