"""Values of every kind that can travel, by name: for round trips, and as seeds of the fuzzer."""

import datetime as dt
import decimal
import functools
import uuid
import zoneinfo
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

ODD_LABELS = pd.Index(
    [1, 2.5, 2**70, "1", b"1", (1, ("x", bytes(2000))), dt.date(2020, 1, 1), decimal.Decimal(3)],
    dtype=object,
    tupleize_cols=False,
)
UNHASHABLE = ("object mixed", "arrow list", "arrow dictionary", "big-endian")


def plain():
    return {
        "leaves": [None, True, 0, -1, 2**70, 1.5, float("nan"), "x", "\ud800", b"b", 1j],
        "containers": {"a": [1, (2, [3])], "\udfff": {}, "t": ()},
        "floats": [0.5] * 70,
        "ints": list(range(70)),
        "texts": [f"é{i}" for i in range(70)],
        "long text": "ä" * 5000,
        "long bytes": bytes(5000),
        "moments": [
            dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
            dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
            dt.date(2024, 1, 1),
            dt.time(1, 2, 3, 4, tzinfo=dt.UTC),
            dt.timedelta(days=-1, microseconds=5),
        ],
        "keyed": {1: "a", (2, 3): [4], None: {5}, frozenset(): 2.5, "t": range(9)},
        "many keys": {n: n * 1.5 for n in range(70)},
        "ranges": [range(5), range(10, -(2**70), -3)],
        "paths": [Path("/a/b"), PurePosixPath("\udcff"), PureWindowsPath("C:/x")],
        "exact": [decimal.Decimal("1.50"), decimal.Decimal("sNaN"), uuid.UUID(int=5)],
    }


def sets():
    """They may be in another order when they come back."""
    return {
        "numbers": set(range(70)),
        "texts": frozenset(f"w{i}" for i in range(70)),
        "mixed": {1, 2.5, "a", None, b"x", (1, "a"), frozenset((1, 2)), dt.date(2024, 1, 1)},
        "as keys": {frozenset(("a", "b")): {"c", "d"}},
    }


def numpy():
    grid = np.arange(24.0).reshape(2, 3, 4)
    record = np.dtype([("a", ">i4"), ("b", "U5", (2,)), ("c", [("d", "?"), ("e", "f2")])])
    spaced = np.dtype({"names": ["a"], "formats": ["<i2"], "offsets": [6], "itemsize": 16})
    return {
        "grid": grid,
        "fortran": np.asfortranarray(grid),
        "strided": grid[:, ::2, 1:],
        "backwards": grid[::-1],
        "0-d": np.array(5, dtype=">u2"),
        "empty": np.empty((0, 3), dtype="<M8[D]"),
        "no width": np.zeros((5, 0, 2), dtype="S3"),
        "nothing": np.ndarray((3,), "V0", bytearray()),
        "bool": np.array([True, False]),
        "half": np.array([1.5, np.nan], dtype="f2"),
        "long double": np.array([1.5], dtype="g"),
        "complex": np.array([1 + 2j], dtype=">c8"),
        "text": np.array(["a", "\U0001f600bc", ""]),
        "bytes": np.array([b"a", b"bc"]),
        "times": np.array(["2020-01-01T00:00", "NaT"], dtype="M8[m]"),
        "spans": np.array([1, -5], dtype="m8[25us]"),
        "untyped times": np.array(["NaT"], dtype="M8"),
        "void": np.array([b"abc"], dtype="V3"),
        "records": np.ones(3, dtype=record),
        "spaced records": np.ones((2, 2), dtype=spaced),
        "no fields": np.zeros(2, dtype=[]),
        "StringDType": np.array([["a", "b\0c"]], dtype=np.dtypes.StringDType()),
        "scalars": [
            *(np.int8(-3), np.uint64(2**64 - 1), np.float32(0.1), np.longdouble(1.25)),
            *(np.bool_(True), np.complex128(1j), np.str_("a\0"), np.bytes_(b"a\0"), np.str_()),
            *(np.datetime64("2020-01-01", "ns"), np.timedelta64(5, "h"), np.datetime64("NaT")),
            *(np.zeros(1, dtype=record)[0], np.void(b"abc"), np.str_("x" * 2000)),
        ],
    }


