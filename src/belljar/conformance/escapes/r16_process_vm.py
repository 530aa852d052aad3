# row: 16
# attempt: read another process's memory and take its descriptors
# expect: outcome=ok
# control: plain
# trips: secret
import ctypes
import os

from hostile import syscall, target

buffer = ctypes.create_string_buffer(64)


class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


for pid in {1, os.getppid(), target("pid"), os.getpid()}:
    ours = iovec(ctypes.addressof(buffer), 32)
    theirs = iovec(target("address"), 32)
    size = syscall("process_vm_readv", pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if size > 0:
        print(buffer.raw)
    syscall("kcmp", pid, os.getpid(), 1, 0, 0) if pid in (1, target("pid")) else None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        print("refused", error)
        continue
    for number in range(8):
        syscall("pidfd_getfd", pidfd, number, 0)
