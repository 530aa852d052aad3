# row: 5
# attempt: /proc/PID/root and cwd of every process, and ".." above them
# expect: outcome=ok
# control: plain
# trips: secret
import os

from hostile import attempt, read, target

secret = target("secret_file")
for pid in ["self", "1", *filter(str.isdigit, os.listdir("/proc"))]:
    for way in ("root", "root/../../..", "cwd/" + "../" * 20, "task/1/root"):
        attempt(f"{pid} {way}", lambda path=f"/proc/{pid}/{way}{secret}": read(path))
