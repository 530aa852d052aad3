"""Contexts: interpreters of one sandbox that share its files and run at the same time."""

import threading

import anyio
import pytest

from belljar import (
    AsyncSandbox,
    Context,
    ExecutionError,
    InvalidOption,
    Limits,
    NameMissing,
    Outcome,
    SandboxError,
)

pytestmark = pytest.mark.contract("native", "docker", "gvisor")


def at_once(*functions):
    threads = [threading.Thread(target=each) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def count_sleepers(sandbox):
    """Those that have ended stay in the table until their parent asks how."""
    table = sandbox.commands.run("cat /proc/[0-9]*/stat 2>/dev/null; true").stdout
    return sum("(sleep) " in line and "(sleep) Z" not in line for line in table.splitlines())


def test_each_has_variables_of_its_own_and_all_share_the_files(sandbox):
    one, two = sandbox.contexts.create("one"), sandbox.contexts.create()
    sandbox.run_code("x = 0; open('shared', 'w').write('from all')")
    sandbox.run_code("x = 1", context=one)
    sandbox.run_code("x = 2", context=two.id)
    assert [sandbox.run_code("x", context=each).value for each in (None, "one", two)] == [0, 1, 2]
    assert sandbox.run_code("open('shared').read()", context=two).value == "from all"
    assert sandbox.contexts.list() == [one, two]


def test_values_go_to_and_come_from_the_context_that_is_named(sandbox):
    one = sandbox.contexts.create("one")
    sandbox.put(x=0)
    sandbox.put(x=1, context=one)
    sandbox.set("y", 2, context=one.id, lenient=False)
    assert [sandbox.get("x"), sandbox.get("x", context="one"), sandbox.get("y", context=one)] == [
        *(0, 1, 2)
    ]
    assert sandbox.run_code("x, y", context=one).value == (1, 2)
    with pytest.raises(NameMissing, match="'y'"):
        sandbox.get("y")
    sandbox.put(context="a variable")
    assert sandbox.get("context") == "a variable"
    with pytest.raises(InvalidOption, match=r"set\('context', value\)"):
        sandbox.put(x=1, context="one")
    sandbox.restart(one)
    assert sandbox.get("x") == 0
    with pytest.raises(NameMissing, match="'x'"):
        sandbox.get("x", context=one)


def test_a_get_that_loses_a_context_leaves_the_sandbox_alone(sandbox):
    one = sandbox.contexts.create()
    sandbox.put(x=0)
    sandbox.run_code(
        "import collections, os\n"
        "class Deadly(collections.deque):\n    def __iter__(self): os._exit(1)\n"
        "x = Deadly()",
        context=one,
    )
    with pytest.raises(ExecutionError, match="the variables of the context are lost"):
        sandbox.get("x", lenient=True, context=one)
    assert sandbox.get("x") == 0
    assert sandbox.run_code("x").notes == ()


@pytest.mark.parametrize("given", [3, ["one"], "two", "of another"])
def test_what_is_no_context_of_the_sandbox_is_refused_with_a_hint(sandbox, make_sandbox, given):
    sandbox.contexts.create("one")
    if given == "of another":
        given = make_sandbox().contexts.create("its name")
    for use in (
        lambda: sandbox.run_code("1", context=given),
        lambda: sandbox.get("x", context=given),
        lambda: sandbox.set("x", 1, context=given),
        lambda: sandbox.interrupt(given),
        lambda: sandbox.restart(given),
        lambda: sandbox.contexts.restart(given),
    ):
        with pytest.raises(InvalidOption, match=r"^(unknown context|context must be)"):
            use()
    if isinstance(given, Context):
        with pytest.raises(InvalidOption, match=r"^unknown context"):
            sandbox.put(x=1, context=given)


def test_they_run_at_the_same_time(sandbox):
    """Each waits for the other: one after the other, neither would end."""
    other = sandbox.contexts.create()
    meet = """
import os, time
open({mine!r}, 'w').close()
while not os.path.exists({theirs!r}): time.sleep(0.01)
"""
    outcomes = []

    def run(mine, theirs, context):
        code = meet.format(mine=mine, theirs=theirs)
        outcomes.append(sandbox.run_code(code, context=context, timeout=30).outcome)

    at_once(lambda: run("a", "b", None), lambda: run("b", "a", other))
    assert outcomes == [Outcome.ok, Outcome.ok]


def test_a_context_starts_in_its_directory_also_after_a_restart(sandbox):
    sandbox.files.make_dir("inner")
    context = sandbox.contexts.create(cwd="inner")
    assert context.cwd == "/workspace/inner"
    code = "import os; os.getcwd()"
    assert sandbox.run_code(code, context=context).value == "/workspace/inner"
    sandbox.run_code("os.chdir('/tmp')", context=context)
    assert sandbox.run_code(code, context=context).value == "/tmp"
    sandbox.contexts.restart(context)
    assert sandbox.run_code(code, context=context).value == "/workspace/inner"
    assert sandbox.run_code(code).value == "/workspace"


def test_quick_restarts_do_not_harm_the_guest(sandbox):
    """The interpreter that is ended is not confined yet: init may not signal it by itself."""
    sandbox.files.write("kept", "x")
    context = sandbox.contexts.create()
    for _ in range(6):
        sandbox.restart()
        sandbox.contexts.restart(context)
    assert sandbox.run_code("open('kept').read()").value == "x"
    assert sandbox.run_code("6 * 7", context=context).value == 42


KILLS = {
    "by the code": ("import os; os.kill(-1, 9)", Outcome.ok),
    "by a limit": ("while True: pass", Outcome.timeout),
    "with the worker": ("import os; os._exit(1)", Outcome.killed),
}


@pytest.mark.parametrize(("code", "expected"), KILLS.values(), ids=KILLS)
def test_an_interpreter_that_died_while_it_waited_is_not_given(sandbox, code, expected):
    """The next one is made ahead."""
    sandbox.contexts.create()
    assert sandbox.run_code(code, timeout=1).outcome is expected
    made = [sandbox.contexts.create() for _ in range(3)]
    for each in made:
        done = sandbox.run_code("6 * 7", context=each)
        assert (done.value, done.state_preserved, done.notes) == (42, True, ())


def test_a_new_interpreter_has_run_nothing(sandbox):
    names = "sorted(globals())"
    first = sandbox.run_code(names).value
    contexts = [sandbox.contexts.create() for _ in range(3)]
    assert [sandbox.run_code(names, context=each).value for each in contexts] == [first] * 3


def test_a_directory_that_is_missing_is_an_error(sandbox):
    with pytest.raises(SandboxError, match="not a directory"):
        sandbox.contexts.create(cwd="missing")
    assert sandbox.contexts.list() == []


DEATHS = {
    "exit": ("import os; os._exit(3)", Outcome.killed),
    "time-out": (
        "import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass",
        Outcome.timeout,
    ),
    "output": ("while True: print('x' * 1000)", Outcome.output_limit),
}


@pytest.mark.parametrize(("code", "expected"), DEATHS.values(), ids=DEATHS)
def test_the_end_of_one_leaves_the_others_and_what_they_started_alone(make_sandbox, code, expected):
    sandbox = make_sandbox(limits=Limits(output="10k"))
    one, two = sandbox.contexts.create(), sandbox.contexts.create()
    start = "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True)"
    sandbox.run_code(f"x = 1; {start}")
    sandbox.run_code(f"x = 2; {start}", context=two)
    ended = sandbox.run_code(f"{start}\n{code}", context=one, timeout=1)
    assert ended.outcome is expected
    assert sandbox.run_code("x, p.poll()").value == (1, None)
    assert sandbox.run_code("x, p.poll()", context=two).value == (2, None)
    assert count_sleepers(sandbox) == 2
    assert sandbox.run_code("1 + 1", context=one).value == 2


def test_the_end_of_the_main_interpreter_leaves_contexts_alone(sandbox):
    context = sandbox.contexts.create()
    sandbox.run_code("x = 1", context=context)
    assert not sandbox.run_code("import os; os._exit(1)").state_preserved
    sandbox.restart()
    kept = sandbox.run_code("x", context=context)
    assert kept.value == 1
    assert kept.state_preserved


def test_a_cell_of_one_is_interrupted_alone(sandbox):
    context = sandbox.contexts.create()
    ended = {}

    def run(name, context):
        code = f"import time; open('{name}', 'w').close(); time.sleep(3); 'slept'"
        ended[name] = sandbox.run_code(code, context=context)

    def interrupt():
        while not (sandbox.files.exists("a") and sandbox.files.exists("b")):
            continue
        sandbox.interrupt(context)

    at_once(lambda: run("a", None), lambda: run("b", context), interrupt)
    assert ended["a"].value == "slept"
    assert ended["b"].outcome is Outcome.cancelled


def test_host_functions_are_known_in_all(make_sandbox):
    sandbox = make_sandbox(functions={"double": lambda x: 2 * x})
    context = sandbox.contexts.create()
    assert sandbox.run_code("double(2)", context=context).value == 4
    sandbox.contexts.restart(context)
    assert sandbox.run_code("double(3)", context=context).value == 6
    big = sandbox.run_code("len(double(b'x' * 2_000_000))", context=context)
    assert big.value == 4_000_000


def test_a_removed_one_is_gone_with_what_it_started(sandbox):
    context = sandbox.contexts.create("gone")
    sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '60'])", context=context)
    sandbox.contexts.remove("gone")
    with pytest.raises(InvalidOption, match="unknown context"):
        sandbox.run_code("1", context=context)
    assert count_sleepers(sandbox) == 0
    assert sandbox.run_code("1").value == 1


