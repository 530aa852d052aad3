"""Whose a container is: only what a dead process of this very host made is an orphan."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

import census
from belljar import __version__
from belljar.backends.docker import owner
from belljar.backends.docker.cleanup import find_leftovers, parse_container

LABELS = (
    *("belljar.sandbox", "belljar.owner.pid", "belljar.owner.started", "belljar.owner.host"),
    *("belljar.owner.pid_namespace", "belljar.created", "belljar.version"),
    *("belljar.build", "belljar.project"),
)
NEEDED = [name for name in LABELS if name.startswith(("belljar.sandbox", "belljar.owner."))]


@pytest.fixture
def ours():
    return owner.labels("a1b2", "reports")


@pytest.fixture
def dead(ours):
    """The labels of a process that has been and is no more."""
    process = subprocess.Popen(["true"])
    started = census.process(process.pid).started
    process.wait()
    return ours | {"belljar.owner.pid": str(process.pid), "belljar.owner.started": str(started)}


@pytest.fixture
def child():
    """A process that lives until the test ends, and its labels as it would write them."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def labels_of(process, ours):
    started = census.process(process.pid).started
    return ours | {"belljar.owner.pid": str(process.pid), "belljar.owner.started": str(started)}


# --- what is written -------------------------------------------------------------------------


