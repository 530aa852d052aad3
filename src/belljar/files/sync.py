"""The host's half of a mirrored workspace: what to do so that it is as the guest has it.

`decide` compares, without I/O; `Save` carries it out. See workspace.py for the rules. A `Ledger`
counts what this host holds: that is what is limited, not what a guest shows of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio.to_thread

from belljar.backends.linux.safe_dir import Beneath, Found
from belljar.files.downloads import Intake
from belljar.files.transfer import carryable
from belljar.files.tree_protocol import Census, Part
from belljar.limits import format_size

PAGE = 4096  # what a file takes in a tmpfs is a multiple of it
SHORT_LINK = 127  # bytes of a link's target that a tmpfs keeps without a page

Signature = tuple[object, ...]  # of beneath.Found


@dataclass(frozen=True, slots=True)
class Known:
    """One file of which both sides have the same."""

    kind: str
    guest: Signature
    host: Signature
    sure: bool = True  # False: the guest's may have changed without showing it


@dataclass
class Plan:
    """What to do on the host, so that it is as the guest has it."""

    remove: list[str] = field(default_factory=list)  # children first
    make: list[tuple[str, Found]] = field(default_factory=list)  # directories and links
    fetch: list[tuple[str, Found]] = field(default_factory=list)


def cost(signature: Signature) -> int:
    """What a file takes in a guest when it is brought in, of that size or with that target."""
    _, detail = signature[:2]
    if isinstance(detail, int):
        return -(-detail // PAGE) * PAGE
    return PAGE if len(os.fsencode(str(detail))) > SHORT_LINK else 0


class Ledger:
    """What was brought to this host counts until it is removed, whether the guest shows it now
    or not: so the directory never outgrows its limits, and can be brought in again."""

    def __init__(self, held: Iterable[tuple[str, Signature]], limit: int, most: int) -> None:
        """`limit` is in bytes, `most` a number of files, directories and links."""
        self._held = {path: cost(signature) for path, signature in held}
        self._used = sum(self._held.values())
        self._limit = limit
        self._most = most

    def growth(self, path: str, signature: Signature) -> int:
        """By how much the directory would grow, if this took the place of what is there."""
        return cost(signature) - self._held.get(path, 0)

    def objection(self, path: str, signature: Signature) -> str:
        """Why it cannot be there; empty if it can. What takes no more than before always can."""
        if path not in self._held and len(self._held) >= self._most:
            return f"is more than {self._most} files"
        growth = self.growth(path, signature)
        if growth > 0 and self._used + growth > self._limit:
            return f"would make it more than the limit of {format_size(self._limit)}"
        return ""

    def put(self, path: str, signature: Signature) -> None:
        self._used += self.growth(path, signature)
        self._held[path] = cost(signature)

    def drop(self, path: str) -> None:
        self._used -= self._held.pop(path, 0)


def decide(known: dict[str, Known], census: Census, ledger: Ledger) -> Plan:
    """Compare what the guest has with what is known. No I/O; the ledger is that of afterwards.

    What is larger than the limit on paper (sparse files, hard links) is not carried: it would
    take that much here. What is here already comes first, and of that what becomes smaller.
    """
    plan = Plan()
    carried = _placed(dict(carryable(census.entries, census.left_out)))
    plan.remove = [path for path in known if path not in carried and census.covers(path)]
    for path in plan.remove:
        ledger.drop(path)

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


def _placed(found: dict[str, Found]) -> dict[str, Found]:
    """Those in directories that are carried too. All of them, unless a guest says that something
    is a directory and then that it is none: nothing is made here that is not counted."""
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
    """The host's part of one save. An error of one file is a note, and the others go on."""

    def __init__(
        self, host: Beneath, known: dict[str, Known], census: Census, ledger: Ledger
    ) -> None:
        """`ledger`: of what is here now. What was planned may fail, or turn out larger."""
        self._host = host
        self._known = known
        self._ledger = ledger
        self._left_out = census.left_out
        self._mapped = census.mapped
        self._intake = Intake(host)
        self.notes: list[str] = []

    def close(self) -> None:
        self._intake.close()

    def arrange(self, plan: Plan) -> list[tuple[str, int]]:
        """All but the content of files; those whose content is wanted."""
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
        """Only what is as it was brought here: what the caller has made of it since is his."""
        if self._touched(path, self._known[path]):
            self._known.pop(path)
            return
        try:
            self._host.remove(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # a directory with something new of the caller's
                self._failed(path, error)
        else:
            self._ledger.drop(path)
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
        """Without those that the caller has changed, and the guest has not as far as one sees."""
        wanted = []
        for path, entry in files:
            known = self._known.get(path)
            if known is not None and self._touched(path, known):
                if known.guest == entry.signature:
                    continue
                self.notes.append(f"{path!r} was changed on both sides; the sandbox's is kept")
            wanted.append((path, entry.size))
        return wanted

    def _touched(self, path: str, known: Known) -> bool:
        now = self._host.look(path)
        return now is not None and now.signature != known.host

    async def receive(self, parts: list[Part]) -> None:
        await anyio.to_thread.run_sync(self.take, parts)

    def take(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part.error:
                self._intake.close()  # what came of it before
                self._unread(part)
                continue
            if part.offset == 0 and not (part.found and self._admit(part.path, part.found)):
                self._intake.close()  # and what follows of it is passed over
                continue
            try:
                found = self._intake.write(part)
            except OSError as error:
                self._failed(part.path, error)
                continue
            if found is None or part.found is None:
                continue
            if not part.steady:
                self.notes.append(f"{part.path!r} was written to while it was brought back")
            # One that is mapped now is wanted once more when it is not: it may be written to last.
            sure = part.steady and part.settled and part.found.inode not in self._mapped
            self._keep(part.path, Known("file", part.found.signature, found.signature, sure))

    def _unread(self, part: Part) -> None:
        if part.error == errno.EFBIG:
            self._left_out.add(part.path, "would make it more than the limit")
        elif part.error != errno.ENOENT:  # which has been removed meanwhile
            self._left_out.add(part.path, f"could not be read ({os.strerror(part.error)})")

    def _failed(self, path: str, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        self._left_out.add(path, f"could not be written on this host ({reason})")
