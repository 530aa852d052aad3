"""A guest as the host sees it, on each backend: from /proc, or from gVisor's kernel."""

import contextlib
import os
import signal
from pathlib import Path

import census
import engine_view
import setting


def inner(sandbox):
    """The AsyncSandbox in a Sandbox; itself if it is one."""
    return getattr(sandbox, "_sandbox", sandbox)


def session_of(sandbox):
    """The GuestSession of a sandbox that has started; None before and after."""
    return inner(sandbox)._session


def guest_of(sandbox):
    return session_of(sandbox).guest


def channel_of(sandbox):
    return session_of(sandbox).channel


class Outside:
    def __init__(self, sandbox):
        guest = guest_of(sandbox)
        self._stream = guest.stream
        self.container = getattr(guest, "container", None)
        # Asked of the engine, not of Belljar. With gVisor it is that of gVisor's kernel.
        self.pid = guest.pid
        if self.container is not None:
            self.pid = engine_view.inspect(self.container)["State"]["Pid"]
        self.started = census.process(self.pid).started

    def alive(self):
        return census.alive(self.pid, self.started)

    def end(self):
        """From outside, and wait until Belljar has noticed: an engine takes a moment to tell."""
        os.kill(self.pid, signal.SIGKILL)
        census.wait_until(lambda: not self.alive(), what="the end of the guest")
        census.wait_until(self._stream.ended, what="the end of its stream")

    def processes(self):
        """Those alive now, PID 1 first; orphans inside are PID 1's children. With gVisor, their
        numbers are those inside."""
        if not self.alive():
            return []
        if setting.GVISOR:
            return self._gvisor_processes()
        return [census.process(self.pid), *census.descendants(self.pid)]

    def _gvisor_processes(self):
        rows = sorted(engine_view.gvisor_processes(self.container))
        return [
            census.Process(pid=pid, parent=parent, state="S", started=pid, name=name)
            for pid, parent, name in rows
        ]

    def find(self, inside):
        """The process that the guest knows by the number `inside`; None if there is none."""
        for p in self.processes():
            if setting.GVISOR and p.pid == inside:
                return Sheltered(self, p.pid)
            if not setting.GVISOR and p is not None and census.inside_pid(p.pid) == inside:
                return Seen(p.pid, p.started)
        return None


class Seen:
    """A process of a guest that is one of the host's too."""

    def __init__(self, pid, started):
        self.pid = pid
        self._started = started

    def alive(self):
        return census.alive(self.pid, self._started)

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if self.alive():
                os.kill(self.pid, number)

    def cpu(self):
        """Seconds of the processor that it has had."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Sheltered:
    """A process of a guest that only gVisor's kernel knows."""

    def __init__(self, outside, pid):
        self._outside = outside
        self._pid = pid

    def alive(self):
        return any(p.pid == self._pid for p in self._outside.processes())

    def signal(self, number):
        engine_view.gvisor_signal(self._outside.container, self._pid, number)

    def cpu(self):
        """That of all processes of the guest: their kernel runs as one process of the host."""
        return Seen(self._outside.pid, self._outside.started).cpu()
