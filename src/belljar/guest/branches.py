"""Checkpoints and branches: parked interpreters, and the workspaces that belong to them.

A parked worker is a fork of the worker that runs cells. That of a checkpoint never runs a cell: to
go back to the checkpoint, init has it forked again. That of a branch runs cells when init switches
to the branch. Only one branch is active; the processes of the others are stopped.
"""

import errno
import os
import signal
from typing import Any, Callable, Dict, List, Optional

from ..protocol import wire
from . import archive_store, commands
from .roles import Branch, Checkpoint, Copy
from .worker_process import WorkerProcess
from .workspace_store import CURRENT

MAX_MISSING = 20
DIED = "the interpreter died while it was copied"
NO_CHECKPOINT = "there is no such checkpoint any more"


class Branches:
    def __init__(self, init: Any, setup: Dict[str, Any]) -> None:
        self._init = init
        self._setup = setup
        self.store: Any = None  # a Store, made for the first copy
        self._no_store = ""  # why there is no store
        if "archive_size" in setup:  # a container's workspace is opened before any code runs
            self.store, self._no_store = archive_store.choose_store(setup)
        self._branches = {0: self.active}
        self._checkpoints: Dict[int, Checkpoint] = {}
        self._copy: Optional[Copy] = None
        self._after_death: Optional[Callable[[], None]] = None
        self._heir: Optional[WorkerProcess] = None  # becomes active when the active one is dead
        self.replacing = False  # while True, init starts no worker for one that has ended

    active: Branch = property(  # type: ignore[assignment]
        lambda self: self._init.default.branch,
        lambda self, branch: setattr(self._init.default, "branch", branch),
    )

    def _new_worker(self) -> WorkerProcess:
        return WorkerProcess(self._init, self._setup, self._init.default.on_frame)

    # -- requests ---------------------------------------------------------------------------

    def keep(self, frame: wire.Frame) -> None:
        """Park a copy of the active interpreter, as a checkpoint or a branch."""
        number, is_branch = int(frame.header["number"]), bool(frame.header["branch"])

        def done(copy: Copy) -> None:
            if copy.error:
                self._release(copy.worker, copy.files)
            elif is_branch:
                functions, lost = self.active.functions, self.active.state_lost
                self._branches[number] = Branch(copy.worker, copy.files, functions, lost, True)
            else:
                self._checkpoints[number] = Checkpoint(copy.worker, copy.files)
            self._reply(frame, copy.error, {"missing": copy.missing})

        self._start_copy(frame, self.active.worker, CURRENT, done)

    def go_back(self, frame: wire.Frame) -> None:
        """Fork a checkpoint's interpreter again, and let the fork replace the active one."""
        number = int(frame.header["number"])
        checkpoint = self._checkpoints.get(number)
        if checkpoint is None:
            self._reply(frame, NO_CHECKPOINT, {"lost": True})
            return

        def done(copy: Copy) -> None:
            if not copy.error:
                self._replace_active(copy, frame)
                return
            self._release(copy.worker, copy.files)
            if number not in self._checkpoints:
                self._reply(frame, copy.error, {"lost": True})
            else:
                self._make_room(lambda: self._go_back_alone(frame, number))

        self._start_copy(frame, checkpoint.worker, checkpoint.files, done)

    def _go_back_alone(self, frame: wire.Frame, number: int) -> None:
        """There was not enough room for both interpreters, so the active one, which was to be
        replaced, is gone already. Its files are removed only when the checkpoint's own can replace
        them; then the checkpoint gets a copy again, if there is room for it."""
        self.replacing = False
        checkpoint = self._checkpoints.get(number)
        if checkpoint is None:
            self._reply(frame, NO_CHECKPOINT, {"lost": True})
            self._init.default.start_worker()
            return

        def done(copy: Copy) -> None:
            self.replacing = False
            if copy.error:
                self._release(copy.worker, copy.files)
                self._reply(frame, f"{copy.error}; variables are lost, files are as they were")
                self._init.default.start_worker()
                return
            self._activate(copy.worker)
            files, checkpoint.files = checkpoint.files, ""
            store = self.store
            store.remove(store.set_aside(), lambda error: exchange(files))

        def exchange(files: str) -> None:
            if self._restore_files(files, frame):
                keep_again()
            elif number in self._checkpoints:
                checkpoint.files = files
            else:
                self.store.remove(files)

        def keep_again() -> None:
            try:
                checkpoint.files = self.store.make()
            except OSError as error:
                finish(error.errno or errno.EIO)
            else:
                self.store.copy(CURRENT, checkpoint.files, finish)

        def finish(error: int) -> None:
            if error or number not in self._checkpoints:
                self._checkpoints.pop(number, None)
                self._release(checkpoint.worker, checkpoint.files)
            self._wake()
            self._reply(frame)

        self.replacing = True
        self._start_copy(frame, checkpoint.worker, "", done)

    def release(self, frame: wire.Frame) -> None:
        if frame.header.get("stuck"):
            self._cancel_copy()
            return self._reply(frame)
        number = int(frame.header["number"])
        checkpoint, branch = self._checkpoints.pop(number, None), self._branches.pop(number, None)
        if checkpoint is not None:
            self._release(checkpoint.worker, checkpoint.files)
        elif branch is not None:
            branch.released = True
            commands.signal_processes(branch.stopped, signal.SIGKILL)
            if branch is self.active:
                for process in list(self._init.processes.values()):
                    if process.branch is branch:
                        process.kill()
                branch.worker.signal(signal.SIGKILL)
            else:
                self._release(branch.worker, branch.files)
        self._reply(frame)

    def switch(self, frame: wire.Frame) -> None:
        """Make another branch active; no cell, command or file request is under way. If it fails
        and the host waits for a reply, the active branch goes on as before."""
        active, target = self.active, self._branches[int(frame.header["branch"])]
        try:
            if target is not active:
                self._switch(target)
        except OSError as error:
            if not frame.request or active.released:
                raise
            commands.signal_processes(active.stopped, signal.SIGCONT)
            active.stopped = {}
            self._reply(frame, _describe(error.errno or errno.EIO))
            return
        if frame.request:
            self._reply(frame)

    def _switch(self, target: Branch) -> None:
        active, store = self.active, self.store
        self._stop(active)
        aside = store.set_aside()
        if active.released:
            active.worker.close()
            store.remove(aside)
        store.bring(target.files)
        if not active.released:
            active.files = aside
            active.asleep = True  # its files may be other inodes when they are back
        self.active = target
        commands.signal_processes(target.stopped, signal.SIGCONT)
        target.stopped = {}
        if target.worker.pid:
            self._wake()
        else:
            self._init.default.start_worker()

    # -- making copies ----------------------------------------------------------------------

    def _start_copy(
        self, frame: wire.Frame, parent: WorkerProcess, files: str, then: "Callable[[Copy], None]"
    ) -> None:
        """Without `files`, copy the interpreter alone."""
        if self.store is None and not self._no_store:
            self.store, self._no_store = archive_store.choose_store(self._setup)
        if self.store is None:
            self._reply(frame, f"checkpoints are not available: {self._no_store}")
            return
        if self._copy is not None or self._after_death is not None:
            self._reply(frame, "another checkpoint is being made; try again")
            return
        if not parent.pid:
            self._reply(frame, "there is no interpreter to copy: out of processes")
            return

        def finish(copy: Copy) -> None:
            self._copy = None
            then(copy)

        copy = self._copy = Copy(self._new_worker(), parent, finish)
        end = copy.worker.expect_fork()
        parent.signal(signal.SIGCONT)  # the code may have stopped it
        parent.send(wire.pack(wire.FORK, 0, {"fds": 1}), (end,))
        if not files:
            copy.done("files")
            return
        try:
            copy.files = self.store.make()
        except OSError as error:
            copy.done("files", error=_describe(error.errno or errno.EIO))
        else:
            self.store.copy(files, copy.files, lambda e: copy.done("files", error=_describe(e)))

    def _replace_active(self, copy: Copy, frame: wire.Frame) -> None:
        def replace() -> None:
            self._heir = None
            if not copy.worker.pid:
                self._release(copy.worker, copy.files)
                self._reply(frame, DIED)
                return
            self._activate(copy.worker)
            store = self.store
            store.remove(store.set_aside())
            if self._restore_files(copy.files, frame):
                self._wake()
                self._reply(frame)
            else:
                store.remove(copy.files)

        self._heir = copy.worker
        self._kill_active(replace)

    def _activate(self, worker: WorkerProcess) -> None:
        active = self.active
        active.worker, active.state_lost, active.asleep = worker, False, True

    def _restore_files(self, files: str, frame: wire.Frame) -> bool:
        """Bring them to /workspace, which nothing else needs any more. If that fails, the reply
        says so, and the host may try again."""
        try:
            self.store.bring(files)
        except OSError as error:
            reason = f"{_describe(error.errno or errno.EIO)}; variables and files are lost"
            self.active.asleep = False
            self._kill_active(lambda: self._reply(frame, reason))
            return False
        return True

    def _kill_active(self, then: "Callable[[], None]") -> None:
        if self.active.worker.pid:
            self._after_death = then
            self.active.worker.signal(signal.SIGKILL)
        else:
            then()

    def _make_room(self, then: "Callable[[], None]") -> None:
        """Kill the active interpreter with all that it started. Nothing replaces it yet."""
        store = self.store
        self.replacing = True

        def when_alone() -> None:
            # Killed processes still count until the kernel is done with them, and a process that
            # was being forked when all others were killed appears only now.
            ours = {self.active.worker.pid} | self.protected()
            others = [pid for pid in commands.list_processes() if pid not in ours]
            commands.signal_processes(commands.read_start_times(others), signal.SIGKILL)
            if not others and not store.children:
                store.when_reaped = None
                then()

        def dead() -> None:
            store.when_reaped = when_alone
            when_alone()

        self._kill_active(dead)

    def _cancel_copy(self) -> None:
        """The host has waited long enough for a copy: end the part that is stuck."""
        copy = self._copy
        if copy is None:
            return
        copy.error = copy.error or "it took too long"
        if "files" in copy.waits:
            self.store.cancel()
        if "forked" in copy.waits and copy.parent.pid:
            copy.parent.signal(signal.SIGKILL)  # which is told: the next cell is not to meet it
        else:
            copy.done("forked", "ready")

    def on_frame(self, worker: WorkerProcess, frame: wire.Frame) -> None:
        """FORKED and READY, which a hostile worker may send at any time."""
        copy = self._copy
        if copy is None:
            return
        if frame.kind == wire.READY and worker is copy.worker:
            others = [w.pid for w in (*self._parked(), self.active.worker) if w is not worker]
            if worker.pid in others:
                worker.close()  # the process is known as another worker already
            copy.done("ready", error="" if worker.pid else "the copy is not the expected process")
        elif frame.kind == wire.FORKED and worker is copy.parent:
            missing, error = frame.header.get("missing"), frame.header.get("error")
            if isinstance(missing, list):
                copy.missing = [str(each)[:200] for each in missing[:MAX_MISSING]]
            if error:
                copy.error = str(error)[:200]  # why the copy has not come
                copy.done("ready")
            copy.done("forked")

    def on_lost(self, worker: WorkerProcess) -> None:
        """The process of a copy, a checkpoint or an inactive branch has ended."""
        for number, checkpoint in list(self._checkpoints.items()):
            if checkpoint.worker is worker:
                del self._checkpoints[number]
                if checkpoint.files:
                    self.store.remove(checkpoint.files)
        for branch in self._branches.values():
            if branch.worker is worker and branch is not self.active:
                branch.state_lost, branch.asleep = True, False
        copy = self._copy
        if copy is not None and worker is copy.worker:
            copy.done("ready", error=DIED)  # the parent may know why
        elif copy is not None and worker is copy.parent:
            copy.done("forked", "ready", error=DIED)

    def on_active_gone(self) -> None:
        """Init has reaped the active worker and killed what it left."""
        after, self._after_death = self._after_death, None
        if after is not None:
            after()

    def find_worker(self, pid: int) -> Optional[WorkerProcess]:
        return next((worker for worker in self._parked() if worker.pid == pid), None)

    def protected(self) -> "set[int]":
        """Processes that do not belong to the active branch, and survive its end."""
        pids = self.asleep() | {worker.pid for worker in self._parked() if worker.pid}
        if self.store is not None:
            pids.update(self.store.children)
        source = self._init.setup.get("source")
        return pids | source.find_waiting() if source else pids

    def asleep(self) -> "set[int]":
        """Processes of branches that are not active: they stay stopped."""
        return {pid for branch in self._branches.values() for pid in branch.stopped}

    def _parked(self) -> List[WorkerProcess]:
        workers = [checkpoint.worker for checkpoint in self._checkpoints.values()]
        workers += [b.worker for b in self._branches.values() if b is not self.active]
        coming = [self._heir, self._copy.worker if self._copy is not None else None]
        return workers + [worker for worker in coming if worker is not None]

    # -- parts ------------------------------------------------------------------------------

    def _wake(self) -> None:
        branch = self.active
        if branch.asleep:
            branch.asleep = False
            branch.worker.send(wire.pack(wire.WAKE, 0))
        self._init.default.send_functions()

    def _stop(self, branch: Branch) -> None:
        """Stop the processes of the active branch: all that belong to no other."""
        others = self.protected()
        asleep = self.asleep()
        try:
            os.kill(-1, signal.SIGSTOP)  # all at once: no process can escape by forking
        except ProcessLookupError:
            return  # nothing runs
        branch.stopped = commands.read_start_times(commands.wait_until_stopped(others))
        if branch.released:
            commands.signal_processes(branch.stopped, signal.SIGKILL)
        commands.signal_processes(commands.read_start_times(others - asleep), signal.SIGCONT)

    def _release(self, worker: WorkerProcess, files: str) -> None:
        worker.signal(signal.SIGKILL)
        worker.close()
        if self._copy is not None and self._copy.parent is worker:
            self._copy.done("forked", "ready", error="the checkpoint was released")
        if files:
            self.store.remove(files)

    def _reply(self, frame: wire.Frame, error: str = "", header: Any = None) -> None:
        header = {**(header or {}), "error": error} if error else header
        self._init.send(wire.REPLY, frame.request, header)


def _describe(error: int) -> str:
    return "out of processes" if error == errno.EAGAIN else os.strerror(error) if error else ""
