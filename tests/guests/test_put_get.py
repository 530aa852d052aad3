"""Variables in and out of real sandboxes, in shared memory and in parts."""

import asyncio
import contextlib
import enum
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from textwrap import dedent

import anyio
import pytest

import census
import setting
import specimens
from belljar import (
    AsyncSandbox,
    CannotTravel,
    InvalidOption,
    NameMissing,
    Outcome,
    SandboxError,
)
from belljar.backends.native import backend
from belljar.errors import ExecutionError, ExecutionOutOfMemory, ExecutionTimeout
from belljar.protocol import values, wire
from belljar.sandbox.channel import Channel
from outside import session_of

MB = 1_000_000


class Colour(enum.Enum):
    RED = 1


LARGE = 3 * wire.INLINE


MEMORY = pytest.mark.native_only("a container shares no memory with the host")


@pytest.fixture(params=[pytest.param("shared", marks=MEMORY), "parts"])
def way(request, monkeypatch):
    """Both ways of what is large. Set before a sandbox is made."""
    if request.param == "parts":
        no_sharing(monkeypatch)
    return request.param


def no_sharing(monkeypatch):
    ask = backend._request
    monkeypatch.setattr(backend, "_request", lambda *given: {**ask(*given), "share": False})
    monkeypatch.setattr(Channel, "may_share", lambda channel, size: False)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_leak(backend):
    """No descriptor more than before, once the threads that were given up have ended."""
    before = descriptors()
    yield
    deadline = time.monotonic() + 30
    while descriptors() > before and time.monotonic() < deadline:
        gc.collect()  # what a cancelled task held may be in a cycle
    assert descriptors() <= before


def noise(size, seed=0):
    return random.Random(seed).randbytes(size)


def cut_short(value):
    return repr(value)[:200]


# --- there and back --------------------------------------------------------------------------


def test_values_of_each_type_go_in_and_come_out(way, make_sandbox):
    sandbox = make_sandbox(environment="data", limits={"timeout": 120})
    kinds = {**specimens.plain(), **specimens.numpy(), **specimens.pandas()}
    for name, value in kinds.items():
        sandbox.put(x=value)
        assert values.encode(sandbox.get("x")).join() == values.encode(value).join(), name


def test_types_are_the_same_in_the_guest(data_sandbox):
    import numpy as np
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2], "b": pd.Categorical(["x", "y"])})
    data_sandbox.put(frame=frame, array=np.arange(3), text="ä", pair=(1, [2]), nothing=None)
    code = "[type(v).__name__ for v in (frame, array, text, pair, nothing)]"
    assert data_sandbox.run_code(code).value == ["DataFrame", "ndarray", "str", "tuple", "NoneType"]
    assert data_sandbox.run_code("str(frame.dtypes['b'])").value == "category"


SIZES = [0, 1, 1000, *(wire.INLINE + n for n in (-200, -100, -1, 0, 1)), 1 << 20, 5 * MB + 1]


def test_every_size_comes_back_as_it_was(way, make_sandbox):
    sandbox = make_sandbox()
    for size in SIZES:
        data = noise(size)
        sandbox.put(data=data)
        assert sandbox.get("data") == data
        assert sandbox.run_code("len(data)").value == size


