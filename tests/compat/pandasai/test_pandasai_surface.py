"""Code that was written for PandasAI's Sandbox runs: its verbs, its errors, its environment."""

import threading

import numpy as np
import pandas as pd
import pytest

from belljar import InvalidOption, Limits
from belljar.compat.pandasai import (
    BadSyntax,
    BelljarSandbox,
    CodeFailed,
    DockerSandbox,
    NoResult,
)

ONE = "result = {'type': 'number', 'value': 1}"


def said(expression):
    return f"result = {{'type': 'string', 'value': str({expression})}}"


def test_before_start_nothing_can_be_done():
    sandbox = BelljarSandbox(backend="native")
    with pytest.raises(RuntimeError, match=r"^Container is not running\.$"):
        sandbox._exec_code(ONE, {})
    with pytest.raises(RuntimeError, match=r"^Container is not running\.$"):
        sandbox.transfer_file(pd.DataFrame({"a": [1]}))


def test_a_query_needs_its_function_in_the_environment(jar):
    with pytest.raises(RuntimeError) as raised:
        jar.execute("execute_sql_query('SELECT 1')\n" + ONE, {})
    assert str(raised.value) == "execute_sql_query function is not defined in the environment."
    assert jar.execute("text = 'SELECT 1'\n" + ONE, {})["value"] == 1


def test_failing_code_is_a_runtime_error_with_its_traceback(jar):
    with pytest.raises(RuntimeError, match=r"^Error executing code: ") as raised:
        jar.execute("def inner():\n    return 1 / 0\ninner()", {})
    assert "line 2, in inner" in str(raised.value)
    assert raised.value.execution.error.name == "ZeroDivisionError"


def test_code_that_is_no_python_is_a_syntax_error(jar):
    for code in ("x = = 1", "x = '\0'"):
        with pytest.raises(SyntaxError) as raised:
            jar.execute(code, {})
        assert isinstance(raised.value, BadSyntax)
    with pytest.raises(SyntaxError, match=r"^Syntax error in code: "):
        jar._compile_code("x = = 1")
    assert jar._extract_sql_queries_from_code("q = 'SELECT 1'") == ["SELECT 1"]


def test_code_without_a_result_says_so(jar):
    with pytest.raises(NoResult, match="No result was returned"):
        jar.execute("x = 1", {})


def test_a_transferred_file_is_in_tmp_and_stays(jar):
    jar.transfer_file(pd.DataFrame({"a": [1, 2]}))
    jar.transfer_file(pd.DataFrame({"a": [3]}), filename="my data.csv")
    code = said("pd.read_csv('/tmp/file.csv').a.sum() + pd.read_csv('/tmp/my data.csv').a.sum()")
    assert jar.execute(code, {})["value"] == "6"
    assert jar.execute(code, {})["value"] == "6"
    for name in ("../etc/x", "/etc/x", "..", ""):
        with pytest.raises(InvalidOption, match="not a file name"):
            jar.transfer_file(pd.DataFrame({"a": [1]}), filename=name)


def test_nothing_is_left_of_an_earlier_execution(jar):
    jar.execute(ONE, {})
    inside = jar._container
    jar.execute(
        """
import os, subprocess, sys
left = 1
sys.modules['json'].left = 1
subprocess.Popen(['sleep', '1000'], start_new_session=True)
for place in ('/workspace', '/tmp', '/dev/shm'):
    os.mkdir(place + '/left')
    open(place + '/left/file', 'w').close()
    os.chmod(place + '/left', 0)
    open(place + '/.left', 'w').close()
"""
        + ONE,
        {"helper": lambda: 1},
    )
    look = """
import json, os
names = [name for place in ('/workspace', '/tmp', '/dev/shm') for name in os.listdir(place)]
programs = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        programs.append(open(f'/proc/{pid}/comm').read())
    except OSError:
        pass  # it has ended meanwhile
try:
    helper()
except NameError:
    names.append('no helper')
found = ['left' in globals(), hasattr(json, 'left'), 'sleep\\n' in programs, sorted(names)]
result = {'type': 'string', 'value': repr(found)}
"""
    transferred = sorted(jar._files)
    kept = sorted(["exports", "no helper", *transferred])
    assert jar.execute(look, {})["value"] == repr([False, False, False, kept])
    assert jar._container is inside, "the sandbox itself is the same"


