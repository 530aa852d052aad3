"""What a container will be, as data: decided here, without touching anything.

`body` is what `POST /containers/create` gets. It keeps to what native does (native/plan.py and
confine.py) as far as a container can; what differs is said where it is decided.
"""

from __future__ import annotations

import json
import os
import posixpath
import random
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from belljar.backends.base import GuestSpec
from belljar.backends.docker import profile, user_name
from belljar.backends.docker.enforcement import kept
from belljar.backends.docker.facts import Facts, own_kernel
from belljar.backends.docker.settings import Docker, parse_device
from belljar.backends.linux import guest_view, identity
from belljar.backends.linux.seccomp import HIDDEN_MEMORY, SET_ID, Rule
from belljar.backends.mounts import Mount
from belljar.errors import BackendUnavailable, InvalidOption, nearest
from belljar.limits import Limits
from belljar.protocol.messages import MAX_FILES

__all__ = ["Facts", "body", "check_mounts", "kept", "pick_uid", "query", "seccomp"]

Refusals = tuple[str | Rule, ...]

USER_ID = 1000  # where uids are not the host's anyway
HOST_NAME = "belljar"
# init's own; the worker and what the code starts put themselves at 1000, and go first.
OOM_SCORE = 500
_READ_ONLY_ALL_BELOW = (1, 44)  # API since which a read-only bind can be so with all below it

# Everything in /proc that tells of the host or sets it: native masks all but processes and a few
# files; an engine takes names, so that they are listed. Those a kernel does not have do no harm.
_PROC = (
    *("acpi", "asound", "bootconfig", "buddyinfo", "bus", "cgroups", "cmdline", "config.gz"),
    *("consoles", "crypto", "devices", "diskstats", "dma", "driver", "dynamic_debug"),
    *("execdomains", "fb", "fs", "interrupts", "iomem", "ioports", "irq", "kallsyms", "kcore"),
    *("key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats"),
    *("locks", "mdstat", "misc", "modules", "mtrr", "pagetypeinfo", "partitions", "pressure"),
    *("sched_debug", "schedstat", "scsi", "slabinfo", "softirqs", "swaps", "sys"),
    *("sysrq-trigger", "sysvipc", "timer_list", "timer_stats", "tty", "vmallocinfo", "vmstat"),
    "zoneinfo",
)
# And elsewhere: no terminals, no message queues as files, no name servers of the host's.
_NAME_SERVERS = "/etc/resolv.conf"
_ELSEWHERE = ("/dev/pts", "/dev/mqueue", _NAME_SERVERS)
# Drivers' libraries look for their devices here.
_FOR_DEVICES = ("/sys", "/proc/bus", "/proc/devices", "/proc/driver")
_SECRETS = ("/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel")


