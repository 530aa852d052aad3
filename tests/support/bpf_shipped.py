"""The profile that Belljar ships: its text, its meaning, its compiled form."""

from __future__ import annotations

import functools
import json
import platform

from belljar.backends.linux import seccomp
from bpf_profile import Meaning

MACHINE = platform.machine()
NUMBERS = seccomp.syscall_numbers()
DOCUMENT = json.loads(seccomp.PROFILE.read_text())


def expected(document, machine, nr, args):
    """The meaning of a profile, read from its text without the code under test."""
    if document is DOCUMENT:
        return shipped(machine).verdict(nr, args)
    return Meaning(document, machine, NUMBERS[machine]).verdict(nr, args)


@functools.cache
def shipped(machine):
    return Meaning(DOCUMENT, machine, NUMBERS[machine])


@functools.cache
def compiled(machine, deny=()):
    return seccomp.compile_profile(seccomp.load_profile(), machine, deny=deny)
