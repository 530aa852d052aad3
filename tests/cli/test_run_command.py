"""`belljar run`: output and outcome, and what comes with the code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from command_line import BELLJAR, SLEEP, Cli, Family

# -- run: output and outcome ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "options", "exit_code"),
    [
        ("print(1)", [], 0),
        ("1/0", [], 1),
        ("syntax error", [], 1),
        ("import sys; sys.exit()", [], 0),
        ("import sys; sys.exit(7)", [], 7),
        ("import sys; sys.exit(-1)", [], 255),
        ("import sys; sys.exit('a message')", [], 1),
        ("while True: pass", ["--timeout", "0.3"], 124),
        ("x = bytearray(10**9)", ["--memory", "64m", "--best-effort"], 125),
        ("while True: print('x' * 999)", ["--output", "8k"], 123),
        ("import os; os.kill(os.getpid(), 9)", [], 137),
        ("import os; os.kill(os.getpid(), 11)", [], 139),
        ("import os; os._exit(3)", [], 128),
    ],
)
def test_exit_code_tells_the_outcome(
    belljar: Cli, code: str, options: list[str], exit_code: int
) -> None:
    done = belljar.run(code, *options)
    assert done.returncode == exit_code, done.stderr


def test_nothing_is_imported_before_the_code_imports_it(belljar: Cli) -> None:
    done = belljar.run("import sys; print('asyncio' in sys.modules, 'pandas' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "False False\n")


def test_sandbox_that_dies_under_the_code_is_lost_with_exit_code_122(belljar: Cli) -> None:
    with belljar.running(SLEEP) as process:
        family = Family(process.pid)
        os.kill(family.init(), signal.SIGKILL)
        assert process.wait(30) == 122
        assert process.stderr is not None
        assert b"lost" in process.stderr.read()
        assert family.survivors() == []


def test_stdout_and_stderr_of_the_code_stay_apart(belljar: Cli) -> None:
    done = belljar.run("import sys; print('to out'); print('to err', file=sys.stderr)")
    assert (done.stdout, done.stderr) == ("to out\n", "to err\n")


def test_output_arrives_while_the_code_still_runs(belljar: Cli) -> None:
    with belljar.running(SLEEP) as process:  # has read "ready"; the code sleeps for a minute
        assert process.poll() is None


def test_control_characters_pass_unchanged_into_a_pipe(belljar: Cli) -> None:
    assert belljar.run(r"print('\x1b[31mred\x1b[0m\r')").stdout == "\x1b[31mred\x1b[0m\r\n"


def test_output_in_a_locale_without_unicode_is_escaped_not_an_error(belljar: Cli) -> None:
    belljar.environ["PYTHONIOENCODING"] = "ascii"
    assert belljar.run("print('\u00e4')").stdout == "\\xe4\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("6 * 7", "42\n"),
        ("'text'", "'text'\n"),
        ("None", ""),
        ("x = 1", ""),
        ("print('no newline', end='')\n1", "no newline\n1\n"),
        ("display('shown')\nprint('last')", None),
    ],
)
def test_value_of_the_last_expression_is_printed_as_in_a_repl(
    belljar: Cli, code: str, shown: str | None
) -> None:
    out = belljar.run(code).stdout
    if shown is None:
        assert sorted(out.splitlines()) == ["'shown'", "last"]
    else:
        assert out == shown


def test_quiet_leaves_only_the_codes_own_output(belljar: Cli) -> None:
    done = belljar.run("print('mine')\n6 * 7", "--quiet", "-v")
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_traceback_goes_to_stderr_and_what_was_printed_before_is_kept(belljar: Cli) -> None:
    done = belljar.run("print('before')\n1/0")
    assert done.stdout == "before\n"
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_cost_is_said_only_when_asked(belljar: Cli) -> None:
    assert belljar.run("1").stderr == ""
    assert re.fullmatch(r"belljar: ok in .* ms, .*\n", belljar.run("1", "--verbose").stderr)


def test_file_is_read_in_the_encoding_it_declares(belljar: Cli) -> None:
    source = "# coding: latin-1\nprint(ascii('\u00e4'))".encode("latin-1")
    assert belljar.run(source).stdout == "'\\xe4'\n"
    done = belljar.run(b"'\xff\xfe'")
    assert done.returncode == 2
    assert "is not Python source" in done.stderr


def test_variable_is_set_by_set_env_and_the_hosts_are_not_passed_on(belljar: Cli) -> None:
    belljar.environ["HOST_SECRET"] = "canary"
    code = "import os; print(os.environ['GIVEN'], 'canary' in os.environ.values())"
    assert belljar.run(code, "--set-env", "GIVEN=a=b").stdout == "a=b False\n"


def test_code_of_a_file_gets_its_name_and_what_follows_two_dashes(belljar: Cli) -> None:
    (belljar.directory / "sub").mkdir()
    code = "import sys; print(sys.argv, __file__)\n1/0"
    (belljar.directory / "sub" / "it's.py").write_text(code)
    strange = ["--json", "a b", "--", "\"'\\\n{}", "\u00e4"]
    done = belljar("run", "sub/it's.py", "-q", "-e", "python", "--", *strange)
    expected = ["it's.py", *strange]
    assert done.stdout == f"{expected!r} it's.py\n"
    assert "line 2" in done.stderr  # its own lines, in a traceback
    assert done.returncode == 1


def test_names_given_to_the_code_add_no_others_and_the_result_is_its_own(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text("sorted(n for n in globals() if '__' not in n)")
    done = belljar("run", "code.py", "-e", "python", "--json")
    described = json.loads(done.stdout)
    assert described["value"] == []
    assert (described["state_preserved"], described["notes"], done.stderr) == (True, [], "")


def test_code_from_standard_input_can_have_arguments_too(belljar: Cli) -> None:
    code = "import sys; print(sys.argv, '__file__' in globals())"
    assert belljar.run(code).stdout == "['-'] False\n"
    done = belljar("run", "-e", "python", "-", "--", "a", code=code)
    assert done.stdout == "['-', 'a'] False\n"


def test_end_of_the_lifetime_is_named_as_the_reason(belljar: Cli) -> None:
    done = belljar.run("import time; time.sleep(50)", "--lifetime", "5")
    assert done.returncode == 128
    assert "lifetime" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root can enforce every limit")
def test_limit_that_cannot_be_enforced_has_one_warning_that_names_the_option(belljar: Cli) -> None:
    done = belljar.run("1", "--memory", "64m", "--require-limits")
    if done.returncode == 0:
        pytest.skip("this user has a cgroup")
    assert done.returncode == 120
    assert done.stderr.count("hint:") == 1
    assert "--best-effort" in done.stderr
    assert "strict=" not in done.stderr
    done = belljar.run("1", "--memory", "64m")
    assert done.returncode == 0
    assert done.stderr.count("warning: this host cannot enforce the limit memory") == 1
    assert "--require-limits" in done.stderr
    assert "strict=" not in done.stderr
    assert "warning" not in belljar.run("1", "--memory", "64m", "--best-effort").stderr


def test_json_is_the_whole_execution_and_nothing_else(belljar: Cli) -> None:
    done = belljar.run("print('out')\n[1, 2]", "--json")
    described = json.loads(done.stdout)
    assert described["outcome"] == "ok"
    assert (described["stdout"], described["value"]) == ("out\n", [1, 2])
    assert done.stderr == ""


def test_json_of_a_failure_keeps_the_exit_code_and_holds_the_traceback(belljar: Cli) -> None:
    done = belljar.run("1/0", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["name"] == "ZeroDivisionError"
    assert done.stderr == ""


def test_reader_that_has_enough_ends_the_run_quietly(belljar: Cli) -> None:
    code = "import time\nprint('ready', flush=True)\nwhile True: print('x'); time.sleep(0.01)\n"
    with belljar.running(code) as process:
        family = Family(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
        assert family.survivors() == []


def test_output_that_cannot_be_written_is_said_with_exit_code_121(belljar: Cli) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*BELLJAR, "run", "-e", "python", "-"],
            input=b"print('x')",
            stdout=full,
            stderr=subprocess.PIPE,
            env=belljar.environ,
            check=False,
        )
    assert (done.returncode, done.stderr) == (121, b"belljar: No space left on device\n")


# -- run: what comes with the code ----------------------------------------------------------------


@pytest.mark.contract("native", "docker", "gvisor")
def test_standard_input_of_the_command_reaches_the_code_of_a_file(belljar: Cli) -> None:
    (belljar.directory / "ask.py").write_text(
        "import sys\nprint('hi', input('name? '))\nprint(sum(map(int, sys.stdin)))"
    )
    done = belljar("run", "-e", "python", "ask.py", code="Ann\n1\n2\n")
    assert (done.stdout, done.stderr, done.returncode) == ("name? hi Ann\n3\n", "", 0)


def test_code_from_standard_input_has_no_input_of_its_own(belljar: Cli) -> None:
    done = belljar.run("input()\nmore")
    assert "EOFError: input() has nothing to read" in done.stderr


def test_input_that_the_code_does_not_read_is_left_to_others(belljar: Cli) -> None:
    command = f"{' '.join(BELLJAR)} run -e python -c 'print(1)'; cat"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=b"next\n",
        capture_output=True,
        cwd=belljar.directory,
        env=belljar.environ,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"1\nnext\n"


def test_silent_pipe_keeps_neither_the_code_nor_the_command_waiting(belljar: Cli) -> None:
    """`started` keeps the other end of the pipe open, and writes nothing."""
    with belljar.started("run", "-e", "python", "-c", "print(1)") as process:
        assert process.wait(60) == 0
    with belljar.started("run", "-e", "python", "--timeout", "1", "-c", "input()") as process:
        assert process.wait(60) == 124


def test_code_asks_the_person_at_the_terminal(belljar: Cli) -> None:
    (belljar.directory / "ask.py").write_text("print('hi', input('name? '))")
    with belljar.terminal("run", "-e", "python", "ask.py") as terminal:
        terminal.read_until("name? ")
        terminal.type("Ann\n")
        assert "hi Ann" in terminal.read_all()
        assert terminal.process.returncode == 0


def test_ctrl_c_ends_code_that_asks_the_person_at_the_terminal(belljar: Cli) -> None:
    with belljar.terminal("run", "-e", "python", "-c", "input('name? ')") as terminal:
        terminal.read_until("name? ")
        terminal.press_ctrl_c("interrupted")
        terminal.read_all()
        assert terminal.process.returncode == 130


def test_command_without_standard_input_runs_code(belljar: Cli) -> None:
    closed = f"exec {' '.join(BELLJAR)} run -e python -c 'print(1)' <&-"
    done = subprocess.run(
        ["/bin/sh", "-c", closed],
        capture_output=True,
        cwd=belljar.directory,
        env=belljar.environ,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == (b"1\n", 0), done.stderr


def test_traceback_names_the_file_and_nothing_of_ours_is_counted_or_recorded(belljar: Cli) -> None:
    (belljar.directory / "analysis.py").write_text("import sys\nprint(sys.argv)\n1 / 0\n")
    done = belljar(
        *("run", "-e", "python", "analysis.py", "--json", "--record", "r.jsonl", "--", "a")
    )
    told = json.loads(done.stdout)
    assert 'File "analysis.py", line 3, in <module>\n    1 / 0\n' in told["error"]["traceback"]
    assert told["execution_count"] == 1
    lines = map(json.loads, (belljar.directory / "r.jsonl").read_text().splitlines())
    cells = [line for line in lines if line["kind"] == "cell"]
    assert [(cell["file"], cell["argv"]) for cell in cells] == [
        ("analysis.py", ["analysis.py", "a"])
    ]
    belljar("export", "r.jsonl", "--to", "py")
    script = (belljar.directory / "r.py").read_text()
    assert "argv =" not in script
    assert "print(sys.argv)" in script


def test_code_can_be_given_in_the_command(belljar: Cli) -> None:
    code = "import sys\nprint(sys.argv, '__file__' in globals())"
    done = belljar("run", "-e", "python", "-c", code, "--", "a", "-b")
    assert (done.stdout, done.returncode) == ("['-c', 'a', '-b'] False\n", 0)


@pytest.mark.parametrize("args", [["run"], ["run", "-c", "1", "x.py"]])
def test_exactly_one_piece_of_code_is_needed(alone: Cli, args: list[str]) -> None:
    done = alone(*args)
    assert done.returncode == 2
    assert "`belljar run FILE`, `belljar run -c CODE`" in done.stderr


def test_name_of_a_file_alone_runs_it(belljar: Cli) -> None:
    (belljar.directory / "script.py").write_text("import sys; print(sys.argv)")
    done = belljar("script.py", "-e", "python", "--", "a")
    assert (done.stdout, done.returncode) == ("['script.py', 'a']\n", 0)
    missing = belljar("missing.py")
    assert (missing.returncode, "cannot read 'missing.py'" in missing.stderr) == (2, True)


def test_help_is_a_command_too(alone: Cli) -> None:
    assert alone("help").stdout == alone("--help").stdout
    assert alone("help", "run").stdout == alone("run", "--help").stdout
    assert alone("help", "env", "build").stdout == alone("env", "build", "--help").stdout
    wrong = alone("help", "rnu")
    assert (wrong.returncode, "did you mean 'run'" in wrong.stderr) == (2, True)


# -- run: notes -----------------------------------------------------------------------------------


@pytest.mark.contract("native", "docker", "gvisor")
def test_file_of_this_host_that_was_not_put_in_is_named_with_the_option(belljar: Cli) -> None:
    for name in ("sales.csv", "helpers.py", "sub/deep.csv"):
        (belljar.directory / name).parent.mkdir(exist_ok=True)
        (belljar.directory / name).touch()
    for code, option in (
        ("open('sales.csv')", "--put sales.csv\n"),
        ("open('./sales.csv')", "--put sales.csv\n"),
        ("open('sub/deep.csv')", "--put sub/deep.csv:sub/deep.csv\n"),
        ("import helpers", "--put helpers.py\n"),
    ):
        done = belljar.run(code)
        assert done.stderr.endswith(f" is on this host; add {option}"), done.stderr
        assert "--with" not in done.stderr
        assert done.returncode == 1


def test_file_beside_the_script_is_named_with_where_it_lies(belljar: Cli) -> None:
    (belljar.directory / "sub").mkdir()
    (belljar.directory / "sub" / "code.py").write_text("open('in.csv')")
    (belljar.directory / "sub" / "in.csv").touch()
    done = belljar("run", "-e", "python", "sub/code.py")
    assert done.stderr.endswith("sub/in.csv is on this host; add --put sub/in.csv\n")


def test_code_cannot_ask_which_files_this_host_has(belljar: Cli) -> None:
    """Neither outside the current directory, nor by what a program would give back to it."""
    (belljar.directory / "out").symlink_to("/etc")
    (belljar.directory / "here.csv").touch()
    paths = ["/etc/passwd", "../" * 9 + "etc/passwd", "out/passwd", "here.csv/../here.csv"]
    for path in paths:
        done = belljar.run(f"raise FileNotFoundError(2, 'No such file or directory', {path!r})")
        assert "on this host" not in done.stderr, done.stderr
    done = belljar.run("open('here.csv')", "--json", "--record", "r.jsonl")
    assert "here.csv is on this host" in done.stderr
    assert "on this host" not in done.stdout
    assert "on this host" not in (belljar.directory / "r.jsonl").read_text()


def test_notes_are_said_without_being_asked_for(belljar: Cli) -> None:
    done = belljar.run("import no_such_module")
    assert "--with no_such_module" in done.stderr
    assert "--with" not in belljar.run("import no_such_module", "--quiet").stderr
    late = belljar.run("while True: pass", "--timeout", "1")
    assert "the time limit was 1 s" in late.stderr
    assert "--timeout SECONDS" in late.stderr
    assert "variables were lost" not in late.stderr


@pytest.mark.root_only
@pytest.mark.parametrize("more", [[], ["--quiet"], ["--json"]])
def test_files_that_a_full_disk_could_not_take_are_named_with_exit_code_121(
    belljar: Cli, more: list[str]
) -> None:
    small = belljar.directory / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=True)
    try:
        code = "open('a', 'w').write('fits')\nopen('big', 'wb').write(bytes(1 << 20))\n"
        done = belljar.run(code, "--workspace", str(small), *more)
        assert done.returncode == 121, done.stderr
        assert "No space left on device): 'big'" in done.stderr
        assert (small / "a").read_text() == "fits"
        fine = belljar.run("open('a', 'w').write('new')", "--workspace", str(small), *more)
        assert fine.returncode == 0, fine.stderr
    finally:
        subprocess.run(["umount", small], check=True)


def test_link_that_is_never_carried_is_no_failure(belljar: Cli) -> None:
    done = belljar.run("import os; os.symlink('/etc', 'etc')", "--workspace", "w")
    assert done.returncode == 0
    assert "is a link that leads out" in done.stderr


def test_learn_takes_files(belljar: Cli) -> None:
    (belljar.directory / "sales.csv").write_text("a\n")
    (belljar.directory / "code.py").write_text(
        "import csv\nprint(list(csv.reader(open('sales.csv'))), __file__)\n"
    )
    done = belljar("learn", "-e", "python", "code.py", "--put", "sales.csv")
    assert done.returncode == 0, done.stderr
    assert "[['a']] code.py" in done.stderr


def test_tables_are_saved_as_csv_by_a_host_without_pandas(data_belljar: Cli) -> None:
    blocked = data_belljar.directory / "blocked"
    for name in ("pandas", "numpy", "pyarrow"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not on this host')")
    path = data_belljar.environ["PYTHONPATH"]
    data_belljar.environ["PYTHONPATH"] = f"{blocked}:{path}"
    code = "import pandas as pd; pd.DataFrame({'a': [1, 2]})"
    done = data_belljar("run", "--out", "results", "-c", code)
    assert done.returncode == 0, done.stderr
    assert (data_belljar.directory / "results" / "result-1.csv").read_text() == ",a\n0,1\n1,2\n"
