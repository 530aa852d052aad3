"""A guest as the host sees it, on each backend: from /proc, or from gVisor's kernel."""

import os

import census
import engine_view
import setting


def inner(sandbox):
    """The AsyncSandbox in a Sandbox; itself if it is one."""
    return getattr(sandbox, "_sandbox", sandbox)


def guest_of(sandbox):
    return inner(sandbox)._place.guest


class Outside:
    def __init__(self, sandbox):
        guest = guest_of(sandbox)
        self.container = getattr(guest, "container", None)
        # Asked of the engine, not of Belljar. With gVisor it is that of gVisor's kernel.
        self.pid = guest.pid
        if self.container is not None:
            self.pid = engine_view.inspect(self.container)["State"]["Pid"]
        self.started = census.process(self.pid).started

    def alive(self):
        return census.alive(self.pid, self.started)

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
        """The host's number of the process that the guest knows by `inside`."""
        for p in self.processes():
            if p is not None and self._inside(p.pid) == inside:
                return p.pid
        return None

    def _inside(self, pid):
        return pid if setting.GVISOR else census.inside_pid(pid)

    def kill(self):
        """Ends it from outside, as somebody might who does not know what it is."""
        if self.container is None:
            os.kill(self.pid, 9)
        else:
            engine_view.ask(f"/containers/{self.container}/kill", "POST")