def test_a_value_of_exactly_one_frame_is_one(way, make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code("x = 1")
    overhead = values.encode({"data": bytes(5000)}).size - 5000
    for size in range(wire.INLINE - overhead - 65, wire.INLINE - overhead + 65, 13):
        data = noise(size)
        sandbox.put(data=data)
        assert sandbox.get("data") == data
    assert sandbox.get("x") == 1


def large_frame(megabytes):
    import numpy as np
    import pandas as pd

    rows = megabytes * MB // 500
    source = np.random.default_rng(0)
    columns = {
        "number": source.normal(size=rows),
        "count": source.integers(0, 1000, rows),
        "when": pd.Timestamp("2024-01-01", tz="Europe/Berlin")
        + pd.to_timedelta(source.integers(0, 10**6, rows), unit="s"),
        "kind": pd.Categorical.from_codes(source.integers(0, 3, rows), ["a", "b", "c"]),
        "flag": source.integers(0, 2, rows).astype(bool),
        "maybe": pd.array(source.integers(0, 9, rows), dtype="Int64"),
        "name": pd.Series(source.integers(0, 10**6, rows)).astype(str),
    }
    return pd.DataFrame({**columns, **{f"x{n}": source.normal(size=rows) for n in range(55)}})


def test_a_frame_of_a_hundred_megabytes_is_equal_both_ways(way, make_sandbox):
    from pandas.testing import assert_frame_equal

    frame = large_frame(100)
    sandbox = make_sandbox(
        environment="data", limits={"memory": "2g", "timeout": 120}, strict=False
    )
    sandbox.put(frame=frame)
    assert sandbox.run_code("float(frame['number'].sum())").value == frame["number"].sum()
    assert_frame_equal(sandbox.get("frame"), frame)
    sandbox.run_code("frame['count'] += 1; frame = frame[frame.flag].reset_index(drop=True)")
    frame["count"] += 1
    assert_frame_equal(sandbox.get("frame"), frame[frame.flag].reset_index(drop=True))


def test_arguments_and_results_of_fifty_megabytes(way, make_sandbox):
    import numpy as np

    seen = []

    def double(array, extra=b""):
        seen.append((array.flags.writeable, len(extra)))
        return array * 2

    sandbox = make_sandbox(
        environment="data", functions=[double], limits={"memory": "2g", "timeout": 60}, strict=False
    )
    sandbox.put(a=np.arange(50 * MB // 8))
    code = "b = double(a, extra=bytes(300_000)); b[0] = 7; int(b.sum() - 2 * a.sum())"
    execution = sandbox.run_code(code)
    assert execution.value == 7, cut_short(execution)
    assert seen == [(True, 300_000)]
    assert execution.calls[0].argument_bytes > 50 * MB


def test_sixteen_threads_call_at_once_with_five_megabytes_each(way, make_sandbox):
    def turn(data, number):
        return data[::-1] + bytes([number])

    sandbox = make_sandbox(functions=[turn], limits={"memory": "2g", "timeout": 100}, strict=False)
    code = """
        import concurrent.futures, random
        def one(number):
            data = random.Random(number).randbytes(5_000_000 + number)
            return all(turn(data, number) == data[::-1] + bytes([number]) for _ in range(3))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            good = list(pool.map(one, range(16)))
        good
    """
    execution = sandbox.run_code(dedent(code))
    assert execution.value == [True] * 16, cut_short(execution)
    assert len(execution.calls) == 48


@MEMORY
def test_memory_that_was_handed_over_counts_and_then_values_go_in_parts(make_sandbox, monkeypatch):
    asked = []
    may_share = Channel.may_share
    monkeypatch.setattr(
        Channel,
        "may_share",
        lambda channel, size: asked.append(may_share(channel, size)) or asked[-1],
    )
    sandbox = make_sandbox(limits={"memory": "64m"}, strict=False)
    data = noise(10 * MB)
    for number in range(9):
        sandbox.put(data=data)
        assert sandbox.get("data") == data, number
    assert asked == [True] * 6 + [False] * 3


def test_what_the_host_keeps_does_not_use_up_the_guests_memory(make_sandbox):
    sandbox = make_sandbox(environment="data", limits={"memory": "300m"}, strict=False)
    sandbox.run_code("import numpy; a = numpy.ones(20_000_000 // 8)")
    kept = [sandbox.get("a") for _ in range(20)]
    assert all(array.sum() == len(array) for array in kept)
    assert sandbox.run_code("float(a.sum())").value == 2_500_000


def test_a_value_of_more_than_half_the_memory_comes_out(make_sandbox):
    sandbox = make_sandbox(limits={"memory": "256m"}, strict=False)
    assert sandbox.run_code("data = bytes(150_000_000)").ok
    assert len(sandbox.get("data")) == 150 * MB
    assert sandbox.run_code("len(data)").value == 150 * MB


# --- each side has its own -------------------------------------------------------------------


def test_what_was_put_can_be_changed_in_place_and_is_the_guests_own(way, make_sandbox):
    import numpy as np

    sandbox = make_sandbox(environment="data")
    for size in (10, LARGE):
        array = np.zeros(size)
        sandbox.put(a=array, same=array)
        array[0] = 5
        assert sandbox.run_code("a[1] = 7; a += 1; [a[0], a[1], same[1]]").value == [1, 8, 0]
        assert array.tolist()[:2] == [5, 0]


def test_what_was_got_can_be_changed_in_place_and_is_the_hosts_own(way, make_sandbox):
    sandbox = make_sandbox(environment="data")
    for size in (10, LARGE):
        sandbox.run_code(f"import numpy, pandas; a = numpy.zeros({size})")
        sandbox.run_code("frame = pandas.DataFrame({'x': a})")
        one, other, frame = sandbox.get("a"), sandbox.get("a"), sandbox.get("frame")
        sandbox.run_code("a += 1; frame.x += 1")
        one[0] = 7
        frame.loc[0, "x"] = 9
        assert (one[0], one[1], other[0], frame.x[1]) == (7, 0, 0, 0)
        assert sandbox.run_code("[a[0], frame.x[0]]").value == [1, 1]


def test_what_was_got_outlives_the_sandbox(way, make_sandbox):
    data = noise(2 * LARGE)
    sandbox = make_sandbox(environment="data")
    sandbox.run_code("import numpy")
    sandbox.put(data=data)
    sandbox.run_code("a = numpy.frombuffer(data, 'u1')")
    array = sandbox.get("a")
    sandbox.close()
    assert array.tobytes() == data


# --- names and values that cannot be ---------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "1a", "", "for", "a.b", "None", "a-b", "é\0"])
def test_a_name_that_no_variable_can_have_is_refused(sandbox, name):
    for attempt in (
        lambda: sandbox.set(name, 1),
        lambda: sandbox.put(**{"good": 1, name: 1}),
        lambda: sandbox.get(name),
    ):
        with pytest.raises(InvalidOption):
            attempt()
    with pytest.raises(NameMissing):
        sandbox.get("good")


def test_names_of_other_scripts_and_of_parameters_are_names(sandbox):
    sandbox.put(größe=1, self=2, name=3, value=4, timeout=5, π=6, _=7, __x=8)
    assert sandbox.run_code("[größe, self, name, value, timeout, π, _, __x]").value == [
        *range(1, 9)
    ]
    assert sandbox.get("π") == 6


def test_many_names_at_once(sandbox):
    sandbox.put(**{f"v{n}": [n] for n in range(5000)})
    assert sandbox.run_code("sum(globals()[f'v{n}'][0] for n in range(5000))").value == 12_497_500


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [0, threading.Lock()]}, r"^x\['a'\]\[1\] is a _thread.lock"),
        ([{1: 2, len: 3}], r"^x\[0\] keys\[1\] is a builtin_function"),
        (object(), r"^x is a object"),
        ([[Colour.RED]], r"^x\[0\]\[0\] is a .*Colour, which only its sender knows"),
    ],
)
def test_what_cannot_go_in_is_named_and_nothing_is_set(sandbox, value, path):
    with pytest.raises(CannotTravel, match=path):
        sandbox.set("x", value, lenient=False)
    with pytest.raises(NameMissing):
        sandbox.get("x")


