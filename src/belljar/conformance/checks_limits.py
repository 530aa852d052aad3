"""Limits and options: what a guest takes from its neighbours, and what a caller asks for."""

from __future__ import annotations

import contextlib
import os
import time
import warnings

from belljar.backends.linux.posture import most_files
from belljar.conformance.attempts import MIB
from belljar.conformance.processes import (
    Counters,
    family,
    init_of,
    settle,
    shared_memory,
    worker_of,
)
from belljar.conformance.programs import ANSWERED_INSIDE, find_program
from belljar.conformance.report_data import Look, NotHere
from belljar.conformance.stage import Stage, check, is_visible
from belljar.errors import FileError, LimitNotEnforceable, SandboxError
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
    what="use up what the kernel counts per user: timers, watches, epolls, descriptors in flight",
    expected="a neighbour is not affected",
)
def neighbours(stage: Stage, look: Look) -> None:
    greedy, neighbour = stage.start(), stage.open(strict=False)
    neighbour.run_code("mine = 5")
    hoarded = greedy.run_code(_HOARD).value
    look.control(isinstance(hoarded, int) and hoarded > 10, f"the guest holds {hoarded} objects")
    answers = [neighbour.run_code("mine").value for _ in range(3)]
    look.expect(answers == [5, 5, 5], "the neighbour's variables are there", answers)
    used = neighbour.run_code(_USE)
    look.expect(used.value in (1, None), "it can use the same objects", used.error)
    command = neighbour.commands.run("echo fine")
    look.expect(command.stdout == "fine\n", "it can run commands", command.stderr)
    look.expect(greedy.run_code("1 + 1").value == 2, "the greedy guest goes on too")


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
    what="four processes spin under a limit of half a processor",
    expected="they use no more processor time than the limit",
)
def processor_share(stage: Stage, look: Look) -> None:
    counted = stage.setting.counted
    if stage.setting.gvisor:
        raise NotHere("the host sees the time of gVisor's kernel, not of the guest alone")
    share = 0.5 if counted else 1.0
    sandbox = stage.open(limits={"cpus": share}, strict=counted)
    init = init_of(sandbox)
    if not is_visible(init):
        raise NotHere("this user may not inspect the guest's processes")

    def spent() -> float:
        if counted:
            return Counters(init).cpu_seconds
        return sum(p.ticks for p in family(init)) / os.sysconf("SC_CLK_TCK")

    before, began = spent(), time.monotonic()
    sandbox.run_code(_SPIN, timeout=60)
    used, wall = spent() - before, time.monotonic() - began
    look.control(used > 0.3, f"{used:.2f} s of processor time were counted")
    look.expect(
        used <= share * wall * 1.25 + 0.2,
        f"{used:.2f} s of processor time in {wall:.2f} s, {share:g} allowed",
    )
    layer = sandbox.isolation.layer("cpus")
    look.expect(layer.state == "enforced", f"reported as enforced: {layer.detail}", layer)


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
    what="set a memory limit that the host cannot enforce; hide memory outside any process",
    expected="a warning, or a refusal if enforcement is required; hidden memory is refused",
)
def memory_without_control_groups(stage: Stage, look: Look) -> None:
    if stage.setting.counted:
        raise NotHere("control groups enforce the limit here")
    layer = stage.open(strict=False).isolation.layer("memory")
    look.expect(layer.state == "best-effort", f"reported: {layer.state}, {layer.detail}")
    look.expect(layer.remedy, f"with a remedy: {layer.remedy}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stage.open(limits={"memory": "64m"})
    look.expect(any("memory" in str(each.message) for each in said), "a warning names the limit")
    with look.refused("a limit that the host cannot enforce", LimitNotEnforceable):
        stage.open(limits={"memory": "64m"}, strict=True)
    sandbox = stage.open(limits={"memory": "64m"}, strict=False)
    before = shared_memory()
    segment = sandbox.run_code(_DETACHED + "segment").value
    look.expect(segment == -1, "shared memory that no process holds is refused", segment)
    # Memory that the guest hid would stay; other programs' use comes and goes.
    gone = settle(lambda: max(shared_memory() - before, 0) // (200 * MIB))
    look.expect(not gone, "less than 200 MiB more of shared memory than before")


@check(
    37,
    what="call a slow host function again and again: its time does not count as the code's",
    expected="time in the host is excused up to a limit, and then the cell ends",
)
def slow_function_without_end(stage: Stage, look: Look) -> None:
    def wait(seconds: float) -> None:
        time.sleep(seconds)

    unbounded = stage.open(limits={"timeout": 3, "host_time": None}, strict=False)
    unbounded.expose(wait)
    excused = unbounded.run_code("wait(3.5)")
    look.control(excused.ok, f"a call longer than the timeout is excused: {excused.outcome}")
    sandbox = stage.open(limits={"timeout": 1, "host_time": 1}, strict=False)
    sandbox.expose(wait)
    began = time.monotonic()
    ran = sandbox.run_code("while True: wait(0.1)")
    took = time.monotonic() - began
    look.expect(ran.outcome is Outcome.timeout, f"{ran.outcome} after {took:.1f} s", ran.error)
    look.expect(any("host_time" in note for note in ran.notes), "a note says so", ran.notes)
    look.expect(sandbox.run_code("1 + 1").value == 2, "the sandbox goes on")


@check(
    32,
    what="set a limit of open files above what this host lets a process have",
    expected="the code gets fewer, and isolation reports how many",
)
def more_files_than_there_are(stage: Stage, look: Look) -> None:
    def held(sandbox: Sandbox) -> int | None:
        """The limit as the kernel reports it, if the host sees the process."""
        ran = sandbox.run_code("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[1]")
        if is_visible(init_of(sandbox)) and not stage.setting.gvisor:
            return most_files(worker_of(sandbox))
        return ran.value if isinstance(ran.value, int) else None

    few = held(stage.open(limits={"open_files": 100}, strict=False))
    look.control(few == 100, f"a limit of 100 is in force as {few}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        sandbox = stage.open(limits={"open_files": 1_000_000}, strict=False)
    layer, holds = sandbox.isolation.layer("open_files"), held(sandbox)
    look.expect(f"{holds};" in layer.detail, f"reported: {layer.detail}", holds)
    look.expect(sandbox.run_code("1 + 1").value == 2, "the code runs")


_WIDER: tuple[dict[str, object], ...] = (
    {"mounts": ["/"]},
    {"network": "host"},
    {"network": ""},
    {"backend": "unsafe"},
    {"backend": "native; rm -rf /"},
    {"env": {"A=B": "c"}},
    {"env": {"A": "b\0c"}},
    {"limits": {"memory": -1}},
    {"limits": {"memory": "999999g"}},
    {"limits": {"processes": 10**9}},
    {"limits": {"root": True}},
    {"environment": "../../etc"},
    {"environment": "/"},
    {"strict": "no"},
)


@check(
    74,
    what="trick an egress allow-list: odd names, rebinding, addresses",
    expected="does not apply",
)
def allow_list(stage: Stage, look: Look) -> None:
    raise NotHere(
        "there is no allow-list: a sandbox has no network, unless its caller asks for "
        "network='open' with the docker backend"
    )


@check(
    75,
    what="get a network by leaving the option out, or by an empty value",
    expected="no option means no network; an empty value is an error",
)
def empty_network(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    told = sandbox.run_code(
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), timeout=2)\n"
        "except OSError as error: print(error)\n[name for _, name in socket.if_nameindex()]"
    )
    look.expect("timed out" not in told.stdout, f"no way out: {told.stdout.strip()}", told.stdout)
    for network in ("", "host", "bridge", "allow:"):
        with look.refused(f"network={network!r}"):
            stage.open(network=network, strict=False)
    look.control(sandbox.run_code("1 + 1").value == 2, "with network='none' a sandbox starts")


@check(
    87,
    what="options that would weaken isolation: mounts, networks, limits, environment names",
    expected="each is refused",
)
def wider_options(stage: Stage, look: Look) -> None:
    for options in _WIDER:
        with look.refused(str(options), (SandboxError, TypeError, ValueError)):
            stage.open(**options)
    look.control(stage.new_sandbox_answers(), "without them a sandbox starts")


@check(
    87,
    what="paths and working directories from the caller that lead out of the guest",
    expected="refused, or resolved inside the guest",
)
def paths_of_the_caller(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    outside = str(stage.canaries.secret_file)
    secret = stage.canaries.secret
    ways = ["../../../../etc/shadow", "/proc/1/root/etc/shadow", "//etc/shadow", outside]
    ways += [f"../../..{outside}", f"/proc/self/root{outside}", f"/proc/1/cwd/..{outside}"]
    for way in ways:
        try:
            content = sandbox.files.read(way)
            look.expect(secret not in content, f"{way}: leads to a file in the guest")
        except FileError:
            continue
    look.saw(f"{len(ways)} ways to a file of the host lead nowhere")
    for cwd in ("/proc/1/root", "../../..", "/proc/self/fd/3", os.path.dirname(outside)):
        ran = sandbox.commands.run(f"cat {outside[1:]} {outside} secret.txt", cwd=cwd)
        if secret in ran.stdout:
            look.wrong(f"cwd={cwd!r} leads to the host")
    with look.refused("a write to /etc/passwd"):
        sandbox.files.write("/etc/passwd", "x")
    for odd in ("\ud800", "a\ud800/b"):
        with contextlib.suppress(SandboxError):
            sandbox.files.read(odd)
    stage.check_canaries(look)
    look.expect(sandbox.run_code("1 + 1").state_preserved, "the sandbox goes on")
    with open(outside) as file:
        look.control(file.read() == secret, "on the host, the path leads to the secret")


@check(
    92,
    what="a kernel, engine or runtime whose default rules allow what Belljar's rules refuse",
    expected="the live guest has the layers that `doctor` measures; io_uring and odd sockets are "
    "refused",
)
def old_runtime(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    for layer in sandbox.isolation.layers:
        text = f"{layer.name}: {layer.state}, {layer.detail}"
        if layer.state == "enforced":
            look.saw(text)
        else:
            look.expect(layer.remedy, f"{text}; reported, with a remedy")
    look.control(sandbox.isolation.layers, "layers are measured on the live guest")
    for name in ("r67_io_uring", "r69_socket_families"):
        if stage.setting.gvisor and name in ANSWERED_INSIDE:
            look.saw(f"{name}: gVisor's kernel answers")
            continue
        execution, _ = stage.run_program(find_program(name), sandbox)
        achieved = "ACHIEVED" in execution.stdout
        look.expect(not achieved, f"{name}: tried on the live guest, refused", execution.stdout)
