"""Every task of a live guest, compared with a golden file: when it is ready, and after hostile
code has run. `golden_posture.py` says what is read and how it is put into words.

With gVisor the host sees gVisor's own processes: these are compared, and beside them, marked as
such, what the guest says of itself.
"""

import contextlib
import json
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

import census
import golden_posture
import gvisor
import oracles
import setting
from belljar import Sandbox
from golden_compare import KERNEL, OWN, REWRITE, compare, differences, drift, load, path_of, store
from golden_posture import Lens

pytestmark = [pytest.mark.contract("native", "docker", "gvisor"), pytest.mark.timeout(300)]
if setting.NAME == "native-root":  # an ordinary user's may have control groups or not
    pytestmark.append(pytest.mark.needs_cgroup)

HERE = Path(__file__).parent / "golden"
SETTINGS = ("native-root", "native-user", "docker-runc", "docker-runsc")
# What a process that was just born still has to do; all else is right at the first look.
UNFINISHED = ("descriptors", "limits", "session", "signals", "directory", "scheduling")
UNFINISHED += ("files in proc are",)
# And what its zygote has, when it has just made a namespace for it.
UNFINISHED += ("namespaces > pid_for_children",)

PATIENCE = 30  # seconds

HOSTILE = (
    *("r06_descriptors", "r07_cwd", "r09_user_namespace", "r12_chroot", "r13_setuid"),
    *("r20_fork_limit", "r21_thread_limit", "r32_descriptors", "r35_priority", "r38_daemon"),
    *("r66_kernel_surface", "x_descriptors_to_init", "x_limits_of_init"),
)


@pytest.fixture(scope="module")
def guest(backend):
    """One for all: each test begins with a new worker in it."""
    with Sandbox.create(environment="python") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def canaries():
    with oracles.Canaries() as canaries:
        yield canaries


# --- reading -------------------------------------------------------------------------------------


def look(lens):
    """A process may end, and a thread may begin, while it is looked at: then once more."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return lens.posture()
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def settled(check):
    """What is wrong, when what was only unfinished has had its time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        wrong = check()
        # A new worker goes there when it is confined and all else is done.
        born = not any(line.startswith("worker > directory: ") for line in wrong)
        final = [line for line in wrong if born and not is_unfinished(line)]
        if not wrong or final or time.monotonic() > deadline:
            return wrong
        time.sleep(0.05)


def is_unfinished(line):
    # gVisor has a stub for each address space, and confines it when it has made it.
    return line.startswith("stub") or any(f" > {name}" in line for name in UNFINISHED)


def wait_for_the_end_of_all_but_the_worker(guest):
    """What a restart has ended takes a moment to be gone."""
    if not setting.GVISOR:
        init = oracles.init_of(guest)
        census.wait_until(lambda: len(oracles.tree(init)) == 2, what="init and a worker alone")


def whole(sandbox):
    found = look(Lens(sandbox))
    if setting.GVISOR:
        program = (HERE / "say_posture.py").read_text()
        told = json.loads(sandbox.run_code(program).stdout)
        found["by its own word"] = golden_posture.inside(told)
    return found


def assert_golden(wrong, *, when):
    if wrong:
        path = path_of(setting.NAME)
        lines = "\n  ".join(wrong)
        pytest.fail(
            f"{when}, the guest is not as {path.name} says:\n  {lines}\n"
            f"If that is meant: {REWRITE}=1 pytest {Path(__file__).name} writes {path}; "
            "its difference is for a human to judge.",
            pytrace=False,
        )


# --- a guest that is ready -----------------------------------------------------------------------


@pytest.mark.fresh
def test_a_guest_that_is_ready_is_what_the_golden_file_says(make_sandbox):
    sandbox = make_sandbox()
    if os.environ.get(REWRITE) == "1":
        rewrite(sandbox)
    golden = load(setting.NAME, new=not setting.GVISOR)
    assert_golden(settled(lambda: differences(golden, whole(sandbox))), when="When it is ready")
    sandbox.run_code("1")
    golden = load(setting.NAME)
    wrong = settled(lambda: differences(golden, whole(sandbox)))
    assert_golden(wrong, when="After its first cell")


def rewrite(sandbox):
    before = whole(sandbox)
    sandbox.run_code("1")
    if store(setting.NAME, whole(sandbox), before):
        pytest.fail(f"{path_of(setting.NAME)} was rewritten: read its difference", pytrace=False)
    sandbox.restart()


def test_a_guest_with_a_third_worker_is_so_too(guest):
    guest.run_code("import os; os._exit(3)")
    guest.run_code("1")
    guest.restart()
    wait_for_the_end_of_all_but_the_worker(guest)
    golden = load(setting.NAME, new=not setting.GVISOR)
    assert_golden(settled(lambda: differences(golden, whole(guest))), when="With a third worker")


# --- hostile code --------------------------------------------------------------------------------


class Watched:
    """A guest with a new worker, and nothing of what ran in it before."""

    def __init__(self, guest):
        guest.restart()
        guest.files.write("hostile.py", (oracles.ESCAPES / "hostile.py").read_text())
        self.lens = Lens(guest)
        wait_for_the_end_of_all_but_the_worker(guest)
        census.wait_until(self._worker, what="a worker")
        wrong = settled(lambda: differences(golden(new=True), look(self.lens)))
        assert_golden(wrong, when="With a new worker")
        self._first, self._beginning = self._worker(), self.lens.beginning()

    def _worker(self):
        with contextlib.suppress(ValueError):
            return self.lens.worker()

    def drift(self):
        """What is wrong, and what is the guest's own affair. A worker that was lost is replaced by
        one that has run nothing."""
        found = look(self.lens)
        new = self._worker() != self._first
        return drift(golden(new=new), found, self._beginning)

    def assert_golden(self, *, when):
        assert_golden(settled(lambda: self.drift()[0]), when=when)


