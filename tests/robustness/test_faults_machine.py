"""The machine below a sandbox, broken on purpose: stopped processes, groups that vanish, clocks
that jump, caches that are read-only, full or gone, and a host that runs out of what it needs.

docs/reports/faults.md has the table of all faults, these and those that are tested elsewhere.
"""

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import belljar
import census
import inject
from belljar import StartError
from belljar.backends.native import backend as native
from belljar.environment.store import cache_root
from belljar.sandbox import channel
from outside import guest_of

SOURCE = Path(belljar.__file__).parent
pytestmark = [
    pytest.mark.root_only,
    pytest.mark.native_only("a container is the engine's"),
    pytest.mark.timeout(600),
]
LONG = 120.0  # seconds that nothing here takes, however loaded the machine is


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def pid_of(sandbox):
    return guest_of(sandbox).pid


def zygote_of(sandbox):
    return census.process(pid_of(sandbox)).parent


# --- stopped processes -----------------------------------------------------------------------


def test_a_stopped_zygote_fails_a_start_in_time_and_serves_the_next(make_sandbox, monkeypatch):
    first = make_sandbox()
    zygote = zygote_of(first)
    monkeypatch.setattr(native, "HELLO_TIMEOUT", 1.0)
    with stopped(zygote):
        with pytest.raises(StartError, match="did not come up"):
            make_sandbox()
        assert first.run_code("1 + 1").value == 2  # those that are there do not need it
    monkeypatch.undo()
    assert make_sandbox().run_code("2 + 2").value == 4
    # The guest that came too late has found nobody, and has gone.
    mine = {guest_of(first)}
    census.wait_until(
        lambda: {p.pid for p in census.descendants(zygote) if p.parent == zygote} - mine, LONG
    )


def test_a_stopped_init_fails_a_file_operation_in_time(make_sandbox, monkeypatch):
    sandbox = make_sandbox()
    sandbox.files.write("a", "1")
    monkeypatch.setitem(channel.Channel.call.__kwdefaults__, "timeout", 1.0)
    with stopped(pid_of(sandbox)), pytest.raises(belljar.GuestLost, match="did not answer"):
        sandbox.files.read("a")


def test_a_host_whose_zygote_is_stopped_can_end(backend):
    text = """
        import os, signal, sys
        from belljar import Sandbox
        with Sandbox(environment="python") as sandbox:
            guest = sandbox._sandbox._session.guest.pid
            zygote = int(open(f"/proc/{guest}/stat").read().rpartition(")")[2].split()[1])
            os.kill(zygote, signal.SIGSTOP)
        print(zygote)
    """
    ended = host(text)
    assert ended.returncode == 0, ended.stderr
    census.wait_until(lambda: not census.alive(int(ended.stdout)), LONG)


