"""What is drawn in one pair of matplotlib's axes: lines, points, bars, pies, boxes, as data."""

import functools
import math
import sys
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

Found = Dict[str, Tuple[List[Dict[str, Any]], bool]]  # chart type -> elements, truncated

MAX_ELEMENTS = 1000  # of one chart
MAX_LABEL = 500  # characters
_BOXES = "_belljar_boxes"
_WORDS = ("FuncFormatter", "FixedLocator")


class Room:
    """How many points may still be told, of one chart and of all."""

    def __init__(self, each: int, all_: int) -> None:
        self.each = each
        self._left = all_

    def take(self, wanted: int) -> int:
        given = min(wanted, self.each, self._left)
        self._left -= given
        return given


class Scale:
    """One axis: how numbers on it are read. Inside matplotlib all of them are floats."""

    def __init__(self, axes: Any, axis: Any) -> None:
        self._axis = axis
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        kind = type(converter).__name__
        self.name: str = axis.get_scale()
        self._read: Callable[[float], Any] = float
        freq = getattr(axes, "freq", None) if axis is axes.xaxis else None
        if "Category" in kind:
            self.name, self._read = "categorical", self._category
            mapping = getattr(axis.units, "_mapping", {})
            self._names = {number: str(name)[:MAX_LABEL] for name, number in mapping.items()}
        elif "Period" in kind or freq is not None:
            self.name = "datetime"
            self._read = functools.partial(self._period, freq)
        elif "Date" in kind:
            self.name, self._read = "datetime", self._date

    def plain(self, number: Any) -> Any:
        """As JSON has it: a number, an ISO date, the name of a category; None for nan."""
        number = float(number)
        if not math.isfinite(number):
            return None
        try:
            return self._read(number)
        except Exception:  # a date before year 1, a period that is none
            return number

    def label(self, number: float) -> str:
        """The words below a bar."""
        if self.name in ("categorical", "datetime"):
            return str(self.plain(number))
        texts = self._texts()
        if texts:
            near = min(texts, key=lambda place: abs(place - number))
            if abs(near - number) < 0.5:
                return texts[near]
        return f"{number:g}"

    @property
    def has_names(self) -> bool:
        return self.name in ("categorical", "datetime") or bool(self._texts())

    def _texts(self) -> Dict[float, str]:
        """Ticks that somebody has given words to, as pandas does for bars."""
        # For some of them matplotlib makes a function of the words; the places are fixed then.
        formatter = type(self._axis.get_major_formatter()).__name__
        locator = type(self._axis.get_major_locator()).__name__
        if formatter != "FixedFormatter" and (formatter, locator) != _WORDS:
            return {}
        labels = [label.get_text()[:MAX_LABEL] for label in self._axis.get_majorticklabels()]
        return {float(p): t for p, t in zip(self._axis.get_majorticklocs(), labels) if t}

    def _category(self, number: float) -> Any:
        return self._names.get(round(number), number)

    def _date(self, number: float) -> str:
        moment = sys.modules["matplotlib.dates"].num2date(number)
        return str(moment.replace(tzinfo=None).isoformat())

    def _period(self, freq: Any, number: float) -> Any:
        period = sys.modules["pandas"].Period(ordinal=int(number), freq=freq)
        return period.to_timestamp().isoformat()


def record_boxes(axes_class: Any) -> None:
    """Keep the statistics of box plots: what is drawn are lines that do not tell what they are."""
    original = axes_class.bxp

    @functools.wraps(original)
    def bxp(self: Any, bxpstats: Any, *args: Any, **options: Any) -> Any:
        made = original(self, bxpstats, *args, **options)
        setattr(self, _BOXES, [*getattr(self, _BOXES, ()), (bxpstats, made)])
        return made

    axes_class.bxp = bxp


def find(axes: Any, room: Room) -> Found:
    """The elements by chart type; what is decoration (caps, whiskers, legends) is no element."""
    scales = Scale(axes, axes.xaxis), Scale(axes, axes.yaxis)
    found: Found = {}
    taken: Set[int] = set()  # ids of artists that are parts of something else
    names: Dict[int, str] = {}
    for kind, parts in (
        ("pie", _pies(axes)),
        ("box_and_whisker", _boxes(axes, scales, taken)),
        ("bar", _bars(axes, scales, taken, names)),
    ):
        if parts:
            given = room.take(len(parts))
            found[kind] = parts[:given], given < len(parts)
    if "pie" not in found:
        for kind, arrays in _point_sets(axes, taken, names).items():
            found[kind] = _points(arrays, scales, room)
    return found


# -- pies, boxes, bars --------------------------------------------------------------------------


def _pies(axes: Any) -> List[Dict[str, Any]]:
    return [
        {
            "label": _label(patch),
            "angle": _number(patch.theta2 - patch.theta1),
            "radius": _number(patch.r),
        }
        for patch in axes.patches
        if type(patch).__name__ == "Wedge"
    ]


def _boxes(axes: Any, scales: Tuple[Scale, Scale], taken: Set[int]) -> List[Dict[str, Any]]:
    parts = []
    for stats, made in getattr(axes, _BOXES, ()):
        taken.update(id(artist) for artists in made.values() for artist in artists)
        for each, median in zip(stats, made["medians"]):
            if median.axes is not axes:
                continue  # removed again
            x, y = (float(sum(values) / len(values)) for values in median.get_data(orig=False))
            across = scales[0] if abs(y - each["med"]) <= abs(x - each["med"]) else scales[1]
            label = across.label(x if across is scales[0] else y)
            outliers = [_number(value) for value in list(each.get("fliers", ()))[:MAX_ELEMENTS]]
            names = ("whislo", "q1", "med", "q3", "whishi")
            low, first, middle, third, high = (_number(each[name]) for name in names)
            parts.append(
                {
                    "label": label,
                    "min": low,
                    "first_quartile": first,
                    "median": middle,
                    "third_quartile": third,
                    "max": high,
                    "outliers": outliers,
                }
            )
    return parts


