"""Hostile parcels for `values.decode`: good ones, taken apart and put together wrongly.

Whatever comes, decoding gives a value or CannotTravel, in a few seconds and a bounded piece of
memory, without a warning; and a value that came out can be shown and sent on.
"""

import collections
import dataclasses
import enum
import http
import json
import struct
import warnings

from PIL import Image

import fuzzing
import specimens
from belljar.protocol import parcel, values

SPECIAL_NUMBERS = [
    *(0, 1, -1, 2, 7, 8, 63, 64, 65, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31)),
    *(2**32, 2**48, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308),
]
SPECIAL_TEXTS = [
    *("", "\0", "a", "O", "|O", "<O8", "object", "<U1", "|b1", "<f8", "<M8[ns]", "<M8[D]", "|V0"),
    *("string", "large_string", "null", "NA", "NaT", "nan", "python", "pyarrow", "zone", "offset"),
    *("UTC", "Europe/Berlin", "../x", "D", "M", "ME", "B", "h", "-1D", "999999999D", "ns", "C"),
    *("Path", "PurePosixPath", "enum", "member", "dataclass", "a:Point", "a:Shade", "DARK", "RGB"),
    *("QE-DEC", "W-SUN", "bh", "both", "left", "00", "0x1", "2020-01-01", "\ud800", "é"),
]
SPECIAL_OTHERS = ["null", "true", "false", "[]", "{}", "[[]]", "NaN", "Infinity"]


class Shade(enum.Enum):
    DARK = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: object
    shade: object = Shade.DARK


Pair = collections.namedtuple("Pair", "left right")
CLASSES = {kind.__name__: kind for kind in (Shade, Point, Pair)}
OBJECTS = [
    [Shade.DARK, Point(1), Pair(Point([2]), {3}), http.HTTPStatus.OK],
    {Shade.DARK: 1, Point(1): Pair(1, 2), "x": {4: object()}},
    [Image.new("RGB", (3, 2), "red"), Image.new("P", (9, 1)), Image.new("1", (9, 2))],
]


def find_class(name):
    return CLASSES.get(name.rpartition(":")[2])


class Warned(Exception):
    pass


def attempt(data):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            value = values.decode(bytearray(data), reception=values.Reception(find_class, True))
        except values.CannotTravel:
            value = None
    if said:
        raise Warned(str(said[0].message))
    if value is not None:
        _use(value)


