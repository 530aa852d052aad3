"""Plain data travels whole; everything else, and everything hostile, is refused."""

import collections
import datetime as dt
import json
import math
import mmap
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import uuid
import zoneinfo
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from belljar.protocol import parcel, values

zones = st.none() | st.timezones() | st.sampled_from([dt.UTC, dt.timezone(-dt.timedelta(0, 1))])
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**4000), max_value=2**4000)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=()), max_size=20)
    | st.binary(max_size=50)
    | st.datetimes(timezones=zones, allow_imaginary=False)
    | st.dates()
    | st.times(timezones=zones)
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
)
keys = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.binary(max_size=8)
    | st.dates()
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=8), inner)
        | st.dictionaries(keys, inner, max_size=5)
        | st.sets(keys, max_size=5)
        | st.frozensets(keys, max_size=5)
    ),
    max_leaves=25,
)
long_lists = (
    st.lists(st.floats(), min_size=60, max_size=70)
    | st.lists(st.integers(-(2**63), 2**63), min_size=60, max_size=70)
    | st.lists(st.text(st.characters(exclude_categories=())), min_size=60, max_size=70)
)


def travelled(value):
    return values.decode(values.encode(value).join())


def repr_of_key(key):
    """Tells 1 from 1.0; sets inside may have another order."""
    if isinstance(key, (tuple, frozenset)):
        parts = map(repr_of_key, key)
        parts = parts if isinstance(key, tuple) else sorted(parts)
        return f"{type(key).__name__} {list(parts)}"
    return repr(key)


