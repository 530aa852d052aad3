"""Charts as data: what a figure in the guest shows, told to the host, and forged descriptions."""

import json
from itertools import pairwise
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.guest import figures
from belljar.results import chart
from belljar.results.chart import Bar, Box, Chart, ChartType, Series, Slice
from belljar.results.result import CHART, Result

PLT = "import matplotlib.pyplot as plt\n"


def drawn(sandbox, code):
    """The chart of the one figure that the code leaves open."""
    execution = sandbox.run_code(PLT + dedent(code)).raise_for_outcome()
    (result,) = [result for result in execution.results if result.png]
    assert result.png.startswith(b"\x89PNG")
    return result.chart


# --- what is drawn ---------------------------------------------------------------------------


def test_lines_have_labels_points_titles_units_and_scales(data_sandbox):
    found = drawn(
        data_sandbox,
        """
        plt.plot([1, 2, 3], [10, float("nan"), 1000], label="oak")
        plt.plot([1, 2], [20, 30])
        plt.title("Growth"), plt.xlabel("Speed (km/h)"), plt.ylabel("Price [EUR]")
        plt.yscale("log"), plt.legend()
        """,
    )
    assert found.type is ChartType.line
    assert (found.title, found.x_label, found.y_label) == ("Growth", "Speed (km/h)", "Price [EUR]")
    assert (found.x_unit, found.y_unit) == ("km/h", "EUR")
    assert (found.x_scale, found.y_scale) == ("linear", "log")
    assert found.elements == (
        Series(label="oak", points=((1.0, 10.0), (2.0, None), (3.0, 1000.0))),
        Series(label="", points=((1.0, 20.0), (2.0, 30.0))),
    )
    assert len(found.x_ticks) == len(found.x_tick_labels) > 2
    assert 1.0 in found.x_ticks


def test_scattered_points_and_lines_without_a_line_are_a_scatter_chart(data_sandbox):
    found = drawn(data_sandbox, "plt.scatter([1, 2], [3, 4], label='a'); plt.plot([5], [6], 'o')")
    assert found.type is ChartType.scatter
    assert found.elements == (
        Series(label="", points=((5.0, 6.0),)),
        Series(label="a", points=((1.0, 3.0), (2.0, 4.0))),
    )


@pytest.mark.parametrize("draw", ["bar", "barh"])
def test_bars_are_named_by_their_category(data_sandbox, draw):
    found = drawn(data_sandbox, f"plt.{draw}(['a', 'b'], [1, 2], label='g')")
    assert found.type is ChartType.bar
    assert found.elements == (
        Bar(label="a", group="g", value=1.0),
        Bar(label="b", group="g", value=2.0),
    )
    assert (found.x_scale if draw == "bar" else found.y_scale) == "categorical"


def test_bars_of_a_frame_are_named_by_its_index_and_grouped_by_its_columns(data_sandbox):
    found = drawn(
        data_sandbox,
        """
        import pandas as pd
        pd.DataFrame({"a": [1, 2], "b": [3, 4]}, index=["u", "v"]).plot.bar();
        """,
    )
    assert [(e.label, e.group, e.value) for e in found.elements] == [
        ("u", "a", 1.0),
        ("v", "a", 2.0),
        ("u", "b", 3.0),
        ("v", "b", 4.0),
    ]


def test_bins_of_a_histogram_are_bars_named_by_their_edges(data_sandbox):
    found = drawn(data_sandbox, "plt.hist([0, 1, 1, 4], bins=2)")
    assert found.type is ChartType.bar
    assert [(e.label, e.value) for e in found.elements] == [("[0, 2)", 3.0), ("[2, 4]", 1.0)]


def test_bars_that_touch_are_bins_and_large_edges_keep_their_digits(data_sandbox):
    found = drawn(data_sandbox, "plt.bar([1000005, 1000015], [1, 2], width=10)")
    assert [e.label for e in found.elements] == ["[1000000, 1000010)", "[1000010, 1000020]"]


@pytest.mark.parametrize("options", ["", ", stacked=True", ", orientation='horizontal'"])
def test_several_histograms_in_one_are_groups_with_the_same_bins(data_sandbox, options):
    found = drawn(data_sandbox, f"plt.hist([[1, 3], [2, 2]], bins=2, label=['p', 'q']{options})")
    assert [(e.label, e.group, e.value) for e in found.elements] == [
        ("[1, 2)", "p", 1.0),
        ("[2, 3]", "p", 1.0),
        ("[1, 2)", "q", 0.0),
        ("[2, 3]", "q", 2.0),
    ]


