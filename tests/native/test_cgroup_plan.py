"""Control groups: where they may live and what is written there, decided from text."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.backends.linux.cgroup import control, tree
from belljar.backends.linux.cgroup.plan import Directory, Hierarchy, parse_mounts, plan
from belljar.backends.linux.cgroup.tree import settings

pytestmark = pytest.mark.contract("native")

MB = 1 << 20
LIMITS = frozenset({"memory", "pids", "cpu"})
ALL = LIMITS | {"cpuacct"}


# --- where groups may live -------------------------------------------------------------------


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
35 31 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
"""
V1_PATHS = "9:name=systemd:/svc\n8:pids:/svc\n4:memory:/svc\n2:cpu,cpuacct:/\n"
EMPTY_V2 = "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def group(*, writable=True, controllers=LIMITS, subtree=(), occupied=False, is_root=False):
    return Directory(
        writable=writable,
        controllers=frozenset(controllers),
        subtree=frozenset(subtree),
        occupied=occupied,
        is_root=is_root,
    )


def places(decided):
    return {(h.version, h.base, h.controllers) for h in decided.hierarchies}


def writable(*paths):
    return lambda path: Directory(writable=path in paths)


def test_v2_service_run_by_root_goes_to_the_nearest_group_without_processes():
    found = {
        "/sys/fs/cgroup": group(subtree=LIMITS, occupied=True, is_root=True),
        "/sys/fs/cgroup/system.slice": group(subtree={"memory", "pids"}),
        "/sys/fs/cgroup/system.slice/app.service": group(occupied=True),
    }
    decided = plan(V2, "0::/system.slice/app.service\n", found.get)
    assert places(decided) == {(2, "/sys/fs/cgroup/system.slice", ALL)}
    assert decided.why == {}


def test_v2_true_root_may_have_processes_and_limited_children():
    decided = plan(V2, "0::/\n", {"/sys/fs/cgroup": group(occupied=True, is_root=True)}.get)
    assert places(decided) == {(2, "/sys/fs/cgroup", ALL)}


def test_v2_delegated_user_uses_its_own_slice_and_is_told_why_cpu_is_missing():
    user = "/sys/fs/cgroup/user.slice/user-1000.slice"
    two = {"memory", "pids"}
    found = {
        "/sys/fs/cgroup": group(writable=False, subtree=LIMITS, is_root=True),
        "/sys/fs/cgroup/user.slice": group(writable=False, subtree=LIMITS),
        user: group(writable=False, subtree=two),
        f"{user}/user@1000.service": group(controllers=two, subtree=two),
        f"{user}/user@1000.service/app.slice": group(controllers=two, subtree=two),
        f"{user}/user@1000.service/app.slice/run-1.scope": group(controllers=two, occupied=True),
    }
    own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n"
    decided = plan(V2, own, found.get)
    base = f"{user}/user@1000.service/app.slice"
    assert places(decided) == {(2, base, frozenset({"memory", "pids", "cpuacct"}))}
    assert decided.why.keys() == {"cpu"}
    assert "Delegate=" in decided.why["cpu"]


def test_v2_login_session_of_a_user_has_nothing_and_is_told_of_systemd_run():
    session = "/sys/fs/cgroup/user.slice/user-1000.slice/session-1.scope"
    found = {session: group(writable=False, occupied=True)}
    found["/sys/fs/cgroup"] = group(writable=False, subtree=LIMITS, is_root=True)
    decided = plan(V2, "0::/user.slice/user-1000.slice/session-1.scope\n", found.get)
    assert decided.hierarchies == ()
    assert decided.why.keys() == ALL
    assert all("systemd-run --user --scope" in reason for reason in decided.why.values())


def test_v2_root_of_a_container_with_processes_is_told_to_move_them():
    decided = plan(V2, "0::/\n", {"/sys/fs/cgroup": group(occupied=True)}.get)
    assert decided.hierarchies == ()
    assert "mkdir /sys/fs/cgroup/init" in decided.why["memory"]


def test_v2_nearest_place_wins_among_equals_but_memory_is_worth_the_way_up():
    found = {
        "/sys/fs/cgroup": group(is_root=True),
        "/sys/fs/cgroup/a": group(),
        "/sys/fs/cgroup/a/b": group(controllers={"pids", "cpu"}),
        "/sys/fs/cgroup/a/b/c": group(controllers={"pids"}, occupied=True),
    }
    decided = plan(V2, "0::/a/b/c\n", found.get)
    assert places(decided) == {(2, "/sys/fs/cgroup/a", ALL)}


