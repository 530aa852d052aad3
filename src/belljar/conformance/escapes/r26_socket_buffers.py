# row: 26
# attempt: kernel memory in socket buffers, and descriptors in flight
# expect: outcome=ok|out_of_memory|killed
# limits: memory=64m
# larger: memory=512m
# oracle: memory
import socket

kept = []
try:
    for _ in range(20):
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        kept += [left, right]
        left.setblocking(False)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        try:
            for _ in range(200):
                left.send(b"x" * 50000)
        except BlockingIOError:
            continue
except OSError as error:
    print("refused", error)
for _ in range(4):
    left, right = socket.socketpair()
    kept += [left, right]
    try:
        socket.send_fds(left, [b"x"], [left.fileno()] * 200)
    except OSError as error:
        print("refused", error)