def test_what_is_nested_too_deeply_does_not_go_in_and_nothing_is_set(sandbox):
    endless = []
    endless.append(endless)
    with pytest.raises(TypeError, match="nested"):
        sandbox.put(before=1, x=endless, after=2)
    for name in ("before", "x", "after"):
        with pytest.raises(NameMissing):
            sandbox.get(name)


def test_what_is_not_there_is_missing(sandbox):
    with pytest.raises(NameMissing, match="no variable 'nothing'"):
        sandbox.get("nothing")
    with pytest.raises(KeyError):
        sandbox.get("nothing")


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("import threading; x = {'a': [0, threading.Lock()]}", r"^x\['a'\]\[1\] is a _thread.lock"),
        ("x = lambda: 1", r"^x is a function"),
        ("x = []; x.append(x)", r"nested"),
        ("x = {1: 2, len: 3}", r"^x keys\[1\] is a builtin_function"),
    ],
)
def test_what_cannot_come_out_is_named(sandbox, code, path):
    sandbox.run_code(code)
    with pytest.raises(CannotTravel, match=path):
        sandbox.get("x")
    assert sandbox.run_code("1").state_preserved


HANGING = """
import time
class Hanging:
    def __getattribute__(self, name):
        time.sleep(60)
    __class__ = property(lambda self: time.sleep(60))
    def __len__(self): time.sleep(60)
    def __iter__(self): time.sleep(60)
class Column(list):
    def __iter__(self):
        while True: pass
kept, hanging, fine = 1, Hanging(), Column([1, 2])
"""


