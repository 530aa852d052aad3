"""What comes with the code: the name of its file, its arguments, its standard input."""

import threading
from pathlib import Path

import pytest

import belljar
from belljar import InvalidOption, Outcome
from belljar.files.script import Input, Script

FAILS = "import sys\nprint(sys.argv, __file__, __name__)\n\ndef f():\n    1 / 0\n\nf()\n"


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_file_is_run_by_its_path_and_tracebacks_name_it(sandbox, tmp_path):
    path = tmp_path / "analysis.py"
    path.write_text(FAILS)
    execution = sandbox.run_code(path)
    assert execution.stdout == "['analysis.py'] analysis.py __main__\n"
    lines = execution.error.traceback.splitlines()
    assert lines[1] == '  File "analysis.py", line 7, in <module>'
    assert '  File "analysis.py", line 5, in f' in lines
    assert "    1 / 0" in lines
    assert str(tmp_path) not in execution.error.traceback  # where it lies here is not told


def test_a_file_that_is_run_again_shows_its_new_lines(sandbox, tmp_path):
    path = tmp_path / "analysis.py"
    for number in (1, 2):
        path.write_text(f"def f():\n    return {number} / 0\nf()\n")
        assert f"    return {number} / 0" in sandbox.run_code(path).error.traceback


def test_a_file_with_a_wrong_line_is_named_by_the_syntax_error(sandbox, tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\ny = = 2\n")
    execution = sandbox.run_code(tmp_path / "broken.py")
    assert 'File "broken.py", line 2\n    y = = 2\n' in execution.error.traceback


def test_a_file_is_read_in_the_encoding_it_declares(sandbox, tmp_path):
    (tmp_path / "old.py").write_bytes("# coding: latin-1\nprint('\u00e4')".encode("latin-1"))
    assert sandbox.run_code(tmp_path / "old.py").stdout == "\u00e4\n"


def test_what_cannot_be_run_or_read_is_said_before_anything_starts(tmp_path):
    sandbox = belljar.Sandbox(environment="python")
    with pytest.raises(InvalidOption, match=r"cannot read .*missing\.py"):
        sandbox.run_code(tmp_path / "missing.py")
    with pytest.raises(InvalidOption, match="code must be a str or the path of a file, not bytes"):
        sandbox.run_code(b"1")
    with pytest.raises(InvalidOption, match="stdin must be str or bytes, not int"):
        sandbox.run_code("1", stdin=3)
    sandbox.close()


READS = """
import sys
first = input("name? ")
second = sys.stdin.readline()
print([first, second, next(sys.stdin), sys.stdin.read(), sys.stdin.read()])
try:
    input()
except EOFError:
    print("end")
"""


@pytest.mark.contract("native", "docker", "gvisor")
def test_code_reads_what_it_is_given_by_input_and_by_sys_stdin(sandbox):
    execution = sandbox.run_code(READS, stdin="Ann\nb\nc\nd\ne")
    expected = ["Ann", "b\n", "c\n", "d\ne", ""]
    assert execution.stdout == f"name? {expected!r}\nend\n"
    assert execution.ok
    assert execution.calls == ()


@pytest.mark.contract("native", "docker", "gvisor")
def test_large_input_arrives_whole(sandbox):
    data = bytes(range(256)) * 20_000  # 5 MB
    code = "import hashlib, sys\nhashlib.sha256(sys.stdin.buffer.read()).hexdigest()"
    import hashlib

    assert sandbox.run_code(code, stdin=data).value == hashlib.sha256(data).hexdigest()
    lines = "".join(f"{n}\n" for n in range(50_000))
    assert sandbox.run_code("sum(int(line) for line in sys.stdin)", stdin=lines).value == sum(
        range(50_000)
    )


def test_each_cell_has_its_own_input_and_none_without(sandbox):
    assert sandbox.run_code("import sys; sys.stdin.readline()", stdin="a\nb\n").value == "a\n"
    assert sandbox.run_code("input()", stdin="c\n").value == "c"
    assert sandbox.run_code("sys.stdin.read()").value == ""
    assert sandbox.run_code("input()").error.name == "EOFError"


def test_what_the_code_puts_in_place_of_its_input_stays(sandbox):
    code = "import io, sys, builtins\nsys.stdin = io.StringIO('mine')\nbuiltins.input = len"
    assert sandbox.run_code(code, stdin="given").ok
    assert sandbox.run_code("input('four'), sys.stdin.read()").value == (4, "mine")


def test_children_of_the_code_have_an_empty_input(sandbox):
    code = """
        import os, subprocess, sys
        print(subprocess.run(["cat"], capture_output=True).stdout)
        if os.fork() == 0:
            os.write(1, repr(sys.stdin.read()).encode())
            os._exit(0)
        os.wait()
        print(sys.stdin.read())
    """
    import textwrap

    assert sandbox.run_code(textwrap.dedent(code), stdin="own").stdout == "b''\n''own\n"


def given(read, **options):
    return Script(code="print(1)\ninput()", stdin=Input(read, **options))


def test_input_that_nobody_reads_is_not_touched(sandbox):
    def read(size):
        raise AssertionError("it was read")

    assert sandbox.run_code(Script(code="6 * 7", stdin=Input(read))).value == 42


def test_input_that_never_comes_ends_with_the_time_of_the_cell(sandbox):
    never = threading.Event()

    def read(size):
        never.wait(60)
        return b""

    try:
        execution = sandbox.run_code(given(read), timeout=1)
    finally:
        never.set()
    assert (execution.outcome, execution.stdout) == (Outcome.timeout, "1\n")
    assert sandbox.run_code("2").value == 2


def test_the_time_a_person_takes_to_answer_is_not_the_codes(sandbox):
    never = threading.Event()

    def read(size):
        never.wait(2)
        return b"yes\n"

    script = given(read, counts_time=False)
    execution = sandbox.run_code(script, timeout=1)
    assert execution.value == "yes"


def test_input_that_fails_is_an_error_of_the_code(sandbox):
    def read(size):
        raise OSError(5, "Input/output error")

    assert sandbox.run_code(given(read)).error.name == "OSError"
    assert sandbox.run_code("2").value == 2


def test_input_is_given_under_each_event_loop(run_async, open_sandbox, tmp_path):
    (tmp_path / "ask.py").write_text("input()")

    async def main():
        async with open_sandbox() as sandbox:
            return await sandbox.run_code(tmp_path / "ask.py", stdin=b"x\n")

    assert run_async(main).value == "x"


def test_one_shot_takes_a_path_and_input(backend, tmp_path):
    (tmp_path / "ask.py").write_text("input()")
    execution = belljar.run(tmp_path / "ask.py", stdin="x\n", environment="python")
    assert execution.value == "x"


def test_name_arguments_and_input_are_recorded_and_replayed(make_sandbox, tmp_path):
    record = tmp_path / "record.jsonl"
    (tmp_path / "ask.py").write_text("import sys\nprint(sys.argv, input())\n1/0")
    sandbox = make_sandbox(record=record)
    sandbox.run_code(tmp_path / "ask.py", stdin="x\ny\n")
    sandbox.close()
    (cell,) = belljar.record.read(record).cells
    assert (cell.file, cell.argv, cell.stdin) == ("ask.py", ("ask.py",), b"x\ny\n")
    replayed = belljar.replay(record, exact=True)
    assert replayed.same, str(replayed)
    assert replayed.cells[0].replayed.stdout == "['ask.py'] x\n"


def test_input_too_large_for_a_record_is_said_and_not_made_up(make_sandbox, tmp_path):
    record = tmp_path / "record.jsonl"
    sandbox = make_sandbox(record=record)
    sandbox.run_code("import sys; len(sys.stdin.read())", stdin=b"x" * (2 << 20))
    sandbox.close()
    assert record.stat().st_size < 100_000
    (cell,) = belljar.replay(record).cells
    assert [difference.what for difference in cell.differences] == ["stdin"]


def test_a_guest_cannot_ask_for_more_input_than_is_read_at_once():
    asked = []
    stdin = Input(lambda size: asked.append(size) or b"")
    stdin.read(2**60)
    assert asked == [2**20]
    for size in (0, -1, "1", True, 1.5):
        with pytest.raises(ValueError, match="whole number"):
            stdin.read(size)


@pytest.mark.contract("native", "docker", "gvisor")
def test_tables_come_as_csv_if_that_is_asked_for(data_sandbox):
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2]})"
    plain = data_sandbox.run_code(code).results[0]
    assert "text/csv" not in plain.raw
    (result,) = data_sandbox.run_code(Script(code=code, csv=True)).results
    assert result.raw["text/csv"] == b",a\n0,1\n1,2\n"
    tables = "import pyarrow\ndisplay(pyarrow.table({'a': [1]}))\npd.Series([3], name='s')"
    shown = data_sandbox.run_code(Script(code=tables, csv=True)).results
    assert [each.raw["text/csv"] for each in shown] == [b'"a"\n1\n', b",s\n0,3\n"]


def test_paths_of_the_sandbox_may_be_path_objects(sandbox):
    info = sandbox.files.write(Path("out") / "a.txt", "x")
    assert info.path == "/workspace/out/a.txt"
    assert sandbox.files.read(Path("out/a.txt")) == "x"
    assert [each.name for each in sandbox.files.list(Path("out"))] == ["a.txt"]
    sandbox.files.rename(Path("out/a.txt"), Path("b.txt"))
    assert sandbox.files.exists(Path("b.txt"))
    sandbox.files.remove(Path("b.txt"))
