"""What the hostile guests share. Sent into the sandbox beside each of them (and to its control).

A guest says what it achieved only to make a failing test readable, and to be used against it:
"ACHIEVED" in its output fails the row; the absence of it proves nothing.
"""

import ctypes
import json
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

_NUMBERS = json.loads(os.environ.get("SYSCALLS", "{}"))
_TARGETS = json.loads(os.environ.get("TARGETS", "{}"))
# Set by the tests in a sandbox only: what would hurt a host looks for it first.
CONFINED = os.environ.get("CONFINED") == "1"
# In a container: its image has files, and its runtime makes devices, that are not the host's.
IMAGE = os.environ.get("IMAGE") == "1"


def target(name):
    """A canary on the host: a path, a port, a pid."""
    return _TARGETS[name]


def syscall(name, *args, number=None):
    """A raw system call by its name. The result, or minus errno."""
    if number is None:
        number = _NUMBERS[name]
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        error = ctypes.get_errno()
        print(f"refused {name}: {os.strerror(error)}")
        return -error
    print(f"ACHIEVED {name} -> {result}")
    return result


def attempt(what, action):
    """Try something in Python; print what came of it."""
    try:
        result = action()
    except (OSError, ValueError, KeyError, ImportError) as error:
        print(f"refused {what}: {type(error).__name__} {error}")
        return None
    print(f"ACHIEVED {what}: {str(result)[:500]}")
    return result


def show(what, action):
    """Like attempt(), for what is allowed: prints the result for the host to search."""
    try:
        print(what, str(action())[:20000])
    except (OSError, ValueError, KeyError) as error:
        print(f"refused {what}: {type(error).__name__} {error}")


def read(path, mode="r"):
    with open(path, mode) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        return file.write(text)


class Runner:
    def __init__(self, control):
        self._control = control  # the socket of the object that runs the cells


def worker():
    """By its frames: the object that runs the cells, and the number of this cell."""
    import sys

    frame, found = sys._getframe(), None
    while frame is not None:
        names = frame.f_locals
        if found is None and hasattr(names.get("self"), "_channel"):
            found = Runner(names["self"]._channel._socket)
        if found is not None and hasattr(names.get("frame"), "request"):
            return found, names["frame"].request
        frame = frame.f_back
    raise LookupError("no worker in the frames")


def forge(kind, request, header=b"", payload=b""):
    """A frame as the worker would send it."""
    import struct

    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("!BIII", kind, request, len(header), len(payload)) + header + payload


RESULT, DONE, SYNCED = 65, 66, 68
