# row: 45
# attempt: a header that fits, and no longer fits when it is written again
# expect: outcome=killed|ok|error
# keeps: files
# control: simulated by verdict
import time

from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
header = ('{"status":"ok","x":"' + "é" * 100_000 + '"}').encode()
runner._control.sendall(forge(DONE, request, header) + forge(SYNCED, request, {}))
time.sleep(1)
