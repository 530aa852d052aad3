"""`belljar exec` and `belljar shell`: a program in a sandbox that looks like a program."""

from __future__ import annotations

import signal
import subprocess

import pytest

from command_line import BELLJAR, Cli

PYTHON = ("exec", "-e", "python")


@pytest.mark.parametrize(
    ("options", "argv", "exit_code"),
    [
        ([], ["true"], 0),
        ([], ["sh", "-c", "exit 7"], 7),
        ([], ["no-such-program"], 127),
        ([], ["/etc/passwd"], 126),
        ([], ["sh", "-c", "kill -9 $$"], 137),
        (["--timeout", "0.3"], ["sleep", "60"], 124),
    ],
)
def test_the_exit_code_is_the_programs(
    belljar: Cli, options: list[str], argv: list[str], exit_code: int
) -> None:
    done = belljar(*PYTHON, *options, "--", *argv)
    assert done.returncode == exit_code, done.stderr


def test_streams_are_its_own(belljar: Cli) -> None:
    done = belljar(*PYTHON, "--", "sh", "-c", "cat; echo wrong >&2; test -t 1", code="given\n")
    assert (done.stdout, done.stderr, done.returncode) == ("given\n", "wrong\n", 1)


def test_without_input_it_reads_nothing(belljar: Cli) -> None:
    assert belljar(*PYTHON, "-n", "--", "cat", code="given").stdout == ""


def test_options_after_the_dashes_are_the_programs(belljar: Cli) -> None:
    done = belljar(
        *PYTHON, "--set-env", "A=b", "-w", "/tmp", "--", "sh", "-c", "echo $A $PWD $0", "-t"
    )
    assert done.stdout == "b /tmp -t\n"


def test_much_goes_through_in_both_directions(belljar: Cli) -> None:
    done = belljar(*PYTHON, "--", "cat", code=b"0123456789abcdef" * 1_000_000)
    assert len(done.stdout) == 16_000_000


def test_files_come_in_and_a_session_keeps_them(belljar: Cli) -> None:
    (belljar.directory / "given.txt").write_text("from the host")
    put = belljar(
        *PYTHON, "--put", "given.txt", "--session", "s", "--", "cp", "given.txt", "kept.txt"
    )
    assert put.returncode == 0, put.stderr
    assert belljar(*PYTHON, "--session", "s", "--", "cat", "kept.txt").stdout == "from the host"


def test_signals_are_passed_on(belljar: Cli) -> None:
    code = "trap 'echo heard; exit 9' TERM; echo ready; sleep 60 & wait"
    with belljar.started(*PYTHON, "--", "sh", "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"heard\n"
        assert process.wait(30) == 9


def test_a_reader_that_leaves_ends_it(belljar: Cli) -> None:
    with belljar.started(*PYTHON, "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("argv", "words"), [(["exec"], "no program"), (["exec", "ls"], "after `--`")]
)
def test_a_program_is_asked_for_after_the_dashes(alone: Cli, argv: list[str], words: str) -> None:
    done = alone(*argv)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_shell_reads_commands_from_a_pipe(belljar: Cli) -> None:
    assert belljar("shell", "-e", "python", code="cd /tmp; pwd\nexit 4").stdout == "/tmp\n"


def test_it_takes_the_place_of_a_shell_for_other_tools(belljar: Cli) -> None:
    """As `shell_path` of a tool that calls SHELL -c COMMAND."""
    wrapper = belljar.directory / "shell"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(BELLJAR)} exec -e python -- bash "$@"\n')
    wrapper.chmod(0o755)
    done = subprocess.run(
        "echo $((6 * 7)) from $0",
        shell=True,
        executable=str(wrapper),
        env=belljar.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(b"42 from"), done.stderr


def test_a_program_ends_after_its_terminal_has_gone(belljar: Cli) -> None:
    """Also one that ignores it."""
    program = "trap '' HUP; echo re''ady; while :; do sleep 0.1; done"
    with belljar.terminal(*PYTHON, "--", "sh", "-c", program) as screen:
        screen.read_until("ready")
        screen.process.send_signal(signal.SIGHUP)
        assert screen.process.wait(30) == 137


@pytest.mark.not_gvisor("its terminals do not turn Ctrl-C into a signal")
def test_a_shell_has_a_terminal_with_job_control(belljar: Cli) -> None:
    with belljar.terminal("shell", "-e", "python") as screen:
        screen.read_until("$ ")
        screen.type("stty size; tty\n")
        assert "/dev/pts/" in screen.read_until("pts/0")
        loop = "while :; do sleep 0.1; done"
        screen.type(f'sh -c \'trap "echo heard; exit 3" INT; echo re""ady; {loop}\'\n')
        screen.read_until("ready")
        screen.type("\x03")
        screen.read_until("heard")
        screen.type("sh -c 'echo ag\"\"ain $0; sleep 60' $?\n")
        screen.read_until("again 3")
        screen.type("\x1a")
        screen.read_until("Stopped")
        screen.type("kill %1; fg; exit 5\n")
        screen.read_all()
        assert screen.process.returncode == 5
