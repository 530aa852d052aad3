# row: 79
# attempt: what /proc and /sys tell of the machine and of others
# expect: outcome=ok
# control: plain
# trips: achieved
import os

from hostile import attempt

for name in [
    "kcore",
    "keys",
    "kallsyms",
    "timer_list",
    "kmsg",
    "kpagecount",
    "kpageflags",
    "iomem",
    "ioports",
    "modules",
    "slabinfo",
    "vmallocinfo",
    "sched_debug",
    "interrupts",
    "diskstats",
    "partitions",
    "swaps",
    "cmdline",
    "config.gz",
    "crypto",
    "key-users",
    "locks",
    "net/../../1/environ",
    "1/maps",
    "1/environ",
    "1/mem",
    "consoles",
    "buddyinfo",
    "zoneinfo",
]:
    path = f"/proc/{name}"
    try:
        with open(path, "rb") as file:
            data = file.read(4096)
    except OSError as error:
        print("refused", path, error)
        continue
    if data.strip(b"\0\n"):
        print("ACHIEVED", path, data[:60])
attempt("/sys", lambda: os.listdir("/sys/kernel"))
