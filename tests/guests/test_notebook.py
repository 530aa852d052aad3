"""Cells that are written as for a notebook: commands, magics, a common indent."""

import ast
from textwrap import dedent

import pytest

from belljar import Environment, InvalidOption, Outcome, Sandbox, replay
from belljar.guest import notebook

pytestmark = pytest.mark.contract("native", "docker")


@pytest.fixture
def notebook_sandbox(make_sandbox):
    return make_sandbox(notebook=True)


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


# --- which lines are not Python --------------------------------------------------------------


def lines_of(code):
    """The code as Python, one line for each."""
    made, _ = notebook._replace_lines(code.split("\n"), "<cell>")
    return made


@pytest.mark.parametrize(
    "code",
    [
        "x = '''\n!ls\n%cd /\n'''",
        'x = """a\n%%bash\n!ls""" + "b"',
        "x = (7\n%matplotlib)",
        "x = [\n  7\n  %y,\n]",
        "x = 7 \\\n%y",
        "x = 'a \\\n!ls'",
        "x = f'''{y}\n!ls\n'''",
        "x = r'\\'\n",
        "# '''\nx = 1 # (",
        "x = 'it''s' \"'''\"",
        "a != b",
        "a %= 2",
        "x = y != z",
        "x = 1 %2",
    ],
)
def test_python_is_not_changed(code):
    assert lines_of(code) == code.split("\n")


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("!ls -l | wc", ["get_ipython().system('ls -l | wc')"]),
        ("  ! ls", ["  get_ipython().system('ls')"]),
        ("!!ls", ["get_ipython().getoutput('ls')"]),
        ("files = !ls *.csv", ["files = get_ipython().getoutput('ls *.csv')"]),
        ("a, b = !ls", ["a, b = get_ipython().getoutput('ls')"]),
        ("d['k'] = !ls", ["d['k'] = get_ipython().getoutput('ls')"]),
        ("!a \\\n  b\nx", ["get_ipython().system('a   b')", "", "x"]),
        ("!echo \"it's\nx", ["get_ipython().system('echo \"it\\'s')", "x"]),
        ("%cd /tmp", ["get_ipython().run_line_magic('cd', '/tmp')"]),
        ("x = %pwd", ["x = get_ipython().run_line_magic('pwd', '')"]),
        ("%matplotlib inline", ["pass"]),
        ("'''\n'''\n!ls", ["'''", "'''", "get_ipython().system('ls')"]),
        ("%time x = f(1)", ["with get_ipython().clock(): x = f(1)"]),
        ("!ls\r\nx", ["get_ipython().system('ls')", "x"]),
    ],
)
def test_other_lines_become_calls_on_the_same_line(code, made):
    assert lines_of(code) == made


def test_an_indent_is_removed_without_touching_strings():
    tree = notebook.parse_cell("\n  # indented\n  x = '''\na\n  '''\n  if x:\n    y = 1", "<cell>")
    assert [node.lineno for node in tree.body] == [3, 6]
    assert ast.literal_eval(tree.body[0].value) == "\na\n  "


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("x = 1\n%nothing 3", 2, "there is no magic %nothing here: there are %cd, "),
        ("\n%%nothing\nx", 2, "there is no magic %%nothing here: there are %%bash, "),
        ("%run a.py", 1, "there is no magic %run here: use runpy.run_path()"),
        ("x = 1\nprint?", 2, "use help(print)"),
        ("!ls\nx = (", 2, "was never closed"),
        ("  x = 1\n  y = = 2", 2, "invalid syntax"),
        ("  x = 1\ny = 2", 1, "unexpected indent"),
    ],
)
def test_what_is_no_notebook_syntax_either_is_an_error_of_its_line(code, line, words):
    with pytest.raises(SyntaxError) as caught:
        notebook.parse_cell(code, "<cell>")
    assert caught.value.lineno == line
    assert words in caught.value.msg
    assert (caught.value.text or "").strip() == code.split("\n")[line - 1].strip()


# --- commands --------------------------------------------------------------------------------


@pytest.mark.contract("gvisor")
def test_commands_write_in_place(notebook_sandbox):
    code = """
        print("one")
        !echo two; echo err >&2
        print("three")
        for n in (4, 5):
            !echo {n} $n
        !exit 3
        _exit_code
    """
    execution = run(notebook_sandbox, code)
    assert execution.stdout == "one\ntwo\nthree\n4 4\n5 5\n"
    assert execution.stderr == "err\n[exit status 3]\n"
    assert execution.value == 3


