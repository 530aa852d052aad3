"""Files of a sandbox. The work is done inside, by the guest's init: no path is resolved here."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from belljar import options
from belljar.errors import FileError, InvalidOption, ProtocolError, file_error
from belljar.guest import files as guest_files
from belljar.guest import wire
from belljar.limits import format_size

if TYPE_CHECKING:
    from belljar.sandbox import AsyncSandbox

WORKSPACE = "/workspace"
PART = 4 * 1024 * 1024
MAX_READ = 1024 * 1024 * 1024
_EFBIG = 27

Kind = Literal["file", "dir", "symlink", "other"]


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    name: str
    path: str  # in the sandbox
    type: Kind
    size: int  # bytes
    mode: int  # permission bits
    mtime: float  # seconds since the epoch


class AsyncFiles:
    """Read and write files of the sandbox. Relative paths are below /workspace."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @overload
    async def read(self, path: str, *, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: str, *, format: Literal["bytes"]) -> bytes: ...
    async def read(self, path: str, *, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """The content of a file: text (UTF-8), or `format="bytes"`."""
        if format not in ("text", "bytes"):
            raise InvalidOption(f"format is 'text' or 'bytes', not {format!r}")
        data = await self._read(absolute(path))
        if format == "bytes":
            return data
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidOption(
                f"{path!r} is not UTF-8 text: {error.reason} at byte {error.start}",
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
            result, data = await self._call(path, header)
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

    async def write(self, path: str, data: str | bytes) -> FileInfo:
        """Write a file, with the directories above it; what was there is replaced."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidOption(f"data is str or bytes, not {type(data).__name__}")
        view, target = memoryview(data), absolute(path)
        result: dict[str, Any] = {}
        for start in range(0, max(len(view), 1), PART):
            header = {"op": "write", "path": target, "append": start > 0}
            result, _ = await self._call(target, header, bytes(view[start : start + PART]))
        return info(target, result)

    async def list(self, path: str = WORKSPACE) -> list[FileInfo]:
        """What a directory holds, by name."""
        target = absolute(path)
        found: list[FileInfo] = []
        offset, total = 0, 1
        while offset < total:
            header = {"op": "list", "path": target, "offset": offset}
            result, data = await self._call(target, header)
            found += (info(posixpath.join(target, name), body) for name, body in listing(data))
            total, offset = number(result, "total"), offset + guest_files.PAGE
            if total > guest_files.MAX_LIST:
                raise ProtocolError("a listing longer than any")
        return found

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def stat(self, path: str) -> FileInfo:
        """Of the path itself: a symbolic link is not followed."""
        target = absolute(path)
        return info(target, (await self._call(target, {"op": "stat", "path": target}))[0])

    async def make_dir(self, path: str) -> FileInfo:
        """Make a directory, and those above it; one that is there already is fine."""
        target = absolute(path)
        return info(target, (await self._call(target, {"op": "make_dir", "path": target}))[0])

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        target = absolute(path)
        await self._call(target, {"op": "remove", "path": target})

    async def rename(self, old: str, new: str) -> FileInfo:
        target = absolute(old)
        header = {"op": "rename", "path": target, "to": absolute(new)}
        return info(absolute(new), (await self._call(target, header))[0])

    async def _call(
        self, path: str, header: dict[str, Any], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        channel, _ = await self._sandbox.connected()
        answer, data = await channel.call(wire.FILE, header, payload)
        error = answer.get("error")
        if isinstance(error, dict):
            raise file_error(number(error, "errno"), path, f"{error.get('message')}: {path!r}")
        result = answer.get("result")
        return (result if isinstance(result, dict) else {}), data


def absolute(path: str) -> str:
    """Relative paths are below the workspace. Where it leads is for the guest's kernel to say."""
    if not isinstance(path, str) or not path:
        raise InvalidOption(f"a path is a non-empty str, not {path!r}")
    if "\0" in path:
        raise InvalidOption(f"a path has no NUL character: {path!r}")
    options.check_encodable("a path", path)
    # "." goes, ".." stays: what it means depends on links only the guest can see.
    parts = [part for part in posixpath.join(WORKSPACE, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int:
        raise ProtocolError(f"the guest answered without {name}")
    return value


def listing(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    try:
        entries = json.loads(data) if data else []
        return [(str(entry["name"]), entry) for entry in entries]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("a malformed listing") from None


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
