"""Bars, pies and boxes in one pair of matplotlib's axes, as data. Lines are in `chart_lines`."""

import functools
import math
import sys
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

Found = Dict[str, Tuple[List[Dict[str, Any]], bool]]  # chart type -> elements, truncated

MAX_ELEMENTS = 1000  # of one chart
MAX_LABEL = 500  # characters
_BOXES = "_belljar_boxes"
_EDGES = "_belljar_edges"
_BOX_NUMBERS = {  # our names, and those of matplotlib
    "min": "whislo",
    "first_quartile": "q1",
    "median": "med",
    "third_quartile": "q3",
    "max": "whishi",
}
_WORDS = ("FuncFormatter", "FixedLocator")


class PointBudget:
    """How many points one chart, and all charts, may still have."""

    def __init__(self, each: int, all_: int) -> None:
        self.each = each
        self._left = all_

    def take(self, wanted: int) -> int:
        given = min(wanted, self.each, self._left)
        self._left -= given
        return given


class Scale:
    """One axis: how its numbers are read. Inside matplotlib all of them are floats."""

    def __init__(self, axes: Any, axis: Any) -> None:
        self._axis = axis
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        kind = type(converter).__name__
        self.name: str = axis.get_scale()
        self._read: Callable[[float], Any] = float
        freq = getattr(axes, "freq", None) if axis is axes.xaxis else None
        if "Category" in kind:
            mapping = getattr(axis.units, "_mapping", {})
            names = {number: str(name)[:MAX_LABEL] for name, number in mapping.items()}
            self.name, self._read = "categorical", lambda number: names.get(round(number), number)
        elif "Period" in kind or freq is not None:
            self.name = "datetime"
            self._read = functools.partial(self._period, freq)
        elif "Date" in kind:
            self.name, self._read = "datetime", self._date

    def plain(self, number: Any) -> Any:
        """The number for JSON: a number, an ISO date, the name of a category; None for nan."""
        number = float(number)
        if not math.isfinite(number):
            return None
        try:
            return self._read(number)
        except Exception:  # a date before year 1, a period that is not valid
            return number

    def label(self, number: float) -> str:
        """The label below a bar."""
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
        """Ticks with given labels, as pandas sets them for bars."""
        # For some, matplotlib makes a formatter of the labels; the positions are fixed then.
        formatter = type(self._axis.get_major_formatter()).__name__
        locator = type(self._axis.get_major_locator()).__name__
        if formatter != "FixedFormatter" and (formatter, locator) != _WORDS:
            return {}
        labels = [label.get_text()[:MAX_LABEL] for label in self._axis.get_majorticklabels()]
        return {float(p): t for p, t in zip(self._axis.get_majorticklocs(), labels) if t}

    def _date(self, number: float) -> str:
        moment = sys.modules["matplotlib.dates"].num2date(number)
        return str(moment.replace(tzinfo=None).isoformat())

    def _period(self, freq: Any, number: float) -> Any:
        period = sys.modules["pandas"].Period(ordinal=int(number), freq=freq)
        return period.to_timestamp().isoformat()


Scales = Tuple[Scale, Scale]  # of x and of y


class FoundElements:
    """What was found in one pair of axes, and which lines are parts of other elements."""

    def __init__(self) -> None:
        self.found: Found = {}
        self.taken: Set[int] = set()  # ids of artists that are parts of something else
        self.names: Dict[int, str] = {}  # labels of lines, by their ids
        # Separate bars: which axis they stand on, centre, half of the width.
        self.spans: List[Tuple[int, float, float]] = []


def record_calls(axes_class: Any) -> None:
    """Keep what the drawing does not show: statistics of box plots, bins of histograms."""
    draw_boxes, draw_histogram = axes_class.bxp, axes_class.hist

    @functools.wraps(draw_boxes)
    def bxp(self: Any, bxpstats: Any, *args: Any, **options: Any) -> Any:
        made = draw_boxes(self, bxpstats, *args, **options)
        setattr(self, _BOXES, [*getattr(self, _BOXES, ()), (bxpstats, made)])
        return made

    @functools.wraps(draw_histogram)
    def hist(self: Any, *args: Any, **options: Any) -> Any:
        made = draw_histogram(self, *args, **options)
        _, edges, bars = made
        for container in [bars] if type(bars).__name__ == "BarContainer" else bars:
            if type(container).__name__ == "BarContainer":  # else outlines
                setattr(container, _EDGES, edges)
        return made

    axes_class.bxp, axes_class.hist = bxp, hist


def find_elements(axes: Any, scales: Scales, room: PointBudget) -> FoundElements:
    """The elements by chart type, without decoration (caps, whiskers, legends)."""
    drawn = FoundElements()
    for kind, parts in (
        ("pie", _add_pies(axes)),
        ("box_and_whisker", _add_boxes(axes, scales, drawn)),
        ("bar", _add_bars(axes, scales, drawn)),
    ):
        if parts:
            given = room.take(len(parts))
            cut = kind == "box_and_whisker" and _thin_outliers(parts[:given], room)
            drawn.found[kind] = parts[:given], cut or given < len(parts)
    return drawn


# -- pies, boxes, bars --------------------------------------------------------------------------


def _add_pies(axes: Any) -> List[Dict[str, Any]]:
    return [
        {
            "label": get_label(patch),
            "angle": _number(patch.theta2 - patch.theta1),
            "radius": _number(patch.r),
        }
        for patch in axes.patches
        if type(patch).__name__ == "Wedge"
    ]


