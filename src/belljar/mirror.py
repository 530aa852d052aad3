"""The host's half of a mirrored workspace: what to do so that it is as the guest has it.

`decide` compares, without I/O; `Save` carries it out. See workspace.py for the rules.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio.to_thread

from belljar.beneath import Beneath, Found
from belljar.downloads import Intake
from belljar.limits import format_size
from belljar.transfers import carryable
from belljar.trees import Census, Part

Signature = tuple[object, ...]


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


def decide(known: dict[str, Known], census: Census, limit: int) -> Plan:
    """Compare what the guest has with what is known. No I/O.

    What is larger than the limit on paper (sparse files, hard links) is not carried: it would
    take that much here. What is here already comes first.
    """
    plan, left = Plan(), limit
    carried = dict(carryable(census.entries, census.left_out))
    for path, entry in sorted(carried.items(), key=lambda item: item[0] not in known):
        if entry.kind == "file":
            if entry.size > left:
                reason = f"would make it more than the limit of {format_size(limit)}"
                census.left_out.add(path, reason)
                continue
            left -= entry.size
        before = known.get(path)
        if before is not None and before.kind != entry.kind:
            plan.remove.append(path)
        elif (
            before is not None
            and before.guest == entry.signature
            and (before.sure and entry.inode not in census.mapped)
        ):
            continue
        (plan.fetch if entry.kind == "file" else plan.make).append((path, entry))
    plan.remove += [path for path in known if path not in carried and census.covers(path)]
    plan.remove.sort(key=lambda path: path.count("/"), reverse=True)
    return plan


class Save:
    """The host's part of one save. An error of one file is a note, and the others go on."""

    def __init__(self, host: Beneath, known: dict[str, Known], census: Census) -> None:
        self._host = host
        self._known = known
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
            try:
                if entry.kind == "dir":
                    self._host.make_dir(path)
                else:
                    self._host.make_symlink(path, entry.target)
            except OSError as error:
                self._failed(path, error)
                continue
            self._known[path] = Known(entry.kind, entry.signature, entry.signature)
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
        self._known.pop(path)

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
                self._unread(part)
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
            self._known[part.path] = Known("file", part.found.signature, found.signature, sure)

    def _unread(self, part: Part) -> None:
        if part.error == errno.EFBIG:
            self._left_out.add(part.path, "would make it more than the limit")
        elif part.error != errno.ENOENT:  # which has been removed meanwhile
            self._left_out.add(part.path, f"could not be read ({os.strerror(part.error)})")

    def _failed(self, path: str, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        self._left_out.add(path, f"could not be written on this host ({reason})")
