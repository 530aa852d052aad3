# row: 67
# attempt: io_uring, whose operations no filter sees
# expect: outcome=ok
# control: plain
# trips: posture
import ctypes

from hostile import syscall

parameters = ctypes.create_string_buffer(120)
ring = syscall("io_uring_setup", 8, ctypes.byref(parameters))
syscall("io_uring_enter", ring, 0, 0, 0, 0, 0)
syscall("io_uring_register", ring, 0, 0, 0)
