"""Cells that are ended with a result: by a host function, by belljar.finish(), by a return."""

from textwrap import dedent

import pytest

from belljar import HostFunction, InvalidOption, Limits, Outcome, functions, replay
from belljar.protocol import messages

pytestmark = pytest.mark.contract("native", "docker")


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


class Answer:
    """Not data: it could not travel."""

    def __init__(self, text):
        self.text = text


@pytest.fixture
def ending(make_sandbox):
    """A sandbox with a function that ends the cell, and one that tells the host something."""
    told = []
    sandbox = make_sandbox(
        functions={
            "final_answer": HostFunction(Answer, ends_cell=True),
            "tell": lambda text: told.append(text),
        }
    )
    sandbox.told = told
    return sandbox


# --- host functions --------------------------------------------------------------------------


@pytest.mark.contract("gvisor")
def test_a_host_function_ends_the_cell_with_an_object_of_the_host(ending):
    execution = run(
        ending,
        """
        kept = 1
        try:
            final_answer("42")
        except Exception:
            print("caught")
        print("after")
        """,
    )
    assert execution.outcome is Outcome.ok
    assert (execution.finished, type(execution.final), execution.final.text) == (True, Answer, "42")
    assert (execution.stdout, execution.value, execution.error) == ("", None, None)
    assert [call.name for call in execution.calls] == ["final_answer"]
    after = run(ending, "kept")  # the interpreter goes on, and the next cell has no result
    assert (after.value, after.finished, after.final) == (1, False, None)


def test_none_is_a_result_too(make_sandbox):
    sandbox = make_sandbox(functions={"stop": HostFunction(lambda: None, ends_cell=True)})
    execution = run(sandbox, "stop()")
    assert (execution.finished, execution.final) == (True, None)


def test_finally_blocks_run_and_may_call_the_host(ending):
    code = """
        try:
            final_answer(1)
        finally:
            tell("cleaned up")
    """
    assert run(ending, code).final.text == 1
    assert ending.told == ["cleaned up"]


def test_code_that_swallows_the_end_goes_on_and_the_first_result_stands(ending):
    code = """
        for text in "ab":
            try:
                final_answer(text)
            except:
                print("swallowed", text)
        "value"
    """
    execution = run(ending, code)
    assert execution.stdout == "swallowed a\nswallowed b\n"
    assert (execution.outcome, execution.value) == (Outcome.ok, "value")
    assert execution.final.text == "a"


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("1 / 0", Outcome.error),
        ("import sys; sys.exit(3)", Outcome.exit),
        ("import os; os._exit(3)", Outcome.killed),
    ],
)
def test_a_result_stands_however_the_code_ends_after_it(ending, end, outcome):
    execution = run(ending, f"try:\n    final_answer(1)\nfinally:\n    {end}")
    assert (execution.outcome, execution.finished, execution.final.text) == (outcome, True, 1)


def test_a_function_that_fails_does_not_end_the_cell(make_sandbox):
    def submit(text: str) -> str:
        if not text:
            raise ValueError("the answer is empty")
        return text.upper()

    sandbox = make_sandbox(functions=[HostFunction(submit, ends_cell=True)])
    code = """
        for text in ("", "done"):
            try:
                submit(text)
            except ValueError as error:
                print(error)
    """
    execution = run(sandbox, code)
    assert (execution.stdout, execution.final) == ("the answer is empty\n", "DONE")
    assert run(sandbox, "submit()").error.name == "TypeError"


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nawait asyncio.sleep(0)\nfinal_answer(1)\nprint(2)",
        """
        import asyncio
        async def work():
            final_answer(1)
        await asyncio.gather(work(), asyncio.sleep(0))
        print(2)
        """,
        """
        import asyncio
        async def work():
            try:
                final_answer(1)
            except Exception:
                print(2)
        asyncio.run(work())
        print(3)
        """,
    ],
)
def test_the_end_comes_from_coroutines_too(ending, code):
    execution = run(ending, code)
    assert (execution.outcome, execution.stdout) == (Outcome.ok, "")
    assert execution.final.text == 1


@pytest.mark.native_only("containers may have an older Python")
def test_the_end_comes_from_a_task_group_too(ending):
    code = """
        import asyncio
        async def work():
            final_answer(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(asyncio.sleep(30))
        print(2)
    """
    execution = run(ending, code)
    assert (execution.outcome, execution.stdout, execution.final.text) == (Outcome.ok, "", 1)


