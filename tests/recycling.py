"""Guests that serve one test after the other, where a start costs too much to be paid each time.

Nothing of the kind exists in Belljar: a guest is never reused there. Here a guest is brought back to
its first state between tests (a fresh interpreter, no other process, empty /workspace, /tmp and
/dev/shm, no checkpoint, no function), and gets a new Sandbox each time. One that was closed, killed
or lost is not used again, nor is one that cannot be cleaned.
"""

import contextlib

from belljar import Sandbox, SandboxError
from belljar.blocking import wait
from belljar.guest import wire
from outside import inner

# Run as a command: all but init, the fresh worker and the cleaner itself is killed.
_CLEAN = """
import os, shutil, signal, sys, time
worker = int(sys.argv[1])
def others():
    return [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) not in spared]
spared = {1, worker, os.getpid()}
for _ in range(200):
    found = others()
    if not found: break
    for pid in found:
        try: os.kill(pid, signal.SIGKILL)
        except ProcessLookupError: continue
    time.sleep(0.01)
else:
    sys.exit(f'still there: {others()}')
for top in ('/workspace', '/tmp', '/dev/shm'):
    os.chmod(top, 0o777 | (os.stat(top).st_mode & 0o7000)) if os.stat(top).st_uid == os.getuid() else None
    for entry in os.scandir(top):
        if entry.is_dir(follow_symlinks=False):
            for path, names, _ in os.walk(entry.path):
                for name in names: os.chmod(os.path.join(path, name), 0o700, follow_symlinks=False) if False else None
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
"""
