# row: 19
# attempt: stop its own runner, its children, and its group
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# control: plain
# trips: hang
import os
import signal
import time

if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
os.kill(0, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(30)
