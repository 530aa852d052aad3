"""Which control groups belljar may use on this machine."""

import functools

from belljar.backends.linux import cgroup


@functools.cache
def controllers():
    groups = cgroup.detect()
    try:
        return groups.controllers
    finally:
        groups.close()
