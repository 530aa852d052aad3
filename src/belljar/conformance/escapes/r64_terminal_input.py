# row: 64
# attempt: type into the terminal of the caller
# expect: outcome=ok
# control: simulated by terminal: the caller itself types
import ctypes
import os

from hostile import attempt, libc

TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCSETD = 0x5412, 0x541C, 0x540E, 0x5423
opened = attempt("/dev/tty", lambda: os.open("/dev/tty", os.O_RDWR))
for number in (0, 1, 2, opened if opened is not None else 0):
    for request in (TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCSETD):
        for high in (0, 1 << 32, 0xDEADBEEF << 32):
            code = ctypes.c_ulong(request | high)
            byte = ctypes.c_char(b"x")
            if libc.ioctl(number, code, ctypes.byref(byte)) == 0:
                print("ACHIEVED ioctl", hex(code.value))
