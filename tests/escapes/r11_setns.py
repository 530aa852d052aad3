# row: 11
# attempt: enter the namespaces of every process whose /proc can be read
# expect: outcome=ok
# control: namespace
# trips: posture
import os
import subprocess
import time

from hostile import syscall

# In the control, where it may: something to enter.
other = subprocess.Popen(["unshare", "--mount", "sleep", "20"], stderr=subprocess.DEVNULL)
time.sleep(0.2)
own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "uts", "user")}
for pid in [str(other.pid), *filter(str.isdigit, os.listdir("/proc"))]:
    for kind in own:
        path = f"/proc/{pid}/ns/{kind}"
        try:
            if os.readlink(path) == own[kind] and kind != "user":
                syscall("setns", os.open(path, os.O_RDONLY), 0, number=None) if pid == "1" else None
                continue
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        syscall("setns", fd, 0)
        os.close(fd)
    if pid == str(other.pid):
        try:
            syscall("setns", os.pidfd_open(other.pid), 0x20000)
        except OSError as error:
            print("refused", error)
        break
syscall("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), 0x10000000)
other.kill()
other.wait()
