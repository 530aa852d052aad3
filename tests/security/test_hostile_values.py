"""A guest that lies about values: what it sends as descriptors, parts and calls. The host and its
other guests do not notice."""

import asyncio
import json
import os
import sys
import time
from textwrap import dedent

import anyio
import pytest

import control_groups
import fuzz_frames
from belljar import AsyncSandbox, Outcome
from belljar.errors import ProtocolError
from belljar.protocol import buffers, parcel, values, wire
from belljar.sandbox import calls
from outside import guest_of
from project import ESCAPES, REGRESSIONS

# Where no cgroup counts them, a guest has no memfds to send: its own code fails first.
NO_MEMFD = () if "memory" in control_groups.controllers() else (Outcome.error,)

FOUND = REGRESSIONS / "frames"
HOSTILE = ESCAPES / "hostile.py"
STALL = 1.0  # seconds that a neighbour may wait, on a busy machine
MB = 1 << 20

PRELUDE = f"""
import fcntl, os, socket, struct, sys
sys.path.insert(0, "/workspace")
from hostile import DONE, RESULT, forge, worker
CALL, PART = {wire.CALL}, {wire.PART}
runner, request = worker()
control = runner._control

def memory(size, seals=7, data=b""):
    seals = {{7: 2 | 4 | 8}}.get(seals, seals)
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, data or bytes(min(size, 1 << 20)))
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd

def lingering():
    listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(1)
    sock = socket.create_connection(listener.getsockname())
    globals()["peer"] = listener.accept()[0]
    try: sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    except PermissionError: pass  # as it should be: then it is one that is full
    sock.setblocking(False)
    try:
        while True: sock.send(bytes(65536))
    except BlockingIOError: pass
    return sock.detach()

def write_only(size):
    fd = memory(size, 0)
    other = os.open(f"/proc/self/fd/{{fd}}", os.O_WRONLY)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 2 | 4 | 8)
    return other

def send(frame, *fds):
    socket.send_fds(control, [frame], list(fds))
    for fd in set(fds): os.close(fd)
"""


