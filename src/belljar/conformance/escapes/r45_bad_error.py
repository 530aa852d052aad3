# row: 45
# attempt: an error whose text is no text
# expect: outcome=error|killed|lost
# control: simulated by verdict
from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
payload = b'{"name":[],"value":{},"traceback":1e999}'
header = {"status": "error"}
runner._control.sendall(forge(DONE, request, header, payload) + forge(SYNCED, request))
