# row: 17
# attempt: write into the memory of init and of a process of the host
# expect: outcome=ok
# control: plain
# trips: memory
import os

from hostile import attempt, target


def write(pid):
    fd = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    return os.pwrite(fd, b"overwritten", target("address"))


attempt("init", lambda: write(1))
attempt("a process of the host", lambda: write(target("pid")))
for name in ("environ", "maps", "auxv", "stack", "syscall", "io", "fd", "ns", "cwd", "exe", "root"):
    path = f"/proc/1/{name}"
    look = os.listdir if name in ("fd", "ns") else os.readlink
    if name in ("cwd", "exe", "root", "fd", "ns"):
        attempt(path, lambda path=path, look=look: look(path))
    else:
        attempt(path, lambda path=path: open(path).read())
