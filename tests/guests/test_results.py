"""Rich results: what objects in the guest offer, what arrives, and how the host shows it."""

import base64
import html
import io
import json
import os
import re
import subprocess
import sys
import time
from textwrap import dedent

import pandas
import polars
import pyarrow
import pytest
from rich.console import Console

from belljar import Environment, Limits, Outcome, SandboxError
from belljar.cli.terminal import ResultFiles
from belljar.errors import FileError
from belljar.protocol import values
from belljar.results import display
from belljar.results.display import MAX_PAGE
from belljar.results.execution import Call, ErrorInfo, Execution, FileChanges, Logs, Result, Usage
from belljar.results.result import TABLE

PLT = "import matplotlib.pyplot as plt\n"
PNG = b"\x89PNG\r\n\x1a\n"


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


def results(sandbox, code, **options):
    return run(sandbox, code, **options).raise_for_outcome().results


def result(sandbox, code):
    (found,) = results(sandbox, code)
    return found


# --- objects of the guest's own --------------------------------------------------------------


def test_every_method_of_a_notebook_gives_its_format(sandbox):
    found = result(
        sandbox,
        """
        class All:
            def _repr_html_(self): return "<b>"
            def _repr_markdown_(self): return "*m*"
            def _repr_svg_(self): return "<svg/>"
            def _repr_png_(self): return b"png"
            def _repr_jpeg_(self): return bytearray(b"jpeg")
            def _repr_pdf_(self): return b"pdf", {"metadata": 1}
            def _repr_latex_(self): return "$x$"
            def _repr_json_(self): return {"a": [1, None]}
            def _repr_javascript_(self): return "alert()"
            def __repr__(self): return "All"
        All()
        """,
    )
    assert (found.text, found.html, found.markdown, found.svg) == ("All", "<b>", "*m*", "<svg/>")
    assert (found.png, found.jpeg, found.pdf, found.latex) == (b"png", b"jpeg", b"pdf", "$x$")
    assert found.json == {"a": [1, None]}
    assert len(found.raw) == 9


def test_a_mime_bundle_comes_before_the_single_methods(sandbox):
    found = result(
        sandbox,
        """
        class Both:
            def _repr_mimebundle_(self, include, exclude):
                data = {"text/html": "bundle", "image/png": "iVBO\\nRw==", "x/y+json": {"a": 1},
                        "text/plain": "not the repr", "application/javascript": "alert()"}
                return data, {"image/png": {"width": 10}}
            def _repr_html_(self): return "method"
            def _repr_latex_(self): return "method"
            def __repr__(self): return "Both"
        Both()
        """,
    )
    assert found.raw == {
        "text/plain": "Both",
        "text/html": "bundle",
        "image/png": b"\x89PNG",
        "x/y+json": '{"a": 1}',
        "text/latex": "method",
    }


def test_a_method_that_fails_or_gives_junk_costs_its_own_format(sandbox):
    found = result(
        sandbox,
        """
        class Bad:
            def _repr_mimebundle_(self, **k): raise ValueError
            def _repr_html_(self): return 3
            def _repr_png_(self): return "no base64!"
            def _repr_json_(self): return {"a": float("nan")}
            def _repr_svg_(self): return b"\\xff"
            def _repr_pdf_(self): raise MemoryError
            def _repr_latex_(self): return "$x$"
            def __repr__(self): return "Bad"
        Bad()
        """,
    )
    assert found.raw == {"text/plain": "Bad", "text/latex": "$x$"}


@pytest.mark.parametrize(
    "junk",
    [
        "3",
        "None",
        "({}, {}, {})",
        "{3: 'x', '': 'x', 'y' * 101: 'x', 'a/b': object(), 'image/png': 'no base64!'}",
        "{'x/json': {1, 2}, 'y/json': {'a': object()}}",
    ],
)
def test_a_mime_bundle_that_is_none_costs_nothing_but_itself(sandbox, junk):
    code = f"class Bad:\n    def _repr_mimebundle_(self, **k): return {junk}\n"
    found = result(sandbox, code + "    def __repr__(self): return 'Bad'\nBad()")
    assert found.raw == {"text/plain": "Bad"}


def test_a_class_is_shown_as_itself(sandbox):
    code = "class C:\n    def _repr_html_(self): return 'x'\nC"
    assert result(sandbox, code).formats() == ["text"]