def test_v1_groups_go_below_our_own_in_each_hierarchy_and_mounted_together_share_one():
    bases = {"memory": "/sys/fs/cgroup/memory/svc", "pids": "/sys/fs/cgroup/pids/svc"}
    decided = plan(V1, V1_PATHS, writable(*bases.values(), "/sys/fs/cgroup/cpu,cpuacct"))
    assert places(decided) == {
        (1, bases["memory"], frozenset({"memory"})),
        (1, bases["pids"], frozenset({"pids"})),
        (1, "/sys/fs/cgroup/cpu,cpuacct", frozenset({"cpu", "cpuacct"})),
    }
    assert decided.why == {}


def test_v1_reasons_stand_beside_what_is_missing_only():
    decided = plan(V1, V1_PATHS, writable("/sys/fs/cgroup/memory/svc"))
    assert places(decided) == {(1, "/sys/fs/cgroup/memory/svc", frozenset({"memory"}))}
    assert decided.why.keys() == {"pids", "cpu", "cpuacct"}
    assert "/sys/fs/cgroup/pids/svc may not be written" in decided.why["pids"]


def test_hybrid_with_an_empty_v2_is_v1():
    def look(path):
        if path == "/sys/fs/cgroup/unified":
            return group(controllers={"hugetlb"}, occupied=True, is_root=True)
        return Directory(writable=True)

    decided = plan(V1 + EMPTY_V2, V1_PATHS + "0::/\n", look)
    assert {h.version for h in decided.hierarchies} == {1}
    assert frozenset().union(*(h.controllers for h in decided.hierarchies)) == ALL


def test_hybrid_takes_each_controller_from_where_it_is():
    mounts = V1.replace("rw,memory", "rw,name=other") + EMPTY_V2

    def look(path):
        if path == "/sys/fs/cgroup/unified":
            return group(controllers={"memory"}, occupied=True, is_root=True)
        return Directory(writable=True)

    decided = plan(mounts, V1_PATHS.replace("memory", "name=other") + "0::/\n", look)
    assert places(decided) == {
        (2, "/sys/fs/cgroup/unified", frozenset({"memory", "cpuacct"})),
        (1, "/sys/fs/cgroup/pids/svc", frozenset({"pids"})),
        (1, "/sys/fs/cgroup/cpu,cpuacct", frozenset({"cpu"})),
    }


def test_mount_of_a_part_of_the_hierarchy_is_seen_relative_to_it():
    mounts = "33 31 0:30 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    look = writable("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/in")
    assert plan(mounts, "4:memory:/docker/x\n", look).hierarchies[0].base.endswith("/memory")
    assert plan(mounts, "4:memory:/docker/x/in\n", look).hierarchies[0].base.endswith("/in")
    assert plan(mounts, "4:memory:/docker/xy\n", lambda _: group()).hierarchies == ()


@pytest.mark.parametrize(("root", "own"), [("/../..", "/"), ("/", "/../other")])
def test_outside_of_our_cgroup_namespace_no_place_is_guessed(root, own):
    mounts = f"33 31 0:30 {root} /m rw - cgroup cgroup rw,memory\n"
    decided = plan(mounts, f"4:memory:{own}\n", lambda _: group())
    assert decided.hierarchies == ()
    assert "cgroup namespace" in decided.why["memory"]


def test_without_control_groups_every_controller_has_a_reason():
    decided = plan("22 1 0:5 / /proc rw - proc proc rw\n", "", lambda _: None)
    assert decided.hierarchies == ()
    assert decided.why.keys() == ALL


def test_blanks_in_a_mount_point_are_understood():
    mounts = r"33 31 0:30 / /my\040groups rw - cgroup cgroup rw,memory" + "\n"
    assert [m.point for m in parse_mounts(mounts)] == ["/my groups"]


def test_a_mount_without_a_source_is_seen():
    (mount,) = parse_mounts("33 31 0:5 / /data/proc rw shared:7 - proc  rw\n")
    assert (mount.point, mount.kind, mount.options) == ("/data/proc", "proc", {"rw"})


