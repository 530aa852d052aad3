"""Plain data travels whole; everything else, and everything hostile, is refused."""

import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from belljar.guest import values

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**4000), max_value=2**4000)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=20)
    | st.binary(max_size=50)
)
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=25,
)


def same(a, b):
    """Equal, of the same types, and nan is nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


@given(plain)
@example({"list": [1]})
@example({"int": "0x1"})
@example({"a": 1, "b": 2})
@example([(), [], {}, b"", ""])
@example(-0.0)
@example([float("nan"), float("inf"), float("-inf")])
@example(2**64)
@example(-(2**100_000))
def test_plain_data_travels_whole(value):
    assert same(values.decode(values.encode(value)), value)


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "value"),
        ({1, 2}, "value"),
        (1j, "value"),
        ([1, [2, object()]], r"value\[1\]\[1\]"),
        ({"a": {"b": range(3)}}, r"value\['a'\]\['b'\]"),
        ({1: 2}, "key of type int"),
        (Text("x"), "value"),
        (True.__class__, "value"),
        (lambda: 0, "value"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(value, place):
    with pytest.raises(values.NotPlain, match=place):
        values.encode(value)


def test_a_list_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(values.NotPlain, match="deep"):
        values.encode(endless)


def test_a_hundred_levels_travel_and_one_more_does_not():
    value = 1
    for _ in range(values.MAX_DEPTH):
        value = [value]
    assert values.decode(values.encode(value)) == value
    with pytest.raises(values.NotPlain, match="deep"):
        values.encode([value])


def test_too_much_is_refused_by_both_ends():
    with pytest.raises(values.NotPlain):
        values.encode("x" * (values.MAX_BYTES + 1))
    with pytest.raises(values.NotPlain):
        values.encode([0] * values.MAX_BYTES)
    with pytest.raises(values.NotPlain):
        values.decode(b" " * (values.MAX_BYTES + 1))


def decoded(data):
    """The value, or that it was refused; anything else than NotPlain is a failure."""
    try:
        return values.decode(data)
    except values.NotPlain:
        return values.NotPlain


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_are_refused_or_plain(data):
    decoded(data)


HOSTILE = [
    b"[" * 100_000,
    b'{"list":[' * 50_000,
    b"9" * 100_000,
    b'{"int":"' + b"z" * 10 + b'"}',
    b'{"int":5}',
    b'{"int":null}',
    b'{"float":"1e999"}',
    b'{"float":1.0}',
    b'{"bytes":"***"}',
    b'{"bytes":5}',
    b'{"list":{}}',
    b'{"tuple":"ab"}',
    b'{"dict":[]}',
    b'{"eval":"1"}',
    b'{"list":[],"dict":{}}',
    b"{}",
    b"[1]",
    b"",
    b"\xff",
    b'{"__reduce__":["os.system",["true"]]}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:14]))
def test_a_hostile_encoding_is_refused(data):
    assert decoded(data) is values.NotPlain


json_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["list", "tuple", "dict", "int", "bytes", "float", "x"]), inner
        )
    ),
    max_leaves=15,
)


@given(json_documents)
@settings(max_examples=300)
def test_any_json_document_is_refused_or_gives_plain_data(document):
    value = decoded(json.dumps(document).encode())
    if value is not values.NotPlain:
        assert same(values.decode(values.encode(value)), value)


@given(plain, st.data())
@settings(max_examples=200)
def test_a_mutated_encoding_is_refused_or_plain(value, data):
    raw = bytearray(values.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    decoded(bytes(raw))
