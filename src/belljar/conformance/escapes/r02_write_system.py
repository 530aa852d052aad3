# row: 2
# attempt: write, truncate, remove files of the host and of the read-only root
# expect: outcome=ok
# control: plain
# trips: files
import json
import os
import site
import sys

from hostile import attempt, target


def overwrite(path):
    with open(path, "w") as file:
        file.write("defaced")


attempt("victim", lambda: overwrite(target("victim")))
attempt("victim removed", lambda: os.unlink(target("victim")) or "gone")
places = ["/etc/passwd", "/etc/new", "/usr/bin/new", "/usr/lib/new", "/opt/env/new", "/new"]
places += [p + "/new.pth" for p in [*site.getsitepackages(), *sys.path] if p.startswith("/")]
places += [json.__file__, sys.executable, os.path.dirname(json.__file__) + "/new.py"]
for path in places:
    attempt(path, lambda path=path: overwrite(path))
for path in ("/usr/bin/env", json.__file__, "/etc/hosts"):
    attempt(f"remove {path}", lambda path=path: os.unlink(path) or "gone")
    attempt(f"chmod {path}", lambda path=path: os.chmod(path, 0o777) or "done")
    attempt(f"rename {path}", lambda path=path: os.rename(path, path + ".old") or "done")
