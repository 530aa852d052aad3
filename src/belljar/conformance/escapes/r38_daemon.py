# row: 38
# attempt: a daemon that has left its session, its group and its parent
# expect: outcome=ok
# oracle: none
# control: simulated by census: a daemon of the host is seen
import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3, 64):
            try:
                os.close(fd)
            except OSError:
                continue
        time.sleep(60)
    os._exit(0)