def test_the_order_of_output_and_commands_is_kept(notebook_sandbox):
    code = "import sys\n" + "print('a', end='')\n!printf b\nsys.stdout.write('c')\n" * 5
    assert notebook_sandbox.run_code(code + "None").stdout == "abc" * 5


def test_one_stream_keeps_the_order_of_output_and_errors(notebook_sandbox):
    code = """
        import contextlib, sys
        with contextlib.redirect_stderr(sys.stdout):
            for n in range(5):
                print(n)
                print("e", file=sys.stderr)
        !for each in 1 2; do echo $each; echo e >&2; done 2>&1
    """
    made = "".join(f"{n}\ne\n" for n in (*range(5), 1, 2))
    assert run(notebook_sandbox, code).stdout == made


def test_the_output_of_a_command_is_a_list_of_lines(notebook_sandbox):
    code = """
        def count(path):
            found = !printf 'a\\nb\\n' > {path}; cat $path
            return found
        lines = !echo 1; echo shown >&2; exit 1
        count("numbers.txt") + lines
    """
    execution = run(notebook_sandbox, code)
    assert execution.value == ["a", "b", "1"]
    assert execution.stderr == "shown\n[exit status 1]\n"


def test_braces_and_dollars_of_the_shell_stay_its_own(notebook_sandbox):
    code = """
        word = "x"
        !echo '{print $2}'; v=1; echo $v ${v} {word} {{word}} '$$word' {no_name} { word } a{1,2}
    """
    assert run(notebook_sandbox, code).stdout == (
        "{print $2}\n1 1 x {word} $word {no_name} x a1 a2\n"
    )


def test_bash_runs_a_whole_cell(notebook_sandbox):
    execution = run(notebook_sandbox, "%%bash\nfor n in 1 2; do\n  echo $n\ndone\ncd /; pwd")
    assert execution.stdout == "1\n2\n/\n"
    failed = run(notebook_sandbox, "%%bash\necho before\nexit 4")
    assert (failed.outcome, failed.stdout) == (Outcome.error, "before\n")
    assert failed.error.name == "CalledProcessError"
    assert failed.error.value == "Command 'bash' returned non-zero exit status 4."


def test_a_script_may_have_any_length_and_any_quotes(notebook_sandbox):
    body = "echo \"it's\" '$(x)' \\\\\n" + "# don't\n" * 30_000 + "echo end"
    assert run(notebook_sandbox, f"%%bash\n{body}").stdout == "it's $(x) \\\nend\n"
    echo = 'import sys\nprint(sys.argv[1:], "it\'s")'
    for magic in ("%%script python3 -", "%%python -", "%%python3 -"):
        assert notebook_sandbox.run_code(f"{magic} a\n{echo}").stdout == "['a'] it's\n"
    assert run(notebook_sandbox, "%%bash -c cat\nread").stdout == "read"
    assert run(notebook_sandbox, "%%script cat\n$x {x}\n").stdout == "$x {x}\n"


def test_a_command_in_a_script_does_not_read_the_rest_of_it(notebook_sandbox):
    assert run(notebook_sandbox, "%%bash -e\ncat\necho after").stdout == "after\n"


def test_output_of_a_script_becomes_variables(notebook_sandbox):
    code = "%%bash --out lines --err errors\necho one; echo two >&2"
    assert (run(notebook_sandbox, code).stdout, run(notebook_sandbox, code).stderr) == ("", "")
    assert run(notebook_sandbox, "lines, errors").value == ("one\n", "two\n")
    kept = run(notebook_sandbox, "%%script --no-raise-error --out said sh\necho x; exit 3")
    assert kept.outcome is Outcome.ok
    assert run(notebook_sandbox, "said, _exit_code").value == ("x\n", 3)
    run(notebook_sandbox, "n = 5")
    assert run(notebook_sandbox, "%%bash -s {n} $n\necho $1$2 $n").stdout == "55\n"
    for line in ("%%script", "%%script --bg bash", "%%bash --out", "%%script no-such-thing"):
        assert run(notebook_sandbox, f"{line}\nls").error.name == "UsageError"


