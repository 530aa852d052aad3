"""Engines that die, hang or fill up, owners that are killed: clear results, and nothing is left.

On an engine of its own (second_engine.py). After each test a census shows that the engine has
nothing it had not before: containers, networks, volumes, images, mounts, directories.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import anyio
import pytest

import census
import docker_census
import setting
from belljar import AsyncSandbox, Docker, Outcome, Sandbox, SandboxError, runtime
from belljar.backends.docker import backend as backend_module
from belljar.backends.docker import cleanup, health
from belljar.backends.docker.client.engine import Engine
from outside import guest_of
from second_engine import SecondEngine, why_none

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

IMAGE = os.environ.get("BELLJAR_DOCKER_BASE", "belljar-base:bookworm")
BOUND = 60  # seconds: whoever waits longer than this hangs
SLEEP = "import time; print('begun', flush=True); time.sleep(1000)"
MB = 1 << 20


@pytest.fixture(scope="module")
def machine(backend):
    """What a second engine needs; without it, the tests are skipped or fail as promised."""
    if why := why_none():
        if setting.NAME in setting.REQUIRED and setting.ROOT:
            pytest.fail(f"this run promised {setting.NAME}, and a second engine is missing: {why}")
        pytest.skip(why)


@pytest.fixture(scope="module")
def second(machine):
    engine = SecondEngine()
    try:
        engine.start()
        engine.load(IMAGE)
        yield engine
    finally:
        runtime.shutdown()
        engine.close()


@pytest.fixture
def engine(second):
    """Up at the start of each test, and without leftovers at its end."""
    second.ensure_up()
    before = docker_census.take(second.host)
    yield second
    second.ensure_up()
    # What was owed to an engine that was away is tried again after seconds, then half a minute.
    assert second.settle(before, timeout=BOUND) == []


@pytest.fixture
def options(engine):
    return options_of(engine)


def options_of(engine, image=IMAGE):
    docker = Docker(image=image, host=engine.host, pull="never", runtime=setting.NAME[7:])
    return {"backend": docker, "environment": "python"}


@pytest.fixture
def make(options):
    """Makes sandboxes on the second engine, and closes them all."""
    with contextlib.ExitStack() as stack:

        def make(**more):
            sandbox = Sandbox.create(**options, **more)
            stack.callback(sandbox.close)
            return sandbox

        yield make


class Running:
    """A cell under way in a thread; entered when it has begun."""

    def __init__(self, sandbox, code=SLEEP, timeout=1000):
        self._begun = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(
            sandbox.run_code, code, timeout=timeout, on_stdout=lambda text: self._begun.set()
        )

    def __enter__(self):
        census.wait_until(
            lambda: self._begun.is_set() or self._future.done(), timeout=30, what="the cell"
        )
        return self

    def __exit__(self, *exception):
        self._pool.shutdown(wait=False)

    def result(self):
        """Fails if it does not come: nothing may hang."""
        return self._future.result(BOUND)


def in_time(function, *args, **options):
    """What it gives or raises; fails if it hangs."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args, **options).result(BOUND)
    finally:
        pool.shutdown(wait=False)


def container_of(sandbox):
    return guest_of(sandbox).container


def first_process(engine, sandbox):
    """The host's number of the container's first process."""
    found = docker_census.ask("GET", f"/containers/{container_of(sandbox)}/json", engine.host)
    return found["State"]["Pid"]


def remove_by_hand(engine, container):
    docker_census.ask("DELETE", f"/containers/{container}", engine.host, force="1")


def has_none(engine):
    """No containers: nobody is left who would remove one, but the engine itself may be at it."""
    census.wait_until(lambda: not docker_census.containers(engine.host), what="the last one's end")


def says_it_started_anew(execution):
    told = any("variables of earlier cells were not there" in note for note in execution.notes)
    return execution.outcome is Outcome.ok and told and not execution.state_preserved


# --- the engine dies -------------------------------------------------------------------------


def test_an_engine_killed_in_the_middle_of_a_run_loses_it_and_another_goes_on(engine, make):
    sandbox = make()
    sandbox.run_code("x = 1")
    with Running(sandbox) as cell:
        engine.kill()
        lost = cell.result()
    assert lost.outcome is Outcome.lost
    assert lost.stdout == "begun\n"
    assert not lost.state_preserved

    with pytest.raises(SandboxError) as caught:
        in_time(sandbox.run_code, "1 + 1")
    assert engine.host in str(caught.value)

    engine.ensure_up()
    again = in_time(sandbox.run_code, "'x' in globals()")
    assert again.value is False
    assert says_it_started_anew(again)


