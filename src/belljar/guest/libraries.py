"""Changes to libraries when a cell imports them, so that `show()` shows; IPython's names.

Nothing is imported ahead: a library that no cell uses costs nothing, and one that the environment
has loaded before is arranged when the worker starts.
"""

import base64
import builtins
import html
import importlib
import importlib.machinery
import json
import os
import sys
from typing import Any, Callable, Dict, NoReturn, Optional

from . import chart_elements, figures

Show = Callable[..., Any]


def install(
    show: Show, show_figures: "Callable[[], None]", finish: "Callable[..., NoReturn]"
) -> None:
    """`show` is the display() of the cells, `finish` what `belljar.finish` is in them."""
    arrange: Dict[str, Callable[[Any], None]] = {
        "matplotlib.pyplot": lambda module: figures.replace_show(module, show_figures),
        "matplotlib.axes._axes": lambda module: chart_elements.record_calls(module.Axes),
        "plotly.io._renderers": lambda module: _change_plotly(module, show),
        "altair": lambda module: _change_altair(module, show),
        "tqdm.notebook": _change_tqdm,
        "IPython.core.display_functions": lambda module: _change_ipython(module, show),
    }
    for name in arrange.keys() & sys.modules.keys():
        _apply(arrange[name], sys.modules[name])
    sys.meta_path.insert(0, _Finder(arrange))
    sys.meta_path.append(_StandInFinder(show, finish))  # a real IPython comes first


class _Finder:
    """Leaves finding to the other finders, and changes the module when it is loaded."""

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
            if module.__name__ == name:  # some loaders load several modules
                _apply(self._arrange[name], module)

        loader.exec_module = exec_module


def _apply(arrange: "Callable[[Any], None]", module: Any) -> None:
    try:
        arrange(module)
    except Exception as error:
        # A version with other internals: the library works, but is not shown.
        print(f"belljar: {module.__name__} cannot be shown: {error!r}", file=sys.stderr)


def _change_plotly(module: Any, show: Show) -> None:
    base = importlib.import_module("plotly.io._base_renderers")
    html = importlib.import_module("plotly.io._html")

    class Renderer(base.MimetypeRenderer):  # type: ignore[misc, name-defined]
        """The figure as data, and as a small page that loads plotly.js by a link."""

        def to_mimebundle(self, fig_dict: Any) -> "Dict[str, Any]":
            page = html.to_html(fig_dict, include_plotlyjs="cdn", full_html=False, validate=False)
            return {**base.PlotlyRenderer().to_mimebundle(fig_dict), "text/html": page}

    def show_figure(fig: Any, *args: Any, **options: Any) -> None:
        graph_objects = importlib.import_module("plotly.graph_objects")
        show(graph_objects.Figure(fig) if isinstance(fig, dict) else fig)

    module.renderers["belljar"] = Renderer()
    module.renderers.default = "belljar"
    module.show = show_figure


def _change_altair(module: Any, show: Show) -> None:
    module.renderers.enable("mimetype")
    chart = module.TopLevelMixin
    chart.show = lambda self: show(self)
    chart.display = lambda self, *args, **options: show(self)


def _change_tqdm(module: Any) -> None:
    """Its bar is a widget, for which a sandbox has no page: show the bar of text."""
    std = importlib.import_module("tqdm.std")
    module.tqdm = module.tqdm_notebook = std.tqdm
    module.trange = module.tnrange = std.trange


def _change_ipython(module: Any, show: Show) -> None:
    """Much code begins with `from IPython.display import display`."""
    module.display = show
    module.publish_display_data = lambda data, *args, **options: show(data, raw=True)


# -- the stand-in for IPython ---------------------------------------------------------------------

_PACKAGES = ("IPython", "IPython.core")
_DISPLAY = ("IPython.display", "IPython.core.display")
# The IPython that has these names. Libraries check the version before they check if it runs.
_VERSION = (8, 24, 0)


