# row: 72
# attempt: services of the host: loopback, its addresses, the unspecified address
# expect: outcome=ok
# control: plain
# trips: hits
import socket

from hostile import attempt, target


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(0.5)
        sock.connect((address, target("port")))
        return sock.recv(100)


def send(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", (address, target("port")))


for address in ("127.0.0.1", "127.1.2.3", "0.0.0.0", target("lan"), "172.17.0.1", "192.168.65.7"):
    attempt(address, lambda a=address: connect(socket.AF_INET, a))
    if not address.startswith(("127", "0")):
        attempt(f"udp {address}", lambda a=address: send(socket.AF_INET, a))
for address in ("::1", "::", "::ffff:127.0.0.1", "fe80::1%lo"):
    attempt(address, lambda a=address: connect(socket.AF_INET6, a))
send(socket.AF_INET, "127.0.0.1")
