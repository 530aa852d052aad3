# row: 15
# attempt: trace init, other processes, its own children
# expect: outcome=ok
# control: plain
# trips: posture
import os
import time

from hostile import syscall

PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE = 0, 16, 0x4206
child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
for pid in (child, os.getppid() if os.environ.get("CONFINED") == "1" else child):
    syscall("ptrace", PTRACE_SEIZE, pid, 0, 0)
    syscall("ptrace", PTRACE_ATTACH, pid, 0, 0)
if os.environ.get("CONFINED") == "1":
    syscall("ptrace", PTRACE_SEIZE, 1, 0, 0)
    syscall("ptrace", PTRACE_TRACEME, 0, 0, 0)
