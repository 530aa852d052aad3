"""The posture of a busy guest, read from outside: what holds for every task it can have.

Claims by claim, with what the kernel does not show in one place (what is in the root, what /proc
tells). The golden files of `test_posture_golden.py` have all fields of a guest that is ready.
"""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import census
import gvisor
import oracles
import setting
from belljar import LimitNotEnforceable, Sandbox
from belljar.backends.linux import identity
from belljar.backends.native import plan
from belljar.environment.environment import build, resolve
from belljar.protocol.messages import MAX_FILES
from oracles import ROOT, descriptors, init_of, mounts, posture, status, threads, tree, worker_of

pytestmark = [
    pytest.mark.contract("native", "docker", "gvisor"),
    pytest.mark.timeout(120),
    gvisor.OUTSIDE,
]

BUSY = """
import os, subprocess, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
child = os.fork()
if child == 0:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    os.setsid()
    time.sleep(600)
    os._exit(0)
program = subprocess.Popen(["sleep", "600"])
"""


@pytest.fixture(scope="module")
def busy(backend):
    """A guest with everything a guest can have: threads, children, programs, a daemon. The tests
    only look at it."""
    limits = {"open_files": 100, "processes": 20}
    with Sandbox(environment="python", limits=limits, env={"GIVEN": "by caller"}) as sandbox:
        sandbox.run_code(BUSY)
        # Init, worker and its thread, a child and its thread, a program: the child begins its own
        # when it gets its turn.
        census.wait_until(lambda: oracles.tasks_below(init_of(sandbox)) >= 6, what="all its tasks")
        yield sandbox


def tasks(sandbox):
    return [(pid, tid) for pid in tree(init_of(sandbox)) for tid in threads(pid)]


# --- identity and filters ------------------------------------------------------------------------


def test_every_task_has_no_power_and_the_filter(busy):
    everyone = tasks(busy)
    assert len(everyone) >= 6
    uid = status(init_of(busy))["Uid"].split()[0]
    golden = {
        "Uid": " ".join([uid] * 4),
        "Gid": " ".join([uid if setting.COUNTED else str(os.getgid())] * 4),
        "CapInh": "0" * 16,
        "CapPrm": "0" * 16,
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "CapAmb": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Seccomp_filters": "1",
        "TracerPid": "0",
        "Umask": "0022",
    }
    # An unprivileged user cannot leave groups; they give no rights to anything in the root.
    golden["Groups"] = "" if ROOT else status(os.getpid())["Groups"]
    if setting.DOCKER:
        golden["Groups"] = uid
    for pid, tid in everyone:
        state = status(pid, tid)
        assert {name: state.get(name) for name in golden} == golden, (pid, tid, state["Name"])
    if setting.COUNTED:
        assert identity.UID_FIRST < int(uid) < identity.UID_FIRST + identity.UID_COUNT
    else:
        assert int(uid) == os.getuid()


def test_control_an_ordinary_process_has_none_of_it():
    state = status(os.getpid())
    assert state["Seccomp"] == "0"
    assert state["NoNewPrivs"] == "0"


@pytest.mark.native_only("a container is in the user namespace of its engine")
def test_the_user_namespace_maps_one_user_and_one_group(busy):
    uid = status(init_of(busy))["Uid"].split()[0]
    gid = status(init_of(busy))["Gid"].split()[0]
    for pid in tree(init_of(busy)):
        base = Path(f"/proc/{pid}")
        # Seen from the host's namespace.
        assert base.joinpath("uid_map").read_text().split() == ["1000", uid, "1"]
        assert base.joinpath("gid_map").read_text().split() == ["1000", gid, "1"]
        assert base.joinpath("setgroups").read_text().strip() == "deny"


