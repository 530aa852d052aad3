import copy
import dataclasses
import doctest
import json
import pickle
import re
import signal
import unicodedata
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import text as printable_module
from belljar.backends.isolation import Isolation, Layer
from belljar.errors import (
    ExecutionError,
    ExecutionOutOfMemory,
    ExecutionTimeout,
    InvalidOption,
    SandboxError,
)
from belljar.results import result as result_module
from belljar.results.execution import (
    CommandResult,
    ErrorInfo,
    Execution,
    Logs,
    Outcome,
    Result,
    Usage,
)
from belljar.text import printable

USAGE = Usage(wall=0.0012, cpu=0.001, peak_memory=None, output_bytes=0)
ZERO_DIVISION = ErrorInfo(
    name="ZeroDivisionError",
    value="division by zero",
    traceback='Traceback (most recent call last):\n  File "<cell 1>", line 1\nZeroDivisionError',
)


def make(**changes):
    return Execution(
        **{
            "outcome": Outcome.ok,
            "text": None,
            "value": None,
            "results": (),
            "stdout": "",
            "stderr": "",
            "logs": Logs(stdout=(), stderr=()),
            "error": None,
            "exit_code": None,
            "signal": None,
            "execution_count": 1,
            "usage": USAGE,
            "state_preserved": True,
            "truncated": False,
            **changes,
        }
    )


def command(**changes):
    return CommandResult(
        **{
            "stdout": "",
            "stderr": "",
            "exit_code": 0,
            "signal": None,
            "outcome": Outcome.ok,
            "usage": USAGE,
            "truncated": False,
            **changes,
        }
    )


@pytest.mark.parametrize("module", [printable_module, result_module], ids=lambda m: m.__name__)
def test_the_examples_in_the_docstrings_are_true(module):
    ran = doctest.testmod(module)
    assert ran.attempted > 0
    assert ran.failed == 0


# printable


def test_control_bytes_are_escaped_and_newline_and_tab_stay():
    assert printable("a\tb\n\x1b[31m\x07\r\x7f\x9b\x00é") == (
        "a\tb\n\\x1b[31m\\x07\\x0d\\x7f\\x9b\\x00é"
    )


def test_lone_surrogates_and_text_direction_overrides_are_escaped():
    assert printable("\udc80 \u202e \u2066") == "\\udc80 \\u202e \\u2066"


@given(st.text(st.characters()))
def test_printable_text_can_be_encoded_holds_no_control_and_is_stable(text):
    shown = printable(text)
    shown.encode()
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t"]
    assert printable(shown) == shown


# Outcome


def test_the_outcomes_are_the_documented_ones_and_are_plain_text():
    assert [str(outcome) for outcome in Outcome] == [
        *("ok", "error", "exit", "timeout", "out_of_memory", "killed"),
        *("output_limit", "rejected", "cancelled", "lost"),
    ]
    assert all(outcome.name == outcome.value for outcome in Outcome)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_but_ok_raises_and_carries_the_execution(outcome):
    run = make(outcome=outcome)
    if outcome is Outcome.ok:
        assert run.ok
        assert run.raise_for_outcome() is run
    else:
        assert not run.ok
        with pytest.raises(ExecutionError, match=r"^the code ") as caught:
            run.raise_for_outcome()
        assert caught.value.execution is run


def test_a_time_out_and_a_lack_of_memory_raise_their_own_error_with_a_remedy():
    with pytest.raises(ExecutionTimeout, match=r"after 1.2 ms\n.*timeout="):
        make(outcome=Outcome.timeout).raise_for_outcome()
    with pytest.raises(ExecutionOutOfMemory, match=r"Limits\(memory="):
        make(outcome=Outcome.out_of_memory).raise_for_outcome()


def test_an_exception_in_the_guest_is_named_and_its_traceback_is_a_note():
    with pytest.raises(ExecutionError) as caught:
        make(outcome=Outcome.error, error=ZERO_DIVISION).raise_for_outcome()
    assert str(caught.value) == "the code raised ZeroDivisionError: division by zero"
    assert '  |   File "<cell 1>", line 1\n' in caught.value.__notes__[0]


