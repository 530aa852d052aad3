"""Commands beside the interpreter: output, exits, time-outs, and what they leave running."""

import subprocess
import threading
import time
from textwrap import dedent

import pytest

import census
import gvisor
from belljar import ExecutionError, Limits, Outcome
from belljar.guest import processes as guest_processes

pytestmark = pytest.mark.contract("native", "docker")


def test_a_text_is_a_shell_command_and_a_list_is_a_program(sandbox):
    assert sandbox.commands.run("echo $((1 + 2)) | tr 3 4").stdout == "4\n"
    assert sandbox.commands.run(["echo", "$HOME *"]).stdout == "$HOME *\n"


def test_output_exit_code_and_usage_are_told(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert result.outcome is Outcome.exit
    assert not result.ok
    assert result.usage.wall > 0
    assert result.usage.output_bytes == 8
    with pytest.raises(ExecutionError, match="3"):
        result.raise_for_exit()
    assert sandbox.commands.run("true").raise_for_exit().ok


@pytest.mark.parametrize("code", [0, 1, 2, 127, 255])
def test_exit_codes_are_exact(sandbox, code):
    result = sandbox.commands.run(f"exit {code}")
    assert (result.exit_code, result.signal) == (code, None)
    assert result.ok == (code == 0)


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("HUP", 1)])
def test_the_signal_that_ended_it_is_told(sandbox, name, number):
    result = sandbox.commands.run(f"kill -{name} $$")
    assert (result.exit_code, result.signal) == (None, number)
    assert result.outcome is Outcome.killed
    assert result.signal_name == f"SIG{name}"


def test_a_program_that_is_not_there_is_exit_code_127(sandbox):
    assert sandbox.commands.run(["no-such-program"]).exit_code == 127
    assert sandbox.commands.run("no-such-program").exit_code == 127
    assert "no-such-program" in sandbox.commands.run(["no-such-program"]).stderr


def test_a_file_that_cannot_be_executed_is_exit_code_126(sandbox):
    sandbox.files.write("f", "not a program")
    assert sandbox.commands.run(["/workspace/f"]).exit_code == 126


@pytest.mark.parametrize("cmd", [[], ["a\0b"], "a\0b", None, 3, b"ls", [1, 2], ["ls", None]])
def test_a_command_that_is_none_is_refused(sandbox, cmd):
    with pytest.raises(ValueError, match="command"):
        sandbox.commands.run(cmd)


def test_arguments_may_be_as_long_as_linux_allows(sandbox):
    assert sandbox.commands.run(["echo", "x" * 100_000, "y" * 100_000]).stdout.endswith("y\n")
    refused = sandbox.commands.run(["echo", "x" * 200_000])
    assert refused.exit_code == 126
    assert "too long" in refused.stderr
    assert sandbox.commands.run(f"echo {'x' * 1_000_000} | wc -c").stdout.strip() == "1000001"


def test_standard_input_is_given_text_or_bytes(sandbox):
    assert sandbox.commands.run("cat", stdin="héllo").stdout == "héllo"
    assert sandbox.commands.run("wc -c", stdin=bytes(3_000_000)).stdout.strip() == "3000000"
    assert sandbox.commands.run("cat").stdout == ""
    assert sandbox.commands.run("cat", stdin="").stdout == ""


def test_input_that_is_not_wanted_is_no_error(sandbox):
    assert sandbox.commands.run("true", stdin=bytes(3_000_000)).ok
    assert sandbox.commands.run("exec 0<&-; sleep 0.1; echo done", stdin="x" * 10**6).ok


def test_input_and_output_at_once_do_not_block_each_other(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="8m"))
    data = "0123456789" * 400_000
    result = sandbox.commands.run("cat", stdin=data)
    assert result.ok
    assert result.stdout == data


def test_commands_start_in_the_workspace_or_where_told(sandbox):
    sandbox.files.make_dir("below")
    assert sandbox.commands.run("pwd").stdout == "/workspace\n"
    assert sandbox.commands.run("pwd", cwd="below").stdout == "/workspace/below\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"


