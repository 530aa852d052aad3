"""Facts about the Python that runs this file.

`interpreter.py` imports it for the running Python, and lets any other Python run it as a file
(`python -I -S interpreter_facts.py`). So it must run on Python 3.7, if only to report the version.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import sysconfig

# Parts of the standard library that builds lack whose maker had no headers of a C library.
_OPTIONAL = ("_bz2", "_ctypes", "_hashlib", "_lzma", "_sqlite3", "_ssl", "zlib")


def facts() -> dict[str, object]:
    prefix = os.path.realpath(sys.base_prefix)
    name = "python%d.%d%s" % (sys.version_info[0], sys.version_info[1], sys.abiflags)  # noqa: UP031
    # The installation's own binary first: sys.executable may be a copy inside a virtual
    # environment, or a program that embeds Python (uwsgi).
    installed = os.path.join(prefix, "bin", name)
    running = getattr(sys, "_base_executable", None) or sys.executable
    libdir = sysconfig.get_config_var("LIBDIR") or ""
    # Relocated builds (python-build-standalone) carry the LIBDIR of the machine that made them.
    if not os.path.isdir(libdir):
        libdir = os.path.join(prefix, "lib")
    return {
        "implementation": sys.implementation.name,
        "system": sys.platform,
        "version": list(sys.version_info[:3]),
        "executable": os.path.realpath(installed if os.path.exists(installed) else running),
        "prefix": prefix,
        "stdlib": os.path.realpath(sysconfig.get_path("stdlib")),
        "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
        "libdir": os.path.realpath(libdir),
        "abi": sysconfig.get_config_var("SOABI") or platform.machine(),
        "complete": sys.version_info[3] == "final"
        and not sys.abiflags
        and all(importlib.util.find_spec(name) for name in _OPTIONAL),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
