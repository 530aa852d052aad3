"""Control groups: that they hold on this kernel, and that none is left."""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from textwrap import dedent

import pytest

import census
from belljar.backends.linux import cgroup, proc
from belljar.backends.linux.cgroup import control, tree
from belljar.backends.linux.cgroup.plan import Hierarchy, Plan, parse_mounts
from belljar.errors import StartError

pytestmark = pytest.mark.contract("native")

MB = 1 << 20
LIMITS = frozenset({"memory", "pids", "cpu"})


def cpu_seconds(group):
    [nanoseconds] = group.read("cpu")
    return None if nanoseconds is None else nanoseconds / 1e9


# --- on this kernel --------------------------------------------------------------------------


@pytest.fixture
def groups():
    found = cgroup.detect()
    if not found.controllers >= LIMITS:
        pytest.skip(f"no control groups here: {dict(found.why)}")
    yield found
    found.close()


@pytest.fixture
def make(groups):
    def create(name="box", *, memory=None, processes=None, cpus=None):
        return groups.create(name, memory=memory, processes=processes, cpus=cpus)

    return create


@pytest.fixture
def unified():
    """Where the machine's v2 hierarchy is, even if v1 has left it no controller we want."""
    mounts = parse_mounts(proc.read("/proc/self/mountinfo"))
    point = next((m.point for m in mounts if m.kind == "cgroup2"), "")
    facts = control._look(point)
    if not (facts and facts.writable and facts.is_root):
        pytest.skip("no v2 hierarchy whose root we may write")
    return point


def processes_alive(box):
    # All hierarchies: a process on its way in is in some of them only.
    return sorted(set().union(*map(tree.members, box.paths)))


def on_v2(base, *controllers):
    only = Hierarchy(version=2, base=base, controllers=frozenset({"cpuacct", *controllers}))
    return control.Cgroups(tree.Owner.current(), Plan(hierarchies=(only,), why={}))


JOIN = """
import os, sys, time
for fd in map(int, sys.argv[1].split()):
    os.write(fd, b"0")
"""


def start_inside(joined, program):
    fds = joined.join_fds()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", JOIN + dedent(program), " ".join(map(str, fds))],
        pass_fds=fds,
        stdout=subprocess.PIPE,
        text=True,
    )
    joined.close_join_fds()
    return process


def run_inside(joined, program):
    with start_inside(joined, program) as process:
        out, _ = process.communicate(timeout=60)
    return process.returncode, out


def existing(name):
    """All directories of this name in any hierarchy."""
    mounted = parse_mounts(proc.read("/proc/self/mountinfo"))
    mounts = [m.point for m in mounted if m.kind in ("cgroup", "cgroup2")]
    return [d for point in mounts for d, _, _ in os.walk(point) if d.endswith(f"/{name}")]


def ours(name):
    """All groups of this name that this process owns."""
    return existing(f"{tree.Owner.current().name}/{name}")


BOMBS = {
    "one process": """
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)))
    """,
    "memfd without a mapping": """
        fd = os.memfd_create("hoard")
        while True:
            os.write(fd, b"x" * (1 << 20))
    """,
    "several processes, each below the limit": """
        for _ in range(4):
            os.fork()
        hoard = [bytearray(os.urandom(1 << 20)) for _ in range(20)]
        time.sleep(60)
    """,
}