def golden(*, new=False):
    """Without the guest's own word: that is worth nothing after hostile code."""
    found = load(setting.NAME, new=new and not setting.GVISOR)
    found.pop("by its own word", None)
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_changes_nothing_but_its_own(guest, canaries, name):
    watched = Watched(guest)
    source = (oracles.ESCAPES / f"{name}.py").read_text()
    guest.run_code(source, timeout=20, env=canaries.environment(confined=True))
    if setting.GVISOR and not census.alive(watched.lens.init):
        return  # code can end its own guest there
    watched.assert_golden(when=f"After {name}")


def test_code_that_tries_to_become_more_changes_nothing(guest):
    watched = Watched(guest)
    guest.run_code((HERE / "become_more.py").read_text(), timeout=20)
    watched.assert_golden(when="After become_more.py")


@gvisor.OUTSIDE
def test_what_code_may_change_of_itself_is_this_and_no_more(guest):
    watched = Watched(guest)
    guest.run_code((HERE / "change_itself.py").read_text(), timeout=20).raise_for_outcome()
    watched.assert_golden(when="After change_itself.py")

    def unused():
        own = watched.drift()[1]
        return {prefix for prefix in OWN if not any(path.startswith(prefix) for path in own)}

    census.wait_until(lambda: not unused(), PATIENCE, "each of these changes, in the child too,")
    watched.assert_golden(when="After all of change_itself.py")


# --- the comparison can fail ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_control_every_field_that_is_changed_missing_or_new_is_a_difference(name):
    whole = load(name)
    found = without_alternatives(whole)
    assert differences(whole, found) == []
    ways = list(places(found))
    assert len(ways) > 100
    for way in ways:
        path, place, key = " > ".join(map(str, way)), at(found, way[:-1]), way[-1]
        kept = place[key]
        place[key] = "something else"
        assert differences(whole, found), f"{path} is changed"
        del place[key]
        absent = path.endswith(KERNEL) or is_not_of_every_host(way, kept)
        assert bool(differences(whole, found)) != absent, f"{path} is missing"
        if isinstance(place, list):
            place.insert(key, kept)
        else:
            place[key] = kept
    for way in {way[:-1] for way in ways}:
        place = at(found, way)
        if isinstance(place, list):
            place.append("something more")
        else:
            place["something more"] = "a value"
        assert differences(whole, found), f"something more in {way}"
        place.pop(-1 if isinstance(place, list) else "something more")
    assert differences(whole, found) == []


def without_alternatives(value):
    if isinstance(value, dict) and "either" in value:
        return value["either"][0]
    if isinstance(value, dict):
        return {key: without_alternatives(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def places(value, way=()):
    """The way to each field, and to each item of a list."""
    if isinstance(value, dict) and "either" not in value:
        for key, item in value.items():
            yield from places(item, (*way, key))
    elif isinstance(value, list):
        for number in range(len(value)):
            yield (*way, number)
    else:
        yield way


def at(value, way):
    for key in way:
        value = value[key]
    return value


def is_not_of_every_host(way, value):
    if way[:2] == ("mounts", "masks of proc"):
        return not os.path.lexists(f"/proc/{way[2]}")
    return way[:2] == ("mounts", "programs of the host") and "an empty" in value


@pytest.mark.native_only("who may change a container's processes depends on the machine")
def test_control_what_is_changed_from_outside_is_seen(make_sandbox):
    sandbox = make_sandbox()
    watched = Watched(sandbox)
    sandbox.run_code("1")
    init, worker = watched.lens.init, watched.lens.worker()
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (100, 100))
    resource.prlimit(init, resource.RLIMIT_CPU, (100_000, 100_000))
    os.setpriority(os.PRIO_PROCESS, worker, os.getpriority(os.PRIO_PROCESS, worker) + 1)
    of_init, of_worker = ["init > limits > cpu time"], ["worker > limits > open files"]
    of_worker.append("worker > scheduling > niceness")
    changed = of_init + of_worker
    with contextlib.suppress(census.TooLate):  # init may still have the pipes of the cell
        census.wait_until(lambda: list(compare(golden(), look(watched.lens))) == changed)
    assert list(compare(golden(), look(watched.lens))) == changed
    # The worker might have done that itself, but init does not change.
    assert [line.partition(":")[0] for line in watched.drift()[0]] == of_init


@pytest.mark.native_only("in a container it would be a process of the engine's")
def test_control_an_ordinary_process_differs_in_nearly_everything(guest):
    lens = Watched(guest).lens
    process = subprocess.Popen(["sleep", "60"])
    try:
        found = lens.process(process.pid, "worker")
        found |= lens.thread(process.pid, process.pid, "worker")
    finally:
        process.kill()
        process.wait()
    wrong = compare(golden()["worker"], found)
    for name in (
        *("user map", "group map", "no new privileges", "seccomp > mode", "mounts", "root"),
        *(f"namespaces > {kind}" for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")),
        *("capabilities > bounding", "directory", "scheduling > score for being killed"),
        *("limits > file size", "limits > core file size", "environment > HOME"),
        "environment > THE CANARY",
    ):
        assert name in wrong, f"{name} is not seen"
