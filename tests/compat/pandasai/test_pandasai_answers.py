"""What a stranger may answer: it costs the host little, and what would cost much is a BadResult."""

import builtins
import decimal
import gc
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pandas as pd
import pytest

from belljar.compat.pandasai import BadResult, BadSyntax, ResponseSerializer, answers
from belljar.compat.pandasai.answers import MAX_CELLS, MAX_COLUMNS


def checked(kind, value):
    return answers.check_answer({"type": kind, "value": value}, lambda path: path)["value"]


@pytest.mark.parametrize(
    "value",
    [
        decimal.Decimal("1E+30000000"),
        decimal.Decimal("-1E+999999999999"),
        decimal.Decimal("1E+999999999999999999"),
        decimal.Decimal("1" * 10_000),
        1 << 10_000_000,
        -(1 << 20_000),
        decimal.Decimal("NaN"),
        decimal.Decimal("Infinity"),
        np.longdouble(1),
        1j,
        [1],
        None,
        "7",
    ],
    ids=range(13),
)
def test_numbers_that_nobody_can_write_out_are_refused(value):
    with pytest.raises(BadResult) as raised:
        checked("number", value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (decimal.Decimal("1E+20"), 10**20),
        (decimal.Decimal("2.5"), 2.5),
        (decimal.Decimal("1E-999999999999999999"), 0.0),
        (decimal.Decimal("0E+999999"), 0),
        (decimal.Decimal("0.1" + "0" * 1_000_000), 0.1),
        (10**4000, 10**4000),
        (float("inf"), float("inf")),
    ],
    ids=range(7),
)
def test_other_numbers_are_answers(value, expected):
    found = checked("number", value)
    assert found == expected
    assert isinstance(found, (int, float))
    assert str(found)


def test_the_kind_is_a_text():
    for kind in (np.array(["number", "x"]), None, 1, ["number"], pd.Series(["number"])):
        with pytest.raises(BadResult, match="result"):
            checked(kind, 1)


TOO_LARGE = {
    "rows of different keys": lambda: [{str(i): 1} for i in range(20_000)],
    "a scalar for every row": lambda: {
        **{str(i): 0 for i in range(2000)},
        "z": pd.Series(range(400_000)),
    },
    "a scalar for every item": lambda: {**{str(i): 0 for i in range(2000)}, "z": [0] * 400_000},
    "columns of different keys": lambda: {str(i): {str(i): 1} for i in range(20_000)},
    "one wide row": lambda: [[0] * (MAX_COLUMNS + 1)],
    "one wide array": lambda: np.zeros((1, MAX_COLUMNS + 1)),
    "one long row among short ones": lambda: [[0]] * (MAX_CELLS // 5000) + [[0] * 10_000],
    "many scalars": lambda: {str(i): 0 for i in range(MAX_COLUMNS + 1)},
    "keys of dicts among lists": lambda: [[1], *({str(i): 1} for i in range(20_000))],
}


@pytest.mark.parametrize("made", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_frame_of_more_cells_than_were_sent_is_not_made(made, monkeypatch):
    asked = []
    monkeypatch.setattr(answers, "_make", lambda *args, **options: asked.append(args))
    with pytest.raises(BadResult, match="more than"):
        checked("dataframe", made())
    assert not asked


@pytest.mark.parametrize(
    "value",
    [
        {"a": pd.Series([1, 2]), "b": pd.Series([1, 2], index=[5, 6])},
        {"a": [1, 2], "b": [1]},
        {"a": pd.DataFrame({"x": [1]})},
        {"a": [1], "b": {"x": 1}},
        {"a": np.zeros((2, 2))},
        {"a": np.array(1)},
        [pd.Series([1]), pd.Series([2])],
        [np.zeros((2, 2))],
        np.zeros((2, 2, 2)),
        {"a": 1},
        "text",
        7,
    ],
    ids=range(12),
)
def test_what_is_no_frame_is_told(value):
    with pytest.raises(BadResult) as raised:
        checked("dataframe", value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2], "b": ["x", "y"]},
        {"a": [1, 2], "b": 7},
        {"a": (1, 2), "b": np.array([1.5, 2.5])},
        {"a": pd.Series([1, 2], index=[5, 6]), "b": pd.Series([3, 4], index=[5, 6])},
        {"a": pd.Series([1, None], dtype="Int64"), "b": [3, 4]},
        {"a": {"x": 1, "y": 2}, "b": {"y": 3}},
        [{"a": 1, "b": 2}, {"a": 3}],
        [[1, 2], [3, 4]],
        [(1, "x"), (2, "y")],
        [1, 2, 3],
        [],
        {},
        np.array([1, 2]),
        np.array([[1, 2], [3, 4]]),
    ],
    ids=range(14),
)
def test_frames_are_those_that_pandas_makes(value):
    pd.testing.assert_frame_equal(checked("dataframe", value), pd.DataFrame(value))