def test_display_takes_what_notebooks_have_it_take(sandbox):
    found = results(
        sandbox,
        """
        class T:
            def _repr_html_(self): return "h"
            def _repr_latex_(self): return "l"
            def __repr__(self): return "T"
        display(1, 2)
        display(T(), include=["text/html", "text/plain"])
        display(T(), exclude=["text/html"])
        display({"text/plain": "raw", "application/json": [1]}, raw=True)
        handle = display(3, display_id="x", metadata={}, transient={}, clear=True)
        handle.update(4)
        display()
        """,
    )
    assert [(r.text, r.html, r.latex, r.json) for r in found] == [
        ("1", None, None, None),
        ("2", None, None, None),
        ("T", "h", None, None),
        ("T", None, "l", None),
        ("raw", None, None, [1]),
        ("3", None, None, None),
        ("4", None, None, None),
    ]
    assert not any(r.is_main_result for r in found)


def test_what_offers_only_formats_that_are_not_taken_is_its_text(sandbox):
    found = results(
        sandbox,
        """
        display({"application/javascript": "alert(1)"}, raw=True)
        display(3, include=["text/html"])
        """,
    )
    assert [r.formats() for r in found] == [["text"], ["text"]]
    assert [r.text for r in found] == ["{'application/javascript': 'alert(1)'}", "3"]


def test_a_raw_display_of_something_else_is_a_type_error_of_the_cell(sandbox):
    assert run(sandbox, "display(3, raw=True)").error.name == "TypeError"


# --- limits ----------------------------------------------------------------------------------


def test_a_method_that_does_not_end_runs_into_the_time_out(sandbox):
    code = """
        class Slow:
            def _repr_html_(self):
                while True: pass
        Slow()
        """
    execution = run(sandbox, code, timeout=0.5)
    assert execution.outcome is Outcome.timeout
    assert run(sandbox, "1 + 1").value == 2


def test_a_text_that_is_too_long_is_cut_and_a_format_is_left_out_and_it_is_said(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="64k"))
    execution = run(
        sandbox,
        """
        class Large:
            def _repr_html_(self): return "<b>" * 10**6
            def _repr_png_(self): return b"x" * 100
            def __repr__(self): return "x" * 10**6
        Large()
        """,
    )
    assert execution.ok
    assert execution.truncated
    assert any("left out" in note for note in execution.notes)
    (found,) = execution.results
    assert len(found.text.encode()) == 64 * 1024
    assert found.text.endswith("x\u2026")
    assert found.html is None
    assert found.png == b"x" * 100


def test_a_page_that_fits_leaves_room_for_the_picture(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="64k"))
    (found,) = run(
        sandbox,
        """
        class Page:
            def _repr_html_(self): return "x" * 400_000
            def _repr_png_(self): return b"x" * 400_000
        Page()
        """,
    ).results
    assert found.html is None
    assert found.png is not None


def test_no_result_has_more_parts_than_allowed(sandbox):
    execution = run(sandbox, "display({f'a/{n}': 'x' for n in range(100)}, raw=True)")
    assert execution.ok
    assert execution.truncated
    assert len(execution.results[0].raw) == 32


def test_parts_that_were_forged_are_what_they_say_or_end_the_worker(sandbox):
    """The worker's socket is in reach of the code in it: what it writes there is checked."""
    execution = run(
        sandbox,
        """
        import json, os, struct
        header = json.dumps({"parts": [{"mime": "x" * 1000, "size": 1, "text": True}]}).encode()
        for fd in [fd for fd in range(3, 64) if os.path.lexists(f"/proc/self/fd/{fd}")]:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.write(fd, struct.pack("!BIII", 65, 0, len(header), 1) + header + b"x")
        import time
        time.sleep(60)
        """,
        timeout=20,
    )
    assert execution.outcome in (Outcome.killed, Outcome.lost)
    assert execution.results == ()


# --- matplotlib ------------------------------------------------------------------------------


def test_figures_left_open_are_shown_and_closed_and_can_be_saved_before(data_sandbox):
    execution = run(
        data_sandbox,
        PLT + "for n in range(2):\n    plt.figure()\n    plt.plot([n])\nplt.savefig('f.png')",
    ).raise_for_outcome()
    assert [r.png[:8] for r in execution.results] == [PNG, PNG]
    assert [r.text for r in execution.results] == ["<Figure size 640x480 with 1 Axes>"] * 2
    assert data_sandbox.files.read("f.png", format="bytes").startswith(PNG)
    assert run(data_sandbox, "plt.get_fignums()").value == []