def _use(value):
    """Nothing must crash. What libraries raise about odd contents is their own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            repr(value)
        except Exception as error:
            del error
        try:
            again = values.encode(value).join()
        except values.CannotTravel:
            return
        try:
            values.decode(again, reception=values.Reception(find_class, True))
        except values.CannotTravel as error:
            raise AssertionError(f"came in, but not back: {error}") from None


def allowance(data):
    text, buffers = take_apart(data)
    # Once to decode it, and as much to show it and to send it back and forth.
    return 3 * (64 * len(text) + 16 * sum(map(len, buffers)))


def take_apart(data):
    """The text and the buffers, as far as there are any."""
    try:
        text, spans = parcel.open_parcel(memoryview(data), values.MAX_TEXT)
    except (ValueError, values.CannotTravel):
        return bytes(data), []
    return bytes(text), [bytes(data[start : start + size]) for start, size in spans]


def put_together(skeleton, buffers):
    text = json.dumps(skeleton).encode()
    return parcel.Encoded(text, [memoryview(buffer) for buffer in buffers]).join()


def seeds():
    found = []
    for value in [*specimens.everything().values(), *OBJECTS]:
        text, buffers = take_apart(values.encode(value, describe=lambda *_: "text").join())
        found.append((json.loads(text), buffers))
        for part in value if isinstance(value, list) else ():
            text, buffers = take_apart(values.encode(part, describe=lambda *_: "text").join())
            found.append((json.loads(text), buffers))
    return found


def cases(random):
    pool = seeds()
    yield from (put_together(*seed) for seed in pool)
    while True:
        skeleton, buffers = random.choice(pool)
        skeleton, buffers = json.loads(json.dumps(skeleton)), list(buffers)
        for _ in range(random.choice([1, 1, 1, 2, 3, 6])):
            skeleton, buffers = random.choice(MUTATIONS)(random, pool, skeleton, buffers)
        data = put_together(skeleton, buffers)
        if random.random() < 0.1:
            data = flip(random, data)
        yield data


def places(node, found=None):
    """Every (container, key) of a JSON document."""
    found = [] if found is None else found
    for key in (
        node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    ):
        found.append((node, key))
        places(node[key], found)
    return found


def some_place(random, skeleton):
    """Upper and lower places alike, or the many small items would have it all."""
    found = places(skeleton)
    return random.choice(found[:40] if random.random() < 0.6 else found) if found else (None, None)


def replace(random, pool, skeleton, buffers):
    node, key = some_place(random, skeleton)
    if node is not None:
        old = node[key]
        if type(old) is int and random.random() < 0.5:
            node[key] = random.choice([old + 1, old - 1, old * 2, old // 2, -old, old + 2**32])
        elif random.random() < 0.3:
            node[key] = json.loads(random.choice(SPECIAL_OTHERS))
        else:
            texts = type(old) is str if random.random() < 0.8 else random.random() < 0.5
            node[key] = random.choice(SPECIAL_TEXTS if texts else SPECIAL_NUMBERS)
    return skeleton, buffers


def remove(random, pool, skeleton, buffers):
    node, key = some_place(random, skeleton)
    if node is not None:
        del node[key]
    return skeleton, buffers


def rename(random, pool, skeleton, buffers):
    nodes = [(node, key) for node, key in places(skeleton) if isinstance(node, dict)]
    if nodes:
        node, key = random.choice(nodes[:60])
        names = list(values._DECODERS) + [key for _, key in nodes]
        node[random.choice(names)] = node.pop(key)
    return skeleton, buffers


def repeat(random, pool, skeleton, buffers):
    node, key = some_place(random, skeleton)
    if isinstance(node, list):
        copy = json.loads(json.dumps(node[key]))
        more = random.choice([1, 1, 2, 100])
        node[key:key] = json.loads(json.dumps([copy] * more))
    return skeleton, buffers


def swap(random, pool, skeleton, buffers):
    (one, i), (other, j) = some_place(random, skeleton), some_place(random, skeleton)
    if one is not None:
        left, right = json.dumps(one[i]), json.dumps(other[j])
        one[i], other[j] = json.loads(right), json.loads(left)
    return skeleton, buffers


def transplant(random, pool, skeleton, buffers):
    """A part of another value, with its own buffers behind ours."""
    other, more = random.choice(pool)
    other = json.loads(json.dumps(other))
    node, key = some_place(random, other)
    part = random.choice([other, other if node is None else node[key]])
    shift = len(buffers)
    part = [part]
    for inner, name in places(part):
        if type(inner[name]) is int and 0 <= inner[name] < len(more) and random.random() < 0.9:
            inner[name] += shift
    node, key = some_place(random, skeleton)
    if node is None or len(json.dumps(skeleton)) > 200_000:
        return part[0], more
    node[key] = part[0]
    return skeleton, buffers + more


def spoil(random, pool, skeleton, buffers):
    if buffers:
        index = random.randrange(len(buffers))
        buffers[index] = random.choice([flip, number, resize, fill])(random, buffers[index])
    return skeleton, buffers


def exchange(random, pool, skeleton, buffers):
    if buffers:
        one = random.randrange(len(buffers))
        source = buffers if random.random() < 0.5 else random.choice(pool)[1] or buffers
        buffers[one] = random.choice(source)
    return skeleton, buffers


def flip(random, data):
    raw = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        if raw:
            raw[random.randrange(len(raw))] = random.choice(
                [0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)]
            )
    return bytes(raw)


def number(random, data):
    """A number of some width at some place becomes a special one."""
    form = random.choice("bhiq")
    width = struct.calcsize("=" + form)
    if len(data) < width:
        return data
    value = random.choice([n for n in SPECIAL_NUMBERS if type(n) is int]) % (1 << 8 * width)
    place = random.randrange(len(data) // width) * width
    return data[:place] + value.to_bytes(width, "little") + data[place + width :]


def resize(random, data):
    keep = random.choice(
        [0, len(data) // 2, max(0, len(data) - 1), max(0, len(data) - 8), len(data)]
    )
    return data[:keep] + bytes(random.choice([0, 0, 1, 7, 8, 64, 4096]))


def fill(random, data):
    return bytes([random.choice([0, 1, 0x20, 0x7F, 0x80, 0xFF])]) * len(data)


MUTATIONS = [
    *(replace, replace, replace, remove, rename, repeat, swap),
    *(transplant, transplant, spoil, spoil, spoil, exchange),
]


def main(seconds, seed):
    return fuzzing.run("values", seconds, seed)
