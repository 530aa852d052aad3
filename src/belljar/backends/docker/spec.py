"""The request for a guest's container, `POST /containers/create`, as data.

It confines the guest as the native backend does (native/plan.py, confine.py), as far as an engine
can. Comments name the differences.
"""

from __future__ import annotations

import json
import os
import posixpath
import random
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from belljar.backends.base import GuestSpec
from belljar.backends.docker import profile
from belljar.backends.docker.isolation import EngineFacts, guest_kernel
from belljar.backends.docker.settings import Docker, docker_settings, parse_device
from belljar.backends.linux import guest_view, identity
from belljar.backends.linux.seccomp import HIDDEN_MEMORY, SET_ID, Rule
from belljar.backends.mounts import Mount
from belljar.errors import BackendUnavailable, InvalidOption, nearest
from belljar.limits import Limits
from belljar.protocol.messages import MAX_FILES

USER_ID = 1000  # where uids differ from the host's
HOST_NAME = "belljar"
# Of init. The worker and its children set theirs to 1000, so the kernel kills them first.
OOM_SCORE = 500
_READ_ONLY_ALL_BELOW = (1, 44)  # API since which a read-only bind includes all mounts below it

# Everything in /proc that describes or configures the host. Native masks all but processes and a
# few files; an engine takes names. Names that a kernel does not have do no harm.
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
# Elsewhere: message queues as files, the host's name servers.
_NAME_SERVERS = "/etc/resolv.conf"
_ELSEWHERE = ("/dev/mqueue", _NAME_SERVERS)
# Drivers' libraries look for their devices here.
_FOR_DEVICES = ("/sys", "/proc/bus", "/proc/devices", "/proc/driver")
_SECRETS = ("/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel")


def container_body(
    spec: GuestSpec,
    docker: Docker,
    facts: EngineFacts,
    *,
    image: str,
    command: Sequence[str],
    env: Mapping[str, str],
    uid: int,
    labels: Mapping[str, str],
    volumes: Sequence[str] = (),
    filter_: str | None = None,
    accounts: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, object]:
    """The body of the request.

    `volumes`: what the image declares. `filter_`: the value of `seccomp=`, which is the profile, or
    its path for Podman. `accounts`: files that name the user.
    """
    _check_runtime(docker, facts)
    return {
        "Image": image,
        # Replaces the image's entry point and drops its command.
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
        # The image's health check does not run, and a stop does not wait.
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "HostConfig": {
            **_isolation(docker, facts, filter_ or seccomp_filter(spec, facts), spec.network),
            **_network(spec.network),
            **_resources(spec.limits, docker, facts),
            **_files(spec, docker, facts, uid, volumes, accounts),
            **_devices(docker),
            **({"Runtime": docker.runtime} if docker.runtime else {}),
            "Init": False,  # our own PID 1 reaps
            "LogConfig": {"Type": "none"},  # output goes over the wire
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
        },
    }


def create_query(docker: Docker) -> dict[str, str]:
    """The query of the request."""
    return {"platform": docker.platform} if docker.platform else {}


def pick_uid(facts: EngineFacts, mounts: Iterable[Mount] = ()) -> int:
    """As in native: if uids are the host's, each guest has a uid that no user has.

    With mounts, a guest of an ordinary user has that user's uid, as in native. Where uids differ
    from the host's, no choice would have this effect.
    """
    if not facts.unique_uids:
        return USER_ID
    if any(mounts) and os.geteuid() != 0:
        return os.geteuid()
    return identity.UID_FIRST + random.SystemRandom().randrange(1, identity.UID_COUNT)


def _group(uid: int) -> int:
    return os.getegid() if uid == os.geteuid() else uid


def check_mounts(mounts: Iterable[Mount], uid: int, *, same_uids: bool = True) -> None:
    """Raise InvalidOption if a mount was exchanged since it was checked, or the guest cannot use
    it.

    `same_uids`: a uid in the container is the same outside (EngineFacts.unique_uids).

    Called just before the container is created. Native binds what it has opened; an engine takes a
    path and resolves it again. A user who may rename directories on the way can still exchange
    them in between.
    """
    for mount in mounts:
        try:
            same = os.path.realpath(mount.host, strict=True) == mount.host
            status = os.stat(mount.host)
        except OSError as error:
            raise InvalidOption(f"cannot mount {mount.host!r}: {error.strerror}") from error
        if not same or (status.st_dev, status.st_ino) != (mount.device, mount.inode):
            raise InvalidOption(f"{mount.host!r} was replaced after it was checked")
        wanted = (0o5 if mount.kind == "dir" else 0o4) | (0 if mount.read_only else 0o2)
        own = same_uids and uid == os.geteuid()
        if not own and stat.S_IMODE(status.st_mode) & wanted != wanted:
            raise InvalidOption(
                f"the sandbox could not use {mount.host!r}: its user has no rights there",
                hint=f"chmod o+{'rx' if mount.kind == 'dir' else 'r'}"
                f"{'' if mount.read_only else 'w'} it",
            )


def seccomp_filter(spec: GuestSpec, facts: EngineFacts) -> str:
    """The seccomp filter of this guest, as text."""
    deny: list[str | Rule] = []
    if not all(mount.read_only for mount in spec.mounts):
        deny += SET_ID
    if not facts.memory_limit:
        deny += HIDDEN_MEMORY  # nothing else would count such pages
    own = docker_settings(spec.settings).seccomp
    if own is not None:
        if deny:
            raise InvalidOption(
                "seccomp= cannot be used with writable mounts, or if the engine does not limit "
                "memory: these need rules of Belljar's own profile",
                hint="leave out seccomp=",
            )
        return json.dumps(json.loads(Path(own).read_bytes()), separators=(",", ":"))
    return profile.render_profile(facts.machine, deny=tuple(deny))


