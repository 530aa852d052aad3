"""What a container is asked to be, and how the limits are kept there: decided without an engine."""

import functools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar import BackendUnavailable, Docker, InvalidOption, Limits, Mount
from belljar.backends.base import GuestSpec
from belljar.backends.docker import profile, spec
from belljar.backends.docker.isolation import EngineFacts, describe_limits
from belljar.backends.linux import guest_view, identity, seccomp
from belljar.environment.environment import BUILTIN
from belljar.protocol.messages import MAX_FILES
from bpf import run as simulate
from bpf_profile import AUDIT, EPERM, U64
from bpf_shipped import NUMBERS, compiled, expected

# As Docker Engine 20.10 and Podman 4.3 say it, shortened.
DOCKER_INFO = {
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "CgroupVersion": "1",
    "Architecture": "x86_64",
    "NCPU": 2,
    "ServerVersion": "20.10.24+dfsg1",
    "Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": "/usr/bin/runsc"}},
    "DefaultRuntime": "runc",
    "SecurityOptions": ["name=seccomp,profile=default"],
    "Warnings": None,
}
DOCKER_VERSION = {
    "Components": [{"Name": "Engine", "Version": "20.10.24+dfsg1"}, {"Name": "containerd"}],
    "Version": "20.10.24+dfsg1",
    "ApiVersion": "1.41",
    "Arch": "amd64",
}
PODMAN_INFO = {
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "Architecture": "amd64",
    "NCPU": 4,
    "ServerVersion": "4.3.1",
    "Runtimes": {"crun": {"path": "/usr/bin/crun"}, "runc": {"path": "/usr/bin/runc"}},
    "DefaultRuntime": "crun",
    "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
    "Warnings": [],
    "BuildahVersion": "1.28.2",
    "CgroupVersion": "2",
    "Rootless": True,
    "SwapTotal": 0,
}
PODMAN_VERSION = {"Components": [{"Name": "Podman Engine"}], "ApiVersion": "1.41"}

FACTS = EngineFacts.parse(DOCKER_INFO, DOCKER_VERSION)
PODMAN = EngineFacts.parse(PODMAN_INFO, PODMAN_VERSION)


def facts(**changes):
    return EngineFacts.parse(DOCKER_INFO | changes, DOCKER_VERSION)


def made(facts=FACTS, docker=None, mounts=(), limits=None, uid=1879048200, network="none", **more):
    """The body of a container, and its HostConfig."""
    docker = docker or Docker()
    asked = GuestSpec(
        id="bj-1",
        environment=BUILTIN["python"],
        limits=limits or Limits(),
        mounts=tuple(mounts),
        settings=docker,
        network=network,
    )
    body = spec.container_body(
        asked,
        docker,
        facts,
        image="sha256:1",
        command=["python3", "-c", "pass"],
        env={"HOME": "/tmp"},
        uid=uid,
        labels={"belljar.sandbox": "bj-1"},
        **more,
    )
    json.dumps(body)  # nothing in it that is not data
    return body, body["HostConfig"]


def options_of(text):
    return dict(each.partition("=")[::2] for each in text.split(","))


# --- facts -----------------------------------------------------------------------------------


def test_facts_of_docker():
    assert FACTS.engine == "docker"
    assert (FACTS.memory_limit, FACTS.swap_limit, FACTS.pids_limit, FACTS.cpu_quota) == (True,) * 4
    assert (FACTS.machine, FACTS.cpus, FACTS.api_version) == ("x86_64", 2, (1, 41))
    assert (FACTS.runtimes, FACTS.default_runtime) == (("runc", "runsc"), "runc")
    assert FACTS.unique_uids


def test_facts_of_podman():
    assert PODMAN.engine == "podman"
    assert PODMAN.rootless
    assert not PODMAN.unique_uids
    assert (PODMAN.machine, PODMAN.cgroup_version, PODMAN.swap) == ("x86_64", 2, 0)


