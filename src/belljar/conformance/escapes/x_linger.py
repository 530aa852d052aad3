# row: 38, 39, 52
# attempt: let the kernel itself wait, after the end, for a socket that lingers; hold a pipe's lock
# expect: outcome=ok
# control: plain
# trips: achieved
import ctypes
import os
import socket
import struct
import threading

from hostile import CONFINED, attempt, libc

lingering, calm = struct.pack("ii", 1, 3600), struct.pack("ii", 0, 0)


def linger(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingering)
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == calm:
        raise OSError("it says yes, and does nothing")


with socket.socket() as sock:
    attempt("to linger", lambda: linger(sock))
    level = ctypes.c_long((1 << 40) | socket.SOL_SOCKET)  # of which the kernel reads 32 bits
    libc.syscall.argtypes = None
    if hasattr(libc, "setsockopt") and os.uname().machine == "x86_64":
        size = ctypes.c_long(8)
        libc.syscall(54, ctypes.c_long(sock.fileno()), level, 13, lingering, size)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) != calm:
            print("ACHIEVED to linger, by its lower half")
# The end that init reads, opened again: who copies out of it into a full socket has its lock, and
# init would wait where nothing can kill it.
reading = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
full, other = socket.socketpair()
full.setblocking(False)
try:
    while True:
        full.send(b"x" * 4096)
except BlockingIOError:
    full.setblocking(True)


def move():
    moved = libc.splice(reading, None, full.fileno(), None, 4096, 0)
    print("refused splice" if moved < 0 else "ACHIEVED splice", flush=True)


thread = threading.Thread(target=move, daemon=True)
thread.start()
for _ in range(20):
    os.write(1, b"y")
thread.join(10 if CONFINED else 0.5)  # it may wait for its turn on a busy machine
if thread.is_alive():
    print("ACHIEVED a pipe that nobody can read")
