# row: 36, 38
# attempt: a process that looks dead, because its first thread has ended, and goes on
# expect: outcome=timeout
# timeout: 1
# within: 10
# control: simulated by census: a process that stays is seen
import ctypes
import os
import threading
import time

from hostile import libc

if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(60,)).start()
    libc.syscall(ctypes.c_long(60 if os.uname().machine == "x86_64" else 93), 0)
time.sleep(60)
