# row: 68
# attempt: a 32-bit system call: getpid by int 0x80
# expect: outcome=killed signal=31
# machine: x86_64
# control: plain
# trips: achieved
import ctypes
import mmap

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared ones are refused where no cgroup is
RWX = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
code = mmap.mmap(-1, 4096, flags=PRIVATE, prot=RWX)
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print("ACHIEVED", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
