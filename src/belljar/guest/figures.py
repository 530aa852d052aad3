"""matplotlib figures as pictures and as data, so that the host can draw them again.

    {"type": "line", "title": "Growth", "x_label": "Day", "y_label": "Mass (kg)", "y_unit": "kg",
     "x_ticks": [...], "x_tick_labels": [...], "x_scale": "linear", ...,
     "elements": [{"label": "oak", "points": [[0.0, 1.5], ...]}]}

Several charts in one figure (subplots, bars below a line) are the elements of a "superchart".
"""

import contextlib
import io
import json
import math
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from . import chart_elements as elements
from . import chart_lines as lines

MAX_PIXELS = 16_000_000  # of one picture: drawing takes four bytes for each
MAX_SIDE = 30_000  # pixels; the renderer refuses more than twice as many
LEGIBLE = 50  # dots per inch; below it, the figure is made smaller instead


def is_figure(value: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def bundle_figure(figure: Any) -> "Dict[str, Union[str, bytes]]":
    """Picture, text and chart of a figure. It is closed, so the cell does not show it again."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    return _draw_bundle(figure)


def replace_show(pyplot: Any, show: "Callable[[], None]") -> Any:
    """Have `pyplot.show` show the open figures at once, because a cell may call `close()` next."""

    def show_open(*args: Any, **options: Any) -> None:
        show()

    pyplot.__dict__["show"] = show_open
    return show_open


def close_open_figures(pyplot: Any) -> "List[Dict[str, Union[str, bytes]]]":
    """Draw and close the figures that are open, as a notebook does after each cell."""
    open_ = [pyplot.figure(number) for number in pyplot.get_fignums()]
    # Close before drawing: a figure that takes too long must not be drawn again after the time-out.
    pyplot.close("all")
    return [_draw_bundle(figure) for figure in open_]


def _draw_bundle(figure: Any) -> "Dict[str, Union[str, bytes]]":
    data: Dict[str, Union[str, bytes]] = {"text/plain": repr(figure)}
    try:
        with _limited_size(figure):
            data["image/png"] = _draw(figure)
    except Exception as error:  # such as a title that is not a valid formula
        data["text/plain"] = f"{figure!r}\ncannot be drawn: {type(error).__name__}: {error}"
        return data
    try:
        chart = describe_charts(figure)
    except Exception:  # the picture is enough
        chart = None
    if chart is not None:
        data[CHART_MIME] = chart
    return data


def _draw(figure: Any) -> bytes:
    figure.draw_without_rendering()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=figure.dpi, bbox_inches=_find_extent(figure))
    return buffer.getvalue()


def _find_extent(figure: Any) -> Any:
    """The area of all that is drawn, unless a part lies far beyond the edge of the figure."""
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    if not (math.isfinite(box.width) and math.isfinite(box.height)):
        return None
    if not (0 < box.width <= 2 * width and 0 < box.height <= 2 * height):
        return None
    return box.padded(sys.modules["matplotlib"].rcParams["savefig.pad_inches"])


@contextlib.contextmanager
def _limited_size(figure: Any) -> "Iterator[None]":
    """Limit the size of the figure while it is drawn."""
    width, height = size = tuple(figure.get_size_inches())
    dpi = figure.dpi
    wanted = sys.modules["matplotlib"].rcParams["savefig.dpi"]
    target = dpi if wanted == "figure" else float(wanted)
    most = min(math.sqrt(MAX_PIXELS / (width * height)), MAX_SIDE / max(width, height))
    scale = 1.0
    if target > most:
        target = max(most, min(target, LEGIBLE))
        scale = min(most / target, 1.0)
    if (target, scale) == (dpi, 1.0):
        yield
        return
    try:
        figure.dpi = target
        figure.set_size_inches(width * scale, height * scale, forward=False)
        yield
    finally:
        figure.dpi = dpi
        figure.set_size_inches(*size, forward=False)


# -- charts as data -------------------------------------------------------------------------------

CHART_MIME = "application/vnd.belljar.chart+json"
MAX_CHARTS = 64
MAX_TICKS = 200
MAX_POINTS = 1000  # of one chart, so that it fits a prompt; of a figure three times as many

_UNIT = re.compile(r"[(\[]\s*([^()\[\]]{1,40}?)\s*[)\]]\s*$")


class PartialChart(str):
    """The JSON of a chart without some of its points."""


def describe_charts(figure: Any) -> Optional[str]:
    """The chart as JSON; None if it is empty. The figure must have been drawn."""
    axes = [a for a in figure.axes if a.get_visible() and not hasattr(a, "_colorbar")]
    with_data = [a for a in axes if a.has_data() or a.patches]
    room = elements.PointBudget(MAX_POINTS, 3 * MAX_POINTS)
    charts = [chart for a in with_data[:MAX_CHARTS] for chart in _describe_axes(a, room)]
    truncated = any("truncated" in each for each in charts)
    truncated = truncated or max(len(charts), len(with_data)) > MAX_CHARTS
    if not charts:
        return None
    heading = getattr(figure, "_suptitle", None)
    title = "" if heading is None else _shorten(heading.get_text())
    if len(charts) == 1:
        chart = charts[0]
        chart["title"] = chart["title"] or title
    else:
        chart = {"type": "superchart", "title": title, "elements": charts[:MAX_CHARTS]}
        if truncated:
            chart["truncated"] = True
    text = json.dumps(chart, allow_nan=False)
    return PartialChart(text) if truncated else text


def _describe_axes(axes: Any, room: elements.PointBudget) -> List[Dict[str, Any]]:
    """One chart for each kind of element in these axes."""
    frame = _describe_frame(axes)
    found: elements.Found = {}
    if axes.name == "rectilinear":  # in other projections x and y mean something else
        scales = elements.Scale(axes, axes.xaxis), elements.Scale(axes, axes.yaxis)
        drawn = elements.find_elements(axes, scales, room)
        found = {**drawn.found, **lines.find_lines(axes, scales, room, drawn)}
    charts = []
    for kind, (parts, truncated) in found.items():
        chart = {"type": kind, **frame, "elements": parts}
        if truncated:
            chart["truncated"] = True
        charts.append(chart)
    return charts or [{"type": "unknown", **frame, "elements": []}]


def _describe_frame(axes: Any) -> Dict[str, Any]:
    """Title and axes, which all charts of these axes have in common."""
    title = next(filter(None, (axes.get_title(at) for at in ("center", "left", "right"))), "")
    frame: Dict[str, Any] = {"title": _shorten(title)}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if not hasattr(axis, "get_label_text"):
            continue
        label = axis.get_label_text()
        scale = elements.Scale(axes, axis)
        ticks, labels = _describe_ticks(axis, scale)
        frame.update(
            {
                f"{name}_label": _shorten(label),
                f"{name}_unit": parse_unit(label),
                f"{name}_ticks": ticks,
                f"{name}_tick_labels": labels,
                f"{name}_scale": scale.name,
            }
        )
    return frame


def parse_unit(label: str) -> Optional[str]:
    """The unit in "Speed (km/h)" or "Price [EUR]"; None if the label has no unit."""
    found = _UNIT.search(label)
    return found[1] if found else None


def _describe_ticks(axis: Any, scale: elements.Scale) -> Any:
    """The visible ticks; matplotlib has more beyond the edges."""
    low, high = sorted(axis.get_view_interval())
    slack = (high - low) * 1e-9
    ticks: List[Any] = []
    labels: List[str] = []
    for place, text in zip(axis.get_majorticklocs(), axis.get_majorticklabels()):
        if low - slack <= place <= high + slack and len(ticks) < MAX_TICKS:
            tick = scale.plain(place)
            ticks.append(float(f"{tick:.12g}") if isinstance(tick, float) else tick)
            labels.append(_shorten(text.get_text()))
    return ticks, labels


def _shorten(text: str) -> str:
    return text if len(text) <= elements.MAX_LABEL else text[: elements.MAX_LABEL] + "\u2026"
