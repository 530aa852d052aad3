# row: 69
# attempt: sockets of every family and type but the ordinary ones
# expect: outcome=ok
# control: plain
# trips: posture
import socket

from hostile import syscall

kept = []
for family in range(0, 46):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for protocol in (0, 1, 132, 136, 255):
            if (family, kind) in ((1, 1), (1, 2), (1, 5), (2, 1), (2, 2), (10, 1), (10, 2), (1, 3)):
                continue
            try:
                kept.append(socket.socket(family, kind, protocol))
                print("ACHIEVED", kept[-1])
            except OSError:
                continue
# The filter sees 64 bits, the kernel 32: AF_VSOCK and AF_ALG with rubbish above.
for family in (40, 38, 16, 17):
    syscall("socket", family | 1 << 32, 1, 0)
    syscall("socketpair", family, 1, 0, 0)
for protocol in (262, 132, 33, 136):  # MPTCP, SCTP, DCCP, UDP-Lite
    for kind in (1, 2, 5, 6):
        syscall("socket", 2, kind, protocol)
