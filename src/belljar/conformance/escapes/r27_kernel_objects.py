# row: 27
# attempt: kernel memory in directory entries and inodes
# expect: outcome=ok|out_of_memory|killed
# limits: memory=64m
# timeout: 60
# within: 70
# oracle: memory
# control: simulated by r22_memory: the same counter
import os

for number in range(60_000):
    try:
        os.stat(f"/tmp/{number:0200}")
    except OSError:
        continue
try:
    for number in range(15_000):
        os.close(os.open(f"/workspace/{number:0200}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print("refused", error)
