"""Parcels of arrays and tables that lie about themselves are refused, at little cost."""

import itertools
import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fuzz_values
import specimens
from belljar.protocol import parcel, values
from project import REGRESSIONS


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
FOUR = {"name": None, "range": [0, 4, 1]}
NONE = {"name": None, "range": [0, 0, 1]}
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
        frame_of([{"numbers": ["<i8", 0]}, {"numbers": ["<i4", 1]}], FOUR),
        LONGS,
        LONGS,
    ),
    "one buffer twice": (frame_of([NUMBERS, NUMBERS], FOUR), LONGS),
    "more names than columns": (frame_of([], None, {"name": None, "range": [0, 9, 1]}),),
    "an index of another length": (frame_of([NUMBERS], {"name": None, "range": [0, 5, 1]}), LONGS),
    "a name that is a list": (index_of(NUMBERS) | {"x": 1}, LONGS),
    "an unhashable name": ({"index": {"name": [1], "data": NUMBERS}}, LONGS),
    "a column whose name cannot be shown": (
        frame_of(
            [{"pickle": 1}],
            None,
            {"name": None, "data": {"objects": [{"timestamp": ["<M8[s]", 2**62, None]}]}},
        ),
    ),
    "a column below a year that cannot be shown": (
        frame_of([{"pickle": 1}], None, {"name": None, "data": {"numbers": ["<M8[s]", 0]}}),
        np.array([2**62], dtype="i8").tobytes(),
    ),
    "a code out of range": (index_of({"categories": [RANGE, False, "<i8", 0]}), LONGS),
    "a code below": (index_of({"categories": [RANGE, False, "|i1", 0]}), b"\xfe"),
    "codes of fractions": (index_of({"categories": [RANGE, False, "<f8", 0]}), LONGS),
    "categories twice": (
        index_of({"categories": [index_of({"numbers": ["<i8", 0]}), False, "|i1", 1]}),
        bytes(16),
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
    "periods that pandas warns of": (index_of({"periods": ["B", 0]}), LONGS),
    "a period that pandas warns of": ({"period": [0, "2B"]},),
    "a frequency that does not fit": (index_of({"numbers": ["<M8[ns]", 0]}, freq="ME"), LONGS),
    "a frequency of texts": (index_of({"objects": ["2020-01-01"]}, freq="D"),),
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
        ([{"index": NONE}] * 19_000, []),
        ([frame_of([])] * 9_000, []),
        (
            frame_of([{"numbers": ["<i8", i]} for i in range(15_000)], NONE),
            [b""] * 15_000,
        ),
        (frame_of([{"objects": []}] * 15_000, NONE), []),
        (arrow_of("null", *[{"n": 1, "b": []}] * 15_000), []),
        ([arrow_of("null", {"n": 1, "b": []})] * 15_000, []),
        ([{"polars": {"columns": []}}] * 15_000, []),
        ([{"timestamp": ["<M8[ns]", 0, ["zone", "Europe/Berlin"]]}] * 50_000, []),
        ([{"period": [0, "D"]}] * 50_000, []),
        ([{"numpy": ["<i8", "00" * 8]}] * 50_000, []),
    ],
    ids=lambda value: str(value)[:30],
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
    assert peak < 64 * len(blob) + 4096 * parcel.MAX_ARRAYS


# --- items that all have one hash -------------------------------------------------------------

COLLIDING = 50_000
PRIME = 2**61 - 1  # the hash of a number is what is left of it


def whole_numbers():
    """All alike to the table of pandas, which folds 64 bits into 32; not in order."""
    high = np.arange(COLLIDING, 0, -1, dtype="u8") * 2
    low = high >> 1
    for _ in range(4):
        low = (high >> 1) ^ (low << 11 & 0xFFFFFFFF)
    return (high << 32 | low).astype("i8").tobytes()


def words():
    """All alike to the table that pandas has for strings: 31 * "A" + "a" is 31 * "B" + "B"."""
    pairs = itertools.product(("BB", "Aa"), repeat=16)
    return ["".join(word) for word in itertools.islice(pairs, COLLIDING)]


