"""How the processes of a native guest are frozen: by signals, or by a control group."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import census
from belljar import SandboxError
from belljar.backends.linux import proc
from belljar.backends.linux.cgroup import tree
from belljar.backends.linux.cgroup.plan import parse_mounts
from belljar.backends.native import watchdog

BUSY = ["sh", "-c", "while :; do :; done"]


@pytest.fixture
def busy():
    with subprocess.Popen(BUSY) as process:
        yield process
        process.kill()


def send(pids, number):
    for pid in pids:
        os.kill(pid, number)
    return len(pids)


def state(process):
    return proc.read_stat(process.pid)[0]


def test_a_process_that_goes_on_is_stopped_again_and_killed_in_the_end(busy):
    stopped = watchdog.Stopped(lambda: [busy.pid], send)
    assert state(busy) == "T"
    stopped.look()
    for _ in range(watchdog.MOST_AWAKE):
        os.kill(busy.pid, signal.SIGCONT)
        census.wait_until(lambda: state(busy) != "T", what="a process that goes on")
        stopped.look()
        census.wait_until(lambda: state(busy) == "T", what="a process that is stopped again")
        assert not stopped.stopped
    os.kill(busy.pid, signal.SIGCONT)
    census.wait_until(lambda: state(busy) != "T", what="a process that goes on")
    stopped.look()
    assert stopped.stopped
    assert busy.wait(10) == -signal.SIGKILL


def test_processes_that_do_not_stop_are_an_error_and_go_on(busy, monkeypatch):
    monkeypatch.setattr(watchdog, "STOP_TIMEOUT", 0.1)
    sent = []
    with pytest.raises(SandboxError, match="do not stop"):
        watchdog.Stopped(lambda: [busy.pid], lambda pids, number: sent.append((pids, number)))
    *stops, last = sent  # again and again, until the time is over
    assert stops == [([busy.pid], signal.SIGSTOP)] * len(stops) != []
    assert last == ([busy.pid], signal.SIGCONT)


def test_those_that_were_stopped_before_are_left_alone(busy):
    os.kill(busy.pid, signal.SIGSTOP)
    census.wait_until(lambda: state(busy) == "T", what="a stopped process")
    sent = []
    watchdog.Stopped(lambda: [busy.pid], lambda pids, number: sent.append(pids)).go_on()
    assert sent == [[], []]


@pytest.mark.root_only
def test_a_group_of_v2_is_frozen_whole_and_can_be_killed_so(busy):
    mounted = parse_mounts(proc.read("/proc/self/mountinfo"))
    point = next((each.point for each in mounted if each.kind == "cgroup2"), None)
    if point is None or not os.access(point, os.W_OK):
        pytest.skip("no hierarchy of v2 is mounted, or it may not be written")
    group = Path(point, f"belljar-test-{os.getpid()}")
    group.mkdir()
    try:
        tree.write(f"{group}/cgroup.procs", str(busy.pid))
        tree.freeze(str(group))
        before = proc.read_stat(busy.pid)[11:13]
        time.sleep(0.3)
        assert proc.read_stat(busy.pid)[11:13] == before
        tree.thaw(str(group))
        census.wait_until(lambda: proc.read_stat(busy.pid)[11:13] != before, what="its CPU time")
        tree.freeze(str(group))
        busy.kill()
        assert busy.wait(10) == -signal.SIGKILL
    finally:
        census.wait_until(lambda: not tree.members(str(group)), what="an empty group")
        group.rmdir()
