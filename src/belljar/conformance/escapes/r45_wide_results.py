# row: 45, 54
# attempt: results of fifteen megabytes whose every character takes four bytes on the host
# expect: outcome=killed|ok|error|output_limit|lost
# oracle: flood
# control: simulated by flood
from hostile import RESULT, forge, worker

runner, request = worker()
text = ("\U0001f600" + "x" * (15 * 1024 * 1024)).encode()
for number in range(4):
    part = {"mime": f"text/{number}", "size": len(text), "text": True}
    runner._control.sendall(forge(RESULT, request, {"parts": [part]}, text))
