"""What happens to code in a sandbox: state, output, errors, ends. On every Python found here."""

import re
from textwrap import dedent

import pytest

import census
from belljar import Environment, Limits, Outcome, SandboxError
from belljar.sandbox import run as cell
from interpreters import interpreters

pytestmark = pytest.mark.contract("native", "docker")

LOOP = "while True: pass"


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


def frames(traceback):
    """(file, line, source text) of every frame; the text is None where there is none."""
    found = re.findall(r'File "(.*?)", line (\d+).*\n(?: +(.*)\n)?', traceback)
    return [(file, int(line), text or None) for file, line, text in found]


def without_marks(traceback):
    """Where the error is within the line (3.11 and later) is not compared."""
    lines = traceback.splitlines()
    return "\n".join(line for line in lines if not re.fullmatch(r"[ |]*[~^]+[ ~^]*", line))


# --- state and values ------------------------------------------------------------------------


def test_variables_functions_and_imports_stay_for_the_next_cell(sandbox):
    run(sandbox, "import math\nx = 20\ndef half(n): return n // 2")
    execution = run(sandbox, "half(x) + math.floor(0.5)")
    assert (execution.value, execution.text) == (10, "10")
    assert execution.state_preserved


def test_the_last_expression_is_the_result(sandbox):
    assert run(sandbox, "a = 1\na + 1").value == 2
    assert run(sandbox, "a + 1\nb = 5").value is None
    assert run(sandbox, "b = 5").text is None
    assert run(sandbox, "").ok
    assert run(sandbox, "# only a comment").ok
    assert run(sandbox, "None").text is None


def test_a_result_that_cannot_travel_as_data_has_its_text(sandbox):
    execution = run(sandbox, "{1, 2}")
    assert (execution.value, execution.text) == (None, "{1, 2}")


def test_cells_are_counted_from_one(sandbox):
    assert [run(sandbox, "1").execution_count for _ in range(3)] == [1, 2, 3]


def test_the_code_is_the_main_module(sandbox):
    assert run(sandbox, "__name__").value == "__main__"
    code = "import pickle\nclass C: pass\ntype(pickle.loads(pickle.dumps(C()))) is C"
    assert run(sandbox, code).value is True


def test_the_source_of_an_earlier_cell_can_be_inspected(sandbox):
    run(sandbox, "def f():\n    return 42\n")
    assert run(sandbox, "import inspect; inspect.getsource(f)").value == "def f():\n    return 42\n"


def test_future_imports_of_one_cell_do_not_reach_the_next(sandbox):
    run(sandbox, "from __future__ import annotations")
    assert run(sandbox, "def f(x: 1 + 1): pass\nf.__annotations__").value == {"x": 2}


def test_display_sends_rich_results_while_the_cell_runs(sandbox):
    seen = []

    def on_result(result):
        seen.append(result)
        sandbox.files.write("seen", "")

    execution = run(
        sandbox,
        """
        import os, time
        class Table:
            def _repr_html_(self): return "<b>1</b>"
            def __repr__(self): return "Table"
        display(Table())
        while not os.path.exists("seen"): time.sleep(0.01)
        Table()
        """,
        on_result=on_result,
    )
    assert execution.ok
    assert [r.is_main_result for r in execution.results] == [False, True]
    assert [r.html for r in seen] == ["<b>1</b>", "<b>1</b>"]
    assert execution.text == "Table"


def test_a_repr_that_fails_is_an_error_of_the_cell(sandbox):
    code = "class Bad:\n    def __repr__(self): raise ValueError('no repr')\nBad()"
    execution = run(sandbox, code)
    assert execution.outcome is Outcome.error
    assert execution.error.name == "ValueError"
    assert run(sandbox, "1 + 1").value == 2


def test_a_rich_repr_that_fails_costs_only_its_format(sandbox):
    code = "class C:\n    def _repr_html_(self): 1 / 0\n    def __repr__(self): return 'C'\nC()"
    execution = run(sandbox, code)
    assert execution.ok
    assert execution.results[0].formats() == ["text"] or execution.results[0].html is None
    assert execution.text == "C"


# --- output ----------------------------------------------------------------------------------


