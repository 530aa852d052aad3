"""Many sandboxes leave nothing behind, and the census that says so sees what it should see."""

import contextlib
import gc
import os
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import census
import setting
from belljar import Outcome, Sandbox, SandboxError
from belljar.backends.linux import cgroup
from outside import guest_of


def use(number):
    with Sandbox(environment="python") as sandbox:
        assert sandbox.run_code(f"{number} + 1").value == number + 1


def use_hard(number):
    """What must be cleaned up after, of all kinds."""
    with Sandbox(environment="python") as sandbox:
        kind = number % 4
        if kind == 0:
            sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
        elif kind == 1:
            sandbox.run_code("import os; os._exit(1)")
        elif kind == 2:
            sandbox.files.write("f", "x" * 100_000)
            sandbox.commands.run("sleep 1000 &")
        else:
            assert sandbox.run_code("while True: pass", timeout=0.2).outcome is Outcome.timeout


@pytest.fixture
def leaves_nothing(backend):
    at_once = 4 if setting.DOCKER else 20
    with ThreadPoolExecutor(at_once) as pool:  # the runtime and its threads are there to stay
        list(pool.map(use, range(at_once)))
    gc.collect()
    before = census.take()
    yield
    gc.collect()
    # Worker threads of the runtime come and go; descriptors and processes must not.
    assert census.settle(before, timeout=30.0, ignore=["thread"]) == []


@pytest.mark.native_only("a hundred containers are in test_docker_faults.py")
def test_a_hundred_sandboxes_in_a_row_leave_nothing(leaves_nothing):
    for number in range(100):
        use(number)


def test_sandboxes_with_all_kinds_of_leftovers_leave_nothing(leaves_nothing):
    for number in range(12):
        use_hard(number)


def test_twenty_sandboxes_at_once_leave_nothing(leaves_nothing):
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(use, range(20 if setting.DOCKER else 40)))


def test_sandboxes_that_could_not_start_leave_nothing(leaves_nothing):
    for _ in range(5):
        with pytest.raises(SandboxError):
            Sandbox.create(environment="python", limits={"memory": "16m", "open_files": "x"})


def test_a_forgotten_sandbox_leaves_nothing(leaves_nothing):
    forgotten = [Sandbox.create(environment="python") for _ in range(3)]
    with pytest.warns(ResourceWarning) as told:
        census.forget(forgotten, told)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_a_thousand_sandboxes_in_a_row_leave_nothing(leaves_nothing):
    for number in range(1000):
        use(number)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_two_hundred_sandboxes_in_batches_of_twenty_leave_nothing(leaves_nothing):
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(use, range(200)))


# --- the census itself -----------------------------------------------------------------------


def seen_by_the_census(before):
    return census.leaks(before, census.take())


def test_the_census_sees_a_process_and_an_orphan():
    before = census.take()
    child = subprocess.Popen(["sleep", "1000"])
    orphan = subprocess.run(
        ["sh", "-c", "sleep 1000 >&- 2>&- & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(orphan.stdout)
    try:
        found = " ".join(seen_by_the_census(before))
        assert f"process {child.pid} " in found
        assert f"process {pid} " in found
    finally:
        child.kill()
        child.wait()
        os.kill(pid, 9)
        os.waitpid(pid, 0)  # it has become ours
    assert census.settle(before, timeout=30.0) == []


def test_the_census_sees_a_descriptor_a_thread_and_a_temporary_directory():
    before = census.take()
    reading, writing = os.pipe()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-behind")
    thread.start()
    directory = tempfile.mkdtemp()
    try:
        found = seen_by_the_census(before)
        assert "2 descriptor(s) of pipe" in found
        assert "thread left-behind" in found
        assert f"directory entry {directory}" in found
    finally:
        os.close(reading)
        os.close(writing)
        stop.set()
        thread.join()
        os.rmdir(directory)
    assert census.settle(before, timeout=30.0) == []


def test_the_census_sees_shared_memory():
    before = census.take()
    descriptor, path = tempfile.mkstemp(dir="/dev/shm", prefix="belljar-test-")
    os.close(descriptor)
    left = Path(path)
    try:
        assert f"shared memory {left}" in seen_by_the_census(before)  # others may have theirs
    finally:
        left.unlink()


def test_the_census_sees_half_made_environments(tmp_path):
    before = census.take(tmp_path)
    (tmp_path / ".building-abc-x").mkdir()
    (tmp_path / "python-abc").mkdir()
    found = census.leaks(before, census.take(tmp_path))
    assert found == [f"directory entry {tmp_path}/.building-abc-x"]


@pytest.mark.root_only
def test_the_census_sees_a_namespace_held_by_a_descriptor(backend):
    before = census.take()
    with Sandbox(environment="python") as sandbox:
        held = os.open(f"/proc/{guest_of(sandbox).pid}/ns/net", os.O_RDONLY)
    name = os.readlink(f"/proc/self/fd/{held}")
    try:
        assert f"namespace {name}" in seen_by_the_census(before)
    finally:
        os.close(held)


@pytest.mark.root_only
def test_the_census_sees_a_mount(tmp_path):
    before = census.take()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    try:
        assert f"mount {tmp_path} (tmpfs)" in seen_by_the_census(before)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.needs_cgroup
@pytest.mark.native_only("the control groups of a container are the engine's")
def test_the_census_sees_a_control_group_of_a_dead_owner(backend):
    with Sandbox(environment="python") as sandbox:
        sandbox.run_code("1")
        ours = [path for path in census.cgroup_directories() if f"-{os.getpid()}-" in path]
        assert ours
        place = Path(ours[0])
    dead = subprocess.Popen(["true"])
    dead.wait()
    before = census.take()
    words = place.name.split("-")
    words[1:3] = str(dead.pid), "1"
    left = place.with_name("-".join(words))
    # Of another pid namespace: no sweep on this machine takes it away before it is seen.
    foreign = place.with_name("-".join([*words[:3], "1"]))
    foreign.mkdir()
    try:
        assert f"cgroup {foreign}" in seen_by_the_census(before)
    finally:
        foreign.rmdir()
    left.mkdir()
    try:
        cgroup.sweep()
        assert census.settle(before, timeout=30.0) == []
    finally:
        with contextlib.suppress(FileNotFoundError):
            left.rmdir()
