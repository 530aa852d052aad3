# row: 20, 38
# attempt: leave zombies and stopped processes, up to the limit
# expect: outcome=ok
# limits: processes=16
# control: simulated by r20_fork_limit: the same counter
import os
import signal
import time

for number in range(12):
    pid = os.fork()
    if pid == 0:
        if number % 2:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(30)
        os._exit(0)