def test_an_engine_killed_while_a_sandbox_is_idle_is_noticed_at_the_next_run(engine, make):
    sandbox = make()
    sandbox.run_code("x = 1")
    engine.kill()
    engine.ensure_up()
    again = in_time(sandbox.run_code, "'x' in globals()")
    assert again.value is False
    assert says_it_started_anew(again)


def test_the_guests_of_a_killed_engine_end_by_themselves(engine, make):
    """The stream has ended, and with it PID 1: nobody has to wait for the engine."""
    sandbox = make()
    pid = first_process(engine, sandbox)
    with Running(sandbox):
        engine.kill()
        census.wait_until(lambda: not census.alive(pid), timeout=30, what="the guest's end")


def test_closing_while_the_engine_is_away_neither_fails_nor_hangs(engine, make):
    sandbox = make()
    engine.kill()
    in_time(sandbox.close)
    # The fixture sees that the container goes when the engine is back.


def test_a_sandbox_wanted_while_the_engine_is_away_is_a_clear_error(engine, options):
    engine.kill()
    with pytest.raises(SandboxError) as caught:
        in_time(Sandbox.create, **options)
    assert engine.host in str(caught.value)
    assert caught.value.hint


def test_file_and_command_calls_of_a_sandbox_whose_engine_died_are_clear_errors(engine, make):
    sandbox = make()
    engine.kill()
    for call in (
        lambda: sandbox.files.write("a", "b"),
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.get("x"),
    ):
        with pytest.raises(SandboxError):
            in_time(call)


# --- the engine hangs ------------------------------------------------------------------------


@pytest.fixture
def impatient(engine, monkeypatch):
    """While it hangs, that is found out in seven seconds instead of thirteen. Only then: one that
    is just slow must not be taken for it."""
    stop, go_on = engine.stop, engine.go_on
    usual = health.INTERVAL, health.PING_TIMEOUT, cleanup.REMOVE_TIMEOUT, cleanup.INSPECT_TIMEOUT

    def have_patience(interval, ping, remove, ping_again):
        monkeypatch.setattr(health, "INTERVAL", interval)
        monkeypatch.setattr(health, "PING_TIMEOUT", ping)
        monkeypatch.setattr(cleanup, "REMOVE_TIMEOUT", remove)
        monkeypatch.setattr(cleanup, "INSPECT_TIMEOUT", ping_again)

    def stop_impatiently():
        stop()
        have_patience(1.0, 2.0, 2.0, 2.0)

    def go_on_patiently():
        have_patience(*usual)
        go_on()

    monkeypatch.setattr(engine, "stop", stop_impatiently)
    monkeypatch.setattr(engine, "go_on", go_on_patiently)


def test_an_engine_that_hangs_in_the_middle_of_a_run_loses_it(impatient, engine, make):
    sandbox = make()
    pid = first_process(engine, sandbox)
    with Running(sandbox) as cell:
        engine.stop()
        assert cell.result().outcome is Outcome.lost
    if not setting.GVISOR:
        census.wait_until(lambda: not census.alive(pid), what="the guest's end")
    engine.go_on()
    assert says_it_started_anew(in_time(sandbox.run_code, "1 + 1"))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_engine_that_hangs_loses_a_run_in_whichever_event_loop(impatient, engine, options, loop):
    """What watches the engine is not in the caller's loop."""

    async def run():
        async with AsyncSandbox(**options) as sandbox:
            with anyio.fail_after(BOUND):
                return await sandbox.run_code(
                    SLEEP, timeout=1000, on_stdout=lambda text: engine.stop()
                )

    assert anyio.run(run, backend=loop).outcome is Outcome.lost
    engine.go_on()


def test_a_time_out_is_kept_while_the_engine_hangs(impatient, engine, make):
    sandbox = make()
    with Running(sandbox, timeout=1) as cell:
        engine.stop()
        assert cell.result().outcome in (Outcome.timeout, Outcome.lost)
    engine.go_on()
    assert in_time(sandbox.run_code, "1 + 1").value == 2


def test_an_engine_that_hangs_before_a_start_is_a_clear_error(impatient, engine, make, options):
    make().run_code("1")  # it is known from then on
    engine.stop()
    with pytest.raises(SandboxError) as caught:
        in_time(Sandbox.create, **options)
    assert engine.host in str(caught.value)