def test_a_command_has_no_input_and_the_cells_variables(notebook_sandbox):
    execution = run(notebook_sandbox, "!cat; echo $GREETING", env={"GREETING": "hello"})
    assert execution.stdout == "hello\n"


def test_a_command_ends_with_the_time_of_its_cell(notebook_sandbox):
    execution = run(notebook_sandbox, "x = 1\n!sleep 987 | cat", timeout=1)
    assert execution.outcome is Outcome.timeout
    left = run(notebook_sandbox, "!cat /proc/[0-9]*/cmdline | tr '\\0' ' '\nx")
    assert "sleep 987" not in left.stdout.replace("tr '\\0'", "")
    assert left.value == 1


def test_output_of_a_command_counts_against_the_limit(make_sandbox):
    sandbox = make_sandbox(notebook=True, limits={"output": "64k"})
    assert run(sandbox, "!yes").outcome is Outcome.output_limit


# --- magics ----------------------------------------------------------------------------------


def test_directories_and_variables(notebook_sandbox):
    code = """
        %cd /tmp
        here = %pwd
        %env FLAVOUR=sour
        %cd -
        !echo $FLAVOUR
        import os
        (here, os.environ["FLAVOUR"], os.getcwd())
    """
    execution = run(notebook_sandbox, code)
    assert execution.value == ("/tmp", "sour", "/workspace")
    assert execution.stdout == "/tmp\nenv: FLAVOUR=sour\n/workspace\nsour\n"
    assert run(notebook_sandbox, "%env FLAVOUR").value == "sour"
    assert run(notebook_sandbox, "%env NOTHING").error.name == "UsageError"
    assert run(notebook_sandbox, "%cd /nowhere").error.name == "FileNotFoundError"


def test_times_are_written_and_values_stay(notebook_sandbox):
    execution = run(notebook_sandbox, "%time x = 20\n%time x + 1")
    assert execution.value == 21
    assert execution.stdout.count("Wall time: ") == 2
    whole = run(notebook_sandbox, "%%time\ny = x\n!echo in it\ny + 2")
    assert whole.value == 22
    assert whole.stdout.startswith("in it\nCPU times: user ")
    assert run(notebook_sandbox, "%%time\nz = 1").stdout.count("Wall time") == 1
    awaited = run(notebook_sandbox, "import asyncio\nx = %time await asyncio.sleep(0, 'slept')\nx")
    assert awaited.value == "slept"


def test_code_is_measured(notebook_sandbox):
    for code in ("%timeit -n 10 -r 2 x + 1", "%%timeit -n 10 -r 2 y = 1\nx + y\ny + x"):
        execution = run(notebook_sandbox, f"x = 1\n{code}" if "%%" not in code else code)
        assert execution.stdout.endswith("per loop (mean ± std. dev. of 2 runs, 10 loops each)\n")


def test_a_measurement_can_be_kept(notebook_sandbox):
    code = "made = %timeit -n 10 -r2 -q -o 1 + 1\nmade.loops, made.repeat, len(made.timings)"
    execution = run(notebook_sandbox, code)
    assert (execution.value, execution.stdout) == ((10, 2, 2), "")
    assert run(notebook_sandbox, "0 < made.best <= made.average <= made.worst").value is True
    shown = run(notebook_sandbox, "%%timeit -o -n1 -r1\n1 + 1")
    assert shown.text == f"<TimeitResult : {shown.stdout.strip()}>"
    assert shown.stdout.endswith("per loop (mean ± std. dev. of 1 run, 1 loop each)\n")


@pytest.mark.parametrize(
    "code",
    [
        "5;",
        "x = 5\nx ;",
        "(5); # five",
        "len(\n  'ö'  # )\n)  ;\n\n# end\n",
        "'ö'; ",
        "  5;\n",
        "%%time\n5;",
        "%time 5;",
        "!true\n5;",
    ],
)
def test_a_semicolon_at_the_end_hides_the_value(notebook_sandbox, code):
    execution = notebook_sandbox.run_code(code)
    assert (execution.ok, execution.value, execution.results) == (True, None, ())