@given(st.text(), st.text())
def test_no_text_makes_the_decision_fail(mountinfo, own):
    decided = plan(V1 + EMPTY_V2 + mountinfo, V1_PATHS + own, lambda _: None)
    assert decided.why.keys() == ALL


# --- what is written -------------------------------------------------------------------------


def written(version, **limits):
    hierarchy = Hierarchy(version=version, base="/x", controllers=ALL)
    return [(s.file, s.value) for s in settings(hierarchy, **limits)]


def test_v1_settings_limit_memory_before_memory_and_swap():
    assert written(1, memory=64 * MB, processes=10, cpus=0.5) == [
        ("memory.limit_in_bytes", "67108864"),
        ("memory.memsw.limit_in_bytes", "67108864"),
        ("memory.swappiness", "0"),
        ("memory.kmem.tcp.limit_in_bytes", "16777216"),
        ("pids.max", "10"),
        ("cpu.cfs_period_us", "20000"),
        ("cpu.cfs_quota_us", "10000"),
    ]


def test_v2_settings_turn_swap_off():
    assert written(2, memory=64 * MB, processes=10, cpus=2) == [
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("pids.max", "10"),
        ("cpu.max", "40000 20000"),
    ]


def test_smallest_share_of_a_cpu_is_a_quota_the_kernel_takes():
    assert written(2, memory=None, processes=None, cpus=0.01) == [("cpu.max", "1000 100000")]


# --- v2 with controllers, on a pretended kernel ----------------------------------------------


@pytest.fixture
def pretended_v2(tmp_path, monkeypatch):
    """A directory that behaves like v2: new groups have files, settings replace them."""
    files = {
        "cgroup.procs": "",
        "cgroup.type": "domain\n",
        "cgroup.controllers": "cpu memory pids\n",
        "cgroup.subtree_control": "",
        "memory.max": "max\n",
        "memory.peak": "4096\n",
        "memory.current": "2048\n",
        "memory.events": "low 0\noom 2\noom_kill 1\noom_group_kill 0\n",
        "pids.max": "max\n",
        "cpu.max": "max 100000\n",
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
    }
    mkdir, rmdir, write = os.mkdir, os.rmdir, tree.write

    def populated_mkdir(path, *args):
        mkdir(path, *args)
        for name, text in files.items():
            Path(path, name).write_text(text)

    def emptying_rmdir(path):
        for name in files:
            Path(path, name).unlink(missing_ok=True)
        rmdir(path)

    def setting(path, value):
        if path.endswith("cgroup.subtree_control"):
            value = f"{Path(path).read_text()} {value.removeprefix('+')}"
        elif not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, "not here", path)
        if not path.startswith(str(tmp_path)):
            return write(path, value)
        Path(path).write_text(value)

    monkeypatch.setattr(os, "mkdir", populated_mkdir)
    monkeypatch.setattr(os, "rmdir", emptying_rmdir)
    monkeypatch.setattr(tree, "write", setting)
    base = tmp_path / "app.slice"
    populated_mkdir(base)
    own = base / "run.scope"
    populated_mkdir(own)
    (own / "cgroup.procs").write_text("1\n")
    texts = (f"30 23 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n", "0::/app.slice/run.scope\n")
    return base, plan(*texts, control._look)


def test_v2_hands_controllers_on_writes_limits_and_takes_readings(pretended_v2):
    base, decided = pretended_v2
    groups = control.Cgroups(tree.Owner.current(), decided)
    assert (groups.version, groups.controllers, groups.why) == (2, ALL, {})
    made = groups.create("box", memory=64 * MB, processes=10, cpus=0.5)
    parent = base / tree.Owner.current().name
    for directory in (base, parent):
        assert set((directory / "cgroup.subtree_control").read_text().split()) == LIMITS
    # memory.swap.max is not there: no swap accounting, which is not a failure.
    assert made.enforced == {"memory", "processes", "cpus"}
    assert (parent / "box" / "memory.max").read_text() == str(64 * MB)
    assert (parent / "box" / "pids.max").read_text() == "10"
    assert (parent / "box" / "cpu.max").read_text() == "10000 20000"
    assert made.read("cpu") == [1_500_000_000]
    assert made.read("peak", "current") == [4096, 2048]
    assert made.read("oom_kills") == [1]
    assert len(made.join_fds()) == 1
    groups.close()
    assert [p.name for p in base.iterdir() if p.is_dir()] == ["run.scope"]
