"""What happens to code in a sandbox: state, output, what stays; on every Python found here."""

from textwrap import dedent

import pytest

import census
import setting
from belljar import Environment, Limits, Outcome
from cells import LOOP, run, without_marks
from interpreters import interpreters

pytestmark = pytest.mark.contract("native", "docker")


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
    execution = run(sandbox, "len")
    assert (execution.value, execution.text) == (None, "<built-in function len>")


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
    """Not in a new container, which runs few cells: it would wait for imports it may not need."""
    code = "import sys; {'numpy', 'pandas', 'matplotlib'} <= set(sys.modules)"
    assert run(data_sandbox, code).value is not setting.DOCKER


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
