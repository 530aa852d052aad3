# row: 12
# attempt: the double chroot, and pivot_root
# expect: outcome=ok
# control: namespace
# trips: posture
import ctypes
import os

from hostile import attempt, read, syscall, target

os.mkdir("jail")
syscall("chroot", ctypes.c_char_p(b"jail"))
for _ in range(50):
    os.chdir("..")
syscall("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
attempt("the canary", lambda: read("." + target("secret_file")))
