"""What is arranged in a library as soon as a cell imports it, so that `show()` shows.

Nothing is imported ahead: a library that no cell uses costs nothing, and one that the environment
has loaded before is arranged when the worker starts.
"""

import importlib
import sys
from typing import Any, Callable, Dict, Optional

from . import chart_elements, figures, notebook_habits

Show = Callable[..., Any]


def install(show: Show) -> None:
    """`show` is the display() of the cells."""
    arrange: Dict[str, Callable[[Any], None]] = {
        "matplotlib.pyplot": figures.arrange_show,
        "matplotlib.axes._axes": lambda module: chart_elements.record(module.Axes),
        "plotly.io._renderers": lambda module: _plotly(module, show),
        "altair": lambda module: _altair(module, show),
        "IPython.core.display_functions": lambda module: _ipython(module, show),
    }
    for name in arrange.keys() & sys.modules.keys():
        _apply(arrange[name], sys.modules[name])
    sys.meta_path.insert(0, _Finder(arrange))
    notebook_habits.install(show)


class _Finder:
    """Lets the other finders find, and has a word with what was loaded."""

    def __init__(self, arrange: "Dict[str, Callable[[Any], None]]") -> None:
        self._arrange = arrange

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        if name not in self._arrange:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._wrap(spec.loader, name)
                    return spec
        return None

    def _wrap(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            if module.__name__ == name:  # some loaders load many
                _apply(self._arrange[name], module)

        loader.exec_module = exec_module


def _apply(arrange: "Callable[[Any], None]", module: Any) -> None:
    try:
        arrange(module)
    except Exception as error:
        # A version whose insides differ: the library works, as it would without us.
        print(f"belljar: {module.__name__} cannot be shown: {error!r}", file=sys.stderr)


def _plotly(module: Any, show: Show) -> None:
    base = importlib.import_module("plotly.io._base_renderers")
    html = importlib.import_module("plotly.io._html")

    class Renderer(base.MimetypeRenderer):  # type: ignore[misc, name-defined]
        """The figure as data for whoever redraws it, and as a small page (plotly.js by link)."""

        def to_mimebundle(self, fig_dict: Any) -> "Dict[str, Any]":
            page = html.to_html(fig_dict, include_plotlyjs="cdn", full_html=False, validate=False)
            return {**base.PlotlyRenderer().to_mimebundle(fig_dict), "text/html": page}

    def show_figure(fig: Any, *args: Any, **options: Any) -> None:
        graph_objects = importlib.import_module("plotly.graph_objects")
        show(graph_objects.Figure(fig) if isinstance(fig, dict) else fig)

    module.renderers["belljar"] = Renderer()
    module.renderers.default = "belljar"
    module.show = show_figure


def _altair(module: Any, show: Show) -> None:
    module.renderers.enable("mimetype")
    chart = module.TopLevelMixin
    chart.show = lambda self: show(self)
    chart.display = lambda self, *args, **options: show(self)


def _ipython(module: Any, show: Show) -> None:
    """`from IPython.display import display` is what much code begins with."""
    module.display = show
    module.publish_display_data = lambda data, *args, **options: show(data, raw=True)
