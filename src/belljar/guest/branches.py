"""Checkpoints and branches: interpreters that are parked, and the workspaces that belong to them.

A parked worker is a fork of the one that runs cells, waiting at a socket of its own. A checkpoint's
never runs a cell; to go back to it, it is forked again. A branch's runs when it is switched to.
Only one branch is active; whatever belongs to the others is stopped meanwhile.

Longer than other files: what is begun here goes on in callbacks, which are read best side by side.
"""

import errno
import os
import signal
from typing import Any, Callable, Dict, List, Optional

from ..protocol import wire
from . import archive_store, commands
from .commands import signal_processes, wait_until_stopped
from .worker_process import Keeper
from .workspace_store import CURRENT, Store

MAX_LACKS = 20
DIED = "the interpreter died while it was copied"


class Branch:
    """One line of life: an interpreter and a workspace."""

    def __init__(self, number: int, keeper: Keeper) -> None:
        self.number = number
        self.keeper = keeper
        self.files = CURRENT  # where they lie when it is not active
        self.functions: List[Any] = []  # of the host
        self.fresh = False  # variables were lost since the last cell
        self.asleep = False  # it has not run since it was parked
        self.stopped: Dict[int, int] = {}  # process -> when it was started: numbers are used again
        self.released = False


class Checkpoint:
    """A checkpoint."""

    def __init__(self, keeper: Keeper, files: str) -> None:
        self.keeper = keeper
        self.files = files


class Copy:
    """A copy of interpreter and workspace in the making: done when all three parts are."""

    def __init__(self, keeper: Keeper, parent: Keeper, then: "Callable[[Copy], None]") -> None:
        self.keeper = keeper
        self.parent = parent
        self.files = ""
        self.lacks: List[str] = []
        self.error = ""
        self.waits = {"forked", "ready", "files"}
        self._then = then

    def done(self, *parts: str, error: str = "") -> None:
        self.error = self.error or error
        self.waits.difference_update(parts)
        if not self.waits:
            then, self._then = self._then, _ignore
            then(self)


def _ignore(copy: Copy) -> None:
    """Nobody waits for it any more."""