def same(a, b):
    """Equal, of the same types, and nan is nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, (dt.datetime, dt.time)):
        return a.replace(tzinfo=None) == b.replace(tzinfo=None) and (
            (a.fold, str(a.tzinfo), a.utcoffset()) == (b.fold, str(b.tzinfo), b.utcoffset())
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (set, frozenset)):
        return a == b and sorted(map(repr_of_key, a)) == sorted(map(repr_of_key, b))
    return a == b


@given(plain | long_lists | long_lists.map(tuple))
@example({"list": [1]})
@example({"int": "0x1"})
@example({"a": 1, "b": 2})
@example({"b": {"tuple": []}, "a": 2})
@example([(), [], {}, b"", ""])
@example(-0.0)
@example([float("nan"), float("inf"), float("-inf")])
@example(2**64)
@example(-(2**100_000))
@example("\ud83d\ude00")  # two halves that were never one letter
@example({"\ud83d\ude00": ["\udfff"]})
@example(["\ud83d", "\ude00"] * 40)
@example("ä" * 5000)
@example("\ud800" * 5000)
@example(b"x" * 5000)
@example([b"x" * 5000, "y" * 5000, [1.5] * 100])
@example(Decimal("1E+999999999"))
@example(Decimal("-sNaN123"))
@example(Decimal("-0E-10"))
@example(Decimal("1." + "3" * 5000))
@example(dt.timedelta.max)
@example(dt.timedelta.min)
@example(dt.datetime.min)
@example(dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")))
@example(dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")))
@example(uuid.UUID(int=0))
@example({1: 2})
@example({"a": b"x" * 2000, 1: b"y" * 2000, "\ud800": 3})
@example({n: n for n in range(200)})
@example({(n, str(n)): [n] for n in range(200)})
@example({None: 1, True: 2, 2.5: 3, (1, (2,)): 4, frozenset({1}): 5, b"": 6})
@example(set(range(200)))
@example(frozenset(f"word {n}" for n in range(200)))
@example([set(), frozenset(), {frozenset(): set()}])
@example(range(0))
@example(range(5, -5, -2))
@example(range(0, 10**100, 3))
@example([Path("/a/b"), Path(), Path("\udcff"), PurePosixPath("c/d"), PureWindowsPath("C:/x")])
@example({Path("a"): 1})
def test_plain_data_travels_whole(value):
    assert same(travelled(value), value)


def test_a_bytearray_comes_back_as_bytes():
    assert same(travelled([bytearray(b"ab"), bytearray(5000)]), [b"ab", bytes(5000)])


class Text(str):
    def __str__(self):
        raise AssertionError("foreign code ran")

    __repr__ = __len__ = __iter__ = __hash__ = __eq__ = encode = __str__


class Number(int):
    def __int__(self):
        raise AssertionError("foreign code ran")

    __repr__ = __index__ = __hash__ = __eq__ = bit_length = __int__


class Blob(bytes):
    def __len__(self):
        raise AssertionError("foreign code ran")

    __iter__ = __bytes__ = __getitem__ = __len__


class Mapping(dict):
    def items(self):
        raise AssertionError("foreign code ran")

    __iter__ = __len__ = keys = items


class Sequence(list):
    def __iter__(self):
        raise AssertionError("foreign code ran")

    __len__ = __getitem__ = __iter__


class Group(set):
    def __iter__(self):
        raise AssertionError("foreign code ran")

    __len__ = __contains__ = __iter__


def test_subclasses_of_plain_types_become_them_and_none_of_their_code_runs():
    assert same(travelled(Text("x")), "x")
    assert same(travelled(Number(2**70)), 2**70)
    assert same(travelled([Blob(b"x"), Blob(5000)]), [b"x", bytes(5000)])
    assert same(travelled(Mapping(a=1)), {"a": 1})
    assert same(travelled(Sequence([1, 2])), [1, 2])
    assert same(travelled(Sequence([1.5] * 100)), [1.5] * 100)
    assert same(travelled(Group([1, 2])), {1, 2})
    assert same(travelled(collections.defaultdict(int, a=1)), {"a": 1})
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert same(travelled(ordered), {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"^value is a object"),
        ((x for x in "ab"), r"^value is a generator; make it a list first"),
        ([1, [2, object()]], r"^value\[1\]\[1\] is a object"),
        ({"a": {"b": threading.Lock()}}, r"^value\['a'\]\['b'\] is a _thread.lock"),
        (([0], {"k": [{object}]}), r"^value\[1\]\['k'\]\[0\]\[0\] is a type"),
        ({"a": {1: 2, (3, 4): [object()]}}, r"^value\['a'\]\[\(3, 4\)\]\[0\] is a object"),
        ({"a": {1: 2, len: 3}}, r"^value\['a'\] keys\[1\] is a builtin_function"),
        (True.__class__, "value is a type"),
        (lambda: 0, "value is a function"),
        (memoryview(b"x"), r"bytes\(\.\.\.\)"),
        (dt.datetime(2020, 1, 1, tzinfo=type("Z", (dt.tzinfo,), {})()), "has the time zone"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_refused_with_its_place_and_a_remedy(value, message):
    with pytest.raises(values.CannotTravel, match=message):
        values.encode(value)


def test_a_list_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(values.CannotTravel, match="deep"):
        values.encode(endless)


def test_a_hundred_levels_travel_and_one_more_does_not():
    value = 1
    for _ in range(values.MAX_DEPTH):
        value = [value]
    assert travelled(value) == value
    with pytest.raises(values.CannotTravel, match="deep"):
        values.encode([value])


def test_too_much_is_refused_by_both_ends():
    for value in ("x" * 1000, b"x" * 2000, [0] * 1000, [1.5] * 1000, {"a": "x" * 5000}):
        with pytest.raises(values.CannotTravel, match="more than 500 bytes"):
            values.encode(value, 500)
        with pytest.raises(values.CannotTravel, match="more than 500"):
            values.decode(values.encode(value).join(), 500)
    with pytest.raises(values.CannotTravel, match="small parts"):
        values.encode([None] * 1000, text_limit=500)
    with pytest.raises(values.CannotTravel, match="text"):
        values.decode(values.encode([None] * 1000).join(), text_limit=500)


def test_long_lists_leave_little_text():
    for value in ([1.5] * 10**6, list(range(10**6)), ["x"] * 10**6):
        encoded = values.encode(value, text_limit=1000)
        assert values.decode(encoded.join(), text_limit=1000) == value


def test_pieces_written_and_mapped_are_the_bytes_joined(tmp_path):
    value = [b"x" * 100_000, "y" * 5000, [1.5] * 5000] + [
        bytes([i % 256]) * 5000 for i in range(3000)
    ]
    encoded = values.encode(value)
    assert b"".join(encoded.pieces()) == encoded.join()
    assert len(encoded.join()) == encoded.size
    with open(tmp_path / "value", "w+b") as file:
        file.writelines(encoded.pieces())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        assert same(values.decode(mapped), value)


def test_large_bytes_are_not_copied_when_encoded():
    data = os.urandom(1 << 20)
    (piece,) = [p for p in values.encode([data]).pieces() if len(p) > 1 << 19]
    assert piece.obj is data


def test_a_look_tells_whether_decoding_needs_a_thread():
    assert not values.needs_thread(values.encode({"a": [1, "x", 2.5]}).join())
    assert values.needs_thread(values.encode("x" * 100_000).join())
    assert values.needs_thread(parcel_of([{"frame": {}}] * 9))
    assert values.needs_thread(parcel_of(b'{"fr\\u0061me":{}}'))
    assert values.needs_thread(parcel_of(b"[" + b",".join([b'{ "frame" :{}}'] * 9) + b"]"))
    assert not values.needs_thread(values.encode({1: 2}).join())
    assert values.needs_thread(values.encode(set(range(2000))).join())
    assert not values.needs_thread(b"")
    assert not values.needs_thread(b"x" * 100)


def test_small_values_of_a_library_need_no_thread_once_it_is_imported(monkeypatch):
    import numpy as np
    import pandas as pd

    few, many = np.arange(10), np.zeros(10_000)
    small = {"numpy": [np.float64(1), few], "pandas": [pd.DataFrame({"a": [1], "b": ["x"]})]}
    for large in (many, [few] * 9, pd.DataFrame({"a": many})):
        assert values.needs_thread(values.encode(large).join())
    for library, given_values in small.items():
        for blob in [values.encode(value).join() for value in given_values]:
            assert not values.needs_thread(blob)
            with monkeypatch.context() as patch:
                patch.delitem(sys.modules, library)
                assert values.needs_thread(blob)


def test_without_numpy_its_scalars_are_numbers_and_its_arrays_name_the_remedy():
    import numpy as np

    scalars = values.encode(
        [np.int16(-3), np.float32(0.5), np.bool_(True), np.str_("é"), np.complex64(1j)]
    )
    table = values.encode({"x": np.arange(3)})
    program = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "pandas", "pyarrow", "polars"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
from belljar.protocol import values
print(values.decode(bytes.fromhex(sys.argv[1])))
try:
    values.decode(bytes.fromhex(sys.argv[2]))
except values.CannotTravel as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, scalars.join().hex(), table.join().hex()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "[-3, 0.5, True, 'é', 1j]",
        "value['x'] is a numpy array; install numpy here to receive it",
    ]


# --- hostile bytes ----------------------------------------------------------------------------


def parcel_of(skeleton, *buffers):
    """A parcel made by hand: any JSON, or any text, and buffers."""
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    return parcel.Encoded(text, [memoryview(buffer) for buffer in buffers]).join()


def decoded(data):
    """The value, or that it was refused; anything else than CannotTravel is a failure."""
    try:
        return values.decode(data)
    except values.CannotTravel:
        return values.CannotTravel


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_are_refused(data):
    assert decoded(data) is values.CannotTravel


GOOD = values.encode(["x" * 5000, b"y" * 5000]).join()
BROKEN = {
    "nothing": b"",
    "half a head": GOOD[:7],
    "cut short": GOOD[:-1],
    "too long": GOOD + b"x",
    "only the head": GOOD[:12],
    "another magic": b"PK\x03\x04" + GOOD[4:],
    "other byte order": GOOD[:3] + b"?" + GOOD[4:],
    "text beyond the end": GOOD[:4] + struct.pack("=I", 1 << 22) + GOOD[8:],
    "a billion buffers": GOOD[:8] + struct.pack("=I", 1 << 30) + GOOD[12:],
    "a buffer of 2**64 bytes": GOOD[:12] + b"\xff" * 8 + GOOD[20:],
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_parcel_is_refused(data):
    assert decoded(data) is values.CannotTravel


HOSTILE = [
    b"[" * 100_000,
    b'{"list":[' * 50_000,
    b'{"tuple":[' * 500 + b"]}" * 500,
    b"[" * 150 + b"]" * 150,
    b"9" * 100_000,
    b'{"int":"' + b"z" * 10 + b'"}',
    b'{"int":5}',
    b'{"int":null}',
    b'{"float":1.0}',
    b'{"bytes":"***"}',
    b'{"bytes":5}',
    b'{"bytes":-1}',
    b'{"bytes":true}',
    b'{"bytes":0.0}',
    b'{"str":null}',
    b'{"str":"/w=="}',
    b'{"tuple":"ab"}',
    b'{"tuple":{"dict":{}}}',
    b'{"dict":[]}',
    b'{"map":[[1,2]]}',
    b'{"map":[[1],[1,2]]}',
    b'{"map":[[1,1],[1,2]]}',
    b'{"map":[[1,1.0],[1,2]]}',
    b'{"map":[[1,true],[1,2]]}',
    b'{"map":[[[]],[1]]}',
    b'{"map":[[{"dict":{}}],[1]]}',
    b'{"map":["ab","cd"]}',
    b'{"map":{}}',
    b'{"set":[1,2,1]}',
    b'{"set":[[1]]}',
    b'{"set":[{"set":[]}]}',
    b'{"set":{"dict":{}}}',
    b'{"set":"ab"}',
    b'{"frozenset":[{"array":{}}]}',
    b'{"frozenset":' * 500 + b"[]" + b"}" * 500,
    b'{"range":[0,5,0]}',
    b'{"range":[0,5]}',
    b'{"range":[0,5,true]}',
    b'{"range":[0,5.0,1]}',
    b'{"range":"abc"}',
    b'{"path":["Path",5]}',
    b'{"path":["WindowsPath","a"]}',
    b'{"path":["__init__","a"]}',
    b'{"path":"a"}',
    b'{"object":["dataclass","os:system",null,{"dict":{}}]}',
    b'{"object":["enum","a:b","c",1]}',
    b'{"object":["model","a:b",null,1]}',
    b'{"object":["__class__","a:b",null,1]}',
    b'{"object":["enum",5,"c",1]}',
    b'{"object":["enum","' + b"a" * 300 + b'","c",1]}',
    b'{"object":["member","a:b",null,' * 500 + b"1" + b"]}" * 500,
    b'{"noted":["is a lock","x"]}',
    b'{"noted":["' + b"a" * 300 + b'","x"]}',
    b'{"noted":[5,"x"]}',
    b'{"image":{"mode":"RGB","size":[1,1]}}',
    b'{"floats":[1.0]}',
    b'{"strs":{}}',
    b'{"complex":["1","2"]}',
    b'{"complex":[1.0]}',
    b'{"decimal":"one"}',
    b'{"decimal":1}',
    b'{"uuid":"-1"}',
    b'{"uuid":"' + b"f" * 33 + b'"}',
    b'{"datetime":"2020-01-01"}',
    b'{"datetime":["2020-01-01",2,null]}',
    b'{"datetime":["2020-01-01",0,["zone","../../../etc/passwd"]]}',
    b'{"datetime":["2020-01-01",0,["zone","/etc/passwd"]]}',
    b'{"datetime":["2020-01-01",0,["zone","Europe"]]}',
    b'{"datetime":["2020-01-01",0,["zone","Nowhere/Atall"]]}',
    b'{"datetime":["2020-01-01",0,["offset",99999999999999,null]]}',
    b'{"datetime":["2020-01-01",0,["offset",0,5]]}',
    b'{"date":5}',
    b'{"time":["25:00",0,null]}',
    b'{"timedelta":1.5}',
    b'{"timedelta":' + b"9" * 4000 + b"}",
    b'{"eval":"1"}',
    b'{"tuple":[],"dict":{}}',
    b"{}",
    b"",
    b"\xff",
    b'"\xc3\xa9"',
    b'{"__reduce__":["os.system",["true"]]}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:40]))
def test_a_hostile_text_is_refused(text):
    assert decoded(parcel_of(text)) is values.CannotTravel


@pytest.mark.parametrize(
    ("skeleton", "buffers"),
    [
        ([{"bytes": 0}, {"bytes": 0}], [b"x" * 100]),
        (None, [b"nobody asks"]),
        ({"bytes": 1}, [b"x"]),
        ({"str": 0}, [b"\xff\xfe"]),
        ({"floats": 0}, [b"x" * 7]),
        ({"set": {"ints": 0}}, [struct.pack("=3q", 1, 2, 1)]),
        ({"map": [{"ints": 0}, {"ints": 0}]}, [bytes(8)]),
        ({"image": {"mode": "RGB", "size": [2, 2], "pixels": 0}}, [bytes(11)]),
        ({"image": {"mode": "RGB", "size": [-2, -2], "pixels": 0}}, [bytes(12)]),
        ({"image": {"mode": "RGB", "size": [2**31, 2**33], "pixels": 0}}, [bytes(12)]),
        ({"image": {"mode": "RGB", "size": [True, 4], "pixels": 0}}, [bytes(12)]),
        ({"image": {"mode": "BGR;16", "size": [1, 1], "pixels": 0}}, [bytes(2)]),
        ({"image": {"mode": "L", "size": [1, 1], "pixels": 0, "palette": ["RGB", 1]}}, [b"x"] * 2),
        (
            {"image": {"mode": "P", "size": [1, 1], "pixels": 0, "palette": ["RGB", 1]}},
            [b"x", bytes(5000)],
        ),
        ({"ints": 0}, [b"x" * 9]),
        ({"strs": {"lengths": 0, "text": 1}}, [struct.pack("=2i", 1, 1), b"abc"]),
        ({"strs": {"lengths": 0, "text": 1}}, [struct.pack("=2i", -1, 3), b"abc"]),
        ({"strs": {"lengths": 0, "text": 1}}, [struct.pack("=2i", 2**31 - 1, 4), b"abc"]),
        ({"strs": {"lengths": 0, "text": 1}}, [b"abc", b"abc"]),
        ({"strs": {"lengths": 0, "text": 0}}, [b"abcd"]),
    ],
)
def test_hostile_buffers_are_refused(skeleton, buffers):
    assert decoded(parcel_of(skeleton, *buffers)) is values.CannotTravel


@pytest.mark.parametrize(
    ("text", "buffers"),
    [
        (b"[" + b",".join([b"[]"] * 300_000) + b"]", []),
        (b"[" + b",".join([b"{}"] * 300_000) + b"]", []),
        (b"[" + b",".join([b'{"dict":{}}'] * 100_000) + b"]", []),
        (b"[" + b",".join([b'"ab"'] * 200_000) + b"]", []),
        (b"[" + b",".join([b'{"tuple":[]}'] * 100_000) + b"]", []),
        (b'{"dict":{' + b",".join(b'"%x":0' % i for i in range(100_000)) + b"}}", []),
        (b'{"floats":0}', [bytes(1 << 20)]),
        (b'{"ints":0}', [b"\x7f" * (1 << 20)]),
        (b'{"strs":{"lengths":0,"text":1}}', [bytes(1 << 20), b""]),
        (
            b'{"strs":{"lengths":0,"text":1}}',
            [struct.pack("=i", 2) * (1 << 17), b"abcd" * (1 << 16)],
        ),
        (
            b'{"strs":{"lengths":0,"text":1}}',
            [struct.pack("=i", 1) * (1 << 17) + bytes(4), "\U0010ffff".encode() * (1 << 17)],
        ),
    ],
)
def test_decoding_takes_a_small_multiple_of_the_bytes(text, buffers):
    data = parcel_of(text, *buffers)
    tracemalloc.start()
    decoded(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * len(text) + 20 * sum(map(len, buffers)) + 100_000


json_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*values._DECODERS, "x", "dtype", "shape", "data"]), inner
        )
    ),
    max_leaves=15,
)


@given(json_documents)
@settings(max_examples=300)
def test_any_json_document_is_refused_or_gives_a_value(document):
    value = decoded(parcel_of(document))
    if value is not values.CannotTravel:
        assert same(travelled(value), value)


@given(plain, st.data())
@settings(max_examples=200)
def test_a_mutated_encoding_is_refused_or_a_value(value, data):
    raw = bytearray(values.encode(value).join())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    decoded(bytes(raw))
