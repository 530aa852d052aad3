"""Arrays and tables travel with all that they are; a parcel that lies is refused."""

import mmap
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specimens
from belljar.protocol import values


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
    elif isinstance(value, (set, frozenset)):
        assert made == value
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
        unsortable = {"object mixed", "arrow list", "arrow dictionary", "big-endian"}
        keys = [pool[name] for name in index if name not in unsortable] or [pool["int64"]]
        frame.index = pd.MultiIndex.from_arrays(keys)
    part = draw(st.sampled_from([slice(None), slice(1, 3), slice(None, None, 2), slice(66, None)]))
    return frame.iloc[part]


@given(frames())
@settings(max_examples=150)
def test_any_frame_travels_whole(value):
    assert_alike(travelled(value), value)


@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from(sorted(specimens.arrow_arrays())))
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
        os.write(fd, encoded.join())
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
        ({"df": pd.DataFrame({"x": [1, object]})}, r"^value\['df'\] column 'x'\[1\] is a type"),
        (pd.DataFrame({"x": pd.arrays.SparseArray([1, 0])}), r"column 'x' is sparse; .*to_dense"),
        (pd.Series([1], index=pd.Index([object()])), r"^value\.index\[0\] is a object"),
        (pd.Series([1], name=len), r"^value\.name is a builtin_function"),
        (pd.DataFrame({len: [1]}), r"^value\.columns\[0\] is a builtin_function"),
        (pd.Series(pd.Categorical([len])), r"^value\.categories\[0\] is a builtin_function"),
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
from belljar.protocol import values
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


def test_strings_that_pass_a_place_without_pyarrow_come_back_as_they_were():
    words = ["é", None, "x" * 50, ""] * 50
    frame = pd.DataFrame(
        {"a": pd.Series(words, dtype="str"), "b": pd.Series(words, dtype="string")}
    )
    frame = pd.concat([frame.iloc[3:90], frame.iloc[1:80]])
    done = without("pyarrow", frame)
    assert done.returncode == 0, done.stderr.decode()
    assert_alike(values.decode(done.stdout), frame)


def test_without_pyarrow_frames_of_numpy_travel_whole():
    pool = specimens.columns(70)
    # Which strings of Python were meant to be so is not known there.
    names = [name for name in pool if "arrow" not in name and "python" not in name]
    frame = pd.DataFrame({name: pool[name] for name in names})
    done = without("pyarrow", frame)
    assert done.returncode == 0, done.stderr.decode()
    assert_alike(values.decode(done.stdout), frame)
