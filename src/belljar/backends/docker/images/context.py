"""The directory of a Dockerfile: which files go to the engine, their hash, and their archive.

.dockerignore works as with the docker command: the last pattern that matches a path, or a directory
above it, decides; `!` includes it again; `**` is any number of directories.

Another process may write to the directory (a sandbox, if it is mounted in one): a file may become a
link or a pipe before it is sent. So no link is followed, and a file that has changed is an error.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import stat
import tarfile
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import anyio

from belljar.backends.linux.safe_dir import Beneath
from belljar.errors import EnvironmentBuildError

MAX_SIZE = 2 * 1024**3
CHUNK = 256 * 1024
BLOCK = 512
IGNORE = ".dockerignore"
NOT_NEEDED = "name what the Dockerfile does not need in .dockerignore"


Stamp = tuple[int, ...]  # equal as long as it is the same file with the same content


def _stamp(status: os.stat_result) -> Stamp:
    # Not st_mtime, which can be set back.
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: str  # relative, with slashes
    status: os.stat_result
    target: str = ""  # of a symbolic link

    @property
    def size(self) -> int:
        return self.status.st_size if stat.S_ISREG(self.status.st_mode) else 0


@dataclass(frozen=True, kw_only=True)
class Context:
    directory: Path
    dockerfile: str  # its name in the directory
    entries: tuple[Entry, ...]
    size: int  # bytes of all files
    digest: str


def read_context(path: Path) -> Context:
    """`path`: a Dockerfile, or the directory with it. Blocks; reads files that have changed."""
    directory, dockerfile = (path, "Dockerfile") if path.is_dir() else (path.parent, path.name)
    try:
        ignored = _read_ignore_file(directory, dockerfile)
        with Beneath(directory) as beneath:
            entries = tuple(_walk(beneath, ignored, {dockerfile, IGNORE}))
        size = sum(each.size for each in entries)
        if size > MAX_SIZE:
            largest = max(entries, key=lambda each: each.size)
            raise EnvironmentBuildError(
                f"the directory of the Dockerfile, {directory}, has {size / 2**30:.1f} GiB; at "
                f"most {MAX_SIZE / 2**30:.0f} GiB are sent to an engine (the largest file is "
                f"{largest.name})",
                hint="move the Dockerfile to a separate directory, or name what it does not need "
                "in .dockerignore",
            )
        digest = _digest(directory, dockerfile, entries)
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot read the directory of the Dockerfile, {directory}: "
            f"{error.filename or 'a file in it'}: {error.strerror}",
            hint=NOT_NEEDED,
        ) from error
    return Context(
        directory=directory, dockerfile=dockerfile, entries=entries, size=size, digest=digest
    )


# -- which files --------------------------------------------------------------------------------


class IgnorePatterns:
    """The rules of a .dockerignore file.

    >>> rules = IgnorePatterns(["*.log", "data/**/raw", "!data/keep/raw", "build/"])
    >>> rules.ignores("a.log"), rules.ignores("b/a.log"), rules.ignores("build/x/y")
    (True, False, True)
    >>> rules.ignores("data/a/b/raw/file"), rules.ignores("data/keep/raw/file")
    (True, False)
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules: list[tuple[IgnoreRule, bool]] = []
        for line in lines:
            pattern = "" if line.startswith("#") else line.strip()
            takes_back = pattern.startswith("!")
            pattern = os.path.normpath("/" + pattern.removeprefix("!").strip()).lstrip("/")
            if pattern:
                self._rules.append((IgnoreRule(pattern), takes_back))
        self.takes_back = any(takes_back for _, takes_back in self._rules)

    def ignores(self, name: str) -> bool:
        parts = name.split("/")
        names = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        ignored = False
        for rule, takes_back in self._rules:
            if takes_back == ignored and any(rule.matches(each) for each in names):
                ignored = not takes_back
        return ignored


# Wild cards: what stands in a pattern for any number of characters.
_DIRECTORIES, _ANYTHING, _WITHIN = "(?:.*/)?", ".*", "[^/]*"
_WILD = (_DIRECTORIES, _ANYTHING, _WITHIN)
_FEW = 2  # wild cards with which a regular expression is fast for any name
_FIXED = {"**/": _DIRECTORIES, "**": _ANYTHING, "*": _WITHIN, "?": "[^/]"}
_TOKEN = re.compile(
    r"\*\*/|\*\*|\*|\?"
    r"|\[(?P<not>\^?)(?P<set>(?:\\.|[^\]\\]){1,250})\]"  # short: or many "[" would take long
    r"|\\?(?P<letter>.)",
    re.DOTALL,
)


class IgnoreRule:
    """One pattern. Its parts are regular expressions, each for one character or a wild card."""

    def __init__(self, pattern: str) -> None:
        self.parts = list(_parts(pattern))
        self._whole = re.compile("".join(self.parts), re.DOTALL)
        self._wild = sum(part in _WILD for part in self.parts)
        self._single = [re.compile(part, re.DOTALL) for part in self.parts]

    def matches(self, name: str) -> bool:
        if self._wild <= _FEW:
            return self._whole.fullmatch(name) is not None
        return self.matches_slowly(name)

    def matches_slowly(self, name: str) -> bool:
        """The same, by keeping the set of places in the name that each part can reach. With many
        wild cards, an expression would try every way to divide the name among them."""
        places = {0}
        for part, single in zip(self.parts, self._single, strict=True):
            ahead = range(min(places, default=len(name)), len(name))
            if part == _ANYTHING:
                places.update(place + 1 for place in ahead)
            elif part == _DIRECTORIES:
                places.update(place + 1 for place in ahead if name[place] == "/")
            elif part == _WITHIN:
                for place in ahead:
                    if place in places and name[place] != "/":
                        places.add(place + 1)
            else:
                places = {
                    place + 1 for place in ahead if place in places and single.match(name[place])
                }
        return len(name) in places


