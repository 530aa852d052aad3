"""Limits that only a second guest, or a clock, can show."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

from belljar.backends.linux.posture import most_files
from belljar.conformance.checks import check
from belljar.conformance.counters import Counters, shared_memory
from belljar.conformance.guests import init_of, worker_of
from belljar.conformance.looks import MIB
from belljar.conformance.processes import TooLate, tree, wait_until
from belljar.conformance.results import Look, NotHere
from belljar.conformance.stage import Stage, is_visible
from belljar.errors import LimitNotEnforceable
from belljar.results.execution import Outcome
from belljar.sandbox.blocking import Sandbox

_HOARD = """
import ctypes, os, select, socket
libc = ctypes.CDLL(None)
kept = []
def all_of(make, most):
    try:
        for _ in range(most): kept.append(make())
    except OSError: pass
all_of(lambda: libc.timerfd_create(0, 0), 10)
all_of(lambda: [libc.inotify_init() for _ in range(3)], 5)
all_of(select.epoll, 20)
reading = os.pipe()[0]
def park():
    left, right = socket.socketpair()
    kept.append((left, right))
    socket.send_fds(left, [b'x'], [reading] * 200)
all_of(park, 20)
len(kept)
"""
_USE = """
import os, select, socket
select.epoll(); a, b = socket.socketpair()
socket.send_fds(a, [b'x'], [0]); len(socket.recv_fds(b, 1, 1)[1])
"""


@check(
    33,
    26,
    what="hoard what the kernel counts by user: timers, watches, epolls, descriptors in flight",
    expected="a neighbour notices nothing",
)
def neighbours(stage: Stage, look: Look) -> None:
    greedy, neighbour = stage.start(), stage.open(strict=False)
    neighbour.run_code("mine = 5")
    hoarded = greedy.run_code(_HOARD).value
    look.control(isinstance(hoarded, int) and hoarded > 10, f"{hoarded} objects were hoarded")
    answers = [neighbour.run_code("mine").value for _ in range(3)]
    look.expect(answers == [5, 5, 5], "the neighbour's variables are there", answers)
    used = neighbour.run_code(_USE)
    look.expect(used.value in (1, None), "it can use the same objects", used.error)
    command = neighbour.commands.run("echo fine")
    look.expect(command.stdout == "fine\n", "it can run commands", command.stderr)
    look.expect(greedy.run_code("1 + 1").value == 2, "the greedy one goes on too")


_SPIN = """
import os, time
def spin():  # on a busy machine it may take a while to get any time at all
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 2 or time.process_time() < 0.3 and passed < 20:
        pass
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        spin()
        os._exit(0)
    children.append(child)
spin()
for child in children: os.waitpid(child, 0)
"""


@check(
    34,
    what="four processes that spin, where half a processor is allowed",
    expected="the time that was spent is at most the share",
)
def processor_share(stage: Stage, look: Look) -> None:
    counted = stage.setting.counted
    if stage.setting.gvisor:
        raise NotHere("the host sees the time of gVisor's kernel, of which the guest's is a part")
    share = 0.5 if counted else 1.0
    sandbox = stage.open(limits={"cpus": share}, strict=counted)
    init = init_of(sandbox)
    if not is_visible(init):
        raise NotHere("the guest's processes are not this user's to see")

    def spent() -> float:
        if counted:
            return Counters(init).cpu_seconds
        return sum(_cpu(pid) for pid in tree(init))

    before, began = spent(), time.monotonic()
    sandbox.run_code(_SPIN, timeout=60)
    used, wall = spent() - before, time.monotonic() - began
    look.control(used > 0.3, f"{used:.2f} s of processor time were counted")
    look.expect(
        used <= share * wall * 1.25 + 0.2,
        f"{used:.2f} s of processor time in {wall:.2f} s, {share:g} allowed",
    )
    layer = sandbox.isolation.layer("cpus")
    look.expect(layer.state == "enforced", f"said to be enforced: {layer.detail}", layer)


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended: its parent has its time
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


_DETACHED = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
libc.shmdt.argtypes = (ctypes.c_void_p,)
for _ in range(8):
    segment = libc.shmget(0, 32 << 20, 0o1600)
    if segment < 0: break
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, 32 << 20)
    libc.shmdt(place)
"""


