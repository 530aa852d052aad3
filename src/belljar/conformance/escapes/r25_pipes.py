# row: 25
# attempt: kernel memory in pipe buffers, each a megabyte
# expect: outcome=ok
# limits: memory=64m
# oracle: memory
# control: plain
# trips: posture
import fcntl
import os

pipes = []
try:
    while len(pipes) < 120:
        reading, writing = os.pipe()
        pipes.append((reading, writing))
        os.set_blocking(writing, False)
        try:
            fcntl.fcntl(writing, 1031, 1 << 20)  # F_SETPIPE_SZ
        except OSError as error:
            print("refused", error)
        os.write(writing, b"x" * 65536)
except OSError as error:
    print("refused", error)
