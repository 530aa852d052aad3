"""Files of a sandbox. The guest's init does the work: the host never resolves a guest's path."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, overload

import anyio
import anyio.to_thread

from belljar.backends.base import Guest
from belljar.backends.linux.safe_dir import Kind, is_file_name
from belljar.errors import (
    FileError,
    InvalidOption,
    ProtocolError,
    check_callbacks,
    check_encodable,
    file_error,
    suggests,
)
from belljar.files import transfer
from belljar.files.transfer import OnProgress, Transfer
from belljar.files.tree_protocol import PART, parse_errno, parse_number
from belljar.limits import Limits, parse_size
from belljar.protocol import messages, wire
from belljar.text import one_line

MAX_READ = 1024 * 1024 * 1024
_MAX_REASON = 200  # characters
_MAX_ENTRY = 4096  # bytes of JSON: a name of 255 bytes, escaped, and five numbers

T = TypeVar("T")
# A path in the sandbox: PurePosixPath("out") / "chart.png", or its text.
GuestPath = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    name: str
    path: str  # in the sandbox
    type: Kind
    size: int  # bytes
    mode: int  # permission bits
    mtime: float  # seconds since the epoch


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

    def using(self) -> AbstractAsyncContextManager[tuple[Caller, Guest]]: ...


@suggests
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
        """Write a file and make the directories above it; an existing file is replaced."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidOption(f"data must be str or bytes, not {type(data).__name__}")
        view, target = memoryview(data), self._absolute(path)
        result: dict[str, Any] = {}
        for start in range(0, max(len(view), 1), PART):
            header = {"op": "write", "path": target, "append": start > 0}
            result, _ = await self.call(target, header, bytes(view[start : start + PART]))
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

    async def stat(self, path: GuestPath) -> FileInfo:
        """Describe the path itself: a symbolic link is not followed."""
        target = self._absolute(path)
        return parse_info(target, (await self.call(target, {"op": "stat", "path": target}))[0])

    async def make_dir(self, path: GuestPath) -> FileInfo:
        """Make a directory and those above it; it may exist already."""
        target = self._absolute(path)
        made, _ = await self.call(target, {"op": "make_dir", "path": target})
        return await self._changed(parse_info(target, made), "make_dir", path=path)

    async def remove(self, path: GuestPath) -> None:
        """Remove a file, or a directory with its content."""
        target = self._absolute(path)
        done = await self.call(target, {"op": "remove", "path": target})
        await self._changed(done, "remove", path=path)

    async def rename(self, old: GuestPath, new: GuestPath) -> FileInfo:
        target = self._absolute(old)
        header = {"op": "rename", "path": target, "to": self._absolute(new)}
        made, _ = await self.call(target, header)
        return await self._changed(
            parse_info(self._absolute(new), made), "rename", old=old, new=new
        )

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
        source = check_local_path(local)
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
        target = check_local_path(local)
        check_callbacks(on_progress=on_progress)
        limits = self._sandbox.limits
        most = limits.workspace + limits.tmp
        if max_size is not None:
            most = parse_size(max_size, field="max_size")
        return await transfer.download(self, self._absolute(path), target, most, on_progress)

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
        self, path: str, header: dict[str, Any], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Send one request to the guest. `transfer` and `tree_protocol` use it too."""
        async with self._sandbox.using() as (channel, _):
            answer, data = await channel.call(wire.FILE, header, payload)
        error = answer.get("error")
        if isinstance(error, dict):
            raise _parse_error(error, path)
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


def check_local_path(given: object) -> str:
    """Check a path of this host that the caller gave."""
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if isinstance(path, str) and path and "\0" not in path:
            check_encodable("a path", path)
            return path
    raise InvalidOption(f"local must be the path of a file or directory, not {given!r}")


def _parse_error(error: dict[str, Any], path: str) -> FileError:
    code, said = parse_errno(error.get("errno")), str(error.get("message"))
    return file_error(code, path, f"{one_line(said, _MAX_REASON)}: {path!r}")


def parse_listing(directory: str, data: bytes) -> list[FileInfo]:
    try:
        if len(data) > messages.LIST_PAGE * _MAX_ENTRY:
            raise ProtocolError("the guest sent a listing that is too long")
        entries = json.loads(data) if data else []
        if len(entries) > messages.LIST_PAGE:
            raise ProtocolError("the guest sent a listing that is too long")
        if not all(is_file_name(entry["name"]) for entry in entries):
            raise ProtocolError("the guest sent an invalid file name")
        return [parse_info(posixpath.join(directory, each["name"]), each) for each in entries]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("the guest sent a malformed listing") from None


def parse_info(path: str, body: dict[str, Any]) -> FileInfo:
    """Parse a description that a hostile guest may have written."""
    kind, mtime = body.get("type"), body.get("mtime")
    if kind not in ("file", "dir", "symlink", "other") or not isinstance(mtime, float):
        raise ProtocolError("the guest sent a malformed file description")
    return FileInfo(
        name=posixpath.basename(path.rstrip("/")) or path,
        path=path,
        type=kind,
        size=parse_number(body.get("size")),
        mode=parse_number(body.get("mode")),
        mtime=mtime,
    )
