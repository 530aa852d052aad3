# row: 4
# attempt: a hard link in the workspace to a file of the host, or of the read-only root
# expect: outcome=ok
# control: plain
# trips: files
import os

from hostile import attempt, target

attempt("link", lambda: os.link(target("victim"), target("directory") + "/hard") or "made")
for source in (target("victim"), "/etc/passwd", "/usr/bin/env", "/dev/null", "/proc/self/environ"):
    attempt(f"link {source}", lambda source=source: os.link(source, "hard") or "made")