def test_show_in_the_middle_shows_what_there_is_by_then(data_sandbox):
    found = results(
        data_sandbox, PLT + "plt.plot([1]); plt.show(); display('then')\nplt.plot([2]);None"
    )
    assert ["png" in r.formats() for r in found] == [True, False, True]


def test_a_library_that_a_cell_imports_itself_is_arranged_too(data_sandbox):
    """As in an environment that loads nothing ahead."""
    code = """
        import sys
        for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
            del sys.modules[name]
        import warnings
        warnings.simplefilter("error")
        """
    run(data_sandbox, code).raise_for_outcome()
    found = results(data_sandbox, PLT + "plt.plot([1]); plt.show(); plt.close('all')")
    assert len([r for r in found if r.png]) == 1


@pytest.mark.parametrize(
    "code",
    [
        "plt.plot([1])\nplt.gcf()",
        "figure = plt.figure(); plt.plot([1])\ndisplay(figure)",
        "import matplotlib.figure as f\nfigure = f.Figure(); figure.subplots().plot([1])\nfigure",
    ],
)
def test_a_figure_that_is_displayed_is_not_shown_twice(data_sandbox, code):
    found = result(data_sandbox, PLT + code)
    assert found.png.startswith(PNG)
    assert found.chart.type == "line"


def test_artists_as_the_last_expression_give_their_text_and_then_the_figure(data_sandbox):
    text, figure = results(data_sandbox, PLT + "plt.plot([1, 2])")
    assert (text.is_main_result, figure.is_main_result) == (True, False)
    assert "Line2D" in text.text
    assert figure.png is not None


def test_one_figure_that_cannot_be_drawn_costs_neither_the_others_nor_the_cell(data_sandbox):
    code = r"plt.title('$\bad{$'); plt.figure(); _ = plt.plot([1])"
    execution = run(data_sandbox, PLT + code)
    assert execution.ok
    bad, good = execution.results
    assert bad.png is None
    assert "cannot be drawn: ValueError" in bad.text
    assert good.png is not None


@pytest.mark.parametrize("size", ["(1e5, 1e5)", "(2000, 1)", "(1, 2000)"])
def test_a_figure_without_measure_is_drawn_within_measure(data_sandbox, size):
    (found,) = results(data_sandbox, PLT + f"f = plt.figure(figsize={size}); x = plt.plot([1, 2])")
    assert found.png is not None
    width, height = (int.from_bytes(found.png[at : at + 4], "big") for at in (16, 20))
    assert width * height < 20_000_000
    assert run(data_sandbox, "tuple(map(float, f.get_size_inches()))").text == str(
        tuple(map(float, eval(size)))
    )


def test_figures_are_shown_also_when_the_cell_fails(data_sandbox):
    execution = run(data_sandbox, PLT + "plt.plot([1])\n1 / 0")
    assert execution.outcome is Outcome.error
    assert [r.formats() for r in execution.results] == [["text", "png", "chart"]]


# --- images, frames, figures of other libraries ----------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "CMYK", "HSV", "LAB", "I;16"])
def test_images_of_pil_are_png(data_sandbox, mode):
    found = result(data_sandbox, f"from PIL import Image\nImage.new({mode!r}, (3, 2))")
    assert found.png.startswith(PNG)
    assert found.jpeg is None


def test_an_image_without_colours_is_its_text(data_sandbox):
    found = result(data_sandbox, "from PIL import Image\nImage.new('F', (3, 2))")
    assert found.formats() == ["text"]


def test_a_frame_is_text_html_and_data(data_sandbox):
    pandas = pytest.importorskip("pandas")
    found = result(
        data_sandbox,
        """
        import pandas as pd
        pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=pd.Index([5, 6], name="i"))
        """,
    )
    assert found.formats() == ["text", "html", "data"]
    assert "<table" in found.html
    expected = pandas.DataFrame(
        {"a": [1, 2], "b": ["x", None]}, index=pandas.Index([5, 6], name="i")
    )
    pandas.testing.assert_frame_equal(found.data, expected)
    assert found.data is found.data


