"""Arrays and tables travel with all that they are; a parcel that lies is refused."""

import json
import mmap
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzz_values
import specimens
from belljar.guest import parcel, values


def travelled(value):
    return values.decode(values.encode(value).join())


def assert_alike(made, value):
    """The same types, dtypes, layout and contents; nothing is the same as nearly the same."""
    assert type(made) is type(value)
    if isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(made, value, check_column_type=True)
        assert_alike(made.index, value.index)
        assert_alike(made.columns, value.columns)
        assert made.attrs == value.attrs
    elif isinstance(value, pd.Series):
        pd.testing.assert_series_equal(made, value)
        assert_alike(made.index, value.index)
        if value.dtype == object:
            assert_alike(made.tolist(), value.tolist())
    elif isinstance(value, pd.Index):
        pd.testing.assert_index_equal(made, value, exact=True)
        assert getattr(made, "freq", None) == getattr(value, "freq", None)
    elif isinstance(value, pd.api.extensions.ExtensionArray):
        pd.testing.assert_extension_array_equal(made, value)
    elif isinstance(value, (np.ndarray, np.generic)):
        assert (made.dtype, made.shape) == (value.dtype, value.shape)
        assert_alike_items(np.asarray(made), np.asarray(value))
    elif isinstance(value, (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Array)):
        made.validate(full=True)
        assert made.equals(value)
    elif isinstance(value, pl.DataFrame):
        pl.testing.assert_frame_equal(made, value)
    elif isinstance(value, pl.Series):
        pl.testing.assert_series_equal(made, value)
    elif isinstance(value, (list, tuple)):
        assert len(made) == len(value)
        for one, other in zip(made, value, strict=True):
            assert_alike(one, other)
    elif isinstance(value, dict):
        assert list(made) == list(value)
        assert_alike(list(made.values()), list(value.values()))
    else:
        assert repr(made) == repr(value)


def assert_alike_items(made, value):
    if value.dtype.names:
        for name in value.dtype.names:
            assert_alike_items(made[name], value[name])
    elif value.dtype.char in "gG":  # has bytes that mean nothing
        np.testing.assert_array_equal(made, value)
    else:
        assert made.tobytes() == value.tobytes()


@pytest.mark.parametrize("name", specimens.everything())
def test_a_value_of_every_kind_travels_whole(name):
    value = specimens.everything()[name]
    assert_alike(travelled(value), value)
    assert_alike(travelled({"in": [value]}), {"in": [value]})


# --- any array, any frame ---------------------------------------------------------------------

plain_dtypes = st.sampled_from(
    [
        *("?", "i1", "<i8", ">i4", "u2", "f2", "<f8", ">f4", "c8", ">c16", "g"),
        *("S3", "U2", ">U3", "V5", "M8[ns]", ">M8[D]", "m8[3h]"),
    ]
).map(np.dtype)
dtypes = st.recursive(
    plain_dtypes,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: np.dtype([(f"f{i}", part) for i, part in enumerate(parts)])
    ),
    max_leaves=4,
)


@st.composite
def arrays(draw):
    dtype = draw(dtypes)
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    size = int(np.prod(shape)) * dtype.itemsize
    # Zeros and ones are good items of every dtype.
    raw = draw(st.binary(min_size=size, max_size=size).map(lambda b: bytes(x & 1 for x in b)))
    if "U" in str(dtype):
        raw = bytes(size)
    made = np.frombuffer(bytearray(raw), dtype=dtype, count=int(np.prod(shape))).reshape(shape)
    for axis in range(made.ndim):
        step = draw(st.sampled_from([1, 1, 2, -1]))
        made = np.moveaxis(np.moveaxis(made, axis, 0)[::step], 0, axis)
    return draw(st.sampled_from([made, made.T, np.asfortranarray(made)]))


@given(arrays())
@settings(deadline=None)
def test_any_array_travels_whole(value):
    assert_alike(travelled(value), value)


labels = st.one_of(
    st.text(max_size=5),
    st.integers(-5, 5),
    st.tuples(st.text(max_size=2), st.integers()),
    st.datetimes(),
    st.none(),
)


