# row: 73
# attempt: the metadata services of clouds; names, which could carry data out
# expect: outcome=ok
# control: simulated by way_out: the host has devices and routes where the guest has none
import socket

from hostile import attempt


def send(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"\0" * 12, (address, port))


def connect(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(0.3)
        sock.connect((address, 80))
        return "connected"


for address in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "8.8.8.8", "192.0.2.1"):
    attempt(address, lambda a=address: connect(a))
    attempt(f"DNS {address}", lambda a=address: send(a, 53))
for address in ("224.0.0.251", "255.255.255.255", "ff02::1"):
    attempt(f"everybody {address}", lambda a=address: send(a, 5353))
attempt("name", lambda: socket.getaddrinfo("secret.example.com", 80))
