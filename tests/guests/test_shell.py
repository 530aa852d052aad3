"""A shell whose state lasts: what stays, what does not, and what a killed command leaves."""

import time

import anyio
import pytest

import census
from belljar import (
    AsyncSandbox,
    InvalidOption,
    Limits,
    Outcome,
    Sandbox,
    SandboxError,
    events,
)
from belljar.sandbox.shell import AsyncShell, Shell


@pytest.fixture
def shell(sandbox):
    with Shell(sandbox) as made:
        yield made


# How many there are, by what every image has.
SLEEPERS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep [6]' | wc -l"


def out(shell, command, **options):
    return shell.run(command, **options).stdout


def none_sleeps(shell):
    """Soon: what was killed may take its time to go."""
    census.wait_until(lambda: out(shell, SLEEPERS) == "0\n", 30.0, "the end of all sleepers")


# --- what lasts --------------------------------------------------------------------------------


def test_variables_last_whether_exported_or_not(shell):
    shell.run("plain='a  b'; export given=\"it's\"; number=7; empty=")
    assert out(shell, 'echo "$plain|$given|$number|${empty-unset}"') == "a  b|it's|7|\n"
    assert out(shell, "python3 -c 'import os; print(os.environ.get(\"given\"))'") == "it's\n"
    assert out(shell, "python3 -c 'import os; print(os.environ.get(\"plain\"))'") == "None\n"


def test_arrays_attributes_and_odd_values_last(shell):
    shell.run(
        "list=(1 'two words' '' $'line\\nline'); declare -A map=([k e y]='v$x'); declare -i n=3"
    )
    assert out(shell, 'printf \'<%s>\' "${list[@]}" "${map[k e y]}"') == (
        "<1><two words><><line\nline><v$x>"
    )
    assert out(shell, "n=n+4; echo $n") == "7\n"
    shell.run("odd='`x` $y \"z\" \\ é !'; readonly fixed=1")
    assert out(shell, 'echo "$odd"; fixed=2; echo not reached') == '`x` $y "z" \\ é !\n'
    assert out(shell, "echo $fixed") == "1\n"


def test_names_that_the_shell_might_use_itself_are_the_commands(shell):
    shell.run("name=1 names=2 line=3 kept=4 saved=5 status=6 text=7 IFS=:")
    assert out(shell, "echo $name$names$line$kept$saved$status$text; x=a:b; echo $x") == (
        "1234567\na b\n"
    )


def test_functions_aliases_and_options_last(shell):
    shell.run("greet() { echo \"hello $1\"; }; alias ll='echo listed'; shopt -s extglob; set -f")
    shell.run("inner() { ll again; case $1 in +(a)) echo many;; esac; }; export -f greet")
    for _ in range(3):  # what is saved again and again does not grow
        assert out(shell, "greet you; ll x; inner aa; echo *; bash -c 'greet child'") == (
            "hello you\nlisted x\nlisted again\nmany\n*\nhello child\n"
        )
    assert out(shell, "shopt -p extglob; echo $-").startswith("shopt -s extglob\n")


def test_the_directory_the_umask_and_files_last(shell):
    shell.run("mkdir -p 'a b'; cd 'a b'; umask 077; echo text > file")
    assert out(shell, "pwd; cat file; stat -c %a file") == "/workspace/a b\ntext\n600\n"
    assert shell.cwd == "/workspace/a b"
    assert out(shell, "cd - >/dev/null; pwd; cd - >/dev/null; pwd") == (
        "/workspace\n/workspace/a b\n"
    )
    shell.run("pushd /tmp >/dev/null")
    assert out(shell, "popd >/dev/null; pwd") == "/workspace/a b\n"


def test_arguments_and_traps_last(shell):
    shell.run("set -- one 'two three'; trap 'echo got it' USR1; trap 'echo ended' EXIT")
    assert out(shell, 'echo "$2"; kill -USR1 $$') == "two three\ngot it\n"
    assert out(shell, "exit") == "ended\n"


def test_the_status_of_the_command_before_is_known(shell):
    assert shell.run("false").exit_code == 1
    assert out(shell, "echo $?") == "1\n"
    assert out(shell, "echo $?; (exit 42)") == "0\n"
    assert out(shell, "echo $?") == "42\n"


def test_what_it_is_given_can_be_unset_and_stays_so(sandbox):
    with Shell(sandbox, env={"GIVEN": "x y"}, cwd="/tmp") as shell:
        assert out(shell, "echo $GIVEN; pwd; unset GIVEN") == "x y\n/tmp\n"
        assert out(shell, "echo ${GIVEN-none}") == "none\n"


# --- what a command gives ----------------------------------------------------------------------


def test_output_is_exact(shell):
    assert (
        out(shell, "echo 12; echo; echo ' 7 '; echo 0; echo; printf end") == "12\n\n 7 \n0\n\nend"
    )
    result = shell.run("echo out; echo err >&2; exit 9")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 9)
    assert sorted(result.output.splitlines()) == ["err", "out"]
    assert out(shell, "printf '$ \\r\\n$ echo $?\\n'") == "$ \r\n$ echo $?\n"


