# row: 26, 33
# attempt: park so many descriptors in sockets that init can pass none
# expect: outcome=ok
# control: simulated by neighbours: the greedy guest is told what it could take
import os
import socket

kept, reading = [], os.pipe()[0]
try:
    for _ in range(10):
        left, right = socket.socketpair()
        kept += [left, right]
        socket.send_fds(left, [b"x"], [reading] * 200)
except OSError as error:
    print("refused", error)
