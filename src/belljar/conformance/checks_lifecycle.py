"""How guests start and end: all layers on, no longer than their host, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from belljar.backends.linux import cgroup, seccomp
from belljar.conformance.footprint import find_leftovers, list_control_groups, take_footprint
from belljar.conformance.posture import status
from belljar.conformance.processes import (
    TooLate,
    alive,
    descendants,
    family,
    init_of,
    process,
    settle,
    tasks_below,
    threads,
    tree,
    wait_until,
)
from belljar.conformance.report_data import Look, NotHere, NotRun
from belljar.conformance.stage import Stage, check, is_visible
from belljar.environment.environment import Environment
from belljar.errors import BackendUnavailable, SandboxError, SandboxPaused
from belljar.sandbox import channel
from belljar.sandbox.blocking import Sandbox

_HOST = """
import sys
sys.path[:0] = {path!r}
from belljar import Sandbox
sandbox = Sandbox.create(environment="python", **{options!r})
sandbox.run_code("import os, time\\nif os.fork() == 0: os.setsid(); time.sleep(600)")
print(sandbox._sandbox._session.guest.pid, flush=True)
sandbox.run_code("import time; time.sleep(600)", timeout=600)
"""


@check(
    39,
    what="kill the host process while its guest runs a daemon",
    expected="the guest, its daemon and all helper processes end too",
)
def killed_host(stage: Stage, look: Look) -> None:
    program = _HOST.format(path=[p for p in sys.path if p], options=stage.setting.options)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        try:
            init = int(host.stdout.readline() or 0)
            if not init:
                raise NotHere("the guest is on another machine")
            before = {p.pid: p for p in (*family(host.pid), *family(init))}.values()
        finally:
            host.kill()
    few = 2 if stage.setting.gvisor else 4  # host, init, worker, its daemon
    look.control(len(before) >= few, f"{len(before)} processes ran before")
    left = settle(lambda: [str(p) for p in before if alive(p.pid, p.started)], timeout=60.0)
    look.expect(not left, f"all {len(before)} have ended", left)
    if not stage.setting.docker:
        groups = settle(lambda: _groups_left(host.pid))
        look.expect(not groups, "no control group is left", groups)


def _groups_left(owner: int) -> list[str]:
    cgroup.sweep()  # the next process that starts a sandbox does the same
    return list_control_groups(f"belljar-{owner}-")


@check(
    89,
    what="start sandboxes and end them in every way: close, kill from outside, kill in a cell",
    expected="no process, descriptor, mount, control group, namespace or file is left",
)
def starts_and_ends(stage: Stage, look: Look, times: int = 12) -> None:
    stage.open(strict=False).run_code("1")
    before = take_footprint(stage.setting)
    for number in range(times):
        sandbox = stage.open(strict=False)
        init = init_of(sandbox)
        if number % 3 == 0:
            sandbox.run_code("import os; os.fork() or os._exit(1)")
        elif number % 3 == 1 and init:
            with contextlib.suppress(PermissionError):  # it belongs to another user
                os.kill(init, signal.SIGKILL)
        else:
            killer = threading.Timer(0.01, sandbox.kill)
            killer.start()
            with contextlib.suppress(SandboxError):
                sandbox.run_code("import time; time.sleep(5)")
            killer.join()
        sandbox.close()
    # asyncio keeps pidfds of children whose end it has not handled yet.
    left = find_leftovers(before, stage.setting, matters=lambda line: "pidfd" not in line)
    look.expect(not left, f"{times} sandboxes left nothing behind", left)
    reading, writing = os.pipe()
    look.control(find_leftovers(before, stage.setting, timeout=0.1), "a pipe left open is seen")
    os.close(reading)
    os.close(writing)


@check(
    90,
    what="a layer that fails: a filter that the kernel refuses",
    expected="no guest starts, and the error names the step",
)
def missing_layer(stage: Stage, look: Look) -> None:
    if stage.setting.docker:
        raise NotHere("the engine applies the layers of a container")
    before = {p.pid for p in descendants(os.getpid())}
    with mock.patch.object(seccomp, "compile_profile", return_value=b"\xff" * 64):
        try:
            stage.open(environment=Environment("without-seccomp"), strict=False)
            look.wrong("a guest started without its filter")
        except BackendUnavailable as error:
            look.expect("seccomp" in str(error), f"refused: {error.message}", error)

    def few() -> bool:  # the launcher and the two of the zygote of that environment
        return len([p for p in descendants(os.getpid()) if p.pid not in before]) <= 3

    if look.happens(few, "the end of the failed guest", timeout=20.0):
        look.saw("no process of it is left")
    look.control(stage.new_sandbox_answers(), "with the filter, a guest starts")


@check(
    90,
    what="run code before every layer is on",
    expected="the host sends a guest nothing before it has checked its layers",
)
def layers_come_first(stage: Stage, look: Look) -> None:
    sent: list[int] = []
    send = channel.Channel.send

    async def watched(self: channel.Channel, *args: object) -> None:
        sent.append(len(args))
        await send(self, *args)  # type: ignore[arg-type]

    with mock.patch.object(channel.Channel, "send", watched):
        sandbox = stage.open(strict=False)
        look.expect(not sent, "the host sent nothing while the guest started", len(sent))
        init = init_of(sandbox)
        if is_visible(init) and not stage.setting.gvisor:
            state = status(init)
            found = (state["Seccomp"], state["NoNewPrivs"], int(state["CapBnd"], 16))
            look.expect(found == ("2", "1", 0), f"filter, no_new_privs, capabilities: {found}")
        sandbox.run_code("1")
        look.control(sent, f"running a cell sends {len(sent)} messages")


@check(
    90,
    what="kill guests during their setup",
    expected="a guest that was not confined yet never runs code; other guests start",
)
def killed_in_setup(stage: Stage, look: Look, times: int = 10) -> None:
    if stage.setting.docker:
        raise NotHere("a container is confined before its first process starts")
    sandbox = stage.open(strict=False)
    sandbox.run_code("1")
    first = process(init_of(sandbox))
    assert first is not None
    if not _children_of(first.parent).exists():
        raise NotRun("this kernel does not list the children of a process")
    failures = 0
    stage.canaries.reset()
    with _hunt(first.parent) as (seen, unconfined):
        for _ in range(times):
            try:
                stage.open(strict=False).run_code("1")
            except SandboxError:
                failures += 1
    look.expect(
        len(unconfined) >= failures,
        f"{len(unconfined)} unconfined guests were killed, {failures} starts failed",
    )
    stage.check_canaries(look)
    look.expect(stage.new_sandbox_answers(), "a new sandbox works")
    look.control(seen, f"{len(seen)} guests were seen during their setup")


def _children_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/task/{pid}/children")


@contextlib.contextmanager
def _hunt(zygote: int) -> Iterator[tuple[list[int], list[int]]]:
    """Kill new guests of a zygote that are not confined yet. Gives those seen, and those killed."""
    before = {p.pid for p in descendants(zygote)}
    seen: list[int] = []
    unconfined: list[int] = []
    stop = threading.Event()

    def hunt() -> None:
        while not stop.is_set():
            for pid in map(int, _children_of(zygote).read_text().split()):
                if pid in before or pid in seen:
                    continue
                seen.append(pid)
                time.sleep(0.001 * (len(seen) % 7))
                with contextlib.suppress(OSError):
                    if status(pid)["Seccomp"] != "2":
                        unconfined.append(pid)
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield seen, unconfined
    finally:
        stop.set()
        thread.join()


@check(
    91,
    what="find a task without the filter among threads, children, programs and daemons",
    expected="every task has the filter, no capability and the same identity",
)
def every_task(stage: Stage, look: Look) -> None:
    sandbox = stage.open(limits={"processes": 40}, strict=False)
    if stage.setting.gvisor:
        raise NotHere("the host sees gVisor's kernel, not the guest's tasks")
    init = init_of(sandbox)
    if not is_visible(init):
        raise NotHere("this user may not inspect the guest's processes")
    sandbox.run_code(
        "import os, subprocess, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "if os.fork() == 0:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    os.setsid(); time.sleep(60); os._exit(0)\n"
        "program = subprocess.Popen(['sleep', '60'])"
    )
    with contextlib.suppress(TooLate):  # the child may start its thread late
        wait_until(lambda: tasks_below(init) >= 6)
    found: dict[tuple[str, ...], int] = {}
    names = ("Uid", "CapPrm", "CapEff", "CapBnd", "CapAmb", "CapInh", "NoNewPrivs", "Seccomp")
    for pid in tree(init):
        for tid in threads(pid):
            state = status(pid, tid)
            key = tuple(state[name] for name in names)
            found[key] = found.get(key, 0) + 1
    look.expect(len(found) == 1, f"all {sum(found.values())} tasks are alike", found)
    ((*_, no_new_privs, filtered), *_) = found
    look.expect((no_new_privs, filtered) == ("1", "2"), "no_new_privs 1, seccomp 2 in each")
    powers = {value for key in found for value in key[1:6]}
    look.expect(powers == {"0" * 16}, "no capability in any set of any task", powers)
    look.control(sum(found.values()) >= 6, f"{sum(found.values())} tasks were checked")
    ours = tuple(status(os.getpid())[name] for name in names)
    look.control(ours not in found, f"the host process differs: {', '.join(ours)}")


_BUSY = """
import subprocess
mark = {mark!r}
fork = 'while :; do (:) & (:) & wait; done'
busy = [subprocess.Popen(['bash', '-c', fork], stderr=subprocess.DEVNULL) for _ in range(2)]
busy += [subprocess.Popen(['sh', '-c', 'while :; do :; done'])]
"""
_WAKE = """
import ctypes, signal, struct, threading
signal.signal(signal.SIGCONT, lambda *_: None)
libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
event = ctypes.create_string_buffer(struct.pack('QiiQ40x', 0, signal.SIGCONT, 0, 0), 64)
libc.timer_create(1, event, ctypes.byref(timer))
every = ctypes.create_string_buffer(struct.pack('4q', 0, 20_000_000, 0, 20_000_000), 32)
libc.timer_settime(timer, 0, every, None)
def run():
    while True: pass
