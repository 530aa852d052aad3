# row: 10
# attempt: clone3, whose flags no filter can see, with new namespaces; threads still work
# expect: outcome=ok
# control: plain
# trips: posture
import ctypes
import os
import signal
import threading
import time

from hostile import syscall

thread = threading.Thread(target=print, args=("a thread",))
thread.start()
thread.join()
arguments = (ctypes.c_uint64 * 11)()
arguments[0], arguments[4] = 0x10000000, int(signal.SIGCHLD)
child = syscall("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))
if child == 0:
    time.sleep(20)
    os._exit(0)
