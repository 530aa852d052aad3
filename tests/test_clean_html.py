"""HTML that is shown keeps its tables and text, and loses whatever reaches out."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.clean_html import clean

KEPT = [
    '<table border="1" class="dataframe"><tr><th>a</th></tr></table>',
    '<b>1 &lt; 2</b> &amp; <i style="color: red">x</i><br>',
    "<style>td { color: red } a > b { x: 1 }</style><td>1</td>",
    '<a href="#part">there</a>',
    '<img src="data:image/png;base64,AAAA" alt="x">',
    "&nbsp;&#8364;",
    '<svg viewbox="0 0 1 1"><path d="M0 0" fill="url(#a)"></path></svg>',
]
LOST = {
    "<link rel=preconnect href=http://evil.example>": "",
    "a<meta http-equiv=refresh content='0;url=http://evil.example'>b": "ab",
    "<base href=http://evil.example>": "",
    "x<script>alert('<b>')</script>y": "xy",
    "x<iframe src=http://evil.example>in</iframe>y": "xy",
    "<object data=http://evil.example><b>in</b></object>y": "y",
    "<embed src=http://evil.example>y": "y",
    "<a href=http://evil.example>x</a>": "<a>x</a>",
    "<img src=http://evil.example/x.png onerror=alert(1)>": "<img>",
    "<a ping=http://evil.example href='#a'>x</a>": '<a href="#a">x</a>',
    "<IMG SRC=HTTP://EVIL.EXAMPLE>": "<img>",
    "<svg><image xlink:href=http://evil.example></svg>": "<svg></svg>",
    "<form action=http://evil.example><input>x</form>": "x",
    # What a browser reads otherwise than it looks: the end of a title, or of a style sheet.
    "<title><style></title><link rel=x href=//evil.example></style>y": "y",
    "<textarea><style></textarea><link rel=x href=//evil.example></style>y": "y",
    "<style></style x><link rel=x href=//evil.example></style>": "<style></style>",
    "<style></style/><img src=x onerror=alert(1)></style>": "<style></style><img>",
    "<svg><style><p><link rel=x href=//evil.example></style>": "<svg>",
    "<style/><link rel=x href=//evil.example>": "",
    "<svg><style>&#117;rl(//evil.example)</style>": "<svg>",
    "<style>@import '//evil.example';</style>x": "x",
    "<style>a { b: u\\72l(//evil.example) }</style>x": "x",
    "<p style='background:url(//evil.example)'>x": "<p>x",
    "<p style='background:u&#x72;l(//evil.example)'>x": "<p>x",
    "<rect fill='url(//evil.example#a)'>": "<rect>",
    "<svg><a><animate attributeName=href values=javascript:1 /><set to=//e></a>": "<svg><a></a>",
    "<a href=javascript:alert(1)>x</a><a href=' #'>y</a>": "<a>x</a><a>y</a>",
    "<!--><link rel=x href=//evil.example>-->y": "y",
    "<![foo[a]]>x<![ y": "x&lt;![ y",
    "<?x ><b>y": "<b>y",
    '<p onclick=1 ONclick=2 o\0nclick=3 id="a">x': '<p id="a">x',
    '<p a"b=1 onclick=1>x': '&lt;p a"b=1 onclick=1&gt;x',
}


@pytest.mark.parametrize("html", KEPT)
def test_what_tables_are_made_of_stays(html):
    assert clean(html) == html


@pytest.mark.parametrize("html", LOST)
def test_what_reaches_out_goes(html):
    assert clean(html) == LOST[html]


pieces = st.sampled_from(
    [*KEPT, *LOST, "<", ">", "</", "<!--", "-->", "<![CDATA[", "'", '"', "<scr", "ipt>", "=", "\0"]
) | st.text(max_size=10)


UNFINISHED = [
    "<a/",
    "<!--",
    "<a",
    "<a '",
    '<a "',
    "<![",
    "<?",
    "</",
    "<style>",
    "</style ",
    "&",
    "<a b=",
    "< ",
    "<p a",
]
BEGINS = {"</style ": "<style>"}  # what must stand before it, once


@pytest.mark.parametrize("unit", UNFINISHED)
def test_it_takes_time_in_proportion_to_the_length(unit):
    began = time.process_time()
    clean(BEGINS.get(unit, "") + unit * (300_000 // len(unit)))
    assert time.process_time() - began < 20  # minutes, if each looked at all that follows


@given(st.lists(pieces, max_size=12).map("".join))
def test_nothing_of_it_is_there_however_it_is_broken(html):
    cleaned = clean(html)
    for word in ("<link", "<meta", "<base", "<script", "<iframe", "<object", "<embed"):
        assert word not in cleaned.lower()
    assert clean(cleaned) == clean(clean(cleaned))
