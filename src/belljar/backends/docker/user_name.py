"""A name for the user of a container, for programs that ask for it (`whoami`, Python's `pwd`).

Each guest has a uid of its own, which no image knows. So a passwd file with that uid is mounted
over the image's, read-only. The engine takes a path, and has it open once the container runs: the
file is there for that long only, and has a process id in its name, by which one that was left when
a process was killed is found.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from belljar.backends.linux import guest_view

TARGET = "/etc/passwd"
_NAME = re.compile(r"belljar-passwd-([1-9][0-9]{0,9})-\w+")


@contextlib.contextmanager
def passwd_file(uid: int) -> Iterator[str]:
    """The path of a file for a container that starts meanwhile."""
    sweep()
    descriptor, path = tempfile.mkstemp(prefix=f"belljar-passwd-{os.getpid()}-")
    try:
        with open(descriptor, "w") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(guest_view.passwd(uid))
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def mount(path: str) -> dict[str, object]:
    """As the engine takes it."""
    options = {"Propagation": "rprivate"}
    return {
        **{"Type": "bind", "Source": path, "Target": TARGET},
        **{"ReadOnly": True, "BindOptions": options},
    }


def sweep() -> None:
    """Remove passwd files whose process is dead."""
    for path in Path(tempfile.gettempdir()).glob("belljar-passwd-*"):
        found = _NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            if found and path.lstat().st_uid == os.geteuid() and _is_dead(int(found[1])):
                path.unlink()


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