def test_a_directory_that_is_not_there_is_told_and_nothing_is_run(sandbox):
    result = sandbox.commands.run("echo ran", cwd="missing")
    assert not result.ok
    assert result.stdout == ""
    assert "missing" in result.stderr


def test_variables_are_given_to_one_command(sandbox):
    assert sandbox.commands.run("echo $A", env={"A": "x y"}).stdout == "x y\n"
    assert sandbox.commands.run("echo $A").stdout == "\n"
    assert sandbox.run_code("import os; os.environ.get('A')").value is None


def test_output_is_seen_while_the_command_still_runs(sandbox):
    seen = []

    def on_stdout(text):
        seen.append(text)
        sandbox.files.write("seen", "")

    result = sandbox.commands.run(
        "echo now; while [ ! -e seen ]; do sleep 0.02; done", on_stdout=on_stdout, timeout=60
    )
    assert result.ok
    assert "".join(seen) == "now\n"


def test_streams_have_their_own_callbacks(sandbox):
    out, err = [], []
    sandbox.commands.run("echo a; echo b >&2", on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("a\n", "b\n")


def test_a_time_out_ends_the_command_and_all_it_started(sandbox, outside):
    result = sandbox.commands.run("echo before; sleep 1000 & sleep 1000", timeout=3)
    assert result.outcome is Outcome.timeout
    assert result.stdout == "before\n"
    assert not result.ok
    assert 3 <= result.usage.wall < 25
    seen = outside(sandbox)
    census.wait_until(
        lambda: not any(p.name == "sleep" for p in seen.processes()), what="the end of sleep"
    )


def test_a_stubborn_command_is_killed(sandbox):
    command = "trap '' INT TERM HUP; echo no; while :; do sleep 0.1; done"
    result = sandbox.commands.run(command, timeout=3)
    assert (result.outcome, result.signal, result.stdout) == (Outcome.timeout, 9, "no\n")
    assert 3 <= result.usage.wall < 25


def test_a_time_out_of_a_command_does_not_touch_the_interpreter(sandbox):
    sandbox.run_code("x = 1")
    sandbox.commands.run("sleep 1000", timeout=0.3)
    execution = sandbox.run_code("x")
    assert (execution.value, execution.state_preserved) == (1, True)


def test_what_a_command_starts_is_killed_for_memory_before_the_interpreter(sandbox):
    """Its score is set before its program begins, so that every child has it, too."""
    assert sandbox.commands.run("cat /proc/self/oom_score_adj; :").stdout == "1000\n"
    prefix = [*guest_processes._LIMITED, "64", "unlimited"]  # without init, which might be late
    child = subprocess.run(
        [*prefix, "cat", "/proc/self/oom_score_adj"], capture_output=True, check=True
    )
    assert child.stdout == b"1000\n"


def test_a_cell_that_is_cut_off_leaves_no_child_of_a_command_stopped(make_sandbox, outside):
    """All are stopped for a moment then, also a child whose fork is under way."""
    sandbox = make_sandbox(limits=Limits(output="1k"))
    results = []
    forks = "while [ ! -e enough ]; do (:); (:); done; echo through"
    command = threading.Thread(target=lambda: results.append(sandbox.commands.run(forks)))
    command.start()
    seen = outside(sandbox)
    for _ in range(60):
        cut = sandbox.run_code("while True: print('x' * 500)")
        assert cut.outcome is Outcome.output_limit
        census.wait_until(
            lambda: all(p.state != "T" for p in seen.processes()), what="that all go on"
        )
    sandbox.files.write("enough", "")
    command.join()
    assert results[0].stdout == "through\n"


def test_a_background_child_that_holds_the_pipe_is_not_waited_for(sandbox):
    before = time.monotonic()
    result = sandbox.commands.run("sleep 1000 & echo done", timeout=100)
    assert (result.stdout, result.exit_code) == ("done\n", 0)
    assert time.monotonic() - before < 50


def test_output_written_just_before_the_end_is_whole(sandbox):
    for _ in range(10):
        result = sandbox.commands.run("head -c 500000 /dev/zero | tr '\\0' x; exec sh -c 'exit 7'")
        assert (len(result.stdout), result.exit_code) == (500_000, 7)


def test_output_past_the_limit_ends_the_command_and_is_said(make_sandbox, outside):
    sandbox = make_sandbox(limits=Limits(output="10k"))
    result = sandbox.commands.run("yes", timeout=60)
    assert result.outcome is Outcome.output_limit
    assert result.truncated
    assert len(result.stdout) == 10 * 1024
    assert result.usage.wall < 50
    seen = outside(sandbox)
    census.wait_until(
        lambda: not any(p.name == "yes" for p in seen.processes()), what="the end of yes"
    )


def test_a_command_runs_beside_a_cell(sandbox):
    """The cell waits for what the command does, and the command is run from its callback."""
    results = []

    def on_stdout(text):
        results.append(sandbox.commands.run("touch go; echo beside"))

    code = "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    assert sandbox.run_code(code, on_stdout=on_stdout, timeout=60).ok
    assert results[0].stdout == "beside\n"


def test_a_command_survives_the_death_of_the_interpreter(sandbox):
    results = []

    def on_stdout(text):
        if "ready" in text:
            results.append(sandbox.run_code("import os; os._exit(1)").outcome)
            sandbox.files.write("go", "")

    command = "echo ready; while [ ! -e go ]; do sleep 0.02; done; echo after"
    result = sandbox.commands.run(command, on_stdout=on_stdout, timeout=60)
    assert results == [Outcome.killed]
    assert result.stdout == "ready\nafter\n"


@gvisor.PID_1
def test_a_command_cannot_harm_pid_1(sandbox):
    sandbox.run_code("x = 1")
    sandbox.commands.run("kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1; kill -CHLD 1")
    assert sandbox.run_code("x").value == 1


def test_a_command_that_kills_everything_it_can_ends_the_interpreter_only(sandbox):
    sandbox.run_code("x = 1")
    sandbox.commands.run("kill -9 -1")
    execution = sandbox.run_code("1 + 1")
    if execution.outcome is Outcome.killed:  # the interpreter was dying when the cell came
        execution = sandbox.run_code("1 + 1")
    assert (execution.value, execution.state_preserved) == (2, False)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(
            "python",
            marks=pytest.mark.native_only("without packages, it is the base image with its Python"),
        ),
        "data",
    ],
)
def test_python_and_installed_tools_are_on_the_path(make_sandbox, environment):
    sandbox = make_sandbox(environment=environment)
    result = sandbox.commands.run(["python", "-c", "import sys; print(sys.prefix)"])
    assert result.stdout == "/opt/env\n"
    assert sandbox.commands.run("python3 -m json.tool", stdin="{}").stdout == "{}\n"