def test_a_styled_frame_is_html(data_sandbox):
    code = "import pandas as pd\npd.DataFrame({'a': [1.25]}).style.format('{:.1f} EUR')"
    assert "1.2 EUR" in result(data_sandbox, code).html


def test_a_series_is_text_html_and_data(data_sandbox):
    pandas = pytest.importorskip("pandas")
    found = result(data_sandbox, "import pandas as pd\npd.Series([1.5, 2], name='s')")
    assert "<table" in found.html
    pandas.testing.assert_series_equal(found.data, pandas.Series([1.5, 2], name="s"))


def test_a_frame_that_is_too_large_is_shown_and_its_data_are_left_out_untouched(data_sandbox):
    execution = run(
        data_sandbox,
        """
        import numpy as np, pandas as pd
        frame = pd.DataFrame(np.zeros((4_000_000, 4)))
        display(frame)
        """,
    )
    assert execution.ok
    assert execution.truncated
    (found,) = execution.results
    assert found.formats() == ["text", "html"]
    assert len(found.html) < 50_000
    assert found.data is None


def test_a_frame_of_objects_has_no_data_and_says_nothing_of_size(data_sandbox):
    execution = run(data_sandbox, "import pandas as pd\ndisplay(pd.DataFrame({'a': [object()]}))")
    assert execution.results[0].formats() == ["text", "html"]
    assert not execution.truncated


def test_frames_of_polars_are_text_html_and_data(data_sandbox):
    frame, series = results(
        data_sandbox,
        "import polars as pl\ndisplay(pl.DataFrame({'a': [1, 2]}))\ndisplay(pl.Series('s', ['x']))",
    )
    assert "<table" in frame.html
    assert frame.data.equals(polars.DataFrame({"a": [1, 2]}))
    assert series.data.equals(polars.Series("s", ["x"]))


@pytest.mark.parametrize(
    "show", ["figure", "display(figure)", "figure.show()", "figure.show('png')"]
)
def test_figures_of_plotly_are_data_and_a_page_without_a_network(data_sandbox, show):
    code = f"import plotly.express as px\nfigure = px.line(x=[1, 2], y=[3, 4])\n{show}"
    found = result(data_sandbox, code)
    data = json.loads(found.raw["application/vnd.plotly.v1+json"])
    assert data["data"][0]["type"] == "scatter"
    assert "plotly" in found.html
    assert len(found.html) < 100_000
    assert found.text.startswith("Figure(")


@pytest.mark.fresh
def test_a_library_that_is_not_used_is_not_imported(data_sandbox):
    code = "import sys\nsorted({'plotly', 'polars', 'seaborn', 'IPython'} & set(sys.modules))"
    assert run(data_sandbox, code).value == []


@pytest.mark.parametrize("show", ["chart", "display(chart)", "chart.show()"])
def test_charts_of_altair_are_vega_lite(make_sandbox, show):
    code = f"""
import altair as alt
chart = alt.Chart(alt.Data(values=[{{"a": 1, "b": 2}}])).mark_bar().encode(x="a:Q", y="b:Q")
{show}"""
    found = result(make_sandbox(environment=Environment("altair", packages=["altair"])), code)
    (mime,) = [mime for mime in found.raw if mime.startswith("application/vnd.vegalite.")]
    assert json.loads(found.raw[mime])["mark"]["type"] == "bar"
    assert found.text == "alt.Chart(...)"


# --- what the host makes of it ---------------------------------------------------------------


def made(raw, main=False):
    return Result(raw=raw, is_main_result=main)


@pytest.mark.parametrize("hostile", [b"", b"x" * 100, b"BJ1l" + b"\xff" * 60, b"\x80\x04."])
def test_data_that_are_none_raise_our_own_error_with_a_hint(hostile):
    with pytest.raises(SandboxError, match="table cannot be read") as caught:
        _ = made({TABLE: hostile}).data
    assert TABLE in caught.value.hint


def test_a_table_given_as_text_is_no_table():
    assert made({TABLE: "text"}).data is None
    assert made({}).data is None


def test_a_guest_cannot_pass_off_anything_as_a_table_but_plain_data(sandbox):
    found = result(
        sandbox,
        f"display({{{TABLE!r}: b'\\x80\\x04cos\\nsystem\\n', 'text/plain': 'x'}}, raw=True)",
    )
    with pytest.raises(SandboxError):
        _ = found.data


