"""Errors of code, and top-level await: what a traceback shows, on every Python found here."""

from textwrap import dedent

import pytest

from belljar import Outcome
from cells import frames, run, without_marks

pytestmark = pytest.mark.contract("native", "docker")


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