def columns(rows):
    """A column of every dtype that can travel."""
    words = [None if i % 5 == 1 else f"w{i % 7}é" for i in range(rows)]
    full = [word or "" for word in words]
    numbers = np.arange(rows)
    odd = numbers % 2 == 1
    times = pd.date_range("2024-10-26", periods=rows, freq="h")
    return {
        "int64": pd.Series(numbers),
        "uint8": pd.Series(numbers.astype("u1")),
        "float32": pd.Series(numbers.astype("f4")),
        "big-endian": pd.Series(numbers.astype(">f8")),
        "complex": pd.Series(numbers * 1j),
        "bool": pd.Series(odd),
        "datetime": pd.Series(times.as_unit("s")),
        "datetime ns": pd.Series(times.as_unit("ns")).where(odd),
        "zone": pd.Series(times.tz_localize("UTC").tz_convert("Europe/Berlin")),
        "offset": pd.Series(times.tz_localize(dt.timezone(dt.timedelta(hours=-5)))),
        "utc": pd.Series(times.tz_localize("UTC")),
        "timedelta": pd.Series(pd.to_timedelta(numbers, unit="s")),
        "category": pd.Series(pd.Categorical(words)),
        "ordered": pd.Series(pd.Categorical(full, sorted(set(full)), ordered=True)),
        "number category": pd.Series(pd.Categorical(numbers % 3)),
        "time category": pd.Series(pd.Categorical(times)),
        "Int64": pd.Series(numbers, dtype="Int64").mask(odd),
        "UInt8": pd.Series(numbers % 9, dtype="UInt8").mask(odd),
        "Float32": pd.Series(numbers, dtype="Float32").mask(odd),
        "boolean": pd.Series(odd, dtype="boolean").mask(odd),
        "str": pd.Series(words, dtype="str"),
        "str python": pd.Series(words, dtype=pd.StringDtype("python", na_value=np.nan)),
        "string": pd.Series(words, dtype="string[pyarrow]"),
        "string python": pd.Series(words, dtype="string[python]"),
        "object texts": pd.Series(full, dtype=object),
        "object missing": pd.Series(
            [[None, np.nan, pd.NA, pd.NaT, "x"][i % 5] for i in range(rows)], dtype=object
        ),
        "object mixed": pd.Series(
            [
                [1, "a", None, [1, 2], (3,), {"k": 1.5}, decimal.Decimal(1)][i % 7]
                for i in range(rows)
            ],
            dtype=object,
        ),
        "object moments": pd.Series(
            [[dt.date(2020, 1, 1), pd.Timestamp("2020", tz=BERLIN)][i % 2] for i in range(rows)],
            dtype=object,
        ),
        "period": pd.Series(pd.period_range("2020", periods=rows, freq="M")),
        "period QS": pd.Series(pd.period_range("2020", periods=rows, freq="Q-NOV")),
        "interval": pd.Series(pd.interval_range(0, rows))
        if rows
        else pd.Series(dtype="interval[int64, right]"),
        "interval open": pd.Series(
            pd.arrays.IntervalArray.from_breaks(np.arange(rows + 1.0), closed="neither")
        ),
        "interval time": pd.Series(
            pd.arrays.IntervalArray.from_arrays(times, times + pd.Timedelta(5), closed="left")
        ),
        "arrow int": pd.Series(numbers, dtype="int8[pyarrow]"),
        "arrow time": pd.Series(times, dtype=pd.ArrowDtype(pa.timestamp("us", "Europe/Berlin"))),
        "arrow list": pd.Series(
            pa.array([[i, None] for i in range(rows)], pa.list_(pa.int16())),
            dtype=pd.ArrowDtype(pa.list_(pa.int16())),
        ),
        "arrow dictionary": pd.Series(
            pd.arrays.ArrowExtensionArray(pa.array(words, pa.string()).dictionary_encode())
        ),
    }


