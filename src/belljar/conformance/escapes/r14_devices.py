# row: 14
# attempt: make device nodes, open devices
# expect: outcome=ok
# control: plain
# trips: posture
import os
import stat

from hostile import IMAGE, attempt

for name, kind, major, minor in (
    ("disk", stat.S_IFBLK, 8, 0),
    ("vda", stat.S_IFBLK, 254, 0),
    ("mem", stat.S_IFCHR, 1, 1),
    ("null", stat.S_IFCHR, 1, 3),
    ("kmsg", stat.S_IFCHR, 1, 11),
):
    device = os.makedev(major, minor)
    attempt(f"mknod {name}", lambda n=name, k=kind, d=device: os.mknod(n, k | 0o666, d) or "made")
opened = []
for name in [
    "mem",
    "kmem",
    "port",
    "kvm",
    "fuse",
    "autofs",
    "vda",
    "sda",
    "kmsg",
    "tty",
    "tty0",
    "console",
    "net/tun",
    "input",
    "loop0",
]:
    for flags in (os.O_RDWR, os.O_RDONLY):
        path = f"/dev/{name}"
        opened.append(attempt(path, lambda p=path, f=flags: os.open(p, f | os.O_NONBLOCK)))
allowed = {"null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm"}
allowed |= {"tty", "ptmx", "pts"} | ({"mqueue"} if IMAGE else set())
print("in /dev:", sorted(os.listdir("/dev")))
if os.environ.get("CONFINED") == "1" and not allowed.issuperset(os.listdir("/dev")):
    print("ACHIEVED more devices")