HOSTILE = "<script>alert(1)</script><img src=https://evil.example/?stolen onerror=alert(2)>"


def test_html_of_the_guest_is_shown_in_a_frame_without_scripts_origin_or_network():
    raw = {"text/html": f"<b>bold</b>{HOSTILE}", "text/plain": "\x1b[2J"}
    bundle = made(raw)._repr_mimebundle_()
    shown = bundle["text/html"]
    assert bundle["text/plain"] == "\\x1b[2J"
    assert shown.startswith('<iframe sandbox="" srcdoc="')
    assert "<script" not in shown
    assert "<img" not in shown
    inner = html.unescape(shown.split('srcdoc="')[1].split('"')[0])
    assert "default-src 'none'" in inner
    assert "<script" not in inner
    assert "evil.example" not in inner
    assert "<b>bold</b>" in inner
    assert shown.count("<") == 2
    assert "text/html" not in made({"text/html": HOSTILE})._repr_mimebundle_(), "nothing is left"


def test_a_quote_in_html_does_not_end_the_frame():
    shown = made({"text/html": '"></iframe><script>alert()</script>'})._repr_mimebundle_()
    assert "<script" not in shown["text/html"]
    assert shown["text/html"].count("<") == 2


def test_an_svg_of_the_guest_is_shown_as_an_image_that_runs_nothing():
    shown = made({"image/svg+xml": f"<svg>{HOSTILE}</svg>"})._repr_mimebundle_()["text/html"]
    assert shown.startswith('<div><img alt="" src="data:image/svg+xml;base64,')
    assert "script" not in shown


def test_pictures_are_given_to_the_notebook_as_they_are():
    assert made({"image/png": b"p", "text/html": "x"})._repr_mimebundle_() == {
        "text/plain": "<Result 'png', 'html'>",
        "image/png": b"p",
    }
    assert made({"image/jpeg": b"j"})._repr_mimebundle_()["image/jpeg"] == b"j"


def test_a_figure_that_is_drawn_by_a_script_is_shown_as_text():
    raw = {"text/plain": "Figure", "text/html": "<script>", "application/vnd.plotly.v1+json": "{}"}
    assert made(raw)._repr_mimebundle_() == {"text/plain": "Figure"}


def execution(**changes):
    return Execution(
        **{
            "outcome": Outcome.ok,
            "text": None,
            "value": None,
            "results": (),
            "stdout": "",
            "stderr": "",
            "logs": Logs(stdout=(), stderr=()),
            "error": None,
            "exit_code": None,
            "signal": None,
            "execution_count": 1,
            "usage": Usage(wall=0.001, cpu=None, peak_memory=None, output_bytes=0),
            "state_preserved": True,
            "truncated": False,
            **changes,
        }
    )


def test_an_execution_shows_everything_in_a_notebook_and_nothing_of_it_runs():
    error = ErrorInfo(name="E", value=HOSTILE, traceback=HOSTILE)
    shown = execution(
        outcome=Outcome.error,
        stdout=HOSTILE,
        stderr="oh \x1b[2J \udc80",
        results=(
            made({"image/png": b"png"}),
            made({"text/html": HOSTILE}),
            made({"text/plain": HOSTILE}),
            made({"image/svg+xml": HOSTILE}),
            made({"text/markdown": HOSTILE}),
            made({HOSTILE: HOSTILE}),
        ),
        error=error,
        notes=(HOSTILE,),
        calls=(Call(name=HOSTILE, duration=0.1, ok=True, argument_bytes=1),),
        files=FileChanges(created=(HOSTILE,)),
    )._repr_html_()
    shown.encode()
    assert "<script" not in shown
    assert "<img src=https" not in shown
    assert base64.b64encode(b"png").decode() in shown
    assert "\x1b" not in shown
    assert shown.count("&lt;script&gt;") >= 6


