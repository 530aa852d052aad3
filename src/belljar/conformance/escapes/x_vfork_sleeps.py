# row: 36
# attempt: wait in vfork for a child that sleeps, where signals do not reach
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# machine: x86_64
# control: plain
# trips: hang
import ctypes
import mmap

# vfork; in the child pause() for ever; then ret.
program = bytes.fromhex("b83a0000000f0585c07509b8220000000f05ebf7c3")
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared ones are refused where no cgroup is
RWX = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
code = mmap.mmap(-1, 4096, flags=PRIVATE, prot=RWX)
code.write(program)
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
ctypes.CFUNCTYPE(ctypes.c_int)(address)()
