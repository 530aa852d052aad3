"""Objects of classes: exact for a reader that has the class, plain data for one that is lenient,
refused otherwise. The host never looks for a class that a guest names."""

import collections
import dataclasses
import enum
import http
import json
import struct
import sys
import threading
import warnings
from pathlib import Path

import pydantic
import pytest
from PIL import Image

from belljar.functions import signature
from belljar.functions.registry import HostFunction, Registry
from belljar.protocol import parcel, values
from belljar.sandbox import value_transfer


class Shade(enum.Enum):
    DARK = 1
    LIGHT = "l"


class Flag(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    shade: Shade = Shade.DARK
    norm: float = dataclasses.field(init=False, default=1.5)


Pair = collections.namedtuple("Pair", "left right")


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no")
    tags: set[str] = set()
    path: Path = Path("/x")
    lines: "list[Order]" = []


OBJECTS = {
    "enum": Shade.LIGHT,
    "flags": Flag.A | Flag.B,
    "dataclass": Point(3, Shade.LIGHT),
    "namedtuple": Pair(1, [Point(2)]),
    "model": Order(no=1, tags={"a"}, lines=[Order(no=2)]),
    "keys": {Shade.DARK: 1, Point(1): 2, Pair(1, 2): 3, Flag.A: 4},
    "in a set": {Point(1), Point(2)},
}
PLAIN = {
    "enum": "l",
    "flags": 3,
    "dataclass": {"x": 3, "shade": "l", "norm": 1.5},
    "namedtuple": (1, [{"x": 2, "shade": 1, "norm": 1.5}]),
    "model": {
        "number": 1,
        "tags": {"a"},
        "path": Path("/x"),
        "lines": [{"number": 2, "tags": set(), "path": Path("/x"), "lines": []}],
    },
}
KNOWN = {kind.__name__: kind for kind in (Shade, Flag, Point, Pair, Order)}


def find(name):
    return KNOWN.get(signature.class_name(name))


def travelled(value, find_class=None, lenient=False, describe=None):
    reception = values.Reception(find_class, lenient)
    blob = values.encode(value, describe=describe).join()
    return values.decode(blob, reception=reception), reception.notes


def parcel_of(skeleton, *buffers):
    text = json.dumps(skeleton).encode()
    return parcel.Encoded(text, [memoryview(buffer) for buffer in buffers]).join()


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_exact_for_a_reader_that_has_its_class(name):
    made, notes = travelled([OBJECTS[name]], find)
    assert made == [OBJECTS[name]]
    assert type(made[0]) is type(OBJECTS[name])
    assert notes == []


@pytest.mark.parametrize("name", PLAIN)
def test_a_lenient_reader_without_the_class_takes_plain_data_with_a_note(name):
    made, notes = travelled({"a": OBJECTS[name]}, None, lenient=True)
    assert made == {"a": PLAIN[name]}
    assert type(made["a"]) is type(PLAIN[name])
    assert any("which only its sender knows; taken as " in note for note in notes)
    assert all(note.startswith("value['a']") for note in notes)


def test_a_strict_reader_without_the_class_refuses_what_is_no_plain_type():
    """Also a named tuple and a member that is an int: they would be other objects silently."""
    for value in (*OBJECTS.values(), http.HTTPStatus.OK, {http.HTTPStatus.OK: 1}):
        with pytest.raises(values.CannotTravel, match=r"^value\[0\].*only its sender knows"):
            travelled([value])


def test_a_note_is_made_once_for_each_class():
    made, notes = travelled([Point(n) for n in range(100)], None, lenient=True)
    assert len(made) == 100
    assert len(notes) == 2  # and one for Shade


def test_objects_that_do_not_fit_the_readers_class_are_plain_data_and_the_note_says_why():
    @dataclasses.dataclass
    class Other:
        y: int

    made, notes = travelled(Point(1), lambda name: Other, lenient=True)
    assert made == {"x": 1, "shade": 1, "norm": 1.5}
    assert any("KeyError" in note or "does not fit" in note for note in notes)
    with pytest.raises(values.CannotTravel, match="another kind of class"):
        travelled(Point(1, None), lambda name: Shade)
    blob = parcel_of({"object": ["model", "__main__:Order", None, {"dict": {"number": "many"}}]})
    with pytest.raises(values.CannotTravel, match=r"does not fit the class .*ValidationError"):
        values.decode(blob, reception=values.Reception(find))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("dataclass", threading.Thread),
        ("dataclass", Shade),
        ("namedtuple", tuple),
        ("namedtuple", Point),
        ("enum", Point),
        ("model", Point),
        ("model", dict),
        ("dataclass", "no class"),
    ],
)
def test_only_classes_of_the_right_kind_are_called(form, kind):
    """Whatever a reader's table has: a guest cannot have Thread(...) called."""
    blob = parcel_of({"object": [form, "a:b", None, {"dict": {}}]})
    try:
        made = values.decode(blob, reception=values.Reception(lambda name: kind))
    except values.CannotTravel:
        return
    assert made == {}


