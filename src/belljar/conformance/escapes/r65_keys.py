# row: 65
# attempt: the kernel's keyrings
# expect: outcome=ok
# control: plain
# trips: achieved
import ctypes

from hostile import syscall

text = ctypes.c_char_p
for ring in (-1, -2, -3, -4, -5):
    syscall("add_key", text(b"user"), text(b"belljar"), text(b"payload"), 7, ring)
    syscall("keyctl", 0, ring, 1, 0, 0)
syscall("request_key", text(b"user"), text(b"belljar"), None, -3)
syscall("keyctl", 1, text(b"mine"), 0, 0, 0)
