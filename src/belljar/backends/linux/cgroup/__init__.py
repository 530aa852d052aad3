"""Control groups: the kernel's limits on, and its account of, one whole sandbox.

`plan` decides from text where groups can live (v2, v1, or some of each); `control` makes groups,
`group` is one of them; `scope` asks the user's systemd for a group; `tree` says what is written and
read there, and names, empties and removes directories, also those of owners that died.
"""

from belljar.backends.linux.cgroup.control import Cgroups, detect, leftovers, sweep
from belljar.backends.linux.cgroup.group import Cgroup

__all__ = ["Cgroup", "Cgroups", "detect", "leftovers", "sweep"]
