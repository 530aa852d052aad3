"""OpenManus' tools that run Python: what they answer, and that nothing runs on the host."""

import gc
from textwrap import dedent

import anyio
import pytest

import setting
from belljar import InvalidOption
from belljar.compat.openmanus import NormalPythonExecute, PythonExecute
from belljar.compat.openmanus.tool.base import BaseTool

pytestmark = pytest.mark.contract("docker")


@pytest.fixture(scope="module")
def shared(backend):
    """Made on no event loop, used on many."""
    tool = PythonExecute(backend=setting.BACKEND)
    yield tool
    anyio.run(tool.close)


def test_a_tool_tells_a_model_how_to_call_it():
    for tool in (PythonExecute(), NormalPythonExecute()):
        assert isinstance(tool, BaseTool)
        assert tool.name == "python_execute"
        function = tool.to_param()["function"]
        assert (function["name"], function["description"]) == (tool.name, tool.description)
        assert function["parameters"]["required"] == ["code"]
    properties = NormalPythonExecute.parameters["properties"]
    assert properties["code_type"]["enum"] == ["process", "report", "others"]


def test_what_is_printed_is_observed(run_async, shared):
    async def main():
        result = await shared.execute("print('hello'); print(42); 'not printed'")
        assert result == {"observation": "hello\n42\n", "success": True}
        assert await shared(code="print('called')", timeout=9) == {
            "observation": "called\n",
            "success": True,
        }
        quotes = dedent('''
            text = """a 'b' "c" \\\\ $HOME `id`"""
            print(text)
        ''')
        assert (await shared.execute(quotes))["observation"] == "a 'b' \"c\" \\ $HOME `id`\n"

    run_async(main)


def test_what_goes_wrong_is_observed_after_what_was_printed(run_async, shared):
    async def main():
        result = await shared.execute("print('first')\n1 / 0")
        assert not result["success"]
        assert result["observation"].startswith("first\nTraceback")
        assert "ZeroDivisionError: division by zero" in result["observation"]
        assert "SyntaxError" in (await shared.execute("if"))["observation"]
        left = await shared.execute("print('x'); import sys; sys.exit(3)")
        assert left == {"observation": "x\nthe code ended: exit code 3", "success": False}
        assert (await shared.execute("import sys; sys.exit()"))["success"]
        died = await shared.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert "SIGKILL" in died["observation"]

    run_async(main)


def test_a_time_out_is_said_and_really_ends_the_code(run_async, shared):
    async def main():
        loop = "import subprocess; print('so far'); subprocess.run(['sleep', '60'])"
        result = await shared.execute(loop, timeout=5)
        assert result == {"observation": "Execution timeout after 5 seconds", "success": False}
        assert result.execution.stdout == "so far\n"
        look = """
            import contextlib, glob
            lines = []
            for name in glob.glob('/proc/[0-9]*/cmdline'):
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    lines.append(open(name, 'rb').read())
            print(len(lines) > 0, sum(b'sleep' in line for line in lines))
        """
        assert (await shared.execute(dedent(look)))["observation"] == "True 0\n"

    run_async(main)


def test_every_execution_has_a_fresh_interpreter_and_the_files_of_those_before(run_async, shared):
    async def main():
        await shared.execute("x = 1; import json; json.gone = True; open('kept', 'w').write('2')")
        look = "import json; print('x' in globals(), hasattr(json, 'gone'), open('kept').read())"
        assert (await shared.execute(look))["observation"] == "False False 2\n"

    run_async(main)


def test_shared_memory_does_not_last_until_the_next_execution(run_async, shared):
    key = 424242
    make = f"import ctypes; print(ctypes.CDLL(None).shmget({key}, 4096, 0o1600) >= 0)"
    look = f"import ctypes; print(ctypes.CDLL(None).shmget({key}, 4096, 0))"

    async def main():
        assert (await shared.execute(make))["observation"] == "True\n"
        assert (await shared.execute(look))["observation"] == "-1\n"

    run_async(main)


def test_nothing_runs_on_the_host(shared, tmp_path):
    """The original ran the code in a process of the host's."""
    target = tmp_path / "made"
    code = f"import os; print(os.getuid()); open({str(target)!r}, 'w')"
    result = anyio.run(shared.execute, code)
    assert result["observation"].split("\n")[0] != "0"
    assert "No such file or directory" in result["observation"]
    assert not target.exists()


def test_two_tools_share_nothing_and_their_files_can_stay_on_the_host(backend, shared, tmp_path):
    async def main():
        await shared.execute("open('mine', 'w').write('1')")
        async with NormalPythonExecute(backend=setting.BACKEND, workspace=tmp_path) as other:
            listed = await other.execute("import os; print(os.listdir())", code_type="process")
            assert listed["observation"] == "[]\n"
            report = """
                import pandas
                pandas.DataFrame({"a": [1, 2]}).describe().to_csv("report.csv")
                print("saved")
            """
            made = await other.execute(dedent(report), "report", 20)
            assert made == {"observation": "saved\n", "success": True}
            with pytest.raises(InvalidOption, match="code_type"):
                await other.execute("1", code_type="reports")

    anyio.run(main)
    assert (tmp_path / "report.csv").read_text().startswith(",a\ncount,2.0")


def test_a_tool_that_is_dropped_ends_its_sandbox(backend):
    from belljar import events

    tool = PythonExecute(backend=setting.BACKEND, environment="python")
    anyio.run(tool.execute, "1")
    name = tool._sandbox.id
    assert name in [sandbox.id for sandbox in events.live()]
    del tool

    async def main():
        while name in [sandbox.id for sandbox in events.live()]:
            gc.collect()  # the runtime's thread may still hold it for a moment
            await anyio.sleep(0.01)

    anyio.run(main)


@pytest.mark.parametrize("given", [{"code": b"1"}, {"code": None}, {"code": "1", "timeout": 0}])
def test_what_is_no_code_or_time_is_refused(given):
    with pytest.raises(InvalidOption):
        anyio.run(lambda: PythonExecute().execute(**given))