def test_print_descriptor_writes_and_children_arrive_in_order(sandbox):
    execution = run(
        sandbox,
        """
        import os, subprocess, sys
        for n in range(20):
            print("print", n)
            os.write(1, b"write\\n")
            subprocess.run(["sh", "-c", "echo child"])
            sys.stdout.write("again ")
            os.system("echo system")
        """,
    )
    wanted = "".join(f"print {n}\nwrite\nchild\nagain system\n" for n in range(20))
    assert execution.stdout == wanted
    assert execution.stderr == ""


def test_output_of_c_code_is_captured(sandbox):
    code = "import ctypes\nc = ctypes.CDLL(None)\nc.puts(b'from C')\nc.fflush(None)"
    assert run(sandbox, code).stdout == "from C\n"


def test_stdout_and_stderr_are_told_apart(sandbox):
    code = """
        import os, subprocess, sys
        print("out"); print("err", file=sys.stderr)
        os.write(2, b"err 2\\n")
        subprocess.run(["sh", "-c", "echo err 3 >&2"])
    """
    execution = run(sandbox, code)
    assert (execution.stdout, execution.stderr) == ("out\n", "err\nerr 2\nerr 3\n")
    assert "".join(execution.logs.stdout) == execution.stdout
    assert "".join(execution.logs.stderr) == execution.stderr


@pytest.mark.parametrize(
    "write",
    [
        "print('now')",
        "import os; os.write(1, b'now\\n')",
        "import subprocess; subprocess.run(['echo', 'now'])",
        "import sys; print('now', file=sys.stderr)",
    ],
)
def test_output_is_seen_while_the_cell_still_runs(sandbox, write):
    """The cell waits for a file that the callback writes: else it would run into its time-out."""
    seen = []

    def on_output(text):
        seen.append(text)
        sandbox.files.write("seen", "")

    code = f"{write}\nimport os, time\nwhile not os.path.exists('seen'): time.sleep(0.01)"
    execution = sandbox.run_code(code, on_stdout=on_output, on_stderr=on_output, timeout=60)
    assert execution.ok
    assert "".join(seen) == "now\n"


def test_callbacks_get_exactly_what_the_execution_says(sandbox):
    out, err = [], []
    code = "import sys\nfor i in range(300): print(i); print(-i, file=sys.stderr)"
    execution = sandbox.run_code(code, on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == (execution.stdout, execution.stderr)
    assert execution.stdout == "".join(f"{i}\n" for i in range(300))


def test_large_output_is_whole(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="8m"))
    execution = run(sandbox, "print('é🎈' * 1_000_000)")
    assert execution.ok
    assert execution.stdout == "é🎈" * 1_000_000 + "\n"
    assert execution.usage.output_bytes == 6_000_001


def test_bytes_that_are_no_text_do_no_harm(sandbox):
    execution = run(sandbox, "import os\nos.write(1, b'a\\xff\\xc3'); print('\\ud800b')")
    assert execution.ok
    assert execution.stdout == "a\ufffd\ufffd\\ud800b\n"


def test_output_without_a_newline_at_the_end_is_whole(sandbox):
    assert run(sandbox, "print('a', end='')").stdout == "a"
    assert run(sandbox, "print('b')").stdout == "b\n"


def test_output_up_to_the_limit_is_fine(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="1k"))
    execution = run(sandbox, "print('x' * 1023)")
    assert execution.ok
    assert not execution.truncated
    assert len(execution.stdout) == 1024


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("stream", [1, 2])
def test_output_past_the_limit_ends_the_cell_and_is_said(make_sandbox, stream):
    sandbox = make_sandbox(limits=Limits(output="10k"))
    run(sandbox, "kept = 7")
    execution = run(sandbox, f"import os\nwhile True: os.write({stream}, b'x' * 1000)", timeout=60)
    assert execution.outcome is Outcome.output_limit
    assert execution.truncated
    assert execution.usage.wall < 50
    assert len(execution.stdout + execution.stderr) == 10 * 1024
    assert any("output" in note for note in execution.notes)
    assert execution.state_preserved
    again = run(sandbox, "print('fine'); kept")
    assert (again.stdout, again.value, again.truncated) == ("fine\n", 7, False)


def test_output_of_a_child_past_the_limit_ends_the_cell(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="10k"))
    execution = run(sandbox, "import subprocess; subprocess.run(['yes'])", timeout=60)
    assert execution.outcome is Outcome.output_limit
    assert len(execution.stdout) == 10 * 1024


