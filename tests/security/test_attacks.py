"""Attacks that once worked, and what they did not leave behind; judged from outside."""

import asyncio
import os
import statistics
import time
from textwrap import dedent

import anyio
import pytest

import gvisor
import setting
from belljar import AsyncSandbox, Outcome, runtime
from outside import guest_of

pytestmark = pytest.mark.contract("native")


def test_a_time_out_ends_threads_that_the_cell_started(sandbox):
    code = """
    import threading, time
    def spin():
        while True: pass
    threading.Thread(target=spin, daemon=True).start()
    time.sleep(60)
    """
    execution = sandbox.run_code(dedent(code), timeout=5)  # the thread has begun by then
    assert execution.outcome is Outcome.timeout
    assert not execution.state_preserved  # they cannot be ended but with the interpreter
    sandbox.run_code("1")  # the new one is ready
    before = anyio.run(guest_of(sandbox).read_usage).cpu
    time.sleep(0.5)  # what is measured is that nothing happens meanwhile
    assert anyio.run(guest_of(sandbox).read_usage).cpu - before < 0.2


@pytest.mark.usefixtures("patient")
def test_a_time_out_without_threads_keeps_the_variables(sandbox):
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("import time; time.sleep(60)", timeout=0.3)
    assert execution.outcome is Outcome.timeout
    assert sandbox.run_code("x").value == 1


@pytest.mark.usefixtures("patient")
def test_threads_of_earlier_cells_survive_a_time_out_of_a_later_one(sandbox):
    sandbox.run_code(
        "import threading, time\n"
        "stop = threading.Event()\n"
        "thread = threading.Thread(target=stop.wait, daemon=True); thread.start()\n"
        "time.sleep(0.05)"  # the kernel tells start times in hundredths of a second
    )
    execution = sandbox.run_code("time.sleep(60)", timeout=0.3)
    assert execution.outcome is Outcome.timeout
    assert sandbox.run_code("thread.is_alive()").value is True


@gvisor.OUTSIDE
def test_the_core_limit_that_stops_pipes_cannot_be_changed(sandbox):
    sandbox.run_code(
        "import resource\n"
        "try: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "except (ValueError, OSError): pass"
    )
    pids = guest_of(sandbox).pid
    with open(f"/proc/{pids}/limits") as file:
        (line,) = [line for line in file if line.startswith("Max core file size")]
    assert line.split()[4:6] == ["1", "1"]
    worker = sandbox.run_code("resource.getrlimit(resource.RLIMIT_CORE)").value
    assert worker == (1, 1)


def test_times_of_the_hosts_devices_are_out_of_reach(sandbox):
    before = os.stat("/dev/full").st_mtime_ns
    execution = sandbox.run_code("import os; os.utime('/dev/full')")
    # A container has nodes of its own: those it may touch.
    assert execution.outcome is (Outcome.ok if setting.DOCKER else Outcome.error)
    assert os.stat("/dev/full").st_mtime_ns == before


def test_many_sandboxes_asked_for_at_once_of_a_cold_zygote_all_start(backend):
    runtime.shutdown()

    async def one():
        async with AsyncSandbox(environment="python") as sandbox:
            return (await sandbox.run_code("1")).value

    async def many():
        return await asyncio.gather(*(one() for _ in range(50)))

    assert asyncio.run(many()) == [1] * 50


def test_a_flooding_guest_does_not_keep_others_waiting(make_sandbox):
    flood = """
    import struct, sys
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "_channel"): frame = frame.f_back
    header = b'{"parts":[{"mime":"text/plain","size":60000,"text":true}]}'
    message = struct.pack("!BIII", 65, 0, len(header), 60000) + header + b"x" * 60000
    while True: frame.f_locals["self"]._channel._socket.sendall(message)
    """

    async def both():
        async with (
            AsyncSandbox(environment="python") as hostile,
            AsyncSandbox(environment="python") as other,
        ):
            attack = asyncio.create_task(hostile.run_code(dedent(flood), timeout=3))
            waits = []
            while not attack.done():
                began = time.perf_counter()
                assert (await other.run_code("1")).value == 1
                waits.append(time.perf_counter() - began)
                await asyncio.sleep(0.02)
            return (await attack).outcome, waits

    outcome, waits = asyncio.run(both())
    assert outcome in (Outcome.output_limit, Outcome.timeout)
    # Not the slowest: the machine may have had other things to do once.
    assert statistics.median(waits) < 1.0


def test_a_value_that_cannot_travel_is_said_to_be_missing(sandbox):
    execution = sandbox.run_code("len")
    assert execution.ok
    assert execution.value is None
    assert execution.text == "<built-in function len>"
    assert any("is a builtin_function" in note for note in execution.notes)