def _bars(
    axes: Any, scales: Tuple[Scale, Scale], taken: Set[int], names: Dict[int, str]
) -> List[Dict[str, Any]]:
    parts: List[Dict[str, Any]] = []
    for container in axes.containers:
        kind = type(container).__name__
        if kind == "BarContainer":
            parts += _bars_of(container, scales)
            container = getattr(container, "errorbar", None)
        if type(container).__name__ == "ErrorbarContainer":
            line, caps, _ = container.lines
            taken.update(map(id, caps))
            names[id(line)] = _label(container)
        elif kind == "StemContainer":
            taken.add(id(container.baseline))
            names[id(container.markerline)] = _label(container)
    return parts


def _bars_of(container: Any, scales: Tuple[Scale, Scale]) -> List[Dict[str, Any]]:
    lying = getattr(container, "orientation", "vertical") == "horizontal"
    scale, group, parts = scales[1 if lying else 0], _label(container), []
    spans = [
        (p.get_y(), p.get_height(), p.get_width()) if lying
        else (p.get_x(), p.get_width(), p.get_height())
        for p in container.patches
    ]  # fmt: skip
    bins = _touch(spans) and not scale.has_names
    for start, width, value in spans:
        start, width = float(start), float(width)
        label = _bin(start, width) if bins else scale.label(start + width / 2)
        parts.append({"label": label, "group": group, "value": _number(value)})
    return parts


def _touch(spans: List[Tuple[Any, Any, Any]]) -> bool:
    """Bars side by side without a gap are the bins of a histogram."""
    ends = [start + width for start, width, _ in spans[:-1]]
    starts = [start for start, _, _ in spans[1:]]
    slack = max((abs(width) for _, width, _ in spans), default=0.0) * 1e-6
    return bool(ends) and all(abs(end - start) <= slack for end, start in zip(ends, starts))


def _bin(start: float, width: float) -> str:
    """Its edges; bars are drawn around their middle, so that zero may come as 1e-16."""
    ends = (0.0 if abs(end) < width * 1e-9 else end for end in (start, start + width))
    return " to ".join(f"{end:g}" for end in ends)


# -- lines and points ---------------------------------------------------------------------------

Arrays = List[Tuple[str, Any, Any]]  # label, xs, ys


def _point_sets(axes: Any, taken: Set[int], names: Dict[int, str]) -> Dict[str, Arrays]:
    # A line across all of the axes (axhline) is in other coordinates, and is no data.
    lines = [
        line
        for line in axes.lines
        if id(line) not in taken and line.get_visible() and line.get_transform() == axes.transData
    ]
    # Lines without points are there for the legend: seaborn names lines by their colour.
    colours = {str(line.get_color()): _label(line) for line in lines if not len(line.get_xdata())}
    sets: Dict[str, Arrays] = {}
    for line in lines:
        xs, ys = line.get_data(orig=False)
        if len(xs):
            bare = str(line.get_linestyle()).strip() in ("", "None")
            kind = "scatter" if bare and id(line) not in names else "line"
            label = names.get(id(line)) or _label(line) or colours.get(str(line.get_color()), "")
            sets.setdefault(kind, []).append((label, xs, ys))
    _add_collections(axes, sets)
    return sets


def _add_collections(axes: Any, sets: Dict[str, Arrays]) -> None:
    areas: Arrays = []
    for collection in axes.collections:
        kind = type(collection).__name__
        if kind == "PathCollection" and collection.get_visible():
            offsets = collection.get_offsets()
            points = offsets.filled(math.nan) if hasattr(offsets, "filled") else offsets
            sets.setdefault("scatter", []).append((_label(collection), points[:, 0], points[:, 1]))
        elif kind == "FillBetweenPolyCollection":
            areas += [(_label(collection), *_upper_edge(p)) for p in collection.get_paths()]
    if areas and not sets:  # else it is the shade around a line
        sets["line"] = areas


def _upper_edge(path: Any) -> Tuple[Any, Any]:
    """The first curve of fill_between(): corner, n points, corner, n points back, end."""
    count = (len(path.vertices) - 3) // 2
    edge = path.vertices[1 : count + 1]
    return edge[:, 0], edge[:, 1]


def _points(
    arrays: Arrays, scales: Tuple[Scale, Scale], room: Room
) -> Tuple[List[Dict[str, Any]], bool]:
    total = sum(len(xs) for _, xs, _ in arrays)
    given = room.take(total)
    truncated = given < total or len(arrays) > MAX_ELEMENTS
    parts = []
    for label, xs, ys in arrays[:MAX_ELEMENTS]:
        count = len(xs) * given // total if total else 0
        chosen = _evenly(len(xs), count)
        points = [[scales[0].plain(xs[i]), scales[1].plain(ys[i])] for i in chosen]
        parts.append({"label": label, "points": points})
    return parts, truncated


def _evenly(length: int, count: int) -> List[int]:
    """`count` places out of `length`, the first and the last among them."""
    if count >= length:
        return list(range(length))
    if count < 2:
        return [0][:count]
    return [round(i * (length - 1) / (count - 1)) for i in range(count)]


def _label(artist: Any) -> str:
    label = artist.get_label()
    # matplotlib's own names, "_child0", are for those without one.
    return "" if label is None or str(label).startswith("_") else str(label)[:MAX_LABEL]


def _number(value: Any) -> Optional[float]:
    number = float(value)
    return number if math.isfinite(number) else None
