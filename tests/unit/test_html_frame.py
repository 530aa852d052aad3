"""The frame of HTML in a notebook is as high as what is in it, as measured in Chromium."""

import re

import pandas
import polars
import pytest

from belljar.results import display, sanitize
from belljar.results.display import frame_height as height
from belljar.results.execution import Result

TABLE = pandas.DataFrame({"city": ["Bern", "Ulm", "Graz"], "n": [1, 2, 3]})


def frame_height(html):
    shown = Result(raw={"text/html": html}, is_main_result=True)._repr_mimebundle_()["text/html"]
    return int(re.search(r"height:(\d+)px", shown.rpartition("style=")[2])[1])


def test_a_small_table_leaves_no_empty_band_below_it():
    assert frame_height(TABLE.to_html()) == 6 + 4 * 25 + 12
    assert frame_height(TABLE[:0].to_html()) == 6 + 25 + 12
    assert frame_height("<b>bold</b>") == 6 + 20 + 12


def test_a_long_table_is_scrolled_in_its_frame():
    assert frame_height(pandas.concat([TABLE] * 20).to_html()) == 520


def test_a_frame_and_a_picture_are_no_text_with_a_gap_below_it():
    assert 'style="display:block;' in display.html_frame("x")
    assert 'style="display:block;' in sanitize.image("image/png", b"")


@pytest.mark.parametrize(
    ("html", "pixels"),
    [
        (polars.DataFrame({"a": [1]})._repr_html_(), 20 + 6 + 3 * 25),
        ("<table border=1><caption>c</caption><tr><td>a</table>", 2 * 25),
        ("<table><tr><td rowspan=2>1<td>a<tr><td>b</table>", 2 * 25),
        ("<div><div>a</div><div> </div>b</div><p></p>", 20 + 20),
        ("<pre>\na\n\nb\n</pre><p>c</p>", 60 + 6 + 20),
        ("<ul><li>a<li>b</ul><p>c", 20 + 20 + 6 + 20),
        (f"<p>{'word ' * 100}</p>", 5 * 20),
    ],
)
def test_the_height_is_that_of_all_lines_rows_and_gaps(html, pixels):
    assert height(sanitize.clean(html)) == 6 + pixels + 12


@pytest.mark.parametrize("html", ["</td></table>x", "<td>x</tr>", "<table><td>x", "<img", "&", ""])
def test_html_that_is_not_whole_has_a_height(html):
    assert 18 <= height(html) <= 520
