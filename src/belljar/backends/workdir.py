"""Where a sandbox has its workspace: at /workspace, unless somebody's code expects it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from belljar.backends.mounts import Mount, below, guest_path
from belljar.errors import InvalidOption

WORKSPACE = "/workspace"


def check(given: object, mounts: Iterable[Mount] = ()) -> str:
    """As the option of a sandbox: an absolute path where nothing else is."""
    if given == WORKSPACE:
        return WORKSPACE
    try:
        path = guest_path(given)
    except InvalidOption:
        raise InvalidOption(
            f"the workspace cannot be at {given!r}",
            hint="workdir is an absolute path such as /sandbox, where the sandbox has nothing else",
        ) from None
    for mount in mounts:
        if below(mount.guest, path) or below(path, mount.guest):
            raise InvalidOption(
                f"a mount and the workspace are in one place: {mount.guest!r} and {path!r}"
            )
    return path
