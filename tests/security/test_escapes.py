"""Hostile guests, judged from outside: what `belljar conformance` runs, and a few more.

The programs and what their heads mean are in `belljar.conformance`; so are the checks of the host's
own side. After every attempt every oracle is asked, and a new sandbox must work.
"""

import contextlib
import os
import resource
import socket
import textwrap
import threading
import time
from pathlib import Path

import pytest

import census
import gvisor
import oracles
from belljar import FileError, Sandbox, SandboxError
from belljar.conformance import attempts, controls, setting
from belljar.conformance.attempts import LOOKS
from belljar.conformance.controls import SIMULATIONS, UNSTOPPED, run_simulation
from belljar.conformance.programs import programs
from belljar.conformance.report_data import Look, NotHere, NotRun
from belljar.conformance.rows import ROWS
from belljar.conformance.stage import Stage, checks
from oracles import Canaries, init_of, tree, worker_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.contract("native")]

MIB = 1 << 20
HERE = [program for program in programs() if program.suits_this_machine]


def _ids(each):
    return {"argvalues": each, "ids": [one.name for one in each]}


@pytest.fixture(autouse=True)
def undisturbed(request):
    """Tests of another setting may run beside these, and would see what a control does to the
    host: so nothing runs beside a control, which sees to that itself."""
    if request.node.get_closest_marker("disturbs"):
        yield
    else:
        with setting.machine_lock():
            yield


@pytest.fixture(scope="module")
def canaries():
    with Canaries() as canaries:
        yield canaries


@pytest.fixture(scope="module")
def stage_of_all(backend, canaries):
    def make(**options):
        return Sandbox.create(**{"environment": "python", **options})

    stage = Stage(setting=oracles.SETTING, canaries=canaries, make=make)
    yield stage
    stage.close()


@pytest.fixture
def stage(stage_of_all):
    """The new sandbox that must work after an attempt serves the next one."""
    yield stage_of_all
    stage_of_all.close_all()


# --- every program and every check ---------------------------------------------------------------


@pytest.mark.contract("docker", "gvisor")
@pytest.mark.parametrize("guest", **_ids(HERE))
def test_hostile_guest_is_contained(guest, stage):
    look = Look()
    told = attempts.try_program(guest, stage, look)
    assert look.problems == [], told
    assert look.evidence


@pytest.mark.contract("docker", "gvisor")
@pytest.mark.parametrize("check", **_ids(checks()))
def test_check_holds_and_sees(check, stage):
    look = Look()
    try:
        check.run(stage, look)
    except (NotHere, NotRun) as reason:
        pytest.skip(str(reason))
    assert look.problems == []
    assert all(look.tripped), look.showed


# --- the controls: where nothing stops it, the oracle must trip ----------------------------------


@pytest.mark.disturbs
@pytest.mark.parametrize("guest", **_ids([p for p in HERE if p.control in UNSTOPPED]))
def test_control_where_nothing_stops_it_the_oracle_trips(guest, canaries):
    result = controls.run_unstopped(guest, canaries)
    if result.tripped is None and guest.control == "saved-root":
        pytest.skip(result.showed)
    assert result.tripped, result.showed


@pytest.mark.disturbs
@pytest.mark.contract("docker", "gvisor")
@pytest.mark.parametrize("guest", **_ids([p for p in HERE if p.control == "larger"]))
def test_control_under_larger_limits_the_counter_passes_the_small_one(guest, stage):
    result = controls.run_with_larger_limits(guest, stage)
    if result.tripped is None:
        pytest.skip(result.showed)
    assert result.tripped, result.showed


@pytest.mark.disturbs
@pytest.mark.contract("docker", "gvisor")
@pytest.mark.parametrize("name", SIMULATIONS)
def test_control_that_is_simulated_is_seen(name, stage):
    result = run_simulation(name, stage)
    assert result.tripped, result.showed


def test_every_program_says_what_it_is_and_has_a_control():
    known = {*SIMULATIONS, *(each.name for each in (*programs(), *checks())), "itself", "nothing"}
    for program in programs():
        assert {"row", "attempt", "expect"} <= program.head.keys(), program.name
        assert program.oracle in LOOKS, program.name
        if program.control in UNSTOPPED:
            assert program.head.get("trips"), program.name
        elif program.control == "larger":
            assert program.head.get("larger"), program.name
        else:
            assert program.control == "simulated", program.name
            assert controls.simulated_by(program)[0] in known, program.name


def test_every_row_has_a_program_or_a_check():
    rows = {row for part in (*programs(), *checks()) for row in part.rows}
    assert rows == {row.number for row in ROWS} == set(range(1, 97))


# --- files: links, pipes and trees made by the guest ---------------------------------------------