def _check_runtime(docker: Docker, facts: EngineFacts) -> None:
    """Raise BackendUnavailable if the engine lacks the runtime. containerd's shims (`io.…`) need no
    registration."""
    name = docker.runtime
    if name is None or not facts.runtimes or name in facts.runtimes or name.startswith("io."):
        return
    guess = nearest(name, facts.runtimes)
    raise BackendUnavailable(
        f"the engine has no runtime {name!r}",
        hint=(f"did you mean {guess!r}? " if guess else "")
        + f"it has {', '.join(facts.runtimes)}; others are registered in its daemon.json",
    )


def _isolation(docker: Docker, facts: EngineFacts, filter_: str, network: str) -> dict[str, object]:
    masked = [f"/proc/{name}" for name in _PROC] + ["/sys", *_ELSEWHERE]
    if network == "open":
        masked.remove(_NAME_SERVERS)
    if docker.gpus is not None or docker.devices:
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
    # As in native, only the sandbox's own name resolves, to itself.
    settings: dict[str, object] = {"ExtraHosts": [f"{HOST_NAME}:127.0.0.1"]}
    if asked == "open":
        return settings | {"NetworkMode": "bridge"}
    return settings | {"NetworkMode": "none", "Dns": ["127.0.0.1"], "DnsSearch": ["."]}


def _resources(limits: Limits, docker: Docker, facts: EngineFacts) -> dict[str, object]:
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
        # An engine refuses more processors than its machine has.
        cpus = min(limits.cpus, facts.cpus) if facts.cpus else limits.cpus
        resources["NanoCpus"] = round(cpus * 1e9)
    return resources


def _tasks(processes: int, runtime: str) -> int:
    """The limit of tasks for this number of processes, init included. gVisor itself has some forty
    tasks, and half a dozen for each process, and ends when it cannot have more."""
    return 128 + 8 * processes if guest_kernel(runtime) == "gVisor" else processes


def _ulimits(limits: Limits, facts: EngineFacts) -> dict[str, int]:
    """The limits of native, and how many files init may have open; the worker lowers its own.

    The kernel counts processes over all containers of a uid. So that limit is set only if nothing
    else counts them and the uid is unique; or for Podman, whose default is a million, which it may
    not be allowed to set.
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
        # A rootless engine cannot raise a limit, and fails to start the container if it has to.
        # init accepts the number of files that it may open.
        for name in ("nofile", "memlock", "msgqueue"):
            del wanted[name]
    return wanted


def _files(
    spec: GuestSpec,
    docker: Docker,
    facts: EngineFacts,
    uid: int,
    volumes: Sequence[str],
    accounts: Mapping[str, str],
) -> dict[str, object]:
    limits = spec.limits
    # Bytes, and how many files.
    sizes = {
        spec.workdir: (limits.workspace, 65536),
        "/tmp": (limits.tmp, 16384),
        "/dev/shm": (limits.tmp, 4096),
        **dict.fromkeys(spec.scratch, (limits.workspace, 65536)),
    }
    # Parts of /tmp in native; an engine cannot mount one file system twice.
    taken = (*sizes, *(mount.guest for mount in spec.mounts))
    sizes |= dict.fromkeys(guest_view.own_places(taken), (limits.tmp, 16384))
    noexec = spec.noexec or docker.noexec
    tmpfs = {
        path: _tmpfs(*size, uid, facts, noexec=noexec, mode=1777 if path == "/var/tmp" else 700)
        for path, size in sizes.items()
    }
    # A volume that the image declares is a directory on the engine's disk, without any limit. It is
    # made read-only, with the image's files; where the engine cannot do that, it is covered.
    sealed = sorted({normalize_path(path) for path in volumes} - tmpfs.keys())
    read_only = ["/proc/bus", "/proc/driver"]  # visible if there are devices
    if facts.engine == "docker" and guest_kernel(docker.runtime or facts.default_runtime) is None:
        read_only += sealed
    else:
        tmpfs |= dict.fromkeys(sealed, _cover(facts))
    if facts.engine == "podman":  # it would put a writable one of any size there
        tmpfs["/run"] = _cover(facts)
    return {
        "ReadonlyRootfs": True,
        "ReadonlyPaths": read_only,
        "Tmpfs": tmpfs,
        "ShmSize": limits.tmp,
        "Mounts": [
            *(_bind(mount, facts) for mount in spec.mounts),
            *profile.account_mounts(accounts),
        ],
    }


def normalize_path(path: str) -> str:
    """A path in the form that engines use; an image may declare it in another form."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _tmpfs(size: int, inodes: int, uid: int, facts: EngineFacts, *, noexec: bool, mode: int) -> str:
    # An engine's default is "noexec".
    common = f"size={size},nosuid,nodev,{'noexec' if noexec else 'exec'}"
    if facts.engine == "podman":  # it takes only these options
        return f"{common},mode=1777,notmpcopyup"
    return f"{common},mode={mode:04},nr_inodes={inodes},uid={uid},gid={_group(uid)}"


def _cover(facts: EngineFacts) -> str:
    """The options of an empty read-only directory that hides a path."""
    copied = ",notmpcopyup" if facts.engine == "podman" else ""
    return f"size=4k,mode=0755,nosuid,nodev,noexec,ro{copied}"


def _bind(mount: Mount, facts: EngineFacts) -> dict[str, object]:
    """The caller's mount. Mounts below it are included, as in native, unless the engine cannot make
    them read-only too.

    Engines do not offer nosuid and nodev for binds, as native has: no_new_privs and the list of
    allowed devices replace them. Files that the code writes belong to its uid.
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