def test_only_the_clock_is_shared_with_the_host(busy):
    ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in oracles.NAMESPACES}
    first = {kind: os.readlink(f"/proc/{init_of(busy)}/ns/{kind}") for kind in oracles.NAMESPACES}
    shared = {"time", "user"} if setting.DOCKER else {"time"}
    assert {kind for kind in ours if ours[kind] == first[kind]} == shared
    for pid, tid in tasks(busy):
        for kind, link in first.items():
            assert os.readlink(f"/proc/{pid}/task/{tid}/ns/{kind}") == link, (pid, tid)
    parent = census.process(init_of(busy)).parent
    found = {k for k in ours if os.readlink(f"/proc/{parent}/ns/{k}") == first[k]}
    assert found == shared, "a guest shares a namespace with the zygote, or the engine"


@pytest.mark.native_only("a container has no zygote")
def test_the_zygote_and_its_parent_are_out_of_reach(busy, make_sandbox):
    """They are not in the guest's pid namespace: it has no number for them."""
    numbers = [status(pid)["NSpid"].split() for pid in tree(init_of(busy))]
    assert numbers[0][-1] == "1"
    zygote = census.process(init_of(busy)).parent
    launcher = census.process(zygote).parent
    for pid in (zygote, launcher):
        assert len(status(pid)["NSpid"].split()) < len(numbers[0])
    seen = busy.run_code("import os; sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
    assert seen.value == sorted(int(words[-1]) for words in numbers)


# --- what it holds open --------------------------------------------------------------------------

# Where checkpoints are in a container, which has no place of its own for them.
SHELVES = ("/memfd:records (deleted)", "/memfd:contents (deleted)") if setting.DOCKER else ()


def test_descriptors_of_init_and_worker_are_these_and_no_more(make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code("1")
    # With the answer under way, init may still have the pipes of the cell.
    with contextlib.suppress(census.TooLate):
        census.wait_until(lambda: len(descriptors(init_of(sandbox))) <= 14)
    kinds = sorted(descriptors(init_of(sandbox)).values())
    allowed = {"/dev/null", "eventpoll", "pipe", "socket unix stream", "signalfd", "pidfd"}
    if not setting.DOCKER:
        allowed |= {"socket unix seqpacket"}  # to the process that forks its workers
    assert set(kinds) <= allowed | {oracles.STORE, *SHELVES}, kinds
    assert kinds.count(oracles.STORE) == 1
    # The worker's, and the host's unless that is two pipes.
    assert kinds.count("socket unix stream") == (1 if setting.DOCKER else 2)
    assert len(kinds) <= 14
    held = descriptors(worker_of(sandbox))
    assert held.pop(0) == "/dev/null"
    assert held.pop(1) == held.pop(2) == "pipe"
    assert sorted(held.values()) == ["socket unix stream"]


def test_no_task_holds_a_directory_or_a_file_of_the_host(busy):
    for pid in tree(init_of(busy)):
        for number, kind in descriptors(pid).items():
            assert not kind.startswith("directory"), (pid, number, kind)
            own = [oracles.STORE, *SHELVES] if pid == init_of(busy) else []
            assert kind.startswith(
                ("pipe", "socket unix", "/dev/null", "eventpoll", "signalfd", "pidfd", *own)
            ), (pid, number, kind)


def test_programs_get_the_standard_descriptors_only(busy):
    program = next(p for p in tree(init_of(busy)) if census.process(p).name == "sleep")
    assert sorted(descriptors(program)) == [0, 1, 2]
    out = busy.commands.run("ls -l /proc/self/fd").stdout
    assert "socket" not in out


def test_the_working_directory_and_root_are_inside(busy):
    for pid in tree(init_of(busy)):
        assert os.readlink(f"/proc/{pid}/cwd") in ("/", "/workspace")
        assert os.stat(f"/proc/{pid}/root/").st_dev != os.stat("/").st_dev


# --- environment ---------------------------------------------------------------------------------


def test_the_environment_is_the_allow_list_and_what_the_caller_gave(busy):
    built = build(resolve("python"))
    golden = plan.environment_variables(built.interpreter)
    for pid in tree(init_of(busy)):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode()
        found = dict(word.split("=", 1) for word in text.split("\0") if word)
        assert oracles.ENVIRONMENT_SECRET not in text
        if census.process(pid).name == "sleep":
            assert found.keys() - golden.keys() - {"LC_CTYPE", "HOSTNAME"} == {"GIVEN"}
        else:
            given = {"GIVEN", "LC_CTYPE"} | ({"HOSTNAME"} if setting.DOCKER else set())
            assert found.keys() <= golden.keys() | given
        home = os.path.expanduser("~")
        assert not [v for v in found.values() if home != "/" and home in v]


# --- mounts --------------------------------------------------------------------------------------


PLACES = ("/workspace", "/tmp", "/dev/shm", "/home/user", "/var/tmp")


def golden_mounts(sandbox):
    """Mount point -> type, writable. Below /usr and /opt what is bound depends on the host."""
    writable = dict.fromkeys(PLACES, "tmpfs") | {"/proc": "proc"}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    return writable, devices


def top_mounts(sandbox):
    """The last mount on a place is the one that is seen."""
    return {
        place: (set(options.split(",")), kind)
        for place, options, kind, _ in mounts(init_of(sandbox))
    }


def assert_sized(sandbox):
    sizes = {place: data for place, _, kind, data in mounts(init_of(sandbox)) if kind == "tmpfs"}
    for place in PLACES:
        assert re.search(r"size=\d+k", sizes[place])
        assert re.search(r"nr_inodes=\d+", sizes[place])


@pytest.mark.native_only("the mounts of a container are its engine's: see the next")
def test_nothing_is_writable_but_five_sized_places(busy):
    writable, devices = golden_mounts(busy)
    top = top_mounts(busy)
    for place, (options, kind) in top.items():
        if place in writable:
            assert kind == writable[place]
            assert {"rw", "nosuid", "nodev"} <= options, place
        elif place == "/dev/pts":
            assert kind == "devpts"
            assert {"rw", "nosuid", "noexec"} <= options
        elif place in devices:
            assert kind == "devtmpfs" or not ROOT
        else:
            assert {"ro", "nosuid"} <= options, (place, options)
            known = r"/$|/(usr|bin|sbin|lib|lib32|lib64|opt)(/|$)|/proc/[\w.-]+$"
            known += r"|/proc/sys/kernel/random/boot_id$"
            assert re.match(known, place), f"an unknown mount: {place}"
    assert set(writable) <= set(top)
    assert devices <= set(top)
    assert "noexec" in top["/proc"][0]
    assert not [place for place in top if place.startswith("/sys")]
    assert_sized(busy)


@pytest.mark.docker
def test_nothing_of_a_container_is_writable_but_five_sized_places(busy):
    writable, _ = golden_mounts(busy)
    top = top_mounts(busy)
    for place, (options, kind) in top.items():
        if place in writable:
            assert kind == writable[place]
            assert {"rw", "nosuid", "nodev"} <= options, place
        elif "ro" not in options and os.path.lexists(f"/proc/{init_of(busy)}/root{place}"):
            # A file that is hidden behind /dev/null, or a directory that only root may change.
            state = os.stat(f"/proc/{init_of(busy)}/root{place}")
            null = stat.S_ISCHR(state.st_mode) and state.st_rdev == os.stat("/dev/null").st_rdev
            assert null or (state.st_uid == 0 and not state.st_mode & 0o022), place
    assert set(writable) <= set(top)
    assert "noexec" in top["/proc"][0]
    assert_sized(busy)
    assert busy.run_code("import os; os.listdir('/sys'), os.listdir('/proc/sys')").value == ([], [])


def test_every_task_sees_the_same_mounts(busy):
    first = mounts(init_of(busy))
    for pid, tid in tasks(busy):
        assert posture(pid, tid)["mounts"] == first


@pytest.mark.native_only("the root of a container is that of its image")
def test_the_root_holds_nothing_of_the_hosts_but_programs_and_libraries(busy):
    root = f"/proc/{init_of(busy)}/root"
    allowed = {"bin", "sbin", "lib", "lib32", "lib64", "usr", "opt", "etc", "dev", "proc", "tmp"}
    allowed |= {"workspace", "run", "home", "root", "var"}
    assert set(os.listdir(root)) <= allowed
    assert os.listdir(f"{root}/home") == ["user"]
    assert os.listdir(f"{root}/var") == ["tmp"]
    for empty in ("home/user", "root", "var/tmp", "usr/local/bin"):
        if not os.path.islink(f"{root}/{empty}"):
            assert os.listdir(f"{root}/{empty}") == [], empty
    etc = set(os.listdir(f"{root}/etc"))
    assert etc <= {
        "protocols",
        "services",
        "passwd",
        "group",
        "hosts",
        "hostname",
        "resolv.conf",
        "nsswitch.conf",
        "os-release",
        "localtime",
        "fonts",
        "alternatives",
        "ld.so.cache",
        "ssl",
    }
    assert Path(f"{root}/etc/passwd").read_text() != Path("/etc/passwd").read_text()
    assert "shadow" not in etc
    devices = {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "ptmx",
        "pts",
        "shm",
        "fd",
        "stdin",
        "stdout",
        "stderr",
    }
    assert set(os.listdir(f"{root}/dev")) == devices


KEPT_IN_PROC = {"cpuinfo", "stat", "uptime", "loadavg", "version", "filesystems", "meminfo"}


def test_proc_tells_of_the_sandbox_and_not_of_the_host(busy):
    code = """
    import os
    def read(name):
        path = '/proc/' + name
        if os.path.islink(path): return None
        if os.path.isdir(path): return os.listdir(path)
        try: return open(path, 'rb').read(4096)
        except OSError: return None
    {name: read(name) for name in os.listdir('/proc') if not name.isdigit()}
    """
    told = busy.run_code(textwrap.dedent(code)).value
    assert len(told) > 20
    speaking = {name for name, content in told.items() if content}
    assert speaking <= KEPT_IN_PROC | {"sys"}, speaking - KEPT_IN_PROC
    if not setting.DOCKER:  # an engine shows the host's
        assert told["meminfo"].split()[1] != Path("/proc/meminfo").read_bytes().split()[1]


def test_the_kernels_variables_are_copies(busy):
    found = busy.run_code(
        "import os\n[os.path.join(d, f) for d, _, fs in os.walk('/proc/sys') for f in fs]"
    ).value
    copies = () if setting.DOCKER else plan._SYSCTLS
    assert sorted(found) == sorted(f"/proc/sys/{name}" for name in copies)


# --- limits and scheduling -----------------------------------------------------------------------


def rlimits(pid):
    rows = {}
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]:
        name, soft, hard = re.match(r"(.*?)  +(\S+) +(\S+)", line).groups()
        rows[name] = (soft, hard)
    return rows


def test_limits_of_every_process_but_init_are_set_and_cannot_be_raised(busy):
    limits = busy.limits
    golden = {
        "Max core file size": 1,  # 0 would still start a helper that core_pattern names
        "Max processes": limits.processes + 1,
        "Max open files": limits.open_files,
        "Max pending signals": 1024,
        "Max msgqueue size": 819200,
        "Max locked memory": 65536,
        "Max nice priority": 0,
        "Max realtime priority": 0,
        "Max file size": max(limits.workspace, limits.tmp),
    }
    if setting.DOCKER:
        del golden["Max processes"]  # its control group has it, for all of them together
    for pid in tree(init_of(busy)):
        found = rlimits(pid)
        for name, value in golden.items():
            if pid == init_of(busy) and name == "Max open files":
                continue  # init passes descriptors; it has its own, higher one
            soft, hard = found[name]
            assert soft == hard, (pid, name)
            assert int(soft) <= value, (pid, name, soft)


def test_scheduling_is_ordinary(busy):
    for pid, tid in tasks(busy):
        assert os.sched_getscheduler(tid) == os.SCHED_OTHER
        fields = Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()
        assert int(fields[16]) >= 0, "a better nice value than the host's"
        assert pid != tid or int(fields[15]) == 20


@pytest.mark.needs_cgroup
def test_every_task_is_in_the_guests_own_control_groups(busy):
    counters = oracles.Counters(init_of(busy))
    assert counters.inside
    assert counters.memory_limit == busy.limits.memory
    # One that ends or begins just now is counted on one side before the other.
    census.wait_until(lambda: counters.processes == len(tasks(busy)), what="equal counts")
    first = Path(f"/proc/{init_of(busy)}/cgroup").read_text()
    for pid, tid in tasks(busy):
        assert Path(f"/proc/{pid}/task/{tid}/cgroup").read_text() == first
    inside = busy.run_code("print(open('/proc/self/cgroup').read())").stdout
    assert "belljar" not in inside


def test_init_is_out_of_the_workers_reach(busy):
    """Not dumpable: its files in /proc belong to the root of the zygote's user namespace, in a
    container to that of the engine's."""
    init, worker = init_of(busy), worker_of(busy)
    owner = identity.UID_FIRST if ROOT else os.getuid()
    if setting.DOCKER:
        owner = 0
    assert os.stat(f"/proc/{init}/environ").st_uid == owner
    assert os.stat(f"/proc/{worker}/environ").st_uid == int(status(worker)["Uid"].split()[0])
    # A signal that PID 1 neither handles nor ignores does not reach it from inside.
    caught = int(status(init)["SigCgt"], 16)
    assert {number for number in range(1, 65) if caught >> (number - 1) & 1} <= {signal.SIGCHLD}


def test_isolation_says_what_was_measured(busy):
    seen = {layer.name: layer.state for layer in busy.isolation.layers}
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        expected = "absent" if setting.DOCKER and kind == "user" else "enforced"
        assert seen[f"{kind} namespace"] == expected
    for name in ("seccomp", "capabilities", "no_new_privs", "uid"):
        assert seen[name] == "enforced"
    memory = busy.isolation.layer("memory").state
    in_group = oracles.Counters(init_of(busy)).inside
    assert memory == ("enforced" if in_group else "best-effort")
    assert sys.platform == "linux"


def test_two_newborn_guests_have_the_same_posture(make_sandbox):
    one, two = (posture(worker_of(make_sandbox())) for _ in range(2))
    own = {f"{kind} namespace" for kind in oracles.NAMESPACES} | {"Uid", "Gid", "root", "mounts"}
    own |= {"Cpus_allowed"}  # without a cgroup each is given a processor of its own
    own |= {"Groups"} if setting.DOCKER else set()
    assert {k: v for k, v in one.items() if k not in own} == {
        k: v for k, v in two.items() if k not in own
    }
    # In any order: an engine mounts what lies equally deep as its map gives it.
    assert sorted(r[:3] for r in one["mounts"]) == sorted(r[:3] for r in two["mounts"])


# --- more open files than there can be -----------------------------------------------------------


ASK = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)"