def test_bars_named_by_their_colour_in_the_legend_have_that_group(data_sandbox):
    found = drawn(
        data_sandbox,
        """
        from matplotlib.patches import Patch
        plt.bar([0, 1], [1, 2], width=0.3, color="red")
        plt.bar([0.3, 1.3], [3, 4], width=0.3, color="blue")
        plt.legend(handles=[Patch(color="red", label="r"), Patch(color="blue", label="b")])
        """,
    )
    assert [e.group for e in found.elements] == ["r", "r", "b", "b"]


@pytest.mark.parametrize(
    "draw",
    [
        "plt.plot([0, 0], [nan, nan]); plt.plot([1, 1], [nan, nan])",
        "plt.plot([0, 0], [0.5, 1.5]); plt.plot([0.9, 1.1, nan, 1, 1], [3, 3, nan, 1, 3])",
        "plt.axhline(0)",
    ],
)
def test_error_bars_drawn_as_lines_and_a_base_line_are_no_series_beside_bars(data_sandbox, draw):
    """seaborn draws them so; those of a single value are nan."""
    found = drawn(data_sandbox, f"nan = float('nan'); plt.bar(['a', 'b'], [1, 2]); {draw}")
    assert found.type is ChartType.bar
    assert [(e.label, e.value) for e in found.elements] == [("a", 1.0), ("b", 2.0)]


def test_a_series_without_a_point_is_left_out(data_sandbox):
    code = "nan = float('nan'); plt.plot([1, 2], [nan, nan]); plt.plot([1, 2], [3, 4])"
    assert drawn(data_sandbox, code).elements == (
        Series(label="", points=((1.0, 3.0), (2.0, 4.0))),
    )
    empty = drawn(data_sandbox, "plt.plot([1, 2], [float('nan')] * 2)")
    assert (empty.type, empty.elements) == (ChartType.line, ())


def test_lines_across_the_axes_are_series_of_their_own_beside_lines(data_sandbox):
    found = drawn(
        data_sandbox,
        """
        plt.plot([1, 2], [3, 4], label="a")
        plt.axhline(3), plt.axvline(2, label="here")
        plt.xlim(0, 10), plt.ylim(1, 100), plt.yscale("log")
        """,
    )
    assert found.type is ChartType.line
    assert found.elements == (
        Series(label="a", points=((1.0, 3.0), (2.0, 4.0))),
        Series(label="y = 3", points=((0.0, 3.0), (10.0, 3.0))),
        Series(label="here", points=((2.0, 1.0), (2.0, 100.0))),
    )


def test_bars_and_a_line_are_a_superchart_and_so_is_a_named_line_across(data_sandbox):
    for draw in ("plt.plot(['a', 'b'], [3, 4])", "plt.axhline(1, label='mean')"):
        found = drawn(data_sandbox, f"plt.bar(['a', 'b'], [1, 2]); {draw}")
        assert found.type is ChartType.superchart
        assert [part.type for part in found.elements] == ["bar", "line"]


def test_areas_have_the_labels_of_their_columns_and_the_heights_that_are_drawn(data_sandbox):
    code = "import pandas as pd\nframe = pd.DataFrame({'p': [1, 2], 'q': [3, 1]})\n"
    for draw in (
        "frame.plot.area();",
        "plt.stackplot([0, 1], frame.p, frame.q, labels=['p', 'q'])",
    ):
        assert drawn(data_sandbox, code + draw).elements == (
            Series(label="p", points=((0.0, 1.0), (1.0, 2.0))),
            Series(label="q", points=((0.0, 4.0), (1.0, 3.0))),
        )


def test_a_shade_around_a_line_is_left_out(data_sandbox):
    code = "plt.plot([1, 2], [3, 4]); plt.fill_between([1, 2], [2, 3], [4, 5], label='95 %')"
    (line,) = drawn(data_sandbox, code).elements
    assert line.points == ((1.0, 3.0), (2.0, 4.0))


@pytest.mark.parametrize("options", ["", ", orientation='horizontal'"])
def test_violins_are_unknown_with_all_that_is_drawn_in_them(data_sandbox, options):
    violin = drawn(data_sandbox, f"plt.violinplot([[1, 2, 3], [2, 3, 9]]{options})")
    assert (violin.type, violin.elements) == (ChartType.unknown, ())
    if not options:
        code = "plt.violinplot([1, 2, 3]); plt.plot([1, 1], [1.5, 2.5]); plt.plot(1, 2, marker='_')"
        assert drawn(data_sandbox, code).type is ChartType.unknown