def test_all_text_in_a_notebook_is_monospaced_and_readable_on_any_background():
    shown = execution(
        outcome=Outcome.error,
        stdout="out",
        stderr="err",
        results=(made({"text/plain": "text"}),),
        error=ErrorInfo(name="E", value="", traceback="Traceback"),
        notes=("note",),
    )._repr_html_()
    styles = {text: style for style, text in re.findall(r'<pre style="([^"]*)">\W*(\w+)', shown)}
    assert list(styles) == ["out", "err", "text", "Traceback", "note"]
    assert all("monospace;font-size:inherit" in style for style in styles.values())
    assert styles["err"].endswith("background:#fdd;color:#400"), "dark on the pale red that is ours"
    assert shown.count("background:#") == 1


def test_what_has_nothing_to_show_leaves_no_band_in_a_notebook():
    shown = execution(stdout=" \n\n", stderr="\n", results=(made({"text/plain": "1"}),))
    assert shown._repr_html_().count("<pre") == 1
    assert "&lt;Execution ok" in execution()._repr_html_()


def test_a_page_about_an_execution_has_an_end():
    picture = made({"image/png": b"x" * (MAX_PAGE // 3)})
    shown = execution(results=(picture,) * 10, stdout="x" * MAX_PAGE)._repr_html_()
    assert len(shown) < MAX_PAGE + 10_000
    assert "too large to show" in shown
    assert "characters more" in shown


def test_a_terminal_by_rich_shows_text_as_text_and_tables_as_tables(data_sandbox):
    pytest.importorskip("pandas")
    shown = run(
        data_sandbox,
        """
        print("[bold]no markup[/bold]")
        import pandas as pd
        pd.DataFrame({"name": ["[red]", "\\x1b[2J"] * 20, "number": range(40)})
        """,
    ).raise_for_outcome()
    console = Console(file=io.StringIO(), width=80)
    console.print(shown)
    text = console.file.getvalue()
    assert "[bold]no markup[/bold]" in text
    assert "[red]" in text
    assert "\x1b" not in text
    assert "20 of 40 rows" in text
    assert "───" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("pandas.DataFrame({'a': [1.23456789, None]}, index=['u', 'v'])", ["a", "u", "1.23457"]),
        ("pandas.Series([1, 2], name='s')", ["s", "1"]),
        ("pandas.DataFrame()", []),
        (
            "pandas.DataFrame([[1]], columns=pandas.MultiIndex.from_tuples([('x', 'y')]))",
            ["('x', "],
        ),
        ("pandas.DataFrame(numpy.zeros((2, 50)))", ["12 of 50 columns"]),
        ("pandas.DataFrame({'t': pandas.to_datetime(['2024-01-01'])})", ["2024-01-01"]),
        ("polars.DataFrame({'a': [1, None], 'b': ['x', 'y']})", ["a", "b", "None", "y"]),
        ("polars.Series('s', [1])", ["s", "1"]),
        ("pyarrow.table({'a': [1] * 30, 'b': ['x'] * 30})", ["20 of 30 rows", "x"]),
    ],
)
def test_every_kind_of_frame_can_be_drawn(make, words):
    names = ("numpy", "pandas", "polars", "pyarrow")
    frame = eval(make, {name: pytest.importorskip(name) for name in names})
    drawn = display.render_table(made({TABLE: values.encode(frame).join()}))
    console = Console(file=io.StringIO(), width=200)
    console.print(drawn)
    for word in words:
        assert word in console.file.getvalue()


def test_what_is_no_frame_is_not_drawn():
    assert display.render_table(made({TABLE: values.encode({"a": 1}).join()})) is None
    assert display.render_table(made({TABLE: b"hostile"})) is None
    assert display.render_table(made({})) is None


def test_calls_and_files_are_in_the_record_of_a_run_and_in_what_is_shown():
    run_ = execution(
        calls=(Call(name="f", duration=0.5, ok=False, argument_bytes=3, error="ValueError: x"),),
        files=FileChanges(created=("a.csv",), removed=("b",)),
        results=(made({"image/png": b"", "text/plain": ""}),),
    )
    data = json.loads(run_.to_json())
    assert data["calls"] == [
        {"name": "f", "duration": 0.5, "ok": False, "argument_bytes": 3, "error": "ValueError: x"}
    ]
    assert data["files"] == {"created": ["a.csv"], "changed": [], "removed": ["b"]}
    assert repr(run_) == (
        "<Execution ok [1] with png 1 calls files: created a.csv; removed b 1.0 ms>"
    )
    assert str(run_) == "[called f]\n[created a.csv; removed b]"


def test_changes_of_files_are_false_if_there_are_none():
    assert not FileChanges()
    assert FileChanges(changed=("x",))


def unshowable():
    date = 2**31 - 1
    yield pandas.DataFrame({"a": pandas.Series([10**5000], dtype=object)})
    yield pyarrow.table({"a": pyarrow.array([date], pyarrow.int32()).cast(pyarrow.date32())})
    yield polars.DataFrame({"a": polars.Series([date], dtype=polars.Int32).cast(polars.Date)})


@pytest.mark.parametrize("frame", list(unshowable()), ids=["pandas", "pyarrow", "polars"])
def test_a_table_that_no_library_can_show_is_shown_as_text(frame, tmp_path):
    raw = {TABLE: values.encode(frame).join(), "text/plain": "the text"}
    result = Result(raw=raw, is_main_result=True)
    console = Console(file=io.StringIO(), width=80)
    console.print(display.render_result(result))
    assert console.file.getvalue().strip() == "the text"
    saved, remarks = ResultFiles(tmp_path).save(result)
    assert saved or remarks


def amplified():
    """Tables that are small on the wire, and huge as text."""
    rows, text = 8_000, "x" * 1_000_000
    numbers = pyarrow.array([0] * rows, pyarrow.int32())
    entries = pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array([text]))
    offsets = pyarrow.array([0, rows], pyarrow.int32())
    nothing = pyarrow.nulls(1 << 24)
    frames = {
        "a category": pandas.DataFrame({"a": pandas.Categorical.from_codes(numbers, [text])}),
        "a level": pandas.DataFrame(
            {"a": [0] * rows},
            index=pandas.MultiIndex([[text], [1]], [[0] * rows, [0] * rows]),
        ),
        "an entry": pyarrow.table({"a": entries}),
        "an entry in pandas": pandas.DataFrame(
            {"a": pandas.arrays.ArrowExtensionArray(pyarrow.chunked_array([entries]))}
        ),
        "entries in a list": pyarrow.table({"a": pyarrow.ListArray.from_arrays(offsets, entries)}),
        "nothing in a list": pyarrow.table(
            {"a": pyarrow.ListArray.from_arrays(pyarrow.array([0, 1 << 24], "int32"), nothing)}
        ),
        "an enum": polars.DataFrame({"a": polars.Series([text] * 30, dtype=polars.Enum([text]))}),
    }
    return {name: values.encode(frame).join() for name, frame in frames.items()}


