"""What a cell costs that uses nothing: no task, no wake-up too many, nothing that stays."""

import asyncio
import gc
import os
import socket
import threading
import time
import tracemalloc
from pathlib import Path

import anyio
import pytest

import census
from belljar import AsyncSandbox, Outcome
from belljar.backends import event_loop
from belljar.guest import cells, file_requests, streams
from belljar.guest.streams import MAX_LASTING, MAX_PASSING
from belljar.protocol import wire
from outside import channel_of
from project import ESCAPES

HOSTILE = ESCAPES / "hostile.py"
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


# --- tasks and pieces ------------------------------------------------------------------------


@pytest.mark.parametrize(("functions", "tasks"), [({}, 1), ({"f": len}, 2)])
def test_only_a_cell_that_can_call_the_host_has_a_task_beside_it(backend, functions, tasks):
    async def main():
        seen = []
        async with AsyncSandbox(environment="python", functions=functions) as sandbox:
            await sandbox.run_code("print(1)", on_stdout=lambda _: seen.append(asyncio.all_tasks()))
        return len(seen[0])

    # The runtime's own loop is another; here there is the one that waits.
    assert asyncio.run(main()) == tasks


def test_the_result_and_the_end_of_a_cell_come_in_one_piece(backend):
    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            await sandbox.run_code("1")
            stream = channel_of(sandbox)._stream
            receive, pieces = stream.receive, []

            async def counted():
                pieces.append(await receive())
                return pieces[-1]

            stream.receive = counted
            counts = []
            for _ in range(30):
                pieces.clear()
                assert (await sandbox.run_code("20 + 1")).value == 21
                counts.append(len(pieces))
            return counts

    # Where the machine is busy, the end may be late; what is there is not kept waiting for it.
    assert min(asyncio.run(main())) == 1


def test_results_keep_the_order_in_which_they_were_shown(backend):
    code = "class Slow:\n    def __repr__(self): return 'slow'\ndisplay(1); Slow()"

    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            return await sandbox.run_code(code)

    execution = asyncio.run(main())
    assert [result.text for result in execution.results] == ["1", "slow"]


def test_lines_that_follow_each_other_closely_come_together(backend):
    async def main():
        pieces = []
        async with AsyncSandbox(environment="python") as sandbox:
            code = "for n in range(20_000): print(n)"
            execution = await sandbox.run_code(code, on_stdout=pieces.append)
        assert execution.stdout == "".join(pieces) == "".join(f"{n}\n" for n in range(20_000))
        return len(pieces)

    assert asyncio.run(main()) < 2000


# --- nothing grows ---------------------------------------------------------------------------


def test_thousands_of_cells_leave_nothing_behind(backend):
    look = """
    import linecache, os
    texts = sum(name.startswith("<cell ") for name in linecache.cache)
    (texts, int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    """.replace("\n    ", "\n")

    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            await sandbox.run_code("def first():\n    return 'first'")

            async def state():
                texts, worker = (await sandbox.run_code(look)).value
                init = sandbox.whereabouts.pid
                gc.collect()
                return texts, worker, resident(init) if init else 0, len(gc.get_objects())

            for number in range(300):
                await sandbox.run_code(f"x = {number}")
            before = await state()
            for number in range(2000):
                await sandbox.run_code(f"x = {number}")
            after = await state()
            source = await sandbox.run_code("import inspect; inspect.getsource(first)")
            return before, after, source.value

    before, after, source = asyncio.run(main())
    assert source.startswith("def first")  # what can still be called can be shown
    assert after[0] <= MAX_PASSING + 5
    assert after[1] - before[1] < 1 << 20  # worker
    assert after[2] - before[2] < 1 << 20  # init
    assert after[3] - before[3] < 500  # objects here


def test_texts_of_cells_that_made_functions_are_kept_up_to_a_number(backend):
    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            code = f"""
            import linecache, sys
            sources = sys._getframe(1).f_locals["self"]._sources
            for number in range({MAX_LASTING + 100}):
                name, text = f"<cell x{{number}}>", f"def f(): {{number}}"
                sources.add(name, text)
                sources.keep_lasting(name, compile(text, name, "exec"))
            kept = [n for n in linecache.cache if n.startswith("<cell x")]
            (len(kept), kept[-1])
            """.replace("\n            ", "\n")
            return (await sandbox.run_code(code)).value

    assert asyncio.run(main()) == (MAX_LASTING, f"<cell x{MAX_LASTING + 99}>")


