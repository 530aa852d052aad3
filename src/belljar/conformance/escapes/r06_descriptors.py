# row: 6
# attempt: descriptors of its own and of others that lead out of the sandbox
# expect: outcome=ok
# control: plain
# trips: secret
import os

from hostile import show

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
for pid in [p for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())]:
    for number in range(64):
        try:
            os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_NONBLOCK))
            print("ACHIEVED", pid, number)
        except OSError:
            continue
