# row: 6
# attempt: descriptors of its own and of others that lead out of the sandbox
# expect: outcome=ok
# control: plain
# trips: secret
import os

from hostile import attempt, show

for pid in [p for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())]:
    for number in range(64):
        attempt(f"{pid} {number}", lambda p=f"/proc/{pid}/fd/{number}": os.open(p, os.O_NONBLOCK))
for number in range(1024):
    try:
        os.fstat(number)
    except OSError:
        continue
    show(f"descriptor {number}", lambda number=number: os.readlink(f"/proc/self/fd/{number}"))
    for name in ("secret.txt", "../../etc/shadow"):
        try:
            with open(os.open(name, os.O_RDONLY, dir_fd=number)) as file:
                print("ACHIEVED", name, file.read())
        except (OSError, TypeError):
            continue
