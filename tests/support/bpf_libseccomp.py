"""Profiles as runc gives them to libseccomp, and the program that libseccomp makes of them."""

from __future__ import annotations

import ctypes
import errno
import functools
import tempfile

from bpf_profile import AUDIT, COMPARE, action

_BINARY_TREE = (8, 2)  # an attribute that runc sets; old versions have it not


class Refused(Exception):
    """libseccomp takes no such rule."""


class Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@functools.cache
def loaded():
    """Raises OSError if there is none."""
    found = ctypes.CDLL("libseccomp.so.2")
    context, number = ctypes.c_void_p, ctypes.c_uint32
    found.seccomp_init.restype = context
    found.seccomp_init.argtypes = [number]
    found.seccomp_arch_add.argtypes = [context, number]
    found.seccomp_attr_set.argtypes = [context, ctypes.c_int, number]
    found.seccomp_export_bpf.argtypes = [context, ctypes.c_int]
    found.seccomp_release.argtypes = [context]
    found.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    found.seccomp_syscall_resolve_name_arch.argtypes = [number, ctypes.c_char_p]
    found.seccomp_rule_add_array.argtypes = [
        *(context, number, ctypes.c_int, ctypes.c_uint),
        ctypes.POINTER(Comparison),
    ]
    return found


def compile_document(document, machines=tuple(AUDIT)):
    """The program, and the names of calls that libseccomp knows."""
    lib = loaded()
    default = action(document["defaultAction"], document.get("defaultErrnoRet", 1))
    context = lib.seccomp_init(default)
    try:
        for machine in machines:
            added = lib.seccomp_arch_add(context, AUDIT[machine])
            assert added in (0, -errno.EEXIST), added
        lib.seccomp_attr_set(context, *_BINARY_TREE)
        known = set()
        for entry in document["syscalls"]:
            known |= _add(lib, context, entry, default)
        with tempfile.TemporaryFile() as file:
            assert lib.seccomp_export_bpf(context, file.fileno()) == 0
            file.seek(0)
            return file.read(), known
    finally:
        lib.seccomp_release(context)


def _add(lib, context, entry, default):
    operators = {name: at for at, name in enumerate(COMPARE, start=1)}
    wanted = action(entry["action"], entry.get("errnoRet", 1))
    args = [
        Comparison(one["index"], operators[one["op"]], one["value"], one.get("valueTwo", 0))
        for one in entry.get("args", [])
    ]
    known = set()
    for name in entry["names"]:
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            continue
        known.add(name)
        if wanted != default:  # which libseccomp refuses as superfluous
            array = (Comparison * len(args))(*args)
            made = lib.seccomp_rule_add_array(context, wanted, number, len(args), array)
            if made != 0:
                raise Refused(f"{made}: {name}: {entry}")
    return known