@pytest.mark.parametrize("code", ["1; 5", "5 # ;", "';'\n5", "x = 1;\n5\n# a;\n", "if 1: pass;\n5"])
def test_another_semicolon_does_not(notebook_sandbox, code):
    assert notebook_sandbox.run_code(code).value == 5
    assert notebook_sandbox.run_code("6;", notebook=False).value == 6


def test_output_is_captured(notebook_sandbox):
    code = """
        %%capture made
        import sys
        kept = 7
        print("one")
        !echo two; echo three >&2
        print("four", file=sys.stderr)
        display("five")
        kept
    """
    execution = run(notebook_sandbox, code.strip("\n"))
    assert (execution.stdout, execution.stderr, execution.results) == ("", "", ())
    assert execution.value is None
    read = run(notebook_sandbox, "kept, made.stdout, made.stderr, len(made.outputs), str(made)")
    assert read.value == (7, "one\ntwo\n", "three\nfour\n", 2, "one\ntwo\n")
    shown = run(notebook_sandbox, "made.show()")
    assert (shown.stdout, shown.stderr) == ("one\ntwo\n", "three\nfour\n")
    assert [result.text for result in shown.results] == ["'five'", "7"]
    again = run(notebook_sandbox, "for each in made.outputs: display(each)\nmade.outputs[1].data")
    assert [result.text for result in again.results[:2]] == ["'five'", "7"]
    assert again.value == {"text/plain": "7"}


def test_only_what_is_wanted_is_captured_and_only_in_its_cell(notebook_sandbox):
    execution = run(notebook_sandbox, "%%capture --no-stdout --no-display\nprint(1)\n!ls /x\n2;")
    assert (execution.stdout, execution.stderr) == ("1\n", "")
    assert run(notebook_sandbox, "%%capture --no-display\n2").results[0].text == "2"
    failed = run(notebook_sandbox, "%%capture made\nprint(1)\n1 / 0")
    assert (failed.stdout, failed.error.name) == ("", "ZeroDivisionError")
    assert 'File "<cell 3>", line 3' in failed.error.traceback
    assert run(notebook_sandbox, "print(2)\nmade.stdout").value == "1\n"
    assert run(notebook_sandbox, "%%capture\n").ok
    assert run(notebook_sandbox, "%%capture made\n%%time\n!echo a; echo b").stdout == ""
    assert run(notebook_sandbox, "made.stdout").value.startswith("a\nb\nCPU times")
    run(notebook_sandbox, "get_ipython().run_cell_magic('capture', 'made', 'print(1)')")
    assert run(notebook_sandbox, "made.stdout").value == "1\n"
    assert run(notebook_sandbox, "%%timeit -o -q -n1 -r1\n1; 2").text.startswith("<TimeitResult")
    awaited = "%%capture made\nimport asyncio\nawait asyncio.sleep(0, 'slept')"
    assert run(notebook_sandbox, awaited).results == ()
    stuck = run(notebook_sandbox, "%%capture\nprint(1)\nwhile True: pass", timeout=1)
    assert stuck.outcome is Outcome.timeout
    assert run(notebook_sandbox, "print(3)").stdout == "3\n"


def test_figures_are_captured(data_sandbox):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([3]);"
    captured = run(data_sandbox, f"%%capture made\n{code}")
    assert captured.results == ()
    assert len(run(data_sandbox, "made()").images) == 2


def test_a_cell_is_content(notebook_sandbox):
    assert run(notebook_sandbox, "%%html\n<b>{x}</b>").results[0].html == "<b>{x}</b>"
    assert run(notebook_sandbox, "%%markdown\n**2**").results[0].markdown == "**2**"
    assert run(notebook_sandbox, "%%latex\n$3$").results[0].latex == "$3$"


def test_the_names_of_the_code_are_listed(notebook_sandbox):
    assert run(notebook_sandbox, "%who").stdout == "Interactive namespace is empty.\n"
    run(notebook_sandbox, "import os\nrows, word, _hidden = [1, 2], 'a', 1")
    assert run(notebook_sandbox, "%who").stdout == "os\t rows\t word\n"
    assert run(notebook_sandbox, "%who_ls list str").value == ["rows", "word"]
    assert run(notebook_sandbox, "%whos list str").stdout.splitlines() == [
        "Variable   Type   Data/Info",
        "--------   ----   ---------",
        "rows       list   n=2",
        "word       str    'a'",
    ]


