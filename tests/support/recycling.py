"""Guests that serve one test after the other, where a start costs too much to be paid each time.

Nothing of the kind exists in Belljar: a guest is never used again there. Here one is brought back
to its first state between tests (a fresh interpreter, no other process, empty directories, no
checkpoint, no function), and gets a new Sandbox each time. One that was closed, killed or lost
does not come back, nor does one that cannot be cleaned.
"""

import contextlib

from belljar import Sandbox, SandboxError
from belljar.runtime import wait
from outside import inner, session_of

# Everything but init and this shell is ended at once; init starts a new worker. What was killed may
# take its time to go.
_CLEAN = """
mode=$1
kill -9 -1
cd /
tries=0
set -- /proc/[0-9]*
while [ $# -gt 3 ]; do
    [ $tries -lt 1000 ] || exit 1
    tries=$((tries + 1))
    sleep 0.02
    set -- /proc/[0-9]*
done
for top in /workspace /tmp /dev/shm /home/user /var/tmp; do
    chmod -R u+rwX $top 2>/dev/null
    find $top -mindepth 1 -delete || exit 1
done
ipcrm -a 2>/dev/null
chmod $mode /workspace
"""


class Recycler:
    """The guests of one module, by the name of their environment."""

    def __init__(self):
        self._idle = {}
        self._modes = {}  # of /workspace, of each place

    def take(self, environment):
        idle = self._idle.setdefault(environment, [])
        if not idle:
            sandbox = Sandbox.create(environment=environment)
            place = session_of(sandbox)
            self._modes[place] = f"{wait(inner(sandbox).files.stat, '/workspace').mode & 0o7777:o}"
            return sandbox
        sandbox = Sandbox(environment=environment)
        inner(sandbox)._lifecycle.session = idle.pop()
        inner(sandbox)._lifecycle.guests = 1
        return sandbox

    def give_back(self, sandbox):
        """Whatever a test has done to it."""
        used = inner(sandbox)
        place = session_of(used)
        fit = used._lifecycle.ended is None and place in self._modes and place.alive
        if not fit or place.shared or used._lifecycle.busy:
            sandbox.close()
            return
        try:
            self._clean(sandbox, place)
        except SandboxError:
            sandbox.close()
            return
        used._lifecycle.session = None  # so that closing it ends nothing
        sandbox.close()
        self._idle[used.environment.name].append(place)

    def _clean(self, sandbox, place):
        for number in range(1, place._last + 1):
            wait(place.release, number)
        for context in sandbox.contexts.list():
            sandbox.contexts.remove(context)
        done = sandbox.commands.run(["sh", "-c", _CLEAN, "clean", self._modes[place]], timeout=60)
        if not done.ok:
            raise SandboxError(f"it could not be cleaned: {done}")
        sandbox.restart()
        place.functions = {0: -1}  # so that the next one's are told, also if there are none

    def close(self):
        for places in self._idle.values():
            for place in places:
                with contextlib.suppress(SandboxError):
                    wait(place.leave, 0)
