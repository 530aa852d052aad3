"""A sandbox's life: start, options, use from many sides, ends. What holds it is measured here."""

import asyncio
import gc
import os
import re
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest

import belljar
import census
import gvisor
import setting
from belljar import (
    Environment,
    ExecutionError,
    ExecutionTimeout,
    InvalidOption,
    LimitNotEnforceable,
    Limits,
    Mount,
    Outcome,
    Sandbox,
    SandboxClosed,
    SandboxError,
)
from belljar.backends.linux import cgroup
from belljar.backends.linux.cgroup import scope

pytestmark = pytest.mark.contract("native", "docker", "gvisor")

LOOP = "while True: pass"


class Running:
    """A call in another thread, and when it has begun: `with` waits for its end."""

    def __init__(self, function, *args, **options):
        self._result = None
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(function, args, options))
        self._thread.start()

    def _run(self, function, args, options):
        try:
            self._result = function(*args, **options)
        except BaseException as error:
            self._error = error

    def result(self, timeout=60.0):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._result


def start_cell(sandbox, code):
    """Run a cell in another thread; returns when it has begun."""
    begun = threading.Event()
    call = Running(sandbox.run_code, f"print('begun')\n{code}", on_stdout=lambda text: begun.set())
    assert begun.wait(60), "the cell did not begin"
    return call


# --- one shot and start ----------------------------------------------------------------------


def test_run_is_one_shot(backend):
    execution = belljar.run("print('hi'); 6 * 7", environment="python", timeout=5)
    assert (execution.value, execution.stdout, execution.ok) == (42, "hi\n", True)


def test_run_takes_options_of_both_and_refuses_others(backend):
    seen = []
    execution = belljar.run(
        "import os; print(os.environ['A'])",
        environment="python",
        env={"A": "b"},
        on_stdout=seen.append,
        limits={"output": "1k"},
    )
    assert execution.ok
    assert "".join(seen) == "b\n"
    with pytest.raises(InvalidOption, match="timout") as caught:
        belljar.run("1", timout=3)
    assert "timeout" in caught.value.hint


def test_a_sandbox_starts_at_first_use_and_not_before(backend):
    sandbox = Sandbox(environment="python")
    try:
        assert "not started" in repr(sandbox)
        with pytest.raises(SandboxError, match="no guest"):
            sandbox.isolation  # noqa: B018
        assert sandbox.run_code("1 + 1").value == 2
        assert "running" in repr(sandbox)
    finally:
        sandbox.close()
    assert "closed" in repr(sandbox)


def test_a_sandbox_that_never_started_closes(backend):
    sandbox = Sandbox(environment="python")
    sandbox.close()
    with pytest.raises(SandboxClosed):
        sandbox.run_code("1")


def test_create_starts_at_once(make_sandbox, outside):
    assert outside(make_sandbox()).alive()


def test_the_with_block_closes_also_on_an_error(backend, outside):
    def fail():
        with Sandbox(environment="python") as sandbox:
            seen.append(outside(sandbox))
            raise KeyError("mine")

    seen = []
    with pytest.raises(KeyError, match="mine"):
        fail()
    assert not seen[0].alive()


def test_identity_and_metadata_are_the_callers(make_sandbox):
    given = {"user": "ann"}
    a, b = make_sandbox(metadata=given), make_sandbox()
    given["user"] = "changed"
    assert a.metadata == {"user": "ann"}
    with pytest.raises(TypeError):
        a.metadata["user"] = "x"
    assert a.id != b.id
    assert re.fullmatch(r"[a-z0-9-]+", a.id)
    assert a.id in repr(a)
    assert a.environment.name == "python"
    assert a.limits == Limits()


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wrong", "nearest"),
    [
        ({"enviroment": "python"}, "enviroment", "environment"),
        ({"limit": None}, "limit", "limits"),
        ({"backend": "nativ"}, "nativ", "native"),
        ({"network": "non"}, "non", "none"),
        ({"environment": "pyton"}, "pyton", "python"),
        ({"limits": {"memmory": "1g"}}, "memmory", "memory"),
    ],
)
def test_what_is_unknown_is_refused_and_the_nearest_named(options, wrong, nearest):
    for kind in (Sandbox, belljar.AsyncSandbox):
        with pytest.raises(InvalidOption, match=f"'{wrong}'") as caught:
            kind(**options)
        assert f"'{nearest}'" in caught.value.hint


