# row: 25, 26, 27, 33
# attempt: memory of the kernel that is in no group's account: access lists, filters of sockets
# expect: outcome=ok
# control: plain
# trips: achieved
import ctypes
import os
import socket
import struct

from hostile import attempt

entries = [(1, 7, -1), (2, 7, 65534), (4, 7, -1), (16, 7, -1), (32, 7, -1)]
access_list = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
open("listed", "w").close()
attempt("an attribute", lambda: os.setxattr("listed", "user.a", b"x" * 100) or "set")
attempt("an access list", lambda: os.setxattr("listed", "system.posix_acl_access", access_list))
descriptor = os.open("listed", os.O_RDONLY)
attempt("one by descriptor", lambda: os.setxattr(descriptor, "user.b", b"x"))
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 65535))  # accept everything
filter_ = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))


def put(sock, option):
    attempt(f"a filter ({option})", lambda: sock.setsockopt(1, option, filter_) or "set")


with socket.socket(socket.AF_UNIX) as local, socket.socket() as internet:
    for option in (26, 50, 51, 52):
        put(local, option)
        put(internet, option)
    key = struct.pack("=HH124xBBHI80s", socket.AF_INET, 0, 0, 0, 4, 0, b"key")
    attempt("a key of TCP", lambda: internet.setsockopt(socket.IPPROTO_TCP, 14, key) or "set")
with socket.socket(socket.AF_INET6) as six:
    label = struct.pack("16sIBBHHH4x", socket.inet_pton(socket.AF_INET6, "::1"), 0, 0, 255, 1, 0, 0)
    attempt("a flow label", lambda: six.setsockopt(socket.IPPROTO_IPV6, 32, label) or "set")
