# row: 18
# attempt: end processes of the host, by number and all at once
# expect: outcome=ok|killed
# control: plain
# trips: process
import os
import signal

from hostile import _NUMBERS, CONFINED, attempt, libc, target

attempt("the canary", lambda: os.kill(target("pid"), signal.SIGKILL) or "sent")
if CONFINED:
    # Numbers of the host mean nothing here, or something else: all of them are tried.
    for pid in {*range(1, 200), target("host_pid"), target("pid")} - {os.getpid()}:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            try:
                os.kill(pid, number)
            except OSError:
                continue
    libc.syscall(_NUMBERS["tgkill"], 1, 1, int(signal.SIGKILL))
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(-1, number)
        except OSError as error:
            print("refused", error)
print("still here")
