# row: 81
# attempt: choose who dies when memory runs out; leave the control group
# expect: outcome=out_of_memory
# limits: memory=64m
# oracle: memory
# control: simulated by r22_memory: the same counter
import glob
import os

from hostile import attempt, write

for pid, value in (("self", "-1000"), ("1", "1000"), ("self", "0")):
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(value)
    except OSError as error:
        print("refused", pid, value, error)
for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True):
    attempt(path, lambda path=path: write(path, "0"))
held = []
while len(held) < 25:
    held.append(bytearray(os.urandom(1 << 20) * 8))