def colliding_columns():
    numbers, text = whole_numbers(), "".join(words()).encode()
    texts = {"texts": {"lengths": 0, "text": 1}}, np.full(COLLIDING, 32, "i4").tobytes(), text
    multiples = [n * PRIME for n in range(COLLIDING, 0, -1)]
    chunk = {"n": COLLIDING, "b": [None, 0]}
    return {
        "ints": ({"objects": [{"int": hex(n)} for n in multiples]},),
        "decimals": ({"objects": [{"decimal": str(n)} for n in multiples]},),
        "uuids": ({"objects": [{"uuid": f"{n:x}"} for n in multiples]},),
        "tuples": ({"objects": [{"tuple": [{"int": hex(n)}]} for n in multiples]},),
        "numbers": (NUMBERS, numbers),
        "times": ({"numbers": ["<M8[ns]", 0]}, numbers),
        "zoned": ({"zoned": ["ns", ["zone", "UTC"], 0]}, numbers),
        "periods": ({"periods": ["D", 0]}, numbers),
        "masked": ({"masked": ["<i8", 0, 1]}, numbers, bytes(COLLIDING)),
        "arrow": ({"arrow": {"type": "int64", "chunks": [chunk]}}, numbers),
        "texts": texts,
        "strings": ({"strings": ["python", "NA", texts[0]]}, *texts[1:]),
    }


def colliding_parcels(column, *buffers):
    """The items as categories, as a level, and as names of rows and columns."""
    last = len(buffers)
    index = {"name": None, "data": column}
    categories = {"categories": [{"index": index}, False, "|i1", last]}
    yield parcel_of(frame_of([categories]), *buffers, b"\0")
    yield parcel_of({"index": {"levels": [[index, "|i1", last]], "names": [None]}}, *buffers, b"\0")
    zeros = bytes(8 * COLLIDING)
    yield parcel_of(frame_of([{"numbers": ["<i8", last]}], index), *buffers, zeros)
    matrix = {"array": {"dtype": "<i8", "shape": [1, COLLIDING], "data": last}}
    yield parcel_of(frame_of(matrix, None, index), *buffers, zeros)