def body(
    spec: GuestSpec,
    docker: Docker,
    facts: Facts,
    *,
    image: str,
    command: Sequence[str],
    env: Mapping[str, str],
    uid: int,
    labels: Mapping[str, str],
    volumes: Sequence[str] = (),
    filter_: str | None = None,
    passwd: str | None = None,
) -> dict[str, object]:
    """The container, as the engine shall make it.

    `volumes` are those that the image declares, `filter_` what stands behind `seccomp=` (the
    profile itself, unless the engine wants a path: see `seccomp`), `passwd` a file that names
    the user.
    """
    _check_runtime(docker, facts)
    return {
        "Image": image,
        # In place of an entry point of the image's, which also drops the image's command.
        "Entrypoint": list(command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "User": f"{uid}:{_group(uid)}",
        "WorkingDir": "/",
        "Hostname": HOST_NAME,
        "Labels": dict(labels),
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        # Nothing of the image's runs beside the guest, and no stop waits for anybody.
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "HostConfig": {
            **_isolation(docker, facts, filter_ or seccomp(spec, facts), spec.network),
            **_network(spec.network),
            **_resources(spec.limits, docker, facts),
            **_files(spec, docker, facts, uid, volumes, passwd),
            **_devices(docker),
            **_life(docker),
        },
    }


def query(docker: Docker) -> dict[str, str]:
    """What goes beside the body."""
    return {"platform": docker.platform} if docker.platform else {}


def pick_uid(facts: Facts, mounts: Iterable[Mount] = ()) -> int:
    """As native: where uids are the host's, each guest has one of its own that is nobody's.

    Unless it shall see files of an ordinary user who has started it: then it is that user, as it
    is on native. Where the engine has uids of its own, no choice would make it so.
    """
    if not facts.unique_uids:
        return USER_ID
    if any(mounts) and os.geteuid() != 0:
        return os.geteuid()
    return identity.UID_FIRST + random.SystemRandom().randrange(1, identity.UID_COUNT)


def _group(uid: int) -> int:
    return os.getegid() if uid == os.geteuid() else uid


def check_mounts(mounts: Iterable[Mount], uid: int, *, same_uids: bool = True) -> None:
    """Raise if a mount is not what it was when it was made, or the guest could not use it.

    `same_uids`: whether a uid in the container is the same outside (Facts.unique_uids).

    Just before the container is made. Unlike native, which binds what it has opened, an engine
    takes a path and resolves it anew: who may rename directories on the way can still exchange
    them in the moment between.
    """
    for mount in mounts:
        try:
            same = os.path.realpath(mount.host, strict=True) == mount.host
            status = os.stat(mount.host)
        except OSError as error:
            raise InvalidOption(f"cannot mount {mount.host!r}: {error.strerror}") from error
        if not same or (status.st_dev, status.st_ino) != (mount.device, mount.inode):
            raise InvalidOption(f"{mount.host!r} is not what it was when it was checked")
        wanted = (0o5 if mount.kind == "dir" else 0o4) | (0 if mount.read_only else 0o2)
        own = same_uids and uid == os.geteuid()
        if not own and stat.S_IMODE(status.st_mode) & wanted != wanted:
            raise InvalidOption(
                f"the sandbox could not use {mount.host!r}: its user is nobody's there",
                hint=f"chmod o+{'rx' if mount.kind == 'dir' else 'r'}"
                f"{'' if mount.read_only else 'w'} it",
            )


def seccomp(spec: GuestSpec, facts: Facts) -> str:
    """The filter that belongs to this guest, as text."""
    deny: Refusals = ()
    if not all(mount.read_only for mount in spec.mounts):
        deny += cast(Refusals, SET_ID)
    if not facts.memory_limit:
        deny += cast(Refusals, HIDDEN_MEMORY)  # nothing else would count such pages
    if spec.docker.seccomp is not None:
        if deny:
            raise InvalidOption(
                "a seccomp profile of your own cannot be had with writable mounts, or where the "
                "engine does not limit memory: these need rules that only ours has",
                hint="leave out seccomp=",
            )
        return json.dumps(json.loads(Path(spec.docker.seccomp).read_bytes()), separators=(",", ":"))
    return profile.text(facts.machine, deny=deny)


def _check_runtime(docker: Docker, facts: Facts) -> None:
    """Early, and with the names there are. containerd's shims need no registration."""
    name = docker.runtime
    if name is None or not facts.runtimes or name in facts.runtimes or name.startswith("io."):
        return
    guess = nearest(name, facts.runtimes)
    raise BackendUnavailable(
        f"the engine has no runtime {name!r}",
        hint=(f"did you mean {guess!r}? " if guess else "")
        + f"it has {', '.join(facts.runtimes)}; others are registered in its daemon.json",
    )


def _isolation(docker: Docker, facts: Facts, filter_: str, network: str) -> dict[str, object]:
    masked = [f"/proc/{name}" for name in _PROC] + ["/sys", *_ELSEWHERE]
    if network == "open":
        masked.remove(_NAME_SERVERS)
    if _wants_devices(docker):
        masked = [path for path in masked if path not in _FOR_DEVICES] + list(_SECRETS)
    options = ["no-new-privileges", f"seccomp={filter_}"]
    if facts.engine == "podman":  # it does not read MaskedPaths
        options.append(f"mask={':'.join(masked)}")
    return {
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": options,
        "MaskedPaths": masked,
    }


def _network(asked: str) -> dict[str, object]:
    # As in native, the sandbox's own name leads to itself, and no other anywhere.
    settings: dict[str, object] = {"ExtraHosts": [f"{HOST_NAME}:127.0.0.1"]}
    if asked == "open":
        return settings | {"NetworkMode": "bridge"}
    return settings | {"NetworkMode": "none", "Dns": ["127.0.0.1"], "DnsSearch": ["."]}


def _resources(limits: Limits, docker: Docker, facts: Facts) -> dict[str, object]:
    resources: dict[str, object] = {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,  # of both together: no swap
        "PidsLimit": _tasks(limits.processes + 1, docker.runtime or facts.default_runtime),
        "OomScoreAdj": OOM_SCORE,
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in _ulimits(limits, facts).items()
        ],
    }
    if facts.cpu_quota:
        # An engine refuses more processors than there are.
        cpus = min(limits.cpus, facts.cpus) if facts.cpus else limits.cpus
        resources["NanoCpus"] = round(cpus * 1e9)
    return resources


def _tasks(processes: int, runtime: str) -> int:
    """What the host counts for so many processes, init among them. gVisor has some forty tasks of
    its own, and half a dozen for each process, and ends when it can have no more."""
    return 128 + 8 * processes if own_kernel(runtime) == "gVisor" else processes


def _ulimits(limits: Limits, facts: Facts) -> dict[str, int]:
    """Those of native, and how many files init may have open: the worker lowers its own.

    Not the number of processes, which the kernel counts over all containers of a uid, unless
    nothing else does and the uid is the container's own. Or unless the engine is Podman, which
    sets a million where it is told nothing, and may not be allowed to.
    """
    wanted = {
        name.removeprefix("RLIMIT_").lower(): value
        for name, value in guest_view.rlimits(limits).items()
    }
    wanted["nofile"] = MAX_FILES
    wanted["msgqueue"] = 0  # message queues: in native they are out of reach too
    if not facts.unique_uids or (facts.pids_limit and facts.engine == "docker"):
        del wanted["nproc"]
    if facts.rootless:
        # Such an engine cannot raise a limit, only lower it, and starts no container if it has to.
        # init makes do with the files it may open.
        for name in ("nofile", "memlock", "msgqueue"):
            del wanted[name]
    return wanted


