# row: 11
# attempt: enter the namespaces of every process whose /proc can be read
# expect: outcome=ok
# control: namespace
# trips: posture
import contextlib
import os
import subprocess
import time

from hostile import syscall

# In the control, where it may: something to enter.
other = subprocess.Popen(["unshare", "--mount", "sleep", "20"], stderr=subprocess.DEVNULL)
own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "uts", "user")}
deadline = time.monotonic() + 5
while other.poll() is None and time.monotonic() < deadline:
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/{other.pid}/ns/mnt") != own["mnt"]:
            break
    time.sleep(0.01)
for pid in [str(other.pid), "1", str(os.getppid())]:
    for kind in own:
        with contextlib.suppress(OSError):
            fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            syscall("setns", fd, 0)
            os.close(fd)
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(int(pid))
        syscall("setns", fd, 0x20000)
        os.close(fd)
fd = os.open("/proc/self/ns/user", os.O_RDONLY)
syscall("setns", fd, 0x10000000)
os.close(fd)
other.kill()
other.wait()
