# row: 6, 45
# attempt: fill init with descriptors sent over the runner's socket
# expect: outcome=ok|killed
# oracle: init
# control: simulated by itself: the descriptors of init are counted
import os
import socket

from hostile import RESULT, forge, worker

runner, request = worker()
frame = forge(RESULT, request, {"parts": [], "main": False})
reading = os.open("/workspace", os.O_RDONLY)
try:
    for _ in range(40):
        socket.send_fds(runner._control, [frame], [reading] * 100)
except OSError as error:
    print("refused", error)
os.close(reading)
