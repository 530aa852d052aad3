# row: 45, 54, 56
# attempt: an "error" of sixteen megabytes of JSON, to fill the host's memory and stall its loop
# expect: outcome=killed|error|lost
# oracle: flood
# control: simulated by flood
from hostile import DONE, forge, worker

runner, request = worker()
start = b'{"name":"E","value":"v","traceback":"t","x":['
bomb = start + b"[]," * ((16 * 1024 * 1024 - len(start) - 8) // 3) + b"1]}"
runner._control.sendall(forge(DONE, request, {"status": "error"}, bomb))
