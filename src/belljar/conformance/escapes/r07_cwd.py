# row: 7
# attempt: climb out by the working directory
# expect: outcome=ok
# control: plain
# trips: secret
import os

from hostile import attempt, read, target

for _ in range(100):
    os.chdir("..")
attempt("relative", lambda: read(target("secret_file")[1:]))
attempt("by /proc", lambda: read("/proc/self/cwd/../.." + target("secret_file")))
fd = os.open(".", os.O_RDONLY)
attempt(
    "by a descriptor", lambda: os.read(os.open("../.." + target("secret_file"), 0, dir_fd=fd), 99)
)
os.close(fd)
