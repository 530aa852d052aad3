"""Sets, keyed dicts, paths, objects of classes and images, in both directions and on every way:
put, get, the value of a cell, arguments and results of host functions."""

import collections
import dataclasses
import enum
import http
import threading
from pathlib import Path, PureWindowsPath

import numpy
import pydantic
import pytest
from PIL import Image

from belljar import CannotTravel, NameMissing, Outcome

pytestmark = pytest.mark.contract("native", "docker", "gvisor")


class Shade(enum.Enum):
    DARK = 1
    LIGHT = "l"


@dataclasses.dataclass
class Point:
    x: int
    shade: Shade = Shade.DARK


Pair = collections.namedtuple("Pair", "left right")


class Rank(enum.IntEnum):
    LOW = 1


class Order(pydantic.BaseModel):
    number: int
    tags: set[str] = set()


CLASSES = """
import collections, dataclasses, enum
class Shade(enum.Enum):
    DARK = 1
    LIGHT = "l"
@dataclasses.dataclass
class Point:
    x: int
    shade: Shade = Shade.DARK
Pair = collections.namedtuple("Pair", "left right")
class Rank(enum.IntEnum):
    LOW = 1
point, pair = Point(1, Shade.LIGHT), Pair(1, [Point(2)])
"""
PLAIN = [
    {1, 2},
    frozenset({"a", (1, 2)}),
    {1: "a", (2, 3): {4}, None: 5, frozenset({1}): 6},
    range(0, 10**30, 7),
    Path("/a/b"),
    PureWindowsPath("C:/x"),
    dict.fromkeys(range(3000), 1.5),
]


def test_containers_and_paths_are_the_same_on_every_way(make_sandbox):
    seen = []
    sandbox = make_sandbox(functions={"give": lambda: PLAIN, "take": seen.append})
    sandbox.put(plain=PLAIN)
    assert sandbox.get("plain") == PLAIN
    execution = sandbox.run_code("take(plain); assert give() == plain; give()")
    assert (execution.value, execution.notes) == (PLAIN, ())
    assert seen == [PLAIN]
    assert [type(each) for each in seen[0]] == [type(each) for each in PLAIN]
    names = sandbox.run_code("[type(each).__name__ for each in plain]").value
    assert names == [type(each).__name__ for each in PLAIN]


def test_what_the_sandbox_does_not_know_goes_in_as_plain_data_with_a_note(sandbox):
    sandbox.put(s=Shade.LIGHT, p=Point(3), o=Order(number=1, tags={"a"}), lock=[threading.Lock()])
    first = sandbox.run_code("[s, p, o, lock]")
    assert first.value[:3] == ["l", {"x": 3, "shade": 1}, {"number": 1, "tags": {"a"}}]
    assert first.value[3] == ["<unlocked _thread.lock object>"]  # no address of the host
    notes = "\n".join(first.notes)
    for words in ("s is a ", "p['shade'] is a ", "p is a ", "o is a ", "lock[0] is a _thread.lock"):
        assert f"\n{words}" in f"\n{notes}"
    assert sandbox.run_code("1").notes == ()


def test_classes_that_the_sandbox_can_import_are_exact(sandbox):
    sandbox.set("status", http.HTTPStatus.NOT_FOUND, lenient=False)
    execution = sandbox.run_code("import http; status is http.HTTPStatus.NOT_FOUND")
    assert (execution.value, execution.notes) == (True, ())
    with pytest.raises(CannotTravel, match=r"^status is a http.HTTPStatus.*\n.*types="):
        sandbox.get("status")
    assert sandbox.get("status", lenient=True) == 404
    assert sandbox.get("status", types=[http.HTTPStatus]) is http.HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("value", [Pair(1, 2), Rank.LOW, {"a": [Rank.LOW]}, {Rank.LOW: 1}])
def test_a_named_tuple_or_a_member_that_is_an_int_is_never_silently_another_object(sandbox, value):
    with pytest.raises(CannotTravel, match=r"^v.* is a .*\n.*lenient=True"):
        sandbox.set("v", value, lenient=False)
    sandbox.put(v=value)
    execution = sandbox.run_code("v")
    assert execution.value == value
    assert type(execution.value) in (tuple, int, dict)
    assert "which only its sender knows; taken as " in execution.notes[-1]
    sandbox.run_code(CLASSES)
    sandbox.set("v", value, lenient=False)
    assert repr(sandbox.get("v", types=[Pair, Rank])) == repr(value)
    with pytest.raises(CannotTravel, match=r"only its sender knows\n.*types="):
        sandbox.get("v")
    execution = sandbox.run_code("v")
    assert execution.value == value
    assert "which only its sender knows; taken as " in execution.notes[-1]


def test_cells_of_a_table_are_plain_data_with_a_note(make_sandbox):
    sandbox = make_sandbox(environment="data")
    sandbox.run_code(f"{CLASSES}\nimport pandas")
    execution = sandbox.run_code("pandas.DataFrame({'a': pandas.Series([pair, Rank.LOW])})")
    assert execution.value["a"].tolist() == [(1, [{"x": 2, "shade": 1}]), 1]
    assert any("Pair, which only its sender knows" in note for note in execution.notes)
    assert execution.results[0].data["a"].tolist() == execution.value["a"].tolist()


