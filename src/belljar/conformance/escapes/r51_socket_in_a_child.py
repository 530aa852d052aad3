# row: 51
# attempt: leave the runner's socket with a child, and exit
# expect: outcome=killed exit_code=5
# control: simulated by verdict
import os
import time

from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
if os.fork() == 0:
    os.setsid()
    time.sleep(0.3)
    for _ in range(100):
        claims = forge(DONE, request, {"status": "ok"}) + forge(SYNCED, request)
        runner._control.sendall(claims)
        time.sleep(0.01)
    time.sleep(30)
os._exit(5)
