# row: 17
# attempt: write into the memory of init and of a process of the host
# expect: outcome=ok
# control: plain
# trips: memory
import os

from hostile import attempt, read, target


def write(pid):
    fd = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    return os.pwrite(fd, b"overwritten", target("address"))


attempt("init", lambda: write(1))
attempt("a process of the host", lambda: write(target("pid")))
for name in ("environ", "maps", "auxv", "stack", "syscall", "io"):
    attempt(name, lambda path=f"/proc/1/{name}": read(path))
for name in ("cwd", "exe", "root"):
    attempt(name, lambda path=f"/proc/1/{name}": os.readlink(path))
# Which numbers there are is no secret; what is behind them is.
for path in [f"/proc/1/fd/{number}" for number in range(32)] + ["/proc/1/ns/mnt", "/proc/1/ns/net"]:
    attempt(path, lambda path=path: os.readlink(path))
    attempt(path, lambda path=path: os.open(path, os.O_RDWR | os.O_NONBLOCK))
    attempt(path, lambda path=path: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