@check(
    90,
    what="ask for a memory limit where the host cannot keep one; hide memory outside any process",
    expected="a warning, or a refusal if enforcement is required; hidden memory is refused",
)
def memory_without_control_groups(stage: Stage, look: Look) -> None:
    if stage.setting.counted:
        raise NotHere("control groups keep the limit here")
    layer = stage.open(strict=False).isolation.layer("memory")
    look.expect(layer.state == "best-effort", f"said aloud: {layer.state}, {layer.detail}")
    look.expect(layer.remedy, f"with a remedy: {layer.remedy}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stage.open(limits={"memory": "64m"})
    look.expect(any("memory" in str(each.message) for each in said), "a warning names the limit")
    try:
        stage.open(limits={"memory": "64m"}, strict=True)
        look.wrong("a limit that is not kept was taken")
    except LimitNotEnforceable as error:
        look.saw(f"refused: {error.message}")
    sandbox = stage.open(limits={"memory": "64m"}, strict=False)
    before = shared_memory()
    segment = sandbox.run_code(_DETACHED + "segment").value
    look.expect(segment == -1, "shared memory that no process holds is refused", segment)
    # What it has hidden would stay; what others of this machine use comes and goes.
    try:
        wait_until(lambda: shared_memory() - before < 200 * MIB)
        look.saw("the machine has less than 200 MiB more of shared memory than before")
    except TooLate:
        gone = shared_memory() - before
        look.wrong(f"the machine has {gone // MIB} MiB more of shared memory than before")


@check(
    37,
    what="call a slow function of the host again and again: its time is not the code's",
    expected="time in the host is excused up to a bound, and the cell ends",
)
def slow_function_without_end(stage: Stage, look: Look) -> None:
    def wait(seconds: float) -> None:
        time.sleep(seconds)

    unbounded = stage.open(limits={"timeout": 3, "host_time": None}, strict=False)
    unbounded.expose(wait)
    excused = unbounded.run_code("wait(3.5)")
    look.control(excused.ok, f"a call longer than the time-out is excused: {excused.outcome}")
    sandbox = stage.open(limits={"timeout": 1, "host_time": 1}, strict=False)
    sandbox.expose(wait)
    began = time.monotonic()
    ran = sandbox.run_code("while True: wait(0.1)")
    took = time.monotonic() - began
    look.expect(ran.outcome is Outcome.timeout, f"{ran.outcome} after {took:.1f} s", ran.error)
    look.expect(any("host_time" in note for note in ran.notes), "said in the notes", ran.notes)
    look.expect(sandbox.run_code("1 + 1").value == 2, "the sandbox goes on")


@check(
    32,
    what="ask for more open files than this host lets a process have",
    expected="the code has less, and isolation says how many",
)
def more_files_than_there_are(stage: Stage, look: Look) -> None:
    def held(sandbox: Sandbox) -> int | None:
        """By the kernel's word, where the host sees the process."""
        ran = sandbox.run_code("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[1]")
        if is_visible(init_of(sandbox)) and not stage.setting.gvisor:
            return most_files(worker_of(sandbox))
        return ran.value if isinstance(ran.value, int) else None

    few = held(stage.open(limits={"open_files": 100}, strict=False))
    look.control(few == 100, f"of 100 that were asked for, {few} hold")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        sandbox = stage.open(limits={"open_files": 1_000_000}, strict=False)
    layer, holds = sandbox.isolation.layer("open_files"), held(sandbox)
    look.expect(f"{holds};" in layer.detail, f"said: {layer.detail}", holds)
    look.expect(sandbox.run_code("1 + 1").value == 2, "the code runs")