@pytest.mark.parametrize("program", BOMBS.values(), ids=BOMBS)
def test_memory_bomb_is_killed_inside_and_stays_below_the_limit(make, program):
    box = make(memory=64 * MB, processes=64)
    assert box.enforced == {"memory", "processes"}
    assert box.read("oom_kills")[0] == 0
    with start_inside(box, program) as process:
        deadline = time.monotonic() + 30
        while box.read("oom_kills")[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert box.kill()
    assert process.returncode == -signal.SIGKILL
    assert box.read("oom_kills")[0] >= 1
    assert 32 * MB < box.read("peak")[0] <= 64 * MB


def test_fork_bomb_gets_eagain_and_dies_as_a_whole(make):
    box = make(memory=64 * MB, processes=20)
    returncode, out = run_inside(
        box,
        """
        try:
            while os.fork():
                pass
        except OSError as error:
            print(error.errno, flush=True)
            os._exit(0)
        os.close(1)
        time.sleep(60)
        """,
    )
    assert (returncode, int(out)) == (0, errno.EAGAIN)
    assert len(processes_alive(box)) == 19
    assert box.kill()
    assert processes_alive(box) == []
    assert box.remove()


RACE = """
    print("go", flush=True)
    os.close(1)
    while True:
        try:
            if not os.fork():
                time.sleep(0.001)
        except OSError:
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                os._exit(0)
"""


def children():
    """Also those that have ended."""
    return {p.pid for p in census.processes().values() if p.parent == os.getpid()}


def test_kill_outruns_processes_that_keep_forking_and_leaves_the_group_usable(make):
    box = make(memory=64 * MB, processes=30)
    before = children()
    with start_inside(box, RACE) as process:
        assert process.stdout.readline() == "go\n"
        assert box.kill()
    assert processes_alive(box) == []
    current = f"{box._places['pids'][1]}/pids.current"

    def has_room():
        # Orphans have become children of this process, and are counted until it has reaped them.
        for pid in children() - before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return int(proc.read(current)) <= 28

    census.wait_until(has_room, what="room for two")
    assert run_inside(box, "os._exit(7 if os.fork() else 0)")[0] == 7


def test_half_a_cpu_is_half_a_cpu_however_many_processes_spin(make):
    box = make(cpus=0.5)
    assert box.enforced == {"cpus"}
    with start_inside(box, "os.fork()\nprint('go', flush=True)\nwhile True: pass") as process:
        assert process.stdout.readline() == "go\n"
        # The clock is looked at on either side of each reading: this process may be kept waiting
        # in between.
        times = [time.monotonic()]
        before = cpu_seconds(box)
        times.append(time.monotonic())
        time.sleep(1.5)
        times.append(time.monotonic())
        used = cpu_seconds(box) - before
        times.append(time.monotonic())
        assert box.kill()
    # A busy machine may give less, never more.
    assert used / (times[3] - times[0]) < 0.6
    assert used > 0


def test_group_with_next_to_no_cpu_still_dies_at_once_and_keeps_its_share(make):
    took = []
    for name in ("first", "second", "third"):  # this process may be kept waiting, too
        box = make(name, cpus=0.02, processes=10)
        with start_inside(box, "print('go', flush=True)\nos.fork()\nos.fork()\nwhile True: pass"):
            time.sleep(0.5)
            start = time.monotonic()
            assert box.kill()
            took.append(time.monotonic() - start)
    assert min(took) < 1
    version, path = box._places["cpu"]
    share = proc.read(f"{path}/{'cpu.cfs_quota_us' if version == 1 else 'cpu.max'}")
    assert share.split()[0] == "2000"


def test_swap_counts_as_memory(make):
    box = make(memory=64 * MB)
    version, path = box._places["memory"]
    files = ("memory.memsw.limit_in_bytes", "memory.swap.max")
    found = [f for f in files if os.path.exists(f"{path}/{f}")]
    if not found:
        pytest.skip("this kernel does not account swap")
    expected = 64 * MB if version == 1 else 0
    assert int(proc.read(f"{path}/{found[0]}")) == expected


def test_peak_counts_from_the_reset(make):
    box = make(memory=64 * MB)
    run_inside(box, "bytearray(os.urandom(30 << 20))")
    assert box.read("peak")[0] > 30 * MB
    if not box.reset_peak():
        pytest.skip("this kernel cannot reset the peak")
    assert box.read("peak")[0] < 20 * MB
    assert box.read("current")[0] <= box.read("peak")[0]


def test_cpu_time_is_counted_for_all_processes_that_were_inside(make):
    box = make()
    assert box.enforced == frozenset()
    assert cpu_seconds(box) == 0
    run_inside(box, "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    assert 0.3 <= cpu_seconds(box) < 2


def test_v2_group_is_joined_counted_killed_and_removed(unified):
    groups = on_v2(unified)
    box = groups.create("box", memory=MB, processes=1, cpus=1)
    assert box.enforced == frozenset()
    with start_inside(box, RACE.replace("0.001", "0.01")) as process:
        assert process.stdout.readline() == "go\n"
        assert process.pid in processes_alive(box)
        assert box.kill()
    assert processes_alive(box) == []
    assert cpu_seconds(box) > 0
    assert box.read("peak")[0] is None
    assert box.remove()
    groups.close()


def test_v2_controller_is_handed_on_to_the_sandbox(unified):
    facts = control._look(unified)
    spare = sorted(facts.controllers & {"hugetlb", "misc", "rdma"} - facts.subtree)
    if not spare:
        pytest.skip("no controller that is not in use")
    try:
        groups = on_v2(unified, spare[0], "no-such-controller")
        assert groups.controllers == {"cpuacct", spare[0]}
        assert groups.why["no-such-controller"].endswith("subtree_control: Invalid argument")
        box = groups.create("box", memory=None, processes=None, cpus=None)
        inside = control._look(box.paths[0])
        assert (inside.controllers, inside.is_root, inside.occupied) == ({spare[0]}, False, False)
        groups.close()
    finally:
        tree.write(f"{unified}/cgroup.subtree_control", f"-{spare[0]}")


@pytest.mark.parametrize("delegated", [True, False])
def test_v2_user_may_enter_its_group_if_it_may_write_the_common_ancestor(unified, delegated):
    base = f"{unified}/given-{os.getpid()}"
    own = f"{base}/run.scope"

    def as_nobody():
        tree.write(f"{own}/cgroup.procs", "0")
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        groups = on_v2(base)
        box = groups.create("box", memory=None, processes=None, cpus=None)
        fds = box.join_fds()
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(os.write(fds[0], b"0"))
            except PermissionError:
                os._exit(99)
        entered = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        groups.close()
        return control._look(base).writable, control._look(own).occupied, entered

    try:
        for path in (base, own):
            os.mkdir(path)
            os.chown(path, 65534, 65534)
        for file in ("cgroup.procs", "cgroup.subtree_control") if delegated else ():
            os.chown(f"{base}/{file}", 65534, 65534)
        expected = (True, True, 1) if delegated else (False, True, 99)
        assert in_fork(as_nobody) == repr(expected)
    finally:
        assert tree.remove([base])


def test_removing_twice_is_fine_and_ends_the_readings(make, groups):
    box = make("gone", memory=64 * MB)
    box.join_fds()
    assert cpu_seconds(box) is not None
    assert len(ours("gone")) == len(groups._hierarchies)
    assert box.remove()
    assert box.remove()
    assert ours("gone") == []
    assert cpu_seconds(box) is None
    assert box.join_fds() == []
    assert box.reset_peak() is False


def test_group_with_a_living_process_is_not_removed_until_that_has_gone(make):
    box = make()
    with start_inside(box, "print('go', flush=True)\ntime.sleep(60)") as process:
        assert process.stdout.readline() == "go\n"
        assert not box.remove()
        assert process.poll() is None
        assert box.kill()
    assert box.remove()


def test_failed_creation_leaves_nothing_and_names_the_file(make):
    with pytest.raises(StartError, match=r"half/pids\.max: Invalid argument"):
        make("half", memory=64 * MB, processes=-5)
    assert ours("half") == []


def test_name_that_exists_is_refused_and_its_owner_keeps_it(make, groups):
    make("same")
    with pytest.raises(StartError):
        make("same")
    assert len(ours("same")) == len(groups._hierarchies)


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a b", ".x", "x" * 101, "a\n"])
def test_names_that_are_paths_are_refused(make, name):
    with pytest.raises(ValueError, match="not a name"):
        make(name)


def test_no_descriptor_is_inherited_by_programs_we_start(make):
    box = make(memory=64 * MB)
    box.read("peak", "cpu", "oom_kills")
    opened = [*box.join_fds(), *(fd for fd, _ in box._files.values())]
    assert len(opened) >= 4
    assert not any(map(os.get_inheritable, opened))


def test_closing_kills_and_removes_everything_and_may_be_repeated(groups, make):
    with start_inside(make(), "print('go', flush=True)\ntime.sleep(60)") as process:
        assert process.stdout.readline() == "go\n"
        groups.close()
    assert process.returncode == -signal.SIGKILL
    groups.close()
    assert existing(tree.Owner.current().name) == []


def test_two_in_one_process_do_not_disturb_each_other(groups, make):
    cgroup.detect().close()
    assert make(memory=64 * MB).enforced == {"memory"}
    cgroup.detect().close()
    assert ours("box")


def test_tighter_share_of_the_group_we_are_in_is_no_failure(groups):
    place = next(h for h in groups._hierarchies if "cpu" in h.controllers)
    if place.version != 1:
        pytest.skip("v1 only: v2 takes any value")
    narrow = f"{place.base}/narrow-{os.getpid()}"
    os.mkdir(narrow)
    try:
        tree.write(f"{narrow}/cpu.cfs_quota_us", "20000")
        program = f"""
            import os
            from belljar.backends.linux import cgroup
            open("{narrow}/cgroup.procs", "w").write("0")
            groups = cgroup.detect()
            box = groups.create("box", memory=None, processes=None, cpus=1.0)
            print(sorted(box.enforced))
            groups.close()
        """
        out = subprocess.check_output([sys.executable, "-c", dedent(program)], text=True)
        assert out == "['cpus']\n"
    finally:
        assert tree.remove([narrow])


def in_fork(work):
    """The text that `work` returns in a forked process."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(send, repr(work()).encode())
        except BaseException as error:
            os.write(send, repr(error).encode())
        os._exit(0)
    os.close(send)
    with open(receive) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def test_fork_of_the_owner_can_neither_remove_nor_make_groups(groups, make):
    box = make("parents")

    def child():
        groups.close()
        return box.kill(), box.remove()

    assert in_fork(child) == "(False, False)"
    assert "another process" in in_fork(lambda: make("childs"))
    assert len(ours("parents")) == len(groups._hierarchies)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_ordinary_user_without_delegation_gets_reasons_instead_of_groups():
    def as_nobody():
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        found = cgroup.detect()
        refused = found.create("box", memory=MB, processes=None, cpus=None).enforced
        found.close()
        return found.version, sorted(found.controllers), sorted(found.why), refused, cgroup.sweep()

    expected = (0, [], ["cpu", "cpuacct", "memory", "pids"], frozenset(), 0)
    assert in_fork(as_nobody) == repr(expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_ordinary_user_started_in_v1_groups_of_its_own_can_limit(groups):
    if {h.version for h in groups._hierarchies} != {1}:
        pytest.skip("v1 only")
    given = [f"{h.base}/given-{os.getpid()}" for h in groups._hierarchies]

    def as_nobody():
        for path in given:
            os.mkdir(path)
            os.chown(path, 65534, 65534)
            tree.write(f"{path}/cgroup.procs", "0")
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        found = cgroup.detect()
        box = found.create("box", memory=16 * MB, processes=10, cpus=0.5)
        fds = box.join_fds()
        pid = os.fork()
        if pid == 0:
            for fd in fds:
                os.write(fd, b"0")
            hoard = [bytearray(os.urandom(MB)) for _ in range(64)]
            os._exit(len(hoard))
        status = os.waitpid(pid, 0)[1]
        result = found.version, sorted(box.enforced), status, box.read("oom_kills")[0]
        found.close()
        return result

    try:
        expected = (1, ["cpus", "memory", "processes"], int(signal.SIGKILL), 1)
        assert in_fork(as_nobody) == repr(expected)
        assert [name for path in given for name in tree.subgroups(path)] == []
    finally:
        assert tree.remove(given)


# --- leftovers -------------------------------------------------------------------------------


HOST = """
import subprocess, sys
from belljar.backends.linux import cgroup
groups = cgroup.detect()
box = groups.create("box", memory=64 << 20, processes=10, cpus=None)
fds = box.join_fds()
join = "import os, time\\nfor fd in %r: os.write(fd, b'0')\\nprint(os.getpid(), flush=True)\\n"
guest = subprocess.Popen([sys.executable, "-c", join % fds + "time.sleep(600)"], pass_fds=fds)
guest.wait()
"""


@pytest.fixture
def start_host(groups):
    """Starts a process that owns a group with a guest in it: (process, guest's pidfd, tree)."""
    started = []

    def start():
        host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
        started.append(host)
        guest = os.pidfd_open(int(host.stdout.readline()))
        start_time = tree._start_of_living(host.pid)
        owner = tree.Owner(host.pid, start_time, os.stat("/proc/self/ns/pid").st_ino)
        return host, guest, owner.name

    yield start
    for host in started:
        host.kill()
        host.wait()
        host.stdout.close()
    cgroup.sweep()


def ends(pidfd):
    """Whether the process ends soon; also for one that is not our child."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(30_000))


def test_sweep_removes_the_tree_of_a_dead_owner_with_its_processes_and_no_other(
    groups, make, start_host
):
    make("mine")
    dead, orphan, dead_tree = start_host()
    living, guest, living_tree = start_host()
    strangers = [f"{h.base}/belljar-of-{os.getpid()}" for h in groups._hierarchies]
    # A pid of another pid namespace: nothing can be said about its owner.
    strangers += [f"{h.base}/belljar-{dead.pid}-1-1" for h in groups._hierarchies]
    try:
        for path in strangers:
            os.mkdir(path)
        assert existing(dead_tree)  # from here on, another process may sweep it as well
        dead.kill()
        # Left as a zombie: that is dead, too.
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        cgroup.sweep()
        census.wait_until(lambda: not existing(dead_tree), 30.0, "the end of the tree")
        assert ends(orphan)
        assert len(existing(living_tree)) == len(groups._hierarchies)
        assert living.poll() is None
        signal.pidfd_send_signal(guest, 0)
        assert all(map(os.path.isdir, strangers))
        assert len(ours("mine")) == len(groups._hierarchies)
    finally:
        tree.remove(strangers)
        os.close(orphan)
        os.close(guest)


def test_pid_given_out_again_does_not_protect_the_tree_of_its_former_owner(groups, monkeypatch):
    us = tree.Owner.current()
    former = tree.Owner(us.pid, us.start - 1, us.namespace)
    # A place of its own, so that no other sweep on this machine can be faster.
    place = replace(groups._hierarchies[0], base=f"{groups._hierarchies[0].base}/{us.name}/place")
    monkeypatch.setattr(control, "_plan", lambda: Plan(hierarchies=(place,), why={}))
    names = {us.name, former.name, "belljar"}
    try:
        for name in ("", *names):
            os.mkdir(f"{place.base}/{name}")
        assert cgroup.sweep() == 1
        assert {os.path.basename(path) for path in tree.subgroups(place.base)} == {
            us.name,
            "belljar",
        }
    finally:
        tree.remove([place.base])


def test_two_sweeps_at_once_do_not_fail(start_host):
    hosts = [start_host() for _ in range(6)]
    for host, guest, _ in hosts:
        host.kill()
        host.wait()
        os.close(guest)
    program = (
        "import sys; from belljar.backends.linux import cgroup; "
        "print('ready', flush=True); sys.stdin.read(); print(cgroup.sweep())"
    )
    sweepers = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for sweeper in sweepers:
        assert sweeper.stdout.readline() == "ready\n"
    for sweeper in sweepers:
        sweeper.stdin.close()
    for sweeper in sweepers:
        with sweeper.stdout:
            assert int(sweeper.stdout.read()) >= 0
        assert sweeper.wait(30) == 0
    names = [name for _, _, name in hosts]
    census.wait_until(lambda: not any(map(existing, names)), 30.0, "the end of all trees")


def test_names_carry_pid_start_time_and_pid_namespace():
    us = tree.Owner.current()
    assert tree.Owner.parse(us.name) == us
    assert us.name.startswith(f"belljar-{os.getpid()}-")
    assert not us.is_dead(seen_by=us)
    for name in ("belljar", "belljar-1-2", "belljar-1-2-x", "xbelljar-1-2-3", "belljar-1-2-3-4"):
        assert tree.Owner.parse(name) is None