# --- one expression is compiled in one step ----------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("(y := 4) + 1", 5),
        ("[n for n in range(3)]", [0, 1, 2]),
        ("'a' 'b'  # and a comment", "ab"),
        ("await __import__('asyncio').sleep(0, 7)", 7),
        ("1;", 1),
        ("None", None),
    ],
)
def test_an_expression_gives_its_value(sandbox, code, value):
    execution = sandbox.run_code(code)
    assert (execution.outcome, execution.value) == (Outcome.ok, value)


def test_an_expression_fails_as_any_other_code(sandbox):
    assert sandbox.run_code(" 1").error.name == "IndentationError"
    assert sandbox.run_code("1 +").error.name == "SyntaxError"
    failed = sandbox.run_code("1 / 0")
    assert 'File "<cell 3>", line 1, in <module>\n    1 / 0' in failed.error.traceback


# --- a hostile worker ------------------------------------------------------------------------

PRELUDE = """
import os, sys, time
sys.path.insert(0, "/workspace")
from hostile import DONE, RESULT, SYNCED, forge, worker
runner, request = worker()
done = forge(DONE, request, {"status": "ok"})
"""


async def attack(code, meanwhile=None):
    async with AsyncSandbox(environment="python") as sandbox:
        await sandbox.files.write("hostile.py", HOSTILE.read_text())
        task = asyncio.create_task(sandbox.run_code(PRELUDE + code, timeout=60))
        while meanwhile is not None and not task.done():
            await meanwhile(sandbox)
        execution = await task
        assert (await sandbox.run_code("1 + 1")).value == 2
        return execution


@pytest.mark.parametrize("nonce", [b"", bytes(16), b"x" * 16])
def test_who_only_says_that_it_is_done_is_judged_by_its_end(backend, nonce):
    code = f"runner._control.sendall(done + forge(SYNCED, 0, b'', {nonce!r}))\nos._exit(3)"
    execution = asyncio.run(attack(code))
    assert (execution.outcome, execution.exit_code) == (Outcome.killed, 3)


def test_half_of_the_end_is_no_end(backend):
    execution = asyncio.run(attack("runner._control.sendall(done[:-4])\nos._exit(3)"))
    assert (execution.outcome, execution.exit_code) == (Outcome.killed, 3)


def test_who_says_that_it_is_done_and_goes_on_talking_holds_up_nobody(backend):
    code = """
runner._control.sendall(done)
while not os.path.exists("enough"):
    runner._control.sendall(forge(SYNCED, 0, b"", b"no") * 10)
"""
    answered = []

    async def meanwhile(sandbox):
        answered.append(await sandbox.files.exists("hostile.py"))
        if len(answered) == 20:
            await sandbox.files.write("enough", "")

    execution = asyncio.run(attack(code, meanwhile))
    assert execution.usage.wall < 50  # it has found the file
    assert len(answered) >= 20
    assert all(answered)


# --- the parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_waiting_for_a_socket_ends_with_news_and_when_it_is_cancelled(loop):
    async def main():
        with anyio.move_on_after(0.02) as given_up:
            await event_loop.wait_readable(left)
        assert given_up.cancelled_caught
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(event_loop.wait_readable, left)
            await anyio.sleep(0.02)
            right.send(b"x")
        with anyio.fail_after(10):
            await event_loop.wait_readable(left)  # it is there already

    left, right = socket.socketpair()
    with left, right:
        anyio.run(main, backend=loop)


def test_a_frame_in_tiny_pieces_takes_no_more_than_its_size():
    frame = wire.pack(wire.DATA, 1, None, bytes(100_000))
    reader = wire.Reader(wire.FROM_GUEST)
    tracemalloc.start()
    try:
        for number in range(len(frame)):
            reader.feed(frame[number : number + 1])
            if number % 1000 == 0:
                assert list(reader.frames()) == []
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 2 * len(frame)
    assert len(next(iter(reader.frames())).payload) == 100_000
    assert len(reader) == 0


def test_a_file_that_comes_at_the_very_moment_of_a_look_is_seen_by_the_next(tmp_path):
    watched = cells.WatchedDirectory(str(tmp_path))
    for _ in range(200):
        assert watched.take_census() == {}
        (tmp_path / "new").touch()
        assert list(watched.take_census()) == ["new"]
        (tmp_path / "new").unlink()


