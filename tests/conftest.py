"""One `sandbox` fixture for all, the promises of this run, and a census around it."""

import contextlib
import functools
import os
import shutil
import tempfile

import polars
import pytest

import census
from belljar import AsyncSandbox, Sandbox, SandboxError, runtime
from belljar.backends.native import cgroup
from belljar.environment_store import cache_root

ROOT = os.geteuid() == 0
BACKEND = "native-root" if ROOT else "native-user"
ENVS = cache_root() / "envs"
REQUIRED = os.environ.get("BELLJAR_TEST_REQUIRE", "").split()


# --- the run: markers, promises, census ------------------------------------------------------

MARKERS = {
    "root_only": "what only root's sandboxes have",
    "user_only": "what only an ordinary user's sandboxes have",
    "needs_cgroup": "needs control groups that belljar may use",
    "stress": "long; runs when BELLJAR_TEST_STRESS is set",
}


def pytest_configure(config):
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    # A temporary directory of our own: whatever is in it at the end was left behind.
    config.belljar_tmp = tempfile.mkdtemp(prefix="belljar-tests-")
    os.environ["TMPDIR"] = tempfile.tempdir = config.belljar_tmp
    census.become_subreaper()


def pytest_unconfigure(config):
    # Orphans came to us, as their subreaper: those that have ended shall not stay as zombies.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    shutil.rmtree(config.belljar_tmp, ignore_errors=True)


@functools.cache
def cgroup_controllers():
    groups = cgroup.detect()
    try:
        return groups.controllers
    finally:
        groups.close()


# These look at no guest: who has run them as root need not run them again as an ordinary user.
PURE = [
    "blobs",
    "clean_html",
    "errors",
    "execution",
    "functions",
    "hostile_arrow",
    "hostile_parcels",
    "limits",
    "seccomp",
    "tables",
    "values",
]


def pytest_collection_modifyitems(config, items):
    if os.environ.get("BELLJAR_TEST_ONLY") != "guests":
        return
    pure = [item for item in items if item.path.stem.removeprefix("test_") in PURE]
    config.hook.pytest_deselected(items=pure)
    items[:] = [item for item in items if item not in set(pure)]


def pytest_runtest_setup(item):
    if item.get_closest_marker("root_only") and not ROOT:
        pytest.skip("only root has it")
    if item.get_closest_marker("user_only") and ROOT:
        pytest.skip("only an ordinary user has it")
    if item.get_closest_marker("stress") and not os.environ.get("BELLJAR_TEST_STRESS"):
        pytest.skip("set BELLJAR_TEST_STRESS=1")
    if item.get_closest_marker("needs_cgroup") and "memory" not in cgroup_controllers():
        if "cgroup" in REQUIRED and ROOT:
            pytest.fail("this run promised control groups, and belljar has none")
        pytest.skip("belljar has no control groups here")


def pytest_sessionstart(session):
    # Its engine starts with the first such call, and keeps its descriptors and threads.
    polars.DataFrame({"a": [1]}).write_csv()
    session.belljar_before = census.take(ENVS)


def pytest_sessionfinish(session, exitstatus):
    runtime.shutdown()
    # trio keeps its idle threads for ten seconds
    found = census.settle(session.belljar_before, ENVS, ignore=["thread Trio"])
    session.belljar_leaks = found
    if found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    found = getattr(terminalreporter._session, "belljar_leaks", [])
    if found:
        terminalreporter.section("left behind by this run", red=True, bold=True)
        for line in found:
            terminalreporter.write_line(line)
    if path := os.environ.get("BELLJAR_TEST_SUMMARY"):
        counts = {
            kind: len(terminalreporter.stats.get(kind, ()))
            for kind in ("passed", "failed", "error", "skipped", "xfailed")
        }
        words = [f"{number} {kind}" for kind, number in counts.items() if number]
        words += [f"{len(found)} left behind"] if found else []
        with open(path, "w") as file:
            file.write(", ".join(words) or "nothing was run")


# --- sandboxes -------------------------------------------------------------------------------


@functools.cache
def why_no_backend():
    """Tried once: what keeps a guest from starting here, if anything does."""
    try:
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code("1")
    except SandboxError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def native():
    """Skips when there is no native backend; fails when this run promised it."""
    if why := why_no_backend():
        if BACKEND in REQUIRED:
            pytest.fail(f"this run promised {BACKEND}, and it is missing: {why}")
        pytest.skip(f"{BACKEND} is missing: {why}")
    return BACKEND


@pytest.fixture
def make_sandbox(native):
    """Makes sandboxes (environment "python" unless told), and closes them all."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            sandbox = Sandbox.create(**{"environment": "python", **options})
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
def run_async(request, native):
    """Runs an async function under each event loop."""
    import anyio

    def run(function, *args):
        return anyio.run(function, *args, backend=request.param)

    run.loop = request.param
    return run


@pytest.fixture
def open_sandbox(native):
    """An AsyncSandbox with environment "python", for `async with`."""
    return lambda **options: AsyncSandbox(**{"environment": "python", **options})


# --- looking from outside --------------------------------------------------------------------


class Outside:
    """A guest as the host sees it."""

    def __init__(self, sandbox):
        inner = getattr(sandbox, "_sandbox", sandbox)
        self.pid = inner._place.guest.pid
        self.started = census.process(self.pid).started

    def processes(self):
        """Those alive now, PID 1 first; orphans inside are PID 1's children."""
        if not self.alive():
            return []
        return [census.process(self.pid), *census.descendants(self.pid)]

    def find(self, inside):
        """The host's number of the process that the guest knows by `inside`."""
        for p in self.processes():
            if p is not None and census.inside_pid(p.pid) == inside:
                return p.pid
        return None

    def alive(self):
        return census.alive(self.pid, self.started)


@pytest.fixture
def outside():
    return Outside
