"""Files of a sandbox. The guest's init does the work: the host never resolves a guest's path."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import anyio
import anyio.to_thread

from belljar.backends.base import Guest
from belljar.backends.event_loop import move_to_loop
from belljar.backends.linux.safe_dir import Kind, is_file_name, partial_name
from belljar.errors import (
    InvalidOption,
    ProtocolError,
    check_callbacks,
    check_encodable,
    file_error,
    stays_one,
    suggests,
)
from belljar.files import transfer, tree_protocol
from belljar.files.transfer import OnProgress, Transfer
from belljar.files.tree_protocol import KINDS, PART, find_hint, parse_errno, parse_number
from belljar.files.watch import AsyncWatch
from belljar.limits import Limits, parse_size
from belljar.protocol import messages, wire
from belljar.text import one_line

if TYPE_CHECKING:
    from belljar.files.tar_export import AsyncArchive
    from belljar.files.tar_import import Source

MAX_READ = 1024 * 1024 * 1024
_MAX_REASON = 200  # characters
_MAX_PATH = 4095
_MAX_ENTRY = 28 * 1024  # bytes of JSON: a name, the target of a link, escaped, and numbers

T = TypeVar("T")
GuestPath = str | os.PathLike[str]  # PurePosixPath("out") / "chart.png", or its text


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    name: str
    path: str  # in the sandbox
    type: Kind
    size: int  # bytes
    mode: int  # permission bits
    mtime: float  # seconds since the epoch
    uid: int  # of the owner, as the sandbox sees it
    gid: int
    target: str | None = None  # of a symbolic link, as it is written there
    target_type: Kind | None = None  # what a link leads to; None if it leads nowhere

    @property
    def is_dir(self) -> bool:
        """True for a directory, and for a link to one."""
        return (self.target_type or self.type) == "dir"

    @property
    def is_file(self) -> bool:
        """True for a regular file, and for a link to one."""
        return (self.target_type or self.type) == "file"


class Caller(Protocol):
    """The channel to a guest, as far as files need it."""

    async def call(
        self, kind: int, header: Mapping[str, object] | None = None, payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]: ...


class Connected(Protocol):
    """What has a live guest: the sandbox, or the code that starts it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def workdir(self) -> str: ...

    def using(self, *, watching: bool = False) -> AbstractAsyncContextManager[tuple[Caller, Guest]]:
        """`watching`: it is no use that keeps the sandbox alive, and starts no guest."""


