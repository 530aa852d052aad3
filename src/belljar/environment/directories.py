"""Directories that Belljar makes for itself on the host: their mode does not depend on the umask.

Under an umask of 000 a plain mkdir would let every user replace what lies in the cache or in the
sessions; under 077 it would lock other users out of a cache that root has built for them.
"""

from __future__ import annotations

from pathlib import Path

CACHE = 0o755  # packages, which users of a shared cache read, and nobody else may replace
STATE = 0o700  # what sandboxes and people wrote


def make(path: Path, mode: int) -> None:
    """Make a directory and all that are missing above it, each with this mode.

    A directory that exists stays as it is.
    """
    if path.is_dir():
        return
    make(path.parent, mode)
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():  # else another process made it at the same moment
            raise
    else:
        path.chmod(mode)  # the umask has taken bits from mkdir's mode