# --- what cells leave behind -----------------------------------------------------------------

LEFTOVERS = {
    "thread": (
        """
        import os, threading, time
        def later():
            while not os.path.exists("go"): time.sleep(0.01)
            print("late")
        left = threading.Thread(target=later)
        left.start()
        """,
        "left.join()",
    ),
    "process": (
        """
        import subprocess
        script = "while [ ! -e go ]; do sleep 0.02; done; echo late"
        left = subprocess.Popen(["sh", "-c", script])
        """,
        "left.wait()",
    ),
    "forked process": (
        """
        import os, time
        left = os.fork()
        if left == 0:
            while not os.path.exists("go"): time.sleep(0.01)
            print("late")
            os._exit(0)
        """,
        "os.waitpid(left, 0)",
    ),
    "task": (
        """
        import asyncio
        async def later():
            await event.wait()
            print("late")
        event = asyncio.Event()
        left = asyncio.create_task(later())
        await asyncio.sleep(0)
        """,
        "event.set(); await left",
    ),
}


@pytest.mark.parametrize("kind", LEFTOVERS)
def test_late_output_is_never_taken_for_that_of_the_next_cell(sandbox, kind):
    start, join = (dedent(part) for part in LEFTOVERS[kind])
    first = run(sandbox, start)
    assert first.ok, first
    second = sandbox.run_code(f"open('go', 'w').close()\nprint('mine')\n{join}\nprint('too')")
    assert second.ok, second
    assert second.stdout == "mine\ntoo\n"
    third = run(sandbox, "print('third')")
    assert third.stdout == "third\n"
    background = [*second.logs.background, *third.logs.background]
    assert "".join(background) == "late\n"
    noted = second if second.logs.background else third
    assert any("background" in note for note in noted.notes)


def test_a_thread_started_by_this_cell_writes_to_this_cell(sandbox):
    start, join = (dedent(part) for part in LEFTOVERS["thread"])
    run(sandbox, start)
    code = """
        import threading
        mine = threading.Thread(target=print, args=("mine",))
        mine.start(); mine.join()
    """
    execution = run(sandbox, code)
    assert execution.stdout == "mine\n"
    sandbox.run_code(f"open('go', 'w').close()\n{join}")


def test_what_a_cell_left_running_dies_with_its_interpreter(sandbox, outside):
    code = """
        import os, subprocess
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        left.pid
    """
    inside = run(sandbox, code).value
    left = outside(sandbox).find(inside)
    assert left.alive()
    assert run(sandbox, "os._exit(0)").outcome is Outcome.killed
    census.wait_until(lambda: not left.alive(), what="the end of what was left running")


def test_a_child_that_comes_back_from_a_fork_is_not_taken_for_the_cell(sandbox):
    code = """
        import os
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        "parent" if child else "child"
    """
    execution = run(sandbox, code)
    assert (execution.value, execution.text) == ("parent", "'parent'")
    assert [r.text for r in execution.results] == ["'parent'"]
    assert run(sandbox, "1 + 1").value == 2


def test_multiprocessing_works(sandbox):
    code = """
        import multiprocessing
        def square(n): return n * n
        with multiprocessing.get_context("fork").Pool(2) as pool:
            squares = pool.map(square, range(5))
        squares
    """
    assert run(sandbox, code).value == [0, 1, 4, 9, 16]


# --- errors ----------------------------------------------------------------------------------


def test_a_traceback_points_into_the_cell_and_shows_no_frame_of_ours(sandbox):
    execution = run(sandbox, "def f(x):\n    return 1 / x\n\nf(0)\n")
    assert execution.outcome is Outcome.error
    assert (execution.error.name, execution.error.value) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert without_marks(execution.error.traceback) == dedent(
        """\
        Traceback (most recent call last):
          File "<cell 1>", line 4, in <module>
            f(0)
          File "<cell 1>", line 2, in f
            return 1 / x
        ZeroDivisionError: division by zero"""
    )
    assert execution.stderr == ""
    assert execution.state_preserved