def test_a_callback_that_fails_ends_the_command(sandbox, outside):
    def fail(text):
        raise RuntimeError("callback")

    with pytest.raises(RuntimeError, match="callback"):
        sandbox.commands.run("echo x; sleep 1000", on_stdout=fail)
    seen = outside(sandbox)
    census.wait_until(
        lambda: not any(p.name == "sleep" for p in seen.processes()), what="the end of sleep"
    )
    assert sandbox.commands.run("echo fine").stdout == "fine\n"


def test_many_commands_leave_no_processes(sandbox, outside):
    for _ in range(30):
        sandbox.commands.run("true | true")
    inside = outside(sandbox)
    census.wait_until(lambda: len(inside.processes()) == 2, what="only init and worker")
    code = dedent(
        """
        import os
        states = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with open(f"/proc/{name}/stat") as file:
                    states.append(file.read().rpartition(")")[2].split()[0])
        states.count("Z")
        """
    )
    assert sandbox.run_code(code).value == 0


def test_after_a_time_out_the_shell_does_not_go_on_with_its_next_command(make_sandbox):
    """It sees its child die, if that dies first."""
    with make_sandbox() as sandbox:
        for n in range(10):
            result = sandbox.commands.run(f"sleep 60; echo {n} > went-on", timeout=0.05)
            assert result.outcome == "timeout"
        assert not sandbox.files.exists("went-on")