def test_a_sandbox_that_cannot_be_cleaned_is_replaced(backend):
    with BelljarSandbox(limits={"processes": 8}) as sandbox:
        sandbox.transfer_file(pd.DataFrame({"a": [5]}))
        bomb = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(1)
    except OSError:
        break
"""
        before = sandbox._container
        sandbox.execute(bomb + ONE, {})
        code = said("pd.read_csv('/tmp/file.csv').a[0]")
        assert sandbox.execute(code, {})["value"] == "5"
        assert before is not None


def test_data_and_modules_of_the_environment_are_there(jar):
    environment = {"pd": pd, "np": np, "limit": 3, "frame": pd.DataFrame({"a": [1, 2]})}
    assert jar.execute(said("frame.a.sum() + limit + np.int64(1)"), environment)["value"] == "7"


def test_what_cannot_travel_is_told_when_the_code_wants_it(jar, caplog):
    environment = {"connection": object(), "Agent": BelljarSandbox}
    assert jar.execute(ONE, environment)["value"] == 1
    assert "connection of the environment cannot go into" in caplog.text
    with pytest.raises(CodeFailed, match=r"NameError(.|\n)*connection is an? object"):
        jar.execute("connection.cursor()", environment)


def test_a_skill_may_be_a_coroutine_function(jar):
    async def double(x):
        return 2 * x

    assert jar.execute(said("double(21)"), {"double": double})["value"] == "42"


def test_transferred_files_are_there_after_the_guest_was_lost(backend):
    with BelljarSandbox() as sandbox:
        sandbox.transfer_file(pd.DataFrame({"a": [5]}))
        sandbox.execute(ONE, {})
        sandbox._container._sandbox._place.guest.kill()
        code = said("pd.read_csv('/tmp/file.csv').a[0]")
        assert sandbox.execute(code, {})["value"] == "5"


def test_an_error_of_a_skill_is_an_error_of_the_code(jar):
    def skill(x):
        raise ValueError("not that")

    code = "try:\n    skill(1)\nexcept ValueError as e:\n    " + said("e")
    assert jar.execute(code, {"skill": skill})["value"] == "not that"


def test_threads_take_turns(jar):
    found = []

    def run(number):
        found.append(jar.execute(f"x = {number}\n" + said("x"), {})["value"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["0", "1", "2", "3"]


def test_a_skill_cannot_run_code_in_the_sandbox_that_waits_for_it(jar):
    with pytest.raises(CodeFailed, match="cannot run code in the sandbox that called it"):
        jar.execute("again()", {"again": lambda: jar.execute(ONE, {})})


def test_a_lifetime_that_is_over_is_a_container_that_does_not_run(backend):
    with BelljarSandbox(limits=Limits(lifetime=300)) as sandbox:
        sandbox.execute(ONE, {})
        sandbox._container._sandbox.end("has reached the end of its lifetime")
        with pytest.raises(RuntimeError, match="Container is not running"):
            sandbox.execute(ONE, {})
        assert sandbox.execute(ONE, {})["value"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"limits": {"memory": "1g"}, "memory": "1g"},
        {"limits": {"memmory": "1g"}},
        {"timeout": -1},
        {"charts": "my charts"},
        {"backend": "dokcer"},
    ],
)
def test_bad_options_are_said_at_once(options):
    with pytest.raises(InvalidOption):
        DockerSandbox(**options)


def test_code_that_saves_anywhere_still_makes_its_chart(jar, tmp_path):
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2])
for path in ('/home/me/out.png', '/proc/out.png', 'new/folder/out.png'):
    plt.savefig(path)
result = {'type': 'plot', 'value': 'new/folder/out.png'}
"""
    assert jar.execute(code, {})["value"] == "exports/charts/out.png"
