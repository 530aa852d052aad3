# row: 30
# attempt: directories nested four thousand deep, with the longest names; then leave
# expect: outcome=ok
# timeout: 60
# within: 70
# oracle: none
# control: simulated by census: a process that stays is seen
import os

os.chdir("/workspace")
for _ in range(4_000):
    os.mkdir("d" * 255)
    os.chdir("d" * 255)