class Branches:
    def __init__(self, init: Any, setup: Dict[str, Any]) -> None:
        self._init = init
        self._setup = setup
        self.store, self._without = archive_store.choose(setup)
        self.active = Branch(0, self._keeper())
        self._branches = {0: self.active}
        self._kept: Dict[int, Checkpoint] = {}
        self._copy: Optional[Copy] = None
        self._after_death: Optional[Callable[[], None]] = None
        self._heir: Optional[Keeper] = None  # will be active when the active one is dead
        self.replacing = False  # no interpreter is to be started for one that has ended

    def _keeper(self) -> Keeper:
        return Keeper(self._init, self._setup, self._init.on_worker_frame)

    # -- requests ---------------------------------------------------------------------------

    def keep(self, frame: wire.Frame) -> None:
        """Park a copy of the active interpreter, as a checkpoint or a branch."""
        number, branch = int(frame.header["number"]), bool(frame.header["branch"])

        def done(copy: Copy) -> None:
            if copy.error:
                self._abandon(copy)
            elif branch:
                made = Branch(number, copy.keeper)
                made.files, made.asleep = copy.files, True
                made.functions, made.fresh = self.active.functions, self.active.fresh
                self._branches[number] = made
            else:
                self._kept[number] = Checkpoint(copy.keeper, copy.files)
            self._reply(frame, copy.error, {"lacks": copy.lacks})

        self._start_copy(frame, self.active.keeper, CURRENT, done)

    def go_back(self, frame: wire.Frame) -> None:
        """Fork a checkpoint's interpreter again, and let the fork take the active one's place."""
        number = int(frame.header["number"])
        kept = self._kept.get(number)
        if kept is None:
            self._reply(frame, "there is no such checkpoint any more", {"lost": True})
            return

        def done(copy: Copy) -> None:
            if not copy.error:
                self._succeed(copy, frame)
                return
            self._abandon(copy)
            if number not in self._kept:
                self._reply(frame, copy.error, {"lost": True})
            else:
                self._make_room(lambda: self._go_back_alone(frame, number))

        self._start_copy(frame, kept.keeper, kept.files, done)

    def _go_back_alone(self, frame: wire.Frame, number: int) -> None:
        """There was not room enough for both, so the active interpreter is gone: it was to go
        anyhow. Its files go only when the checkpoint's can take their place as they are; then
        the checkpoint gets a copy of them again, if there is room for that."""
        self.replacing = False
        kept = self._kept.get(number)
        if kept is None:
            self._reply(frame, "there is no such checkpoint any more", {"lost": True})
            self._init.start_worker()
            return

        def done(copy: Copy) -> None:
            self.replacing = False
            if copy.error:
                self._abandon(copy)
                self._reply(frame, f"{copy.error}; variables are lost, files are as they were")
                self._init.start_worker()
                return
            self.active.keeper, self.active.fresh, self.active.asleep = copy.keeper, False, True
            files, kept.files = kept.files, ""
            store = self._store()
            store.remove(store.set_aside(), lambda error: exchange(files))

        def exchange(files: str) -> None:
            if self._bring(files, frame):
                keep_again()
            elif number in self._kept:
                kept.files = files
            else:
                self._store().remove(files)

        def keep_again() -> None:
            try:
                kept.files = self._store().make()
            except OSError as error:
                finish(error.errno or errno.EIO)
            else:
                self._store().copy(CURRENT, kept.files, finish)

        def finish(error: int) -> None:
            if error or number not in self._kept:
                self._kept.pop(number, None)
                self._end(kept.keeper, kept.files)
            self._wake()
            self._reply(frame)

        self.replacing = True
        self._start_copy(frame, kept.keeper, "", done)

    def release(self, frame: wire.Frame) -> None:
        if frame.header.get("stuck"):
            self._give_up()
            self._reply(frame)
            return
        number = int(frame.header["number"])
        kept, branch = self._kept.pop(number, None), self._branches.pop(number, None)
        if kept is not None:
            self._end(kept.keeper, kept.files)
        elif branch is not None:
            branch.released = True
            signal_processes(branch.stopped, signal.SIGKILL)
            if branch is self.active:
                for command in list(self._init.commands.values()):
                    command.kill()
                branch.keeper.signal(signal.SIGKILL)
            else:
                self._end(branch.keeper, branch.files)
        self._reply(frame)

    def switch(self, frame: wire.Frame) -> None:
        """From now on, all is about another branch: no cell, command or file is under way. If it
        fails, and somebody wants to know, the active one goes on as if nothing had been."""
        active, target = self.active, self._branches[int(frame.header["branch"])]
        try:
            if target is not active:
                self._switch(target)
        except OSError as error:
            if not frame.request or active.released:
                raise
            signal_processes(active.stopped, signal.SIGCONT)
            active.stopped = {}
            self._reply(frame, _words(error.errno or errno.EIO))
            return
        if frame.request:
            self._reply(frame)

    def _switch(self, target: Branch) -> None:
        active, store = self.active, self._store()
        self._stop(active)
        aside = store.set_aside()
        if active.released:
            active.keeper.gone()
            store.remove(aside)
        store.bring(target.files)
        if not active.released:
            active.files = aside
            active.asleep = True  # its files may not be the same ones when they are back
        self.active = target
        signal_processes(target.stopped, signal.SIGCONT)
        target.stopped = {}
        if target.keeper.pid:
            self._wake()
        else:
            self._init.start_worker()

    # -- making copies ----------------------------------------------------------------------

    def _start_copy(
        self,
        frame: wire.Frame,
        parent: Keeper,
        files: str,
        then: "Callable[[Copy], None]",
    ) -> None:
        """Without `files`, of the interpreter alone."""
        if self.store is None:
            self._reply(frame, f"checkpoints are not to be had: {self._without}")
            return
        if self._copy is not None or self._after_death is not None:
            self._reply(frame, "checkpoints are not to be had now")
            return
        if not parent.pid:
            self._reply(frame, "there is no interpreter to copy: out of processes")
            return

        def finish(copy: Copy) -> None:
            self._copy = None
            then(copy)

        copy = self._copy = Copy(self._keeper(), parent, finish)
        end = copy.keeper.expect()
        parent.signal(signal.SIGCONT)  # the code may have stopped it
        parent.send(wire.pack(wire.FORK, 0, {"fds": 1}), (end,))
        if not files:
            copy.done("files")
            return
        try:
            copy.files = self.store.make()
        except OSError as error:
            copy.done("files", error=_words(error.errno or errno.EIO))
        else:
            self.store.copy(files, copy.files, lambda e: copy.done("files", error=_words(e)))

    def _succeed(self, copy: Copy, frame: wire.Frame) -> None:
        """A copy of a checkpoint takes the place of the active interpreter."""

        def replace() -> None:
            self._heir = None
            if not copy.keeper.pid:
                self._abandon(copy)
                self._reply(frame, DIED)
                return
            self.active.keeper, self.active.fresh, self.active.asleep = copy.keeper, False, True
            store = self._store()
            store.remove(store.set_aside())
            if self._bring(copy.files, frame):
                self._wake()
                self._reply(frame)
            else:
                store.remove(copy.files)

        self._heir = copy.keeper
        self._end_active(replace)

    def _bring(self, files: str, frame: wire.Frame) -> bool:
        """Into /workspace, where nothing is wanted any more. Whether they are there: else whoever
        asked for it is told, and may try again."""
        try:
            self._store().bring(files)
        except OSError as error:
            words = f"{_words(error.errno or errno.EIO)}; variables and files are lost"
            self.active.asleep = False
            self._end_active(lambda: self._reply(frame, words))
            return False
        return True

    def _end_active(self, then: "Callable[[], None]") -> None:
        if self.active.keeper.pid:
            self._after_death = then
            self.active.keeper.signal(signal.SIGKILL)
        else:
            then()

    def _make_room(self, then: "Callable[[], None]") -> None:
        """End the active interpreter with all it started. Nothing takes its place yet."""
        store = self._store()
        self.replacing = True

        def when_alone() -> None:
            # Those killed still count, until the kernel is done with them; and one that was being
            # forked when all others were killed appears only now.
            ours = {self.active.keeper.pid} | self.protected()
            others = [pid for pid in commands.processes() if pid not in ours]
            signal_processes({pid: commands.started(pid) for pid in others}, signal.SIGKILL)
            if not others and not store.children:
                store.when_reaped = _never
                then()

        def dead() -> None:
            store.when_reaped = when_alone
            when_alone()

        self._end_active(dead)

    def _give_up(self) -> None:
        """The host has waited long enough for a copy. Whoever is stuck is ended."""
        copy = self._copy
        if copy is None:
            return
        copy.error = copy.error or "it took too long"
        if "files" in copy.waits:
            self._store().cancel()
        if "forked" in copy.waits and copy.parent.pid:
            copy.parent.signal(signal.SIGKILL)  # which is told: the next cell is not to meet it
        else:
            copy.done("forked", "ready")

    def on_frame(self, keeper: Keeper, frame: wire.Frame) -> None:
        """FORKED and READY, of which a hostile worker may send any. A copy that has failed is
        waited for no more."""
        copy = self._copy
        if copy is None:
            return
        if frame.kind == wire.READY and keeper is copy.keeper:
            others = [k.pid for k in (*self._parked(), self.active.keeper) if k is not keeper]
            if keeper.pid in others:
                keeper.gone()  # it is another already: its death would be told but once
            copy.done("ready", error="" if keeper.pid else "the copy is not what it should be")
        elif frame.kind == wire.FORKED and keeper is copy.parent:
            lacks, error = frame.header.get("lacks"), frame.header.get("error")
            if isinstance(lacks, list):
                copy.lacks = [str(lack)[:200] for lack in lacks[:MAX_LACKS]]
            if error:
                copy.error = str(error)[:200]  # which is why the copy has not come
                copy.done("ready")
            copy.done("forked")

    def on_lost(self, keeper: Keeper) -> None:
        """A keeper has lost its worker: of a copy, a checkpoint, or a branch that is not active."""
        for number, kept in list(self._kept.items()):
            if kept.keeper is keeper:
                del self._kept[number]
                if kept.files:
                    self._store().remove(kept.files)
        for branch in self._branches.values():
            if branch.keeper is keeper and branch is not self.active:
                branch.fresh, branch.asleep = True, False
        copy = self._copy
        if copy is not None and keeper is copy.keeper:
            copy.done("ready", error=DIED)  # the parent may know why
        elif copy is not None and keeper is copy.parent:
            copy.done("forked", "ready", error=DIED)

    def on_active_gone(self) -> None:
        """Called when the active worker has been reaped and what it left has been ended."""
        after, self._after_death = self._after_death, None
        if after is not None:
            after()

    def keeper_of(self, pid: int) -> Optional[Keeper]:
        for keeper in self._parked():
            if keeper.pid == pid:
                return keeper
        return None

    def protected(self) -> "set[int]":
        """What does not belong to the active branch, and survives what ends that."""
        pids = {keeper.pid for keeper in self._parked() if keeper.pid}
        pids.update(self.asleep())
        if self.store is not None:
            pids.update(self.store.children)
        return pids

    def asleep(self) -> "set[int]":
        """Processes of branches that are not active: they stay stopped."""
        return {pid for branch in self._branches.values() for pid in branch.stopped}

    def _parked(self) -> List[Keeper]:
        keepers = [kept.keeper for kept in self._kept.values()]
        keepers += [b.keeper for b in self._branches.values() if b is not self.active]
        coming = [self._heir, self._copy.keeper if self._copy is not None else None]
        return keepers + [keeper for keeper in coming if keeper is not None]

    # -- parts ------------------------------------------------------------------------------

    def _wake(self) -> None:
        branch = self.active
        if branch.asleep:
            branch.asleep = False
            branch.keeper.send(wire.pack(wire.WAKE, 0))
        self._init.tell_functions()

    def _stop(self, branch: Branch) -> None:
        """All that runs and is nobody else's is the active branch's."""
        others = self.protected()
        asleep = self.asleep()
        try:
            os.kill(-1, signal.SIGSTOP)  # all at once: nothing can fork away from it
        except ProcessLookupError:
            return  # nothing runs
        branch.stopped = {pid: commands.started(pid) for pid in wait_until_stopped(others)}
        if branch.released:
            signal_processes(branch.stopped, signal.SIGKILL)
        signal_processes({pid: commands.started(pid) for pid in others - asleep}, signal.SIGCONT)

    def _abandon(self, copy: Copy) -> None:
        self._end(copy.keeper, copy.files)

    def _end(self, keeper: Keeper, files: str) -> None:
        keeper.signal(signal.SIGKILL)
        keeper.gone()
        if self._copy is not None and self._copy.parent is keeper:
            self._copy.done("forked", "ready", error="the checkpoint was released")
        if files:
            self._store().remove(files)

    def _store(self) -> Store:
        assert self.store is not None
        return self.store

    def _reply(self, frame: wire.Frame, error: str = "", header: Any = None) -> None:
        told = {**(header or {}), "error": error} if error else header
        self._init.send(wire.REPLY, frame.request, told)


def _words(error: int) -> str:
    if error == errno.EAGAIN:
        return "out of processes"
    return os.strerror(error) if error else ""


def _never() -> None:
    """Nobody waits until the active branch is alone."""
