# row: 76
# attempt: set the clock, the host's name, kernel variables
# expect: outcome=ok
# control: simulated by host: never run unconfined
import ctypes
import socket
import time

from hostile import CONFINED, attempt, syscall, write

if CONFINED:
    now = (ctypes.c_long * 2)(1, 0)
    syscall("clock_settime", 0, ctypes.byref(now))
    syscall("settimeofday", ctypes.byref(now), None)
    changes = ctypes.create_string_buffer(b"\2" * 208, 208)
    syscall("adjtimex", ctypes.byref(changes))
    syscall("clock_adjtime", 0, ctypes.byref(changes))
    attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 1) or "set")
    attempt("name", lambda: socket.sethostname("owned") or "set")
    syscall("setdomainname", ctypes.c_char_p(b"owned"), 5)
    for name in (
        "kernel/hostname",
        "vm/overcommit_memory",
        "kernel/pid_max",
        "net/ipv4/ip_forward",
    ):
        attempt(name, lambda name=name: write(f"/proc/sys/{name}", "1"))