def test_lists_that_are_nested_deeply_are_cells():
    deep = []
    for _ in range(90):
        deep = [deep]
    assert checked("dataframe", {"a": [deep]}).shape == (1, 1)
    assert checked("dataframe", [[deep, 1]]).shape == (1, 2)


def test_a_path_is_short_and_a_picture_small():
    with pytest.raises(BadResult, match="too many for a path"):
        checked("plot", "x" * 10_000_000)
    with pytest.raises(BadResult, match="more than"):
        checked("plot", answers.DATA_URL + "A" * (2 * answers.MAX_PNG_BYTES))


def test_a_picture_has_few_parts():
    def chunk(kind, data=b""):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)) + chunk(b"tEXt") * 1_000_000
    with pytest.raises(ValueError, match="more than 20000 parts"):
        answers.check_png(picture)


def test_a_frame_of_json_has_parts_that_fit():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=[5, 6])
    text = ResponseSerializer.serialize({"type": "dataframe", "value": frame})
    pd.testing.assert_frame_equal(ResponseSerializer.deserialize(text)["value"], frame)
    for parts in (
        {"columns": list(range(5000)), "index": list(range(5000)), "data": []},
        {"columns": list(range(5000)), "index": list(range(5000)), "data": {"0": 1}},
        {"columns": [1], "index": [1], "data": [1]},
        {"columns": "ab", "index": [1], "data": [[1, 2]]},
    ):
        with pytest.raises(ValueError, match="columns, data and index"):
            ResponseSerializer.deserialize(json.dumps({"type": "dataframe", "value": parts}))


# -- all the way ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "from decimal import Decimal\nresult = {'type': 'number', 'value': Decimal('1E+30000000')}",
        "result = {'type': 'number', 'value': 1 << 10_000_000}",
        "result = {'type': 'dataframe', 'value': [{str(i): 1} for i in range(20000)]}",
        "d = {str(i): 0 for i in range(2000)}\nd['z'] = pd.Series(range(400000))\n"
        "result = {'type': 'dataframe', 'value': d}",
        "result = {'type': np.array(['number', 'x']), 'value': 1}",
        "result = {'type': 'plot', 'value': '/tmp/\\udc80'}",
        "result = {'type': 'plot', 'value': 'x' * 10_000_000}",
        "x = []\nfor _ in range(5000): x = [x]\nresult = {'type': 'dataframe', 'value': x}",
    ],
    ids=range(8),
)
def test_hostile_answers_of_real_code_are_bad_results(jar, code):
    with pytest.raises(BadResult):
        jar.execute(code, {})


def test_queries_without_a_function_are_not_kept(jar):
    code = """
for i in range(20):
    try:
        execute_sql_query('x' * 1_000_000)
    except Exception:
        pass
result = {'type': 'number', 'value': 1}
"""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        jar.execute(code, {})
        gc.collect()  # tracebacks of what was raised here
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 5_000_000


def nested_finally(depth):
    lines = [f"{' ' * i}try: pass\n{' ' * i}finally:" for i in range(depth)]
    return "\n".join(lines) + "\n" + " " * depth + ";".join(["a"] * 20)


def test_code_is_read_and_not_compiled_on_the_host(jar, monkeypatch):
    # Compiled, each level would double its size: millions of instructions.
    def compiled(source, filename, mode, flags=0, *args, **options):
        assert flags & 0x400, "more than a tree was made of it"  # ast.PyCF_ONLY_AST
        return plain(source, filename, mode, flags, *args, **options)

    plain = builtins.compile
    monkeypatch.setattr(builtins, "compile", compiled)
    assert jar._compile_code(nested_finally(19)) is None
    with pytest.raises(BadSyntax):
        jar.execute("try:\n  x = = 1", {})
