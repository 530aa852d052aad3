"""`belljar repl`, at a terminal and from a pipe."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.cli.statements import Splitter
from command_line import Cli, Family, Terminal

# -- repl -----------------------------------------------------------------------------------------


PROMPT, MORE = ">>> ", "... "


@contextlib.contextmanager
def session(belljar: Cli, *args: str) -> Iterator[Terminal]:
    with belljar.terminal("repl", "-e", "python", *args) as terminal:
        terminal.read_until(PROMPT)
        yield terminal


def test_repl_keeps_variables_and_shows_values(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("x = 41\n")
        terminal.read_until(PROMPT)
        terminal.type("x + 1\n")
        assert "\r\n42\r\n" in terminal.read_until(PROMPT)


def test_repl_asks_on_until_a_block_is_ended_by_an_empty_line(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("for i in range(2):\n")
        terminal.read_until(MORE)
        terminal.type("    print('n', i)\n")
        assert "n 0" not in terminal.read_until(MORE)
        terminal.type("\n")
        assert "n 0\r\nn 1\r\n" in terminal.read_until(PROMPT)
        terminal.type("'''a\n")
        terminal.read_until(MORE)
        terminal.type("b'''\n")
        assert "'a\\nb'" in terminal.read_until(PROMPT)


def test_ctrl_c_interrupts_the_cell_and_keeps_the_session(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("x = 'kept'; import time\n")
        terminal.read_until(PROMPT)
        terminal.type("print('rea' + 'dy', flush=True); time.sleep(60)\n")
        terminal.read_until("ready\r\n")
        terminal.type("\x03")
        assert "KeyboardInterrupt" in terminal.read_until(PROMPT)
        terminal.type("x\n")
        assert "'kept'" in terminal.read_until(PROMPT)


def test_second_ctrl_c_ends_a_cell_that_will_not_stop(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("import signal, time; signal.signal(2, signal.SIG_IGN)\n")
        terminal.read_until(PROMPT)
        ignoring = "[print('rea' + 'dy', flush=True), [time.sleep(60) for _ in range(9)]]\n"
        terminal.type("def stubborn():\n  signal.signal(2, signal.SIG_IGN)\n  " + ignoring + "\n")
        terminal.read_until(PROMPT)
        terminal.type("stubborn()\n")
        terminal.read_until("ready\r\n")
        terminal.type("\x03")
        terminal.read_until("Ctrl-C again")
        terminal.type("\x03")
        terminal.read_until(PROMPT)
        terminal.type("6 * 7\n")
        assert "42" in terminal.read_until(PROMPT)


def test_ctrl_c_at_the_prompt_drops_what_was_typed(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("def f():\n")
        terminal.read_until(MORE)
        terminal.press_ctrl_c(until="KeyboardInterrupt")
        terminal.read_until(PROMPT)
        terminal.type("6 * 7\n")
        terminal.read_until("42\r\n")  # after one more prompt, if Ctrl-C was pressed twice


def test_ctrl_d_leaves_with_exit_code_0_and_nothing_running(belljar: Cli) -> None:
    with session(belljar) as terminal:
        family = Family(terminal.process.pid)
        terminal.type("\x04")
        terminal.read_all()
        assert terminal.process.returncode == 0
        assert family.survivors() == []


@pytest.mark.parametrize(
    ("typed", "exit_code"),
    [("exit", 0), ("exit()", 0), ("%exit", 0), ("\x04", 0), ("import sys; sys.exit(9)", 9)],
)
def test_exit_leaves_the_repl_whatever_failed_before(
    belljar: Cli, typed: str, exit_code: int
) -> None:
    with session(belljar) as terminal:
        terminal.type("1/0\n")
        terminal.read_until(PROMPT)
        terminal.type(typed if typed == "\x04" else typed + "\n")
        terminal.read_all()
        assert terminal.process.returncode == exit_code


@pytest.mark.parametrize("last", ["exit", "%exit", "import sys; sys.exit(9)"])
def test_piped_repl_that_is_left_early_tells_the_first_failure(belljar: Cli, last: str) -> None:
    assert belljar("repl", "-e", "python", code=f"1/0\n{last}\n").returncode == 1


def test_greeting_of_the_repl_fits_into_80_columns(belljar: Cli) -> None:
    with belljar.terminal("repl", "-e", "python", "--timeout", "none") as terminal:
        lines = terminal.read_until(PROMPT).splitlines()
    assert any("Belljar" in line for line in lines)
    assert max(map(len, lines)) < 80


def test_repl_does_not_say_that_a_value_did_not_travel(belljar: Cli) -> None:
    assert belljar("repl", "-e", "python", code="object").stderr == ""


def test_beginning_of_a_repl_command_suggests_that_command(belljar: Cli) -> None:
    done = belljar("repl", "-e", "python", code="%iso\n%e\n")
    assert "did you mean '%isolation'?" in done.stderr
    assert "did you mean '%exit'?" in done.stderr


def test_repl_history_is_kept_for_the_next_session_and_private(belljar: Cli) -> None:
    pytest.importorskip("readline")
    with session(belljar) as terminal:
        terminal.type("remembered = 6 * 7\n")
        terminal.read_until(PROMPT)
        terminal.type("\x04")
        terminal.read_all()
    history = belljar.directory / "state" / "belljar" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with session(belljar) as terminal:
        terminal.type("\x1b[A")  # the key "up"
        terminal.read_until("remembered = 6 * 7")


def test_repl_output_cannot_drive_the_terminal(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("print(chr(27) + ']0;owned')\n")
        terminal.read_until("\\x1b]0;owned\r\n")


def test_piped_repl_runs_each_statement_in_order_in_one_interpreter(belljar: Cli) -> None:
    code = """\