def test_an_engine_that_hangs_in_the_middle_of_a_start_is_a_clear_error(impatient, engine, options):
    before = {each["Id"] for each in docker_census.containers(engine.host)}
    pool = ThreadPoolExecutor(1)
    started = pool.submit(Sandbox.create, **options)
    census.wait_until(
        lambda: {each["Id"] for each in docker_census.containers(engine.host)} - before,
        timeout=30,
        what="a container",
    )
    engine.stop()
    with contextlib.suppress(SandboxError):
        started.result(BOUND).close()  # it was faster
    pool.shutdown(wait=False)
    engine.go_on()


def test_a_container_that_the_engine_makes_after_its_request_was_given_up_is_removed(
    impatient, engine, options, monkeypatch
):
    """The request waits in the hanging engine's socket, and beside it the list of the first sweep:
    when the engine goes on, it answers the list before it has made the container."""
    monkeypatch.setattr(backend_module, "CREATE_TIMEOUT", 1.0)
    request, stopped, swept = Engine.request, threading.Event(), threading.Event()

    async def watched(self, method, path, **more):
        if path == "/containers/create":
            engine.stop()
            stopped.set()
        elif path == "/containers/json" and stopped.is_set():
            swept.set()
        return await request(self, method, path, **more)

    monkeypatch.setattr(Engine, "request", watched)
    began = time.time()
    with pytest.raises(SandboxError):
        in_time(Sandbox.create, **options)
    assert swept.wait(30)
    engine.go_on()
    # The fixture sees that nothing is left; here, that something was made.
    census.wait_until(lambda: made_since(engine, began), timeout=30, what="the late container")


def made_since(engine, began):
    filters = {"type": ["container"], "event": ["create"]}
    moments = {"since": str(int(began)), "until": str(int(time.time()) + 1)}
    return docker_census.raw("GET", "/events", engine.host, filters=filters, **moments)


def test_closing_while_the_engine_hangs_ends_the_guest_and_does_not_hang(impatient, engine, make):
    sandbox = make()
    pid = first_process(engine, sandbox)
    engine.stop()
    in_time(sandbox.close)
    census.wait_until(lambda: not census.alive(pid), what="the guest's end")
    engine.go_on()


# --- somebody else's hands -------------------------------------------------------------------


def test_a_sandbox_removed_by_hand_in_the_middle_of_a_run_is_lost_and_starts_anew(engine, make):
    sandbox = make()
    with Running(sandbox) as cell:
        remove_by_hand(engine, container_of(sandbox))
        assert cell.result().outcome is Outcome.lost
    again = in_time(sandbox.run_code, "1 + 1")
    assert again.value == 2
    assert says_it_started_anew(again)


def test_a_sandbox_removed_by_hand_while_idle_starts_anew_and_says_so(engine, make):
    sandbox = make()
    sandbox.run_code("x = 1")
    remove_by_hand(engine, container_of(sandbox))
    again = in_time(sandbox.run_code, "'x' in globals()")
    assert again.value is False
    assert says_it_started_anew(again)


@pytest.mark.parametrize("how", ["stop", "restart"])
def test_a_sandbox_stopped_or_restarted_by_hand_is_lost_and_starts_anew(engine, make, how):
    sandbox = make()
    with Running(sandbox) as cell:
        path = f"/containers/{container_of(sandbox)}/{how}"
        docker_census.ask("POST", path, engine.host, t="0")
        assert cell.result().outcome is Outcome.lost
    assert says_it_started_anew(in_time(sandbox.run_code, "1 + 1"))


def test_a_sandbox_paused_by_hand_is_ended_by_its_time_out_and_can_be_closed(engine, make):
    sandbox = make()
    with Running(sandbox, timeout=2) as cell:
        docker_census.ask("POST", f"/containers/{container_of(sandbox)}/pause", engine.host)
        assert cell.result().outcome in (Outcome.timeout, Outcome.lost)
    in_time(sandbox.close)
    pardon_gvisor(engine)


def pardon_gvisor(engine):
    """With runsc, the engine forgets a shim of a container that was paused, or whose program was
    not there: also one that was started and removed by the docker command."""
    if setting.GVISOR:
        engine.pardon_shims()


# --- what a start may meet -------------------------------------------------------------------


def test_an_image_without_python_is_a_clear_error(engine, options):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("etc/empty"))
    engine.import_tree(archive.getvalue(), "nothing-in-it")
    try:
        with pytest.raises(SandboxError) as caught:
            in_time(Sandbox.create, **options_of(engine, "nothing-in-it"))
        assert "nothing-in-it" in str(caught.value)
        assert "python3" in str(caught.value)
        assert caught.value.hint
    finally:
        docker_census.ask("DELETE", "/images/nothing-in-it", engine.host)
        pardon_gvisor(engine)