def test_checkpoints_and_forks_need_a_sandbox_with_one_context(sandbox):
    before = sandbox.checkpoint()
    context = sandbox.contexts.create()
    for refused in (
        sandbox.checkpoint,
        sandbox.fork,
        lambda: sandbox.rollback(before),
        lambda: sandbox.run_code("1", undo_on_error=True),
        lambda: sandbox.run_code("1", undo_on_error=True, context=context),
    ):
        with pytest.raises(SandboxError, match="one context"):
            refused()
    sandbox.contexts.remove(context)
    sandbox.rollback(before)
    with sandbox.fork(), pytest.raises(SandboxError, match="forked"):
        sandbox.contexts.create()


def test_a_context_is_lost_with_its_guest(sandbox):
    context = sandbox.contexts.create()
    sandbox._sandbox._session.kill()
    with pytest.raises(InvalidOption, match="unknown context"):
        sandbox.run_code("1", context=context)
    assert sandbox.run_code("1").value == 1
    assert sandbox.contexts.list() == []


def test_names_are_unique_and_known(sandbox):
    sandbox.contexts.create("same")
    with pytest.raises(InvalidOption, match="already"):
        sandbox.contexts.create("same")
    with pytest.raises(InvalidOption, match="unknown context"):
        sandbox.run_code("1", context="other")


def test_awaited_ones_run_at_the_same_time(run_async):
    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            every = [await sandbox.contexts.create() for _ in range(3)]
            values = {}

            async def run(number, context):
                code = f"import time; time.sleep(0.3); {number}"
                values[number] = (await sandbox.run_code(code, context=context)).value

            async with anyio.create_task_group() as tasks:
                for number, context in enumerate(every):
                    tasks.start_soon(run, number, context)
            return values

    assert run_async(main) == {0: 0, 1: 1, 2: 2}
