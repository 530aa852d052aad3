"""Copy whole files and trees between this host and a sandbox, streamed.

The guest carries out orders (`OrderReader` makes them from files of this host) and sends parts of
files (`PartWriter` writes them here). The caller decides where a download goes; below that,
`safe_dir` keeps every path inside.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from belljar.backends.linux import safe_dir
from belljar.backends.linux.safe_dir import Beneath, Found, Incoming, stays_inside
from belljar.errors import FileError, GuestLost, InvalidOption, check_encodable, file_error
from belljar.files import tree_protocol
from belljar.files.tree_protocol import Census, FilePart, FileReader, LeftOut, Order
from belljar.limits import format_size

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles
    from belljar.files.tar_import import MemberReader

MAX_FILES = 10_000
MAX_SIZE_HINT = "allow more with max_size="
OnProgress = Callable[[int, int], object]  # bytes so far, bytes in total


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What was copied."""

    files: int
    size: int  # bytes
    left_out: tuple[str, ...]  # sentences about what was not copied, such as links that lead out


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
                await made


def check_local_path(given: object) -> str:
    """Check a path of this host that the caller gave."""
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if isinstance(path, str) and path and "\0" not in path:
            check_encodable("a path", path)
            return path
    raise InvalidOption(f"local must be the path of a file or directory, not {given!r}")


def select_carried(found: dict[str, Found], left_out: LeftOut) -> Iterator[tuple[str, Found]]:
    """Files, directories, and links that stay inside; the rest goes to `left_out`."""
    for path, entry in found.items():
        if entry.kind == "other":
            left_out.add(path, "is neither a file nor a directory", by_kind=True)
        elif entry.kind == "symlink" and not stays_inside(path, entry.target):
            left_out.add(path, "is a link that leads out", by_kind=True)
        else:
            yield path, entry


async def scan_host(source: Beneath, most: int, what: str, hint: str) -> Census:
    """List a directory of this host. `what` and `hint` are for the error if it has more files."""
    try:
        found, unread = await anyio.to_thread.run_sync(source.scan, most)
    except OverflowError:
        raise InvalidOption(f"{what} holds more than {most} files", hint=hint) from None
    census = Census(unseen={path for path, _ in unread})
    for path, reason in unread:
        census.left_out.add(path, reason)
    census.entries = dict(select_carried(found, census.left_out))
    return census


