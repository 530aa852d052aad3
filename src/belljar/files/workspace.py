"""/workspace kept on this host: a directory of the caller's, mirrored into the guest and back.

The guest's own /workspace stays a tmpfs, with its exact limit, and the guest never touches a
file system of the host's. When a guest starts, the directory is brought in (`load`); after each
cell, command and file operation the changes are brought back (`save`); what the caller himself
changed in the directory meanwhile is brought in before the next cell (`refresh`). Of a file that
both have changed, the guest's version is kept, with a note; a file that one has removed and the
other changed stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

import anyio
import anyio.to_thread

from belljar.backends.event_loop import Lock
from belljar.backends.linux.safe_dir import Beneath, Found
from belljar.errors import FileError, GuestLost, InvalidOption
from belljar.files import tree_protocol
from belljar.files.api import AsyncFiles
from belljar.files.sessions import Session
from belljar.files.sync import Known, Ledger, Save, Signature, cost, decide
from belljar.files.transfer import Progress, carryable
from belljar.files.tree_protocol import Budget, Census, LeftOut, Order
from belljar.files.uploads import Outflow, send
from belljar.limits import format_size
from belljar.protocol.messages import FRESH
from belljar.sandbox.options import Options

MAX_FILES = 20_000  # that are carried out of a guest, and kept here
MAX_HOST_FILES = 40_000  # that are looked at here: the caller may have more of his own
SAVE_TIMEOUT = 120.0  # seconds; a guest that answers slowly shall not keep close() for ever
MAX_TOLD = 1000  # sentences that are remembered, so that they are not said again


def open(options: Options, limit: int) -> HostWorkspace:
    """The one that the options name: a directory, or a session, which is then held."""
    if options.session is None:
        return HostWorkspace(options.workspace or "", limit=limit)
    session = Session(options.session)
    try:
        return HostWorkspace(session.path, limit=limit, session=session)
    except BaseException:
        session.close()
        raise


class HostWorkspace:
    """Called by one sandbox; its methods wait for each other."""

    def __init__(
        self, path: str | os.PathLike[str], *, limit: int, session: Session | None = None
    ) -> None:
        """The directory is made if it is missing. `limit`: that of the sandbox's /workspace."""
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise InvalidOption(f"workspace is the path of a directory, not {path!r}")
        self.path = os.path.abspath(os.path.expanduser(path))
        self._limit = limit
        self._session = session
        try:
            self._host = Beneath(self.path, make=True)
        except OSError as error:
            raise self._unusable(error) from error
        self._known: dict[str, Known] = {}
        self._unread: dict[str, Signature] = {}  # files here that could not be brought in
        self._most = MAX_FILES
        self._notes: list[str] = []  # to be told with the next save
        self._told: set[str] = set()
        self.saved = True  # all that could be carried was here after the last save
        self._turn = Lock()

    def _sweep(self) -> None:
        """Unless another sandbox writes here just now."""
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._host.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._host.sweep(MAX_HOST_FILES)
            fcntl.flock(self._host.fd, fcntl.LOCK_SH)

    def close(self) -> None:
        """May be called twice."""
        self._host.close()
        if self._session is not None:
            self._session.close()

    # -- host to guest ----------------------------------------------------------------------

    async def load(self, files: AsyncFiles) -> None:
        """Bring the directory into a guest that has just started, and has nothing yet."""
        async with self._turn:
            self._known, self._unread = {}, {}
            await anyio.to_thread.run_sync(self._sweep)
            census = await self._scan()
            # Of a caller with more than is carried, some may be new nevertheless.
            self._most = MAX_FILES if len(census.entries) <= MAX_FILES else MAX_HOST_FILES
            size = sum(cost(entry.signature) for entry in census.entries.values())
            if size > self._limit:
                raise self._too_large(size)
            try:
                await self._bring_in(files, census.entries, census.left_out)
            except FileError as error:
                if error.errno == errno.ENOSPC:
                    raise self._too_large(size) from error
                raise
            except OSError as error:
                raise self._unusable(error) from error
            self._notes = census.left_out.sentences()

    def _unusable(self, error: OSError) -> InvalidOption:
        return InvalidOption(
            f"workspace {self.path!r} cannot be used: {error.strerror}",
            hint="name a directory that you may write to, or one that can be made",
        )

    def _too_large(self, size: int) -> InvalidOption:
        return InvalidOption(
            f"the files in {self.path!r} take {format_size(size)} or more, and the sandbox's "
            f"workspace has {format_size(self._limit)}",
            hint='allow more: limits=Limits(workspace="2g"), or give it as a mount',
        )

    async def _scan(self) -> Census:
        """Of this host's side."""
        try:
            found, unread = await anyio.to_thread.run_sync(self._host.scan, MAX_HOST_FILES)
        except OverflowError:
            raise InvalidOption(
                f"the workspace {self.path!r} holds more than {MAX_HOST_FILES} files",
                hint="give large data as a mount: mounts=[Mount(host, guest)]",
            ) from None
        census = Census(unseen={path for path, _ in unread})
        for path, reason in unread:
            census.left_out.add(path, reason)
        census.entries = dict(carryable(found, census.left_out))
        return census

    async def _bring_in(
        self, files: AsyncFiles, found: dict[str, Found], left_out: LeftOut
    ) -> None:
        outflow = Outflow(self._host, found.items(), left_out=left_out)
        written = await send(files, files.root, outflow, Progress(None, 0))
        if written:
            # So that whatever the guest writes from now on gets another time stamp than these.
            await anyio.sleep(FRESH / 1e9)
        for path, entry in found.items():
            there = written.get(path) if entry.kind == "file" else entry
            if there is None:
                self._unread[path] = entry.signature
            else:
                self._known[path] = Known(entry.kind, there.signature, entry.signature)

    async def refresh(self, files: AsyncFiles) -> None:
        """Bring in what the caller changed in the directory. Costs a look at it, if nothing."""
        async with self._turn:
            try:
                await self._refresh(files)
            except (FileError, InvalidOption, OSError) as error:
                self._notes.append(f"changes in {self.path!r} were not brought in: {error}")

    async def _refresh(self, files: AsyncFiles) -> None:
        census = await self._scan()
        self._unread = {path: each for path, each in self._unread.items() if path in census.entries}
        if not self._changed(census):
            return
        self._notes += await self._save(files)  # of what both have changed, the guest's wins
        census = await self._scan()
        differs = self._changed(census)
        changed = {path: each for path, each in census.entries.items() if path in differs}
        gone = [path for path in differs if path not in census.entries]
        replaced = [p for p, each in changed.items() if self._kind(p) not in ("", each.kind)]
        await self._remove_inside(files, [*gone, *replaced])
        await self._bring_in(files, changed, census.left_out)

    def _changed(self, census: Census) -> set[str]:
        """The paths that are not here as they are known."""
        found = census.entries
        changed = {path for path in self._known if path not in found and census.covers(path)}
        for path, entry in found.items():
            known = self._known.get(path)
            before = known.host if known is not None else self._unread.get(path)
            if before != entry.signature:
                changed.add(path)
        return changed

    def _kind(self, path: str) -> str:
        known = self._known.get(path)
        return known.kind if known is not None else ""

    async def _remove_inside(self, files: AsyncFiles, paths: list[str]) -> None:
        for start in range(0, len(paths), tree_protocol.ROWS):
            orders = [Order("remove", path) for path in paths[start : start + tree_protocol.ROWS]]
            tree_protocol.check(
                orders, await tree_protocol.push(files, files.root, orders), files.root
            )
        for path in paths:
            self._known.pop(path, None)

    # -- guest to host ----------------------------------------------------------------------

    async def save(self, files: AsyncFiles) -> list[str]:
        """Bring back what has changed. Sentences about what could not be, each of them once."""
        async with self._turn:
            notes = [*self._notes, *await self._save(files)]
            self._notes = []
            if len(self._told) > MAX_TOLD:
                self._told.clear()
            new = [note for note in dict.fromkeys(notes) if note not in self._told]
            self._told.update(new)
            return new

    async def _save(self, files: AsyncFiles) -> list[str]:
        """What a guest does to prevent it is its own loss, and no error of the cell before."""
        why, self.saved = "it took too long", False
        try:
            with anyio.move_on_after(SAVE_TIMEOUT):
                return await self._carry_out(files)
        except GuestLost:
            why = "the guest died"
        except FileError as error:
            why = error.message
        return [f"not everything was brought back to {self.path!r}: {why}"]

    async def _carry_out(self, files: AsyncFiles) -> list[str]:
        census = await tree_protocol.scan(files, files.root, most=MAX_FILES, unlock=True)
        if any(entry.kind == "file" for entry in census.entries.values()):
            census.mapped = await tree_protocol.mapped(files, files.root)
        plan = decide(self._known, census, self._ledger())
        save = Save(self._host, self._known, census, self._ledger())
        if plan.remove or plan.make or plan.fetch:
            wanted = await anyio.to_thread.run_sync(save.arrange, plan)
            budget = Budget(self._limit)
            try:
                await tree_protocol.fetch(
                    files, files.root, wanted, budget, save.receive, unlock=True
                )
            finally:
                save.close()
        self.saved = not census.left_out.lost
        return census.left_out.sentences() + save.notes

    def _ledger(self) -> Ledger:
        held = {path: known.host for path, known in self._known.items()}
        return Ledger({**self._unread, **held}.items(), self._limit, self._most)
