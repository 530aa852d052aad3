# row: 24
# attempt: many children, each below the limit
# expect: outcome=ok|out_of_memory|killed
# limits: memory=64m
# larger: memory=512m
# oracle: memory
import os
import time

reading, writing = os.pipe()
for _ in range(5):
    if os.fork() == 0:
        try:
            held = bytearray(b"x" * (30 << 20))
        finally:
            os.close(writing)
        time.sleep(30)
        os._exit(0)
os.close(writing)
os.read(reading, 1)  # ends when each of them has its memory, or is dead
time.sleep(0.7)
