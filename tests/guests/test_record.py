"""What a record holds, how it is read, and what running it again tells."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from belljar import Environment, FileError, InvalidOption, Limits, Mount, Outcome, Sandbox
from belljar.protocol import values
from belljar.record import INLINE, Recorder, format, read, recorder
from belljar.record.comparison import Difference
from belljar.record.export import render
from belljar.record.format import MAX_LINE, MAX_PART
from belljar.sandbox import persistence
from belljar.sandbox.replay import _MODERATE, replay


def cli(*words, **options):
    command = [sys.executable, "-m", "belljar", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "session.jsonl"


@pytest.fixture
def recorded(backend, path):
    """Records cells in a sandbox of its own, and gives the path."""

    def record(*cells, environment="python", **options):
        with Sandbox(environment=environment, record=path, **options) as sandbox:
            for cell in cells:
                sandbox.run_code(cell)
        return path

    return record


@pytest.fixture(scope="module")
def execution(backend):
    with Sandbox(environment="python") as sandbox:
        return sandbox.run_code("print('hello'); 6 * 7")


def begin(recorder, **fields):
    told = {"sandbox": "bj-1", "backend": "native", "environment": Environment("python")}
    recorder.begin(**told, limits=Limits(), **fields)


def lines(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def rewritten(path, change):
    """The same record with its lines changed by hand."""
    changed = lines(path)
    change(changed)
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    return path


# --- writing -----------------------------------------------------------------------------------


def test_every_cell_is_in_the_record_with_its_outcome_output_and_usage(recorded):
    path = recorded("print('hello'); 6 * 7", "1 / 0", "import sys; sys.exit(3)")
    record = read(path)
    first, second, third = record.cells
    assert (first.code, first.execution.text) == ("print('hello'); 6 * 7", "42")
    assert first.execution.stdout == "hello\n"
    assert first.execution.usage.wall > 0
    assert first.execution.results[0].is_main_result
    assert second.execution.error.name == "ZeroDivisionError"
    assert "1 / 0" in second.execution.error.traceback
    assert (third.execution.outcome, third.execution.exit_code) == ("exit", 3)
    session = record.sessions[0]
    assert session.closed
    assert session.environment.name == "python"
    assert abs(session.began - time.time()) < 100


def test_only_the_owner_can_read_a_record(recorded):
    assert recorded("1").stat().st_mode & 0o777 == 0o600


def test_values_of_environment_variables_are_not_in_the_record(backend, path):
    with Sandbox(environment="python", record=path, env={"TOKEN": "s3cr3t"}) as sandbox:
        sandbox.run_code("1", env={"OTHER": "s4cr4t"})
    record = read(path)
    assert record.sessions[0].env == ("TOKEN",)
    assert record.cells[0].env == ("OTHER",)
    assert not re.search("s[34]cr", path.read_text())


def test_a_second_sandbox_appends_a_session(recorded):
    recorded("1")
    record = read(recorded("2", "3"))
    assert [len(session.cells) for session in record.sessions] == [1, 2]
    assert [cell.number for cell in record.cells] == [1, 2, 3]


def test_two_sandboxes_may_record_into_one_file_at_once(backend, path):
    with (
        Sandbox(environment="python", record=path) as one,
        Sandbox(environment="python", record=path) as other,
    ):
        for number in range(3):
            one.run_code(f"'one {number}'")
            other.run_code(f"'other {number}'")
    texts = [[c.execution.text for c in session.cells] for session in read(path).sessions]
    assert texts == [[f"'{name} {n}'" for n in range(3)] for name in ("one", "other")]


def test_threads_write_whole_lines(execution, path):
    recorder = Recorder(path)
    begin(recorder)

    def write():
        for _ in range(50):
            recorder.cell(code="x" * 5000, execution=execution, timeout=None, began=1.0)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert len(read(path).cells) == 200


def test_a_file_that_is_no_record_is_not_appended_to(path):
    path.write_text("important\n")
    with pytest.raises(InvalidOption, match="not a record"):
        Sandbox(record=path)
    assert path.read_text() == "important\n"


@pytest.mark.parametrize("made", ["link", "directory", "pipe", "nowhere"])
def test_a_record_goes_to_an_ordinary_file_or_nowhere(made, path, tmp_path):
    if made == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif made == "directory":
        path.mkdir()
    elif made == "pipe":
        os.mkfifo(path)
    else:
        path = tmp_path / "no" / "session.jsonl"
    with pytest.raises((InvalidOption, FileError)) as caught:
        Sandbox(record=path)
    assert caught.value.hint or "regular" in str(caught.value)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.root_only
def test_a_file_of_another_user_is_not_appended_to(recorded):
    path = recorded("1")
    os.chown(path, 12345, 12345)
    with pytest.raises(InvalidOption, match="another user"):
        Recorder(path)


def test_a_disk_that_is_full_ends_the_record_and_not_the_cell(backend, path):
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.run_code("1")
        os.close(sandbox._sandbox._lifecycle.persistence._recorder._file)
        sandbox._sandbox._lifecycle.persistence._recorder._file = os.open("/dev/full", os.O_WRONLY)
        full = sandbox.run_code("print('kept'); 2")
        later = sandbox.run_code("3")
    assert (full.stdout, full.value) == ("kept\n", 2)
    for execution in (full, later):
        assert any("No space left" in note for note in execution.notes)
    assert len(read(path).cells) == 1


def test_what_is_too_large_for_a_line_is_kept_as_size_and_hash(recorded):
    path = recorded(f"print('a' * {MAX_PART + 1}); None", limits={"output": "64m"})
    assert path.stat().st_size < MAX_PART
    (cell,) = read(path).cells
    assert list(cell.left_out) == ["execution.stdout"]
    assert "not in the record" in cell.execution.stdout
    assert replay(path).same
    rewritten(path, lambda all: all[1]["execution"]["stdout"].update(sha256="0" * 64))
    assert [each.what for each in replay(path).cells[0].differences] == ["stdout"]


def test_bytes_of_events_are_kept_up_to_a_limit(path):
    recorder = Recorder(path)
    begin(recorder)
    recorder.event("write", path="a", content=b"\0\xff", began=5.0)
    recorder.event("write", path="b", content=bytes(INLINE + 1))
    recorder.event("odd", thing=object())
    assert "cannot be recorded" in recorder.failed
    recorder.close()
    small, large = read(path).sessions[0].steps
    assert (small.began, small.fields["content"]) == (5.0, {"base64": "AP8="})
    assert large.fields["content"]["left_out"] == INLINE + 1
    assert len(large.fields["content"]["sha256"]) == 64


def test_a_cell_that_says_very_much_does_not_end_the_record(backend, path, monkeypatch):
    """Texts of errors, beginnings of what is left out: all of it is counted."""
    monkeypatch.setattr(format, "MAX_CELL", 100_000)
    monkeypatch.setattr(recorder, "MAX_LINE", 200_000)

    def refuse(text):
        raise ValueError(text)

    functions = {"refuse": refuse}
    with Sandbox(environment="python", record=path, functions=functions) as sandbox:
        sandbox.run_code(
            "for n in range(100):\n    try: refuse('\\u4e00' * 900)\n    except ValueError: pass"
        )
        sandbox.run_code("for n in range(100): display('\\0' * 1000)")
        last = sandbox.run_code("'the last one'")
    assert not last.notes
    calls, results, last = read(path).cells
    assert len(calls.execution.calls) == 100
    assert calls.execution.calls[0].error
    assert not calls.execution.calls[-1].error
    assert len(results.execution.results) == 100
    assert last.execution.text == "'the last one'"


def test_much_is_written_down_off_the_event_loop_and_in_order(backend, path, monkeypatch):
    monkeypatch.setattr(persistence, "MANY", 100)
    threads = {}
    write = Recorder.cell

    def seen(self, **fields):
        threads[fields["code"]] = threading.current_thread()
        write(self, **fields)

    monkeypatch.setattr(Recorder, "cell", seen)
    with Sandbox(environment="python", record=path) as sandbox:
        for code in ("1", "print('x' * 1000)", "2"):
            sandbox.run_code(code)
    assert [cell.code for cell in read(path).cells] == list(threads)
    assert threads["1"] is threads["2"]
    assert threads["1"] is not threads["print('x' * 1000)"]


def test_a_record_that_is_full_keeps_sizes_and_hashes_and_can_be_read(execution, path, monkeypatch):
    monkeypatch.setattr(format, "FULL", 20_000)
    monkeypatch.setattr(format, "MAX_LATE", 1000)
    writing = Recorder(path)
    begin(writing)
    loud = dataclasses.replace(execution, stdout="x" * 10_000)
    for _ in range(4):
        writing.cell(code="f()", execution=loud, timeout=None, began=1.0)
        writing.event("write", path="a", content=b"x" * 2000)
    writing.close()
    assert writing.failed is None
    cells = read(path).cells
    assert [list(cell.left_out) for cell in cells] == [[], [], *[["execution.stdout"]] * 2]
    assert {cell.code for cell in cells} == {"f()"}
    assert path.stat().st_size < 35_000
    assert "left_out" in read(path).sessions[0].steps[-1].fields["content"]


def test_a_record_ends_before_it_is_too_long_to_be_read(execution, path, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_RECORD", 20_000)
    writing = Recorder(path)
    begin(writing)
    for _ in range(50):
        writing.cell(code="1", execution=execution, timeout=None, began=1.0)
    assert "more than" in writing.failed
    writing.close()
    assert path.stat().st_size <= 20_000
    assert read(path).cells


# --- reading -----------------------------------------------------------------------------------


def test_any_text_of_a_guest_survives_being_recorded(recorded):
    path = recorded(
        r"print('\x00\x1b[31m\u2028\n\r\U0001f600'); '\ud800'", "raise Exception('\x7f')"
    )
    assert all(byte < 128 for byte in path.read_bytes())
    record = read(path)
    assert record.cells[0].execution.stdout == "\x00\x1b[31m\u2028\n\r\U0001f600\n"
    assert record.cells[1].execution.error.value == "\x7f"


def test_results_come_back_as_they_were(data_sandbox, path):
    execution = data_sandbox.run_code("import pandas; pandas.DataFrame({'a': [1, 2]})")
    recorder = Recorder(path)
    begin(recorder)
    recorder.cell(code="x", execution=execution, timeout=2, began=1.0)
    recorder.close()
    (cell,) = read(path).cells
    assert [dict(r.raw) for r in cell.execution.results] == [dict(r.raw) for r in execution.results]
    assert cell.timeout == 2.0


def test_a_line_that_was_cut_off_by_a_kill_is_tolerated_and_said(recorded):
    path = recorded("1", "2")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]) + whole[2][:50])
    record = read(path)
    assert len(record.cells) == 1
    assert "line 3 is incomplete" in record.notes[0]
    # The next session begins on a line of its own.
    record = read(recorded("3"))
    assert [cell.code for cell in record.cells] == ["1", "3"]


def test_a_line_that_is_broken_in_the_middle_is_an_error_with_its_number(recorded):
    path = recorded("1", "2")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + b"{broken\n" + whole[2])
    with pytest.raises(InvalidOption, match="line 2: it is not JSON"):
        read(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda all: all[0].update(version=2), "version 2"),
        (lambda all: all[0].update(limits={"memory": "lots"}), "not a size"),
        (lambda all: all[0].update(environment=7), "environment is not an object"),
        (lambda all: all[1].pop("session"), "session is not a text"),
        (lambda all: all[1].update(session="other"), "has not started"),
        (lambda all: all[1].update(code=["1"]), "code is not a text"),
        (lambda all: all[1]["execution"].update(outcome="great"), "outcome"),
        (lambda all: all[1]["execution"].update(stdout=7), "execution.stdout is not a text"),
        (lambda all: all[1]["execution"].update(exit_code=True), "exit_code is not a whole number"),
        (lambda all: all[1]["execution"]["usage"].update(wall=10**400), "too large"),
        (lambda all: all[1]["execution"]["usage"].pop("wall"), "usage.wall is not a number"),
        (lambda all: all[1]["execution"].update(results=[{"raw": {"a": 1}}]), r"raw.a is not"),
        (
            lambda all: all[1]["execution"].update(results=[{"raw": {"a": {"base64": "?"}}}]),
            "not base64",
        ),
    ],
)
def test_a_record_from_anywhere_is_checked(recorded, change, why):
    with pytest.raises(InvalidOption, match=why) as caught:
        read(rewritten(recorded("1"), change))
    assert re.search(r"line [12]:", str(caught.value))


@pytest.mark.parametrize(
    "line", [b"[" * 200_000, b'{"a": ' * 100_000, b"1" * 10_000, b'{"a": NaN}']
)
def test_hostile_json_is_an_error_of_ours(recorded, line):
    path = recorded("1")
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(first + line + b"\n" + b'{"kind": "end"}\n')
    with pytest.raises(InvalidOption, match="line 2"):
        read(path)


def test_a_line_without_an_end_is_not_read_into_memory(recorded):
    path = recorded("1")
    os.truncate(path, MAX_LINE + 2**20 + path.stat().st_size)  # a hole: it takes no room
    with pytest.raises(InvalidOption, match="longer than"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b'{"kind": "cell"}\n', bytes(5000)])
def test_what_is_no_record_is_not_read(path, content):
    path.write_bytes(content)
    with pytest.raises(InvalidOption, match="not a record"):
        read(path)


def test_a_limit_of_another_version_is_noted_and_unknown_kinds_are_kept(recorded):
    def change(all):
        all[0]["limits"]["sparkles"] = 3
        all[1]["kind"] = "dance"

    record = read(rewritten(recorded("1"), change))
    assert "sparkles" in record.notes[0]
    assert [step.kind for step in record.sessions[0].steps] == ["dance"]


# --- replaying ---------------------------------------------------------------------------------


def test_code_that_does_the_same_is_the_same(recorded):
    path = recorded(
        "x = 20", "print(x); object(), lambda: 1", "1 / 0", "import sys; sys.exit(2)", "x + 1"
    )
    again = replay(path)
    assert again.same, str(again)
    assert [cell.replayed.text for cell in again.cells][-1] == "21"


def test_what_differs_is_named(recorded):
    path = recorded("import random; random.random()", "print(random.random())", "7")
    again = replay(path)
    assert not again.same
    assert [[each.what for each in cell.differences] for cell in again.cells] == [
        ["text"],
        ["stdout"],
        [],
    ]
    assert str(again).startswith("cell 1: differs: text")


def test_addresses_differ_only_for_those_who_want_it_exactly(recorded):
    path = recorded("object()")

    def change(all):
        text = re.sub("0x[0-9a-f]+", "0x7fffdeadbeef", all[1]["execution"]["text"])
        all[1]["execution"]["text"] = text

    rewritten(path, change)
    assert replay(path).same
    assert not replay(path, exact=True).same


def test_a_picture_that_differs_is_told_by_its_hash(backend, path):
    code = "class P:\n    def _repr_png_(self): return open('p', 'rb').read()\nP()"
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.files.write("p", b"\x89PNG one")
        sandbox.run_code(code)
    assert replay(path).same
    rewritten(path, lambda all: all[1]["content"].update(base64="iVBORyB0d28="))
    (difference,) = replay(path).cells[0].differences
    assert difference.what == "result 1, png"
    assert "sha256" in difference.recorded != difference.replayed


def test_files_values_commands_and_restarts_are_done_again(backend, path):
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.files.write("a.txt", "12")
        sandbox.put(n=30)
        sandbox.commands.run("cat a.txt; echo oops >&2; exit 3")
        sandbox.run_code("int(open('a.txt').read()) + n")
        sandbox.restart()
        sandbox.run_code("'n' in globals()")
    again = replay(path)
    assert again.same, str(again)
    assert not again.notes
    assert [cell.replayed.text for cell in again.cells] == ["42", "False"]
    (command,) = again.commands
    assert (command.replayed.stdout, command.replayed.exit_code) == ("12", 3)


def test_checkpoints_are_rolled_back_again(backend, path):
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.run_code("x = 1")
        checkpoint = sandbox.checkpoint()
        sandbox.run_code("x = 2")
        sandbox.rollback(checkpoint)
        sandbox.run_code("x")
    again = replay(path)
    assert again.same, str(again)
    assert not again.notes
    assert again.cells[-1].replayed.text == "1"


def test_cells_of_contexts_run_in_their_contexts_again(backend, path):
    with Sandbox(environment="python", record=path) as sandbox:
        one, two = sandbox.contexts.create("one"), sandbox.contexts.create(cwd="/tmp")
        sandbox.run_code("x = 0")
        sandbox.run_code("x = 1", context=one)
        sandbox.put(x=2, context=two)
        for where in (None, one, two):
            sandbox.run_code("import os; x, os.getcwd()", context=where)
        sandbox.contexts.restart(one)
        sandbox.run_code("'x' in globals()", context=one)
        sandbox.contexts.remove(two)
        sandbox.run_code("x")
    cells = read(path).cells
    ids = [None, one.id, None, one.id, two.id, one.id, None]
    assert [cell.context for cell in cells] == ids
    again = replay(path)
    assert again.same, str(again)
    assert again.notes == ()
    texts = [cell.replayed.text for cell in again.cells]
    assert texts[2:] == [
        *("(0, '/workspace')", "(1, '/workspace')", "(2, '/tmp')", "False", "0"),
    ]
    assert f"context {two.id}" in render(read(path), "html")
    assert f"context create one {one.id}" in render(read(path), "html")


def test_a_context_that_a_record_does_not_have_is_a_difference(path, backend, execution):
    recorder = Recorder(path)
    begin(recorder)
    recorder.event("context", op="restart", id="a", name=None, cwd="/workspace")
    recorder.event("context", op="dance", id="a", name=None, cwd="/workspace")
    recorder.event("put", values={"x": values.encode(1).join()}, context="a")
    recorder.cell(code="1", execution=execution, timeout=None, began=1.0, context="a")
    recorder.cell(code="print('hello'); 6 * 7", execution=execution, timeout=None, began=1.0)
    recorder.close()
    again = replay(path)
    assert [cell.same for cell in again.cells] == [False, True]
    assert again.cells[0].replayed is None
    assert [each.what for each in again.cells[0].differences] == ["context"]
    assert len(again.notes) == 3


def test_events_that_cannot_be_done_again_are_notes(path, backend, execution):
    recorder = Recorder(path)
    begin(recorder)
    recorder.event("write", path="b", content=bytes(INLINE + 1))
    recorder.event("put", values={"big": {"left_out": 5, "sha256": ""}})
    recorder.event("put", values={"odd": b"not of the codec"})
    recorder.event("rollback", id="7")
    recorder.event("dance")
    recorder.event("write", path=7)
    recorder.event("remove", path="nothing")
    recorder.cell(code="print('hello'); 6 * 7", execution=execution, timeout=None, began=1.0)
    recorder.close()
    again = replay(path)
    assert again.same
    found = [re.match(r"line (\d+): '(\w+)' could not", note) for note in again.notes]
    assert [match[2] for match in found] == [
        *("write", "put", "put", "rollback", "dance", "write", "remove"),
    ]


def test_a_hostile_value_in_a_record_is_not_executed(path, backend):
    recorder = Recorder(path)
    begin(recorder)
    blob = bytearray(values.encode({"a": [1, 2, 3]}).join())
    for at in range(len(blob)):
        broken = bytearray(blob)
        broken[at] ^= 0xFF
        recorder.event("put", values={"x": bytes(broken)})
    recorder.close()
    assert all("put" in note for note in replay(path).notes)


def test_chosen_cells_are_compared_and_those_before_run_for_their_variables(recorded):
    path = recorded("x = 1", "x += 1", "x", "x / 0")
    again = replay(path, cells={3})
    assert [cell.recorded.number for cell in again.cells] == [3]
    assert again.cells[0].replayed.text == "2"
    with pytest.raises(InvalidOption, match="no cell 9"):
        replay(path, cells={9})


def test_nothing_runs_after_the_first_that_differs_if_so_wanted(recorded):
    path = recorded("1", "import random; random.random()", "2")
    assert len(replay(path, stop_at_first=True).cells) == 2


def test_limits_and_time_outs_are_the_recorded_ones_unless_given(backend, path):
    options = {"environment": "python", "limits": {"output": "2k"}}
    with Sandbox(**options, record=path) as sandbox:
        sandbox.run_code("while True: pass", timeout=0.3)
        sandbox.run_code("print('x' * 5000)")
    assert replay(path).same
    again = replay(path, limits={"output": "1m"})
    assert [cell.same for cell in again.cells] == [True, False]
    # A time-out given now is that of every cell.
    begun = time.monotonic()
    replay(path, timeout=0.05, cells={1})
    assert time.monotonic() - begun < 25


def test_a_time_out_of_a_cell_is_trusted_no_more_than_the_limits(backend, path, monkeypatch):
    monkeypatch.setitem(_MODERATE, "timeout", 1.0)
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.run_code("1", timeout=1000)
        sandbox.commands.run("true", timeout=1000)
    rewritten(path, lambda all: all[1].update(code="while True: pass"))
    rewritten(path, lambda all: all[2].update(cmd="sleep 1000"))
    again = replay(path)
    assert again.cells[0].replayed.outcome is Outcome.timeout
    assert again.commands[0].replayed.outcome is Outcome.timeout


def test_how_far_code_came_before_it_was_stopped_is_no_difference(backend, path):
    endless = "n = 0\nwhile True:\n    n += 1\n    print(n, flush=True)"
    with Sandbox(environment="python", limits={"output": "4k"}, record=path) as sandbox:
        sandbox.run_code(
            endless.replace("True:", "True:\n    import time; time.sleep(0.01)"), timeout=0.3
        )
        sandbox.run_code(endless)
    again = replay(path)
    assert again.same, str(again)
    rewritten(path, lambda all: all[1]["execution"].update(stdout="2\n3\n"))
    assert not replay(path, timeout=5).cells[0].same  # time enough to say something


def test_variables_and_functions_must_be_given_again(backend, path):
    options = {"env": {"TOKEN": "abc"}, "functions": {"double": lambda n: 2 * n}}
    with Sandbox(environment="python", record=path, **options) as sandbox:
        sandbox.run_code("import os; os.environ['TOKEN'], double(4)")
    again = replay(path)
    assert not again.same
    assert any("TOKEN" in note for note in again.notes)
    assert any("double" in note for note in again.notes)
    again = replay(path, **options)
    assert again.same
    assert not again.notes


def test_an_environment_that_only_the_record_knows_is_not_built(recorded):
    """Its preloads run outside of any sandbox, and a record may come from anywhere."""

    def change(all):
        all[0]["environment"].update(name="theirs", preload=["antigravity"], warmup="evil()")

    path = rewritten(recorded("1"), change)
    with pytest.raises(InvalidOption, match="'theirs'"):
        replay(path)
    assert replay(path, environment="python").same


def test_warmup_of_a_known_environment_is_not_taken_from_the_record(recorded):
    path = rewritten(recorded("1"), lambda all: all[0]["environment"].update(warmup="evil("))
    assert replay(path).same


def test_a_diff_of_huge_texts_ends_soon():
    before = "\n".join(f"{n % 7} {'ab' * 400}" for n in range(50_000))
    after = "\n".join(f"{n % 5} {'ab' * 400}" for n in range(50_000))
    begun = time.thread_time()
    diff = Difference(what="stdout", recorded=before, replayed=after).diff()
    assert time.thread_time() - begun < 10
    assert len(diff) < 1_000_000


# --- the command line --------------------------------------------------------------------------


def test_run_records_and_replay_tells_by_its_exit_code(backend, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('hello', sys.argv[1:])\n")
    path = tmp_path / "s.jsonl"
    options = ("--env", "python", "--record", path)
    assert cli("run", script, *options, "--", "a").stdout == "hello ['a']\n"
    done = cli("replay", path)
    assert (done.returncode, done.stderr.count("environment 'python'")) == (0, 1), done.stderr
    assert "all 1 as recorded" in done.stdout
    script.write_text("import time\nprint('\\x1b[31m' + str(time.time_ns()))\n")
    cli("run", script, *options)
    done = cli("replay", path, "-q")
    assert done.returncode == 1
    assert "cell 2  differs: stdout" in done.stdout
    assert "\x1b" not in done.stdout
    told = json.loads(cli("replay", path, "--json", "--cells", "1-2").stdout)
    assert [(cell["number"], cell["same"]) for cell in told["cells"]] == [(1, True), (2, False)]


def test_replay_takes_functions_of_the_host_from_a_file(backend, path, tmp_path):
    module = tmp_path / "mine.py"
    module.write_text("from os import getcwd\ndef double(n):\n    return 2 * n\n_hidden = 3\n")
    with Sandbox(
        environment="python", record=path, functions={"double": lambda n: 2 * n}
    ) as sandbox:
        sandbox.run_code("double(21)")
    assert cli("replay", path).returncode == 1
    done = cli("replay", path, "--functions", module)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere.jsonl"],
        ["{path}", "--cells", "3-1"],
        ["{path}", "--cells", "x"],
        ["{path}", "--functions", "nowhere.py"],
        ["{path}", "--env", "nosuch"],
        ["{path}", "--memory", "much"],
    ],
)
def test_wrong_usage_of_replay_is_said_before_anything_runs(recorded, words):
    done = cli("replay", *(word.format(path=recorded("1")) for word in words))
    assert done.returncode == 2
    assert done.stderr.startswith("belljar: ")
    assert "Traceback" not in done.stderr


def test_repl_records_its_statements(backend, path):
    done = cli("repl", "--env", "python", "--record", path, input="x = 3\nx * 2\n")
    assert done.returncode == 0
    assert [cell.code for cell in read(path).cells] == ["x = 3", "x * 2"]


@pytest.mark.parametrize("where", ["workspace", "mounts"])
def test_a_record_within_reach_of_the_code_is_refused(where, tmp_path):
    tmp_path.chmod(0o755)
    given = {"workspace": tmp_path} if where == "workspace" else {"mounts": [Mount(tmp_path, "/d")]}
    with pytest.raises(InvalidOption, match="within reach of the code"):
        Sandbox(record=tmp_path / "sub" / ".." / "session.jsonl", **given)
