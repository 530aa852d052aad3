# row: 36
# attempt: keep init busy with SIGCHLD, so that it cannot keep the time
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# control: simulated by verdict: never run unconfined
import os
import signal
import time

from hostile import CONFINED

for _ in range(3):
    if CONFINED and os.fork() == 0:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            os.kill(1, signal.SIGCHLD)
        os._exit(0)
while True:
    pass