def test_an_error_in_a_function_of_an_earlier_cell_shows_that_cells_lines(sandbox):
    run(sandbox, "x = 1\ndef f():\n    raise KeyError('k')\n")
    execution = run(sandbox, "y = 2\n\nf()\nz = 3")
    assert frames(execution.error.traceback) == [
        ("<cell 2>", 3, "f()"),
        ("<cell 1>", 3, "raise KeyError('k')"),
    ]


def test_lines_are_right_after_another_cell_and_linecache_checks(sandbox):
    run(sandbox, "def f():\n    raise KeyError('k')\n")
    run(sandbox, "import linecache; linecache.checkcache()")
    execution = run(sandbox, "f()")
    assert ("<cell 1>", 2, "raise KeyError('k')") in frames(execution.error.traceback)


def test_chained_errors_are_shown_whole_and_without_frames_of_ours(sandbox):
    execution = run(
        sandbox,
        """
        def inner():
            {}["a"]
        def outer():
            try:
                inner()
            except KeyError as error:
                raise ValueError("outer") from error
        try:
            outer()
        except ValueError:
            raise TypeError("last")
        """,
    )
    text = execution.error.traceback
    assert "direct cause" in text
    assert "During handling" in text
    assert [line for _, line, _ in frames(text)] == [6, 3, 10, 8, 12]
    assert {file for file, _, _ in frames(text)} == {"<cell 1>"}
    assert all(source for _, _, source in frames(text))


def test_exception_groups_are_shown_whole_and_without_frames_of_ours(sandbox):
    execution = run(
        sandbox,
        """
        def fail(error):
            raise error
        errors = []
        for error in (ValueError("one"), TypeError("two")):
            try:
                fail(error)
            except Exception as caught:
                errors.append(caught)
        raise ExceptionGroup("both", errors)
        """,
    )
    text = execution.error.traceback
    assert execution.error.name == "ExceptionGroup"
    assert "ValueError: one" in text
    assert "TypeError: two" in text
    assert {file for file, _, _ in frames(text)} == {"<cell 1>"}
    assert "belljar" not in text


def test_a_syntax_error_points_at_its_line(sandbox):
    execution = run(sandbox, "x = 1\ny = = 2\n")
    assert execution.outcome is Outcome.error
    assert execution.error.name == "SyntaxError"
    assert '  File "<cell 1>", line 2\n    y = = 2\n' in execution.error.traceback
    assert "belljar" not in execution.error.traceback
    assert "Traceback" not in execution.error.traceback
    assert run(sandbox, "x").outcome is Outcome.error  # nothing of it was run


@pytest.mark.parametrize(
    "code", ["\0", "x = '\\ud800", "(" * 1000, "if True:\n\tx\n        y", "return 1", "\ud800"]
)
def test_code_that_is_no_python_is_an_error_of_the_cell(sandbox, code):
    execution = sandbox.run_code(code)
    assert execution.outcome is Outcome.error
    assert "belljar" not in execution.error.traceback
    assert run(sandbox, "1 + 1").value == 2


def test_an_error_in_a_library_shows_its_frames_and_none_of_ours(sandbox):
    execution = run(sandbox, "import json\njson.loads('{')")
    files = [file for file, _, _ in frames(execution.error.traceback)]
    assert files[0] == "<cell 1>"
    assert all("/json/" in file for file in files[1:])
    assert "belljar" not in execution.error.traceback


def test_an_error_of_top_level_await_shows_the_cell_only(sandbox):
    execution = run(
        sandbox,
        """
        import asyncio
        async def fail():
            await asyncio.sleep(0)
            raise ValueError("no")
        await fail()
        """,
    )
    found = frames(execution.error.traceback)
    assert found == [
        ("<cell 1>", 6, "await fail()"),
        ("<cell 1>", 5, 'raise ValueError("no")'),
    ]


def test_warnings_name_the_cell_and_its_line(sandbox):
    execution = run(sandbox, "import warnings\nx = 1\nwarnings.warn('careful')")
    assert "<cell 1>:3: UserWarning: careful" in execution.stderr
    assert "warnings.warn('careful')" in execution.stderr


def test_an_exception_that_cannot_be_shown_does_no_harm(sandbox):
    code = """
        class Bad(Exception):
            def __str__(self): raise RuntimeError("no")
        raise Bad()
    """
    execution = run(sandbox, code)
    assert execution.outcome is Outcome.error
    assert execution.error.name == "Bad"
    assert run(sandbox, "1 + 1").value == 2