def test_an_object_cannot_make_its_reader_wait(sandbox, patient):
    sandbox.run_code(HANGING)
    assert sandbox.get("fine", timeout=25) == [1, 2]
    began = time.perf_counter()
    with pytest.raises((CannotTravel, ExecutionTimeout)):
        sandbox.get("hanging", timeout=1)
    assert time.perf_counter() - began < 25
    assert sandbox.run_code("kept").value == 1


def test_code_that_runs_in_a_get_has_its_timeout_and_variables_are_kept(data_sandbox, patient):
    # A data frame of a subclass: pandas itself calls its methods.
    data_sandbox.run_code(
        "import pandas, time\n"
        "class Slow(pandas.DataFrame):\n"
        "    @property\n"
        "    def columns(self): time.sleep(60)\n"
        "    @property\n"
        "    def _mgr(self): time.sleep(60)\n"
        "x, kept = object.__new__(Slow), 1"
    )
    began = time.perf_counter()
    with pytest.raises((CannotTravel, ExecutionTimeout)):
        data_sandbox.get("x", timeout=1)
    assert time.perf_counter() - began < 25
    assert data_sandbox.run_code("kept").value == 1


def test_a_timeout_that_is_none_is_refused(sandbox):
    sandbox.run_code("x = 1")
    for timeout in (0, -1, "1", float("nan")):
        with pytest.raises(InvalidOption):
            sandbox.get("x", timeout=timeout)


# --- memory ----------------------------------------------------------------------------------


def test_more_than_the_memory_limit_is_refused_before_it_is_sent(way, make_sandbox):
    sandbox = make_sandbox(limits={"memory": "32m"}, strict=False)
    sandbox.run_code("x = 1")
    with pytest.raises(CannotTravel, match="more than"):
        sandbox.put(data=bytes(33 << 20))
    assert sandbox.get("x") == 1


def test_a_guest_without_room_for_a_value_says_so_and_goes_on(way, make_sandbox):
    sandbox = make_sandbox(limits={"memory": "64m"}, strict=False)
    sandbox.run_code("x = 1")
    sandbox.run_code("ballast = bytearray(30 << 20)")
    with pytest.raises((ExecutionOutOfMemory, ExecutionError)):
        # Bytes are copied out of what came: twice this is more than there is.
        sandbox.put(data=noise(50 << 20))
    assert sandbox.run_code("1").ok
    sandbox.put(data=noise(MB))
    assert len(sandbox.get("data")) == MB


# --- libraries that are missing --------------------------------------------------------------


def test_a_frame_for_a_guest_without_pandas_says_what_is_missing(sandbox):
    import numpy as np
    import pandas as pd

    sandbox.run_code("x = 1")
    for value, library in ((pd.DataFrame({"a": [1]}), "pandas"), (np.arange(3), "numpy")):
        with pytest.raises((CannotTravel, ExecutionError), match=library):
            sandbox.put(y=value)
    assert sandbox.get("x") == 1
    with pytest.raises(NameMissing):
        sandbox.get("y")


WITHOUT_PANDAS = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pandas", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked())
from belljar import CannotTravel, Sandbox
with Sandbox.create(environment="data") as sandbox:
    sandbox.run_code("import pandas; frame = pandas.DataFrame({'a': [1, 2]}); x = 5")
    try:
        sandbox.get("frame")
    except CannotTravel as error:
        print(error)
    print(sandbox.get("x"), sandbox.run_code("frame").text)