def test_an_image_that_is_not_there_is_a_clear_error(engine):
    with pytest.raises(SandboxError) as caught:
        in_time(Sandbox.create, **options_of(engine, "belljar-test/never-made:1"))
    assert "belljar-test/never-made:1" in str(caught.value)


def test_a_full_disk_of_the_engine_is_a_clear_error_and_passes(machine):
    engine = SecondEngine(size="700m")
    try:
        engine.start()
        engine.load(IMAGE)
        before = docker_census.take(engine.host)
        ballast = engine.data / "ballast"
        fill(ballast)
        with pytest.raises(SandboxError) as caught:
            in_time(Sandbox.create, **options_of(engine))
        assert "no space left" in str(caught.value)
        ballast.unlink()
        with Sandbox(**options_of(engine)) as sandbox:
            assert sandbox.run_code("1 + 1").value == 2
            fill(ballast)  # what runs needs nothing of it
            assert sandbox.run_code("2 + 2").value == 4
            sandbox.files.write("a", b"x" * MB)
        ballast.unlink()
        assert engine.settle(before, timeout=BOUND) == []
    finally:
        runtime.shutdown()
        engine.close()


def fill(path):
    with open(path, "wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(MB))
            file.flush()
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_start_given_up_at_any_moment_leaves_nothing(engine, options, loop):
    async def give_up(after):
        with anyio.move_on_after(after):
            async with AsyncSandbox(**options) as sandbox:
                await sandbox.run_code("1")

    for after in (0.001, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4):
        anyio.run(give_up, after, backend=loop)


# --- the owner dies --------------------------------------------------------------------------

HOST_PROCESS = dedent("""
    import sys, time
    from belljar import Docker, Sandbox
    docker = Docker(image=sys.argv[1], host=sys.argv[2], runtime=sys.argv[3], pull="never")
    with Sandbox(backend=docker, environment="python") as sandbox:
        sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
        print("ready", flush=True)
        sandbox.run_code("import time; time.sleep(1000)", timeout=1000)
""")


@pytest.fixture
def host_process(engine):
    """Another process with a sandbox in which code runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST_PROCESS, IMAGE, engine.host, setting.NAME[7:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    if line != "ready\n":
        process.kill()
        pytest.fail(process.communicate()[1])
    yield process
    process.kill()
    process.communicate()


def belljar(*args, engine):
    return subprocess.run(
        [sys.executable, "-m", "belljar", *args],
        env=os.environ | {"DOCKER_HOST": engine.host},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_guest_of_a_killed_process_ends_at_once_and_is_swept(engine, host_process, number):
    (container,) = engine.running()
    pid = docker_census.ask("GET", f"/containers/{container}/json", engine.host)["State"]["Pid"]
    host_process.send_signal(number)
    host_process.wait(BOUND)
    census.wait_until(lambda: not census.alive(pid), timeout=30, what="the guest's end")
    census.wait_until(lambda: not engine.running(), timeout=30, what="the container's end")
    done = belljar("gc", "--backend", "docker", engine=engine)
    assert done.returncode == 0, done.stderr


def test_the_next_process_sweeps_what_a_killed_one_left(engine, host_process):
    (container,) = engine.running()
    host_process.kill()
    host_process.wait(BOUND)
    program = HOST_PROCESS.partition("print")[0]
    subprocess.run(
        [sys.executable, "-c", program, IMAGE, engine.host, setting.NAME[7:]],
        check=True,
        timeout=BOUND,
    )
    # It sweeps beside its work, and may have ended before it was done.
    census.wait_until(
        lambda: {each["Id"] for each in docker_census.containers(engine.host)} <= {container},
        what="the end of its own container",
    )
    belljar("gc", engine=engine)


def test_an_interrupted_process_closes_its_sandbox(engine, host_process):
    host_process.send_signal(signal.SIGINT)
    _, complaint = host_process.communicate(timeout=BOUND)
    assert "KeyboardInterrupt" in complaint
    has_none(engine)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_line_closes_its_sandbox(engine, tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SLEEP)
    command = [sys.executable, "-m", "belljar", "run", "--backend", "docker", "--image", IMAGE]
    with subprocess.Popen(
        [*command, "--timeout", "1000", script],
        env=os.environ | {"DOCKER_HOST": engine.host},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = process.stdout.readline()
            process.send_signal(number)
            complaint = process.communicate(timeout=BOUND)[1]
        finally:
            process.kill()
    assert said == "begun\n", complaint
    has_none(engine)


def test_a_process_that_ends_while_its_engine_is_away_is_swept_later(engine, host_process):
    engine.kill()
    host_process.communicate(timeout=BOUND)  # its cell is lost, and it goes on to its end
    engine.ensure_up()
    done = belljar("gc", "--backend", "docker", engine=engine)
    assert done.returncode == 0, done.stderr


def test_an_exception_in_the_with_block_leaves_nothing(engine, options):
    class Ours(Exception):
        pass

    def use():
        with Sandbox(**options) as sandbox:
            sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
            raise Ours

    with pytest.raises(Ours):
        use()
    has_none(engine)


def test_a_forked_process_leaves_its_parents_sandboxes_alone(engine, make):
    sandbox = make()
    sandbox.run_code("x = 1")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            runtime.shutdown()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.run_code("x").value == 1


@pytest.fixture
def leftovers(engine):
    """What three killed processes left: the ids of the containers."""
    runtime.shutdown()  # it would sweep them, if it still owed the engine a removal
    arguments = [sys.executable, "-c", HOST_PROCESS, IMAGE, engine.host, setting.NAME[7:]]
    owners = [subprocess.Popen(arguments, stdout=subprocess.PIPE) for _ in range(3)]
    for process in owners:
        process.stdout.readline()
    for process in owners:
        process.kill()  # all, before one is seen dead: they sweep, too
    for process in owners:
        process.communicate()
    found = [each["Id"] for each in docker_census.containers(engine.host)]
    assert len(found) == 3
    return found


def test_two_processes_that_sweep_at_once_leave_nothing(engine, leftovers):
    with ThreadPoolExecutor(2) as pool:
        sweeps = [
            pool.submit(belljar, "gc", "--backend", "docker", engine=engine) for _ in range(2)
        ]
        for sweep in sweeps:
            assert sweep.result().returncode == 0, sweep.result().stderr
    has_none(engine)


def test_gc_lists_in_a_dry_run_and_removes_without(engine, leftovers):
    would = belljar("gc", "--dry-run", engine=engine)
    assert would.returncode == 0, would.stderr
    assert "WOULD BE" in would.stdout
    kept = docker_census.containers(engine.host)
    assert {each["Id"] for each in kept} == set(leftovers)
    names = {each["Names"][0].removeprefix("/") for each in kept}
    assert all(name in would.stdout for name in names)

    assert belljar("gc", "--backend", "native", engine=engine).returncode == 0
    assert len(docker_census.containers(engine.host)) == 3

    done = belljar("gc", "--json", engine=engine)
    assert done.returncode == 0, done.stderr
    report = [each for each in json.loads(done.stdout)["leftovers"] if each["name"] in names]
    assert len(report) == 3
    for each in report:
        assert (each["backend"], each["kind"]) == ("docker", "container")
        assert each["removed"]
        assert each["problem"] is None
    has_none(engine)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_process_may_begin_with_a_sandbox_in_either_event_loop(engine, loop):
    program = """
        import sys, anyio
        from belljar import AsyncSandbox, Docker
        docker = Docker(image=sys.argv[1], host=sys.argv[2], runtime=sys.argv[3], pull="never")
        async def main():
            async with AsyncSandbox(backend=docker, environment="python") as sandbox:
                print((await sandbox.run_code("1 + 1")).value)
        anyio.run(main, backend=sys.argv[4])
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program), IMAGE, engine.host, setting.NAME[7:], loop],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


# --- many ------------------------------------------------------------------------------------


def use(options, number):
    with Sandbox(**options) as sandbox:
        assert sandbox.run_code(f"{number} + 1").value == number + 1


def test_thirty_sandboxes_in_a_row_leave_nothing(engine, options):
    for number in range(30):
        use(options, number)


def test_eight_sandboxes_at_once_leave_nothing(engine, options):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: use(options, number), range(16)))


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_a_hundred_sandboxes_in_a_row_leave_nothing(engine, options):
    for number in range(100):
        use(options, number)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_twenty_sandboxes_at_once_leave_nothing(engine, options):
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: use(options, number), range(40)))


def test_sandboxes_open_when_the_process_ends_leave_nothing(engine):
    program = """
        import sys
        from belljar import Docker, Sandbox
        docker = Docker(image=sys.argv[1], host=sys.argv[2], runtime=sys.argv[3], pull="never")
        open_ones = [Sandbox.create(backend=docker, environment="python") for _ in range(3)]
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program), IMAGE, engine.host, setting.NAME[7:]],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stderr
    has_none(engine)
