# row: 3
# attempt: a symbolic link in the workspace to a file of the host, then open it
# expect: outcome=ok
# control: plain
# trips: secret
import os

from hostile import attempt, read, target

for name, to in (
    ("absolute", target("secret_file")),
    ("relative", "../" * 30 + target("secret_file")[1:]),
    ("by_proc", "/proc/self/root" + target("secret_file")),
    ("by_init", "/proc/1/root" + target("secret_file")),
):
    os.symlink(to, name)
    attempt(name, lambda name=name: read(name))
