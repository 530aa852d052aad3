"""Copy changes of a guest's workspace to the directory on this host.

`plan_save` compares without I/O; `Save` carries the plan out; workspace.py has the rules. A
`Ledger` counts what the directory holds: the limits apply to that, not to what the guest shows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio.to_thread

from belljar.backends.linux.safe_dir import Beneath, Found
from belljar.files.transfer import PartWriter, select_carried
from belljar.files.tree_protocol import Census, FilePart
from belljar.limits import format_size

PAGE = 4096  # bytes; the size of a file in a tmpfs is a multiple of it
SHORT_LINK = 127  # bytes of a link's target that a tmpfs keeps without a page

Signature = tuple[object, ...]  # of safe_dir.Found


@dataclass(frozen=True, slots=True)
class Known:
    """One file that is the same on both sides."""

    kind: str
    guest: Signature
    host: Signature
    sure: bool = True  # False: the guest's file may have changed without a trace


@dataclass
class Plan:
    """What to do on the host to make it equal to the guest."""

    remove: list[str] = field(default_factory=list)  # children first
    make: list[tuple[str, Found]] = field(default_factory=list)  # directories and links
    fetch: list[tuple[str, Found]] = field(default_factory=list)


def tmpfs_size(signature: Signature) -> int:
    """The bytes that a file of this size, or a link with this target, takes in a guest."""
    _, detail = signature[:2]
    if isinstance(detail, int):
        return -(-detail // PAGE) * PAGE
    return PAGE if len(os.fsencode(str(detail))) > SHORT_LINK else 0


class Ledger:
    """Counts each file from its copy to this host until its removal, whether or not the guest still
    shows it. So the directory never outgrows its limits and always fits into a new guest."""

    def __init__(self, held: Iterable[tuple[str, Signature]], limit: int, most: int) -> None:
        """`limit` is in bytes, `most` a number of files, directories and links."""
        self._held = {path: tmpfs_size(signature) for path, signature in held}
        self._used = sum(self._held.values())
        self._limit = limit
        self._most = most

    def growth(self, path: str, signature: Signature) -> int:
        """By how much the directory would grow if this replaced the present file."""
        return tmpfs_size(signature) - self._held.get(path, 0)

    def objection(self, path: str, signature: Signature) -> str:
        """Why a limit forbids it; empty if not. A file that does not grow is always allowed."""
        if path not in self._held and len(self._held) >= self._most:
            return f"is more than {self._most} files"
        growth = self.growth(path, signature)
        if growth > 0 and self._used + growth > self._limit:
            return f"would exceed the limit of {format_size(self._limit)}"
        return ""

    def put(self, path: str, signature: Signature) -> None:
        self._used += self.growth(path, signature)
        self._held[path] = tmpfs_size(signature)

    def remove(self, path: str) -> None:
        self._used -= self._held.pop(path, 0)


def plan_save(known: dict[str, Known], census: Census, ledger: Ledger) -> Plan:
    """Compare the guest's tree with what is known. No I/O; it updates the ledger.

    Sparse files and hard links count with their full size, which they would take here. Files that
    are here already come first, and among them those that shrink.
    """
    plan = Plan()
    carried = _with_parents(dict(select_carried(census.entries, census.left_out)))
    plan.remove = [path for path in known if path not in carried and census.covers(path)]
    for path in plan.remove:
        ledger.remove(path)

    def turn(item: tuple[str, Found]) -> tuple[bool, int]:
        path, entry = item
        return (False, ledger.growth(path, entry.signature)) if path in known else (True, 0)

    for path, entry in sorted(carried.items(), key=turn):
        before = known.get(path)
        if before is not None and _is_same(before, entry, census):
            continue
        if reason := ledger.objection(path, entry.signature):
            census.left_out.add(path, reason)
            continue
        ledger.put(path, entry.signature)
        if before is not None and before.kind != entry.kind:
            plan.remove.append(path)
        (plan.fetch if entry.kind == "file" else plan.make).append((path, entry))
    plan.remove.sort(key=lambda path: path.count("/"), reverse=True)
    return plan


def _with_parents(found: dict[str, Found]) -> dict[str, Found]:
    """Only entries whose directory is carried too. That is all of them, unless a hostile guest
    contradicts itself: nothing may be made here that is not counted."""
    placed: dict[str, Found] = {}
    for path, entry in found.items():
        parent = path.rpartition("/")[0]
        if not parent or (parent in placed and placed[parent].kind == "dir"):
            placed[path] = entry
    return placed


def _is_same(before: Known, entry: Found, census: Census) -> bool:
    same = before.kind == entry.kind and before.guest == entry.signature
    return same and before.sure and entry.inode not in census.mapped


class Save:
    """Carries out one plan. An error of one file becomes a note, and the others go on."""

    def __init__(
        self, host: Beneath, known: dict[str, Known], census: Census, ledger: Ledger
    ) -> None:
        """`ledger`: of what is here now, because a planned step may fail or turn out larger."""
        self._host = host
        self._known = known
        self._ledger = ledger
        self._left_out = census.left_out
        self._mapped = census.mapped
        self._writer = PartWriter(host)
        self.notes: list[str] = []

    def close(self) -> None:
        self._writer.close()

    def arrange(self, plan: Plan) -> list[tuple[str, int]]:
        """Do everything but the content of files; return the files to fetch."""
        for path in plan.remove:
            self._remove(path)
        for path, entry in plan.make:
            if not self._admit(path, entry):
                continue
            try:
                if entry.kind == "dir":
                    self._host.make_dir(path)
                else:
                    self._host.make_symlink(path, entry.target)
            except OSError as error:
                self._failed(path, error)
                continue
            self._keep(path, Known(entry.kind, entry.signature, entry.signature))
        return self._wanted(plan.fetch)

    def _remove(self, path: str) -> None:
        """Remove it only if it is unchanged since the copy: the caller's changes stay."""
        if self._touched(path, self._known[path]):
            self._known.pop(path)
            return
        try:
            self._host.remove(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # the caller put a new file into the directory
                self._failed(path, error)
        else:
            self._ledger.remove(path)
        self._known.pop(path)

    def _admit(self, path: str, entry: Found) -> bool:
        reason = self._ledger.objection(path, entry.signature)
        if reason:
            self._left_out.add(path, reason)
        return not reason

    def _keep(self, path: str, known: Known) -> None:
        self._known[path] = known
        self._ledger.put(path, known.host)

    def _wanted(self, files: list[tuple[str, Found]]) -> list[tuple[str, int]]:
        """Leave out files that only the caller has changed, as far as the host can see."""
        wanted = []
        for path, entry in files:
            known = self._known.get(path)
            if known is not None and self._touched(path, known):
                if known.guest == entry.signature:
                    continue
                self.notes.append(f"{path!r} changed on both sides; the sandbox's version is kept")
            wanted.append((path, entry.size))
        return wanted

    def _touched(self, path: str, known: Known) -> bool:
        now = self._host.look(path)
        return now is not None and now.signature != known.host

    async def receive(self, parts: list[FilePart]) -> None:
        await anyio.to_thread.run_sync(self.take, parts)

    def take(self, parts: Iterable[FilePart]) -> None:
        for part in parts:
            if part.error:
                self._writer.close()  # discards the parts before
                self._note_unread(part)
                continue
            if part.offset == 0 and not (part.found and self._admit(part.path, part.found)):
                self._writer.close()  # so that `write` skips the other parts
                continue
            try:
                found = self._writer.write(part)
            except OSError as error:
                self._failed(part.path, error)
                continue
            if found is None or part.found is None:
                continue
            if not part.steady:
                self.notes.append(f"{part.path!r} changed while it was copied back")
            # A file that is mapped now is copied again later: its last writes leave no trace.
            sure = part.steady and part.settled and part.found.inode not in self._mapped
            self._keep(part.path, Known("file", part.found.signature, found.signature, sure))

    def _note_unread(self, part: FilePart) -> None:
        if part.error == errno.EFBIG:
            self._left_out.add(part.path, "would exceed the limit")
        elif part.error != errno.ENOENT:  # removed meanwhile
            self._left_out.add(part.path, f"could not be read ({os.strerror(part.error)})")

    def _failed(self, path: str, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        self._left_out.add(path, f"could not be written on this host ({reason})")
