"""matplotlib's figures as pictures: those shown or left open by a cell, and those displayed."""

import contextlib
import io
import math
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from . import charts

MAX_PIXELS = 16_000_000  # of one picture: four bytes for each while it is drawn
MAX_SIDE = 30_000  # pixels; the renderer refuses more than twice as many
LEGIBLE = 50  # dots per inch; a larger figure is made smaller instead of illegible

_show: "Optional[Callable[[], None]]" = None


def is_figure(value: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def bundle(figure: Any) -> "Dict[str, Union[str, bytes]]":
    """Picture, text and chart of a figure, which is not shown again at the end of the cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    return _bundle(figure)


def catch_show(show: "Callable[[], None]") -> None:
    """Let `pyplot.show()` show: it may be followed by `close()` before the cell has ended."""
    global _show
    _show = show
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        arrange_show(pyplot)


def arrange_show(pyplot: Any) -> None:
    """For a pyplot that is there, or has just been imported by a cell."""
    pyplot.__dict__["show"] = lambda *args, **kwargs: _show() if _show else None


def are_open() -> bool:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return pyplot is not None and bool(pyplot.get_fignums())


def take_open() -> "List[Dict[str, Union[str, bytes]]]":
    """The figures that are open now, drawn and closed, as a notebook does after each cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    open_ = [pyplot.figure(number) for number in pyplot.get_fignums()]
    # Before they are drawn: one that takes too long must not be drawn again after the time-out.
    pyplot.close("all")
    return [_bundle(figure) for figure in open_]


def _bundle(figure: Any) -> "Dict[str, Union[str, bytes]]":
    data: Dict[str, Union[str, bytes]] = {"text/plain": repr(figure)}
    try:
        with _bounded(figure):
            data["image/png"] = _draw(figure)
    except Exception as error:  # such as a title that is no formula; the other figures are shown
        data["text/plain"] = f"{figure!r}\ncannot be drawn: {type(error).__name__}: {error}"
        return data
    try:
        chart = charts.describe(figure)
    except Exception:  # whatever cannot be described is still a picture
        chart = None
    if chart is not None:
        data[charts.MIME] = chart
    return data


def _draw(figure: Any) -> bytes:
    figure.draw_without_rendering()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=figure.dpi, bbox_inches=_extent(figure))
    return buffer.getvalue()


def _extent(figure: Any) -> Any:
    """All that is drawn, also beyond the figure's edge; but no label a mile away."""
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    if not (math.isfinite(box.width) and math.isfinite(box.height)):
        return None
    if not (0 < box.width <= 2 * width and 0 < box.height <= 2 * height):
        return None
    return box.padded(sys.modules["matplotlib"].rcParams["savefig.pad_inches"])


@contextlib.contextmanager
def _bounded(figure: Any) -> "Iterator[None]":
    """For the time of drawing, no larger than a picture may be."""
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