def _files(
    spec: GuestSpec,
    docker: Docker,
    facts: Facts,
    uid: int,
    volumes: Sequence[str],
    passwd: str | None,
) -> dict[str, object]:
    limits = spec.limits
    noexec = spec.noexec or docker.noexec
    tmpfs = {
        spec.workdir: _tmpfs(limits.workspace, 65536, uid, facts, noexec=noexec),
        "/tmp": _tmpfs(limits.tmp, 16384, uid, facts, noexec=noexec),
        "/dev/shm": _tmpfs(limits.tmp, 4096, uid, facts, noexec=noexec),
    }
    for path in spec.scratch:
        tmpfs[path] = _tmpfs(limits.workspace, 65536, uid, facts, noexec=noexec)
    # What an image declares as a volume is a directory on the engine's disk, without any limit:
    # read-only, with what the image has there. Where nobody does that, it is covered.
    sealed = sorted({as_mounted(path) for path in volumes} - tmpfs.keys())
    read_only = ["/proc/bus", "/proc/driver"]  # they may be seen if there are devices
    if facts.engine == "docker" and own_kernel(docker.runtime or facts.default_runtime) is None:
        read_only += sealed
    else:
        tmpfs |= dict.fromkeys(sealed, _cover(facts))
    if facts.engine == "podman":  # which else puts writable ones there, of any size
        tmpfs |= dict.fromkeys(("/run", "/var/tmp"), _cover(facts))
    return {
        "ReadonlyRootfs": True,
        "ReadonlyPaths": read_only,
        "Tmpfs": tmpfs,
        "ShmSize": limits.tmp,
        "Mounts": [
            *(_bind(mount, facts) for mount in spec.mounts),
            *([user_name.mount(passwd)] if passwd is not None else []),
        ],
    }


def as_mounted(path: str) -> str:
    """A place as an engine takes it, by its letters: what an image writes may say it otherwise."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _tmpfs(size: int, inodes: int, uid: int, facts: Facts, *, noexec: bool) -> str:
    # Without "exec" an engine means "noexec".
    common = f"size={size},nosuid,nodev,{'noexec' if noexec else 'exec'}"
    if facts.engine == "podman":  # it knows no more options than these
        return f"{common},mode=1777,notmpcopyup"
    return f"{common},mode=0700,nr_inodes={inodes},uid={uid},gid={_group(uid)}"


def _cover(facts: Facts) -> str:
    """An empty directory over something."""
    copied = ",notmpcopyup" if facts.engine == "podman" else ""
    return f"size=4k,mode=0755,nosuid,nodev,noexec,ro{copied}"


def _bind(mount: Mount, facts: Facts) -> dict[str, object]:
    """A mount of the caller's. What is mounted below comes along, as in native; but where the
    engine cannot make that read-only too, it is left out.

    Not nosuid and nodev as in native, which an engine does not offer for binds: no_new_privs and
    the devices that are allowed stand in for them. What the code writes belongs to its uid.
    """
    options: dict[str, object] = {"Propagation": "rprivate"}
    if mount.read_only:
        if facts.engine == "docker" and facts.api_version >= _READ_ONLY_ALL_BELOW:
            options["ReadOnlyForceRecursive"] = True
        else:
            options["NonRecursive"] = True
    return {
        "Type": "bind",
        "Source": mount.host,
        "Target": mount.guest,
        "ReadOnly": mount.read_only,
        "BindOptions": options,
    }


def _wants_devices(docker: Docker) -> bool:
    return docker.gpus is not None or bool(docker.devices)


def _devices(docker: Docker) -> dict[str, object]:
    found: dict[str, object] = {}
    if docker.devices:
        found["Devices"] = [
            {"PathOnHost": host, "PathInContainer": guest, "CgroupPermissions": rights}
            for host, guest, rights in map(parse_device, docker.devices)
        ]
    if docker.gpus is not None:
        request: dict[str, object] = {"Driver": "", "Capabilities": [["gpu"]], "Options": {}}
        if isinstance(docker.gpus, str) and docker.gpus != "all":
            request["DeviceIDs"] = docker.gpus.removeprefix("device=").split(",")
        else:
            request["Count"] = -1 if docker.gpus == "all" else docker.gpus
        found["DeviceRequests"] = [request]
    return found


def _life(docker: Docker) -> dict[str, object]:
    life: dict[str, object] = {
        "Init": False,  # our own PID 1 reaps
        "LogConfig": {"Type": "none"},  # output goes over the wire
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
    return life | ({"Runtime": docker.runtime} if docker.runtime else {})
