# row: 45, 47
# attempt: say "ok" on the worker's own socket, then exit with 1
# expect: outcome=killed exit_code=1
# control: simulated by verdict
import os

from hostile import DONE, forge, worker

runner, request = worker()
runner._control.sendall(forge(DONE, request, {"status": "ok"}))
os._exit(1)
