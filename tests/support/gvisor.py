"""Why tests are left out with gVisor: each is a row in docs/security/gvisor.md."""

import pytest

PID_1 = pytest.mark.not_gvisor("code can kill or stop PID 1: its guest ends, a new one is started")
PROCESSES = pytest.mark.not_gvisor("beyond `processes` the guest ends; threads are not counted")
MEMORY = pytest.mark.not_gvisor("out of memory, gVisor itself is ended, and the guest with it")
INODES = pytest.mark.not_gvisor("the number of files has no limit but memory")
OUTSIDE = pytest.mark.not_gvisor("the host sees gVisor's kernel, not the guest's processes")
FILTER = pytest.mark.not_gvisor("gVisor answers system calls itself: the filter is not applied")
WRITABLE = pytest.mark.not_gvisor("writable mounts are refused: the filter is not applied")
