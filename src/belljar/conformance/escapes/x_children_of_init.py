# row: 19, 20
# attempt: make children that are its parent's and not its own, and let them end in every way
# expect: outcome=ok
# machine: x86_64
# control: simulated by verdict
import os
import signal

from hostile import _NUMBERS, CONFINED, libc

CLONE_PARENT = 0x8000
for number in range(200):
    pid = libc.syscall(_NUMBERS["clone"], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        if number % 3 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        libc.syscall(_NUMBERS["exit_group"], number & 0xFF)
    if not CONFINED:
        break