x = 1
def double(n):

    return 2 * n

# a comment
double(x)
1/0
if x:
    print("still here")
else:
    print("not")
"""
    done = belljar("repl", "-e", "python", code=code)
    assert done.stdout == "2\nstill here\n"
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert done.returncode == 1


def test_piped_repl_that_succeeds_is_exit_code_0_without_prompts(belljar: Cli) -> None:
    done = belljar("repl", "-e", "python", code="6 * 7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_repl_commands_reset_list_and_transfer(belljar: Cli) -> None:
    (belljar.directory / "in.txt").write_text("IN")
    code = """\
x = 1
%put in.txt:sub/there.txt
open('sub/there.txt').read()
%get sub/there.txt:out.txt
%files
%files sub
%reset
x
%files sub
%filse
%get nothing
%help
"""
    done = belljar("repl", "-e", "python", code=code)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "'IN'"
    assert lines[1].startswith("sub/ dir ")
    assert lines[2:4] == ["there.txt file 2 B"] * 2  # files outlive the reset
    assert lines[4].startswith("%help")
    assert (belljar.directory / "out.txt").read_text() == "IN"
    assert "NameError: name 'x' is not defined" in done.stderr
    assert "did you mean '%files'?" in done.stderr
    assert "No such file" in done.stderr


def test_name_of_a_file_in_the_guest_cannot_drive_the_terminal(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("open('\\x1b[2J\\nfake', 'w').close()\n")
        terminal.read_until(PROMPT)
        terminal.type("%files\n")
        terminal.read_until("\\x1b[2J\\nfake")


# -- the statements of the repl -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "statements"),
    [
        (["a", "b"], ["a", "b"]),
        (["", "# only a comment", "a"], ["a"]),
        (["f(", "1)", "b"], ["f(\n1)", "b"]),
        (["x = [  # (", "]"], ["x = [  # (\n]"]),
        (["'''", "a:", "'''"], ["'''\na:\n'''"]),
        (['"""\\""""', "b"], ['"""\\""""', "b"]),
        (["r'\\'", "b'", "c"], ["r'\\'", "b'", "c"]),  # broken strings are for the guest to tell
        (["'a\\", "b'", "c"], ["'a\\\nb'", "c"]),
        (["a + \\", "b", "c"], ["a + \\\nb", "c"]),
        (["'#'; (", ")"], ["'#'; (\n)"]),
        ([")", "a"], [")", "a"]),
        (["if a: b", "c"], ["if a: b", "c"]),
        (["if a:", " b", "elif c:", " d", "else:", " e", "f"],
         ["if a:\n b\nelif c:\n d\nelse:\n e", "f"]),
        (["try:", " a", "except E:", " b", "finally:", " c"],
         ["try:\n a\nexcept E:\n b\nfinally:\n c"]),
        (["@d", "@e(", "1)", "def f():", " a", "", " b", "c"],
         ["@d\n@e(\n1)\ndef f():\n a\n\n b", "c"]),
        (["def f():", "    '''", "doc", "    '''", "f()"],
         ["def f():\n    '''\ndoc\n    '''", "f()"]),
        (["match x:", "  case 1:", "    a", "b"], ["match x:\n  case 1:\n    a", "b"]),
        (["match = 1", "iffy = 2", "d = {1:", "2}"], ["match = 1", "iffy = 2", "d = {1:\n2}"]),
        (["async def f():", "  pass", "await f()"], ["async def f():\n  pass", "await f()"]),
        (["def f(", "  a):", "  b", "c"], ["def f(\n  a):\n  b", "c"]),
        (["class A: pass", "# note", "class B: pass"], ["class A: pass\n# note", "class B: pass"]),
        (["x[a:", "b]", "lambda: 1"], ["x[a:\nb]", "lambda: 1"]),
    ],
)  # fmt: skip
def test_lines_are_cut_into_statements(lines: list[str], statements: list[str]) -> None:
    splitter = Splitter(empty_line_ends_block=False)
    found = [statement for line in lines for statement in splitter.feed(line)]
    assert found + splitter.finish() == statements


def test_every_statement_of_a_real_module_is_found_whole() -> None:
    import ast
    import textwrap as module

    source = Path(module.__file__).read_text()
    splitter = Splitter(empty_line_ends_block=False)
    found = [s for line in source.splitlines() for s in splitter.feed(line)] + splitter.finish()
    assert [ast.dump(node) for s in found for node in ast.parse(s).body] == [
        ast.dump(node) for node in ast.parse(source).body
    ]


def test_empty_line_ends_a_block_at_a_terminal_only_between_statements() -> None:
    splitter = Splitter(empty_line_ends_block=True)
    assert splitter.feed("def f(a,") == []
    assert splitter.feed("") == []
    assert splitter.feed("b):") == []
    assert splitter.feed("    return a") == []
    assert splitter.feed("") == ["def f(a,\n\nb):\n    return a"]
    assert not splitter.pending