class _StandInFinder:
    """Finds and loads the stand-in, and the module `belljar` of the cells."""

    def __init__(self, show: Show, finish: "Callable[..., NoReturn]") -> None:
        self._show, self._finish = show, finish

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        if name == "belljar":
            return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        if name not in _PACKAGES and name not in _DISPLAY:
            return None
        top: Any = sys.modules.get("IPython")
        if name != "IPython" and getattr(top, "__loader__", None) is not self:
            return None  # a module that the real IPython does not have
        return importlib.machinery.ModuleSpec(name, self, is_package=name in _PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "belljar":
            module.__doc__ = "What code in a sandbox of Belljar can use."
            module.finish = self._finish
        elif module.__name__ in _DISPLAY:
            module.__dict__.update({kind.__name__: kind for kind in _KINDS})
            _change_ipython(module, self._show)
            module.clear_output = lambda wait=False: None  # results that were sent stay
        elif module.__name__ == "IPython":
            # Without notebook=True, as in a program outside a notebook.
            module.get_ipython = lambda: getattr(builtins, "get_ipython", lambda: None)()
            module.version_info = _VERSION
            module.__version__ = ".".join(map(str, _VERSION))
            importlib.import_module("IPython.display")  # `IPython.display.HTML` needs no import


class DisplayObject:
    """Content of one kind, given as data or as a file."""

    _binary = False

    def __init__(
        self, data: Any = None, url: Any = None, filename: Any = None, metadata: Any = None
    ) -> None:
        if isinstance(data, os.PathLike):
            data, filename = None, data
        elif isinstance(data, str) and url is None and data.startswith(("http://", "https://")):
            data, url = None, data
        elif isinstance(data, str) and filename is None and _is_file(data):
            data, filename = None, data
        self.data, self.url, self.filename, self.metadata = data, url, filename, metadata
        if url is not None:
            self._take_url()
        elif filename is not None:
            self.reload()
        elif data is None:
            raise ValueError(f"{type(self).__name__} needs data or a filename")

    def reload(self) -> None:
        if self.filename is None:
            return
        mode, encoding = ("rb", None) if self._binary else ("r", "utf-8")
        with open(self.filename, mode, encoding=encoding) as file:
            self.data = file.read()

    def _take_url(self) -> None:
        raise ValueError("a sandbox does not fetch addresses: fetch it, and give its data")

    def __repr__(self) -> str:
        return f"<IPython.display.{type(self).__name__} object>"


class HTML(DisplayObject):
    def _repr_html_(self) -> Any:
        return self.data


class Markdown(DisplayObject):
    def _repr_markdown_(self) -> Any:
        return self.data


class Latex(DisplayObject):
    def _repr_latex_(self) -> Any:
        return self.data


class SVG(DisplayObject):
    def _repr_svg_(self) -> Any:
        return self.data


class Math(DisplayObject):
    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {str(self.data).strip('$')}$"


class JSON(DisplayObject):
    def _repr_json_(self) -> Any:
        return json.loads(self.data) if isinstance(self.data, (str, bytes)) else self.data


class Pretty(DisplayObject):
    def __repr__(self) -> str:
        return str(self.data)


class Code(Pretty):
    def __init__(
        self, data: Any = None, url: Any = None, filename: Any = None, language: Any = None
    ) -> None:
        super().__init__(data, url, filename)
        self.language = language

    def _repr_html_(self) -> str:
        return f"<pre><code>{html.escape(str(self.data))}</code></pre>"


class Image(DisplayObject):
    """A picture as bytes or in a file. The host may fetch one that is given by an address."""

    _binary = True

    def __init__(
        self,
        data: Any = None,
        url: Any = None,
        filename: Any = None,
        format: Any = None,
        embed: Any = None,
        width: Any = None,
        height: Any = None,
        **others: Any,
    ) -> None:
        self.format, self.embed, self.width, self.height = format, embed, width, height
        super().__init__(data, url, filename, others.get("metadata"))

    def _take_url(self) -> None:
        if self.embed:
            super()._take_url()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> "Dict[str, Any]":
        if self.url is not None:
            sizes = "".join(
                f' {name}="{html.escape(str(size))}"'
                for name, size in (("width", self.width), ("height", self.height))
                if size is not None
            )
            return {"text/html": f'<img src="{html.escape(str(self.url))}"{sizes}/>'}
        content = self.data
        if isinstance(content, str):
            content = base64.b64decode(content)
        return {_find_picture_type(bytes(content), self.format): content}


_KINDS = (DisplayObject, HTML, Markdown, Latex, Math, SVG, JSON, Pretty, Code, Image)
_PICTURES = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8", "jpeg"),
    (b"GIF8", "gif"),
    (b"RIFF", "webp"),
)


def _find_picture_type(content: bytes, told: Any) -> str:
    known = next((name for start, name in _PICTURES if content.startswith(start)), None)
    name = known or str(told or "png").lower()
    return "image/jpeg" if name == "jpg" else f"image/{name}"


def _is_file(name: str) -> bool:
    try:
        return os.path.isfile(name)
    except (OSError, ValueError):  # too long, or with a zero byte: content, not a name
        return False
