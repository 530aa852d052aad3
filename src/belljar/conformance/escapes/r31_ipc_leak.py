# row: 31
# attempt: leave System V objects and message queues behind
# expect: outcome=ok
# control: plain
# trips: host
import ctypes

from hostile import CONFINED, libc

print(libc.shmget(0x0BE11, 4096, 0o1666), libc.semget(0x0BE11, 1, 0o1666))
print(libc.msgget(0x0BE11, 0o1666))
if CONFINED:
    print(ctypes.CDLL("librt.so.1").mq_open(b"/belljar", 0o102, 0o666, None))
