"""The control group of one sandbox, once it is made: entered, read, killed, removed."""

import contextlib
import os
import threading
from collections.abc import Sequence

from belljar.backends.linux.cgroup import tree
from belljar.backends.linux.cgroup.meters import Meters
from belljar.backends.linux.cgroup.plan import Hierarchy


class Cgroup(Meters):
    """The group of one sandbox, in every hierarchy used. Safe to use from any thread."""

    def __init__(
        self, owner: tree.Owner, places: Sequence[tuple[Hierarchy, str]], enforced: frozenset[str]
    ) -> None:
        super().__init__(places)
        self.enforced = enforced
        self._owner = owner
        self._doors = [(p, "tasks" if h.version == 1 else "cgroup.procs") for h, p in places]
        # kill() changes limits and restores them: a second one must not take the changed ones.
        self._killing = threading.Lock()
        self._join: list[int] = []
        self.gone = False  # remove() has succeeded

    def join_fds(self) -> list[int]:
        """Descriptors on which a process writes b"0" to enter, one for each hierarchy.

        Opened by us, so that it is our permission that counts, not the new process's. In v1 a
        single thread that moves itself (`tasks`) needs no lock on all processes, which would
        wait for every processor: 0.04 ms instead of 6 to 15. The writer must have one thread.
        """
        with self._lock:
            if not self._join and not self._closed:
                with contextlib.ExitStack() as undo:
                    opened = []
                    for path, file in self._doors:
                        fd = os.open(f"{path}/{file}", os.O_WRONLY | os.O_CLOEXEC)
                        undo.callback(os.close, fd)
                        opened.append(fd)
                    undo.pop_all()
                self._join = opened
            return list(self._join)

    def close_join_fds(self) -> None:
        with self._lock:
            while self._join:
                os.close(self._join.pop())

    def processes_alive(self) -> list[int]:
        # All hierarchies: a process on its way in is in some of them only.
        return sorted(set[int]().union(*map(tree.members, self.paths)))

    def kill(self) -> bool:
        """SIGKILL to every member; True when none is left. May be called again."""
        if not self._is_ours():
            return False
        with self._killing:
            return tree.kill(self.paths)

    def remove(self) -> bool:
        """Remove the group once its processes are gone; True if it is not there any more.

        Waits a short while for processes that are exiting; called again, it tries again.
        """
        if not self._is_ours():
            return False
        self.close_join_fds()
        self.close()
        self.gone = self.gone or tree.remove(self.paths)
        return self.gone

    def _is_ours(self) -> bool:
        """Not so in a fork of the owner: what it inherited goes on belonging to its parent.

        Asked before the lock is taken: a fork may inherit that in a locked state.
        """
        return os.getpid() == self._owner.pid