MEASURE = """
import pathlib, resource, sys
from belljar import Result
from belljar.results import display
from belljar.results.result import TABLE
import pandas, polars, pyarrow.csv
made = Result(raw={TABLE: pathlib.Path(sys.argv[1]).read_bytes()}, is_main_result=True)
made.data
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert display.render_table(made) is not None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", amplified())
def test_a_small_table_does_not_become_huge_by_being_shown(name, tmp_path):
    (tmp_path / "parcel").write_bytes(amplified()[name])
    command = [sys.executable, "-c", MEASURE, tmp_path / "parcel"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000  # kilobytes; gigabytes, if all of it were made


def test_saving_follows_no_link_that_was_put_there(tmp_path):
    """The code may be able to write where its results are saved: a writable mount."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    out = tmp_path / "out"
    out.mkdir()
    (out / "result-1.html").symlink_to(victim)
    saved, _ = ResultFiles(out).save(Result(raw={"text/html": "<b>x</b>"}, is_main_result=True))
    assert victim.read_text() == "as it was"
    assert saved[0].read_text() == "<b>x</b>"
    assert not saved[0].is_symlink()


def test_saving_does_not_wait_for_a_fifo(tmp_path):
    os.mkfifo(tmp_path / "result-1.html")
    with pytest.raises(FileError, match="not a file"):
        ResultFiles(tmp_path).save(Result(raw={"text/html": "x"}, is_main_result=True))


@pytest.mark.parametrize("text", ["x" * 4_000_000, "\x1b" * 4_000_000, "x " * 2_000_000])
def test_a_long_line_is_drawn_soon_and_what_is_left_out_is_said(text):
    console = Console(file=io.StringIO(), width=80)
    began = time.process_time()
    console.print(execution(stdout=text, results=(made({"text/plain": text}),)))
    assert time.process_time() - began < 30  # minutes, if all of it were wrapped
    assert "characters more]" in console.file.getvalue()
