# row: 78
# attempt: make the kernel run a program of ours on the host
# expect: outcome=ok
# control: simulated by host: never run unconfined
import glob
import os

from hostile import CONFINED, attempt, write

if CONFINED:
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/release_agent",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/acpi/wakeup",
        "/proc/irq/0/smp_affinity",
        *glob.glob("/proc/bus/pci/*/*"),
    ):
        attempt(path, lambda path=path: write(path, "|/workspace/x"))
    for path in ("/sys", "/sys/fs/cgroup", "/proc/scsi", "/proc/fs", "/proc/tty", "/proc/driver"):
        found = os.listdir(path) if os.path.isdir(path) else []
        if found:
            print("ACHIEVED a look into", path, found)