def host(text, *, wrap=(), **variables):
    """A host process of its own, to its end."""
    program = re.sub(r"(?m)^        ", "", text)
    path = os.pathsep.join([str(SOURCE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*wrap, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=LONG,
    )


# --- a guest that dies at the wrong moment ---------------------------------------------------


def test_files_of_a_guest_that_dies_before_they_are_kept_are_said_to_be_missing(
    make_sandbox, tmp_path
):
    sandbox = make_sandbox(workspace=tmp_path)
    guest, inner = pid_of(sandbox), sandbox._sandbox
    judge = inner._judge

    async def judge_and_kill(*args, **options):
        execution = await judge(*args, **options)
        os.kill(guest, signal.SIGKILL)
        census.wait_until(lambda: not census.alive(guest), LONG)
        return execution

    inner._judge = judge_and_kill
    execution = sandbox.run_code("open('a', 'w').write('1')")
    inner._judge = judge
    assert execution.ok
    assert not (tmp_path / "a").exists()
    assert any("not all changes were copied back" in note for note in execution.notes)


@pytest.mark.parametrize("how", ["rollback", "fork"])
def test_a_state_that_was_lost_before_a_checkpoint_is_said_to_be_lost_after_it(make_sandbox, how):
    sandbox = make_sandbox()
    sandbox.run_code("x = 1")
    guest = pid_of(sandbox)
    os.kill(guest, signal.SIGKILL)
    census.wait_until(lambda: not census.alive(guest), LONG)
    if how == "rollback":
        sandbox.rollback(sandbox.checkpoint())
        execution = sandbox.run_code("x")
    else:
        with sandbox.fork() as twin:
            execution = twin.run_code("x")
    assert execution.error.name == "NameError"
    assert not execution.state_preserved


# --- control groups --------------------------------------------------------------------------


@pytest.mark.needs_cgroup
def test_a_control_group_removed_by_hand_harms_no_run_and_leaves_nothing(make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code("x = 1")
    groups = sandbox._sandbox.whereabouts.cgroups
    for group in groups:
        _empty(Path(group))
        os.rmdir(group)
    execution = sandbox.run_code("x")
    assert execution.value == 1
    sandbox.usage()
    sandbox.close()
    assert not any(os.path.exists(group) for group in groups)


def _empty(group):
    """Move what is in a group to the one above."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            (group.parent.parent / "cgroup.procs").write_text(pid)


# --- clocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_jump_of_the_clock_ends_nothing(make_sandbox, monkeypatch, jump):
    limits = {"lifetime": 3600, "idle": 3600, "timeout": 600}
    sandbox = make_sandbox(limits=limits)
    sandbox.run_code("x = 1")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    execution = sandbox.run_code("import time; time.sleep(0.3); x")
    assert execution.value == 1
    assert 0 <= execution.usage.wall < 600


# Where the time of day is written down or compared with that of a file, and ends nothing.
TIME_OF_DAY = {
    "backends/docker/guest.py",
    "backends/docker/images/resolve.py",
    "backends/docker/owner.py",
    "environment/store.py",
    "guest/processes.py",  # shown to people
    "observe/audit.py",
    "observe/presence.py",
    "observe/sampling.py",
    "observe/live_sandboxes.py",
    "record/recorder.py",
    "sandbox/sandbox.py",
}


def test_no_time_out_depends_on_the_time_of_day():
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "conformance" not in path.parts and "time.time()" in path.read_text()
    }
    assert found == TIME_OF_DAY


# --- caches ----------------------------------------------------------------------------------

PRIVATE = ["unshare", "--mount", "--propagation", "private", "sh", "-euc"]
USE = """
        import belljar
        from belljar import Environment
        print(belljar.run("6 * 7", environment=Environment(name={name!r})).value)
    """


@pytest.fixture
def cache(backend, tmp_path):
    """A cache with one environment in it."""
    path = tmp_path / "cache"
    made = host(USE.format(name="known"), BELLJAR_CACHE=str(path))
    assert made.stdout == "42\n", made.stderr
    return path


def in_private(mount, name, cache):
    """A host in mounts of its own."""
    wrap = [*PRIVATE, f'{mount}\nexec "$@"', "sh"]
    return host(USE.format(name=name), wrap=wrap, BELLJAR_CACHE=str(cache))


def test_a_read_only_cache_serves_what_it_has_and_refuses_the_rest(cache):
    mount = f"mount --bind {cache} {cache}; mount -o remount,ro,bind {cache}"
    assert in_private(mount, "known", cache).stdout == "42\n"
    shutil.rmtree(cache / "envs")
    (cache / "envs").mkdir()
    refused = in_private(mount, "known", cache)
    assert "EnvironmentBuildError: cannot use the cache directory" in refused.stderr
    assert "hint: set BELLJAR_CACHE" in refused.stderr


@pytest.mark.parametrize("room", [1, 4, 8])  # files and directories
def test_a_full_cache_is_a_clear_error(backend, tmp_path, room):
    cache = tmp_path / "full"
    cache.mkdir()
    mount = f"mount -t tmpfs -o nr_inodes={room},mode=0755 none {cache}"
    refused = in_private(mount, "new", cache)
    assert refused.returncode != 0
    assert "belljar.errors.EnvironmentBuildError" in refused.stderr
    assert os.strerror(errno.ENOSPC) in refused.stderr


def test_a_cache_deleted_under_a_sandbox_harms_neither_it_nor_the_next_host(cache):
    text = """
        import os, shutil
        from belljar import Environment, Sandbox
        with Sandbox(environment=Environment(name="known")) as sandbox:
            sandbox.run_code("x = 42")
            shutil.rmtree(os.environ["BELLJAR_CACHE"])
            print(sandbox.run_code("x").value)
            try:
                with Sandbox(environment=Environment(name="known")) as another:
                    print(another.run_code("6 * 7").value)
            except Exception as error:
                print(type(error).__module__)
    """
    seen = host(text, BELLJAR_CACHE=str(cache))
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout in ("42\n42\n", "42\nbelljar.errors\n")
    assert host(USE.format(name="known"), BELLJAR_CACHE=str(cache)).stdout == "42\n"


# --- a host without resources ----------------------------------------------------------------

UNTRACED = inject.Point("host", "NONE")


@pytest.fixture(scope="module")
def nursery(backend):
    with inject.Nursery(cache_root()) as made:
        yield made


@pytest.mark.parametrize("most", [10, 16, 20, 24])
def test_a_host_out_of_descriptors_is_told_so(nursery, most):
    told = nursery.tell(UNTRACED, rlimits={"RLIMIT_NOFILE": [most, most]}, recovers=False)
    assert told.problems == ()


@pytest.mark.needs_cgroup
@pytest.mark.parametrize("more", [0, 1, 3, 5])
def test_a_host_out_of_processes_is_told_so(nursery, more):
    told = nursery.tell(UNTRACED, during=in_group("pids", "pids.max", 1 + more), recovers=False)
    assert told.problems == ()


@pytest.mark.needs_cgroup
def test_a_host_out_of_memory_leaves_nothing(nursery):
    """Whom the kernel kills is its choice: the host or its zygote."""
    if not Path("/sys/fs/cgroup/memory").is_dir():
        pytest.skip("v2: its memory would have to be counted from its start")
    limit = in_group("memory", "memory.limit_in_bytes", 12 * 1024 * 1024)
    told = nursery.tell(UNTRACED, during=limit, recovers=False)
    assert told.problems == ()


def in_group(controller, file, value):
    """Put the host, and what it starts from then on, in a group with a limit."""

    def enter(pid, guest):
        v1 = Path("/sys/fs/cgroup", controller)
        group = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"faults-{pid}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
        (group / file).write_text(str(value))
        return lambda: census.wait_until(lambda: _gone(group), LONG)

    return enter


def _gone(group):
    """With the groups that a killed host has made in it: the next host that is put in there would
    sweep them."""
    try:
        for path, _, _ in os.walk(group, topdown=False):
            os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.mark.skipif(inject.ABSENT, reason="there is no strace here")
def test_a_slow_disk_only_takes_time(nursery):
    slow = inject.Point("host", "SLOW", "fsync,rename,mkdir,unlink,ftruncate,flock,memfd_create")
    told = nursery.tell(slow)
    assert told.problems == ()
    assert told.how == "all right"