threading.Thread(target=run, daemon=True).start()
"""
_STILL = 0.05  # seconds of processor time in one second: gVisor's own kernel takes some


@check(
    94,
    what="go on computing and forking while the sandbox is paused",
    expected="it uses no processor time, and afterwards goes on with all it had",
)
def paused(stage: Stage, look: Look) -> None:
    sandbox, mark = stage.open(strict=False), os.urandom(8).hex()
    look.expect(sandbox.run_code(_BUSY.format(mark=mark)).ok, "processes compute and fork")
    look.control(_spend(sandbox) > _STILL, "its processor time is seen from outside")
    sandbox.pause()
    used = _spend(sandbox)
    look.expect(used < _STILL, f"{used:.3f} s of processor time in a second of the pause", used)
    with look.refused("a cell in a paused sandbox", SandboxPaused):
        sandbox.run_code("1")
    sandbox.resume()
    look.expect(_spend(sandbox) > _STILL, "afterwards they compute again")
    look.expect(sandbox.run_code("mark").value == mark, "it has its variables")


@check(
    94,
    what="have a timer of the kernel send SIGCONT while the sandbox is paused",
    expected="it does not go on, or it is not paused and the caller knows, or it is killed",
)
def woken(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    look.expect(sandbox.run_code(_WAKE).ok, "a timer and a busy thread are there")
    look.control(_spend(sandbox) > _STILL, "its processor time is seen from outside")
    try:
        sandbox.pause()
    except SandboxError as error:
        look.saw(f"pause() says that it could not: {error.message}")
        return
    look.happens(
        lambda: not sandbox.alive or _spend(sandbox) < _STILL, "the end of all it computes"
    )
    look.saw("it stands still" if sandbox.alive else "it was killed")


def _spend(sandbox: Sandbox) -> float:
    """Seconds of processor time in one second."""
    before = sandbox.usage().cpu
    time.sleep(1)
    after = sandbox.usage().cpu
    if before is None or after is None:
        raise NotHere("the processor time of the guest cannot be read here")
    return after - before


_FORGE = """
import json, os, socket, struct, time
header = json.dumps({'status': 'ok', 'lost': True}).encode()
told = open('/workspace/forged', 'w', 1)
for fd in range(3, 64):
    try:
        wire = socket.socket(fileno=os.dup(fd))
        wire.setblocking(False)
        for kind in (66, 65, 68):
            for request in range(1, 200):
                wire.send(struct.pack('!BIII', kind, request, len(header), 0) + header)
                print(request, file=told)
    except OSError: pass
time.sleep(1)
"""
_VICTIM = """
import os, time
while not os.path.exists('/workspace/forged'): time.sleep(0.01)
time.sleep(0.5)
{mark!r}
"""


@check(
    96,
    what="end the cell of another context by frames on a context's own socket",
    expected="init takes what a worker says for its own cell alone, and the other goes on",
)
def contexts(stage: Stage, look: Look) -> None:
    sandbox, mark = stage.open(strict=False), os.urandom(8).hex()
    forger, victim = sandbox.contexts.create(), sandbox.contexts.create()
    sandbox.run_code(f"kept = {mark!r}", context=victim)
    forging = threading.Thread(target=lambda: sandbox.run_code(_FORGE, context=forger, timeout=30))
    forging.start()
    told = sandbox.run_code(_VICTIM.format(mark=mark), context=victim, timeout=30)
    forging.join()
    look.expect(told.value == mark, "the cell of the other context gave its own value", told.value)
    look.expect(sandbox.run_code("kept", context=victim).value == mark, "it has its variables")
    look.expect(sandbox.run_code("1").ok, "the sandbox's own interpreter lives")
    sent = len(sandbox.files.read("/workspace/forged").splitlines())
    look.control(sent > 0, f"{sent} frames were written to the worker's own socket")