"""


def test_a_host_without_pandas_is_told_so_when_it_gets_a_frame(backend):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "pandas" in done.stdout.splitlines()[0]
    assert "\n5 " in done.stdout


# --- at once ---------------------------------------------------------------------------------


def test_threads_of_the_host_share_a_sandbox(way, no_leak, make_sandbox):
    sandbox = make_sandbox(limits={"timeout": 100})
    wrong = []

    def work(number):
        for turn in range(5):
            data = noise(LARGE + number, turn)
            sandbox.set(f"v{number}", data)
            if sandbox.get(f"v{number}") != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not wrong
    assert sandbox.run_code("len(v7)").value == LARGE + 7


def test_under_every_event_loop(way, run_async, open_sandbox):
    async def one(sandbox, name, data):
        await sandbox.set(name, data)
        assert await sandbox.get(name) == data

    async def main():
        async with open_sandbox() as sandbox, anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(one, sandbox, f"v{number}", noise(LARGE, number))
            with pytest.raises(NameMissing):
                await sandbox.get("nothing")

    run_async(main)


def test_large_answers_to_several_calls_while_output_flows(way, make_sandbox):
    def big(number):
        return bytes([number]) * (2 * MB)

    sandbox = make_sandbox(functions=[big], limits={"timeout": 60, "memory": "1g"}, strict=False)
    code = """
        import threading
        good = []
        def one(number):
            for _ in range(4):
                good.append(big(number) == bytes([number]) * 2_000_000)
                print(number)
        threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        [len(good), all(good)]
    """
    assert sandbox.run_code(dedent(code)).value == [32, True]


def test_a_thread_that_calls_across_cells_does_not_cost_the_sandbox(way, make_sandbox):
    sandbox = make_sandbox(functions={"f": len}, limits={"timeout": 60})
    sandbox.run_code(
        "import threading\n"
        "stop, said = threading.Event(), set()\n"
        "def work():\n"
        "    while not stop.is_set():\n"
        "        try: said.add(f(bytes(3_000_000)))\n"
        "        except (RuntimeError, ValueError) as error: said.add(str(error)[:30])\n"
        "thread = threading.Thread(target=work, daemon=True); thread.start()"
    )
    for number in range(60):
        execution = sandbox.run_code(f"x{number} = {number}")
        assert execution.ok, execution
        assert execution.state_preserved
    assert sandbox.run_code("stop.set(); thread.join(); f(bytes(3_000_000))").value == 3_000_000
    assert sandbox.run_code("len(said) > 0").value is True


# --- interrupted -----------------------------------------------------------------------------


class Interrupter:
    """A host function, and an interrupt some time after its first call by the main thread."""

    def __init__(self, seed):
        self._source = random.Random(seed)
        self._begun = threading.Event()

    def f(self, data, main=False):
        if main:
            self._begun.set()
        return data

    def run(self, sandbox, code):
        self._begun.clear()
        timer = threading.Thread(target=self._interrupt, args=(sandbox,))
        timer.start()
        execution = sandbox.run_code(code, timeout=20)
        timer.join()
        assert execution.outcome is Outcome.cancelled, execution
        return execution

    def _interrupt(self, sandbox):
        self._begun.wait(20)
        time.sleep(self._source.uniform(0, 0.04))  # any moment
        sandbox.interrupt()


def test_interrupts_at_any_moment_of_a_call_leave_the_interpreter_whole(way, make_sandbox):
    interrupter = Interrupter(1)
    sandbox = make_sandbox(functions={"f": interrupter.f}, limits={"memory": "1g"}, strict=False)
    sandbox.run_code("x, data = 5, bytes(2_000_000)")
    for moment in range(100):
        execution = interrupter.run(sandbox, "while True: y = f(data, True)")
        assert execution.state_preserved, (moment, execution)
        assert sandbox.run_code("[x, len(f(data))]").value == [5, 2_000_000], moment


def test_interrupts_at_any_moment_with_threads_that_call_too(way, make_sandbox):
    """The main thread is interrupted while others use the same socket."""
    interrupter = Interrupter(2)
    sandbox = make_sandbox(functions={"f": interrupter.f}, limits={"memory": "1g"}, strict=False)
    sandbox.run_code(
        "import threading\n"
        "x, data, alive = 5, bytes(600_000), True\n"
        "def work():\n"
        "    while alive:\n"
        "        try: f(data)\n"
        "        except (RuntimeError, ValueError): pass\n"
        "threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]\n"
        "for thread in threads: thread.start()"
    )
    for moment in range(60):
        execution = interrupter.run(sandbox, "while True: f(data, True)")
        assert execution.state_preserved, (moment, execution)
        assert sandbox.run_code("x").value == 5
    sandbox.run_code("alive = False\nfor thread in threads: thread.join()")
    assert sandbox.run_code("len(f(data))").value == 600_000


def test_puts_and_gets_that_are_cancelled_at_any_moment_lose_nothing(
    way, no_leak, run_async, open_sandbox, patient
):
    async def main():
        source = random.Random(3)
        async with open_sandbox(limits={"memory": "1g"}, strict=False) as sandbox:
            await sandbox.put(x=5, old=noise(4 * MB))
            place = session_of(sandbox)
            for moment in range(60):
                with anyio.move_on_after(source.uniform(0, 0.03)):
                    await sandbox.put(new=noise(4 * MB))
                with anyio.move_on_after(source.uniform(0, 0.03)):
                    await sandbox.get("old")
                assert (await sandbox.run_code("x")).value == 5, moment
            assert session_of(sandbox) is place
            assert await sandbox.get("old") == noise(4 * MB)

    run_async(main)


def test_tasks_of_asyncio_that_are_cancelled_at_any_moment_lose_nothing(way, no_leak, patient):
    """Unlike anyio's, such a cancellation comes through every shield."""

    async def main():
        source = random.Random(4)
        async with AsyncSandbox(
            environment="python", limits={"memory": "1g"}, strict=False
        ) as sandbox:
            await sandbox.put(x=5, old=noise(4 * MB))
            place = session_of(sandbox)
            for moment in range(60):
                for work in (sandbox.put(new=bytes(4 * MB)), sandbox.get("old")):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(work, source.uniform(0, 0.03))
                assert (await sandbox.run_code("x")).value == 5, moment
            assert session_of(sandbox) is place
            assert await sandbox.get("old") == noise(4 * MB)

    asyncio.run(main())


