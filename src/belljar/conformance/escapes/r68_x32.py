# row: 68
# attempt: a system call with an x32 number
# expect: outcome=killed signal=31
# machine: x86_64
# control: simulated by nothing: without x32 a kernel refuses by itself; the filter must kill first
from hostile import syscall

syscall("x32 getpid", number=0x40000000 | 39)