def test_a_recursion_without_end_is_an_error_of_the_cell(sandbox):
    execution = run(sandbox, "def f(): f()\nf()")
    assert (execution.outcome, execution.error.name) == (Outcome.error, "RecursionError")
    assert len(execution.error.traceback) < 100_000
    assert run(sandbox, "1 + 1").value == 2


def test_input_says_clearly_that_nobody_is_there(sandbox):
    execution = run(sandbox, "input('name? ')")
    assert execution.error.name == "EOFError"
    assert "sandbox" in execution.error.value
    assert frames(execution.error.traceback) == [("<cell 1>", 1, "input('name? ')")]


def test_standard_input_is_empty(sandbox):
    assert run(sandbox, "import sys; sys.stdin.read()").value == ""
    code = "import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout"
    assert run(sandbox, code).value == b""


@pytest.mark.native_only("the files in /etc of a container are those of its image")
def test_services_and_protocols_have_their_usual_numbers(sandbox):
    code = """
    import socket
    names = [socket.getservbyname(name) for name in ("https", "domain", "www", "postgresql")]
    names, socket.getservbyport(123, "udp"), socket.getprotobyname("tcp")
    """
    expected = ([443, 53, 80, 5432], "ntp", 6)
    assert run(sandbox, code).value == expected


# --- top-level await -------------------------------------------------------------------------


def test_top_level_await_gives_its_value_and_variables_stay(sandbox):
    code = "import asyncio\nx = await asyncio.sleep(0, 5)\nawait asyncio.sleep(0, x + 1)"
    assert run(sandbox, code).value == 6
    assert run(sandbox, "x").value == 5


def test_asyncio_run_works_in_a_cell(sandbox):
    code = "import asyncio\nasync def f(): return 3\nasyncio.run(f())"
    assert run(sandbox, code).value == 3
    assert run(sandbox, "await f()").value == 3


def test_a_task_made_in_one_cell_is_awaited_in_another(sandbox):
    code = """
        import asyncio
        t = asyncio.create_task(asyncio.sleep(0.01, "done"))
        await asyncio.sleep(0)
    """
    assert run(sandbox, code).ok
    assert run(sandbox, "await t").value == "done"


@pytest.mark.usefixtures("patient")
def test_an_await_without_end_is_interrupted_and_its_finally_runs(sandbox):
    code = """
        import asyncio
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned = True
    """
    execution = run(sandbox, code, timeout=3)
    assert execution.outcome is Outcome.timeout
    assert execution.state_preserved
    assert run(sandbox, "cleaned").value is True


# --- exits and deaths ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit(True)", 1),
        ("exit(4)", 4),
        ("import asyncio, sys\nawait asyncio.sleep(0)\nsys.exit(5)", 5),
    ],
)
def test_sys_exit_is_an_outcome_with_its_code_and_keeps_the_state(sandbox, code, status):
    run(sandbox, "x = 1")
    execution = run(sandbox, code)
    assert (execution.outcome, execution.exit_code) == (Outcome.exit, status)
    assert execution.state_preserved
    assert not execution.ok
    after = run(sandbox, "x")
    assert (after.value, after.state_preserved) == (1, True)


def test_sys_exit_with_a_message_says_it_on_stderr(sandbox):
    execution = run(sandbox, "import sys; sys.exit('goodbye')")
    assert (execution.exit_code, execution.stderr) == (1, "goodbye\n")


DEATHS = {
    "os._exit": ("import os; os._exit(5)", 5, None),
    "segfault": ("import ctypes; ctypes.string_at(0)", None, 11),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, 9),
    "abort": ("import os; os.abort()", None, 6),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", None, 15),
}


@pytest.mark.parametrize("kind", DEATHS)
def test_the_death_of_the_interpreter_is_told_and_the_next_cell_works(sandbox, kind):
    code, status, signal = DEATHS[kind]
    run(sandbox, "x = 1; open('kept', 'w').write('file')")
    execution = sandbox.run_code(f"print('before')\n{code}")
    assert execution.outcome is Outcome.killed
    assert (execution.exit_code, execution.signal) == (status, signal)
    assert execution.stdout == "before\n"
    assert not execution.state_preserved
    assert any("variables" in note for note in execution.notes)
    after = run(sandbox, "'x' in globals(), open('kept').read()")
    assert after.value == (False, "file")
    assert not after.state_preserved
    assert run(sandbox, "1").state_preserved


