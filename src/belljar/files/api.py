"""Files of a sandbox. The work is done inside, by the guest's init: no path is resolved here."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, overload

from belljar.backends.base import Guest
from belljar.backends.linux.safe_dir import Kind, is_file_name
from belljar.errors import FileError, InvalidOption, ProtocolError, file_error, suggests
from belljar.files import downloads, tree_protocol, uploads
from belljar.files.transfer import OnProgress, Transfer
from belljar.limits import Limits, format_size, parse_size
from belljar.protocol import messages as messages
from belljar.protocol import wire
from belljar.sandbox import options
from belljar.sandbox.channel import Channel
from belljar.text import one_line

PART = 4 * 1024 * 1024
MAX_READ = 1024 * 1024 * 1024
_EFBIG = 27
_LONGEST_REASON = 200  # characters
_LONGEST_ENTRY = 4096  # bytes of JSON: a name of 255, escaped, and five numbers

T = TypeVar("T")
GuestPath = (
    str | os.PathLike[str]
)  # of the sandbox: PurePosixPath("out") / "chart.png", or its text


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    name: str
    path: str  # in the sandbox
    type: Kind
    size: int  # bytes
    mode: int  # permission bits
    mtime: float  # seconds since the epoch


class Connected(Protocol):
    """Whoever has a live guest: the sandbox, or the one who starts it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def workdir(self) -> str: ...

    def using(self) -> AbstractAsyncContextManager[tuple[Channel, Guest]]: ...


