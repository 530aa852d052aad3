"""Why tests are left out with gVisor: each of these is a row of the table in SECURITY.md."""

import pytest

PID_1 = pytest.mark.not_gvisor("code can kill or stop PID 1: its guest ends, a new one is started")
PROCESSES = pytest.mark.not_gvisor("beyond `processes` the guest ends; threads are not counted")
MEMORY = pytest.mark.not_gvisor("out of memory, gVisor itself is ended, and the guest with it")
INODES = pytest.mark.not_gvisor("the number of files has no limit but memory")
OUTSIDE = pytest.mark.not_gvisor("the host sees gVisor's kernel, not the guest's processes")
FILTER = pytest.mark.not_gvisor("gVisor answers system calls itself: the filter is not applied")
WRITABLE = pytest.mark.not_gvisor("writable mounts are refused: the filter is not applied")

# Hostile guests whose attempts gVisor answers, inside: what they achieve there is no news; what
# they must not achieve outside is looked at all the same.
ANSWERED_INSIDE = {
    *("r06_descriptors", "r09_user_namespace", "r11_setns", "r14_devices", "r15_ptrace"),
    *("r17_proc_mem", "r18_kill_others", "r20_fork_bomb", "r20_fork_limit", "r21_thread_limit"),
    *("r28_fill", "r29_inodes", "r32_descriptors", "r35_priority", "r67_io_uring", "r68_int80"),
    *("r68_x32", "r69_socket_families", "r77_power", "r78_kernel_helpers", "r79_kernel_secrets"),
    *("x_descriptors_to_init", "x_limits_of_init", "x_signals_to_init"),
}