def test_create_refuses_the_same(backend):
    with pytest.raises((InvalidOption, TypeError), match="enviroment"):
        Sandbox.create(enviroment="python")


@pytest.mark.parametrize(
    "options",
    [
        {"strict": "yes"},
        {"env": {"A": 1}},
        {"env": "A=1"},
        {"metadata": {"a": 1}},
        {"limits": 5},
        {"limits": {"memory": "1x"}},
        {"environment": 5},
        {"backend": None},
    ],
)
def test_a_value_that_cannot_be_is_refused_at_once(options):
    with pytest.raises(InvalidOption):
        Sandbox(**options)


@pytest.mark.parametrize("code", [None, b"1", 1, ["1"]])
def test_code_that_is_no_text_is_refused(sandbox, code):
    with pytest.raises(InvalidOption, match="code"):
        sandbox.run_code(code)


def test_code_that_is_too_long_is_refused_and_the_sandbox_goes_on(sandbox):
    with pytest.raises(InvalidOption, match="bytes"):
        sandbox.run_code("#" * (17 << 20))
    assert sandbox.run_code("#" * (15 << 20) + "\n1 + 1").value == 2


def test_options_given_as_a_mapping_are_limits(make_sandbox):
    sandbox = make_sandbox(limits={"timeout": 7, "output": "2k"})
    assert (sandbox.limits.timeout, sandbox.limits.output) == (7.0, 2048)


def test_an_environment_object_will_do(make_sandbox):
    sandbox = make_sandbox(environment=Environment("python"))
    assert sandbox.run_code("1 + 1").value == 2