def test_a_progress_bar_for_notebooks_is_one_of_text(data_sandbox):
    code = """
        from tqdm.notebook import tqdm, trange
        from tqdm import tqdm_notebook
        sum(tqdm(range(3))) + sum(trange(3)) + sum(tqdm_notebook(range(3)))
    """
    execution = run(data_sandbox, code)
    assert execution.value == 9
    assert "100%" in execution.stderr


def test_installing_says_what_is_there_and_what_to_do(data_sandbox):
    execution = run(data_sandbox, "!pip install -q 'pandas>1' no-such-thing\n%pip install numpy\n1")
    assert execution.value == 1
    assert "pip installs nothing here: packages are fixed" in execution.stdout
    assert "pandas " in execution.stdout
    assert "numpy " in execution.stdout
    assert "Sandbox(packages=['no-such-thing'])" in execution.stdout
    listed = run(data_sandbox, "!echo pip install numpy | cat")
    assert listed.stdout == "pip install numpy\n"


def test_packages_are_listed_without_pip(data_sandbox):
    code = """
        versions = dict(line.split("==") for line in get_ipython().getoutput("pip freeze"))
        one = !python -m pip list --format=columns | grep '^numpy '
        shown = !pip show numpy
        from importlib.metadata import version
        same = versions["numpy"] == version("numpy"), one[0].split() == ["numpy", version("numpy")]
        (*same, shown[:2])
    """
    execution = run(data_sandbox, code)
    version = execution.value[2][1]
    assert execution.value == (True, True, ["Name: numpy", version])
    listed = run(data_sandbox, "%pip list").stdout.splitlines()
    assert listed[0].split() == ["Package", "Version"]
    assert version.replace("Version: ", "numpy ") in [" ".join(line.split()) for line in listed]
    missing = run(data_sandbox, "%pip show no-such-thing")
    assert "Package(s) not found: no-such-thing" in missing.stderr
    assert run(data_sandbox, "_exit_code").value == 1


def test_a_cell_without_packages_has_an_empty_list(notebook_sandbox):
    execution = run(notebook_sandbox, "!pip list; echo also\nx = !pip freeze\nx, _exit_code")
    assert execution.stdout.splitlines()[0].split() == ["Package", "Version"]
    assert (execution.stdout.splitlines()[-1], execution.stderr) == ("also", "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "!apt-get install -y graphviz",
            "apt-get installs nothing here: a cell installs no programs",
        ),
        ("!sudo apt install x", "apt installs nothing here: a cell installs no programs"),
        ("!false && apt-get install -y x", "[a cell installs no programs and cannot become root"),
        ("!sudo -n false", "[a cell installs no programs and cannot become root"),
        ("!conda install -y no-such-thing", "conda installs nothing here"),
        ("!false && pip install x", "Environment(name, packages=[...])]"),
        ("%%bash\nfalse && pip install x", "Environment(name, packages=[...])]"),
    ],
)
def test_what_cannot_be_installed_says_where_it_comes_from(notebook_sandbox, code, words):
    execution = notebook_sandbox.run_code(code)
    assert words in execution.stdout + execution.stderr
    assert "installs no" not in run(notebook_sandbox, "!false install").stderr


def test_files_are_written(notebook_sandbox):
    run(notebook_sandbox, "%%writefile out.txt\none")
    run(notebook_sandbox, "%%writefile -a out.txt\ntwo {x}\n")
    assert notebook_sandbox.files.read("out.txt") == "one\ntwo {x}\n"
    assert run(notebook_sandbox, "%cat out.txt").stdout == "one\ntwo {x}\n"


def test_the_shell_object_does_the_same(notebook_sandbox):
    code = """
        from IPython import get_ipython as same
        shell = get_ipython()
        assert shell is same()
        shell.system("echo one")
        shell.run_line_magic("matplotlib", "inline")
        shell.run_line_magic("env", "A=1")
        shell.run_cell_magic("bash", "", "echo two")
        shell.magic("time 1 + 1")
        shell.getoutput("echo three"), shell.user_ns["shell"] is shell
    """
    execution = run(notebook_sandbox, code)
    assert execution.value == (["three"], True)
    assert execution.stdout.startswith("one\nenv: A=1\ntwo\nCPU times")
    failed = run(notebook_sandbox, "shell.run_line_magic('nothing', '')")
    assert failed.error.name == "UsageError"
    assert "there is no magic %nothing here" in failed.error.value