@pytest.mark.parametrize(
    "command",
    [
        "echo 'a'\"b\"c",
        "cat <<'END'\n$x `y` \"z\" 'w' \\\nEND\n",
        "cat <<END\nwithout an end",
        "echo a; # a comment at the end",
        "echo back \\\n  slash",
        "for i in 1 2\ndo\n  echo $i\ndone\n\n",
        "echo '; exit 3'; echo \"$(echo ')')\"",
        "",
        " \n\t\n",
    ],
)
def test_a_command_arrives_as_it_was_written(shell, sandbox, command):
    plain = sandbox.commands.run(["bash", "-c", command])
    ours = shell.run(command)
    assert (ours.stdout, ours.exit_code) == (plain.stdout, plain.exit_code)
    assert out(shell, "echo usable") == "usable\n"


def test_errors_name_the_line_of_the_command(shell):
    assert shell.run("echo\nno-such-program").stderr == (
        "bash: line 2: no-such-program: command not found\n"
    )
    assert shell.run("no-such-program").exit_code == 127
    assert "syntax error" in shell.run("if true").stderr


def test_tracing_shows_the_command_only(shell):
    assert shell.run("set -x; echo 1").stderr == "++ echo 1\n"
    assert shell.run("echo 2; set +x").stderr == "++ echo 2\n++ set +x\n"
    assert shell.run("echo 3").stderr == ""


def test_events_tell_the_command_itself(shell):
    told = []
    with events.subscribe(lambda event: told.append(getattr(event, "cmd", None))):
        shell.run("echo 'as written'")
    assert "echo 'as written'" in told


def test_a_long_command_arrives_whole(shell):
    assert out(shell, f"x={'y' * 300_000}; echo ${{#x}}") == "300000\n"


def test_output_is_seen_while_the_command_still_runs(shell, sandbox):
    seen = []

    def on_stdout(text):
        seen.append(text)
        sandbox.files.write("/tmp/seen", "")

    result = shell.run(
        "echo now; until [ -e /tmp/seen ]; do sleep 0.02; done", on_stdout=on_stdout, timeout=60
    )
    assert result.ok
    assert seen == ["now\n"]


def test_who_looks_for_a_program_by_its_arguments_does_not_find_the_shell(shell):
    """So that `pkill -f server` ends the server, and not the command itself."""
    # Until it is another program, a job is still a shell.
    begun = "grep -qa 'sleep.31[.]7' /proc/$job/cmdline"
    shell.run(f"sleep 31.7 & job=$!; until {begun}; do sleep 0.02; done")
    assert out(shell, "grep -la 'sleep.31[.]7' /proc/[0-9]*/cmdline; : sleep 31.7") == (
        out(shell, "echo /proc/$job/cmdline; kill $job")
    )


# --- how commands end --------------------------------------------------------------------------


def test_exit_ends_the_command_and_not_the_shell(shell):
    assert shell.run("x=1; exit 3; x=2").exit_code == 3
    assert out(shell, "echo $x $?") == "1 3\n"


def test_errexit_ends_the_command_and_not_the_shell(shell):
    assert out(shell, "x=1; set -e; false; echo not reached") == ""
    assert out(shell, "echo $x; false; echo not reached") == "1\n"
    assert out(shell, "set +e; false; echo reached") == "reached\n"


def test_a_time_out_kills_all_that_the_command_started_and_changes_nothing(shell):
    shell.run("x=before; cd /tmp")
    result = shell.run("x=after; cd /; echo so far; sleep 60 & (sleep 61; true)", timeout=3)
    assert result.outcome is Outcome.timeout
    assert (result.stdout, result.kept, result.exit_code) == ("so far\n", False, None)
    assert out(shell, "echo $x $PWD") == "before /tmp\n"
    none_sleeps(shell)


def test_a_command_that_ends_just_when_it_is_stopped_changes_nothing(shell):
    """All is written that a command writes at its end, and then the time-out comes."""
    shell.run("x=before")
    end = "__bj_end 0; echo $__bj_run 1 0 0 / > $__bj_dir/report"
    stopped = shell.run(f"x=after; {end}; sleep 60", timeout=1)
    assert (stopped.outcome, stopped.kept) == (Outcome.timeout, False)
    assert out(shell, "echo $x") == "before\n"


def test_a_command_that_is_killed_while_it_saves_leaves_the_state_that_counts(shell):
    shell.run("x=before")
    for _ in range(3):  # whichever of the two files is next
        assert out(shell, "echo $x; : > $__bj_save; kill -9 $$") == "before\n"


def test_a_shell_that_is_killed_or_replaced_is_as_before(shell):
    shell.run("x=before")
    killed = shell.run("x=after; kill -9 $$")
    assert (killed.exit_code, killed.signal, killed.status, killed.kept) == (None, 9, 137, False)
    replaced = shell.run("x=after; exec echo replaced")
    assert (replaced.stdout, replaced.exit_code) == ("replaced\n", 0)
    assert out(shell, "echo $x") == "before\n"