@st.composite
def frames(draw):
    rows = draw(st.sampled_from([0, 1, 5, 70]))
    pool = specimens.columns(rows)
    chosen = draw(st.lists(st.sampled_from(sorted(pool)), max_size=6))
    frame = (
        pd.concat([pool[name] for name in chosen], axis=1)
        if chosen
        else pd.DataFrame(index=range(rows))
    )
    names = draw(st.lists(labels, min_size=len(chosen), max_size=len(chosen)))
    frame.columns = pd.Index(names, tupleize_cols=False) if names else frame.columns
    index = draw(st.lists(st.sampled_from(sorted(pool)), max_size=2))
    if len(index) == 1:
        frame.index = pd.Index(pool[index[0]], name=draw(labels))
    elif index:
        unsortable = {"object mixed", "arrow list", "big-endian"}
        keys = [pool[name] for name in index if name not in unsortable] or [pool["int64"]]
        frame.index = pd.MultiIndex.from_arrays(keys)
    part = draw(st.sampled_from([slice(None), slice(1, 3), slice(None, None, 2), slice(66, None)]))
    return frame.iloc[part]


@given(frames())
@settings(deadline=None, max_examples=150)
def test_any_frame_travels_whole(value):
    assert_alike(travelled(value), value)


@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from(sorted(specimens.arrow_arrays())))
@settings(deadline=None)
def test_any_slice_of_arrow_travels_whole(start, size, name):
    value = specimens.arrow_arrays()[name].slice(start, size)
    assert_alike(travelled(value), value)


def test_a_small_slice_of_a_large_table_is_small():
    table = pa.table({"a": range(100_000), "b": [str(i) for i in range(100_000)]})
    frame = pd.DataFrame({"a": np.arange(100_000), "b": pd.Series(["word"] * 100_000)})
    for value in (table.slice(5, 100), frame.iloc[5:105], pl.from_arrow(table).slice(5, 100)):
        assert values.encode(value).size < 5000


# --- memory -----------------------------------------------------------------------------------


def test_bytes_that_mean_nothing_do_not_travel():
    gaps = np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [5], "itemsize": 8})
    inner = np.dtype([("i", gaps, (2,)), ("g", "g")])
    for dtype, used in ((gaps, 1), (inner, 12), (np.dtype("G"), 20)):
        value = np.frombuffer(b"\xaa" * dtype.itemsize * 3, dtype=dtype)
        assert values.encode(value).join().count(b"\xaa") == 3 * used
        assert values.encode(value[0]).join().count(b"\xaa") <= used


def test_arrays_are_not_copied_when_encoded():
    array = np.arange(100_000.0)
    frame = pd.DataFrame({"a": array, "b": array > 5}, copy=False)
    for value in (
        array,
        np.asfortranarray(array.reshape(100, -1)),
        frame,
        frame["a"],
        pa.array(array),
    ):
        tracemalloc.start()
        encoded = values.encode(value)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert encoded.size > 800_000
        assert peak < 200_000


def mapped(encoded):
    fd = os.memfd_create("value")
    try:
        encoded.write(fd)
        return mmap.mmap(fd, encoded.size, flags=mmap.MAP_PRIVATE)
    finally:
        os.close(fd)


def test_arrays_lie_in_a_private_mapping_and_can_be_changed():
    value = {"a": np.arange(1000), "f": pd.DataFrame({"x": np.arange(1000.0), "b": [True] * 1000})}
    blob = mapped(values.encode(value))
    made = values.decode(blob)
    there = np.frombuffer(blob, dtype=np.uint8)
    assert np.shares_memory(made["a"], there)
    assert np.shares_memory(made["f"]["x"].to_numpy(), there)
    del blob, there
    made["a"][0] = 5
    made["f"].loc[0, "x"] = 7.0
    assert made["a"][0] == 5
    assert made["f"]["x"][0] == 7.0


def test_arrays_of_read_only_bytes_can_be_changed():
    blob = values.encode([np.arange(10), pd.Series(np.arange(10.0)), np.zeros((0, 2))]).join()
    array, series, _ = values.decode(blob)
    array[0], series[0] = 5, 7
    assert values.decode(blob)[0][0] == 0


def test_arrays_of_a_parcel_that_lies_askew_are_whole():
    value = [np.arange(100.0), pa.array(range(100)), pl.Series([1, 2]), pd.Series(["x"] * 99)]
    raw = values.encode(value).join()
    for shift in (1, 3, 8):
        blob = memoryview(bytearray(shift) + raw)[shift:]
        assert_alike(values.decode(blob), value)