def test_the_guests_words_reach_the_exception_short_and_escaped():
    hostile = ErrorInfo(name="E\x1b]0;", value="\n" + "x" * 10**6, traceback="\x1b[2J" * 10**5)
    with pytest.raises(ExecutionError) as caught:
        make(outcome=Outcome.error, error=hostile).raise_for_outcome()
    shown = str(caught.value) + caught.value.__notes__[0]
    assert "\x1b" not in shown
    assert len(shown) < 20_000


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        ({"outcome": Outcome.exit, "exit_code": 3}, "the code ended: exit code 3"),
        ({"outcome": Outcome.killed, "signal": 11}, "the code ended: killed by SIGSEGV"),
        ({"outcome": Outcome.killed}, "the code ended: killed, no exit code"),
    ],
)
def test_an_end_is_told_by_its_code_or_its_signal(ending, sentence):
    with pytest.raises(ExecutionError) as caught:
        make(**ending).raise_for_outcome()
    assert str(caught.value) == sentence


def test_an_execution_error_with_its_execution_survives_pickle():
    with pytest.raises(ExecutionTimeout) as caught:
        make(outcome=Outcome.timeout, stdout="so far").raise_for_outcome()
    assert pickle.loads(pickle.dumps(caught.value)).execution.stdout == "so far"


def test_signals_have_names_and_those_without_one_a_number():
    assert make(signal=signal.SIGKILL).signal_name == "SIGKILL"
    assert make(signal=signal.SIGRTMIN + 3).signal_name == f"signal {signal.SIGRTMIN + 3}"
    assert make().signal_name is None


# Execution as data and as text


def test_an_execution_survives_json_with_everything_in_it():
    run = make(
        text="{'a': (1, 2)}",
        value={"a": (1, 2)},
        results=(Result(raw={"image/png": b"\x89PNG"}, is_main_result=True),),
        stdout="out \udc80",
        logs=Logs(stdout=("out ", "\udc80"), stderr=(), background=("late",)),
        error=ZERO_DIVISION,
        notes=("a note",),
    )
    data = json.loads(run.to_json(indent=2))
    assert data == run.to_dict()
    assert data.keys() == run.__dataclass_fields__.keys()
    assert data["value"] == {"a": [1, 2]}
    assert data["results"][0]["raw"] == {"image/png": "iVBORw=="}
    logs = {"stdout": ["out ", "\udc80"], "stderr": [], "background": ["late"], "order": []}
    assert data["logs"] == logs
    assert data["error"]["name"] == "ZeroDivisionError"


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("inf")], b"bytes", {b"x"}, object(), 10**5000, {(1,): 2}, nested(10**5)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_json_cannot_carry_is_null_and_nothing_fails(value):
    assert json.loads(make(value=value, text="its repr").to_json())["value"] is None


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (datetime(2024, 1, 2, 3, tzinfo=UTC), "2024-01-02T03:00:00+00:00"),
        ([date(2024, 1, 2), time(3, 4)], ["2024-01-02", "03:04:00"]),
        (timedelta(days=1), "1 day, 0:00:00"),
        ({"a": (Decimal("1.10"), UUID(int=1))}, {"a": ["1.10", str(UUID(int=1))]}),
    ],
)
def test_what_has_a_usual_text_is_carried_as_that(value, carried):
    assert json.loads(make(value=value).to_json())["value"] == carried


def test_scalars_and_small_arrays_of_numpy_are_numbers_and_lists():
    numpy = pytest.importorskip("numpy")
    value = {
        "i": numpy.int64(3),
        "f": numpy.float32(0.5),
        "b": numpy.bool_(True),
        "a": numpy.array([[1, 2], [3, 4]]),
        "t": numpy.datetime64("2024-01-02T03", "ns"),
    }
    assert json.loads(make(value=value).to_json())["value"] == {
        "i": 3,
        "f": 0.5,
        "b": True,
        "a": [[1, 2], [3, 4]],
        "t": "2024-01-02T03:00:00.000000000",
    }
    assert make(value=numpy.zeros(10**6)).to_dict()["value"] is None
    assert make(value=numpy.array([numpy.nan])).to_dict()["value"] is None


def test_a_table_is_not_carried_as_json():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1]})
    assert make(value=frame).to_dict()["value"] is None
    assert make(value=[frame]).to_dict()["value"] is None


def test_the_plain_data_shares_nothing_with_the_value():
    run = make(value={"a": []})
    run.to_dict()["value"]["a"].append(1)
    assert run.value == {"a": []}


def test_executions_are_compared_by_identity_whatever_their_value():
    run = make(value={"unhashable": []})
    assert run in {run}
    assert run != copy.copy(run)


