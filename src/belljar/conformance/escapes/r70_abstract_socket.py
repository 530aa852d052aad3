# row: 70
# attempt: an abstract unix socket of the host
# expect: outcome=ok
# control: plain
# trips: hits
import socket

from hostile import attempt, target


def connect(kind):
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.connect("\0" + target("abstract"))
        return sock.recv(100)


for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    attempt("connect", lambda kind=kind: connect(kind))
