"""Whole files and trees of this host into a sandbox, streamed."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from belljar.backends.linux.safe_dir import Beneath, Found
from belljar.errors import FileError, InvalidOption, SandboxError, file_error
from belljar.files import tree_protocol
from belljar.files.transfer import MAX_FILES, OnProgress, Progress, Transfer, carryable
from belljar.files.tree_protocol import LeftOut, Order

if TYPE_CHECKING:
    from belljar.files.api import AsyncFiles


async def upload(
    files: AsyncFiles, local: str, target: str, on_progress: OnProgress | None
) -> Transfer:
    """`local` is the caller's own path, and followed; links in a tree are carried as links."""
    try:
        if os.path.isdir(local):
            with Beneath(local) as source:
                return await _upload_tree(files, source, target, on_progress)
        resolved = os.path.realpath(local)
        with Beneath(os.path.dirname(resolved)) as source:
            return await _upload_file(files, source, resolved, target, on_progress)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise file_error(error.errno or errno.EIO, local, f"{error.strerror}: {local!r}") from error


async def _upload_file(
    files: AsyncFiles, source: Beneath, local: str, target: str, on_progress: OnProgress | None
) -> Transfer:
    name = os.path.basename(local)
    found = source.look(name)
    if found is None or found.kind != "file":
        code = errno.ENOENT if found is None else errno.EINVAL
        raise file_error(code, local, f"no regular file: {local!r}")
    parent, into = posixpath.split(target)
    progress = Progress(on_progress, found.size)
    outflow = Outflow(source, [(name, found)], {name: into})
    await send(files, parent, outflow, progress)
    return Transfer(files=1, size=progress.done, left_out=())


async def _upload_tree(
    files: AsyncFiles, source: Beneath, target: str, on_progress: OnProgress | None
) -> Transfer:
    try:
        found, unread = await anyio.to_thread.run_sync(source.scan, MAX_FILES)
    except OverflowError:
        raise InvalidOption(
            f"the directory holds more than {MAX_FILES} files", hint="upload an archive of it"
        ) from None
    left_out = LeftOut()
    for path, reason in unread:
        left_out.add(path, reason)
    carried = list(carryable(found, left_out))
    sizes = [entry.size for _, entry in carried if entry.kind == "file"]
    progress = Progress(on_progress, sum(sizes))
    await tree_protocol.push(
        files, target, []
    )  # the directory itself, should there be nothing in it
    await send(files, target, Outflow(source, carried), progress)
    return Transfer(files=len(sizes), size=progress.done, left_out=tuple(left_out.sentences()))


class Outflow:
    """Files of this host as orders for the guest, one request's worth after the other."""

    def __init__(
        self,
        source: Beneath,
        wanted: Iterable[tuple[str, Found]],
        names: dict[str, str] | None = None,  # other names in the guest
        left_out: LeftOut | None = None,  # told of files that cannot be read, instead of an error
    ) -> None:
        self._source = source
        self._wanted = iter(wanted)
        self._names = names or {}
        self._left_out = left_out
        self._fd = -1
        self._current = ("", Found("file"))
        self._offset = 0

    def next(self) -> list[Order]:
        """Reads files, so it is called in a thread. Nothing: that was all."""
        orders: list[Order] = []
        room = tree_protocol.PART
        while room > 0 and len(orders) < tree_protocol.ROWS:
            if self._fd < 0 and not self._open_next(orders):
                break
            if self._fd >= 0:
                order = self._part(room)
                orders.append(order)
                room -= len(order.data) + 1
        return orders

    def _open_next(self, orders: list[Order]) -> bool:
        """Turn to the next one; what is no file is an order by itself."""
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

    def _part(self, room: int) -> Order:
        """Up to the size it had when it was looked at, so that one that grows comes to an end."""
        name, found = self._current
        data = os.pread(self._fd, min(room, found.size - self._offset), self._offset)
        offset, self._offset = self._offset, self._offset + len(data)
        if data and self._offset < found.size:
            return Order("file", name, (offset, len(data), None, None), data)
        self.close()
        mode = 0o755 if found.executable else 0o644
        return Order("file", name, (offset, len(data), mode, found.mtime), data)

    @property
    def unfinished(self) -> str:
        """The file of which only a part has been read so far."""
        return self._current[0] if self._fd >= 0 else ""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


async def send(
    files: AsyncFiles, root: str, outflow: Outflow, progress: Progress
) -> dict[str, Found]:
    """Everything of an outflow; what each file then is in the guest."""
    written: dict[str, Found] = {}
    begun: set[str] = set()  # files of which there may be a part
    try:
        while orders := await anyio.to_thread.run_sync(outflow.next):
            begun.update(order.path for order in orders if order.verb == "file")
            made = await tree_protocol.push(files, root, orders)
            done = {
                o.path for o, found in zip(orders, made, strict=True) if isinstance(found, Found)
            }
            begun -= done - {outflow.unfinished}
            tree_protocol.check(orders, made, root)
            for order, found in zip(orders, made, strict=True):
                if isinstance(found, Found):
                    written[order.path] = found
            await progress.add(sum(len(order.data) for order in orders))
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
            for path in begun:  # whole or not at all
                target = posixpath.join(root, path)
                await files.call(target, {"op": "remove", "path": target})
        raise
    finally:
        outflow.close()
    return written