def _parts(pattern: str) -> Iterable[str]:
    last = ""
    for token in _TOKEN.finditer(pattern):
        if token["set"]:
            inside = token["set"].replace("[", r"\[")
            part = f"[{'^/' if token['not'] else ''}{inside}]"
        else:
            part = _FIXED.get(token[0]) or re.escape(token["letter"])
        if part != last or part not in _WILD:  # a repeated wild card has no effect
            yield part
        last = part


def _read_ignore_file(directory: Path, dockerfile: str) -> IgnorePatterns:
    for name in (f"{dockerfile}.dockerignore", IGNORE):
        path = directory / name
        if path.is_file():
            try:
                return IgnorePatterns(path.read_text(encoding="utf-8-sig").splitlines())
            except (UnicodeDecodeError, re.error) as error:
                raise EnvironmentBuildError(f"{path} is malformed: {error}") from error
    return IgnorePatterns(())


def _walk(beneath: Beneath, ignored: IgnorePatterns, always: set[str]) -> Iterable[Entry]:
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        with beneath.directory(parent) as directory:
            for each in sorted(os.listdir(directory)):
                name = f"{parent}/{each}" if parent else each
                left_out = name not in always and ignored.ignores(name)
                status = os.stat(each, dir_fd=directory, follow_symlinks=False)
                is_directory = stat.S_ISDIR(status.st_mode)
                if is_directory and (not left_out or ignored.takes_back):
                    waiting.append(name)
                if left_out:
                    continue
                if stat.S_ISLNK(status.st_mode):
                    target = os.readlink(each, dir_fd=directory)
                    yield Entry(name=name, status=status, target=target)
                elif is_directory or stat.S_ISREG(status.st_mode):
                    yield Entry(name=name, status=status)
                # Sockets, pipes and devices are left out.


# -- the hash -----------------------------------------------------------------------------------


def _digest(directory: Path, dockerfile: str, entries: Iterable[Entry]) -> str:
    """The hash of everything that a build sees, except owners and times, which the docker command
    drops too."""
    whole = hashlib.sha256(dockerfile.encode())
    for each in sorted(entries, key=lambda each: each.name):
        mode, content = each.status.st_mode, each.target
        if stat.S_ISREG(mode):
            content = _file_digest(str(directory), each.name, _stamp(each.status))
        whole.update(f"\0{os.fsencode(each.name)!r}\0{mode:o}\0{content!r}".encode())
    return whole.hexdigest()[:16]


@functools.lru_cache(maxsize=50_000)
def _file_digest(directory: str, name: str, stamp: Stamp) -> str:
    with Beneath(directory) as beneath, _open_unchanged(beneath, name, stamp) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_unchanged(beneath: Beneath, name: str, stamp: Stamp) -> BufferedReader:
    """Open the file if it is still the same. Does not block, even if it is now a pipe."""
    file = os.fdopen(beneath.open(name), "rb")
    try:
        _check_unchanged(file, name, stamp)
    except BaseException:
        file.close()
        raise
    return file


def _check_unchanged(file: BufferedReader, name: str, stamp: Stamp) -> None:
    if _stamp(os.fstat(file.fileno())) != stamp:
        raise OSError(errno.ESTALE, "it was changed in the meantime", name)


# -- the archive --------------------------------------------------------------------------------


async def archive(context: Context) -> AsyncGenerator[bytes]:
    """A tar archive of the context, as a stream: never complete in memory or on disk."""
    name = ""
    try:
        with Beneath(context.directory) as beneath:
            for each in context.entries:
                header, name = _header(each), each.name
                yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                if not header.isreg():
                    continue
                stamp = _stamp(each.status)
                with _open_unchanged(beneath, name, stamp) as file:
                    left = header.size
                    while left:
                        piece = await anyio.to_thread.run_sync(file.read, min(CHUNK, left))
                        if not piece:
                            break
                        left -= len(piece)
                        yield piece
                    # Its digest names the image, so the content must be the one that was hashed.
                    _check_unchanged(file, name, stamp)
                yield bytes(-header.size % BLOCK)
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot read {context.directory / name}: {error.strerror}", hint=NOT_NEEDED
        ) from error
    yield bytes(2 * BLOCK)


def _header(entry: Entry) -> tarfile.TarInfo:
    header = tarfile.TarInfo(entry.name)
    header.mode = stat.S_IMODE(entry.status.st_mode)
    header.mtime = int(entry.status.st_mtime)
    if entry.target:
        header.type, header.linkname = tarfile.SYMTYPE, entry.target
    elif stat.S_ISDIR(entry.status.st_mode):
        header.type = tarfile.DIRTYPE
    else:
        header.size = entry.size
    return header
