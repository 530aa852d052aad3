# row: 45
# attempt: a status nobody knows, with every field of the wrong type
# expect: outcome=killed|error|lost|ok
# control: simulated by verdict
from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
header = {"status": ["x"], "exit_code": "1", "signal": {}, "lost": 1, "state_lost": [], "parts": 3}
runner._control.sendall(forge(DONE, request, header) + forge(SYNCED, request, {}))
