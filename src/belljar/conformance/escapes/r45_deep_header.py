# row: 45, 56
# attempt: frames whose headers nest as deep as the reader bears, and the writer does not
# expect: outcome=killed|ok|error
# keeps: files
# control: simulated by verdict
import time

from hostile import RESULT, forge, worker

runner, request = worker()
for depth in range(900, 1000, 3):
    header = b'{"parts":[],"x":' + b"[" * depth + b"]" * depth + b"}"
    runner._control.sendall(forge(RESULT, request, header))
    time.sleep(0.005)