def test_an_engine_that_says_nothing_can_limit_nothing():
    nothing = EngineFacts.parse({}, {})
    assert (nothing.memory_limit, nothing.pids_limit, nothing.cpu_quota) == (False,) * 3
    assert {layer.state for layer in describe_limits(Limits(), nothing, [])} >= {"absent"}


@given(
    st.dictionaries(
        st.sampled_from([*DOCKER_INFO, "Rootless", "SwapTotal"]),
        st.none() | st.integers() | st.text() | st.lists(st.text()) | st.booleans(),
    )
)
def test_odd_facts_are_no_error(info):
    for name in ("SecurityOptions", "Warnings", "Runtimes"):
        if not isinstance(info.get(name), list):
            info.pop(name, None)
    assert isinstance(EngineFacts.parse(info, {}), EngineFacts)


# --- isolation -------------------------------------------------------------------------------


def test_a_container_has_no_network_no_rights_and_a_read_only_root():
    body, host = made()
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert json.loads(host["SecurityOpt"][1].removeprefix("seccomp="))["defaultErrnoRet"] == 38
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert "UsernsMode" not in host
    assert "Privileged" not in host
    assert body["User"] == "1879048200:1879048200"


def test_nothing_of_the_image_runs_and_nothing_waits_for_a_stop():
    body, host = made()
    assert body["Entrypoint"] == ["python3", "-c", "pass"]
    assert body["Cmd"] == []
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert (body["StopSignal"], body["StopTimeout"]) == ("SIGKILL", 0)
    assert host["Init"] is False
    assert host["LogConfig"] == {"Type": "none"}
    assert host["RestartPolicy"] == {"Name": "no"}
    assert host["AutoRemove"] is False


def test_the_guest_is_reached_by_its_standard_streams_alone():
    body, _ = made()
    assert body["OpenStdin"] is body["StdinOnce"] is True
    assert body["AttachStdin"] is body["AttachStdout"] is body["AttachStderr"] is True
    assert body["Tty"] is False


def test_what_tells_of_the_host_is_masked():
    _, host = made()
    masked = set(host["MaskedPaths"])
    docker_masks = "/proc/asound /proc/acpi /proc/kcore /proc/keys /proc/latency_stats "
    docker_masks += "/proc/timer_list /proc/timer_stats /proc/sched_debug /proc/scsi"
    assert set(docker_masks.split()) <= masked
    assert {"/sys", "/proc/sys", "/proc/sysrq-trigger", "/dev/mqueue"} <= masked
    assert not {"/proc/cpuinfo", "/proc/stat", "/proc/meminfo", "/proc/self"} & masked
    assert host["Dns"] == ["127.0.0.1"]


def test_only_an_open_network_has_name_servers():
    _, closed = made()
    _, opened = made(network="open")
    masked = set(closed["MaskedPaths"]) - set(opened["MaskedPaths"])
    assert masked == {"/etc/resolv.conf"}
    assert set(opened["MaskedPaths"]) < set(closed["MaskedPaths"])


def test_podman_is_told_of_masks_in_its_own_way_and_of_no_more_tmpfs_than_it_knows():
    _, host = made(PODMAN)
    option = next(each for each in host["SecurityOpt"] if each.startswith("mask="))
    assert option.removeprefix("mask=").split(":") == host["MaskedPaths"]
    assert "ro" in options_of(host["Tmpfs"]["/run"])
    assert options_of(host["Tmpfs"]["/var/tmp"])["size"] == str(Limits().tmp)
    for options in host["Tmpfs"].values():
        assert not {"uid", "gid", "nr_inodes"} & options_of(options).keys()


def test_drivers_find_their_devices():
    _, host = made(docker=Docker(gpus="all"))
    assert not {"/sys", "/proc/driver", "/proc/devices"} & set(host["MaskedPaths"])
    assert {"/sys/firmware", "/proc/sys", "/dev/mqueue"} <= set(host["MaskedPaths"])


# --- identity --------------------------------------------------------------------------------


