# row: 24
# attempt: many children, each below the limit
# expect: outcome=ok|out_of_memory|killed
# limits: memory=64m
# larger: memory=512m
# within: 10
# oracle: memory
import os
import time

for _ in range(5):
    if os.fork() == 0:
        held = bytearray(b"x" * (30 << 20))
        time.sleep(30)
        os._exit(0)
time.sleep(0.7)