def test_more_open_files_than_a_guest_can_have_are_less_and_said(make_sandbox):
    with pytest.warns(RuntimeWarning, match=f"open_files=20000 is more .* {MAX_FILES}"):
        sandbox = make_sandbox(limits={"open_files": 20_000})
    assert sandbox.run_code(ASK).value == (MAX_FILES, MAX_FILES)
    layer = sandbox.isolation.layer("open_files")
    assert (layer.state, str(MAX_FILES) in layer.detail) == ("enforced", True)
    assert layer.remedy
    if setting.NAME in ("native-root", "docker-runc"):  # else other limits are refused first
        with pytest.raises(LimitNotEnforceable, match="open_files=20000"):
            make_sandbox(limits={"open_files": 20_000}, strict=True)


UNDER_A_HARD_LIMIT = f"""
import json, resource, warnings
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
from belljar import LimitNotEnforceable, Sandbox
given = {{"environment": "python", "backend": "native", "limits": {{"open_files": 5000}}}}
with warnings.catch_warnings(record=True) as warned, Sandbox(**given) as sandbox:
    inside = sandbox.run_code({ASK!r})
    command = sandbox.commands.run("ulimit -n").stdout
    layer = sandbox.isolation.layer("open_files")
    said = [inside.outcome, inside.value, int(command), layer.state, layer.detail, len(warned)]
try:
    Sandbox.create(**given, strict=True)
except LimitNotEnforceable as error:
    print(json.dumps([*said, error.message, error.hint]))
"""


