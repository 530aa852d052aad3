# row: 23
# attempt: shared anonymous memory, System V segments that are detached again
# expect: outcome=out_of_memory
# expect-user: outcome=out_of_memory|ok|error|killed
# limits: memory=64m
# larger: memory=512m
# oracle: memory
import ctypes
import mmap
import time

from hostile import libc

libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
libc.shmdt.argtypes = (ctypes.c_void_p,)
for _ in range(10):
    segment = libc.shmget(0, 8 << 20, 0o1600)
    if segment < 0:
        print("refused System V memory")
        break
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, 8 << 20)
    libc.shmdt(place)
shared = [mmap.mmap(-1, 8 << 20) for _ in range(15)]
for area in shared:
    area.write(b"x" * (8 << 20))
time.sleep(0.5)