def descriptors(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def attack(code, *, timeout=10, cells=1, **options):
    """Run hostile code beside an innocent guest: its last outcome, and how long that one waited.
    The sandbox is usable afterwards, and neither the host nor init has a descriptor more."""
    code = PRELUDE + dedent(code)

    async def serve(*args):
        return len(args)

    async with (
        AsyncSandbox(environment="python", functions={"f": serve}, **options) as hostile,
        AsyncSandbox(environment="python") as other,
    ):
        await other.run_code("1")
        await hostile.files.write("hostile.py", HOSTILE.read_text())
        await hostile.run_code("1")
        init, before = guest_of(hostile).pid, descriptors()
        inside = descriptors(init)
        slowest, outcome = 0.0, None
        for _ in range(cells):
            task = asyncio.create_task(hostile.run_code(code, timeout=timeout))
            while not task.done():
                began = time.perf_counter()
                assert (await other.run_code("1")).value == 1
                slowest = max(slowest, time.perf_counter() - began)
                await asyncio.sleep(0.01)
            outcome = (await task).outcome
        again = await hostile.run_code("f(1, 2)")
        assert again.value == 2, again
        await hostile.run_code("1")
        # The minder, in a thread of its own, has files of /proc open now and then.
        seen = []
        while not seen or (seen[-1] > before and len(seen) < 100):
            await asyncio.sleep(0.01)
            seen.append(descriptors())
        assert seen[-1] <= before
        if guest_of(hostile).pid == init:
            # What nobody asked for is kept until there is too much of it.
            assert descriptors(init) <= inside + buffers.MAX_FDS
        return outcome, slowest


DESCRIPTORS = {
    "none at all": "control.sendall(frame)",
    "memory that is not sealed": "send(frame, memory(SIZE, 0))",
    "memory that can be cut": "send(frame, memory(SIZE, 4 | 8))",
    "memory that can be written": "send(frame, memory(SIZE, 2 | 4))",
    "memory that cannot be read": "send(frame, write_only(SIZE))",
    "memory of another size": "send(frame, memory(SIZE + 1))",
    "a hole": "send(forge(*kind, {**header, 'shared': 1 << 28}), memory(1 << 28))",
    "a pipe": "send(frame, os.pipe()[0])",
    "a directory": "send(frame, os.open('/workspace', os.O_RDONLY))",
    "a path": "send(frame, os.open('/workspace', os.O_PATH))",
    "a socket": "send(frame, socket.socket().detach())",
    "a socket that lingers": "send(frame, lingering())",
    "the runner's own socket": "send(frame, os.dup(control.fileno()))",
    "many": "send(frame, *[memory(SIZE)] * 100)",
    "two": "send(frame, memory(SIZE), memory(SIZE))",
    "a size that is no number": "send(forge(*kind, {**header, 'shared': 'x'}), memory(SIZE))",
    "a size beyond all": "send(forge(*kind, {**header, 'shared': 2**70}), memory(SIZE))",
    "a size below zero": "send(forge(*kind, {**header, 'shared': -1}), memory(SIZE))",
    "no size at all": "send(forge(*kind, {**header, 'shared': 0}), memory(0))",
}


@pytest.mark.parametrize("frame", ["value", "call"])
@pytest.mark.parametrize("what", DESCRIPTORS)
def test_a_false_descriptor_harms_only_its_sender(backend, what, frame):
    kind = {
        "value": "kind, header = (DONE, request), {'status': 'ok', 'shared': SIZE}",
        "call": "kind, header = (CALL, 1), {'function': 'f', 'shared': SIZE}",
    }[frame]
    code = f"SIZE = 300_000\n{kind}\nframe = forge(*kind, header)\n{DESCRIPTORS[what]}\n"
    outcome, slowest = asyncio.run(attack(code + "import time; time.sleep(0.2)"))
    assert outcome in (Outcome.ok, Outcome.killed, Outcome.lost, *NO_MEMFD)
    assert slowest < STALL


def test_empty_shared_memory_costs_the_worker_and_not_the_guest(make_sandbox):
    sandbox = make_sandbox(environment="python")
    sandbox.files.write("hostile.py", HOSTILE.read_text())
    sandbox.files.write("kept", "1")
    code = "send(forge(CALL, 1, {'function': 'f', 'shared': 0}), memory(0))\n"
    execution = sandbox.run_code(PRELUDE + code + "import time; time.sleep(9)")
    assert execution.outcome in (Outcome.killed, *NO_MEMFD)
    assert sandbox.files.read("kept") == "1"


def test_descriptors_that_nobody_asked_for_are_closed(backend):
    code = """
    frame = forge(RESULT, request, {"parts": [], "main": False})
    for _ in range(20):
        send(frame, memory(100), memory(100))
    """
    outcome, _ = asyncio.run(attack(code, cells=5))
    assert outcome in (Outcome.ok, Outcome.killed, *NO_MEMFD)


@pytest.mark.parametrize("size", [2**29 + 1, 2**40, 2**47, 2**48, 2**63, -1, 0])
def test_parts_that_promise_more_than_there_may_be_take_no_memory(backend, size):
    before = resident()
    code = f'control.sendall(forge(PART, 0, {{"key": 1, "size": {size}}}, bytes(1000)))'
    outcome, _ = asyncio.run(attack(code + "\nimport time; time.sleep(0.2)"))
    assert outcome in (Outcome.killed, Outcome.lost)
    assert resident() - before < 100 * MB


def test_parts_that_are_never_finished_are_forgotten_with_their_cell(backend):
    async def main():
        code = """
        for _ in range(200):
            control.sendall(forge(PART, 0, {"key": 1, "size": 100 << 20}, bytes(1 << 18)))
        """
        await attack(code)
        before = resident()
        for _ in range(4):
            outcome, _ = await attack(code, cells=2)
            assert outcome is Outcome.ok
        return resident() - before

    assert asyncio.run(main()) < 120 * MB


@pytest.mark.parametrize(
    "frames",
    [
        '[forge(CALL, 1, {"function": "f"}), forge(CALL, 1, {"function": "f"})]',
        '[forge(CALL, 2**32 - 1, {"function": "f"})]',
        '[forge(CALL, 1, {"function": "f" * 101})]',
        '[forge(CALL, 1, {"function": 5, "shared": 300_000})]',
        '[forge(CALL, 1, {"function": "os.system"}, b"x")]',
        '[forge(CALL, 1, {"function": "f", "parts": 10})]',
        '[forge(CALL, 1, {"function": "f", "parts": 10, "shared": 10})]',
        '[forge(PART, 0, {"key": 0, "size": 9}, b"x"), forge(DONE, request, {"status": "ok"})]',
        '[forge(PART, 0, {"key": 0, "size": 9}, b"x" * 10)]',
        '[forge(PART, 0, {"key": k, "size": 9}, b"x") for k in range(200)]',
        '[forge(DONE, request, {"status": "ok", "parts": 100})]',
        '[forge(DONE, request, {"status": "ok", "parts": 2**47})]',
        '[forge(DONE, request + 1, {"status": "ok"}), forge(DONE, 2**32 - 1, {"status": "ok"})]',
        '[forge(68, 0, {"nonce": ""}), forge(DONE, request, {"status": "ok"}), forge(68, 0, {})]',
        '[forge(8, 1, {"call": 1, "ok": True})]',
        '[forge(40, request, {"key": 0})]',
    ],
)
def test_forged_calls_and_parts_harm_only_their_sender(backend, frames):
    code = f"for frame in {frames}: control.sendall(frame)\nimport time; time.sleep(0.1)"
    outcome, slowest = asyncio.run(attack(code))
    assert outcome in (Outcome.ok, Outcome.killed, Outcome.lost, *NO_MEMFD)
    assert slowest < STALL


def test_a_flood_of_calls_that_reads_no_answer_is_bounded(backend):
    """The guest's own memory pays for answers that it does not take."""
    arguments = values.encode({"args": [1], "kwargs": {}}).join()
    code = f"""
    arguments = {arguments!r}
    for number in range(1, 100_001):
        control.sendall(forge(CALL, number, {{"function": "f"}}, arguments))
    """
    before = resident()
    outcome, slowest = asyncio.run(attack(code, timeout=20))
    assert outcome in (Outcome.killed, Outcome.timeout, Outcome.out_of_memory, Outcome.ok)
    assert resident() - before < 150 * MB
    assert slowest < STALL


def test_large_answers_that_are_not_taken_do_not_fill_the_host(backend):
    arguments = values.encode({"args": [], "kwargs": {}}).join()

    def big():
        return bytes(20 * MB)

    async def main():
        limits = {"memory": "128m"}
        async with AsyncSandbox(
            environment="python", functions={"big": big}, limits=limits, strict=False
        ) as sandbox:
            await sandbox.files.write("hostile.py", HOSTILE.read_text())
            await sandbox.run_code("1")
            code = f"""
            for number in range(1, 60):
                control.sendall(forge(CALL, number, {{"function": "big"}}, {arguments!r}))
            import time; time.sleep(60)
            """
            before, most = resident(), 0
            task = asyncio.create_task(sandbox.run_code(PRELUDE + dedent(code), timeout=4))
            while not task.done():
                most = max(most, resident() - before)
                await asyncio.sleep(0.01)
            assert (await task).outcome is not Outcome.ok
            assert (await sandbox.run_code("1")).value == 1
            return most

    assert asyncio.run(main()) < 600 * MB


def test_results_of_the_largest_size_in_a_loop_are_bounded(backend):
    code = """
    size = 12 << 20
    header = {"parts": [{"mime": "text/plain", "size": size, "text": True}], "main": False}
    frame = forge(RESULT, request, header, b"x" * size)
    while True: control.sendall(frame)
    """
    before = resident()
    outcome, slowest = asyncio.run(
        attack(code, timeout=4, limits={"output": "8m", "memory": "512m"}, strict=False)
    )
    assert outcome in (Outcome.output_limit, Outcome.timeout, Outcome.killed)
    assert resident() - before < 500 * MB
    assert slowest < STALL


@pytest.mark.parametrize("case", sorted(FOUND.glob("*.bin")), ids=lambda path: path.stem)
def test_what_the_fuzzer_has_found_is_found_no_more(case):
    try:
        fuzz_frames.attempt(case.read_bytes())
    finally:
        fuzz_frames.finish()


async def refuse_the_last(*headers):
    """Calls as init could forge them, one after the other."""

    async def answer(call, header, value):
        await asyncio.sleep(60)

    parcel = values.encode({"args": [], "kwargs": {}}).join()
    deadline = calls.Deadline(anyio.CancelScope(), None)
    async with calls.Calls(fuzz_frames.REGISTRY, answer, MB, deadline) as made:
        for header in headers[:-1]:
            made.start(wire.Frame(wire.CALL, 1, header, parcel), parcel)
        with pytest.raises(ProtocolError):
            made.start(wire.Frame(wire.CALL, 1, headers[-1], parcel), parcel)


def test_two_calls_of_one_number_cannot_be():
    call = {"call": 7, "function": "answer"}
    asyncio.run(refuse_the_last(call, call))


@pytest.mark.parametrize(
    "call",
    [
        {"call": 7, "function": "f" * 101},  # names are kept: ten thousand of them
        {"call": 7, "function": 5},
        {"call": 2**32, "function": "f"},
        {"call": -1, "function": "f"},
        {"call": True, "function": "f"},
    ],
)
def test_a_call_of_what_is_no_name_or_has_no_number_is_refused(call):
    asyncio.run(refuse_the_last(call))


# --- values that are built here ----------------------------------------------------------------

PRIME = (1 << 61) - 1  # hashes of numbers are their rest


def forged_value(skeleton, *pixels):
    """A parcel as hostile code would write it, without our own encoder."""
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    return parcel.Encoded(text, [memoryview(each) for each in pixels]).join()


BUILT = {
    "colliding keys": forged_value({"set": [{"int": hex(PRIME * n)} for n in range(1, 8000)]}),
    "colliding keys of a dict": forged_value(
        {"map": [[{"tuple": [{"int": hex(PRIME * n)}]} for n in range(1, 4000)], [0] * 3999]}
    ),
    "unhashable keys": forged_value({"map": [[[1]], [2]]}),
    "a key twice": forged_value({"map": [[1, 1.0], [2, 3]]}),
    "a set of itself": forged_value(b'{"frozenset":' * 400 + b"[]" + b"}" * 400),
    "a class of the host": forged_value(
        {"object": ["dataclass", "subprocess:Popen", None, {"dict": {"args": "id"}}]}
    ),
    "a module to import": forged_value({"object": ["enum", "antigravity:Box", "x", 1]}),
    "objects in objects": forged_value(
        b'{"object":["member","a:b",null,' * 400 + b"1" + b"]}" * 400
    ),
    "an image of no pixels": forged_value(
        {"image": {"mode": "RGB", "size": [99_999, 99_999], "pixels": 0}}, bytes(100)
    ),
    "an endless range": forged_value({"range": [0, {"int": hex(10**1000)}, 1]}),
    "notes": forged_value([{"noted": [f"\x1b[3{n}m", n]} for n in range(1000)]),
}


@pytest.mark.parametrize("what", BUILT)
def test_a_value_that_is_built_here_harms_nobody(backend, what):
    """As the value of a cell, and as an argument; the host imports nothing for it."""
    code = f"""
    parcel = {BUILT[what]!r}
    control.sendall(forge(CALL, 1, {{"function": "f"}}, parcel))
    control.sendall(forge(DONE, request, {{"status": "ok"}}, parcel))
    import time; time.sleep(0.1)
    """
    outcome, slowest = asyncio.run(attack(code))
    assert outcome in (Outcome.ok, Outcome.killed)
    assert slowest < STALL
    assert "antigravity" not in sys.modules


def test_what_a_guest_notes_is_short_and_printable(sandbox):
    sandbox.files.write("hostile.py", HOSTILE.read_text())
    notes = ["\x1b[31m" + "x" * 240] * 10
    code = f"""
    control.sendall(forge(DONE, request, {{"status": "ok", "notes": {notes!r}}}))
    """
    execution = sandbox.run_code(PRELUDE + dedent(code))
    assert len(execution.notes) <= 11
    assert "\x1b" not in str(execution)
    for wrong in (["x"] * 11, ["x" * 251], [5], "x"):
        code = f"control.sendall(forge(DONE, request, {{'status': 'ok', 'notes': {wrong!r}}}))\n"
        execution = sandbox.run_code(PRELUDE + code + "import time; time.sleep(9)")
        assert execution.outcome is Outcome.killed
        assert sandbox.run_code("1").ok
