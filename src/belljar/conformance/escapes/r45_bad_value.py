# row: 45, 56
# attempt: "ok" with a value that is none
# expect: outcome=killed|error|lost|ok
# control: simulated by verdict
from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
payload = b'{"int":"zz"}' + b"[" * 100_000
runner._control.sendall(forge(DONE, request, {"status": "ok"}, payload) + forge(SYNCED, request))