@pytest.mark.native_only("the hard limit of a container is its engine's")
def test_open_files_above_the_inherited_hard_limit_are_less_and_said(backend):
    command = [sys.executable, "-c", UNDER_A_HARD_LIMIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    outcome, value, in_command, state, detail, warned, refused, hint = json.loads(done.stdout)
    assert (outcome, value, in_command, state, warned) == ("ok", [500, 500], 500, "enforced", 1)
    assert "500; 5000 were asked for" in detail
    if setting.ROOT:  # else the memory limit is refused first
        assert "open_files=5000" in refused
        assert "ulimit -Hn" in hint


# --- in other namespaces -------------------------------------------------------------------------


IN_NAMESPACES = """
import json, os, sys
from belljar import Sandbox, SandboxError
try:
    with Sandbox(environment="python", backend="native") as sandbox:
        posture = sandbox.run_code("import os; os.getuid()").value
        uid = sandbox.isolation.layer("uid")
        print(json.dumps({"uid": posture, "state": uid.state, "detail": uid.detail}))
except SandboxError as error:
    print(json.dumps({"error": error.message, "hint": error.hint}))
"""


def start_in_namespaces(*flags):
    command = ["unshare", *flags, sys.executable, "-c", IN_NAMESPACES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


NATIVE_ALONE = pytest.mark.native_only("an engine is outside the caller's namespaces")


@NATIVE_ALONE
@pytest.mark.parametrize("flags", [["-Ur"], ["-Urpf", "--mount-proc"]], ids=" ".join)
def test_uid_0_of_a_user_namespace_starts_guests_and_says_whose_uid_they_have(backend, flags):
    seen = start_in_namespaces(*flags)
    assert seen["uid"] == 1000, seen
    assert (
        f"the caller's: 0 in this user namespace, {os.geteuid()} in the one above" in seen["detail"]
    )
    assert seen["state"] == ("enforced" if os.geteuid() else "best-effort")


@NATIVE_ALONE
def test_a_proc_of_another_pid_namespace_is_refused(backend):
    """Before anything is written below /proc/<pid>, which there is some other process."""
    seen = start_in_namespaces(*(["-pf"] if setting.ROOT else ["-Urpf"]))
    assert "/proc belongs to another pid namespace" in seen["error"]
    assert "--mount-proc" in seen["hint"]


@pytest.mark.parametrize(
    ("mapped", "enough"),
    [
        ([(0, 0, 2**32 - 1)], True),  # no user namespace
        ([(0, 1000, 1)], False),  # unshare -Ur
        ([(0, 1000, 1), (1, 100000, 65536)], False),  # rootless Podman
        ([(0, 100000, 2**31)], True),  # uids enough for a range of our own
        ([(0, 0, identity.UID_FIRST), (identity.UID_FIRST, 0, 5)], False),
    ],
)
def test_guests_have_uids_of_their_own_where_the_range_is_mapped(mapped, enough):
    assert identity.covers_range(mapped) is enough
