"""A matplotlib figure as data: what was drawn, so that somebody else can draw it again.

    {"type": "line", "title": "Growth", "x_label": "Day", "y_label": "Mass (kg)", "y_unit": "kg",
     "x_ticks": [...], "x_tick_labels": [...], "x_scale": "linear", ...,
     "elements": [{"label": "oak", "points": [[0.0, 1.5], ...]}]}

Several charts in one figure (subplots, bars below a line) are the elements of a "superchart".
"""

import json
import re
from typing import Any, Dict, List, Optional

from . import chart_elements as elements
from . import chart_lines as lines

MIME = "application/vnd.belljar.chart+json"
MAX_CHARTS = 64
MAX_TICKS = 200
MAX_POINTS = 1000  # of one chart, for a prompt to hold it; of a figure three times as many
MAX_LABEL = 500  # characters

_UNIT = re.compile(r"[(\[]\s*([^()\[\]]{1,40}?)\s*[)\]]\s*$")


class Partial(str):
    """The JSON of a chart of which something was left out."""


def describe(figure: Any) -> Optional[str]:
    """The chart as JSON; None if there is nothing in it. The figure has been drawn before."""
    axes = [a for a in figure.axes if a.get_visible() and not hasattr(a, "_colorbar")]
    with_data = [a for a in axes if a.has_data() or a.patches]
    room = elements.Room(MAX_POINTS, 3 * MAX_POINTS)
    charts = [chart for a in with_data[:MAX_CHARTS] for chart in _charts(a, room)]
    truncated = any("truncated" in each for each in charts)
    truncated = truncated or max(len(charts), len(with_data)) > MAX_CHARTS
    if not charts:
        return None
    title = _title_of_all(figure)
    if len(charts) == 1:
        chart = charts[0]
        chart["title"] = chart["title"] or title
    else:
        chart = {"type": "superchart", "title": title, "elements": charts[:MAX_CHARTS]}
        if truncated:
            chart["truncated"] = True
    text = json.dumps(chart, allow_nan=False)
    return Partial(text) if truncated else text


def _charts(axes: Any, room: elements.Room) -> List[Dict[str, Any]]:
    """One chart for each kind of thing that was drawn here."""
    frame = _frame(axes)
    found: elements.Found = {}
    if axes.name == "rectilinear":  # else x and y mean something else
        scales = elements.Scale(axes, axes.xaxis), elements.Scale(axes, axes.yaxis)
        drawn = elements.find(axes, scales, room)
        found = {**drawn.found, **lines.find(axes, scales, room, drawn)}
    charts = []
    for kind, (parts, truncated) in found.items():
        chart = {"type": kind, **frame, "elements": parts}
        if truncated:
            chart["truncated"] = True
        charts.append(chart)
    return charts or [{"type": "unknown", **frame, "elements": []}]


def _frame(axes: Any) -> Dict[str, Any]:
    """Title and axes: what all charts drawn here have in common."""
    title = next(filter(None, (axes.get_title(at) for at in ("center", "left", "right"))), "")
    frame: Dict[str, Any] = {"title": _short(title)}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if not hasattr(axis, "get_label_text"):
            continue
        label = axis.get_label_text()
        scale = elements.Scale(axes, axis)
        ticks, labels = _ticks(axis, scale)
        frame.update(
            {
                f"{name}_label": _short(label),
                f"{name}_unit": unit_of(label),
                f"{name}_ticks": ticks,
                f"{name}_tick_labels": labels,
                f"{name}_scale": scale.name,
            }
        )
    return frame


def unit_of(label: str) -> Optional[str]:
    """The unit in "Speed (km/h)" or "Price [EUR]"; None if the label has none."""
    found = _UNIT.search(label)
    return found[1] if found else None


def _ticks(axis: Any, scale: elements.Scale) -> Any:
    """Those in sight; matplotlib has some to the left and right of what is shown."""
    low, high = sorted(axis.get_view_interval())
    slack = (high - low) * 1e-9
    ticks: List[Any] = []
    labels: List[str] = []
    for place, text in zip(axis.get_majorticklocs(), axis.get_majorticklabels()):
        if low - slack <= place <= high + slack and len(ticks) < MAX_TICKS:
            tick = scale.plain(place)
            ticks.append(float(f"{tick:.12g}") if isinstance(tick, float) else tick)
            labels.append(_short(text.get_text()))
    return ticks, labels


def _title_of_all(figure: Any) -> str:
    title = getattr(figure, "_suptitle", None)
    return "" if title is None else _short(title.get_text())


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else text[:MAX_LABEL] + "\u2026"