@suggests
class AsyncFiles:
    """Read and write files of the sandbox. Relative paths are below its workspace."""

    def __init__(
        self, sandbox: Connected, *, on_change: Callable[..., Awaitable[object]] | None = None
    ) -> None:
        """`on_change` is awaited after each operation that has changed something, with its name
        and what it was about."""
        self._sandbox = sandbox
        self._on_change = on_change

    @property
    def root(self) -> str:
        """The workspace's own path."""
        return self._sandbox.workdir

    def _absolute(self, path: GuestPath) -> str:
        return absolute(path, self._sandbox.workdir)

    @overload
    async def read(self, path: GuestPath, *, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: GuestPath, *, format: Literal["bytes"]) -> bytes: ...
    async def read(
        self, path: GuestPath, *, format: Literal["text", "bytes"] = "text"
    ) -> str | bytes:
        """The content of a file: text (UTF-8), or `format="bytes"`."""
        if format not in ("text", "bytes"):
            raise InvalidOption(f"format is 'text' or 'bytes', not {format!r}")
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
        """In parts, so that neither side holds more than it must. A file that grows meanwhile
        is read up to the size it had at first."""
        content = bytearray()
        size: int | None = None
        while size is None or len(content) < size:
            wanted = PART if size is None else min(PART, size - len(content))
            header = {"op": "read", "path": path, "offset": len(content), "size": wanted}
            result, data = await self.call(path, header)
            if size is None:
                size = number(result, "size")
                if size > MAX_READ:
                    raise FileError(
                        f"{path!r} has {format_size(size)}, more than {format_size(MAX_READ)}",
                        errno=_EFBIG,
                        path=path,
                    )
            if not data:
                break  # it shrank
            content += data[: size - len(content)] if size else data
        return bytes(content)

    async def write(self, path: GuestPath, data: str | bytes) -> FileInfo:
        """Write a file, with the directories above it; what was there is replaced."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidOption(f"data is str or bytes, not {type(data).__name__}")
        view, target = memoryview(data), self._absolute(path)
        result: dict[str, Any] = {}
        for start in range(0, max(len(view), 1), PART):
            header = {"op": "write", "path": target, "append": start > 0}
            result, _ = await self.call(target, header, bytes(view[start : start + PART]))
        return await self._changed(info(target, result), "write", path=path, content=view)

    async def list(self, path: GuestPath = ".") -> list[FileInfo]:
        """What a directory holds, by name."""
        target = self._absolute(path)
        found: list[FileInfo] = []
        offset, total = 0, 1
        while offset < total:
            header = {"op": "list", "path": target, "offset": offset}
            result, data = await self.call(target, header)
            found += (info(posixpath.join(target, name), body) for name, body in listing(data))
            total, offset = number(result, "total"), offset + messages.LIST_PAGE
            if total > messages.MAX_LIST:
                raise ProtocolError("a listing longer than any")
        return found

    async def exists(self, path: GuestPath) -> bool:
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def stat(self, path: GuestPath) -> FileInfo:
        """Of the path itself: a symbolic link is not followed."""
        target = self._absolute(path)
        return info(target, (await self.call(target, {"op": "stat", "path": target}))[0])

    async def make_dir(self, path: GuestPath) -> FileInfo:
        """Make a directory, and those above it; one that is there already is fine."""
        target = self._absolute(path)
        made, _ = await self.call(target, {"op": "make_dir", "path": target})
        return await self._changed(info(target, made), "make_dir", path=path)

    async def remove(self, path: GuestPath) -> None:
        """Remove a file, or a directory with all that is in it."""
        target = self._absolute(path)
        done = await self.call(target, {"op": "remove", "path": target})
        await self._changed(done, "remove", path=path)

    async def rename(self, old: GuestPath, new: GuestPath) -> FileInfo:
        target = self._absolute(old)
        header = {"op": "rename", "path": target, "to": self._absolute(new)}
        made, _ = await self.call(target, header)
        return await self._changed(info(self._absolute(new), made), "rename", old=old, new=new)

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: GuestPath | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> Transfer:
        """Bring a file, or a directory with all that is in it, into the sandbox.

        `path` is where it will be (None: its name, in /workspace; with a "/" at its end: its name,
        in that directory). Files that are there already are replaced, directories merged. Links in
        a tree are carried if they stay inside it. `on_progress` gets the bytes so far and in all.
        """
        source = local_path(local)
        options.check_callbacks(on_progress=on_progress)
        name = os.path.basename(os.path.abspath(source))
        target = os.fspath(path) if path is not None else name
        if target.endswith("/"):
            target += name
        moved = await uploads.upload(self, source, self._absolute(target), on_progress)
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
        """Bring a file, or a directory with all that is in it, to this host.

        `local` is what it will be called here; a file goes into it, if it is a directory. Each file
        appears at once and whole; those that are there already are replaced, directories merged.
        No link of the sandbox's is followed here, and those that would lead out are not made.
        `max_size` bounds the bytes (None: what fits into the sandbox's own file systems).
        """
        target = local_path(local)
        options.check_callbacks(on_progress=on_progress)
        limits = self._sandbox.limits
        most = limits.workspace + limits.tmp
        if max_size is not None:
            most = parse_size(max_size, field="max_size")
        return await downloads.download(self, self._absolute(path), target, most, on_progress)

    async def _changed(self, made: T, event: str, **fields: object) -> T:
        if self._on_change is not None:
            plain = {
                k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in fields.items()
            }
            await self._on_change(event, **plain)
        return made

    async def call(
        self, path: str, header: dict[str, Any], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """One request to the guest. Also used by those who carry trees."""
        async with self._sandbox.using() as (channel, _):
            answer, data = await channel.call(wire.FILE, header, payload)
        error = answer.get("error")
        if isinstance(error, dict):
            raise _told(error, path)
        result = answer.get("result")
        return (result if isinstance(result, dict) else {}), data


def absolute(path: GuestPath, workdir: str) -> str:
    """Relative paths are below the workspace. Where it leads is for the guest's kernel to say."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(path, str) or not path:
        raise InvalidOption(f"a path is a non-empty str, not {path!r}")
    if "\0" in path:
        raise InvalidOption(f"a path has no NUL character: {path!r}")
    options.check_encodable("a path", path)
    # "." goes, ".." stays: what it means depends on links only the guest can see.
    parts = [part for part in posixpath.join(workdir, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def local_path(given: object) -> str:
    """A path of this host, as the caller may write it."""
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if isinstance(path, str) and path and "\0" not in path:
            options.check_encodable("a path", path)
            return path
    raise InvalidOption(f"local is the path of a file or directory, not {given!r}")


def number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ProtocolError(f"the guest answered without {name}")
    return value


def _told(error: dict[str, Any], path: str) -> FileError:
    code, said = tree_protocol.errno_of(error.get("errno")), str(error.get("message"))
    return file_error(code, path, f"{one_line(said, _LONGEST_REASON)}: {path!r}")


def listing(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    try:
        if len(data) > messages.LIST_PAGE * _LONGEST_ENTRY:
            raise ProtocolError("a listing longer than any")
        entries = json.loads(data) if data else []
        if len(entries) > messages.LIST_PAGE:
            raise ProtocolError("a listing longer than any")
        return [(_name(entry["name"]), entry) for entry in entries]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("a malformed listing") from None


def _name(name: object) -> str:
    if not is_file_name(name):
        raise ProtocolError("a file name that is none")
    return name


def info(path: str, body: dict[str, Any]) -> FileInfo:
    """Out of an answer that a hostile guest may have made."""
    kind, mtime = body.get("type"), body.get("mtime")
    if kind not in ("file", "dir", "symlink", "other") or not isinstance(mtime, float):
        raise ProtocolError("a malformed file description")
    return FileInfo(
        name=posixpath.basename(path.rstrip("/")) or path,
        path=path,
        type=kind,
        size=number(body, "size"),
        mode=number(body, "mode"),
        mtime=mtime,
    )
