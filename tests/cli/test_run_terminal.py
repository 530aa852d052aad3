"""`belljar run`: signals, and what it does at a terminal."""

from __future__ import annotations

import re
import signal

import pytest

from command_line import SLEEP, Cli, Family

# -- run: signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stubborn", [False, True])
def test_signal_leaves_no_process(
    belljar: Cli, number: signal.Signals, exit_code: int, stubborn: bool
) -> None:
    child = "import subprocess\nsubprocess.Popen(['sleep', '60'])\n"
    ignore = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" * stubborn
    with belljar.running(child + ignore + SLEEP) as process:
        family = Family(process.pid)
        assert len(family.pids) >= 3  # init, the interpreter, sleep
        process.send_signal(number)
        assert process.wait(30) == exit_code
        assert family.survivors() == []
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_kill_of_the_command_itself_leaves_no_process(belljar: Cli) -> None:
    with belljar.running(SLEEP) as process:
        family = Family(process.pid)
        process.kill()
        process.wait(30)
        assert family.survivors() == []
    belljar.run("1")  # what the killed one could not remove is swept by the next start


# -- run: at a terminal ---------------------------------------------------------------------------


HOSTILE = r"""
import sys
print('\x1b]0;owned\x07 \x1b[2J \x9b31m \r \x08 \u202e')
print('\x1b[31m', file=sys.stderr)
class Value:
    def __repr__(self): return '\x1b]52;c;AAAA\x07'
"""


@pytest.mark.parametrize("end", ["Value()", "raise ValueError('\\x1b[5m')", "display(Value())"])
def test_hostile_output_cannot_drive_the_terminal(belljar: Cli, end: str) -> None:
    (belljar.directory / "hostile.py").write_text(HOSTILE + end)
    with belljar.terminal("run", "-e", "python", "hostile.py") as terminal:
        seen = terminal.read_all()
    assert "\\x1b]0;owned\\x07" in seen
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", seen), seen
    assert "\r" not in seen.replace("\r\n", "\n")  # the line discipline makes \r\n of \n


def test_raw_lets_control_characters_reach_the_terminal(belljar: Cli) -> None:
    (belljar.directory / "colour.py").write_text(r"print('\x1b[31mred')")
    with belljar.terminal("run", "-e", "python", "--raw", "colour.py") as terminal:
        assert "\x1b[31mred" in terminal.read_all()


def test_error_that_quotes_the_guest_cannot_drive_the_terminal(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text("pass")
    with belljar.terminal("run", "-e", "python", "code.py", "--get", "\x1b[2J") as terminal:
        assert "\x1b" not in terminal.read_all()


def test_cost_is_said_at_a_terminal(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text("6 * 7")
    with belljar.terminal("run", "-e", "python", "code.py") as terminal:
        assert re.search(r"42\r\nbelljar: ok in .* ms", terminal.read_all())
    with belljar.terminal("run", "-e", "python", "-q", "code.py") as terminal:
        assert terminal.read_all() == ""


def test_ctrl_c_at_a_terminal_ends_the_run_and_everything_in_it(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text(SLEEP)
    with belljar.terminal("run", "-e", "python", "code.py") as terminal:
        terminal.read_until("ready")
        family = Family(terminal.process.pid)
        terminal.type("\x03")
        terminal.read_all()
        assert terminal.process.returncode == 130
        assert family.survivors() == []