# --- isolation -------------------------------------------------------------------------------


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@gvisor.OUTSIDE
def test_isolation_says_what_is_true_of_the_guest_seen_from_outside(sandbox, outside):
    isolation = sandbox.isolation
    worker = outside(sandbox).find(sandbox.run_code("import os; os.getpid()").value)
    for pid in (outside(sandbox).pid, worker.pid):
        facts = status(pid)
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
            own = os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
            assert own or (setting.DOCKER and kind == "user"), kind
            assert (isolation.layer(f"{kind} namespace").state == "enforced") == own
        assert facts["Seccomp"] == "2"
        assert facts["NoNewPrivs"] == "1"
        assert {facts[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        # An engine counts the group of a container among its supplementary ones.
        assert set(facts["Groups"].split()) <= {"65534", *facts["Gid"].split()} or not setting.ROOT
    for name in ("seccomp", "no_new_privs", "capabilities", "uid"):
        assert isolation.layer(name).state == "enforced"
    assert isolation.backend == setting.BACKEND


@pytest.mark.root_only
@gvisor.OUTSIDE
def test_every_guest_of_root_has_its_own_host_uid(make_sandbox, outside):
    uids = [set(status(outside(make_sandbox()).pid)["Uid"].split()) for _ in range(3)]
    assert all(len(uid) == 1 for uid in uids)
    numbers = {int(uid.pop()) for uid in uids}
    assert len(numbers) == 3
    assert min(numbers) >= 0x70000000


@pytest.mark.user_only
def test_a_guest_of_an_ordinary_user_is_that_user_on_the_host(sandbox, outside):
    assert set(status(outside(sandbox).pid)["Uid"].split()) == {str(os.geteuid())}


def test_every_limit_has_a_line_that_says_how_it_is_kept(sandbox):
    isolation = sandbox.isolation
    assert {layer.name for layer in isolation.limits} == set(Limits().to_dict())
    for layer in (*isolation.layers, *isolation.limits):
        assert layer.state in ("enforced", "best-effort", "absent")
        assert layer.detail
        if layer.state != "enforced":
            assert layer.remedy, layer
    assert isolation.to_dict()["backend"] == setting.BACKEND
    assert isolation.enforced == all(
        layer.state == "enforced" for layer in (*isolation.layers, *isolation.limits)
    )


def cgroup_file(pid, controller, names):
    """The value that the kernel keeps for the control group of a process (v1 or v2)."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for fields in mounts:
            kind = fields[fields.index("-") + 1]
            options = fields[-1].split(",")
            v1 = kind == "cgroup" and controller in controllers.split(",") and controller in options
            v2 = kind == "cgroup2" and controllers == ""
            if v1 or v2:
                for name in names:
                    file = Path(fields[4] + path) / name
                    if file.exists():
                        return file.read_text().strip()
    raise AssertionError(f"no {controller} control group")


@pytest.mark.needs_cgroup
def test_the_kernel_keeps_the_limits_of_the_guest(make_sandbox, outside):
    limits = Limits(memory="100m", processes=20, cpus=0.5)
    sandbox = make_sandbox(limits=limits, strict=not setting.GVISOR)
    pid = outside(sandbox).pid
    memory = cgroup_file(pid, "memory", ["memory.limit_in_bytes", "memory.max"])
    assert int(memory) == 100 << 20
    if not setting.GVISOR:
        assert int(cgroup_file(pid, "pids", ["pids.max"])) == 21  # and init
        assert sandbox.isolation.layer("processes").state == "enforced"
    quota = cgroup_file(pid, "cpu", ["cpu.max", "cpu.cfs_quota_us"]).split()
    period = quota[1] if len(quota) == 2 else cgroup_file(pid, "cpu", ["cpu.cfs_period_us"])
    assert int(quota[0]) / int(period) == pytest.approx(0.5)
    for name in ("memory", "cpus"):
        assert sandbox.isolation.layer(name).state == "enforced"


@pytest.mark.user_only
def test_without_control_groups_a_memory_limit_is_best_effort_with_a_warning(make_sandbox):
    if make_sandbox().isolation.layer("memory").state == "enforced":
        pytest.skip("this user has a delegated control group")
    with pytest.warns(RuntimeWarning, match=r"limit memory.*strict=True refuses"):
        sandbox = make_sandbox(limits=Limits(memory="100m"))
    assert sandbox.isolation.layer("memory").state == "best-effort"
    assert not sandbox.isolation.enforced
    make_sandbox(limits=Limits(memory="100m"), strict=False)  # without a warning
    with pytest.raises(LimitNotEnforceable, match="memory") as caught:
        make_sandbox(strict=True)
    assert "strict=False" in caught.value.hint


@pytest.mark.user_only
def test_a_manager_that_gives_no_scope_is_the_reason_in_isolation(tmp_path, monkeypatch):
    if cgroup.detect().controllers:
        pytest.skip("this user has a delegated control group")
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/private").touch()
    busctl = tmp_path / "busctl"
    busctl.write_text("#!/bin/sh\necho 'Failed to connect to bus: no medium found' >&2; exit 1\n")
    busctl.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(scope, "_busctl", lambda: str(busctl))
    mounts = [Mount(tmp_path, "/refused")]  # so that it has a zygote of its own
    with Sandbox(environment="python", mounts=mounts) as sandbox:
        memory = sandbox.isolation.layer("memory")
        assert sandbox.run_code("6 * 7").value == 42
    assert memory.state == "best-effort"
    assert "no medium found" in memory.detail


def test_a_refused_start_leaves_nothing(backend):
    with Sandbox(environment="python") as sandbox:
        sandbox.run_code("1")
    before = census.take()
    broken = Environment("broken", preload=["no_such_module_at_all"])

    def start() -> None:
        if setting.DOCKER:  # only a container that waits preloads
            with belljar.Pool(environment=broken, min_ready=1, max_total=1) as pool:
                pool.warm_up()
        Sandbox.create(environment=broken)

    for _ in range(3):
        with pytest.raises(SandboxError, match="no_such_module_at_all"):
            start()
    assert census.settle(before, timeout=30.0, ignore=["thread AnyIO"]) == []


@gvisor.PROCESSES
def test_processes_are_limited_and_the_sandbox_goes_on(make_sandbox, outside):
    sandbox = make_sandbox(limits=Limits(processes=10))
    seen = outside(sandbox)
    code = dedent(
        """
        import os, time
        made = 0
        try:
            while True:
                if os.fork() == 0: time.sleep(1000)
                made += 1
        except OSError: pass
        made
        """
    )
    execution = sandbox.run_code(code, timeout=20)
    assert execution.ok, execution
    assert 0 < execution.value < 10
    assert len(seen.processes()) <= 11  # and init
    sandbox.restart()
    assert sandbox.run_code("1 + 1").value == 2


def test_usage_is_measured(sandbox):
    execution = sandbox.run_code(
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
        "hoard = bytearray(b'x' * 50_000_000)\nprint('x')"
    )
    usage = execution.usage
    assert usage.wall >= 0.3
    assert usage.output_bytes == 2
    assert usage.cpu is None or 0.25 < usage.cpu < 5
    assert usage.peak_memory is None or usage.peak_memory > 50_000_000


# --- the callers' ways -----------------------------------------------------------------------


def test_interrupt_from_another_thread_cancels_the_cell(sandbox):
    sandbox.run_code("x = 1")
    call = start_cell(sandbox, LOOP)
    sandbox.interrupt()
    execution = call.result()
    assert execution.outcome is Outcome.cancelled
    assert execution.state_preserved
    assert execution.stdout.rstrip() == "begun"
    assert sandbox.run_code("x").value == 1


def test_interrupt_within_a_callback_cancels_the_cell(sandbox):
    execution = sandbox.run_code(
        f"print('x')\n{LOOP}", on_stdout=lambda text: sandbox.interrupt(), timeout=60
    )
    assert execution.outcome is Outcome.cancelled
    assert execution.usage.wall < 50


def test_interrupt_when_nothing_runs_does_nothing(sandbox):
    sandbox.interrupt()
    assert sandbox.run_code("1 + 1").value == 2


def test_a_cell_may_catch_the_interrupt_and_finish(sandbox):
    """It says that it is ready by a file: print() could be the place of the interrupt."""
    code = f"try:\n    open('ready', 'w').close()\n    {LOOP}\nexcept KeyboardInterrupt: pass\n"
    call = Running(sandbox.run_code, f"{code}\n'finished'")
    census.wait_until(lambda: sandbox.files.exists("ready"), what="the start of the cell")
    sandbox.interrupt()
    execution = call.result()
    assert (execution.outcome, execution.value) == (Outcome.ok, "finished")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("stream", ["on_stdout", "on_stderr", "on_result"])
def test_a_callback_that_fails_ends_the_cell_and_its_error_is_raised(sandbox, stream):
    sandbox.run_code("x = 1")

    def fail(item):
        raise RuntimeError("mine")

    code = f"import sys\nprint(1)\nprint(2, file=sys.stderr)\ndisplay(3)\n{LOOP}"
    before = time.monotonic()
    with pytest.raises(RuntimeError, match="mine"):
        sandbox.run_code(code, **{stream: fail}, timeout=60)
    assert time.monotonic() - before < 50
    assert sandbox.run_code("x").value == 1


def test_a_callback_may_run_code_in_another_sandbox(make_sandbox):
    a, b = make_sandbox(), make_sandbox()
    seen = []
    a.run_code("display(20)", on_result=lambda r: seen.append(b.run_code(f"{r.text} + 1").value))
    assert seen == [21]


def test_a_callback_runs_in_the_thread_of_the_caller(sandbox):
    seen = set()
    sandbox.run_code("print(1)", on_stdout=lambda text: seen.add(threading.get_ident()))
    assert seen == {threading.get_ident()}


def test_a_callback_that_is_no_function_is_refused_before_anything_runs(sandbox):
    with pytest.raises((InvalidOption, TypeError)):
        sandbox.run_code("open('ran', 'w').close(); print(1)", on_stdout="print")
    assert not sandbox.files.exists("ran")


def test_an_async_callback_of_the_blocking_sandbox_is_run_or_refused(sandbox):
    seen = []

    async def later(text):
        seen.append(text)

    try:
        sandbox.run_code("print(1)", on_stdout=later)
    except SandboxError:
        return
    assert "".join(seen) == "1\n"


def test_one_sandbox_may_be_used_from_many_threads(sandbox):
    sandbox.run_code("n = 0")

    def work(index):
        for step in range(5):
            assert sandbox.run_code("n += 1").ok
            sandbox.files.write(f"{index}", str(step))
            assert sandbox.commands.run(["echo", str(index)]).stdout == f"{index}\n"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sandbox.run_code("n").value == 40
    assert len(sandbox.files.list()) == 8


def test_cells_of_many_threads_do_not_mix_their_output(sandbox):
    def work(index):
        return sandbox.run_code(f"for _ in range(50): print({index})").stdout

    with ThreadPoolExecutor(8) as pool:
        for index, stdout in enumerate(pool.map(work, range(8))):
            assert stdout == f"{index}\n" * 50


def test_a_sandbox_made_in_a_thread_that_ended_still_works(backend):
    call = Running(Sandbox.create, environment="python")
    with call.result() as sandbox:
        gc.collect()
        assert sandbox.run_code("1 + 1").value == 2


def test_sandboxes_do_not_see_each_other(make_sandbox, outside):
    a, b = make_sandbox(), make_sandbox()
    a.run_code("secret = 1")
    a.files.write("secret", "x")
    a.files.write("/tmp/secret", "x")
    assert b.run_code("'secret' in globals()").value is False
    assert not b.files.exists("secret")
    assert not b.files.exists("/tmp/secret")
    kinds = {"mnt", "pid", "net", "ipc", "user"}
    kinds -= {"pid"} if setting.GVISOR else {"user"} if setting.DOCKER else set()
    for kind in kinds:
        ours = {os.readlink(f"/proc/{outside(s).pid}/ns/{kind}") for s in (a, b)}
        assert len(ours) == 2, kind
    seen = b.run_code("import os; sorted(int(n) for n in os.listdir('/proc') if n.isdigit())").value
    assert len(seen) == 2


def test_a_blocking_sandbox_works_inside_a_running_event_loop(backend):
    async def main():
        with Sandbox(environment="python") as sandbox:
            return sandbox.run_code("1 + 1").value

    assert asyncio.run(main()) == 2


# --- restart ---------------------------------------------------------------------------------


def test_restart_gives_a_fresh_interpreter_and_keeps_files(sandbox, outside):
    sandbox.run_code("x = 1; import subprocess; left = subprocess.Popen(['sleep', '1000'])")
    sandbox.files.write("f", "kept")
    sandbox.restart()
    seen = outside(sandbox)
    census.wait_until(
        lambda: not any(p.name == "sleep" for p in seen.processes()), what="the end of sleep"
    )
    execution = sandbox.run_code("'x' in globals(), open('f').read()")
    assert execution.value == (False, "kept")
    assert execution.state_preserved  # what was asked for is no loss


def test_restart_ends_a_cell_that_runs(sandbox):
    call = start_cell(sandbox, LOOP)
    sandbox.restart()
    execution = call.result()
    assert execution.outcome in (Outcome.killed, Outcome.cancelled)
    assert not execution.state_preserved
    assert sandbox.run_code("1 + 1").value == 2


def test_many_restarts_leave_nothing(sandbox, outside):
    for n in range(10):
        sandbox.run_code(f"x = {n}")
        sandbox.restart()
    assert sandbox.run_code("'x' in globals()").value is False
    seen = outside(sandbox)
    census.wait_until(lambda: len(seen.processes()) == 2, 30.0, "only init and worker")


# --- ends ------------------------------------------------------------------------------------


def test_close_may_be_called_twice_and_ends_everything(make_sandbox, outside):
    sandbox = make_sandbox()
    sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
    seen = outside(sandbox)
    inside = [(p.pid, p.started) for p in seen.processes()]
    assert len(inside) == 3
    sandbox.close()
    assert not any(census.alive(*p) for p in inside)
    sandbox.close()
    sandbox.kill()


def test_a_closed_sandbox_says_so(make_sandbox):
    sandbox = make_sandbox()
    sandbox.close()
    for use in (
        lambda: sandbox.run_code("1"),
        lambda: sandbox.files.read("x"),
        lambda: sandbox.files.exists("x"),
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.restart(),
        lambda: sandbox.interrupt(),
        lambda: sandbox.start(),
        lambda: sandbox.isolation,
    ):
        with pytest.raises(SandboxClosed):
            use()


@pytest.mark.parametrize("how", ["close", "kill"])
def test_close_while_a_cell_runs_in_another_thread_ends_it(make_sandbox, outside, how):
    sandbox = make_sandbox()
    seen = outside(sandbox)
    call = start_cell(sandbox, LOOP)
    getattr(sandbox, how)()
    execution = call.result()
    assert execution.outcome is Outcome.killed
    assert execution.stdout.rstrip() == "begun"
    assert not execution.state_preserved
    assert not seen.alive()


def test_close_while_a_cell_waits_for_its_turn_refuses_it(make_sandbox):
    sandbox = make_sandbox()
    first = start_cell(sandbox, LOOP)
    second = Running(sandbox.run_code, "1 + 1")
    sandbox.close()
    assert first.result().outcome is Outcome.killed
    with pytest.raises(SandboxClosed):
        second.result()


def test_close_while_a_command_runs_ends_it(make_sandbox):
    sandbox = make_sandbox()
    begun = threading.Event()
    call = Running(sandbox.commands.run, "echo x; sleep 1000", on_stdout=lambda text: begun.set())
    assert begun.wait(60)
    sandbox.close()
    assert not call.result().ok


def test_closing_from_many_threads_at_once_is_fine(make_sandbox):
    sandbox = make_sandbox()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sandbox.close(), range(8)))


def test_a_sandbox_that_is_forgotten_warns_and_its_guest_dies(backend, outside):
    forgotten = [Sandbox.create(environment="python")]
    seen = outside(forgotten[0])
    with pytest.warns(ResourceWarning, match="not closed") as told:
        census.forget(forgotten, told)
    census.wait_until(lambda: not seen.alive(), what="the end of the guest")


def test_a_closed_sandbox_does_not_warn(backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sandbox = Sandbox.create(environment="python")
        sandbox.close()
        del sandbox
        gc.collect()


def test_the_end_of_its_lifetime_ends_a_sandbox_even_while_it_works(make_sandbox, outside):
    sandbox = make_sandbox(limits=Limits(lifetime=5.0))
    seen = outside(sandbox)
    execution = sandbox.run_code(f"print('x')\n{LOOP}", timeout=60)
    assert execution.outcome is Outcome.killed
    assert execution.usage.wall < 50
    assert any("lifetime" in note for note in execution.notes)
    census.wait_until(lambda: not seen.alive(), what="the end of the guest")
    with pytest.raises(SandboxClosed, match="lifetime"):
        sandbox.run_code("1")


def test_an_idle_sandbox_ends_and_a_busy_one_does_not(make_sandbox, outside):
    sandbox = make_sandbox(limits=Limits(idle=3.0))
    seen = outside(sandbox)
    assert sandbox.run_code("import time; time.sleep(4)").ok
    assert sandbox.commands.run("sleep 4").ok
    assert sandbox.run_code("1 + 1").value == 2
    census.wait_until(lambda: not seen.alive(), 30.0, "the end of the guest")
    with pytest.raises(SandboxClosed, match="idle"):
        sandbox.run_code("1")


# --- a guest that is lost --------------------------------------------------------------------


def test_a_guest_killed_from_outside_between_cells_is_started_anew(sandbox, outside):
    sandbox.run_code("x = 1")
    sandbox.files.write("f", "x")
    os.kill(outside(sandbox).pid, signal.SIGKILL)
    execution = sandbox.run_code("'x' in globals()")
    if execution.outcome is Outcome.lost:  # it was noticed only when the cell was sent
        execution = sandbox.run_code("'x' in globals()")
    assert execution.value is False
    assert not execution.state_preserved
    assert not sandbox.files.exists("f")
    assert sandbox.run_code("1").state_preserved


def test_a_guest_killed_from_outside_during_a_cell_is_lost(sandbox, outside):
    seen = outside(sandbox)
    call = start_cell(sandbox, LOOP)
    os.kill(seen.pid, signal.SIGKILL)
    execution = call.result()
    assert execution.outcome is Outcome.lost
    assert execution.stdout.rstrip() == "begun"
    assert not execution.state_preserved
    assert any("lost" in note for note in execution.notes)
    assert sandbox.run_code("1 + 1").value == 2


@pytest.mark.native_only("a container has no zygote")
def test_the_death_of_the_zygote_ends_its_guests_and_the_next_sandbox_has_a_new_one(
    make_sandbox, outside
):
    a, b = make_sandbox(), make_sandbox()
    seen = [outside(a), outside(b)]
    zygote = census.process(seen[0].pid).parent
    os.kill(zygote, signal.SIGKILL)
    census.wait_until(lambda: not any(s.alive() for s in seen), what="the end of the guests")
    assert make_sandbox().run_code("1 + 1").value == 2
    execution = a.run_code("1 + 1")
    if execution.outcome is Outcome.lost:
        execution = a.run_code("1 + 1")
    assert (execution.value, execution.state_preserved) == (2, False)


def test_a_stopped_guest_does_not_block_close(make_sandbox, outside):
    sandbox = make_sandbox()
    seen = outside(sandbox)
    os.kill(seen.pid, signal.SIGSTOP)
    before = time.monotonic()
    sandbox.close()
    assert time.monotonic() - before < 20  # and is no error, as it would be then
    assert not seen.alive()


def test_a_stopped_guest_does_not_outlast_the_time_out_of_a_cell(sandbox, outside):
    os.kill(outside(sandbox).pid, signal.SIGSTOP)
    execution = sandbox.run_code("1 + 1", timeout=0.5)
    assert execution.outcome in (Outcome.timeout, Outcome.lost)
    assert execution.usage.wall < 25
    assert not execution.state_preserved


# --- errors for those who want them ----------------------------------------------------------


def test_raise_for_outcome_raises_what_happened(sandbox):
    assert sandbox.run_code("1").raise_for_outcome().value == 1
    with pytest.raises(ExecutionError, match="ZeroDivisionError") as caught:
        sandbox.run_code("1 / 0").raise_for_outcome()
    assert caught.value.execution.outcome is Outcome.error
    with pytest.raises(ExecutionTimeout):
        sandbox.run_code(LOOP, timeout=0.3).raise_for_outcome()
    with pytest.raises(MemoryError):
        sandbox.run_code("bytearray(1 << 50)").raise_for_outcome()


def test_an_execution_is_json(sandbox):
    code = "import sys\nprint('\\x1b[31m\\ud800'); print(2, file=sys.stderr); [1, b'2']"
    text = sandbox.run_code(code).to_json()
    assert text.isascii()
    assert '"outcome": "ok"' in text


MODELS_IMPORT = """
import bs4, duckdb, httpx, io, jinja2, lxml.etree, networkx, numpy, openpyxl, pandas, PIL.Image
import plotly.express, polars, requests, scipy.stats, seaborn, sklearn.linear_model, sympy
import statsmodels.formula.api, tabulate, tqdm, xlsxwriter, yaml

frame = pandas.DataFrame({"shop": ["a", "a", "b"], "sold": [1, 2, 6]})
frame.to_excel("book.xlsx", index=False)
found = {
    "excel": int(pandas.read_excel("book.xlsx")["sold"].sum()),
    "xlsxwriter": pandas.ExcelWriter("other.xlsx", engine="xlsxwriter").close(),
    "sql": duckdb.sql("select sum(sold) from frame where shop = 'a'").fetchall()[0][0],
    "polars": polars.DataFrame({"a": [1, 2]})["a"].sum(),
    "slope": round(statsmodels.formula.api.ols("sold ~ shop", frame).fit().params["shop[T.b]"], 1),
    "root": str(sympy.solve(sympy.Symbol("x") ** 2 - 4)[1]),
    "path": networkx.shortest_path(networkx.path_graph(3), 0, 2),
    "html": bs4.BeautifulSoup("<p>text</p>", "lxml").p.text,
    "table": pandas.read_html(io.StringIO(frame.to_html()))[0].shape,
    "markdown": "| a " in frame.to_markdown(),
    "yaml": yaml.safe_load("a: 1"),
    "heatmap": bool(seaborn.heatmap([[1, 2]]).get_figure()),
    "bar": plotly.express.bar(frame, x="shop", y="sold").data[0].type,
    "progress": list(tqdm.tqdm([1], disable=True)),
    "picture": PIL.Image.new("RGB", (1, 1)).size,
}
found
"""


def test_data_has_what_models_import(data_sandbox):
    execution = data_sandbox.run_code(MODELS_IMPORT, timeout=120).raise_for_outcome()
    assert execution.value == {
        "excel": 9,
        "xlsxwriter": None,
        "sql": 3,
        "polars": 3,
        "slope": 4.5,
        "root": "2",
        "path": [0, 1, 2],
        "html": "text",
        "table": (3, 3),
        "markdown": True,
        "yaml": {"a": 1},
        "heatmap": True,
        "bar": "bar",
        "progress": [1],
        "picture": (1, 1),
    }