def test_a_group_with_another_error_is_an_error(ending):
    code = "raise BaseExceptionGroup('two', [ValueError(), KeyboardInterrupt()])"
    assert run(ending, code).outcome is Outcome.error


@pytest.mark.parametrize("call", ["final_answer", "__import__('belljar').finish"])
def test_another_thread_cannot_end_the_cell_and_is_told_so(ending, call):
    code = f"""
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor() as pool:
            error = pool.submit(lambda: {call}(1)).exception()
        (type(error).__name__, str(error))
    """
    execution = run(ending, code)
    assert execution.value[0] == "RuntimeError"
    assert "another thread cannot" in execution.value[1]
    assert not execution.finished


def test_stubs_and_help_say_that_it_does_not_return(ending):
    tool = HostFunction(Answer, name="final_answer", ends_cell=True)
    assert "def final_answer(text) -> NoReturn:" in functions.stubs([tool])
    assert run(ending, "final_answer.__annotations__['return']").value == "NoReturn"


def test_a_result_comes_from_a_function_that_was_exposed(sandbox):
    sandbox.expose(lambda text: text * 2, "submit", ends_cell=True)
    assert run(sandbox, "submit('ab')").final == "abab"
    with pytest.raises(InvalidOption, match="ends_cell must be True or False"):
        sandbox.expose(len, ends_cell=1)


@pytest.mark.contract("gvisor")
def test_the_async_api_has_results_too(run_async, open_sandbox):
    async def use():
        async with open_sandbox() as sandbox:
            await sandbox.expose(Answer, "submit", ends_cell=True)
            ended = await sandbox.run_code("submit(3)")
            return ended, await sandbox.run_code("return 4", allow_return=True)

    ended, returned = run_async(use)
    assert (ended.final.text, returned.final) == (3, 4)


# --- belljar.finish --------------------------------------------------------------------------


@pytest.mark.contract("gvisor")
def test_code_ends_its_cell_with_data(sandbox):
    code = """
        import belljar
        try:
            belljar.finish({"a": [1, 2.5, None]})
        except Exception:
            print("caught")
        print("after")
    """
    execution = run(sandbox, code)
    assert (execution.outcome, execution.stdout) == (Outcome.ok, "")
    assert (execution.finished, execution.final) == (True, {"a": [1, 2.5, None]})
    assert (execution.value, execution.text, execution.results) == (None, None, ())
    assert run(sandbox, "belljar.finish()").finished


def test_errors_call_it_by_its_public_name(sandbox):
    failed = run(sandbox, "import belljar; belljar.finish(1, 2)")
    assert failed.error.value.startswith("finish() takes from 0 to 1 positional arguments")
    named = run(
        sandbox, "belljar.finish.__module__, belljar.finish.__qualname__, repr(belljar.finish)"
    )
    assert named.value[:2] == ("belljar", "finish")
    assert named.value[2].startswith("<function finish at ")


def test_a_frame_is_a_result_too(data_sandbox):
    code = "import belljar, pandas\nbelljar.finish(pandas.DataFrame({'a': [1, 2]}))"
    assert list(data_sandbox.run_code(code).final["a"]) == [1, 2]


def test_figures_of_a_cell_that_ends_early_are_shown(data_sandbox):
    code = """
        import belljar
        import matplotlib.pyplot as plt
        plt.plot([1, 2])
        belljar.finish("drawn")
    """
    execution = run(data_sandbox, code)
    assert (execution.final, len(execution.images)) == ("drawn", 1)


def test_what_is_not_data_is_an_error_where_the_code_can_see_it(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="64k"))
    execution = run(sandbox, "import belljar\nbelljar.finish(print)")
    assert (execution.error.name, execution.finished) == ("TypeError", False)
    assert "belljar.finish(): value" in execution.error.value
    described = run(sandbox, "belljar.finish({'f': print})")
    assert described.finished
    assert "print" in described.final["f"]
    assert any("['f']" in note for note in described.notes), described.notes
    large = run(sandbox, "belljar.finish(b'x' * 10_000_000)")
    assert (large.error.name, large.finished) == ("TypeError", False)


def test_a_child_process_cannot_end_the_cell(sandbox):
    code = """
        import belljar, os
        child = os.fork()
        if not child:
            try:
                belljar.finish(1)
            except RuntimeError:
                os._exit(7)
            os._exit(0)
        os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    """
    execution = run(sandbox, code)
    assert (execution.value, execution.finished) == (7, False)