def test_each_guest_of_a_rootful_engine_has_a_uid_of_its_own():
    seen = {spec.pick_uid(FACTS) for _ in range(50)}
    assert len(seen) == 50
    assert all(identity.UID_FIRST < uid < identity.UID_FIRST + identity.UID_COUNT for uid in seen)


@pytest.mark.parametrize("option", ["name=rootless", "name=userns"])
def test_where_uids_are_not_the_hosts_the_guest_has_an_ordinary_one(option):
    assert spec.pick_uid(facts(SecurityOptions=[option])) == 1000


def test_with_mounts_an_ordinary_users_guest_has_his_uid(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    mount = Mount(tmp_path, "/data")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(os, "getegid", lambda: 56)
    assert spec.pick_uid(FACTS, [mount]) == 1234
    assert spec.pick_uid(FACTS) != 1234
    body, host = made(mounts=[mount], uid=1234)
    assert body["User"] == "1234:56"
    assert options_of(host["Tmpfs"]["/workspace"])["gid"] == "56"


# --- limits ----------------------------------------------------------------------------------


def test_limits_become_those_of_the_container():
    limits = Limits(memory="1g", cpus=1.5, processes=10, tmp="8m", workspace="16m")
    _, host = made(limits=limits)
    assert host["Memory"] == host["MemorySwap"] == 2**30
    assert host["NanoCpus"] == 1_500_000_000
    assert host["PidsLimit"] == 11
    assert host["OomScoreAdj"] > 0
    assert host["ShmSize"] == 8 * 2**20
    workspace, tmp = (options_of(host["Tmpfs"][path]) for path in ("/workspace", "/tmp"))
    assert (workspace["size"], tmp["size"]) == (str(16 * 2**20), str(8 * 2**20))
    assert workspace["mode"] == "0700"
    assert workspace["uid"] == workspace["gid"] == "1879048200"
    assert {"nosuid", "nodev", "exec", "nr_inodes"} <= workspace.keys()


def test_noexec_is_for_every_place_the_code_can_write_to():
    _, host = made(docker=Docker(noexec=True))
    assert all("noexec" in options_of(each) for each in host["Tmpfs"].values())
    assert not any("exec" in options_of(each) for each in host["Tmpfs"].values())


def test_no_more_processors_are_asked_for_than_there_are():
    _, host = made(limits=Limits(cpus=100))
    assert host["NanoCpus"] == 2 * 10**9
    _, host = made(facts(CpuCfsQuota=False))
    assert "NanoCpus" not in host  # an engine without quotas starts nothing that wants one


def test_resource_limits_are_those_of_native():
    limits = Limits()
    _, host = made(limits=limits)
    given = {each["Name"]: each["Hard"] for each in host["Ulimits"]}
    assert all(each["Hard"] == each["Soft"] for each in host["Ulimits"])
    native = {k.removeprefix("RLIMIT_").lower(): v for k, v in guest_view.rlimits(limits).items()}
    ours = {"nofile": MAX_FILES, "msgqueue": 0}
    assert given == {k: v for k, v in native.items() if k != "nproc"} | ours


def test_processes_are_counted_by_uid_where_nothing_else_counts_them():
    _, host = made(facts(PidsLimit=False), limits=Limits(processes=7))
    assert {"Name": "nproc", "Soft": 8, "Hard": 8} in host["Ulimits"]


def test_a_rootless_engine_is_not_asked_to_raise_a_limit():
    _, host = made(facts(SecurityOptions=["name=rootless"]))
    names = {each["Name"] for each in host["Ulimits"]}
    assert "core" in names
    assert not {"nofile", "memlock", "msgqueue", "nproc"} & names


def test_gvisor_may_have_tasks_of_its_own():
    _, host = made(docker=Docker(runtime="runsc"), limits=Limits(processes=64))
    assert host["PidsLimit"] > 39 + 7 * 65


def state(layers, name):
    return next(layer for layer in layers if layer.name == name)


def test_limits_have_the_names_of_native_and_are_all_kept():
    layers = describe_limits(Limits(), FACTS, [])
    assert {layer.name for layer in layers} == set(Limits().to_dict())
    assert {layer.state for layer in layers} == {"enforced"}


@pytest.mark.parametrize(
    ("missing", "limit", "want"),
    [
        ("MemoryLimit", "memory", "absent"),
        ("SwapLimit", "memory", "best-effort"),
        ("CpuCfsQuota", "cpus", "absent"),
    ],
)
def test_a_limit_the_engine_cannot_keep_is_said_with_a_remedy(missing, limit, want):
    layer = state(describe_limits(Limits(), facts(**{missing: False}), []), limit)
    assert layer.state == want
    assert layer.remedy


def test_processes_that_nobody_counts_are_said_too():
    without = {"PidsLimit": False, "SecurityOptions": ["name=rootless"]}
    assert state(describe_limits(Limits(), facts(**without), []), "processes").state == "absent"
    own_uid = state(describe_limits(Limits(), facts(PidsLimit=False), []), "processes")
    assert own_uid.state == "enforced"
    assert "RLIMIT_NPROC" in own_uid.detail


# In the words of the engine's daemon.
WARNINGS = {
    "Your kernel does not support swap limit capabilities or the cgroup is not mounted. "
    "Memory limited without swap.": ("memory", "best-effort"),
    "Your kernel does not support memory limit capabilities or the cgroup is not mounted. "
    "Limitation discarded.": ("memory", "absent"),
    "Your kernel does not support PIDs limit capabilities or the cgroup is not mounted. "
    "PIDs limit discarded.": ("processes", "absent"),
    "Your kernel does not support CPU CFS quota. Quota discarded.": ("cpus", "absent"),
}


@pytest.mark.parametrize("warning", WARNINGS)
def test_a_warning_at_creation_takes_a_limit_away(warning):
    limit, want = WARNINGS[warning]
    layers = describe_limits(Limits(), FACTS, [warning])
    assert state(layers, limit).state == want
    assert [layer.name for layer in layers if layer.state != "enforced"] == [limit]


def test_other_warnings_take_nothing_away():
    layers = describe_limits(
        Limits(), FACTS, ["IPv4 forwarding is disabled. Networking will not work."]
    )
    assert {layer.state for layer in layers} == {"enforced"}


def test_swap_that_does_not_exist_needs_no_limit():
    without = EngineFacts.parse(PODMAN_INFO | {"SwapLimit": False}, PODMAN_VERSION)
    assert state(describe_limits(Limits(), without, []), "memory").state == "enforced"


def test_as_many_cpus_as_there_are_need_no_quota():
    layer = state(describe_limits(Limits(cpus=2), facts(CpuCfsQuota=False), []), "cpus")
    assert layer.state == "enforced"


# --- mounts, volumes, devices, runtimes ------------------------------------------------------


@pytest.fixture
def directory(tmp_path):
    tmp_path.chmod(0o777)
    return tmp_path


def test_mounts_are_private_binds(directory):
    (_, host) = made(mounts=[Mount(directory, "/data"), Mount(directory, "/out", read_only=False)])
    data, out = host["Mounts"]
    assert data["Type"] == out["Type"] == "bind"
    assert data["Source"] == out["Source"] == str(directory)
    assert (data["Target"], out["Target"]) == ("/data", "/out")
    assert (data["ReadOnly"], out["ReadOnly"]) == (True, False)
    # Where the engine cannot make what is mounted below read-only, it is left out.
    assert data["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True}
    assert out["BindOptions"] == {"Propagation": "rprivate"}


def test_a_newer_engine_makes_all_below_a_mount_read_only(directory):
    newer = EngineFacts.parse(DOCKER_INFO, DOCKER_VERSION | {"ApiVersion": "1.44"})
    _, host = made(newer, mounts=[Mount(directory, "/data")])
    (data,) = host["Mounts"]
    assert data["BindOptions"] == {"Propagation": "rprivate", "ReadOnlyForceRecursive": True}


def test_a_mount_that_was_exchanged_is_not_mounted(directory):
    (directory / "a").mkdir(mode=0o755)
    mount = Mount(directory / "a", "/data")
    spec.check_mounts([mount], 1000)
    (directory / "a").rename(directory / "b")
    with pytest.raises(InvalidOption, match="No such file"):
        spec.check_mounts([mount], 1000)
    (directory / "a").symlink_to("/etc")
    with pytest.raises(InvalidOption, match="was replaced after"):
        spec.check_mounts([mount], 1000)
    (directory / "a").unlink()
    (directory / "a").mkdir(mode=0o755)
    with pytest.raises(InvalidOption, match="was replaced after"):
        spec.check_mounts([mount], 1000)


def test_a_mount_the_guests_uid_cannot_use_is_an_error_with_a_remedy(directory):
    mount = Mount(directory, "/data", read_only=False)
    directory.chmod(0o755)
    with pytest.raises(InvalidOption, match=r"chmod o\+rxw"):
        spec.check_mounts([mount], os.geteuid() + 1)
    spec.check_mounts([mount], os.geteuid())
    with pytest.raises(InvalidOption, match="has no rights there"):  # a number alone is nobody
        spec.check_mounts([mount], os.geteuid(), same_uids=False)


def test_volumes_are_sealed_where_the_engine_mounts_them_however_an_image_writes_them():
    volumes = ["/s/../x", "//y", "z/", "/./a/b/..", "/workspace/", "/tmp/../tmp", "//dev/shm"]
    _, host = made(volumes=volumes)
    assert set(host["ReadonlyPaths"]) - {"/proc/bus", "/proc/driver"} == {"/x", "/y", "/z", "/a"}
    own = {"/workspace", "/tmp", "/dev/shm", "/home/user", "/var/tmp"}
    assert set(host["Tmpfs"]) == own
    _, host = made(docker=Docker(runtime="runsc"), volumes=volumes)
    assert set(host["Tmpfs"]) == own | {"/x", "/y", "/z", "/a"}
    assert all("ro" in options_of(host["Tmpfs"][each]) for each in ("/x", "/y", "/z", "/a"))


def test_volumes_of_an_image_are_not_writable():
    volumes = ["/data", "/tmp"]
    _, host = made(volumes=volumes)
    assert "/data" in host["ReadonlyPaths"]
    assert "/tmp" not in host["ReadonlyPaths"]
    # Where no one makes paths read-only, an empty directory that is root's covers them.
    for where in ({"facts": PODMAN}, {"docker": Docker(runtime="runsc")}):
        _, host = made(volumes=volumes, **where)
        assert "ro" in options_of(host["Tmpfs"]["/data"])
        assert "ro" not in options_of(host["Tmpfs"]["/tmp"])


def test_devices_and_gpus():
    _, host = made(docker=Docker(devices=["/dev/fuse", "/dev/a:/dev/b:r"], gpus=2))
    assert host["Devices"] == [
        {"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rw"},
        {"PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": "r"},
    ]
    (request,) = host["DeviceRequests"]
    assert request["Count"] == 2
    assert request["Capabilities"] == [["gpu"]]
    _, host = made(docker=Docker(gpus="device=0,GPU-1"))
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["0", "GPU-1"]
    assert "Count" not in host["DeviceRequests"][0]
    _, host = made(docker=Docker(gpus="all"))
    assert host["DeviceRequests"][0]["Count"] == -1
    _, host = made()
    assert not {"Devices", "DeviceRequests", "Runtime"} & host.keys()


def test_the_runtime_is_passed_on_if_the_engine_has_it():
    assert made(docker=Docker(runtime="runsc"))[1]["Runtime"] == "runsc"
    assert made(docker=Docker(runtime="io.containerd.kata.v2"))[1]["Runtime"]
    with pytest.raises(BackendUnavailable, match=r"'runcs'.*\n.*did you mean") as caught:
        made(docker=Docker(runtime="runcs"))
    assert "runc, runsc" in caught.value.hint


def test_the_platform_goes_into_the_query():
    assert spec.create_query(Docker(platform="linux/arm64")) == {"platform": "linux/arm64"}
    assert spec.create_query(Docker()) == {}


# --- the seccomp profile ---------------------------------------------------------------------

WRITABLE_MOUNT, NO_CGROUP = seccomp.SET_ID, seccomp.HIDDEN_MEMORY
DENIALS = {
    "plain": (),
    "writable mount": WRITABLE_MOUNT,
    "no cgroup": NO_CGROUP,
    "both": (*WRITABLE_MOUNT, *NO_CGROUP),
}
SPECIAL = ["chmod", "fchmodat", "mknod", "mknodat", "open", "openat", "openat2", "mmap"]
SPECIAL += ["memfd_create", "shmget", "clone", "socket", "ioctl", "prlimit64"]
BITS = [0, 0o4000, 0o2000, 0o6755, 0o644, os.O_CREAT, 0o20200000, 0x21, 0x22, 0x40022, 1 << 35]


@functools.cache
def profile_of(machine, deny):
    return json.loads(profile.render_profile(machine, deny=deny))


@pytest.mark.parametrize("denied", DENIALS)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@settings(max_examples=100)
@given(data=st.data())
def test_the_profile_means_what_native_filters(machine, denied, data):
    """`expected` also fails if two entries that fit a call contradict each other."""
    deny = DENIALS[denied]
    document = profile_of(machine, deny)
    numbers = NUMBERS[machine]
    names = sorted(set(SPECIAL) & set(numbers)) * 5 + sorted(numbers)
    number = numbers[data.draw(st.sampled_from(names))]
    argument = st.sampled_from(BITS) | st.integers(0, U64)
    args = tuple(data.draw(st.lists(argument, min_size=6, max_size=6)))
    native = simulate(compiled(machine, deny), arch=AUDIT[machine], nr=number, args=args)
    assert expected(document, machine, number, args) == native


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_call_of_a_machine_is_named_and_none_of_another(machine):
    """Engines that ignore defaultErrnoRet would refuse with EPERM what has no entry."""
    document = json.loads(profile.render_profile(machine))
    named = {name for entry in document["syscalls"] for name in entry["names"]}
    assert named == set(NUMBERS[machine])
    assert len(document["architectures"]) == 1


def test_rules_of_one_call_never_overlap():
    """libseccomp would drop one of them without a word: so `parse_profile` refuses such."""
    for deny in DENIALS.values():
        seccomp.parse_profile(json.loads(profile.render_profile("x86_64", deny=deny)))


def test_the_filter_fits_the_guest(directory):
    def chmod(mounts, known=FACTS):
        _, host = made(known, mounts=mounts)
        document = json.loads(host["SecurityOpt"][1].removeprefix("seccomp="))
        bits = (0, 0o4755, 0, 0, 0, 0)
        memfd = expected(document, "x86_64", NUMBERS["x86_64"]["memfd_create"], (0,) * 6)
        return expected(document, "x86_64", NUMBERS["x86_64"]["chmod"], bits), memfd

    allowed = seccomp.ALLOW
    assert chmod([]) == (allowed, allowed)
    assert chmod([Mount(directory, "/data")]) == (allowed, allowed)
    assert chmod([Mount(directory, "/data", read_only=False)]) == (EPERM, allowed)
    assert chmod([], facts(MemoryLimit=False)) == (allowed, EPERM)


def test_a_machine_without_a_profile_is_an_error():
    with pytest.raises(BackendUnavailable, match="riscv64"):
        profile.render_profile("riscv64")


def test_podman_gets_the_profile_as_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "cache"))
    text = profile.render_profile("x86_64")
    path = profile.write_profile(text)
    assert path.read_text() == text
    assert profile.write_profile(text) == path
    assert profile.write_profile(profile.render_profile("aarch64")) != path
    assert len(list(path.parent.iterdir())) == 2
    _, host = made(PODMAN, filter_=str(path))
    assert f"seccomp={path}" in host["SecurityOpt"]
