"""matplotlib's figures as pictures: those shown or left open by a cell, and those displayed."""

import io
import sys
from typing import Any, Callable, List, Optional


def png(value: Any) -> Optional[bytes]:
    """A figure as PNG, and not shown a second time at the end of the cell; None for all else."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(value, module.Figure):
        return None
    picture = _draw(value)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(value)
    return picture


def catch_show(show: "Callable[[], None]") -> None:
    """Let `pyplot.show()` show: it may be followed by `close()` before the cell has ended."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.__dict__["show"] = lambda *args, **kwargs: show()


def take_open() -> List[bytes]:
    """The figures that are open now, drawn and closed, as a notebook does after each cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    pictures = [_draw(pyplot.figure(number)) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return pictures


def _draw(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