def test_an_array_for_a_sandbox_without_numpy_is_refused_with_the_remedy(make_sandbox):
    sandbox = make_sandbox(environment="python")
    why = r"^v\[0\] is a numpy array, and the sandbox has no numpy\n.*packages=\['numpy'\]"
    with pytest.raises(CannotTravel, match=why):
        sandbox.put(v=[numpy.arange(3)])
    with pytest.raises(NameMissing):
        sandbox.get("v")


def test_the_value_of_a_cell_is_plain_data_with_a_note(sandbox):
    sandbox.run_code(CLASSES)
    execution = sandbox.run_code("point")
    assert execution.value == {"x": 1, "shade": "l"}
    assert [note.partition(" ")[0] for note in execution.notes] == ["value['shade']", "value"]
    assert sandbox.run_code("pair").value == (1, [{"x": 2, "shade": 1}])
    nested = sandbox.run_code("{'f': len, 'n': 1}")
    assert nested.value == {"f": "<built-in function len>", "n": 1}
    assert nested.notes == ("value['f'] is a builtin_function_or_method; taken as str",)
    assert sandbox.run_code("len").value is None  # its text is there


def test_get_is_strict_lenient_or_exact(sandbox):
    sandbox.run_code(CLASSES)
    with pytest.raises(CannotTravel, match=r"^point\['shade'\] is a Shade.*\n.*types="):
        sandbox.get("point")
    assert sandbox.get("point", lenient=True) == {"x": 1, "shade": "l"}
    assert sandbox.get("point", types=[Point]) == Point(1, Shade.LIGHT)
    assert sandbox.get("pair", types=[Pair, list[Point]]) == Pair(1, [Point(2)])
    sandbox.run_code("import threading; lock = threading.Lock()")
    with pytest.raises(CannotTravel, match=r"^lock is a _thread.lock\n.*lenient=True"):
        sandbox.get("lock")
    assert "lock" in sandbox.get("lock", lenient=True)
    sandbox.run_code("@dataclasses.dataclass\nclass Point:\n    y: int\npoint = Point(5)")
    with pytest.raises(CannotTravel, match="does not fit the class Point"):
        sandbox.get("point", types=[Point])


def test_arguments_have_the_classes_of_the_annotations_and_no_others(make_sandbox):
    seen = []

    def take(point: Point, other: object = None) -> None:
        seen.append((point, other))

    sandbox = make_sandbox(functions=[take])
    sandbox.run_code(CLASSES)
    assert sandbox.run_code("take(point)").ok
    assert sandbox.run_code("take(point, pair)").ok
    assert sandbox.run_code("class Other(enum.Enum):\n    A = 5\ntake(1, Other.A)").ok
    assert seen == [
        (Point(1, Shade.LIGHT), None),
        (Point(1, Shade.LIGHT), (1, [Point(2)])),
        (1, 5),
    ]
    failed = sandbox.run_code("take(len)")
    assert failed.error.name == "TypeError"
    assert len(seen) == 3


def test_results_of_host_functions_are_lenient_and_the_note_names_the_function(make_sandbox):
    sandbox = make_sandbox(functions={"point": lambda: Point(1), "lock": threading.Lock})
    execution = sandbox.run_code("[point(), lock()]")
    assert execution.value == [{"x": 1, "shade": 1}, "<unlocked _thread.lock object>"]
    assert any(note.startswith("the result of lock(): value is a ") for note in execution.notes)
    failed = sandbox.run_code("point()\n1 / 0")
    assert failed.outcome is Outcome.error
    assert any(note.startswith("the result of point(): ") for note in failed.notes)


def test_images_are_images_and_figures_are_pictures(make_sandbox):
    seen = []
    sandbox = make_sandbox(environment="data", functions={"take": seen.append})
    sandbox.put(image=Image.new("RGB", (3, 2), "red"))
    execution = sandbox.run_code("from PIL import Image; take(image); image.convert('L')")
    assert seen[0].tobytes() == b"\xff\x00\x00" * 6
    assert (execution.value.mode, execution.value.size) == ("L", (3, 2))
    assert sandbox.get("image").getpixel((0, 0)) == (255, 0, 0)
    shown = sandbox.run_code("import matplotlib.pyplot as plt; figure = plt.figure(); figure")
    assert shown.value == shown.images[0]
    assert shown.notes == ("value is a figure, taken as PNG",)
    assert len(shown.results) == 1
    assert sandbox.get("figure", lenient=True).startswith(b"\x89PNG")
    with pytest.raises(CannotTravel, match=r"figure is a matplotlib.figure.Figure"):
        sandbox.get("figure")
    artists = sandbox.run_code("plt.plot([1, 2])")
    assert (artists.value, artists.notes) == (None, ())  # their figure is shown


def test_without_pillow_in_the_sandbox_an_image_is_a_png(sandbox):
    sandbox.put(image=Image.new("RGB", (3, 2), "red"))
    execution = sandbox.run_code("image[:8]")
    assert execution.value == b"\x89PNG\r\n\x1a\n"
    assert execution.notes == ("image is a PIL image, as PNG without pillow; taken as bytes",)
