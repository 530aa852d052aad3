"""A census of what belljar may leave behind, taken from outside: /proc and directories.

Nothing here asks belljar. `take()` before, `take()` after, and `leaks()` says what is new.
"""

import contextlib
import ctypes
import dataclasses
import gc
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import engine_view
import setting
from belljar.conformance.processes import (  # noqa: F401
    Process,
    TooLate,
    alive,
    command_line,
    descendants,
    is_ending,
    process,
    processes,
    wait_until,
)

PR_SET_CHILD_SUBREAPER = 36
ANONYMOUS = re.compile("[0-9a-f]{64}")  # a volume that an image asks for
GUEST_UIDS = 0x70000000  # those of root's guests begin here
ENGINES = "belljar-engine-"  # in /tmp, then the number of the process whose it is


def become_subreaper():
    """Orphans of our descendants become our children, so that the census misses none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def forget(forgotten, told):
    """Let go of sandboxes until each has warned: a thread may still hold one for a moment."""
    most = len(forgotten)
    forgotten.clear()
    wait_until(lambda: gc.collect() >= 0 and len(told) >= most, what="the warnings")


def inside_pid(pid):
    """The number a process has in its innermost pid namespace; None when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except OSError:
        return None
    return None


# --- the census ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Census:
    processes: frozenset
    threads: frozenset
    mounts: frozenset
    cgroups: frozenset
    namespaces: frozenset
    descriptors: Counter
    directories: frozenset
    shared_memory: frozenset
    sysv: frozenset
    engine: frozenset  # containers, networks, volumes


def take(envs=None):
    """What there is now. `envs`: the directory of built environments, if that is of interest."""
    return Census(
        processes=frozenset((p.pid, p.started) for p in descendants(os.getpid())),
        threads=frozenset(t.name for t in threading.enumerate()),
        mounts=frozenset(_mounts()),
        # In containers they are the engine's, which another run beside this one may not share.
        cgroups=frozenset() if setting.DOCKER else frozenset(cgroup_directories()),
        namespaces=frozenset(_namespaces()),
        descriptors=_descriptors(),
        directories=frozenset(_temporary()) | (unfinished(envs) if envs else frozenset()),
        shared_memory=frozenset(_shared_memory()),
        sysv=frozenset(_sysv()),
        engine=frozenset(_engine()) if engine_view.is_there() else frozenset(),
    )


def leaks(before, after):
    """What is there after that was not there before, as sentences."""
    found = []
    for pid, started in sorted(after.processes - before.processes):
        p = process(pid)
        if p is not None and p.started == started:
            found.append(str(p))
    found += [f"thread {name}" for name in sorted(after.threads - before.threads)]
    found += [f"mount {line}" for line in sorted(after.mounts - before.mounts)]
    found += [f"cgroup {path}" for path in sorted(after.cgroups - before.cgroups) if is_ours(path)]
    found += [f"namespace {name}" for name in sorted(after.namespaces - before.namespaces)]
    extra = after.descriptors - before.descriptors
    found += [f"{number} descriptor(s) of {kind}" for kind, number in sorted(extra.items())]
    found += [f"directory entry {path}" for path in sorted(after.directories - before.directories)]
    new = after.shared_memory - before.shared_memory
    found += [f"shared memory {path}" for path in sorted(new)]
    found += [f"SysV {row}" for row in sorted(after.sysv - before.sysv)]
    found += sorted(after.engine - before.engine)
    return found


