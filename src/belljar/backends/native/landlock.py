"""Landlock: a second opinion on files, beside the read-only mounts. Runs in the guest.

Reading and executing is allowed everywhere in the sandbox's own root; writing only where it is
meant to be. Newer kernels add: no TCP at all unless given, no signals or abstract sockets to
anything outside.
"""

import os
from typing import List

from ..linux import syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_V1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2


def handled(abi: int) -> int:
    rights = _ALL_V1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if abi >= since:
            rights |= right
    return rights


def restrict(writable: List[str], devices: List[str]) -> int:
    """Apply to this process for good; the version applied, 0 where the kernel has none."""
    abi = syscalls.landlock_abi()
    if abi == 0:
        return 0
    rights = handled(abi)
    fields = [rights]
    if abi >= 4:
        fields.append(0)  # TCP: the network namespace has only its own loopback
    if abi >= 6:
        fields.append(_SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    ruleset = syscalls.landlock_create_ruleset(fields)
    try:
        _allow(ruleset, "/", _READ & rights)
        # /proc: kernel files decide for themselves; /proc/self/oom_score_adj and comm are the
        # sandbox's own business, everything that is the host's is masked.
        _allow(ruleset, "/proc", (_READ | _WRITE_FILE | _TRUNCATE) & rights)
        for path in writable:
            _allow(ruleset, path, rights)
        for path in devices:
            _allow(ruleset, path, _ON_FILES & rights)
        syscalls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.landlock_allow(ruleset, fd, rights)
    finally:
        os.close(fd)