def test_repr_is_one_short_line_without_control_characters():
    run = make(text="\x1b[2J\n" + "x" * 10**6, execution_count=3)
    assert repr(run).startswith("<Execution ok [3] \\x1b[2J\\nxxx")
    assert len(repr(run)) < 120
    assert repr(make(text="2")) == "<Execution ok [1] 2 1.2 ms>"
    assert repr(make(outcome=Outcome.killed, signal=9)) == (
        "<Execution killed [1] killed by SIGKILL 1.2 ms>"
    )
    assert repr(make(stdout="a  b\n")) == "<Execution ok [1] stdout: a  b\\n 1.2 ms>"


def test_str_shows_output_then_value_then_notes():
    run = make(stdout="hello\n", stderr="oh\n", text="2", notes=("a note",))
    assert str(run) == "hello\noh\n2\n[a note]"


def test_str_says_once_that_output_is_missing():
    assert str(make(truncated=True)) == "[the output was truncated]"
    run = make(truncated=True, notes=("output past the limit was dropped",))
    assert str(run) == "[output past the limit was dropped]"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.timeout, "[the code ran out of time after 1.2 ms]"),
        (Outcome.output_limit, "[the code wrote more output than its limit]"),
        (Outcome.cancelled, "[the code was cancelled]"),
    ],
)
def test_str_says_why_code_was_interrupted_below_its_traceback(outcome, reason):
    interrupted = ErrorInfo(name="KeyboardInterrupt", value="", traceback="KeyboardInterrupt\n")
    assert str(make(outcome=outcome, error=interrupted)) == f"KeyboardInterrupt\n{reason}"


def test_str_shows_how_it_ended_and_escapes_what_the_guest_wrote():
    failed = make(outcome=Outcome.error, stdout="\x1b[2J", error=ZERO_DIVISION)
    assert str(failed) == "\\x1b[2J\n" + ZERO_DIVISION.traceback
    assert str(make(outcome=Outcome.timeout)) == "[the code ran out of time after 1.2 ms]"


# Result


def test_a_result_gives_each_format_by_its_short_name():
    text = {
        "text": "text/plain",
        "html": "text/html",
        "markdown": "text/markdown",
        "svg": "image/svg+xml",
        "latex": "text/latex",
    }
    binary = {"png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf"}
    full = Result(
        raw={m: n for n, m in text.items()} | {m: n.encode() for n, m in binary.items()},
        is_main_result=False,
    )
    empty = Result(raw={}, is_main_result=False)
    assert full.formats() == [*text, *binary]
    for name in [*text, *binary]:
        assert getattr(full, name) == (name if name in text else name.encode())
        assert getattr(empty, name) is None


def test_a_format_without_a_short_name_is_listed_by_its_mime_type():
    result = Result(raw={"application/x-arrow": b""}, is_main_result=False)
    assert result.formats() == ["application/x-arrow"]


def test_content_of_the_wrong_type_is_not_handed_out_as_the_right_one():
    result = Result(raw={"image/png": "text", "text/html": b"bytes"}, is_main_result=False)
    assert result.png is None
    assert result.html is None


def test_bytes_are_written_in_base64_and_said_to_be():
    result = Result(raw={"text/plain": "a", "image/png": b"\x00"}, is_main_result=True)
    assert result.to_dict() == {
        "raw": {"text/plain": "a", "image/png": "AA=="},
        "base64": ["image/png"],
        "is_main_result": True,
    }


def test_json_is_parsed():
    assert Result(raw={"application/json": '{"a": [1]}'}, is_main_result=True).json == {"a": [1]}
    assert Result(raw={}, is_main_result=True).json is None


@pytest.mark.parametrize("text", ["{", "NaN", "[Infinity]", "9" * 5000, "[" * 10**5, ""])
def test_json_that_is_none_raises_our_own_error(text):
    with pytest.raises(SandboxError, match="application/json"):
        _ = Result(raw={"application/json": text}, is_main_result=True).json


def test_the_repr_of_a_result_shows_formats_and_escapes_them():
    result = Result(raw={"text/plain": "secret", "x/\x1b": b""}, is_main_result=True)
    assert repr(result) == "<Result main 'text', 'x/\\x1b'>"


# CommandResult


def test_a_command_is_ok_only_with_the_exit_code_0():
    assert command().ok
    assert not command(exit_code=None).ok
    assert not command(exit_code=1).ok
    assert not command(outcome=Outcome.timeout).ok