def swept(before, envs=None, ignore=()):
    """The leaks that stay when the next host process has come: what one that was killed leaves
    behind is removed then at the latest, and may be that of a run beside this one."""
    found = settle(before, envs, timeout=5.0, ignore=ignore)
    for _ in range(3):
        if not any(leak.startswith(NOT_SWEPT) for leak in found):
            break
        # What it cannot remove is found again.
        command = [sys.executable, "-m", "belljar", "gc"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        found = settle(before, envs, timeout=1.0, ignore=ignore)
    return found and settle(before, envs, ignore=ignore)


def settle(before, envs=None, timeout=30.0, ignore=()):
    """The leaks that stay: what is just ending gets a moment. `ignore`: how some may begin."""
    deadline = time.monotonic() + timeout
    while True:
        found = [leak for leak in leaks(before, take(envs)) if not leak.startswith(tuple(ignore))]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _mounts():
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        place = fields[4]
        # The engine's, for containers of whomever: those are counted as containers. And those
        # that come when somebody logs in, or plugs something in.
        engines = place.startswith(("/var/lib/docker/", "/run/docker/", "/var/run/docker/"))
        engines = engines or place.startswith(("/run/user/", "/run/media/", "/media/"))
        # And what tests of another setting mount, beside these.
        others = "/belljar-tests" in place and not place.startswith(tempfile.gettempdir())
        mine = f"/tmp/{ENGINES}{os.getpid()}-"
        others = others or (place.startswith(f"/tmp/{ENGINES}") and not place.startswith(mine))
        if not engines and not others:
            yield f"{place} ({fields[fields.index('-') + 1]})"


def cgroup_directories():
    """Every control group called belljar-*, in every hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] in ("cgroup", "cgroup2"):
            for path, names, _ in os.walk(fields[4]):
                yield from (os.path.join(path, n) for n in names if n.startswith("belljar-"))
                names[:] = [n for n in names if not n.startswith("belljar-")]


def is_ours(path):
    """Not that of another belljar process that is alive on this machine, nor another user's."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_uid != os.getuid():
            return False
    words = os.path.basename(path).split("-")
    try:
        pid, started = int(words[1]), int(words[2])
    except (IndexError, ValueError):
        return True
    return pid == os.getpid() or not alive(pid, started)


# Of a host process that was not asked: swept by the next one that starts a sandbox.
NOT_SWEPT = ("cgroup", "exited container", "created container", "dead container")


def containers():
    """(state, name) of those that processes of this run have made."""
    for container in engine_view.containers() if engine_view.is_there() else ():
        if _is_of_this_run(container["Id"], container["Labels"]):
            yield container["State"], container["Names"][0]


def _engine():
    """Containers of this run, and what Belljar should never make: networks, volumes without a
    name. Those that other programs make have names."""
    yield from (f"{state} container {name}" for state, name in containers())
    yield from (f"network {name}" for name in engine_view.networks() if "belljar" in name)
    yield from (f"volume {name}" for name in engine_view.volumes() if ANONYMOUS.fullmatch(name))


def _is_of_this_run(container, labels):
    """Not that of another run of the tests, beside this one with another runtime."""
    text = labels.get("belljar.owner.pid", "")
    owner = int(text) if text.isdigit() else 0
    ours = {os.getpid(), *(p.pid for p in descendants(os.getpid()))}
    if owner not in ours and alive(owner):
        return False
    seen = engine_view.inspect(container)
    return seen is not None and f"docker-{seen['HostConfig']['Runtime']}" == setting.NAME


_KINDS = ("net", "mnt", "pid", "user", "ipc", "uts", "cgroup")


def _namespaces():
    """Not our own: those of our descendants, and those a descriptor of ours keeps alive."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in _KINDS}
    for p in descendants(os.getpid()):
        for kind in _KINDS:
            try:
                name = os.readlink(f"/proc/{p.pid}/ns/{kind}")
            except OSError:
                continue  # it has just ended, or is not ours to look at
            if name not in own:
                yield name
    yield from (target for target in _descriptors() if target.partition(":")[0] in _KINDS)


def _descriptors():
    found = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
        # Numbers of sockets and pipes differ from time to time; their count does not.
        kind = target.partition(":")[0]
        found[kind if kind in ("socket", "pipe") else target] += 1
    return found


def _temporary():
    for path in Path(tempfile.gettempdir()).iterdir():
        # pytest keeps the directories of its last runs.
        if not path.name.startswith("pytest-of-"):
            yield str(path)


def unfinished(envs):
    """What builds of environments left half-made, or half-removed."""
    found = (path for kind in ("building", "trash") for path in Path(envs).glob(f".{kind}-*"))
    return frozenset(map(str, found))


def _shared_memory():
    """Files of guests and of belljar: other programs of this user may keep theirs there."""
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(FileNotFoundError):  # another's, who has just removed it
            if "belljar" in entry.name or _is_a_guests_file(entry):
                yield entry.path


def _is_a_guests_file(entry):
    status = entry.stat(follow_symlinks=False)
    return status.st_uid >= GUEST_UIDS and not stat.S_ISDIR(status.st_mode)


def _sysv():
    """Objects of this user and of guests: other users of this machine may have theirs."""
    for kind in ("shm", "sem", "msg"):
        try:
            head, *rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
        except OSError:
            continue
        owner = head.split().index("cuid")
        for row in map(str.split, rows):
            if int(row[owner]) == os.getuid() or int(row[owner]) >= GUEST_UIDS:
                yield f"{kind} {' '.join(row[:2])}"