def test_a_million_strings_take_a_fraction_of_a_second():
    for dtype in ("str", object):
        value = pd.Series([f"word {i}" for i in range(1_000_000)], dtype=dtype)
        started = time.process_time()
        made = travelled(value)
        assert time.process_time() - started < 2  # a tenth of that on an idle machine
        assert_alike(made, value)


# --- what cannot travel -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": np.array([object()])}, r"^value\['a'\] is an array of dtype object.*tolist"),
        (np.ma.masked_array([1], [True]), r"masked.*filled"),
        (np.zeros(1, dtype=[("a", "O")]), "dtype object"),
        (np.zeros(1, dtype={"names": "ab", "formats": ["i4", "i4"], "offsets": [0, 2]}), "overlap"),
        (np.dtype("i4"), "numpy dtype"),
        ({"df": pd.DataFrame({"x": [1, {2}]})}, r"^value\['df'\] column 'x'\[1\] is a set"),
        (pd.DataFrame({"x": pd.arrays.SparseArray([1, 0])}), r"column 'x' is sparse; .*to_dense"),
        (pd.Series([1], index=pd.Index([object()])), r"^value\.index\[0\] is a object"),
        (pd.Series([1], name=frozenset()), r"^value\.name is a frozenset"),
        (pd.DataFrame({frozenset(): [1]}), r"^value\.columns\[0\] is a frozenset"),
        (pd.Series(pd.Categorical([frozenset()])), r"^value\.categories\[0\] is a frozenset"),
        (type("Mine", (pd.DataFrame,), {})({"a": [1]}), "make it a plain DataFrame"),
        (pd.DataFrame(index=range(10**9)), "rows that hold no data"),
        (np.empty((10**9, 0)), "rows that hold no data"),
        (pa.nulls(10**8), "rows that hold no data"),
        ([np.zeros(1)] * 30_000, r"^value\[20000\] is one array or column more"),
        (pl.LazyFrame({"a": [1]}), r"LazyFrame; .*collect"),
        (pl.DataFrame({"o": [object()]}), r"^value column 'o' has the polars dtype Object"),
        (pl.Series([1], dtype=pl.Int128), "Int128.*cast it first"),
        (pa.array([[1]], pa.list_view(pa.int8())), "list_view.*cast it first"),
        (
            pa.table({"u": pa.array([b"0" * 16], pa.uuid())}),
            r"^value column 'u' has the Arrow type",
        ),
        (pa.scalar(1), r"\.as_py\(\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_refused_with_its_place_and_a_remedy(value, message):
    with pytest.raises(values.CannotTravel, match=message):
        values.encode(value)


def test_views_of_arrow_travel_as_plain_strings():
    made = travelled(pa.table({"v": pa.array(["a", None], pa.string_view())}))
    assert made.to_pydict() == {"v": ["a", None]}
    assert made.schema.field("v").type == pa.large_string()


def test_a_frequency_without_a_short_name_stays_behind():
    index = pd.date_range("2020", periods=3, freq=pd.DateOffset(months=2))
    made = travelled(index)
    assert made.freq is None
    assert list(made) == list(index)


def without(libraries, value):
    """What `values.decode` says or makes where some libraries are not installed."""
    program = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split()))
from belljar.guest import values
try:
    made = values.decode(sys.stdin.buffer.read())
    again = values.encode(made).join()
    sys.stdout.buffer.write(again)
except values.CannotTravel as error:
    sys.exit(f"refused: {error}")
