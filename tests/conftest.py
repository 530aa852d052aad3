"""One `sandbox` fixture for all, the promises of this run, and a census around it.

A test that starts a guest asks for `backend`, or for a fixture that does (`sandbox`, `run_async`
and others). One that does not finds no backend, and is run once, not in each setting.
"""

import collections
import contextlib
import functools
import os
import shutil
import signal
import tempfile

import polars
import pytest
from hypothesis import HealthCheck, settings

import census
import control_groups
import engine_view
import reporting
import setting
from belljar import AsyncSandbox, Sandbox, SandboxError, runtime
from belljar.environment.store import cache_root
from belljar.sandbox import run
from outside import Outside
from recycling import Recycler
from setting import REQUIRED, ROOT

# How long an example takes is a matter of what else the machine does.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

ENVS = cache_root() / "envs"


# --- the run: markers, promises, census ------------------------------------------------------

MARKERS = {
    "root_only": "what only root's sandboxes have",
    "user_only": "what only an ordinary user's sandboxes have",
    "needs_cgroup": "needs control groups that belljar may use",
    "stress": "long; runs when BELLJAR_TEST_STRESS is set",
    "native_only(reason)": "what only the native backend has",
    "docker": "needs an engine: run with runc; with gVisor too if it asks for `backend`",
    "not_gvisor(reason)": "what gVisor answers differently; a row in docs/security/gvisor.md",
    "fresh": "needs a guest that no other test has used",
    "contract(*kinds)": "what these kinds of guests must keep: native, docker, gvisor; the rest of "
    "the tests runs natively by root only",
    "disturbs": "harms the host on purpose: no other test that watches the host runs beside it",
    "by_user_too": "starts no guest, but depends on who runs it: run by root and by the user",
}


def pytest_configure(config):
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    # A temporary directory of our own: whatever is in it at the end was left behind.
    config.belljar_tmp = tempfile.mkdtemp(prefix="belljar-tests-")
    os.environ["TMPDIR"] = tempfile.tempdir = config.belljar_tmp
    # Sandboxes of other runs are not this one's to see.
    runtime_directory = os.path.join(config.belljar_tmp, "runtime")
    os.mkdir(runtime_directory, 0o700)
    os.environ["BELLJAR_RUNTIME_DIR"] = runtime_directory
    if path := os.environ.get("BELLJAR_TEST_RECORD"):
        config.belljar_recorder = reporting.Recorder(path)
        config.pluginmanager.register(config.belljar_recorder)
    census.become_subreaper()
    # What runs in the background of a shell, or under nohup, is deaf to these, and so would be the
    # programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_unconfigure(config):
    # Orphans came to us, as their subreaper: those that have ended shall not stay as zombies.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    shutil.rmtree(config.belljar_tmp, ignore_errors=True)


def pytest_report_header():
    return f"setting: {setting.NAME}"


def starts_guests(item):
    return "backend" in item.fixturenames


def uses_trio(item):
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("run_async") == "trio"


def is_wanted(item, part):
    """Whether it is in this part of the suite: `guests`, `rest`, or all of it."""
    of_docker = item.get_closest_marker("docker")
    if setting.CONTRACT_ONLY and starts_guests(item):
        if of_docker and setting.GVISOR:
            return False
        if not of_docker and not setting.in_contract(item):
            return False
    if setting.DOCKER and "[shared" in item.name:
        return False  # no memory is shared with a container: it would be [parts] once more
    if setting.CONTRACT_ONLY and setting.DOCKER and not of_docker and uses_trio(item):
        return False  # a guest in a container does not differ by the event loop of its host
    if of_docker:
        return setting.DOCKER and (starts_guests(item) or not setting.GVISOR)
    if starts_guests(item):
        return part != "rest"
    if item.get_closest_marker("by_user_too") and not setting.DOCKER:
        return part != "rest"
    return part != "guests"


def half_of(items):
    """Both halves, by whole modules, with about as many tests in each."""
    sizes = collections.Counter(item.path for item in items)
    halves, counts = ([], []), [0, 0]
    for path, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        lighter = counts.index(min(counts))
        counts[lighter] += size
        halves[lighter].append(path)
    return [[item for item in items if item.path in half] for half in halves]


def pytest_collection_modifyitems(config, items):
    part = os.environ.get("BELLJAR_TEST_ONLY", "")
    wanted = [item for item in items if is_wanted(item, part)]
    if half := os.environ.get("BELLJAR_TEST_HALF"):
        wanted = half_of(wanted)[int(half) - 1]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(wanted)])
    items[:] = wanted