def test_libraries_that_ask_for_a_shell_work(data_sandbox):
    code = """
        import IPython
        import sympy, matplotlib.pyplot as plt
        from tqdm.auto import tqdm
        sympy.init_printing()
        plt.ion()
        plt.plot(list(tqdm(range(3))))
        sympy.Symbol("x")
    """
    execution = run(data_sandbox, code).raise_for_outcome()
    assert (execution.text, len(execution.images)) == ("x", 1)


# --- tracebacks and other options ------------------------------------------------------------


def test_tracebacks_point_into_the_cell(notebook_sandbox):
    execution = run(notebook_sandbox, "!echo \\\n  a\n%time 1 / 0")
    assert execution.error.traceback == (
        "Traceback (most recent call last):\n"
        '  File "<cell 1>", line 3, in <module>\n'
        "    %time 1 / 0\n"
        "ZeroDivisionError: division by zero\n"
    )
    indented = notebook_sandbox.run_code("    def f():\n        return 1 / 0\n\n    f()")
    assert 'File "<cell 2>", line 4, in <module>' in indented.error.traceback
    assert 'File "<cell 2>", line 2, in f\n    return 1 / 0' in indented.error.traceback
    unknown = run(notebook_sandbox, "x = 'not run'\n%nothing")
    assert 'File "<cell 3>", line 2\n    %nothing' in unknown.error.traceback
    assert run(notebook_sandbox, "x").error.name == "NameError"


def test_a_notebook_cell_may_return_and_await(notebook_sandbox):
    code = "import asyncio\nx = !echo 5\nawait asyncio.sleep(0)\nreturn x"
    assert run(notebook_sandbox, code, allow_return=True).final == ["5"]


def test_a_plain_cell_does_not_load_what_notebooks_need(notebook_sandbox):
    loaded = "[name for name in __import__('sys').modules if name.endswith(('notebook', 'magics'))]"
    assert run(notebook_sandbox, f"x = 1\n{loaded}").value == []
    run(notebook_sandbox, "!true")
    assert len(run(notebook_sandbox, loaded).value) == 2


# --- who has it ------------------------------------------------------------------------------


def test_it_is_on_for_data_and_off_for_python(sandbox, data_sandbox):
    assert run(data_sandbox, "!echo 1").stdout == "1\n"
    off = run(sandbox, "!echo 1")
    assert "! is notebook syntax, not Python" in off.error.value
    assert run(sandbox, "get_ipython()").error.name == "NameError"
    assert run(sandbox, "!echo 1", notebook=True).stdout == "1\n"
    assert run(data_sandbox, "!echo 1", notebook=False).error.name == "SyntaxError"


def test_an_environment_says_whether_it_is_on():
    assert Environment("mine", extends="data").notebook is True
    assert Environment("mine", extends="data", notebook=False).notebook is False
    assert Environment("mine", packages=["numpy"]).notebook is False
    assert Environment("mine", notebook=True).notebook is True
    for make in (lambda: Environment("mine", notebook="yes"), lambda: Sandbox(notebook=3)):
        with pytest.raises(InvalidOption, match="notebook"):
            make()


def test_a_policy_does_not_let_through_what_it_cannot_read(make_sandbox):
    sandbox = make_sandbox(notebook=True, policy="permissive")
    execution = run(sandbox, "!echo 1")
    assert (execution.outcome, execution.stdout) == (Outcome.rejected, "")


def test_a_record_knows_whether_it_was_on(make_sandbox, tmp_path):
    record = tmp_path / "a.jsonl"
    with make_sandbox(record=record) as sandbox:
        sandbox.run_code("!echo 1", notebook=True)
        sandbox.run_code("!echo 1")
    report = replay(record)
    assert [cell.replayed.stdout for cell in report.cells] == ["1\n", ""]
    assert not any(cell.differences for cell in report.cells)


@pytest.mark.contract("gvisor")
def test_the_async_api_has_it_too(run_async, open_sandbox):
    async def main():
        async with open_sandbox(notebook=True) as sandbox:
            return await sandbox.run_code("x = !echo 1\nx")

    assert run_async(main).value == ["1"]