@contextlib.contextmanager
def _os_errors(local: str, doing: str) -> Iterator[None]:
    """Turn an OSError about a path of this host into a FileError."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        message = f"cannot {doing} {local!r}: {error.strerror}"
        raise file_error(error.errno or errno.EIO, local, message) from error


# -- host to guest ------------------------------------------------------------------------------


async def upload(
    files: AsyncFiles, local: str, target: str, on_progress: OnProgress | None
) -> Transfer:
    """`local` itself may be a link; links in a tree are copied as links."""
    with _os_errors(local, "read"):
        if os.path.isdir(local):
            with Beneath(local) as source:
                return await _upload_tree(files, source, target, on_progress)
        resolved = os.path.realpath(local)
        with Beneath(os.path.dirname(resolved)) as source:
            return await _upload_file(files, source, resolved, target, on_progress)


async def _upload_file(
    files: AsyncFiles, source: Beneath, local: str, target: str, on_progress: OnProgress | None
) -> Transfer:
    name = os.path.basename(local)
    found = source.look(name)
    if found is None or found.kind != "file":
        code = errno.ENOENT if found is None else errno.EINVAL
        raise file_error(code, local, f"not a regular file: {local!r}")
    parent, into = posixpath.split(target)
    progress = Progress(on_progress, found.size)
    await send_orders(files, parent, OrderReader(source, [(name, found)], {name: into}), progress)
    return Transfer(files=1, size=progress.done, left_out=())


async def _upload_tree(
    files: AsyncFiles, source: Beneath, target: str, on_progress: OnProgress | None
) -> Transfer:
    census = await scan_host(source, MAX_FILES, "the directory", "upload an archive of it")
    sizes = [entry.size for entry in census.entries.values() if entry.kind == "file"]
    progress = Progress(on_progress, sum(sizes))
    await tree_protocol.push_orders(files, target, [])  # makes the directory, even an empty one
    await send_orders(files, target, OrderReader(source, census.entries.items()), progress)
    left_out = tuple(census.left_out.sentences())
    return Transfer(files=len(sizes), size=progress.done, left_out=left_out)


class OrderReader:
    """Reads files of this host as orders for the guest, one request's worth after the other."""

    def __init__(
        self,
        source: Beneath,
        wanted: Iterable[tuple[str, Found]],
        names: dict[str, str] | None = None,  # other names in the guest
        left_out: LeftOut | None = None,  # gets unreadable files; without it they raise an error
    ) -> None:
        self._source = source
        self._wanted = iter(wanted)
        self._names = names or {}
        self._left_out = left_out
        self._fd = -1
        self._current = ("", Found("file"))
        self._offset = 0

    def next(self) -> list[Order]:
        """The next orders; empty at the end. Reads files, so it is called in a thread."""
        orders: list[Order] = []
        room = tree_protocol.PART
        while room > 0 and len(orders) < tree_protocol.ROWS:
            if self._fd < 0 and not self._open_next(orders):
                break
            if self._fd >= 0:
                order = self._read_part(room)
                orders.append(order)
                room -= len(order.data) + 1
        return orders

    def _open_next(self, orders: list[Order]) -> bool:
        """Open the next file; a directory or link becomes an order at once. False at the end."""
        following = next(self._wanted, None)
        if following is None:
            return False
        path, found = following
        name = self._names.get(path, path)
        if found.kind == "dir":
            orders.append(Order("dir", name))
        elif found.kind == "symlink":
            orders.append(Order("symlink", name, (found.target,)))
        else:
            try:
                self._fd = self._source.open(path)
            except OSError as error:
                if self._left_out is None:
                    raise
                self._left_out.add(path, f"cannot be read ({error.strerror})")
            self._current, self._offset = (name, found), 0
        return True

    def _read_part(self, room: int) -> Order:
        """Up to the size that the scan found, so that a growing file comes to an end."""
        name, found = self._current
        data = os.pread(self._fd, min(room, found.size - self._offset), self._offset)
        offset, self._offset = self._offset, self._offset + len(data)
        if data and self._offset < found.size:
            return Order("file", name, (offset, len(data), None, None), data)
        self.close()
        mode = 0o755 if found.executable else 0o644
        return Order("file", name, (offset, len(data), mode, found.mtime), data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


async def send_orders(
    files: AsyncFiles, root: str, reader: OrderReader | MemberReader, progress: Progress
) -> dict[str, Found]:
    """Send all orders; return each file as the guest then describes it."""
    written: dict[str, Found] = {}
    partial = safe_dir.partial_name()
    first = None
    try:
        while orders := await anyio.to_thread.run_sync(reader.next):
            made = await tree_protocol.push_orders(files, root, orders, partial)
            pairs = zip(orders, made, strict=True)
            written |= {order.path: found for order, found in pairs if found is not None}
            async with files._sandbox.using() as (_, guest):
                first = first or guest
            if guest is not first:  # a new one was started, without what the first one had
                raise GuestLost("the guest was lost during the transfer, and files with it")
            await progress.add(sum(len(order.data) for order in orders))
    except BaseException:
        await tree_protocol.discard(files, root, partial)
        raise
    finally:
        reader.close()
    return written


# -- guest to host ------------------------------------------------------------------------------


async def download(
    files: AsyncFiles, path: str, local: str, most: int, on_progress: OnProgress | None
) -> Transfer:
    info = await files.stat(path)
    is_dir = info.type == "dir"
    if info.type == "symlink":
        is_dir = await _leads_to_directory(files, path)
    if is_dir:
        census = await _scan_tree(files, path, most)
        with _os_errors(local, "write"), Beneath(local, make=True) as sink:
            return await _download_tree(files, path, sink, most, census, on_progress)
    if local.endswith("/") or os.path.isdir(local):
        local = os.path.join(local, posixpath.basename(path))
    parent, name = os.path.split(local)
    root, base = posixpath.split(path)
    with _os_errors(local, "write"), Beneath(parent or ".", make=bool(parent)) as sink:
        writer, progress = PartWriter(sink, {base: name}), Progress(on_progress, 0)
        # A size above PART, because the real one is not known yet: the file is read part by part.
        wanted = [(base, tree_protocol.PART + 1)]
        size = await _receive(files, root, wanted, writer, most, progress, follow=True)
    return Transfer(files=1, size=size, left_out=())


async def _leads_to_directory(files: AsyncFiles, path: str) -> bool:
    try:
        await files.call(path, {"op": "scan", "path": path}, b"[]")
    except NotADirectoryError:
        return False
    return True


async def _scan_tree(files: AsyncFiles, path: str, most: int) -> Census:
    """Look at the whole tree before anything is written here."""
    census = await tree_protocol.scan_tree(files, path, most=MAX_FILES)
    if census.unseen and len(census.entries) == MAX_FILES:
        raise file_error(
            errno.E2BIG, path, f"the directory holds more than {MAX_FILES} files: {path!r}"
        )
    total = sum(entry.size for entry in census.entries.values() if entry.kind == "file")
    if total > most:
        raise too_large(path, total, most, MAX_SIZE_HINT)
    return census


async def _download_tree(
    files: AsyncFiles,
    path: str,
    sink: Beneath,
    most: int,
    census: Census,
    on_progress: OnProgress | None,
) -> Transfer:
    carried = dict(select_carried(census.entries, census.left_out))
    wanted = [(name, entry.size) for name, entry in carried.items() if entry.kind == "file"]
    progress = Progress(on_progress, sum(size for _, size in wanted))
    await anyio.to_thread.run_sync(_make_dirs_and_links, sink, carried)
    writer = PartWriter(sink)
    size = await _receive(files, path, wanted, writer, most, progress)
    return Transfer(files=writer.count, size=size, left_out=tuple(census.left_out.sentences()))


def _make_dirs_and_links(sink: Beneath, carried: dict[str, Found]) -> None:
    for path, entry in carried.items():
        if entry.kind == "dir":
            sink.make_dir(path)
        elif entry.kind == "symlink":
            sink.make_symlink(path, entry.target)


async def _receive(
    files: AsyncFiles,
    root: str,
    wanted: list[tuple[str, int]],
    writer: PartWriter,
    most: int,
    progress: Progress,
    *,
    follow: bool = False,
) -> int:
    """Fetch all files; return the number of bytes. The first error ends it."""

    async def take(parts: list[FilePart]) -> None:
        for part in parts:
            full = posixpath.join(root, part.path)
            if part.error == errno.EFBIG:
                raise too_large(full, None, most, MAX_SIZE_HINT)
            if part.error:
                raise file_error(part.error, full)
            if part.last and not part.steady:
                raise file_error(errno.EBUSY, full, f"the file changes while it is read: {full!r}")
        undone = await anyio.to_thread.run_sync(writer.write_all, parts)
        await progress.add(sum(len(part.data) for part in parts) - undone)

    try:
        await FileReader(files, root, most, take, follow=follow).fetch(wanted)
    finally:
        writer.close()
    return progress.done


def too_large(path: str, size: int | None, most: int, hint: str) -> FileError:
    has = "has more" if size is None else f"has {format_size(size)}, more"
    message = f"{path!r} {has} than {format_size(most)}"
    return FileError(message, errno=errno.EFBIG, path=path, hint=hint)


class PartWriter:
    """Writes parts to files of this host. Called in a thread, by one caller at a time."""

    def __init__(self, sink: Beneath, names: dict[str, str] | None = None) -> None:
        self._sink = sink
        self._names = names or {}
        self._incoming: Incoming | None = None
        self._written = 0
        self.count = 0

    def write_all(self, parts: list[FilePart]) -> int:
        """Write them; return how many bytes of earlier parts were discarded by a restart."""
        undone = 0
        for part in parts:
            if part.offset == 0 and self._incoming is not None:
                undone += self._written
            self.write(part)
        return undone

    def write(self, part: FilePart) -> Found | None:
        """Return the file if this was its last part."""
        if self._incoming is None:
            if part.offset:
                return None  # an earlier part could not be written, so skip the rest of the file
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
        """Discard a file that was not finished."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