def test_a_command_that_succeeded_is_given_back():
    result = command()
    assert result.raise_for_exit() is result


def test_a_command_that_failed_raises_with_its_code_and_the_end_of_its_stderr():
    result = command(exit_code=2, stderr="early\n" * 10**5 + "no such table\x07\n")
    with pytest.raises(ExecutionError, match=r"^the command ended: exit code 2\n") as caught:
        result.raise_for_exit()
    assert caught.value.execution is result
    assert caught.value.__notes__[0].endswith("  | no such table\\x07")


def test_a_command_that_timed_out_raises_a_time_out():
    with pytest.raises(ExecutionTimeout, match=r"^the command ran out of time"):
        command(outcome=Outcome.timeout, exit_code=None, signal=9).raise_for_exit()


def test_a_command_result_survives_json():
    result = command(exit_code=None, signal=9, outcome=Outcome.killed)
    data = json.loads(json.dumps(result.to_dict()))
    assert data["outcome"] == "killed"
    assert data["usage"] == {"wall": 0.0012, "cpu": 0.001, "peak_memory": None, "output_bytes": 0}
    assert result.signal_name == "SIGKILL"


def test_the_repr_of_a_command_result_is_one_short_line_without_control_characters():
    assert repr(command()) == "<CommandResult ok 1.2 ms>"
    assert repr(command(stdout="a\n", stderr="b")) == "<CommandResult ok stdout: a\\n 1.2 ms>"
    failed = command(outcome=Outcome.exit, exit_code=2, stdout="a", stderr="\x1b" + "x" * 10**6)
    assert repr(failed).startswith("<CommandResult exit exit code 2 stderr: \\x1bxxx")
    assert len(repr(failed)) < 120
    assert repr(command(outcome=Outcome.killed, exit_code=None, signal=9)) == (
        "<CommandResult killed killed by SIGKILL 1.2 ms>"
    )


# Isolation


def test_the_repr_of_an_isolation_counts_layers_and_names_what_is_not_enforced():
    enforced = Layer(name="seccomp", state="enforced", detail="")
    weak = Layer(name="memory", state="best-effort", detail="", remedy="a cgroup")
    whole = Isolation(backend="native", layers=(enforced, enforced), limits=(enforced,))
    assert repr(whole) == "<Isolation native: 2 layers, 1 limits, all enforced>"
    assert repr(dataclasses.replace(whole, limits=(weak,))) == (
        "<Isolation native: 2 layers, 1 limits, memory best-effort>"
    )


def test_an_isolation_is_a_table_in_a_notebook_and_lines_in_print():
    enforced = Layer(name="seccomp", state="enforced", detail="<script>\x1b[2J")
    weak = Layer(name="memory", state="best-effort", detail="RLIMIT_AS", remedy="a cgroup & root")
    lacking = Layer(name="landlock", state="absent", detail="no <b>")
    held = Isolation(backend="native", layers=(enforced, lacking), limits=(weak,))
    shown = held._repr_html_()
    assert shown.startswith("<table")
    rows = [re.findall(r"<t[dh][^>]*>([^<]*)", row) for row in shown.split("<tr")]
    assert rows[1:] == [
        ["layer", "state", "detail", "remedy"],
        ["seccomp", "✓ enforced", "&lt;script&gt;\\x1b[2J", ""],
        ["landlock", "✗ absent", "no &lt;b&gt;", ""],
        ["limit", "state", "detail", "remedy"],
        ["memory", "~ best-effort", "RLIMIT_AS", "a cgroup &amp; root"],
    ]
    assert ">Isolation native: 2 layers, 1 limits, landlock absent, memory best-effort</c" in shown
    assert "remedy" not in dataclasses.replace(held, limits=())._repr_html_()
    assert str(held) == (
        "Isolation native: 2 layers, 1 limits, landlock absent, memory best-effort\n"
        "enforced     seccomp: <script>\\x1b[2J\n"
        "absent       landlock: no <b>\n"
        "best-effort  memory: RLIMIT_AS (remedy: a cgroup & root)"
    )


# --- for models -----------------------------------------------------------------------------------


def test_output_is_merged_in_the_order_in_which_it_arrived():
    logs = Logs(
        stdout=("1\n", "3\n"), stderr=("2\n",), order=("stdout", "stderr", "background", "stdout")
    )
    assert logs.merged == "1\n2\n3\n"
    assert Logs(stdout=("1", "2"), stderr=("3",)).merged == "123"  # of a record
    assert Logs(stdout=("1",), stderr=("2",), order=("stderr",)).merged == "21"


