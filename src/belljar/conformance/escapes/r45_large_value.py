# row: 45, 54, 56
# attempt: a value of hundreds of thousands of empty lists, to fill the host's memory
# expect: outcome=killed|ok|error|output_limit|lost
# oracle: flood
# control: simulated by flood
from hostile import DONE, SYNCED, forge, worker

runner, request = worker()
payload = b'{"list":[' + b",".join([b'{"list":[]}'] * 650_000) + b"]}"
runner._control.sendall(forge(DONE, request, {"status": "ok"}, payload) + forge(SYNCED, request))