@suggests
@stays_one
class AsyncFiles:
    """Read and write files of the sandbox. Relative paths are below its workspace."""

    def __init__(
        self, sandbox: Connected, *, on_change: Callable[..., Awaitable[object]] | None = None
    ) -> None:
        """`on_change` is awaited after each operation that changed something, with the name of the
        operation and its arguments."""
        self._sandbox = sandbox
        self._on_change = on_change

    @property
    def root(self) -> str:
        """The path of the workspace."""
        return self._sandbox.workdir

    def _absolute(self, path: GuestPath) -> str:
        return absolute_path(path, self._sandbox.workdir)

    @overload
    async def read(self, path: GuestPath, *, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: GuestPath, *, format: Literal["bytes"]) -> bytes: ...
    async def read(
        self, path: GuestPath, *, format: Literal["text", "bytes"] = "text"
    ) -> str | bytes:
        """The content of a file: text (UTF-8), or `format="bytes"`."""
        if format not in ("text", "bytes"):
            raise InvalidOption(f"format must be 'text' or 'bytes', not {format!r}")
        data = await self._read(self._absolute(path))
        if format == "bytes":
            return data
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidOption(
                f"{os.fspath(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}",
                hint='read it with format="bytes"',
            ) from None

    async def _read(self, path: str) -> bytes:
        """In parts, to save memory on both sides. A file that grows meanwhile is read up to its
        size at the start."""
        content = bytearray()
        size: int | None = None
        while size is None or len(content) < size:
            wanted = PART if size is None else min(PART, size - len(content))
            header = {"op": "read", "path": path, "offset": len(content), "size": wanted}
            result, data = await self.call(path, header)
            if size is None:
                size = parse_number(result.get("size"))
                if size > MAX_READ:
                    raise transfer.too_large(path, size, MAX_READ, "copy it with download()")
            if not data:
                break  # it shrank
            content += data[: size - len(content)] if size else data
        return bytes(content)

    async def write(self, path: GuestPath, data: str | bytes) -> FileInfo:
        """Write a file and make the directories above it.

        An existing file is replaced when the new one is whole: an error leaves it as it was.
        """
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidOption(f"data must be str or bytes, not {type(data).__name__}")
        view, target = memoryview(data), self._absolute(path)
        result: dict[str, Any] = {}
        starts = range(0, max(len(view), 1), PART)
        header: dict[str, Any] = {"op": "write", "path": target, "partial": partial_name()}
        if len(starts) > 1:
            await move_to_loop()  # `discard` needs it; the guest itself discards a single part
        try:
            for start in starts:
                header |= {"offset": start, "last": start == starts[-1]}
                result, _ = await self.call(target, header, bytes(view[start : start + PART]))
        except BaseException:
            if len(starts) > 1:
                await tree_protocol.discard(self, "/", header["partial"])
            raise
        return await self._changed(parse_info(target, result), "write", path=path, content=view)

    async def list(self, path: GuestPath = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by name."""
        target = self._absolute(path)
        found: list[FileInfo] = []
        offset, total = 0, 1
        while offset < total:
            header = {"op": "list", "path": target, "offset": offset}
            result, data = await self.call(target, header)
            found += parse_listing(target, data)
            total, offset = parse_number(result.get("total")), offset + messages.LIST_PAGE
            if total > messages.MAX_LIST:
                raise ProtocolError("the guest sent a listing that is too long")
        return found

    async def exists(self, path: GuestPath) -> bool:
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def stat(self, path: GuestPath, *, follow: bool = False) -> FileInfo:
        """Describe a path. Of a symbolic link, the link itself; with `follow`, what it leads to."""
        target = self._absolute(path)
        header = {"op": "stat", "path": target, "follow": bool(follow)}
        return parse_info(target, (await self.call(target, header))[0])

    async def realpath(self, path: GuestPath, *, strict: bool = True) -> str:
        """The path without symbolic links, "." and "..". Unless `strict`, parts may be missing."""
        target = self._absolute(path)
        header = {"op": "realpath", "path": target, "strict": bool(strict)}
        found = (await self.call(target, header))[0].get("path")
        if not isinstance(found, str) or not found.startswith("/") or "\0" in found:
            raise ProtocolError("the guest sent a malformed path")
        return found

    async def watch(self, path: GuestPath = ".", *, recursive: bool = False) -> AsyncWatch:
        """Watch a directory from now on: an iterator of FileEvent, until it is closed.

        By looking at it several times a second. What came and went in between is not seen. At most
        2,000 entries; with `recursive` those of all directories below. It does not keep an idle
        sandbox alive, and it ends with the sandbox.
        """
        watch = AsyncWatch(self, self._absolute(path), recursive=bool(recursive))
        await watch.begin()
        return watch

    async def make_dir(self, path: GuestPath) -> FileInfo:
        """Make a directory and those above it; it may exist already."""
        target = self._absolute(path)
        made, _ = await self.call(target, {"op": "make_dir", "path": target})
        return await self._changed(parse_info(target, made), "make_dir", path=path)

    async def remove(self, path: GuestPath) -> None:
        """Remove a file, or a directory with its content."""
        target = self._absolute(path)
        await self.call(target, {"op": "remove", "path": target})
        await self._changed(None, "remove", path=path)

    async def rename(self, old: GuestPath, new: GuestPath) -> FileInfo:
        target = self._absolute(old)
        header = {"op": "rename", "path": target, "to": self._absolute(new)}
        made, _ = await self.call(target, header)
        info = parse_info(self._absolute(new), made)
        return await self._changed(info, "rename", old=old, new=new)

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: GuestPath | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> Transfer:
        """Copy a file, or a directory with its content, into the sandbox.

        `path` is the target (None: the same name in /workspace; ending with "/": the same name in
        that directory). Existing files are replaced, directories merged. Links in a tree are copied
        if they stay inside it. `on_progress` gets the bytes so far and the total.
        """
        source = transfer.check_local_path(local)
        check_callbacks(on_progress=on_progress)
        name = os.path.basename(os.path.abspath(source))
        target = os.fspath(path) if path is not None else name
        if target.endswith("/"):
            target += name
        moved = await transfer.upload(self, source, self._absolute(target), on_progress)
        return await self._changed(
            moved, "upload", path=target, source=name, files=moved.files, size=moved.size
        )

    async def download(
        self,
        path: GuestPath,
        local: str | os.PathLike[str],
        *,
        max_size: int | str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Transfer:
        """Copy a file, or a directory with its content, to this host.

        `local` is the target; if it is a directory, a file goes into it. Each file appears at once
        and whole; existing files are replaced, directories merged. The host follows no link of the
        sandbox, and makes none that leads out of the tree. `max_size` bounds the bytes (None: what
        fits into the sandbox's file systems).
        """
        target = transfer.check_local_path(local)
        check_callbacks(on_progress=on_progress)
        most = self._parse_most(max_size)
        return await transfer.download(self, self._absolute(path), target, most, on_progress)

    async def export_tar(
        self, path: GuestPath = ".", *, max_size: int | str | None = None
    ) -> AsyncArchive:
        """A directory as a tar archive: an iterator of bytes, read while it is iterated.

        Has files, directories, and links that stay inside; `left_out` names the rest. `max_size`
        bounds the bytes of the files (None: what fits into the sandbox's file systems).
        """
        from belljar.files.tar_export import export_tar  # tarfile is large, and few need it

        return await export_tar(self, self._absolute(path), self._parse_most(max_size))

    async def import_tar(
        self, source: Source, path: GuestPath = ".", *, max_size: int | str | None = None
    ) -> Transfer:
        """Unpack a tar archive (also with gzip) into a directory, and make that if need be.

        `source` is bytes, a binary file, or an iterable of bytes (of AsyncFiles: also an async
        one). Existing files are replaced, directories merged. An archive with absolute paths or
        ".." in a name is refused; links that lead out and devices are left out.
        """
        from belljar.files.tar_import import import_tar

        target = self._absolute(path)
        moved = await import_tar(self, source, target, self._parse_most(max_size))
        return await self._changed(
            moved, "upload", path=target, source="tar", files=moved.files, size=moved.size
        )

    def _parse_most(self, max_size: int | str | None) -> int:
        if max_size is not None:
            return parse_size(max_size, field="max_size")
        return self._sandbox.limits.workspace + self._sandbox.limits.tmp

    async def _changed(self, made: T, event: str, **fields: object) -> T:
        if self._on_change is not None:
            plain = {
                k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in fields.items()
            }
            await self._on_change(event, **plain)
        return made

    async def _find_mapped(self) -> set[int] | None:
        """As that of the guest. `tree_protocol` uses it."""
        async with self._sandbox.using() as (_, guest):
            return await anyio.to_thread.run_sync(guest.find_mapped)

    async def call(
        self, path: str, header: dict[str, Any], payload: bytes = b"", *, watching: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        """Send one request to the guest. `transfer`, `tree_protocol` and others use it too."""
        async with self._sandbox.using(watching=watching) as (channel, _):
            answer, data = await channel.call(wire.FILE, header, payload)
        error = answer.get("error")
        if isinstance(error, dict):
            code, said = parse_errno(error.get("errno")), str(error.get("message"))
            message = f"{one_line(said, _MAX_REASON)}: {path!r}"
            raise file_error(code, path, message, hint=find_hint(code, error, self.root))
        result = answer.get("result")
        return (result if isinstance(result, dict) else {}), data


def absolute_path(path: GuestPath, workdir: str) -> str:
    """The path below the workspace, unless it is absolute. The guest's kernel resolves it."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(path, str) or not path:
        raise InvalidOption(f"a path must be a non-empty str, not {path!r}")
    if "\0" in path:
        raise InvalidOption(f"a path must not contain NUL: {path!r}")
    check_encodable("a path", path)
    # "." is removed, ".." stays: its meaning depends on links that only the guest can see.
    parts = [part for part in posixpath.join(workdir, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def parse_listing(directory: str, data: bytes) -> list[FileInfo]:
    try:
        if len(data) > messages.LIST_PAGE * _MAX_ENTRY:
            raise ProtocolError("the guest sent a listing that is too long")
        entries = json.loads(data) if data else []
        if len(entries) > messages.LIST_PAGE:
            raise ProtocolError("the guest sent a listing that is too long")
        if not all(is_file_name(each["name"]) and len(each["name"]) <= 255 for each in entries):
            raise ProtocolError("the guest sent an invalid file name")
        return [parse_info(posixpath.join(directory, each["name"]), each) for each in entries]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("the guest sent a malformed listing") from None


def parse_info(path: str, body: dict[str, Any]) -> FileInfo:
    """Parse a description that a hostile guest may have written."""
    kind: Any = body.get("type")
    mtime = body.get("mtime")
    target, leads_to = body.get("target"), body.get("target_type")
    sane = target is None and leads_to is None
    if kind == "symlink":
        sane = isinstance(target, str) and len(target) <= _MAX_PATH and leads_to in (None, *KINDS)
    if kind not in KINDS or not isinstance(mtime, float) or not sane:
        raise ProtocolError("the guest sent a malformed file description")
    return FileInfo(
        name=posixpath.basename(path.rstrip("/")) or path,
        path=path,
        type=kind,
        size=parse_number(body.get("size")),
        mode=parse_number(body.get("mode")),
        mtime=mtime,
        uid=parse_number(body.get("uid")),
        gid=parse_number(body.get("gid")),
        target=target,
        target_type=leads_to,
    )