@gvisor.FILTER
def test_a_lease_of_the_guest_does_not_make_init_wait(sandbox):
    sandbox.files.write("leased", "x")
    taken = sandbox.run_code(
        "import fcntl, signal\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "file = open('leased', 'r+')\nfcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
    )
    assert taken.ok or taken.error.name == "PermissionError", taken.error
    began = time.monotonic()
    with contextlib.suppress(FileError):
        sandbox.files.write("leased", "y")
    assert time.monotonic() - began < 30  # a lease is broken after 45 seconds


def test_a_tree_three_thousand_deep_can_be_listed_and_removed(sandbox):
    made = sandbox.run_code(
        "import os\nos.mkdir('t')\nos.chdir('t')\n"
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chdir('/workspace')"
    )
    assert made.ok, made.error
    assert [info.name for info in sandbox.files.list("t")] == ["d"]
    sandbox.files.remove("t")
    assert not sandbox.files.exists("t")


def test_a_directory_of_the_longest_names_can_be_listed(sandbox):
    code = """
    import os
    os.makedirs('/'.join(['d' * 250] * 10))
    os.chdir('/'.join(['d' * 250] * 10))
    for number in range(600): os.close(os.open(b'\\xff%0249d' % number, os.O_CREAT))
    os.chdir('/workspace')
    """
    assert sandbox.run_code(textwrap.dedent(code)).ok
    assert len(sandbox.files.list("/".join(["d" * 250] * 10))) == 600
    assert sandbox.run_code("1").state_preserved