def why_not(item):
    """What this setting lacks that the test needs."""
    if item.get_closest_marker("root_only") and not ROOT:
        return "only root has it"
    if item.get_closest_marker("user_only") and (ROOT or (setting.DOCKER and starts_guests(item))):
        return "only an ordinary user has it"
    if item.get_closest_marker("stress") and not os.environ.get("BELLJAR_TEST_STRESS"):
        return "set BELLJAR_TEST_STRESS=1"
    if setting.DOCKER and (mark := item.get_closest_marker("native_only")):
        return f"only native: {reason(mark)}"
    if setting.GVISOR and (mark := item.get_closest_marker("not_gvisor")):
        return f"not with gVisor: {reason(mark)}"
    return None


def reason(mark):
    return mark.args[0] if mark.args else mark.kwargs["reason"]


def pytest_runtest_setup(item):
    if why := why_not(item):
        pytest.skip(why)
    if item.get_closest_marker("needs_cgroup") and not has_cgroups():
        if "cgroup" in REQUIRED and ROOT:
            pytest.fail("this run promised control groups, and belljar has none")
        pytest.skip("belljar has no control groups here")


def has_cgroups():
    if setting.DOCKER:
        return engine_view.ask("/info")["MemoryLimit"]
    return "memory" in control_groups.controllers()


@pytest.fixture(autouse=True)
def no_guest_unasked(request, monkeypatch):
    """Who does not ask for a backend gets one that cannot start: else it would have to be run in
    each setting. Also in subprocesses."""
    if not starts_guests(request.node) and not request.node.get_closest_marker("docker"):
        monkeypatch.setenv("BELLJAR_BACKEND", "docker")
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/ask-for-the-fixture-backend.sock")


def pytest_sessionstart(session):
    # Its engine starts with the first such call, and keeps its descriptors and threads.
    polars.DataFrame({"a": [1]}).write_csv()
    session.belljar_before = census.take(ENVS)


def pytest_sessionfinish(session, exitstatus):
    runtime.shutdown()
    # trio keeps its idle threads for ten seconds
    found = census.swept(session.belljar_before, ENVS, ignore=["thread Trio"])
    session.belljar_leaks = found
    if found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    found = getattr(terminalreporter._session, "belljar_leaks", [])
    if found:
        terminalreporter.section("left behind by this run", red=True, bold=True)
        for line in found:
            terminalreporter.write_line(line)
    if recorder := getattr(config, "belljar_recorder", None):
        recorder.write(found)


# --- sandboxes -------------------------------------------------------------------------------


@functools.cache
def why_no_backend():
    """Tried once: what keeps a guest from starting here, if anything does."""
    try:
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code("1")
            found = sandbox.isolation.backend
    except SandboxError as error:
        return str(error)
    if found != setting.BACKEND:
        return f"guests are on the backend {found}"
    return None


@pytest.fixture(scope="session")
def backend():
    """Skips when the backend of this setting is missing; fails when this run promised it."""
    if why := why_no_backend():
        if setting.NAME in REQUIRED:
            pytest.fail(f"this run promised {setting.NAME}, and it is missing: {why}")
        pytest.skip(f"{setting.NAME} is missing: {why}")
    return setting.NAME


@pytest.fixture(scope="module")
def recycler(backend):
    made = Recycler()
    yield made
    made.close()


@pytest.fixture
def make_sandbox(backend, recycler, request):
    """Makes sandboxes (environment "python" unless told), and closes them all."""
    fresh = not setting.DOCKER or request.node.get_closest_marker("fresh")
    with contextlib.ExitStack() as stack:

        def make(**options):
            options = {"environment": "python", **options}
            if not fresh and options in ({"environment": "python"}, {"environment": "data"}):
                sandbox = recycler.take(options["environment"])
                stack.callback(recycler.give_back, sandbox)
                return sandbox
            sandbox = Sandbox.create(**options)
            stack.callback(sandbox.close)
            return sandbox

        yield make


@pytest.fixture
def sandbox(make_sandbox):
    return make_sandbox()


@pytest.fixture
def data_sandbox(make_sandbox):
    return make_sandbox(environment="data")


@pytest.fixture(params=["asyncio", "trio"])
def run_async(request, backend):
    """Runs an async function under each event loop."""
    import anyio

    def run(function, *args):
        return anyio.run(function, *args, backend=request.param)

    run.loop = request.param
    return run


@pytest.fixture
def open_sandbox(backend):
    """An AsyncSandbox with environment "python", for `async with`."""
    return lambda **options: AsyncSandbox(**{"environment": "python", **options})


@pytest.fixture
def patient(monkeypatch):
    """A cell that is interrupted has all the time it needs to heed it: for tests of what is kept
    then. How soon one that does not is killed, others say."""
    monkeypatch.setattr(run, "GRACE", 30.0)


@pytest.fixture
def short_directory():
    """For sockets, whose paths have about a hundred characters: `tmp_path` has names of tests."""
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.fixture
def outside():
    return Outside