def test_labels_name_the_process_the_sandbox_and_the_project(ours):
    assert ours["belljar.sandbox"] == "a1b2"
    assert ours["belljar.owner.pid"] == str(os.getpid())
    assert ours["belljar.owner.started"] == str(census.process(os.getpid()).started)
    assert ours["belljar.owner.pid_namespace"] == str(os.stat("/proc/self/ns/pid").st_ino)
    assert ours["belljar.project"] == "reports"
    assert ours["belljar.version"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", ours["belljar.created"])


def test_a_sandbox_without_a_project_has_an_empty_one_so_that_an_image_cannot_give_it_another():
    labels = owner.labels("a1b2")
    assert set(labels) == set(LABELS)
    assert {name for name, value in labels.items() if not value} == {
        "belljar.build",
        "belljar.project",
    }


def test_labels_do_not_give_away_the_machines_id(ours):
    told = " ".join(ours.values())
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        if os.path.exists(path):
            with open(path) as file:
                assert file.read().strip() not in told


def test_labels_are_the_same_for_each_sandbox_of_a_process(ours):
    again = owner.labels("c3d4", "reports")
    differing = {name for name in ours if ours[name] != again[name]}
    assert differing <= {"belljar.sandbox", "belljar.created"}


# --- what is read ----------------------------------------------------------------------------


def test_what_a_living_process_made_is_no_orphan(ours, child):
    assert owner.is_orphan(ours) is False
    assert owner.is_orphan(labels_of(child, ours)) is False


def test_what_a_dead_process_made_is_an_orphan(dead):
    assert owner.is_orphan(dead) is True


def test_a_process_that_got_the_pid_of_a_dead_one_is_not_its_owner(ours, child):
    labels = labels_of(child, ours)
    labels["belljar.owner.started"] = str(int(labels["belljar.owner.started"]) - 1)
    assert owner.is_orphan(labels) is True


def test_a_zombie_owns_nothing(ours):
    process = subprocess.Popen(["sleep", "1000"])
    try:
        labels = labels_of(process, ours)
        process.kill()
        census.wait_until(lambda: census.process(process.pid).dead, what="the death")
        assert owner.is_orphan(labels) is True
    finally:
        process.wait()


def test_a_stopped_process_still_owns_what_it_made(ours, child):
    os.kill(child.pid, signal.SIGSTOP)
    census.wait_until(lambda: census.process(child.pid).state == "T", what="the stop")
    assert owner.is_orphan(labels_of(child, ours)) is False


def test_a_process_that_lost_its_main_thread_still_owns_what_it_made(ours):
    program = dedent("""
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(1000,)).start()
        print("ready", flush=True)
        ctypes.CDLL(None).syscall(60 if __import__("platform").machine() == "x86_64" else 93, 0)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        labels = labels_of(process, ours)
        stat = Path(f"/proc/{process.pid}/stat")
        census.wait_until(lambda: ") Z " in stat.read_text(), what="the thread's end")
        assert owner.is_orphan(labels) is False
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_command_name_full_of_parentheses_is_read_right(ours, tmp_path):
    strange = tmp_path / ") Z 1 ("
    strange.symlink_to("/bin/sleep")
    process = subprocess.Popen([strange, "1000"])
    try:
        census.wait_until(lambda: census.process(process.pid).name == strange.name, what="exec")
        assert owner.is_orphan(labels_of(process, ours)) is False
    finally:
        process.kill()
        process.wait()


def test_only_the_process_itself_says_ours(ours, dead, child):
    assert owner.is_ours(ours)
    assert not owner.is_ours(dead)
    assert not owner.is_ours(labels_of(child, ours))
    assert not owner.is_ours({})


def test_after_a_fork_the_parents_containers_are_the_parents(ours):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = [owner.is_ours(ours), owner.is_orphan(ours), owner.labels("x")[owner.PID]]
            os.write(write, repr(said).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        assert answer.read() == repr([False, False, str(child)])
    os.waitpid(child, 0)


# --- other hosts, other namespaces -----------------------------------------------------------


def test_what_another_host_made_is_not_judged(dead):
    _, boot = dead["belljar.owner.host"].split(".")
    other = "0123456789abcdef"
    for host in (f"{other}.{other}", f"{other}.{boot}", f"unknown.{other}"):
        labels = dead | {"belljar.owner.host": host, "belljar.created": "2001-01-01T00:00:00Z"}
        assert owner.is_orphan(labels) is None
        assert owner.is_orphan(labels, running=False) is None
        assert not owner.is_ours(labels)


def test_what_another_pid_namespace_made_is_not_judged(dead):
    labels = dead | {"belljar.owner.pid_namespace": "4026530000"}
    assert owner.is_orphan(labels) is None
    assert owner.is_orphan(labels, running=False) is None


def test_what_this_machine_left_before_it_was_booted_is_an_orphan_once_it_does_not_run(dead):
    machine, _ = dead["belljar.owner.host"].split(".")
    if machine == "unknown":
        pytest.skip("this machine has no id")
    before = dead | {
        "belljar.owner.host": f"{machine}.0123456789abcdef",
        "belljar.created": "2001-01-01T00:00:00Z",
    }
    assert owner.is_orphan(before, running=False) is True
    assert owner.is_orphan(before) is None  # it runs: a copy of this machine may own it
    now = before | {"belljar.created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    assert owner.is_orphan(now, running=False) is None
    for wrong in ("", "yesterday", "2001-01-01", "0000-00-00T00:00:00Z"):
        labels = before | {"belljar.created": wrong}
        assert owner.is_orphan(labels, running=False) is None


def test_a_machine_without_an_id_never_judges_an_earlier_boot(dead, monkeypatch):
    us = replace(owner.Owner.current(), machine="unknown")
    monkeypatch.setattr(owner.Owner, "current", lambda: us)
    labels = dead | {
        "belljar.owner.host": "unknown.0123456789abcdef",
        "belljar.created": "2001-01-01T00:00:00Z",
    }
    assert owner.is_orphan(labels, running=False) is None


@pytest.mark.root_only
def test_an_owner_that_proc_hides_is_not_taken_for_dead(ours, child, tmp_path):
    """With hidepid, /proc does not list the processes of others."""
    labels = labels_of(child, ours)
    program = dedent(f"""
        import os, sys
        from belljar.backends.docker import owner
        labels = {labels!r}
        os.setgroups([]); os.setgid(12345); os.setuid(12345)
        labels["belljar.owner.pid_namespace"] = str(os.stat("/proc/self/ns/pid").st_ino)
        assert not os.path.exists("/proc/{child.pid}"), "not hidden"
        print(owner.is_orphan(labels))
    """)
    mount = "mount -t proc -o hidepid=2 proc /proc && exec "
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount + '"$@"', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
    )
    if "not hidden" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this kernel cannot hide processes in one mount of /proc")
    assert done.stdout.strip() == "None", done.stderr


@pytest.mark.root_only
def test_a_proc_of_another_pid_namespace_tells_nothing(dead):
    program = dedent(f"""
        import os
        from belljar.backends.docker import owner
        labels = {dead!r}
        labels["belljar.owner.pid_namespace"] = str(os.stat("/proc/self/ns/pid").st_ino)
        print(owner.is_orphan(labels))
    """)
    done = subprocess.run(  # a new pid namespace that still has the old /proc
        ["unshare", "-p", "-f", sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.stdout.strip() == "None", done.stderr


# --- labels that others wrote ----------------------------------------------------------------


@pytest.mark.parametrize("missing", NEEDED)
def test_a_container_without_all_of_our_labels_is_no_orphan(dead, missing):
    labels = {name: value for name, value in dead.items() if name != missing}
    assert owner.is_orphan(labels) is None
    assert not owner.is_ours(labels)


@pytest.mark.parametrize("name", NEEDED[1:])
@pytest.mark.parametrize(
    "value",
    ["", " ", "-1", "+1", "1 ", "01", "1.0", "1e3", "0x10", "²", "١", "1\n", "9" * 30, "\0", "1_0"],
)
def test_a_malformed_label_makes_no_orphan(dead, name, value):
    assert owner.is_orphan(dead | {name: value}) is None
    assert owner.is_orphan(dead | {name: value}, running=False) is None


@pytest.mark.parametrize("pid", ["0", "-1", str(2**22 + 1), str(2**31), str(2**63)])
def test_a_number_that_is_no_pid_makes_no_orphan(dead, pid):
    assert owner.is_orphan(dead | {"belljar.owner.pid": pid}) is None


@given(st.dictionaries(st.sampled_from(LABELS), st.text(max_size=20)))
def test_no_made_up_labels_are_an_orphans(labels):
    assert owner.is_orphan(labels) is not True
    assert not owner.is_ours(labels)


# --- which containers go ---------------------------------------------------------------------


def container(labels, **fields):
    name = f"/belljar-{(labels or {}).get('belljar.sandbox', 'x')}"
    return parse_container(
        {"Id": "f" * 64, "Names": [name], "Labels": labels, "State": "running"} | fields
    )


def test_only_orphans_are_leftovers(ours, dead):
    orphan = container(dead)
    others = [container(ours), container(None), container({}), container({"belljar.sandbox": "x"})]
    assert find_leftovers([*others, orphan]) == [orphan]


def test_the_labels_of_a_sandbox_under_another_name_make_no_leftover(ours, dead):
    assert find_leftovers([container(dead, Names=["/mine"]), container(dead, Names=[])]) == []
    assert find_leftovers([container(ours, Names=["/mine"])], living=set()) == []


def test_of_our_own_only_what_no_living_sandbox_has_is_left_over(ours):
    mine = container(ours)
    assert find_leftovers([mine]) == []
    assert find_leftovers([mine], living={"a1b2"}) == []
    assert find_leftovers([mine], living=set()) == [mine]


def test_what_another_living_process_has_is_never_left_over(ours, child):
    assert find_leftovers([container(labels_of(child, ours))], living=set()) == []


def test_our_own_builds_are_not_taken_for_left_over_sandboxes(ours, dead):
    build = {"belljar.build": "data"}
    assert find_leftovers([container(ours | build)], living=set()) == []
    assert len(find_leftovers([container(dead | build)])) == 1


def test_a_label_inherited_from_a_built_image_makes_no_build_container(ours):
    assert len(find_leftovers([container(ours | {"belljar.build": ""})], living=set())) == 1


@pytest.mark.parametrize("state", ["running", "paused", "restarting", "removing", None, "new word"])
def test_a_state_that_may_mean_running_counts_as_running(state):
    assert container({}, State=state).running


@pytest.mark.parametrize("state", ["created", "exited", "dead", "configured", "stopped"])
def test_a_container_that_has_not_begun_or_has_ended_does_not_run(state):
    assert not container({}, State=state).running
