"""Control groups: the kernel's limits on, and its account of, one whole sandbox.

`plan` decides from text where groups can live (v2, v1, or some of each); `files` says what
is written and read there; `control` makes groups, `group` is one of them; `scope` asks the
user's systemd for a group; `tree` names, empties and removes directories, also those of owners
that died.
"""

from belljar.backends.linux.cgroup.control import (
    Cgroups,
    detect,
    detect_for_child,
    leftovers,
    sweep,
)
from belljar.backends.linux.cgroup.group import Cgroup

__all__ = ["Cgroup", "Cgroups", "detect", "detect_for_child", "leftovers", "sweep"]
