# row: 9
# attempt: a user namespace of its own, in which it would be root
# expect: outcome=ok
# control: plain
# trips: posture
import os
import signal

from hostile import syscall

NEW = {"user": 0x10000000, "mnt": 0x20000, "net": 0x40000000, "ipc": 0x8000000}
NEW |= {"uts": 0x4000000, "pid": 0x20000000, "cgroup": 0x2000000, "time": 0x80}
for name in [name for name in NEW if name != "time"]:  # there it is part of the signal
    flags = NEW[name] | (NEW["user"] if name != "user" else 0)
    pid = syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
for flags in NEW.values():
    syscall("unshare", flags)
