# row: 66
# attempt: bpf, perf_event_open, userfaultfd, modify_ldt, and other rare calls
# expect: outcome=ok
# control: plain
# trips: posture
import ctypes

from hostile import syscall

attribute = ctypes.create_string_buffer(128)
for command in (0, 5, 18):
    syscall("bpf", command, ctypes.byref(attribute), 128)
event = (ctypes.c_uint32 * 32)(1, 128)
event[10] = 0x60  # this process only, without the kernel
syscall("perf_event_open", ctypes.byref(event), 0, -1, -1, 0)
for flags in (0, 1, 0x80001):
    syscall("userfaultfd", flags)
syscall("memfd_secret", 0)
syscall("fanotify_init", 0, 0)
syscall("name_to_handle_at", -100, ctypes.c_char_p(b"/"), attribute, attribute, 0)
syscall("seccomp", 2, 0, ctypes.byref(attribute))
syscall("landlock_create_ruleset", None, 0, 1)