"""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, libraries],
        input=values.encode(value).join(),
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("libraries", "value", "message"),
    [
        (
            "pandas",
            {"df": pd.DataFrame()},
            "value['df'] is a pandas DataFrame; install pandas here",
        ),
        ("pandas", pd.NaT, "value is a pandas NaT; install pandas here"),
        ("pyarrow", pa.table({}), "value is a pyarrow table; install pyarrow here"),
        (
            "pyarrow",
            pl.Series([1]),
            "value is a polars table, which travels as Arrow; install pyarrow",
        ),
        ("polars", pl.DataFrame(), "value is a polars table; install polars here"),
    ],
)
def test_where_a_library_is_missing_the_message_names_it(libraries, value, message):
    done = without(libraries, value)
    assert done.returncode == 1
    assert message in done.stderr.decode()


def test_without_pyarrow_strings_of_arrow_become_strings_of_python():
    words = ["é", None, "x" * 50, ""] * 50
    frame = pd.DataFrame(
        {"a": pd.Series(words, dtype="str"), "b": pd.Series(words, dtype="string")}
    )
    frame = pd.concat([frame.iloc[3:90], frame.iloc[1:80]])
    done = without("pyarrow", frame)
    assert done.returncode == 0, done.stderr.decode()
    made = values.decode(done.stdout)
    assert [column.dtype.storage for _, column in made.items()] == ["python", "python"]
    pd.testing.assert_frame_equal(made, frame, check_dtype=False, check_column_type=False)


def test_without_pyarrow_frames_of_numpy_travel_whole():
    pool = specimens.columns(70)
    names = [name for name in pool if "arrow" not in name and name not in ("str", "string")]
    names = [name for name in names if name not in ("category", "ordered")]
    done = without("pyarrow", pd.DataFrame({name: pool[name] for name in names}))
    assert done.returncode == 0, done.stderr.decode()
    made = values.decode(done.stdout)
    made.columns = made.columns.astype("str")
    pd.testing.assert_frame_equal(
        made, pd.DataFrame({name: pool[name] for name in names}), check_column_type=False
    )


# --- hostile parcels --------------------------------------------------------------------------


def parcel_of(skeleton, *buffers):
    text = json.dumps(skeleton).encode()
    return parcel.Encoded(text, [memoryview(buffer) for buffer in buffers]).join()


def frame_of(columns, index=None, names=None):
    index = index or {"name": None, "range": [0, 1, 1]}
    names = names or {"name": None, "range": [0, len(columns), 1]}
    return {"frame": {"data": columns, "columns": names, "index": index, "attrs": None}}


def index_of(column, **more):
    return {"index": {"name": None, "data": column, **more}}


def arrow_of(kind, *nodes):
    return {"arrow": {"type": kind, "chunks": list(nodes)}}


def nested(outer, inner, times):
    for _ in range(times):
        inner = outer(inner)
    return inner


LONGS = np.arange(4, dtype="i8").tobytes()
NUMBERS = {"numbers": ["<i8", 0]}
RANGE = {"index": {"name": None, "range": [0, 2, 1]}}
HOSTILE = {
    # dtypes
    "object": ({"array": {"dtype": "|O8", "shape": [4], "data": 0}}, LONGS),
    "object by name": ({"array": {"dtype": "object", "shape": [4], "data": 0}}, LONGS),
    "python dtype": ({"array": {"dtype": "O", "shape": [4], "data": 0}}, LONGS),
    "dtype of text": ({"array": {"dtype": "i4,O", "shape": [4], "data": 0}}, LONGS),
    "dtype of a list": ({"array": {"dtype": ["<i8"], "shape": [4], "data": 0}}, LONGS),
    "object in a record": (
        {"array": {"dtype": {"fields": [["a", "|O8", 0]], "size": 8}, "shape": [4], "data": 0}},
        LONGS,
    ),
    "field beyond the record": (
        {"array": {"dtype": {"fields": [["a", "<i8", 4]], "size": 8}, "shape": [4], "data": 0}},
        LONGS,
    ),
    "fields that overlap": (
        {
            "array": {
                "dtype": {"fields": [["a", "<i8", 0], ["b", "<i8", 0]], "size": 8},
                "shape": [4],
                "data": 0,
            }
        },
        LONGS,
    ),
    "records without end": (
        {
            "array": {
                "dtype": nested(lambda d: {"fields": [["a", d, 0]], "size": 8}, "<i8", 50),
                "shape": [4],
                "data": 0,
            }
        },
        LONGS,
    ),
    "an item of 2**60 bytes": (
        {"array": {"dtype": {"item": "<i8", "shape": [2**57]}, "shape": [0], "data": 0}},
        b"",
    ),
    "a text of 4 GB": ({"array": {"dtype": "<U999999999", "shape": [0], "data": 0}}, b""),
    # shapes
    "larger than its bytes": ({"array": {"dtype": "<i8", "shape": [5], "data": 0}}, LONGS),
    "smaller than its bytes": ({"array": {"dtype": "<i8", "shape": [3], "data": 0}}, LONGS),
    "a product that wraps": (
        {"array": {"dtype": "<i8", "shape": [2**32, 2**32 + 4], "data": 0}},
        LONGS,
    ),
    "negative": ({"array": {"dtype": "<i8", "shape": [-1, -4], "data": 0}}, LONGS),
    "too many dimensions": ({"array": {"dtype": "<i8", "shape": [4] + [1] * 40, "data": 0}}, LONGS),
    "a shape of truth": ({"array": {"dtype": "<i8", "shape": [4, True], "data": 0}}, LONGS),
    "endless nothing": ({"array": {"dtype": "<i8", "shape": [2**61, 0], "data": 0}}, b""),
    "endless items of no width": ({"array": {"dtype": "|S0", "shape": [2**40], "data": 0}}, b""),
    # items
    "neither true nor false": ({"array": {"dtype": "|b1", "shape": [4], "data": 0}}, b"\0\1\2\1"),
    "a scalar neither true nor false": ({"numpy": ["|b1", "80"]},),
    "truth in a record": (
        {
            "array": {
                "dtype": {"fields": [["a", {"item": "|b1", "shape": [2]}, 0]], "size": 8},
                "shape": [4],
                "data": 0,
            }
        },
        b"\xff" * 32,
    ),
    "not a code point": ({"array": {"dtype": "<U8", "shape": [1], "data": 0}}, b"\xff" * 32),
    "not a code point, swapped": (
        {"array": {"dtype": ">U8", "shape": [1], "data": 0}},
        b"\xff" * 32,
    ),
    "a scalar too long": ({"numpy": ["<i8", "00" * 9]},),
    "a scalar of an object": ({"numpy": ["|O8", "00" * 8]},),
    "a scalar text of a number": ({"numpy": ["str", 5]},),
    "texts of numbers": ({"array": {"shape": [1], "texts": [[5]]}},),
    # columns
    "a column of objects by address": (frame_of([{"numbers": ["|O8", 0]}]), LONGS),
    "a column of texts by address": (frame_of([{"numbers": ["<U2", 0]}]), LONGS),
    "a column of days": (frame_of([{"numbers": ["<M8[D]", 0]}]), LONGS),
    "columns of two lengths": (
        frame_of(
            [{"numbers": ["<i8", 0]}, {"numbers": ["<i4", 1]}], {"name": None, "range": [0, 4, 1]}
        ),
        LONGS,
        LONGS,
    ),
    "one buffer twice": (frame_of([NUMBERS, NUMBERS], {"name": None, "range": [0, 4, 1]}), LONGS),
    "more names than columns": (frame_of([], None, {"name": None, "range": [0, 9, 1]}),),
    "an index of another length": (frame_of([NUMBERS], {"name": None, "range": [0, 5, 1]}), LONGS),
    "a name that is a list": (index_of(NUMBERS) | {"x": 1}, LONGS),
    "an unhashable name": ({"index": {"name": [1], "data": NUMBERS}}, LONGS),
    "a code out of range": (index_of({"categories": [RANGE, False, "<i8", 0]}), LONGS),
    "a code below": (index_of({"categories": [RANGE, False, "|i1", 0]}), b"\xfe"),
    "codes of fractions": (index_of({"categories": [RANGE, False, "<f8", 0]}), LONGS),
    "categories twice": (
        index_of({"categories": [index_of({"numbers": ["<i8", 0]}), False, "|i1", 1]}),
        bytes(16),
        b"\0",
    ),
    "categories of lists": (
        index_of({"categories": [index_of({"objects": [[1], [2]]}), False, "|i1", 0]}),
        b"\0",
    ),
    "categories that are none": (index_of({"categories": [5, False, "|i1", 0]}), b"\0"),
    "a mask of another length": (index_of({"masked": ["<i8", 0, 1]}), LONGS, b"\0"),
    "a mask that is neither": (index_of({"masked": ["<i8", 0, 1]}), LONGS, b"\0\0\0\2"),
    "a masked half": (index_of({"masked": ["<f2", 0, 1]}), b"\0\0", b"\0"),
    "strings of numbers": (index_of({"strings": ["python", "NA", {"objects": [1, 2]}]}),),
    "strings of bytes": (
        index_of({"strings": ["pyarrow", "nan", {"type": "binary", "chunks": []}]}),
    ),
    "strings stored elsewhere": (index_of({"strings": ["pickle", "NA", {"objects": []}]}),),
    "a zone that is a path": (index_of({"zoned": ["ns", ["zone", "../../etc/passwd"], 0]}), LONGS),
    "a unit unheard of": (index_of({"zoned": ["fs", ["zone", "UTC"], 0]}), LONGS),
    "a frequency that is a path": (index_of({"periods": ["../D", 0]}), LONGS),
    "a frequency that does not fit": (index_of({"numbers": ["<M8[ns]", 0]}, freq="ME"), LONGS),
    "a frequency that takes for ever": (
        index_of({"numbers": ["<M8[s]", 0]}, freq="B"),
        np.arange(200_000, dtype="i8").tobytes(),
    ),
    "intervals backwards": (
        index_of(
            {
                "intervals": [
                    index_of({"numbers": ["<i8", 0]}),
                    index_of({"numbers": ["<i8", 1]}),
                    "left",
                ]
            }
        ),
        LONGS,
        LONGS[::-1],
    ),
    "a range without end": (RANGE | {"index": {"name": None, "range": [0, 2**62, 1]}},),
    "a range of nothing by nothing": ({"index": {"name": None, "range": [0, 5, 0]}},),
    "a level code out of range": (
        {"index": {"levels": [[RANGE["index"], "<i8", 0]], "names": [None]}},
        LONGS,
    ),
    "levels of two lengths": (
        {
            "index": {
                "levels": [[RANGE["index"], "|i1", 0], [RANGE["index"], "|i1", 1]],
                "names": [None, None],
            }
        },
        b"\0",
        b"\0\0",
    ),
    "a thing that is missing": ({"missing": "__class__"},),
    "a moment of a number": ({"timestamp": ["<i8", 5, None]},),
    "an interval of texts": ({"interval": ["a", "b", "left"]},),
    "an unknown column": (index_of({"pickle": 0}), LONGS),
    # Arrow
    "offsets beyond the letters": (
        arrow_of("string", {"n": 1, "b": [None, 0, 1]}),
        np.array([0, 99], dtype="i4").tobytes(),
        b"ab",
    ),
    "offsets that go back": (
        arrow_of("large_string", {"n": 2, "b": [None, 0, 1]}),
        np.array([0, 2, 1], dtype="i8").tobytes(),
        b"ab",
    ),
    "offsets below zero": (
        arrow_of("large_string", {"n": 1, "b": [None, 0, 1]}),
        np.array([-5, 2], dtype="i8").tobytes(),
        b"ab",
    ),
    "letters that are none": (
        arrow_of("string", {"n": 1, "b": [None, 0, 1]}),
        np.array([0, 2], dtype="i4").tobytes(),
        b"\xff\xff",
    ),
    "too few offsets": (arrow_of("string", {"n": 9, "b": [None, 0, 1]}), bytes(8), b""),
    "too few validity bits": (arrow_of("int8", {"n": 100, "b": [0, 1]}), b"\xff", bytes(100)),
    "too few bits": (arrow_of("bool", {"n": 100, "b": [None, 0]}), b"\xff"),
    "2**47 nulls": (arrow_of("null", {"n": 2**47, "b": []}),),
    "nulls in many pieces": (arrow_of("null", *[{"n": 2**23, "b": []}] * 9),),
    "structs without fields": (arrow_of({"struct": []}, {"n": 2**40, "b": [None], "c": []}),),
    "lists of no size": (
        arrow_of(
            {"fixed_list": ["x", True, "int8", 0]},
            {"n": 2**40, "b": [None], "c": [{"n": 0, "b": [None, 0]}]},
        ),
        b"",
    ),
    "bytes of no width": (arrow_of({"fixed": 0}, {"n": 2**40, "b": [None, 0]}), b""),
    "a list beyond its items": (
        arrow_of(
            {"list": ["x", True, "int8"]}, {"n": 1, "b": [None, 0], "c": [{"n": 1, "b": [None, 1]}]}
        ),
        np.array([0, 99], dtype="i4").tobytes(),
        b"a",
    ),
    "a struct with a short child": (
        arrow_of(
            {"struct": [["a", True, "int8"]]},
            {"n": 5, "b": [None], "c": [{"n": 1, "b": [None, 0]}]},
        ),
        b"a",
    ),
    "an index beyond the dictionary": (
        arrow_of(
            {"dictionary": ["int8", "string", False]},
            {"n": 1, "b": [None, 0], "d": {"n": 0, "b": [None, 1, 2]}},
        ),
        b"\x05",
        bytes(4),
        b"",
    ),
    "a dictionary by text": (
        arrow_of(
            {"dictionary": ["string", "string", False]},
            {"n": 0, "b": [None, 0, 1], "d": {"n": 0, "b": [None, 2, 3]}},
        ),
        bytes(4),
        b"",
        bytes(4),
        b"",
    ),
    "types without end": (arrow_of(nested(lambda t: {"list": ["x", True, t]}, "int8", 30)),),
    "an extension type": (arrow_of({"extension": ["arrow.py_extension_type", "int8"]}),),
    "no such type": (arrow_of("dense_union"),),
    "a decimal of 500 digits": (arrow_of({"decimal": [128, 500, 2]}),),
    "a decimal larger than its digits": (
        arrow_of({"decimal": [128, 2, 0]}, {"n": 1, "b": [None, 0]}),
        b"\x7f" * 16,
    ),
    "columns of two lengths in Arrow": (
        {
            "table": {
                "batch": False,
                "columns": [
                    ["a", True, {"type": "int8", "chunks": [{"n": n, "b": [None, i]}]}]
                    for i, n in enumerate((1, 2))
                ],
            }
        },
        b"a",
        b"ab",
    ),
    # polars
    "a polars list of a small size": (
        {"polars": {"series": {"name": "", "dtype": None, "type": {"map": []}, "chunks": []}}},
    ),
    "polars names twice": (
        {
            "polars": {
                "columns": [
                    {
                        "name": "a",
                        "dtype": None,
                        "type": "int8",
                        "chunks": [{"n": 1, "b": [None, i]}],
                    }
                    for i in range(2)
                ]
            }
        },
        b"a",
        b"b",
    ),
    "a polars enum of numbers": (
        {"polars": {"series": {"name": "", "dtype": {"enum": [1]}, "type": "int8", "chunks": []}}},
    ),
    "a dictionary of lists for polars": (
        {
            "polars": {
                "series": {
                    "name": "",
                    "dtype": None,
                    "type": {"dictionary": ["int8", {"large_list": ["x", True, "int8"]}, False]},
                    "chunks": [],
                }
            }
        },
    ),
}


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_parcel_is_refused_with_little_memory(case):
    skeleton, *buffers = case
    blob = bytearray(parcel_of(skeleton, *buffers))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with pytest.raises(values.CannotTravel, match=r"^value"):
            values.decode(blob)
        peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert peak < 64 * len(blob) + 5_000_000  # some libraries are imported on the way


@pytest.mark.parametrize(
    ("skeleton", "buffers"),
    [
        (
            [{"array": {"dtype": "<i8", "shape": [0], "data": i}} for i in range(20_000)],
            [b""] * 20_000,
        ),
        ([{"index": {"name": None, "range": [0, 0, 1]}}] * 19_000, []),
        ([frame_of([])] * 9_000, []),
        (
            frame_of(
                [{"numbers": ["<i8", i]} for i in range(15_000)], {"name": None, "range": [0, 0, 1]}
            ),
            [b""] * 15_000,
        ),
        (frame_of([{"objects": []}] * 15_000, {"name": None, "range": [0, 0, 1]}), []),
        (arrow_of("null", *[{"n": 1, "b": []}] * 15_000), []),
        ([arrow_of("null", {"n": 1, "b": []})] * 15_000, []),
        ([{"polars": {"columns": []}}] * 15_000, []),
        ([{"timestamp": ["<M8[ns]", 0, ["zone", "Europe/Berlin"]]}] * 50_000, []),
        ([{"period": [0, "D"]}] * 50_000, []),
        ([{"numpy": ["<i8", "00" * 8]}] * 50_000, []),
    ],
    ids=lambda value: (
        json.dumps(value)[:40]
        if value and type(value[0] if type(value) is list else 0) is not bytes
        else ""
    ),
)
def test_many_small_things_take_a_bounded_time_and_memory(skeleton, buffers):
    blob = bytearray(parcel_of(skeleton, *buffers))
    values.decode(values.encode([pd.DataFrame(), pl.DataFrame(), pa.nulls(1)]).join())  # imports
    tracemalloc.start()
    started = time.process_time()
    values.decode(blob)
    spent = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spent < 20  # tracing takes most of it
    assert peak < 64 * len(blob) + 1_000_000


REGRESSIONS = sorted((Path(__file__).parent / "regressions" / "values").glob("*.bin"))


def test_what_the_fuzzer_once_found_is_refused_or_a_value():
    for path in REGRESSIONS:
        fuzz_values.attempt(path.read_bytes())