def test_a_forged_result_is_refused_and_a_flood_of_them_is_cut_off(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="64k"))
    shown = f"display({{{messages.FINAL!r}: data}}, raw=True)"
    forged = run(sandbox, f"data = b'\\x80\\x04nonsense'\n{shown}")
    assert (forged.finished, forged.final) == (True, None)
    assert any(note.startswith("final is None, because") for note in forged.notes)
    flood = run(sandbox, f"data = bytes(500_000)\nfor _ in range(100):\n    {shown}")
    assert flood.outcome is Outcome.output_limit
    assert flood.results == ()


def test_a_module_of_that_name_in_the_workspace_wins(sandbox):
    sandbox.files.write("belljar.py", "mine = 1")
    assert run(sandbox, "import belljar; belljar.mine").value == 1


# --- return ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("return 5", 5),
        ("x = 2\nreturn x + 1\nprint('after')", 3),
        ("for n in range(9):\n    if n == 3:\n        return n", 3),
        ("try:\n    return 1\nexcept:\n    return 2", 1),
        ("try:\n    return 1\nexcept ValueError:\n    return 2\nfinally:\n    y = 1", 1),
        ("try:\n    1 / 0\nexcept ArithmeticError:\n    return 2", 2),
        ("try:\n    return 1\nfinally:\n    return 2", 2),
        ("with open('a', 'w') as file:\n    return file.write('abc')", 3),
        ("import asyncio\nawait asyncio.sleep(0)\nreturn [1]", [1]),
        ("return", None),
    ],
)
def test_a_return_ends_the_cell_and_is_its_value(sandbox, code, value):
    execution = sandbox.run_code(code, allow_return=True)
    assert (execution.outcome, execution.stdout) == (Outcome.ok, "")
    assert (execution.finished, execution.final, execution.value) == (True, value, value)
    assert execution.text == (None if value is None else repr(value))


def test_code_without_a_return_has_the_value_of_its_last_expression(sandbox):
    code = "def f():\n    return 1\ng = lambda: 2\nf() + g()"
    execution = sandbox.run_code(code, allow_return=True)
    assert (execution.value, execution.finished, execution.final) == (3, False, None)


def test_a_return_is_an_error_if_nobody_has_allowed_it(sandbox):
    execution = sandbox.run_code("return 5")
    assert (execution.error.name, execution.finished) == ("SyntaxError", False)
    assert any("allow_return=True" in note for note in execution.notes)
    inside = sandbox.run_code("class A:\n    return 1", allow_return=True)
    assert inside.error.name == "SyntaxError"


def test_errors_of_cells_with_a_return_point_into_the_cell(sandbox):
    execution = sandbox.run_code("if True:\n\n    return 1 / 0", allow_return=True)
    assert 'File "<cell 1>", line 3' in execution.error.traceback
    assert "return 1 / 0" in execution.error.traceback


def test_a_returned_object_that_is_not_data_has_its_text(sandbox):
    execution = sandbox.run_code("return print", allow_return=True)
    assert (execution.finished, execution.final) == (True, None)
    assert execution.text == "<function print at 0x" + execution.text[21:]
    assert any("value is None, because" in note for note in execution.notes)


def test_no_name_of_belljar_is_left_in_the_namespace(sandbox):
    sandbox.run_code("return 1", allow_return=True)
    names = sandbox.run_code("[name for name in dir() if 'belljar' in name]")
    assert names.value == []


def test_a_file_may_return(sandbox, tmp_path):
    path = tmp_path / "job.py"
    path.write_text("return __file__")
    assert sandbox.run_code(path, allow_return=True).final == "job.py"


def test_a_record_knows_that_a_cell_could_return(make_sandbox, tmp_path):
    record = tmp_path / "a.jsonl"
    with make_sandbox(record=record) as sandbox:
        sandbox.run_code("return 1", allow_return=True)
        sandbox.run_code("import belljar; belljar.finish(2)")
    report = replay(record)
    assert [cell.recorded.execution.finished for cell in report.cells] == [True, True]
    assert [cell.replayed.final for cell in report.cells] == [1, 2]


def test_the_result_is_in_the_dictionary_and_the_line_of_an_execution(sandbox):
    execution = sandbox.run_code("return (1, 2)", allow_return=True)
    told = execution.to_dict()
    assert (told["finished"], told["final"]) == (True, [1, 2])
    assert " finished " in repr(execution)
