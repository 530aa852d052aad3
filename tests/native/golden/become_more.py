# What code must not be able to change of itself by prctl and the like, all in one.
import ctypes
import os
import resource
import struct

libc = ctypes.CDLL(None, use_errno=True)


def prctl(*words):
    words = [ctypes.c_ulong(word & (2**64 - 1)) for word in (*words, 0, 0, 0, 0)[:5]]
    return libc.prctl(*words)


for capability in range(64):
    prctl(47, 2, capability)  # PR_CAP_AMBIENT, RAISE
    prctl(24, capability)  # PR_CAPBSET_DROP
for bits in (0, 0xFF, 0x2F):
    prctl(28, bits)  # PR_SET_SECUREBITS
prctl(8, 1)  # PR_SET_KEEPCAPS
prctl(38, 0)  # PR_SET_NO_NEW_PRIVS
prctl(22, 1)  # PR_SET_SECCOMP, strict: it would not go on
prctl(0x59616D61, -1)  # PR_SET_PTRACER, anybody
prctl(4, 2)  # PR_SET_DUMPABLE, for root only
prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
header = struct.pack("Ii", 0x20080522, 0)
libc.capset(header, struct.pack("6I", *[0xFFFFFFFF] * 6))
libc.personality(ctypes.c_ulong(0x0040000))
libc.setfsuid(0)
libc.setns(-1, 0)
for kind in range(16):
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        continue
for number in range(3, 1024):
    try:
        os.dup2(number, number + 1)
    except OSError:
        break
