"""A kept workspace: a directory of the caller on this host, mirrored to the guest's /workspace.

The guest's /workspace stays a tmpfs with its exact limit, and the guest never touches a file system
of the host. When a guest starts, `load` copies the directory in. After each cell, command and file
operation `save` copies changes back. Before the next cell `refresh` copies in what the caller
changed in the directory meanwhile. If both sides changed a file, the guest's version wins and a
note says so; if one side removed a file that the other changed, the file stays.
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
from belljar.files.sync import Known, Ledger, Save, Signature, plan_save, tmpfs_size
from belljar.files.transfer import OrderReader, Progress, scan_host, send_orders
from belljar.files.tree_protocol import Census, FileReader, LeftOut, Order
from belljar.limits import format_size
from belljar.protocol.messages import FRESH

MAX_FILES = 20_000  # copied out of a guest and kept here
MAX_HOST_FILES = 40_000  # listed here: the caller may add more
SAVE_TIMEOUT = 120.0  # seconds, so that a guest that answers slowly cannot delay close() for ever
MAX_TOLD = 1000  # sentences that are remembered, so that they are said once


def open_session(name: str, limit: int) -> HostWorkspace:
    """The workspace of a session, which is held until the workspace is closed."""
    session = Session(name)
    try:
        return HostWorkspace(session.path, limit=limit, session=session)
    except BaseException:
        session.close()
        raise


class HostWorkspace:
    """Used by one sandbox; its methods wait for each other."""

    def __init__(
        self, path: str | os.PathLike[str], *, limit: int, session: Session | None = None
    ) -> None:
        """Make the directory if it is missing. `limit`: that of the sandbox's /workspace."""
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise InvalidOption(f"workspace must be the path of a directory, not {path!r}")
        self.path = os.path.abspath(os.path.expanduser(path))
        self._limit = limit
        self._session = session
        try:
            self._host = Beneath(self.path, make=True)
        except OSError as error:
            raise self._unusable(error) from error
        self._known: dict[str, Known] = {}
        self._unread: dict[str, Signature] = {}  # files here that could not be copied in
        self._most = MAX_FILES
        self._notes: list[str] = []  # for the next save to return
        self._told: set[str] = set()
        self.saved = True  # the last save copied everything that can be copied
        self._turn = Lock()

    def _sweep(self) -> None:
        """Delete leftovers of killed processes, unless another sandbox writes here now."""
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
        """Copy the directory into a guest that has just started and has no files yet."""
        async with self._turn:
            self._known, self._unread = {}, {}
            await anyio.to_thread.run_sync(self._sweep)
            census = await self._scan()
            # A caller who has more files than MAX_FILES may still get new ones from the guest.
            self._most = MAX_FILES if len(census.entries) <= MAX_FILES else MAX_HOST_FILES
            size = sum(tmpfs_size(entry.signature) for entry in census.entries.values())
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
            hint="name a directory that you may write to, or one that Belljar can make",
        )

    def _too_large(self, size: int) -> InvalidOption:
        return InvalidOption(
            f"the files in {self.path!r} take {format_size(size)} or more, and the sandbox's "
            f"workspace has {format_size(self._limit)}",
            hint='allow more: limits=Limits(workspace="2g"), or use a mount',
        )

    async def _scan(self) -> Census:
        hint = "use a mount for large data: mounts=[Mount(host, guest)]"
        return await scan_host(self._host, MAX_HOST_FILES, f"the workspace {self.path!r}", hint)

    async def _bring_in(
        self, files: AsyncFiles, found: dict[str, Found], left_out: LeftOut
    ) -> None:
        reader = OrderReader(self._host, found.items(), left_out=left_out)
        written = await send_orders(files, files.root, reader, Progress(None, 0))
        if written:
            # What the guest writes from now on must get another time stamp than these files.
            await anyio.sleep(FRESH / 1e9)
        for path, entry in found.items():
            there = written.get(path) if entry.kind == "file" else entry
            if there is None:
                self._unread[path] = entry.signature
            else:
                self._known[path] = Known(entry.kind, there.signature, entry.signature)

    async def refresh(self, files: AsyncFiles) -> None:
        """Copy in what the caller changed in the directory; without changes it only lists it."""
        async with self._turn:
            try:
                await self._refresh(files)
            except (FileError, InvalidOption, OSError) as error:
                self._notes.append(
                    f"changes in {self.path!r} were not copied into the sandbox: {error}"
                )

    async def _refresh(self, files: AsyncFiles) -> None:
        census = await self._scan()
        self._unread = {path: each for path, each in self._unread.items() if path in census.entries}
        if not self._changed(census):
            return
        self._notes += await self._save(files)  # first: if both changed a file, the guest's wins
        census = await self._scan()
        differs = self._changed(census)
        changed = {path: each for path, each in census.entries.items() if path in differs}
        gone = [path for path in differs if path not in census.entries]
        known = self._known
        replaced = [p for p, new in changed.items() if p in known and known[p].kind != new.kind]
        await self._remove_inside(files, [*gone, *replaced])
        await self._bring_in(files, changed, census.left_out)

    def _changed(self, census: Census) -> set[str]:
        """The paths that differ from what the last copy left here."""
        found = census.entries
        changed = {path for path in self._known if path not in found and census.covers(path)}
        for path, entry in found.items():
            known = self._known.get(path)
            before = known.host if known is not None else self._unread.get(path)
            if before != entry.signature:
                changed.add(path)
        return changed

    async def _remove_inside(self, files: AsyncFiles, paths: list[str]) -> None:
        for start in range(0, len(paths), tree_protocol.ROWS):
            orders = [Order("remove", path) for path in paths[start : start + tree_protocol.ROWS]]
            await tree_protocol.push_orders(files, files.root, orders)
        for path in paths:
            self._known.pop(path, None)

    # -- guest to host ----------------------------------------------------------------------

    async def save(self, files: AsyncFiles) -> list[str]:
        """Copy changes back; return sentences about what was not copied, each of them once."""
        async with self._turn:
            notes = [*self._notes, *await self._save(files)]
            self._notes = []
            if len(self._told) > MAX_TOLD:
                self._told.clear()
            new = [note for note in dict.fromkeys(notes) if note not in self._told]
            self._told.update(new)
            return new

    async def _save(self, files: AsyncFiles) -> list[str]:
        """A failure is a note, not an error: the cell before has succeeded."""
        why, self.saved = f"it took longer than {SAVE_TIMEOUT:g} s", False
        try:
            with anyio.move_on_after(SAVE_TIMEOUT):
                return await self._carry_out(files)
        except GuestLost:
            why = "the guest died"
        except FileError as error:
            why = error.message
        return [f"not all changes were copied back to {self.path!r}: {why}"]

    async def _carry_out(self, files: AsyncFiles) -> list[str]:
        census = await tree_protocol.scan_tree(files, files.root, most=MAX_FILES, unlock=True)
        if any(entry.kind == "file" for entry in census.entries.values()):
            census.mapped = await tree_protocol.list_mapped(files, files.root)
        plan = plan_save(self._known, census, self._ledger())
        save = Save(self._host, self._known, census, self._ledger())
        if plan.remove or plan.make or plan.fetch:
            wanted = await anyio.to_thread.run_sync(save.arrange, plan)
            reader = FileReader(files, files.root, self._limit, save.receive, unlock=True)
            try:
                await reader.fetch(wanted)
            finally:
                save.close()
        self.saved = not census.left_out.lost
        return census.left_out.sentences() + save.notes

    def _ledger(self) -> Ledger:
        held = {path: known.host for path, known in self._known.items()}
        return Ledger({**self._unread, **held}.items(), self._limit, self._most)
