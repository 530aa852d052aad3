# row: 45, 47
# attempt: say "ok" and "I am back at my socket" in one breath, then exit with 1
# expect: outcome=killed exit_code=1
# control: simulated by verdict
import os

from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
claims = forge(DONE, request, {"status": "ok"}) + forge(SYNCED, request, {})
runner._control.sendall(claims)
os._exit(1)