def test_background_jobs_live_on_also_those_that_write(shell, sandbox):
    job = "until [ -e /tmp/begin ]; do sleep 0.02; done; "
    job += "while sleep 0.02; do echo tick; echo tock >&2; echo x >> /tmp/begin; done"
    result = shell.run(f"({job}) & job=$!; seq 1 5000 | tail -1")
    assert (result.stdout, result.stderr) == ("5000\n", "")
    sandbox.files.write("/tmp/begin", "")
    until = time.monotonic() + 30
    while len(sandbox.files.read("/tmp/begin")) < 20 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(sandbox.files.read("/tmp/begin")) >= 20
    assert out(shell, "kill $job && echo alive") == "alive\n"


def test_a_first_command_that_is_killed_leaves_what_was_given(sandbox):
    with Shell(sandbox, env={"GIVEN": "1"}) as shell:
        assert shell.run("sleep 60", timeout=0.3).outcome is Outcome.timeout
        assert out(shell, "echo $GIVEN") == "1\n"


# --- limits and faults -------------------------------------------------------------------------


def test_a_state_that_does_not_fit_is_told_and_the_one_before_stays(make_sandbox):
    sandbox = make_sandbox(limits=Limits(tmp="256k"))
    with Shell(sandbox) as shell:
        assert shell.run("x=small").kept
        result = shell.run("x=$(head -c 400000 /dev/zero | tr '\\0' a); echo ${#x}")
        assert (result.stdout, result.kept) == ("400000\n", False)
        assert out(shell, "echo $x") == "small\n"


def test_a_guest_that_writes_our_files_deceives_itself_only(shell):
    shell.run("x=1")
    lie = "for f in /tmp/.belljar-shell-*/*; do head -c 3000000 /dev/zero > $f; done; kill -9 $$"
    assert not shell.run(lie).kept
    assert shell.run("/bin/rm -rf /tmp/.belljar-shell-*; kill -9 $$").status == 137
    result = shell.run("echo ${x-gone}")
    assert (result.stdout, result.fresh) == ("gone\n", True)


def test_two_shells_share_files_and_nothing_else(sandbox):
    with Shell(sandbox) as one, Shell(sandbox) as other:
        one.run("x=1; cd /tmp; echo shared > /workspace/f")
        assert out(other, "echo ${x-none} $PWD; cat f") == "none /workspace\nshared\n"


def test_a_directory_that_has_gone_is_left_for_the_first_one(shell):
    shell.run("mkdir d; cd d; rmdir ../d")
    assert out(shell, "pwd") == "/workspace\n"


def test_a_sandbox_without_bash_is_told(sandbox):
    with (
        Shell(sandbox, env={"PATH": "/nowhere"}) as shell,
        pytest.raises(SandboxError, match="no bash"),
    ):
        shell.run("true")


@pytest.mark.parametrize("command", [None, 3, b"ls", "a\0b", ["ls"]])
def test_what_is_no_command_is_refused(shell, command):
    with pytest.raises(InvalidOption, match="command"):
        shell.run(command)


def test_close_removes_its_files_and_ends_its_use(sandbox):
    with Shell(sandbox) as shell:
        shell.run("x=1")
        assert len(sandbox.files.list("/tmp")) == 1
    assert sandbox.files.list("/tmp") == []
    shell.close()
    with pytest.raises(SandboxError, match="closed"):
        shell.run("true")


def test_commands_at_once_take_turns_and_a_cancelled_one_changes_nothing(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox, AsyncShell(sandbox) as shell:
            await shell.run("n=0")
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(shell.run, "n=$((n + 1))")
            assert (await shell.run("echo $n")).stdout == "5\n"
            with anyio.move_on_after(1) as scope:
                await shell.run("n=100; sleep 60")
            assert scope.cancelled_caught
            assert (await shell.run("echo $n")).stdout == "5\n"
            with anyio.fail_after(30):  # what was killed may take its time to go
                while (await shell.run(SLEEPERS)).stdout != "0\n":
                    await anyio.sleep(0.02)

    run_async(main)


@pytest.mark.parametrize("kind", [Shell, AsyncShell])
@pytest.mark.parametrize("given", [None, "sandbox", Sandbox, AsyncSandbox])
def test_a_shell_is_for_a_sandbox_of_its_kind(kind, given):
    with pytest.raises(
        InvalidOption, match=f"{kind.__name__} is for an? {'Async' * (kind is AsyncShell)}Sandbox"
    ):
        kind(given)


def test_a_sandbox_of_the_other_kind_is_refused_by_name(sandbox):
    with pytest.raises(InvalidOption, match=r"not Sandbox\n.*Shell\(sandbox\) is for a Sandbox"):
        AsyncShell(sandbox)