def test_an_empty_directory_is_known_again_without_looking_into_it(tmp_path, monkeypatch):
    watched = cells.WatchedDirectory(str(tmp_path))
    monkeypatch.setattr(cells.messages, "FRESH", -1)
    assert watched.take_census() == {}
    monkeypatch.setattr(file_requests, "take_census", None)
    assert watched.take_census() == {}


# --- what is odd ------------------------------------------------------------------------------


def test_output_of_what_a_cell_left_is_never_a_later_cells_however_late(sandbox):
    sandbox.run_code(
        "import threading, time\n"
        "def work():\n"
        "    while True:\n"
        "        print('left'); time.sleep(0.002)\n"
        "threading.Thread(target=work, daemon=True).start()"
    )
    late = ""
    for number in range(14):
        execution = sandbox.run_code(f"time.sleep(0.01)\nprint({number})")
        assert execution.stdout == f"{number}\n"
        late += "".join(execution.logs.background)
    assert "left" in late


def test_a_thread_that_has_used_up_all_descriptors_can_still_print(sandbox):
    execution = sandbox.run_code(
        "import os, threading\n"
        "def use_up():\n"
        "    held = []\n"
        "    try:\n"
        "        while True: held.append(os.dup(0))\n"
        "    except OSError as error: print(error.strerror)\n"
        "    for fd in held: os.close(fd)\n"
        "thread = threading.Thread(target=use_up)\n"
        "thread.start(); thread.join()"
    )
    assert (execution.outcome, execution.stdout) == ("ok", "Too many open files\n")


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_cell_that_begins_while_a_thread_writes_does_not_get_its_words(monkeypatch, begins):
    first, second, place = os.pipe(), os.pipe(), os.dup(0)
    stream, dup = streams.CellStream(place), os.dup
    stream.begin(1, first[1], [], keep=False)

    def dup_beside(fd):
        monkeypatch.setattr(os, "dup", dup)
        if begins == "before":
            stream.begin(2, second[1], [threading.get_ident()], keep=False)
            return dup(fd)
        copy = dup(fd)
        stream.begin(2, second[1], [threading.get_ident()], keep=False)
        return copy

    monkeypatch.setattr(os, "dup", dup_beside)
    writer = threading.Thread(target=stream.write, args=["left"])
    writer.start()
    writer.join()
    stream.write("new")
    assert (os.read(first[0], 9), os.read(second[0], 9)) == (b"left", b"new")
    stream.close_old()
    for fd in (*first, *second, place):
        os.close(fd)


@pytest.mark.parametrize("closed", ["[1]", "[2]", "[0, 2]", "[0, 1, 2]"])
def test_standard_descriptors_that_were_closed_are_there_for_the_next_cell(sandbox, closed):
    sandbox.run_code(f"import os, sys\nfor fd in {closed}: os.close(fd)")
    for _ in range(2):
        execution = sandbox.run_code("print('out')\nprint('err', file=sys.stderr)")
        assert (execution.outcome, execution.stdout, execution.stderr) == ("ok", "out\n", "err\n")
    sandbox.restart()


@pytest.mark.parametrize("character", ["\u2028", "\x0c", "\x85", "\x1c"])
def test_lines_of_a_traceback_are_those_of_the_parser(sandbox, character):
    error = sandbox.run_code(f's = "a{character}b"\ny = 1\n1 / 0').error
    assert "    1 / 0\n" in error.traceback


@pytest.mark.native_only("control groups of containers are their engine's")
def test_a_close_that_asyncio_cancels_leaves_no_control_group_and_no_descriptor(backend):
    """Its cancellations go through shields."""

    def held():
        groups = {group for group in census.cgroup_directories() if census.is_ours(group)}
        return groups, len(os.listdir("/proc/self/fd"))

    async def main():
        async with AsyncSandbox(environment="python"):  # the zygote stays
            before = held()
            for turns in range(12):
                sandbox = await AsyncSandbox.create(environment="python")
                running = asyncio.create_task(sandbox.run_code("import time; time.sleep(100)"))
                await asyncio.sleep(0.05 if turns % 2 else 0)
                closing = asyncio.create_task(sandbox.close())
                for _ in range(1 + turns // 2):
                    await asyncio.sleep(0)
                closing.cancel()
                await asyncio.gather(running, closing, return_exceptions=True)
                await sandbox.close()
            deadline = time.monotonic() + 60
            while (now := held())[0] - before[0] or now[1] > before[1]:
                assert time.monotonic() < deadline, f"something stays: {before}, {now}"
                await asyncio.sleep(0.02)

    asyncio.run(main())