def test_a_guest_that_makes_directories_faster_than_they_are_removed_is_not_waited_for(sandbox):
    code = """
    import os
    for child in range(4):
        if os.fork() == 0:
            number = 0
            while True:
                number += 1
                try: os.makedirs(f'/workspace/t/{child}/{number}/a/b')
                except OSError: pass
    """
    sandbox.run_code(textwrap.dedent(code))
    began = time.monotonic()
    with contextlib.suppress(SandboxError):
        sandbox.files.remove("t")
    assert time.monotonic() - began < 60
    assert sandbox.run_code("1").ok


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.user_only
def test_without_a_control_group_the_watchdog_still_ends_who_holds_too_much(make_sandbox):
    sandbox = make_sandbox(limits={"memory": "64m"}, strict=False)
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable\n"
    code = hide + oracles.ESCAPES.joinpath("r24_children.py").read_text()
    sandbox.run_code(code + "\ntime.sleep(1.5)")

    def held():
        pages = 0
        for pid in tree(init_of(sandbox)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    # By themselves they would end after 30 seconds.
    census.wait_until(lambda: held() < 128 * MIB, 15, "the end of some of five, of 30 MiB each,")


@gvisor.PROCESSES
def test_a_fork_bomb_beside_a_command_is_ended_and_the_command_is_not(make_sandbox):
    sandbox = make_sandbox(limits={"processes": 32})
    results = []
    command = threading.Thread(
        target=lambda: results.append(sandbox.commands.run("sleep 4; echo done", timeout=60))
    )
    command.start()
    census.wait_until(lambda: len(tree(init_of(sandbox))) >= 4, what="the command")
    bomb = "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n"
    bomb += "    except OSError: pass\n"
    execution = sandbox.run_code(bomb, timeout=0.5)
    assert execution.outcome in ("timeout", "killed")
    # init, a new worker, the shell and its sleep
    census.wait_until(lambda: len(tree(init_of(sandbox))) <= 5, what="the end of the bomb")
    assert sandbox.run_code("1 + 1").value == 2
    command.join()
    assert (results[0].outcome, results[0].stdout) == ("ok", "done\n")


def test_floods_of_a_cell_and_of_a_command_at_once_are_both_cut_off(make_sandbox):
    sandbox = make_sandbox(limits={"output": "64k"})
    before, results = oracles.own_memory(), []
    command = threading.Thread(
        target=lambda: results.append(sandbox.commands.run("yes | tee /dev/stderr", timeout=60))
    )
    command.start()
    execution = sandbox.run_code("while True: print('x' * 5000, end='')", timeout=60)
    command.join()
    for run in (execution, results[0]):
        assert (run.outcome, run.truncated) == ("output_limit", True)
        assert len(run.stdout) + len(run.stderr) <= 64 * 1024
    assert oracles.own_memory() - before < 64 * MIB
    assert sandbox.run_code("1 + 1").value == 2


@gvisor.PROCESSES
def test_full_processes_do_not_keep_init_from_a_new_worker(make_sandbox):
    sandbox = make_sandbox(limits={"processes": 8, "open_files": 32})
    fill = "import os, time\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n"
    fill += "except OSError: pass\nopened = []\n"
    fill += "try:\n    while True: opened.append(os.open('/dev/null', 0))\nexcept OSError: pass\n"
    assert sandbox.run_code(fill).ok
    assert sandbox.run_code("os._exit(3)").exit_code == 3
    assert sandbox.run_code("1 + 1").value == 2
    assert sandbox.run_code("import threading; threading.Thread(target=print).start()").ok


def test_background_pipes_do_not_use_up_the_descriptors_of_init(make_sandbox):
    sandbox = make_sandbox(limits={"open_files": 32})
    for _ in range(30):
        assert sandbox.run_code(
            "import subprocess; p = subprocess.Popen(['sleep', '30'])"
        ).outcome in ("ok", "error")
    threads = [threading.Thread(target=sandbox.commands.run, args=("sleep 0.3",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sandbox.run_code("1 + 1").value == 2
    sandbox.files.write("still", "here")


# --- output, results, values ---------------------------------------------------------------------


def test_no_path_of_the_host_is_in_the_guests_own_program(make_sandbox):
    code = """
    import gc, os, re, sys
    places = set()
    for item in gc.get_objects():
        if isinstance(item, dict): places.update(v for v in item.values() if isinstance(v, str))
        if isinstance(item, (list, tuple)): places.update(v for v in item if isinstance(v, str))
    sorted(p for p in places if re.match('/(root|home|tmp/.*belljar)/', p))[:50]
    """
    found = make_sandbox().run_code(textwrap.dedent(code)).value
    home = os.path.expanduser("~")
    assert [p for p in found if "belljar" in p or p.startswith(home + "/.cache")] == []


# --- one after another, and side by side ---------------------------------------------------------


@gvisor.OUTSIDE
def test_a_broken_worker_between_cells_costs_the_state_not_the_next_answer(stage):
    """Bytes of nonsense, a close, a death, after the cell has ended."""
    for deed in (
        "runner._control.sendall(b'\\xff' * 1000)",
        "os._exit(4)",
        "os.kill(os.getpid(), 9)",
    ):
        sandbox = stage.start()
        worker = census.process(worker_of(sandbox))
        code = "import os, threading, time\nfrom hostile import worker\nrunner, _ = worker()\n"
        code += "def later():\n    while not os.path.exists('go'): time.sleep(0.01)\n"
        code += f"    {deed}\nthreading.Thread(target=later).start()"
        assert sandbox.run_code(code).ok
        sandbox.files.write("go", "")
        census.wait_until(lambda w=worker: not census.alive(w.pid, w.started), what=deed)
        sandbox.commands.run("true")  # init has had a turn since, and has taken notice
        execution = sandbox.run_code("1 + 1")
        assert (execution.outcome, execution.value) == ("ok", 2), (deed, execution.notes)
        assert not execution.state_preserved
        sandbox.close()


def test_sockets_given_to_a_thread_do_not_let_it_speak_for_another_cell(stage):
    """A thread of the first cell claims the second one's end while that is still running."""
    sandbox = stage.start()
    code = """
    import threading
    from hostile import DONE, SYNCED, forge, worker
    runner, request = worker()
    go = threading.Event()
    def later():
        go.wait(60)
        for number in range(request, request + 5):
            runner._control.sendall(forge(DONE, number, {'status': 'exit', 'exit_code': 0}))
    thread = threading.Thread(target=later)
    thread.start()
    """
    assert sandbox.run_code(textwrap.dedent(code)).ok
    claimed = "import time; go.set(); thread.join(); time.sleep(0.3); 'mine'"
    execution = sandbox.run_code(claimed, timeout=30)
    assert execution.outcome in ("ok", "exit", "killed")  # its own process: its own loss
    assert sandbox.run_code("1 + 1").outcome in ("ok", "killed")
    assert sandbox.run_code("1 + 1").value == 2


def test_restarts_that_race_with_dying_workers_all_come_back(make_sandbox):
    sandbox = make_sandbox()
    began = time.monotonic()
    for number in range(15):
        delay = 0.002 * (number % 5)
        timer = threading.Timer(delay, sandbox.restart)
        timer.start()
        deed = ("os._exit(1)", "os.kill(os.getpid(), 9)", "os.closerange(0, 99)")[number % 3]
        execution = sandbox.run_code(f"import os, time; time.sleep({delay}); {deed}", timeout=30)
        assert execution.outcome in ("killed", "lost", "cancelled"), execution
        timer.join()
    assert sandbox.run_code("1 + 1").value == 2
    assert time.monotonic() - began < 200


def test_a_host_address_is_no_address_of_the_guest(sandbox):
    """A server of the guest on every address is not reachable from the host."""
    with socket.socket() as taken:  # so that nobody else of this host listens there
        taken.bind(("0.0.0.0", 0))
        port = taken.getsockname()[1]
        code = f"import socket\nserver = socket.create_server(('0.0.0.0', {port}))"
        assert sandbox.run_code(code).ok
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=30)