def test_signals_have_their_usual_meaning_for_children(sandbox):
    code = """
        import signal, subprocess
        ends = []
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            child = subprocess.Popen(["sleep", "1000"])
            child.send_signal(number)
            ends.append(child.wait() == -number)
        ends
    """
    assert run(sandbox, code).value == [True] * 4


def test_an_exit_code_of_the_guest_is_what_the_kernel_says(sandbox):
    """The worker may claim anything before it dies."""
    code = """
        import os, json, struct, socket
        for fd in range(3, 64):
            try:
                s = socket.socket(fileno=os.dup(fd))
                s.getpeername()
            except OSError:
                continue
            text = json.dumps({"status": "ok"}).encode()
            s.send(struct.pack("!BIII", 66, 1, len(text), 0) + text)
        os._exit(9)
    """
    execution = run(sandbox, code)
    assert execution.outcome is Outcome.killed
    assert execution.exit_code == 9


FORGERIES = {
    "an unknown status": 'frame(66, REQUEST, {"status": "splendid"})',
    "no status": "frame(66, REQUEST, {})",
    "a status that is a list": 'frame(66, REQUEST, {"status": [1]})',
    "no value": 'frame(66, REQUEST, {"status": "ok"}, b"\\xff\\xff")',
    "a value that is code": 'frame(66, REQUEST, {"status": "ok"}, b\'{"eval":"1"}\')',
    "an error that is none": 'frame(66, REQUEST, {"status": "error"}, b"{")',
    "an exit code that is a text": 'frame(66, REQUEST, {"status": "exit", "exit_code": "3"})',
    "a result without parts": "frame(65, 0, {})",
    "a result with bad parts": 'frame(65, 0, {"parts": [{"mime": 1, "size": -5}]})',
    "a result longer than itself": 'frame(65, 0, {"parts": [{"mime": "a", "size": 10**9}]})',
    "a frame of another kind": 'frame(35, REQUEST, {"status": "ok"})',
    "half a frame": 'frame(66, REQUEST, {"status": "ok"})[:7]',
    "garbage": "b'\\xff' * 5000",
    "a frame too large": "struct.pack('!BIII', 65, 0, 0, 2**32 - 1)",
    "a flood of results": 'frame(65, 0, {"parts": []}) * 20_000',
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("then", ["pass", "os._exit(0)"])
def test_forged_frames_of_the_worker_harm_nobody(make_sandbox, forgery, then):
    """It finds the descriptor on which the worker speaks with init, and lies."""
    sandbox = make_sandbox()
    other = make_sandbox()
    code = """
        import json, os, socket, struct
        def frame(kind, request, header, payload=b""):
            text = json.dumps(header).encode()
            return struct.pack("!BIII", kind, request, len(text), len(payload)) + text + payload
        REQUEST = 1
        for fd in range(3, 64):
            try:
                channel = socket.socket(fileno=os.dup(fd))
                channel.getpeername()
            except OSError:
                continue
            channel.sendall(FORGERY)
        THEN
    """
    code = dedent(code).replace("FORGERY", forgery).replace("THEN", then)
    try:
        execution = sandbox.run_code(code, timeout=3)
    except SandboxError:
        pass  # our own error: that is allowed, a foreign one or a hang is not
    else:
        assert execution.outcome in Outcome
        execution.to_json()
        str(execution)
    assert other.run_code("1 + 1").value == 2
    try:
        again = [sandbox.run_code("1 + 1") for _ in range(2)][-1]
    except SandboxError:
        return
    assert again.value == 2


# --- time-outs -------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_a_time_out_interrupts_first_and_keeps_state_and_output(sandbox):
    run(sandbox, "x = 1")
    execution = sandbox.run_code(f"print('before')\n{LOOP}", timeout=3)
    assert execution.outcome is Outcome.timeout
    assert execution.stdout == "before\n"
    assert execution.state_preserved
    assert 3 <= execution.usage.wall < 25
    after = run(sandbox, "x")
    assert (after.value, after.state_preserved) == (1, True)


STUBBORN = {
    "catches": """
        import time
        while True:
            try:
                while True: time.sleep(0.01)
            except BaseException:
                print("no")
    """,
    "ignores": """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("no")
        while True: time.sleep(1)
    """,
    "blocks": """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        print("no")
        time.sleep(1000)
    """,
    "stops itself": """
        import os, signal
        print("no")
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
    "is in C": """
        print("no")
        import itertools
        sum(itertools.repeat(1))
    """,
}


@pytest.mark.parametrize("kind", STUBBORN)
def test_a_stubborn_cell_is_killed_after_a_grace_and_its_output_kept(
    sandbox, outside, kind, monkeypatch
):
    if kind == "catches":
        monkeypatch.setattr(cell, "GRACE", 4.0)  # long enough to catch one
    run(sandbox, "x = 1; open('kept', 'w').write('file')")
    worker = outside(sandbox).find(run(sandbox, "import os; os.getpid()").value)
    execution = sandbox.run_code("print('before')\n" + dedent(STUBBORN[kind]), timeout=3)
    assert execution.outcome is Outcome.timeout
    assert execution.stdout.startswith("before\nno\n")
    assert not execution.state_preserved
    assert 3.9 < execution.usage.wall < 25
    assert not worker.alive()
    after = run(sandbox, "'x' in globals(), open('kept').read()")
    assert (after.value, after.state_preserved) == ((False, "file"), False)
    assert run(sandbox, "1").state_preserved


@pytest.mark.usefixtures("patient")
def test_a_time_out_reaches_a_cell_that_waits_for_its_child(sandbox, outside):
    execution = run(sandbox, "import subprocess; subprocess.run(['sleep', '1000'])", timeout=0.5)
    assert execution.outcome is Outcome.timeout
    assert execution.state_preserved
    seen = outside(sandbox)
    census.wait_until(
        lambda: not any(p.name == "sleep" for p in seen.processes()), what="the end of the child"
    )


def test_the_time_out_of_the_limits_holds_when_none_is_given(make_sandbox):
    sandbox = make_sandbox(limits=Limits(timeout=0.4))
    assert run(sandbox, LOOP).outcome is Outcome.timeout
    assert run(sandbox, "import time; time.sleep(0.6)", timeout=60).ok


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_time_out_that_is_no_time_is_refused(sandbox, timeout):
    with pytest.raises(ValueError, match="timeout"):
        sandbox.run_code("1", timeout=timeout)


def test_a_late_interrupt_does_not_hit_the_next_cell(sandbox):
    for _ in range(15):
        run(sandbox, "import time; time.sleep(0.02)", timeout=0.02)
        assert run(sandbox, "total = sum(range(1000)); total").value == 499500


# --- memory ----------------------------------------------------------------------------------


def test_a_memory_error_is_out_of_memory(make_sandbox):
    sandbox = make_sandbox()
    run(sandbox, "x = 1")
    execution = run(sandbox, "bytearray(1 << 50)")
    assert execution.outcome is Outcome.out_of_memory
    assert run(sandbox, "x").value == 1


def test_a_memory_bomb_ends_out_of_memory_and_the_sandbox_goes_on(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="64m"), strict=False)
    code = "print('before')\nhoard = []\nwhile True: hoard.append(bytearray(b'x' * 1_000_000))"
    execution = sandbox.run_code(code, timeout=60)
    assert execution.outcome is Outcome.out_of_memory
    assert execution.stdout == "before\n"
    sandbox.run_code("hoard = None")
    assert run(sandbox, "1 + 1").value == 2


# --- the environment of a cell ---------------------------------------------------------------


def test_variables_given_to_a_run_are_gone_after_it(make_sandbox):
    sandbox = make_sandbox(env={"BASE": "base"})
    read = "import os; os.environ.get('BASE'), os.environ.get('EXTRA')"
    assert run(sandbox, read).value == ("base", None)
    assert run(sandbox, read, env={"BASE": "new", "EXTRA": "x"}).value == ("new", "x")
    assert run(sandbox, read).value == ("base", None)
    assert sandbox.commands.run("echo $BASE$EXTRA").stdout == "base\n"


def test_variables_given_to_a_run_are_gone_after_a_failure_too(sandbox):
    run(sandbox, "1 / 0", env={"EXTRA": "x"})
    run(sandbox, LOOP, env={"EXTRA": "x"}, timeout=0.3)
    assert run(sandbox, "import os; os.environ.get('EXTRA')").value is None


def test_children_see_the_variables_of_the_run(sandbox):
    code = "import subprocess; subprocess.run('echo $EXTRA', shell=True)"
    assert run(sandbox, code, env={"EXTRA": "x y"}).stdout == "x y\n"


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "\0"}, {"A": 1}, ["A=1"]])
def test_variables_that_cannot_be_are_refused(sandbox, env):
    with pytest.raises(ValueError, match="env"):
        sandbox.run_code("1", env=env)


def test_siblings_draw_different_random_numbers(make_sandbox):
    code = "import random; random.random()"
    assert make_sandbox().run_code(code).value != make_sandbox().run_code(code).value


def test_cells_start_in_the_workspace(sandbox):
    assert run(sandbox, "import os; os.getcwd()").value == "/workspace"


# --- data environment ------------------------------------------------------------------------


def test_the_data_environment_has_its_modules_imported_already(data_sandbox):
    code = "import sys; {'numpy', 'pandas', 'matplotlib'} <= set(sys.modules)"
    assert run(data_sandbox, code).value is True


def test_numpy_scalars_are_numbers_and_frames_have_html(data_sandbox):
    assert run(data_sandbox, "import numpy as np; np.int64(5)").value == 5
    execution = run(data_sandbox, "import pandas as pd; pd.DataFrame({'a': [1, 2]})")
    assert "<table" in execution.results[0].html
    assert "a\n0  1\n1  2" in execution.text


def test_siblings_draw_different_numpy_numbers(make_sandbox):
    code = "import numpy as np; float(np.random.random())"
    a, b = (make_sandbox(environment="data").run_code(code).value for _ in range(2))
    assert a != b


# --- every Python ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=sorted(interpreters().items()), ids=lambda item: item[0])
def any_python(request, backend):
    version, path = request.param
    return version, Environment(f"python-{version}", python=path)


@pytest.mark.native_only("the Python of a container is that of its image")
def test_the_guest_works_on_this_python(make_sandbox, any_python):
    version, environment = any_python
    sandbox = make_sandbox(environment=environment)
    assert run(sandbox, "import sys; '%d.%d' % sys.version_info[:2]").value == version
    run(sandbox, "x = [1, (2, b'3')]")
    assert run(sandbox, "x").value == [1, (2, b"3")]
    execution = run(sandbox, "import os\nprint('a'); os.write(2, b'b'); os.system('echo c')")
    assert (execution.stdout, execution.stderr) == ("a\nc\n", "b")
    assert run(sandbox, "import asyncio\nawait asyncio.sleep(0, 7)").value == 7
    failed = run(sandbox, "def f():\n    raise ValueError('no')\nf()")
    assert without_marks(failed.error.traceback).splitlines()[1:] == [
        f'  File "<cell {failed.execution_count}>", line 3, in <module>',
        "    f()",
        f'  File "<cell {failed.execution_count}>", line 2, in f',
        "    raise ValueError('no')",
        "ValueError: no",
    ]
    assert run(sandbox, "y = = 1").error.name == "SyntaxError"
    assert run(sandbox, LOOP, timeout=0.3).outcome is Outcome.timeout
    assert run(sandbox, "import sys; sys.exit(3)").exit_code == 3
    assert run(sandbox, "x").value == [1, (2, b"3")]
    assert run(sandbox, "import ctypes; ctypes.string_at(0)").signal == 11
    assert run(sandbox, "'x' in globals()").value is False
    sandbox.files.write("a/b.txt", "content")
    assert run(sandbox, "open('a/b.txt').read()").value == "content"
    assert sandbox.commands.run(["python", "-c", "print(1 + 1)"]).stdout == "2\n"
    code = (
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: r = p.map(abs, [-1])"
    )
    assert run(sandbox, code).ok
    late = LEFTOVERS["thread"]
    assert run(sandbox, late[0]).ok
    joined = sandbox.run_code(f"open('go', 'w').close()\n{late[1]}\nprint('mine')")
    assert joined.stdout == "mine\n"