def test_the_host_never_imports_what_a_guest_names(monkeypatch):
    """Neither a module that is not loaded, nor a class of one that is."""
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    for name in ("this:Zen", "antigravity:Box", "http:HTTPStatus", "dataclasses:Field"):
        for form in ("enum", "dataclass", "model", "member", "namedtuple"):
            blob = parcel_of({"object": [form, name, "OK", 200]})
            for reception in (
                values.Reception(lenient=True),
                value_transfer.receive([Point], lenient=True),
                values.Reception(Registry([HostFunction(len)]).class_finder("len"), True),
            ):
                assert values.decode(blob, reception=reception) == 200
    assert "this" not in sys.modules
    assert "antigravity" not in sys.modules


def test_classes_are_found_in_annotations_and_in_their_fields():
    def serve(points: "list[Point] | None", *, order: Order | None = None) -> Pair: ...

    class Callable:
        def __call__(self, pair: Pair) -> None: ...

    finder = Registry([HostFunction(serve)]).class_finder("serve")
    assert finder("__main__:Point") is Point
    assert finder("a.b:Outer.Order") is Order
    assert finder("x:Shade") is Shade  # a field of Point
    assert finder("x:Pair") is None  # what it returns, not what it takes
    assert Registry([]).class_finder("missing")("x:Point") is None
    assert Registry([HostFunction(Callable(), name="c")]).class_finder("c")("x:Pair") is Pair
    assert signature.find_classes(Point, type("Point", (), {}))["Point"] is None
    unreadable = HostFunction(lambda x: x, name="f")
    unreadable.function.__annotations__ = {"x": "Missing"}
    assert Registry([unreadable]).class_finder("f")("x:Point") is None


# --- lenient senders -----------------------------------------------------------------------------


def test_a_lenient_sender_describes_what_cannot_travel():
    value = {"lock": [threading.Lock()], "queue": collections.deque([1]), "keys": {"a": 1}.keys()}
    made, notes = travelled(value, None, True, lambda value, nested: f"text {nested}")
    assert made == {"lock": ["text True"], "queue": [1], "keys": ["a"]}
    assert notes == [
        "value['lock'][0] is a _thread.lock; taken as str",
        "value['queue'] is a collections.deque; taken as list",
        "value['keys'] is a dict_keys; taken as list",
    ]
    with pytest.raises(values.CannotTravel, match=r"\['lock'\]\[0\] is a _thread.lock$"):
        values.encode(value)
    with pytest.raises(values.CannotTravel, match=r"^value is a _thread.lock$"):
        values.encode(threading.Lock(), describe=lambda value, nested: "x" if nested else None)


def test_described_objects_are_limited_in_number_and_length():
    made, _ = travelled([object()], None, True, lambda value, nested: "x" * 10**6)
    assert len(made[0]) == parcel.MAX_REPR
    with pytest.raises(values.CannotTravel, match=r"\[1000\] is a object"):
        values.encode([object()] * 1001, describe=lambda value, nested: "x")


def test_what_the_host_describes_has_no_details_of_the_host():
    class Connection:
        def __repr__(self):
            return "<db postgresql://me:hunter2@db/sales in /srv/my/secret at 0x7f3a2b1c4d50>"

    text = value_transfer._describe(Connection(), True)
    assert "hunter2" not in text
    assert "/srv" not in text
    assert "0x7f" not in text


def test_recursive_objects_end():
    @dataclasses.dataclass
    class Node:
        other: object = None

    node = Node()
    node.other = [node]
    for describe in (None, lambda value, nested: "x"):
        with pytest.raises(values.CannotTravel, match="nested more than 100 deep"):
            values.encode(node, describe=describe)


