# row: 45, 54
# attempt: results made of thousands of empty parts, to fill the host's memory
# expect: outcome=killed|ok|error|output_limit|lost
# oracle: flood
# control: simulated by flood
from hostile import RESULT, forge, worker

runner, request = worker()
parts = ",".join(f'{{"mime":"{number:x}","size":0}}' for number in range(7000))
frame = forge(RESULT, request, ('{"parts":[' + parts + "]}").encode())
for _ in range(300):
    runner._control.sendall(frame)