def test_a_model_reads_output_results_value_and_notes():
    table = Result(raw={"text/plain": "a  b\n1  2", "text/html": "<table>"}, is_main_result=False)
    figure = Result(raw={"text/plain": "<Figure>", "image/png": b"x" * 2000}, is_main_result=True)
    execution = make(
        stdout="hello\n",
        text="<Figure>",
        results=(table, Result(raw={"image/svg+xml": "<svg>"}, is_main_result=False), figure),
        notes=("the output was shortened",),
    )
    assert execution.for_model().split("\n") == [
        "hello",
        "a  b",
        "1  2",
        "[picture 1: svg+xml, 5 B]",
        "<Figure>",
        "[picture 2: png, 2.0 KiB]",
        "[the output was shortened]",
    ]
    assert len(execution.images) == 2


def test_a_model_reads_why_the_code_failed():
    execution = make(outcome=Outcome.error, error=ZERO_DIVISION, stdout="before\n", text="no value")
    shown = execution.for_model()
    assert shown.startswith("before\nTraceback")
    assert shown.endswith("ZeroDivisionError")
    assert "no value" not in shown
    late = make(outcome=Outcome.timeout, notes=("the time limit was 5 s",))
    assert late.for_model() == "[the code ran out of time after 1.2 ms]\n[the time limit was 5 s]"


def test_a_model_reads_that_there_was_nothing():
    assert make().for_model() == "[no output]"
    assert make(text="None").for_model() == "None"
    html = Result(raw={"text/html": "<b>"}, is_main_result=False)
    assert make(results=(html,)).for_model() == "[displayed: html]"


def test_colours_and_progress_bars_are_shown_as_they_look_at_the_end():
    bars = "".join(f"\r{number}%" for number in range(100))
    shown = make(stdout=f"\x1b[1;31mred\x1b[0m\r\n{bars}\ndone \x00\x1b]0;title\x07").for_model()
    assert shown == "red\n99%\ndone \\x00"


def test_long_output_keeps_its_beginning_and_its_end_and_the_error_is_whole():
    lines = "".join(f"line {number}\n" for number in range(10_000))
    execution = make(outcome=Outcome.error, error=ZERO_DIVISION, stdout=lines)
    shown = execution.for_model(limit=1000)
    assert len(shown) <= 1000
    assert shown.startswith("line 0\nline 1\n")
    assert "line 9999\nTraceback" in shown
    assert shown.endswith(ZERO_DIVISION.traceback)
    left = int(re.search(r"\[… ([\d,]+) characters left out …\]", shown)[1].replace(",", ""))
    assert left == len(lines.rstrip()) - (len(shown) - len(ZERO_DIVISION.traceback) - 1) + len(
        f"\n[… {left:,} characters left out …]\n"
    )
    assert execution.for_model(limit=None).startswith(lines)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "20", True])
def test_a_limit_that_is_no_number_of_characters_is_refused(limit):
    with pytest.raises(InvalidOption, match=r"^limit must be .* not "):
        make().for_model(limit=limit)


@given(st.lists(st.text(max_size=300), max_size=6), st.integers(1, 1000))
def test_texts_fit_any_limit(texts, limit):
    shown = printable_module.fit_texts(texts, limit)
    assert len(shown) <= limit
    if sum(len(text) + 1 for text in texts if text) <= limit:
        assert shown == "\n".join(filter(None, texts))


@given(st.text())
def test_what_a_terminal_shows_is_printable(text):
    shown = printable_module.show_as_terminal(text)
    assert shown == printable(shown)
    assert "\r" not in shown


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"outcome": Outcome.ok, "exit_code": 0}, 0),
        ({"exit_code": 3}, 3),
        ({"outcome": Outcome.killed, "exit_code": None, "signal": 11}, 139),
        ({"outcome": Outcome.timeout, "exit_code": None, "signal": 9}, 124),
        ({"outcome": Outcome.timeout, "exit_code": 0}, 124),
        ({"outcome": Outcome.out_of_memory, "exit_code": None, "signal": 9}, 137),
        ({"outcome": Outcome.lost, "exit_code": None}, 125),
    ],
)
def test_each_end_of_a_command_has_one_number(end, code):
    assert command(**end).returncode == code


def test_the_output_of_a_command_is_both_streams():
    assert command(stdout="1\n", stderr="2\n").output == "1\n2\n"