def test_items_of_one_hash_take_no_longer_than_others(tmp_path):
    names = []
    for kind, column in colliding_columns().items():
        for number, blob in enumerate(colliding_parcels(*column)):
            names.append(str(tmp_path / f"{kind} {number}"))
            Path(names[-1]).write_bytes(blob)
    program = """
import sys, time
import pandas, pyarrow
from belljar.protocol import values
for path in sys.argv[1:]:
    blob = bytearray(open(path, "rb").read())
    started = time.process_time()
    values.decode(blob)
    print(path, time.process_time() - started, sep=":", flush=True)
"""
    # By itself, because a hash table that is clogged takes minutes and cannot be interrupted.
    done = subprocess.run(
        [sys.executable, "-c", program, *names],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    spent = dict(line.rsplit(":", 1) for line in done.stdout.splitlines())
    assert list(spent) == names
    assert max(map(float, spent.values())) < 2, spent


def test_steps_of_one_hash_do_not_hold_up_the_check_of_a_freq():
    steps = np.frombuffer(whole_numbers(), dtype="i8")[-30_000:]
    times = np.cumsum(steps)
    assert (times[1:] > times[:-1]).all()
    for dtype, freq in (("<M8[ns]", "D"), ("<m8[ns]", "s")):
        started = time.process_time()
        with pytest.raises(values.CannotTravel, match="not of its freq"):
            values.decode(parcel_of(index_of({"numbers": [dtype, 0]}, freq=freq), times.tobytes()))
        assert time.process_time() - started < 1


def test_no_hash_table_is_made_of_any_index(monkeypatch):
    blobs = [values.encode(value).join() for value in specimens.pandas().values()]

    def refuse(index):
        raise AssertionError("a hash table")

    for kind in (pd.Index, pd.MultiIndex, pd.IntervalIndex, pd.CategoricalIndex, pd.DatetimeIndex):
        if "_engine" in vars(kind):
            monkeypatch.setattr(kind, "_engine", property(refuse))
    for blob in blobs:
        values.decode(blob)


def arrow_column(kind, **node):
    return {"arrow": {"type": kind, "chunks": [{"n": 3, **node}]}}


SAME = np.array([5, 3, 5], dtype="i8").tobytes()
SHORT_OFFSETS = np.arange(4, dtype="i4").tobytes()
TWICE = {
    "numbers": (NUMBERS, SAME),
    "numbers backwards": ({"numbers": [">i8", 0]}, SAME),
    "fractions": ({"numbers": ["<f8", 0]}, np.array([1.5, 0.0, -0.0]).tobytes()),
    "complex numbers": ({"numbers": ["<c16", 0]}, np.array([2j, 1, 2j]).tobytes()),
    "truth": ({"numbers": ["|b1", 0]}, b"\1\0\1"),
    "nothing": ({"numbers": ["<f8", 0]}, np.array([np.nan, 1, np.nan]).tobytes()),
    "times": ({"numbers": ["<M8[s]", 0]}, SAME),
    "spans": ({"numbers": ["<m8[s]", 0]}, SAME),
    "zoned": ({"zoned": ["s", ["zone", "UTC"], 0]}, SAME),
    "periods": ({"periods": ["M", 0]}, SAME),
    "masked": ({"masked": ["<i8", 0, 1]}, SAME, bytes(3)),
    "masked away": ({"masked": ["<i8", 0, 1]}, LONGS[:24], b"\1\0\1"),
    "strings": ({"strings": ["python", "NA", {"objects": ["a", "b", "a"]}]},),
    "strings of Arrow": ({"strings": ["pyarrow", "NA", {"objects": ["a", "b", "a"]}]},),
    "no strings": ({"strings": ["auto", "nan", {"objects": [None, "b", None]}]},),
    "words": ({"objects": ["a", "b", "a"]},),
    "bytes": ({"objects": [{"bytes": "YQ=="}, "a", {"bytes": "YQ=="}]},),
    "one and 1.0": ({"objects": [1, "1", 1.0]},),
    "one and true": ({"objects": [True, "1", 1]},),
    "a large one": ({"objects": [2**62, "1", 2.0**62]},),
    "one of numpy": ({"objects": [1, "1", {"numpy": ["<i8", "01" + "00" * 7]}]},),
    "tuples": ({"objects": [{"tuple": [1, 2]}, 1, {"tuple": [1, 2]}]},),
    "no label": ({"objects": [1, 2, [3]]},),
    "None": ({"objects": [None, 1, None]},),
    "intervals": (
        {"intervals": [index_of({"numbers": ["<i8", side]}) for side in (0, 1)] + ["left"]},
        SAME,
        SAME,
    ),
    "arrow": (arrow_column("int64", b=[None, 0]), SAME),
    "arrow chunks": (
        {"arrow": {"type": "int64", "chunks": [{"n": 1, "b": [None, i]} for i in range(3)]}},
        *(SAME[start : start + 8] for start in (0, 8, 16)),
    ),
    "arrow decimals": (arrow_column({"decimal": [128, 5, 1]}, b=[None, 0]), b"\1" + bytes(47)),
    "arrow strings": (arrow_column("string", b=[None, 0, 1]), SHORT_OFFSETS, b"aba"),
    "arrow lists": (
        arrow_column({"list": ["x", True, "int8"]}, b=[None, 0], c=[{"n": 3, "b": [None, 1]}]),
        SHORT_OFFSETS,
        b"aba",
    ),
    "categories": ({"categories": [RANGE, False, "|i1", 0]}, b"\1\0\1"),
}


@pytest.mark.parametrize("case", TWICE.values(), ids=TWICE)
def test_an_item_that_is_there_twice_is_neither_a_category_nor_of_a_level(case):
    column, *buffers = case
    last = len(buffers)
    index = {"name": None, "data": column}
    assert len(values.decode(bytearray(parcel_of({"index": index}, *buffers)))) == 3
    for skeleton in (
        {"column": {"categories": [{"index": index}, False, "|i1", last]}},
        {"index": {"levels": [[index, "|i1", last]], "names": [None]}},
    ):
        with pytest.raises(values.CannotTravel, match=r"twice|cannot be compared|unhashable"):
            values.decode(bytearray(parcel_of(skeleton, *buffers, b"\0")))


@pytest.mark.parametrize(
    "labels",
    [
        [2**60, 2**60 + 1, 2.0**60 * 3, -(2**60)],
        [2**53, 2**53 + 1, 0.1, 1e300, float("inf")],
        ["a", b"a", ("a",), ("a", ()), (b"a",)],
        [(bytes(2000),), (bytes(2001),), "x" * 9000, "x" * 9001],
    ],
    ids=["large", "fractions", "texts", "long"],
)
def test_items_that_are_nearly_alike_are_categories(labels):
    index = pd.Index(labels, dtype=object, tupleize_cols=False)
    value = pd.Categorical.from_codes([0, 1], categories=index)
    made = values.decode(values.encode(value).join())
    assert made.categories.tolist() == labels


def test_a_type_of_too_many_fields_is_refused():
    fields = [["a", True, "int8"]] * (parcel.MAX_ARRAYS + 1)
    with pytest.raises(values.CannotTravel, match="too many fields"):
        values.decode(parcel_of(arrow_of({"struct": fields})))


FOUND = sorted((REGRESSIONS / "values").glob("*.bin"))


def test_what_the_fuzzer_once_found_is_refused_or_a_value():
    for path in FOUND:
        fuzz_values.attempt(path.read_bytes())