def test_slices_of_a_pie_have_angle_and_radius(data_sandbox):
    found = drawn(data_sandbox, "plt.pie([1, 3], labels=['x', 'y'], radius=2)")
    assert found.type is ChartType.pie
    assert found.elements == (
        Slice(label="x", angle=90.0, radius=2.0),
        Slice(label="y", angle=270.0, radius=2.0),
    )


@pytest.mark.parametrize("options", ["", ", patch_artist=True, notch=True", ", vert=False"])
def test_boxes_have_quartiles_whiskers_and_outliers(data_sandbox, options):
    found = drawn(
        data_sandbox,
        f"""
        import warnings; warnings.simplefilter("ignore")
        plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]], tick_labels=["p", "q"]{options})
        """,
    )
    assert found.type is ChartType.box_and_whisker
    assert found.elements[0] == Box(
        label="p",
        min=1.0,
        first_quartile=2.0,
        median=3.0,
        third_quartile=4.0,
        max=4.0,
        outliers=(20.0,),
    )
    assert [element.label for element in found.elements] == ["p", "q"]


@pytest.mark.parametrize(
    "draw",
    [
        "stem([1, 2], [3, 4])",
        "step([1, 2], [3, 4])",
        "fill_between([1, 2], [3, 4])",
        "errorbar([1, 2], [3, 4], yerr=0.1)",
    ],
)
def test_what_is_nearly_a_line_is_a_line(data_sandbox, draw):
    found = drawn(data_sandbox, f"plt.{draw}")
    assert found.type is ChartType.line
    assert found.elements == (Series(label="", points=((1.0, 3.0), (2.0, 4.0))),)


@pytest.mark.parametrize(
    "draw",
    [
        "plt.plot([datetime.date(2024, 1, d) for d in (1, 2)], [3, 4])",
        "pd.Series([3, 4], index=pd.date_range('2024-01-01', periods=2)).plot();",
    ],
)
def test_dates_are_told_as_dates(data_sandbox, draw):
    found = drawn(data_sandbox, f"import datetime, pandas as pd\n{draw}")
    assert found.x_scale == "datetime"
    (line,) = found.elements
    assert line.points == (("2024-01-01T00:00:00", 3.0), ("2024-01-02T00:00:00", 4.0))
    assert all(isinstance(tick, str) for tick in found.x_ticks)


def test_several_axes_are_a_superchart(data_sandbox):
    found = drawn(
        data_sandbox,
        """
        figure, (left, right) = plt.subplots(1, 2)
        figure.suptitle("both")
        left.plot([1, 2]), left.set_title("left")
        right.bar(["a"], [1]), right.twinx().plot([1])
        """,
    )
    assert (found.type, found.title) == (ChartType.superchart, "both")
    assert [part.type for part in found.elements] == ["line", "bar", "line"]
    assert found.elements[0].title == "left"


def test_a_picture_or_another_projection_is_unknown_and_empty_axes_are_no_chart(data_sandbox):
    picture = drawn(data_sandbox, "plt.imshow([[1, 2], [3, 4]]); plt.colorbar()")
    assert (picture.type, picture.elements) == (ChartType.unknown, ())
    assert drawn(data_sandbox, "plt.polar([1, 2], [3, 4])").type is ChartType.unknown
    assert drawn(data_sandbox, "plt.subplots(2, 2)") is None


def test_too_many_points_are_thinned_evenly_and_that_is_said(data_sandbox):
    execution = data_sandbox.run_code(PLT + "plt.plot(range(1_000_000));").raise_for_outcome()
    found = execution.results[-1].chart
    points = found.elements[0].points
    assert found.truncated
    assert len(points) == figures.MAX_POINTS
    assert (points[0], points[-1]) == ((0.0, 0.0), (999_999.0, 999_999.0))
    assert {round(b[0] - a[0]) for a, b in pairwise(points)} <= {1000, 1001, 1002}
    assert execution.truncated
    assert any("left out" in note for note in execution.notes)


