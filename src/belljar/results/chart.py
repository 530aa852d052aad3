"""Charts as data: what a figure shows, so that a program or a model can read or redraw it.

The guest describes its figures in JSON. It is parsed strictly and with caps; a description that is
not valid gives no chart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from belljar.text import parse_json

MAX_JSON = 4 * 1024 * 1024  # characters
MAX_PARTS = 100_000  # elements, points and ticks of a chart, together with those of its parts
MAX_TEXT = 1000  # characters of one text

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
        return _Parser().chart(parse_json(text))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


class _Parser:
    """Reads a chart from the guest's JSON; raises ValueError, TypeError or KeyError."""

    def __init__(self) -> None:
        self._room = MAX_PARTS

    def chart(self, data: object, *, inside: bool = False) -> Chart:
        fields = _mapping(data)
        kind = ChartType(_text(fields["type"]))
        if kind is ChartType.superchart and inside:
            raise ValueError("a superchart in a superchart")
        read: dict[ChartType, Callable[[object], Series | Bar | Slice | Box | Chart]] = {
            ChartType.line: self._series,
            ChartType.scatter: self._series,
            ChartType.bar: _bar,
            ChartType.pie: _slice,
            ChartType.box_and_whisker: self._box,
            ChartType.superchart: lambda part: self.chart(part, inside=True),
        }
        parts = self._list(fields["elements"])
        if parts and kind not in read:
            raise ValueError("elements of an unknown kind")
        return Chart(
            type=kind,
            title=_text(fields["title"]),
            elements=tuple(read[kind](part) for part in parts),
            x_label=_text(fields.get("x_label", "")),
            y_label=_text(fields.get("y_label", "")),
            x_unit=_text_or_none(fields.get("x_unit")),
            y_unit=_text_or_none(fields.get("y_unit")),
            x_ticks=self._coordinates(fields.get("x_ticks", [])),
            y_ticks=self._coordinates(fields.get("y_ticks", [])),
            x_tick_labels=tuple(map(_text, self._list(fields.get("x_tick_labels", [])))),
            y_tick_labels=tuple(map(_text, self._list(fields.get("y_tick_labels", [])))),
            x_scale=_text_or_none(fields.get("x_scale")),
            y_scale=_text_or_none(fields.get("y_scale")),
            truncated=fields.get("truncated", False) is True,
        )

    def _series(self, data: object) -> Series:
        fields = _mapping(data)
        points = []
        for point in self._list(fields["points"]):
            if not isinstance(point, list) or len(point) != 2:
                raise TypeError("a point is two coordinates")
            points.append((_coordinate(point[0]), _coordinate(point[1])))
        return Series(label=_text(fields["label"]), points=tuple(points))

    def _box(self, data: object) -> Box:
        fields = _mapping(data)
        return Box(
            label=_text(fields["label"]),
            min=_number(fields["min"]),
            first_quartile=_number(fields["first_quartile"]),
            median=_number(fields["median"]),
            third_quartile=_number(fields["third_quartile"]),
            max=_number(fields["max"]),
            outliers=tuple(map(_number, self._list(fields["outliers"]))),
        )

    def _coordinates(self, data: object) -> tuple[Coordinate, ...]:
        return tuple(map(_coordinate, self._list(data)))

    def _list(self, data: object) -> list[object]:
        if not isinstance(data, list):
            raise TypeError("not a list")
        self._room -= len(data)
        if self._room < 0:
            raise ValueError("too many parts")
        return data


def _bar(data: object) -> Bar:
    fields = _mapping(data)
    return Bar(
        label=_text(fields["label"]),
        group=_text(fields["group"]),
        value=_number(fields["value"]),
    )


def _slice(data: object) -> Slice:
    fields = _mapping(data)
    return Slice(
        label=_text(fields["label"]),
        angle=_number(fields["angle"]),
        radius=_number(fields["radius"]),
    )


def _mapping(data: object) -> Mapping[str, object]:
    if not isinstance(data, dict):
        raise TypeError("not an object")
    return data


def _text(data: object) -> str:
    if not isinstance(data, str) or len(data) > MAX_TEXT:
        raise TypeError("not a text, or too long")
    return data


def _text_or_none(data: object) -> str | None:
    return None if data is None else _text(data)


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