def pandas():
    few, many = pd.DataFrame(columns(7)), pd.DataFrame(columns(90))
    grid = pd.DataFrame(
        np.arange(6.0).reshape(2, 3), columns=[1, ("a", 2), dt.datetime(2020, 1, 1)]
    )
    pairs = pd.MultiIndex.from_product([["x", "y"], pd.date_range("2020", periods=2), [1, 2]])
    pairs.names = ["word", None, ("third", 3)]
    noted = grid.copy()
    noted.attrs = {"source": "x", "n": [1, 2]}
    return {
        "few": few,
        "many": many,
        "none": few.iloc[:0],
        "slice": many.iloc[5:80:3],
        "middle": many.iloc[10:85],
        "grid": grid,
        "transposed": grid.T,
        "noted": noted,
        "nothing": pd.DataFrame(),
        "rows only": pd.DataFrame(index=range(5)),
        "columns only": pd.DataFrame(columns=["a", "b"]),
        "duplicates": pd.concat([few[["str"]], few[["str"]], few[["int64"]]], axis=1),
        "wide": pd.DataFrame(np.arange(240).reshape(2, 120)),
        "wide mixed": pd.concat([few[["int64", "str", "bool"]]] * 40, axis=1),
        "rows of pairs": pd.DataFrame({"v": range(8)}, index=pairs),
        "columns of pairs": pd.DataFrame([range(8)], columns=pairs),
        "missing in pairs": many.set_index(["str", "category", "Int64"])[["bool"]],
        "range": pd.DataFrame({"a": range(3)}, index=pd.RangeIndex(10, 4, -2, name="r")),
        "business days": pd.Series(range(9), pd.date_range("2020", periods=9, freq="B"), name="s"),
        "ticks": pd.Series(range(9), pd.timedelta_range(0, periods=9, freq="90s")),
        "zoned hours": pd.Series(
            1, pd.date_range("2024-10-26 23:00", periods=30, freq="2h", tz="Europe/Berlin")
        ),
        "days of seconds": pd.date_range("2024", periods=3, unit="s", name="d"),
        "months backwards": pd.date_range("2024-05-31", periods=4, freq="-1ME", tz="UTC"),
        "zoned days": pd.Series(1, pd.date_range("2024-03-28", periods=6, tz="Europe/Berlin")),
        "named": pd.Series([1], name=("a", 2), index=["x"]),
        "indexes": [pd.Index(column, name=name) for name, column in columns(5).items()],
        "series": {name: column for name, column in columns(70).items() if "object" in name},
        "arrays": [
            pd.array([1, None]),
            pd.Categorical(["a", "b"]),
            pd.array([1.5, 2.5], dtype="f8"),
        ],
        "odd labels": pd.DataFrame(
            {"c": pd.Categorical.from_codes([2, 0, -1], categories=ODD_LABELS)},
            index=pd.MultiIndex.from_arrays([[2**62, 1.5, None], ODD_LABELS[-3:]]),
        ),
        "levels of every kind": [
            pd.MultiIndex(levels=[column.drop_duplicates()], codes=[[0, -1]])
            for name, column in columns(5).items()
            if name not in UNHASHABLE
        ],
        "scalars": [
            *(
                pd.NaT,
                pd.NA,
                pd.Timestamp("2020", tz=BERLIN),
                pd.Timestamp("2020-01-01T00:00:00.5"),
            ),
            *(pd.Timedelta(5, "ns"), pd.Period("2020-01", "M"), pd.Interval(1.5, 2.5, "both")),
            *(
                pd.Timestamp(dt.datetime(2024, 10, 27, 2, 30), tz=BERLIN, fold=1),
                pd.Interval(pd.Timestamp(0), pd.Timestamp(1)),
            ),
        ],
    }


def arrow_arrays(rows=20):
    def some(make):
        return [None if i % 4 == 1 else make(i) for i in range(rows)]

    struct = pa.struct([("a", pa.string()), ("b", pa.list_(pa.bool_()))])
    return {
        "null": pa.nulls(rows),
        "bool": pa.array(some(lambda i: i % 3 == 0)),
        "int": pa.array(some(lambda i: i), pa.uint16()),
        "full": pa.array(range(rows), pa.int64()),
        "half": pa.array(some(lambda i: np.float16(i)), pa.float16()),
        "string": pa.array(some(lambda i: "é" * i), pa.string()),
        "large binary": pa.array(some(lambda i: bytes(i)), pa.large_binary()),
        "fixed": pa.array(some(lambda i: b"abc"), pa.binary(3)),
        "decimal": pa.array(some(lambda i: decimal.Decimal(i) / 4), pa.decimal128(20, 3)),
        "decimal256": pa.array(some(lambda i: decimal.Decimal(i)), pa.decimal256(60, 3)),
        "date": pa.array(some(lambda i: dt.date(2020, 1, 1)), pa.date32()),
        "time": pa.array(some(lambda i: i), pa.time64("ns")),
        "timestamp": pa.array(some(lambda i: i), pa.timestamp("ms", "+02:00")),
        "duration": pa.array(some(lambda i: i), pa.duration("us")),
        "interval": pa.array(some(lambda i: (i, i, i)), pa.month_day_nano_interval()),
        "list": pa.array(some(lambda i: list(range(i % 3))), pa.list_(pa.int8())),
        "large list": pa.array(some(lambda i: ["x"] * (i % 3)), pa.large_list(pa.string())),
        "fixed list": pa.array(some(lambda i: [i, None]), pa.list_(pa.int8(), 2)),
        "struct": pa.array(some(lambda i: {"a": "x", "b": [True]}), struct),
        "no fields": pa.array(some(lambda i: {}), pa.struct([])),
        "map": pa.array(some(lambda i: [("k", i)]), pa.map_(pa.string(), pa.int32())),
        "dictionary": pa.array(some(lambda i: f"w{i % 3}")).dictionary_encode(),
        "list of dictionary": pa.array(
            some(lambda i: ["a", "b"][: i % 3]), pa.list_(pa.dictionary(pa.int8(), pa.string()))
        ),
    }


