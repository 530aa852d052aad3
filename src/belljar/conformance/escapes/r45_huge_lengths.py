# row: 45
# attempt: a frame that announces four gigabytes
# expect: outcome=killed
# control: simulated by verdict
import struct
import time

from hostile import worker

runner, request = worker()
runner._control.sendall(struct.pack("!BIII", 65, request, 0xFFFFFFFF, 0xFFFFFFFF) + b"x" * 1000)
time.sleep(10)