def test_a_guests_note_is_cut_and_has_no_control_characters():
    reception = values.Reception(lenient=True)
    blob = parcel_of([{"noted": ["\x1b[31m" + "a" * 240, n]} for n in range(99)])
    assert values.decode(blob, reception=reception) == list(range(99))
    blob = parcel_of([{"noted": [f"is {n}", n]} for n in range(99)])
    values.decode(blob, reception=reception)
    assert len(reception.notes) == parcel.MAX_NOTES
    assert all(note.isprintable() and len(note) <= parcel.MAX_NOTE for note in reception.notes)


# --- hash tables ---------------------------------------------------------------------------------

PRIME = (1 << 61) - 1  # hashes of numbers are their rest


@pytest.mark.parametrize("tag", ["set", "frozenset", "map"])
@pytest.mark.parametrize("what", ["numbers", "tuples"])
def test_keys_that_collide_are_refused_before_they_cost_much(tag, what):
    """All of them would take minutes, and then be a value."""
    keys = [{"int": hex(PRIME * n)} for n in range(1, 100_001)]
    if what == "tuples":
        keys = [{"tuple": [key]} for key in keys]
    blob = parcel_of({tag: [keys, [0] * len(keys)] if tag == "map" else keys})
    with pytest.raises(values.CannotTravel, match="collide"):
        values.decode(blob, values.MAX_BYTES, values.MAX_BYTES)


def test_many_small_tables_of_colliding_keys_cost_little():
    keys = [{"int": hex(PRIME * n)} for n in range(1, 65)]
    blob = parcel_of([{"set": keys}] * 500)
    made = values.decode(blob)
    assert len(made) == 500


def test_large_sets_and_dicts_that_do_not_collide_travel():
    numbers = set(range(300_000))
    assert travelled(numbers)[0] == numbers
    pairs = {(n, str(n)): n for n in range(50_000)}
    blob = values.encode(pairs, text_limit=1 << 30).join()
    assert values.decode(blob, text_limit=1 << 30) == pairs
    spread = {n << 40 for n in range(100_000)}
    assert travelled(spread)[0] == spread


# --- images --------------------------------------------------------------------------------------

MODES = ["1", "L", "P", "LA", "PA", "I;16", "RGB", "YCbCr", "LAB", "HSV", "RGBA", "CMYK", "I", "F"]


def picture(mode, size=(13, 7)):
    base = Image.effect_noise(size, 50).convert("RGB")
    if mode == "PA":
        made = Image.new("PA", size)
        made.putpalette(bytes(range(256)) * 3)
        return made
    if mode in ("I;16", "LAB", "HSV"):
        return Image.new(mode, size, 7 if mode == "I;16" else (1, 2, 3))
    return base.convert(mode)


@pytest.mark.parametrize("mode", MODES)
def test_images_of_every_mode_travel_pixel_by_pixel(mode):
    value = picture(mode)
    made, notes = travelled({"a": value})
    assert type(made["a"]) is Image.Image
    assert (made["a"].mode, made["a"].size) == (mode, value.size)
    assert made["a"].tobytes() == value.tobytes()
    assert made["a"].getpalette() == value.getpalette()
    assert notes == []


def test_images_of_a_file_are_images_and_transparency_stays(tmp_path):
    clear = picture("P")
    clear.info["transparency"] = 0
    clear.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as opened:
        made, _ = travelled(opened)
        assert made.mode == "RGBA"
        assert made.tobytes() == opened.convert("RGBA").tobytes()
    assert travelled(Image.new("RGB", (0, 5)))[0].size == (0, 5)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_without_pillow_an_image_is_a_png_or_refused(mode, monkeypatch, tmp_path):
    value = picture(mode)
    blob = values.encode(value).join()
    reception = values.Reception(lenient=True)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL.Image", None)
        png = values.decode(blob, reception=reception)
        with pytest.raises(values.CannotTravel, match="install pillow"):
            values.decode(blob)
    assert reception.notes == ["value is a PIL image, as PNG without pillow; taken as bytes"]
    (tmp_path / "a.png").write_bytes(png)
    with Image.open(tmp_path / "a.png") as made:
        made.load()
        assert made.size == value.size
        assert made.convert("RGBA").tobytes() == value.convert("RGBA").tobytes()


def test_an_image_takes_the_memory_of_its_pixels_and_no_format_is_decoded(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", refuse)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack("!I4s2I", 13, b"IHDR", 60_000, 60_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert travelled(bomb)[0] == bomb
        for size in ([60_000, 60_000], [2**40, 0], [10**30, 10**30]):
            blob = parcel_of({"image": {"mode": "RGB", "size": size, "pixels": 0}}, bomb)
            with pytest.raises(values.CannotTravel):
                values.decode(blob)