def test_too_many_outliers_are_thinned_and_the_boxes_are_all_there(data_sandbox):
    code = "plt.boxplot([[0] * 9000 + list(range(1, 2001))] * 5)"
    found = drawn(data_sandbox, code)
    assert found.truncated
    assert [len(box.outliers) for box in found.elements] == [figures.MAX_POINTS // 5] * 5


def test_a_chart_that_is_whole_says_nothing_of_size(data_sandbox):
    execution = data_sandbox.run_code(PLT + "plt.plot(range(1000));").raise_for_outcome()
    assert not execution.results[-1].chart.truncated
    assert not execution.truncated


def test_a_chart_that_cannot_be_described_is_still_a_picture(data_sandbox):
    found = drawn(
        data_sandbox,
        """
        axes = plt.gca()
        axes.plot([1, 2])
        axes.get_title = lambda *args: 1 / 0
        """,
    )
    assert found is None


def test_axes_that_were_cleared_have_forgotten_their_boxes(data_sandbox):
    found = drawn(data_sandbox, "plt.boxplot([1, 2, 3]); plt.cla(); plt.plot([1, 2])")
    assert found.type is ChartType.line


def test_units_are_found_at_the_end_of_a_label_only():
    assert figures.parse_unit("Speed (km/h)") == "km/h"
    assert figures.parse_unit("Price [EUR] ") == "EUR"
    assert figures.parse_unit("f(x) of it") is None
    assert figures.parse_unit("") is None


# --- what the host believes ------------------------------------------------------------------

LINE = {
    "type": "line",
    "title": "t",
    "elements": [{"label": "a", "points": [[1, 2.5], ["2024-01-01", None]]}],
    "x_ticks": [1, None, "a"],
    "x_tick_labels": ["1"],
    "y_unit": None,
}


def parsed(**changes):
    return chart.parse_chart(json.dumps({**LINE, **changes}))


def test_a_chart_survives_json():
    found = parsed(truncated=True)
    assert found.elements[0].points == ((1.0, 2.5), ("2024-01-01", None))
    assert chart.parse_chart(json.dumps(found.to_dict())) == found
    assert found.to_dict()["elements"] == [
        {"label": "a", "points": [[1.0, 2.5], ["2024-01-01", None]]}
    ]


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        '{"type":' * 50_000,
        json.dumps(LINE).replace("2.5", "NaN"),
        json.dumps(LINE).replace("2.5", "1e999"),
        json.dumps(LINE).replace("2.5", "9" * 5000),
        json.dumps(LINE).replace("2.5", "9" * 1000),
        json.dumps(LINE).replace("2.5", "true"),
        json.dumps(LINE).replace("2.5", "[1]"),
        json.dumps({**LINE, "type": "heatmap"}),
        json.dumps({**LINE, "type": ["line"]}),
        json.dumps({**LINE, "type": "unknown"}),
        json.dumps({**LINE, "title": "x" * 10_000}),
        json.dumps({**LINE, "elements": {}}),
        json.dumps({**LINE, "elements": [[]]}),
        json.dumps({**LINE, "elements": [{"label": 1, "points": []}]}),
        json.dumps({**LINE, "elements": [{"label": "", "points": [[1, 2, 3]]}]}),
        json.dumps({**LINE, "x_ticks": [1] * 200_000}),
        json.dumps({**LINE, "type": "superchart", "elements": [1]}),
        json.dumps(
            {"type": "superchart", "title": "", "elements": [{**LINE, "type": "superchart"}]}
        ),
        '"' + "x" * chart.MAX_JSON + '"',
    ],
    ids=lambda text: text[:30],
)
def test_a_forged_chart_is_none(forged):
    assert chart.parse_chart(forged) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(LINE, json_values)))
def test_whatever_the_guest_says_is_a_chart_or_none(changes):
    found = parsed(**changes)
    assert found is None or isinstance(found, Chart)
    if found is not None:
        assert chart.parse_chart(json.dumps(found.to_dict(), allow_nan=False)) == found


def test_a_guest_that_forges_its_chart_gets_none_or_what_it_said(sandbox):
    code = """
        class Forger:
            def __init__(self, text): self.text = text
            def _repr_mimebundle_(self, include=None, exclude=None):
                return {"application/vnd.belljar.chart+json": self.text}
        display(Forger('{"type": "line", "title": NaN, "elements": []}'))
        display(Forger("[" * 100000))
        display(Forger('{"type": "line", "title": "mine", "elements": []}'))
        """
    execution = sandbox.run_code(dedent(code)).raise_for_outcome()
    assert [result.chart and result.chart.title for result in execution.results] == [
        None,
        None,
        "mine",
    ]


def test_bytes_are_no_chart():
    assert Result(raw={CHART: json.dumps(LINE).encode()}, is_main_result=True).chart is None