def test_control_c_during_put_and_get_leaves_the_sandbox_usable(
    way, no_leak, make_sandbox, patient
):
    sandbox = make_sandbox(limits={"memory": "1g"}, strict=False)
    sandbox.put(x=5, old=noise(8 * MB))
    source = random.Random(5)
    for _ in range(15):
        for work in (lambda: sandbox.put(new=noise(8 * MB)), lambda: sandbox.get("old")):
            timer = threading.Timer(
                source.uniform(0, 0.03),
                lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT),
            )
            try:
                timer.start()
                work()
                timer.join()
                for _ in range(100):
                    time.sleep(0)  # handlers run between two steps
            except KeyboardInterrupt:
                timer.join()
        assert sandbox.run_code("x").value == 5


def test_a_worker_that_is_killed_while_a_value_travels_is_replaced(way, make_sandbox, outside):
    sandbox = make_sandbox(limits={"memory": "1g"}, strict=False)
    source = random.Random(6)
    for _ in range(10):
        sandbox.run_code("import os")
        inside = sandbox.run_code("os.getpid()").value
        worker = outside(sandbox).find(inside)
        timer = threading.Timer(source.uniform(0, 0.04), worker.signal, [signal.SIGKILL])
        timer.start()
        with contextlib.suppress(SandboxError):
            try:
                sandbox.put(data=noise(10 * MB))
            finally:
                timer.join()
        census.wait_until(lambda w=worker: not w.alive(), 30, "its death")
        sandbox.put(after=1)
        assert sandbox.get("after") == 1


def test_a_host_short_of_descriptors_says_so_and_recovers(no_leak, make_sandbox):
    sandbox = make_sandbox()
    data = noise(LARGE)
    sandbox.put(x=5, data=data)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        with contextlib.suppress(OSError):
            while True:
                kept.append(os.dup(0))
        sandbox.put(data=data)  # goes in parts, without a descriptor
        with contextlib.suppress(OSError, SandboxError):
            assert sandbox.get("data") == data
    finally:
        for fd in kept:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    sandbox.put(y=6)
    assert sandbox.get("y") == 6


def test_a_guest_short_of_descriptors_is_told_so_and_keeps_its_variables(make_sandbox):
    sandbox = make_sandbox(limits={"open_files": 64})
    sandbox.run_code("import os, contextlib\nx, kept = 5, []")
    sandbox.run_code("with contextlib.suppress(OSError):\n    while True: kept.append(os.dup(0))")
    if not setting.DOCKER:  # there, it goes in without a descriptor
        with pytest.raises(ExecutionError, match="open files"):
            sandbox.put(data=noise(LARGE))
    assert sandbox.get("x") == 5
    sandbox.run_code("data = bytes(3_000_000)")
    assert len(sandbox.get("data")) == 3 * MB  # in parts
    sandbox.run_code("for fd in kept: os.close(fd)")
    sandbox.put(data=noise(LARGE))
    assert sandbox.run_code("x").value == 5


def test_a_put_to_an_interpreter_that_does_not_read_has_its_time(
    make_sandbox, monkeypatch, outside
):
    no_sharing(monkeypatch)
    sandbox = make_sandbox(limits={"timeout": 1})
    inside = sandbox.run_code("import os; os.getpid()", timeout=60).value
    outside(sandbox).find(inside).signal(signal.SIGSTOP)
    with pytest.raises(ExecutionTimeout):
        sandbox.put(data=noise(20 * MB))
    assert sandbox.run_code("1", timeout=60).value == 1