def _add_boxes(axes: Any, scales: Scales, drawn: FoundElements) -> List[Dict[str, Any]]:
    parts: List[Dict[str, Any]] = []
    for stats, made in getattr(axes, _BOXES, ()):
        drawn.taken.update(id(artist) for artists in made.values() for artist in artists)
        for each, median in zip(stats, made["medians"]):
            if median.axes is not axes:
                continue  # it was removed
            x, y = (float(sum(values) / len(values)) for values in median.get_data(orig=False))
            across = scales[0] if abs(y - each["med"]) <= abs(x - each["med"]) else scales[1]
            label = across.label(x if across is scales[0] else y)
            numbers = {name: _number(each[given]) for name, given in _BOX_NUMBERS.items()}
            parts.append({"label": label, **numbers, "outliers": each.get("fliers", ())})
    return parts


def _thin_outliers(boxes: List[Dict[str, Any]], room: PointBudget) -> bool:
    """True if some were left out."""
    total = sum(len(box["outliers"]) for box in boxes)
    given = room.take(total)
    for box in boxes:
        values = box["outliers"]
        chosen = pick_evenly(len(values), len(values) * given // total if total else 0)
        box["outliers"] = [_number(values[i]) for i in chosen]
    return given < total


def _add_bars(axes: Any, scales: Scales, drawn: FoundElements) -> List[Dict[str, Any]]:
    parts: List[Dict[str, Any]] = []
    colours = _read_legend_colours(axes)
    for container in axes.containers:
        kind = type(container).__name__
        if kind == "BarContainer":
            parts += _read_bars(container, scales, colours, drawn)
            container = getattr(container, "errorbar", None)
        if type(container).__name__ == "ErrorbarContainer":
            line, caps, _ = container.lines
            drawn.taken.update(map(id, caps))
            drawn.names[id(line)] = get_label(container)
        elif kind == "StemContainer":
            drawn.taken.add(id(container.baseline))
            drawn.names[id(container.markerline)] = get_label(container)
    return parts


def _read_legend_colours(axes: Any) -> Dict[Any, str]:
    """seaborn names bars by their colour, and only in the legend."""
    legend = axes.get_legend()
    if legend is None:
        return {}
    return {
        tuple(handle.get_facecolor()[:3]): text.get_text()[:MAX_LABEL]
        for handle, text in zip(getattr(legend, "legend_handles", ()), legend.get_texts())
        if type(handle).__name__ == "Rectangle"
    }


def _read_bars(
    container: Any, scales: Scales, colours: Dict[Any, str], drawn: FoundElements
) -> List[Dict[str, Any]]:
    lying = getattr(container, "orientation", "vertical") == "horizontal"
    scale, patches = scales[1 if lying else 0], container.patches
    spans = [
        (float(p.get_y()), float(p.get_height()), p.get_width()) if lying
        else (float(p.get_x()), float(p.get_width()), p.get_height())
        for p in patches
    ]  # fmt: skip
    edges = None if scale.has_names else _find_edges(container, spans)
    if edges is None:
        labels = [scale.label(start + width / 2) for start, width, _ in spans]
        drawn.spans += [
            (int(lying), start + width / 2, abs(width) / 2) for start, width, _ in spans
        ]
    else:
        labels = _name_bins(edges)
    # hist() labels the first bar; others label every bar.
    group = get_label(container) or (get_label(patches[0]) if patches else "")
    parts = []
    for patch, label, (_, _, value) in zip(patches, labels, spans):
        named = get_label(patch) or group or colours.get(tuple(patch.get_facecolor()[:3]), "")
        parts.append({"label": label, "group": named, "value": _number(value)})
    return parts


def _find_edges(container: Any, spans: List[Tuple[float, float, Any]]) -> Optional[List[float]]:
    """Edges of the bins of a histogram. Bars side by side without a gap are one, too."""
    known = getattr(container, _EDGES, ())
    if len(known) == len(spans) + 1:
        return [float(edge) for edge in known]
    edges = [start for start, _, _ in spans] + [sum(spans[-1][:2])] if len(spans) > 1 else []
    ends = [start + width for start, width, _ in spans]
    slack = max((abs(width) for _, width, _ in spans), default=0.0) * 1e-6
    touch = all(abs(end - edge) <= slack for end, edge in zip(ends, edges[1:]))
    return edges if edges and touch else None


def _name_bins(edges: List[float]) -> List[str]:
    """Intervals as in mathematics, with enough digits to distinguish the edges."""
    count = len(edges) - 1
    width = min(abs(edges[i + 1] - edges[i]) for i in range(count)) or 1.0
    largest = max(map(abs, edges)) or 1.0
    needed = max(1 + math.log10(largest), 3 + math.log10(largest / width))
    digits = min(15, max(6, math.ceil(needed)))
    # Bars are drawn around their centre, so zero may come as 1e-16.
    texts = [f"{0.0 if abs(edge) < width * 1e-9 else edge:.{digits}g}" for edge in edges]
    closing = [")"] * (count - 1) + ["]"]
    return [f"[{texts[i]}, {texts[i + 1]}{closing[i]}" for i in range(count)]


# -- what lines need as well --------------------------------------------------------------------


def pick_evenly(length: int, count: int) -> List[int]:
    """`count` places out of `length`, the first and the last among them."""
    if count >= length:
        return list(range(length))
    if count < 2:
        return [0][:count]
    return [round(i * (length - 1) / (count - 1)) for i in range(count)]


def get_label(artist: Any) -> str:
    label = artist.get_label()
    # matplotlib names unlabelled artists "_child0".
    return "" if label is None or str(label).startswith("_") else str(label)[:MAX_LABEL]


def _number(value: Any) -> Optional[float]:
    number = float(value)
    return number if math.isfinite(number) else None