def arrow():
    arrays = arrow_arrays()
    table = pa.table(arrays)
    return {
        **arrays,
        "table": table,
        "slice": table.slice(3, 10),
        "batch": table.slice(5).to_batches()[0],
        "chunks": pa.concat_tables([table, table.slice(2, 5), table.slice(0, 0)]),
        "chunked": pa.chunked_array([[1, 2], [3]]),
        "no chunks": pa.chunked_array([], pa.int8()),
        "no columns": pa.table({}),
        "not null": pa.table([[1]], schema=pa.schema([pa.field("é", pa.int8(), nullable=False)])),
    }


def polars():
    def frame(rows):
        def some(make):
            return [None if i % 4 == 1 else make(i) for i in range(rows)]

        enum = pl.Enum(["a", "b"])
        nested = pl.Struct({"e": enum, "l": pl.List(enum), "i": pl.Int8})
        zoned = pl.Datetime("ms", "Europe/Berlin")
        return pl.DataFrame(
            {
                "int": pl.Series(some(lambda i: i), dtype=pl.Int16),
                "float": pl.Series(some(lambda i: i / 2), dtype=pl.Float32),
                "bool": pl.Series(some(lambda i: i % 3 == 0), dtype=pl.Boolean),
                "str": pl.Series(some(lambda i: "é" * i), dtype=pl.String),
                "bytes": pl.Series(some(lambda i: b"x" * i), dtype=pl.Binary),
                "cat": pl.Series(some(lambda i: f"w{i % 3}"), dtype=pl.Categorical),
                "enum": pl.Series(some(lambda i: "ab"[i % 2]), dtype=enum),
                "date": pl.Series(some(lambda i: dt.date(2020, 1, 1)), dtype=pl.Date),
                "time": pl.Series(some(lambda i: dt.time(1, i % 60)), dtype=pl.Time),
                "zoned": pl.Series(some(lambda i: dt.datetime(2020, 1, 1)), dtype=zoned),
                "span": pl.Series(some(lambda i: dt.timedelta(i)), dtype=pl.Duration("ns")),
                "decimal": pl.Series(some(lambda i: decimal.Decimal(i)), dtype=pl.Decimal(12, 2)),
                "list": pl.Series(some(lambda i: [i]), dtype=pl.List(pl.Int8)),
                "array": pl.Series(some(lambda i: ["a", "b"]), dtype=pl.Array(pl.String, 2)),
                "struct": pl.Series(some(lambda i: {"e": "a", "l": ["b"], "i": 1}), dtype=nested),
                "null": pl.Series([None] * rows, dtype=pl.Null),
            }
        )

    return {
        "frame": frame(10),
        "chunks": frame(10).vstack(frame(5)),
        "slice": frame(20).slice(3, 9),
        "none": frame(0),
        "nothing": pl.DataFrame(),
        "series": frame(9)["str"],
        "odd name": pl.Series("a\0é", [1]),
    }


KINDS = {
    "plain": plain,
    "sets": sets,
    "numpy": numpy,
    "pandas": pandas,
    "arrow": arrow,
    "polars": polars,
}


@functools.cache
def everything():
    return {
        f"{kind}: {name}": value for kind, make in KINDS.items() for name, value in make().items()
    }
