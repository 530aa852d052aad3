# row: 1
# attempt: read the host's secrets: a file, keys, credentials, the environment
# expect: outcome=ok
# control: plain
# trips: secret
import glob
import os

from hostile import IMAGE, attempt, read, show, target

show("environment", lambda: dict(os.environ, TARGETS="", SYSCALLS=""))
attempt("the canary", lambda: read(target("secret_file")))
for path in (
    "/etc/shadow",
    "/etc/machine-id",
    "/root/.bashrc",
    "/root/.ssh/id_rsa",
    "/root/.aws/credentials",
    "/var/run/secrets/kubernetes.io/serviceaccount/token",
    target("home") + "/.profile",
    target("home") + "/.ssh/authorized_keys",
):
    attempt(path, lambda path=path: read(path))
own = () if IMAGE else ("/var/*/*",)
for pattern in ("/root/*", "/root/.*", "/home/*", *own, target("directory") + "/*"):
    for path in set(glob.glob(pattern)) - {"/home/user"}:
        print("ACHIEVED a look at", path)
