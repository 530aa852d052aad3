"""Charts as data: what a figure shows, so that a program or a model can read or redraw it.

The guest describes its figures in JSON. It is parsed strictly and with caps; a description that is
not valid gives no chart.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

from belljar.text import parse_json

MAX_JSON = 4 * 1024 * 1024  # characters
MAX_PARTS = 100_000  # elements, points and ticks of a chart, together with those of its parts
MAX_TEXT = 1000  # characters of one text

T = TypeVar("T")
Coordinate = float | str | None  # a number, an ISO date or a category; None: missing


class ChartType(StrEnum):
    """What is drawn; it decides the class of the elements."""

    line = "line"  # Series
    scatter = "scatter"  # Series
    bar = "bar"  # Bar, also for histograms
    pie = "pie"  # Slice
    box_and_whisker = "box_and_whisker"  # Box
    superchart = "superchart"  # Chart: several in one figure
    unknown = "unknown"  # no elements: a picture, a map, ...


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points that belong together, such as one line."""

    label: str
    points: tuple[tuple[Coordinate, Coordinate], ...]


@dataclass(frozen=True, kw_only=True)
class Bar:
    label: str  # its position, such as "2024" or the bin "[0, 10)"
    group: str  # the label of its set of bars
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Slice:
    label: str
    angle: float | None  # degrees
    radius: float | None


@dataclass(frozen=True, kw_only=True)
class Box:
    label: str
    min: float | None  # the end of the lower whisker
    first_quartile: float | None
    median: float | None
    third_quartile: float | None
    max: float | None  # the end of the upper whisker
    outliers: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One pair of axes and what is drawn there, or several such charts (a superchart)."""

    type: ChartType
    title: str
    elements: tuple[Series | Bar | Slice | Box | Chart, ...]
    x_label: str = ""
    y_label: str = ""
    x_unit: str | None = None  # from a label such as "Speed (km/h)"
    y_unit: str | None = None
    x_ticks: tuple[Coordinate, ...] = ()
    y_ticks: tuple[Coordinate, ...] = ()
    x_tick_labels: tuple[str, ...] = ()
    y_tick_labels: tuple[str, ...] = ()
    x_scale: str | None = None  # linear, log, datetime, categorical, ...
    y_scale: str | None = None
    truncated: bool = False  # some points (evenly) or the last bars, slices or boxes are left out

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry."""
        plain: dict[str, object] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return plain


def parse_chart(text: str) -> Chart | None:
    """Parse the guest's description; None for anything but a well-formed chart."""
    if len(text) > MAX_JSON:
        return None
    try:
        return _Parser().read_chart(parse_json(text))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


class _Parser:
    """Reads a chart from the guest's JSON; raises ValueError, TypeError or KeyError."""

    def __init__(self) -> None:
        self._room = MAX_PARTS
        # By the annotation of a field.
        self._readers: dict[str, Callable[[object], object]] = {
            "str": _text,
            "str | None": lambda data: None if data is None else _text(data),
            "float | None": _number,
            "bool": lambda data: data is True,
            "ChartType": lambda data: ChartType(_text(data)),
            "tuple[str, ...]": lambda data: tuple(map(_text, self._list(data))),
            "tuple[float | None, ...]": lambda data: tuple(map(_number, self._list(data))),
            "tuple[Coordinate, ...]": lambda data: tuple(map(_coordinate, self._list(data))),
            _POINTS: lambda data: tuple(map(_point, self._list(data))),
        }

    def read_chart(self, data: object, *, inside: bool = False) -> Chart:
        fields = _mapping(data)
        kind = ChartType(_text(fields["type"]))
        if kind is ChartType.superchart and inside:
            raise ValueError("a superchart in a superchart")
        parts = self._list(fields["elements"])
        elements: tuple[Series | Bar | Slice | Box | Chart, ...]
        if kind is ChartType.superchart:
            elements = tuple(self.read_chart(part, inside=True) for part in parts)
        else:  # KeyError for elements of an unknown kind
            elements = tuple(self._read(_ELEMENTS[kind], _mapping(part)) for part in parts)
        return self._read(Chart, fields, elements=elements)

    def _read(self, cls: type[T], data: Mapping[str, object], **known: object) -> T:
        """An instance of a dataclass; fields without a default must be there."""
        values = dict(known)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            required = field.default is dataclasses.MISSING
            if field.name not in known and (required or field.name in data):
                values[field.name] = self._readers[str(field.type)](data[field.name])
        return cls(**values)

    def _list(self, data: object) -> list[object]:
        if not isinstance(data, list):
            raise TypeError("not a list")
        self._room -= len(data)
        if self._room < 0:
            raise ValueError("too many parts")
        return data


_POINTS = "tuple[tuple[Coordinate, Coordinate], ...]"
_ELEMENTS: dict[ChartType, type[Series | Bar | Slice | Box]] = {
    ChartType.line: Series,
    ChartType.scatter: Series,
    ChartType.bar: Bar,
    ChartType.pie: Slice,
    ChartType.box_and_whisker: Box,
}


def _mapping(data: object) -> Mapping[str, object]:
    if not isinstance(data, dict):
        raise TypeError("not an object")
    return data


def _text(data: object) -> str:
    if not isinstance(data, str) or len(data) > MAX_TEXT:
        raise TypeError("not a text, or too long")
    return data


def _point(data: object) -> tuple[Coordinate, Coordinate]:
    if not isinstance(data, list) or len(data) != 2:
        raise TypeError("a point is two coordinates")
    return _coordinate(data[0]), _coordinate(data[1])


def _number(data: object) -> float | None:
    if data is None:
        return None
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise TypeError("not a number")
    number = float(data)
    if not math.isfinite(number):  # JSON may say 1e999
        raise ValueError("not a finite number")
    return number


def _coordinate(data: object) -> Coordinate:
    return _text(data) if isinstance(data, str) else _number(data)
