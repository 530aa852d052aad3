"""What a stranger's results may show is text, tables, pictures and colours. Nothing of it runs,
loads anything, leads anywhere, or has a name by which a page would find it."""

import builtins
import html.parser
import itertools
import json
import time

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.record.export import notebook, page
from belljar.results import sanitize
from belljar.results.execution import Execution, Logs, Outcome, Usage
from belljar.results.result import Result
from belljar.results.sanitize import clean, clean_markdown

CODE = "alert(1)"
ADDRESS = "javascript:alert(1)"
PIXEL = "data:image/png;base64,iVBORw0KGgo="


class Parsed(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, attributes))


def assert_harmless(text):
    for tag, attributes in Parsed(text).elements:
        assert tag in sanitize._ELEMENTS.split(), text
        for name, value in attributes:
            allowed = sanitize._ATTRIBUTES["*"] | sanitize._ATTRIBUTES.get(tag, set())
            assert name in allowed, text
            assert name != "src" or value.startswith("data:image/"), text
            assert name != "style" or not set(value) & set("\\/*:;@{}<>") - set(":;"), text
            assert "url" not in (value if name == "style" else ""), text


# -- payloads, by their kinds ---------------------------------------------------------------------

HANDLERS = """
    onload onerror onclick onmouseover onfocus onblur ontoggle onanimationstart onbegin onwheel
    onpointerenter onbeforematch onauxclick
"""
HOLDING = """
    a abbr audio b base bdo body button details div embed form frameset iframe img input isindex
    link marquee math meta object p script select style svg table td template textarea title video
"""
ADDRESSING = """
    href src action formaction background data poster srcset xlink:href ping cite longdesc manifest
    codebase classid srcdoc lowsrc dynsrc profile usemap
"""
RAW_TEXT = "noscript textarea title xmp style iframe noembed noframes script plaintext"
EVENTS, HOLDERS, ADDRESSED = HANDLERS.split(), HOLDING.split(), ADDRESSING.split()
IMAGE = "<img src=x onerror=alert(1)>"
ADDRESSES = [
    ADDRESS,
    "JaVaScRiPt:alert(1)",
    " &#14; javascript:alert(1)",
    "java\tscript:alert(1)",
    "java&NewLine;script&colon;alert(1)",
    "&#106;avascript:alert(1)",
    "vbscript:msgbox(1)",
    "data:text/html,<script>alert(1)</script>",
    "data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+",
    "//evil.example/x",
    "http://evil.example/x.png",
    "file:///etc/passwd",
    "x:x",
    "view-source:x",
    "blob:x",
]
# Where a parser is in another mind: a tag there is text, or ends something, or moves when what came
# of it is parsed a second time.
ELSEWHERE = [
    "",
    "<svg>",
    "<math>",
    "<svg><desc>",
    "<svg><foreignobject>",
    "<math><mtext>",
    "<math><mi><table><malignmark>",
    "<table>",
    "<table><caption>",
    "<select>",
    "<template>",
    "<p><b><table>",
]
READ_OTHERWISE = [
    "<!--><img src=x onerror=alert(1)>-->",
    "<!--->--!><img src=x onerror=alert(1)>",
    "<!-- --!><img src=x onerror=alert(1)> -->",
    "<![CDATA[<img src=x onerror=alert(1)>]]>",
    "<?xml version='1.0'?><?x ><img src=x onerror=alert(1)>",
    "<![foo[<img src=x onerror=alert(1)>]]>",
    "<svg><![CDATA[</svg><img src=x onerror=alert(1)>]]>",
    "<form><math><mtext></form><form><mglyph><style></math><img src=x onerror=alert(1)>",
    '<math><annotation-xml encoding="text/html"><svg><style><img src=x onerror=alert(1)></style>',
    "<template><script>alert(1)</script></template>",
    "<div><template shadowrootmode=open><img src=x onerror=alert(1)></template></div>",
    "<frameset onload=alert(1)><frame src=javascript:alert(1)>",
    "<b<script>alert(1)</script>0",
    "<script\x20type='text/javascript'>alert(1)</script>",
    "<script\x0c>alert(1)</script\x0b>",
    "<scr\0ipt>alert(1)</scr\0ipt>",
    "<<script>alert(1)//<</script>",
    "<img src='a`b' onerror='alert(1)'`>",
    '<img """><script>alert(1)</script>">',
    "<img src=x:x onerror=alert(1)//",
    "<a href=x onclick=alert(1)",
    "<p/onclick=alert(1)>x",
    "<p\x0conclick=alert(1)>x",
    "<p title=a onclick\x00=alert(1)>x",
    '"><svg onload=alert(1)>',
    "'-alert(1)-'",
    "${alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
]
DRAWN = [
    "<svg><script>alert(1)</script></svg>",
    "<svg><a xlink:href=javascript:alert(1)><text>x</text></a></svg>",
    "<svg><animate attributeName=href values=javascript:alert(1) begin=0s></svg>",
    "<svg><set attributeName=onmouseover to=alert(1)></svg>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=alert(1)>#x'></svg>",
    "<svg><image href=//evil.example></svg>",
    "<svg><foreignObject><iframe srcdoc='<script>alert(1)</script>'></foreignObject></svg>",
    "<svg><handler xmlns:ev=x ev:event=load>alert(1)</handler></svg>",
    "<math href=javascript:alert(1)>x</math>",
    "<math><maction actiontype=statusline xlink:href=javascript:alert(1)>x</maction></math>",
]
STYLED = [
    "color:red;background:url(//evil.example)",
    "background:u\\72l(//evil.example)",
    "background:/**/url(x)",
    "background-color:image-set('//evil.example' 1x)",
    "background:element(#x)",
    "background:image('x')",
    "background:src('x')",
    "background:-moz-element(#x)",
    "width:expression(alert(1))",
    "-moz-binding:url(x)",
    "behavior:url(x)",
    "position:fixed;inset:0;z-index:9999",
    "@import '//evil.example'",
    "color:red}*{background:red",
    "font-family:x;content:url(x);list-style:url(x);cursor:url(x),auto;filter:url(x);mask:url(x)",
    "color:var(--x);--x:url(x)",
    "color:attr(title)",
    "animation:x 1s;transform:scale(9)",
]
NAMED = [
    '<b id="location" name="cookie" class="jp-Cell">x</b>',
    '<a id=document name=body href="#x">x</a>',
    '<img name=getElementById src="' + PIXEL + '">',
    "<form id=x><input name=attributes><input name=parentNode></form>",
    '<b data-commandlinker-command="terminal:create-new" data-commandlinker-args="{}">x</b>',
    "<b data-x=1 aria-label=x role=button tabindex=0 accesskey=x contenteditable autofocus>x</b>",
    "<b is=x-y slot=z part=w itemprop=a lang=b title=c hidden popover popovertarget=d>x</b>",
    "<button popovertarget=x onclick=alert(1)>x</button>",
    '<p style="color:red" style="background:url(x)" STYLE=x>x</p>',
]


def payloads():
    for holder, event in itertools.product(HOLDERS, EVENTS):
        yield f"<{holder} {event}={CODE}>x</{holder}>"
    for holder, name, address in itertools.product(HOLDERS, ADDRESSED, ADDRESSES):
        yield f'<{holder} {name}="{address}">x</{holder}>'
    for place, raw in itertools.product(ELSEWHERE, RAW_TEXT.split()):
        yield f'{place}<{raw}><a title="</{raw}>{IMAGE}">x'
        yield f"{place}<{raw}><!--</{raw}>{IMAGE}-->x"
        yield f"{place}<{raw}>{IMAGE}</{raw}>{IMAGE}"
    for style in STYLED:
        yield f'<td style="{style}">x</td>'
        yield f"<table><tr><td style='{style}'>x</td></tr></table>"
        yield f"<style>p {{{style}}}</style><p>x</p>"
        yield f'<style>#a {{{style}}}</style><p id="a">x</p>'
    for text in (*READ_OTHERWISE, *DRAWN, *NAMED):
        yield text
        for around in ("table", "svg", "math", "select", "template", "noscript", "textarea", "p"):
            yield f"<{around}>{text}</{around}>"


ALL = list(payloads())
MARKDOWN = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    '![x](x"onerror="alert(1))',
    "![x](//evil.example/x.png)",
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    "`<script>alert(1)</script>`",
    "```html\n<script>alert(1)</script>\n```\n</code></pre><script>alert(1)</script>",
    "|<img src=x onerror=alert(1)>|b|\n|-|-|\n|<script>alert(1)</script>|\\|",
    "a\n<div onclick=alert(1)>\n\n*b*\n</div>",
    "$$<img src=x onerror=alert(1)>$$ $\\href{javascript:alert(1)}{x}$",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script>alert(1)",
    "[<img src=x onerror=alert(1)>](x) **<b onclick=alert(1)>**",
    "# <svg onload=alert(1)>\n> <iframe src=javascript:alert(1)>\n- <details ontoggle=alert(1)>",
]


def test_nothing_harmful_of_any_kind_of_payload_stays():
    for text in ALL:
        assert_harmless(clean(text))
        assert clean(clean(text)) == clean(text), text


@pytest.mark.parametrize("text", MARKDOWN)
def test_markdown_is_text_with_its_markup_and_its_html_is_text(text):
    assert_harmless(clean_markdown(text))


@given(st.lists(st.sampled_from(ALL) | st.text(max_size=10), max_size=8).map("".join))
def test_nothing_harmful_stays_however_payloads_are_broken_and_joined(text):
    assert_harmless(clean(text))
    assert_harmless(clean_markdown(text))


@given(st.sampled_from(ALL), st.integers(0, 60), st.text("<>\"'/= \t\n\0-!&;a", max_size=4))
def test_nothing_harmful_stays_of_a_payload_with_something_put_in(text, at, more):
    assert_harmless(clean(text[:at] + more + text[at:]))


# -- what stays -----------------------------------------------------------------------------------

KEPT = [
    '<table border="1"><tbody><tr><th colspan="2">a</th></tr></tbody></table>',
    '<b>1 &lt; 2</b> &amp; <i style="color: red">x</i><br>',
    f'<img src="{PIXEL}" alt="x" width="10">',
    f'<img height="50" src="{PIXEL}">',
    "<h1>T</h1><p>a <code>b</code> <em>c</em></p><ul><li>d</li></ul><pre>e\n f</pre>",
    '<ol start="3"><li>x</li></ol><blockquote>q</blockquote><hr>',
    '<p style="background: linear-gradient(90deg, #d65f5f 50.0%, transparent 50.0%)">x</p>',
    '<td style="color: rgb(1, 2, 3)">x</td>',
]


@pytest.mark.parametrize("text", KEPT)
def test_what_text_and_tables_are_made_of_stays(text):
    wrapped = f"<table><tbody><tr>{text}</tr></tbody></table>" if text.startswith("<td") else text
    assert clean(wrapped) == wrapped


def test_a_frame_stays_a_table():
    frame = pd.DataFrame({"a<b>": [1, 2], "c": ["<script>", "&"]})
    shown = clean(frame._repr_html_())
    assert shown.count("<td>") == 4
    assert "<th>a&lt;b&gt;</th>" in shown
    assert "<td>&lt;script&gt;</td>" in shown


STYLED_FRAME = """
<style type="text/css">
#T_ab12_row0_col0, #T_ab12_row1_col0 {
  background-color: #440154;
  color: #f1f1f1;
}
#T_ab12_row0_col1 { position: fixed; width: 10em; background: url(//evil.example) }
#T_ab12 th { color: red }
</style>
<table id="T_ab12"><tr>
<td id="T_ab12_row0_col0" class="data row0 col0" >1</td>
<td id="T_ab12_row0_col1" class="data row0 col1" >2</td></tr></table>
"""


def test_cells_of_a_styled_frame_keep_their_colours_and_lose_the_rest():
    shown = clean(STYLED_FRAME)
    assert '<td style="background-color: #440154; color: #f1f1f1">1</td>' in shown
    assert "<td>2</td>" in shown
    assert_harmless(shown)


def test_markdown_keeps_its_headings_lists_tables_and_code():
    text = "# T\n\n**b** *i* `c` [link](http://x.example)\n\n- 1\n\n|a|\n|-|\n|2|\n\n    code\n"
    shown = clean_markdown(text)
    for part in ("<h1>T</h1>", "<strong>b</strong>", "<em>i</em>", "<code>c</code>", "<li>1</li>"):
        assert part in shown
    assert "<td>2</td>" in shown
    assert "link" in shown
    assert "x.example" not in shown


def test_what_shows_nothing_is_nothing():
    for text in ("", " ", "<script>x</script>", "<img src=x>", "<div><p></p></div>", "<!-- x -->"):
        assert clean(text) == ""


# -- what it costs --------------------------------------------------------------------------------

UNITS = """
    <a/ <!-- <a <a' <a" <![ <? </ <style> </style & <a_b= <p_a <div> <b> <p><b> <table><td> <svg>
    <table>x <select><option> <template> <form><div> <x> </p> </x> <svg><td> <math><mi> <li> <font>
"""
UNFINISHED = UNITS.split()


@pytest.mark.parametrize("unit", UNFINISHED)
def test_its_cost_is_bounded(unit):
    began = time.process_time()
    for size in (sanitize.MAX_HTML, 16 * sanitize.MAX_HTML):
        clean(unit.replace("_", " ") * (size // len(unit)))
    assert time.process_time() - began < 20


def test_attributes_without_number_and_elements_that_are_repeated_are_bounded():
    began = time.process_time()
    clean("<p " + " ".join(f"a{n}" for n in range(40_000)) + ">x")
    opened = "".join(f"<b a={n}>" for n in range(3000))
    assert clean(f"<p>{opened}" + "<div>x</div>" * 3000) == ""
    clean_markdown("![[](" * 12_000)
    assert time.process_time() - began < 20


def test_what_is_too_large_is_not_shown_as_html():
    assert clean("<b>x</b>" + " " * sanitize.MAX_HTML) == ""
    assert clean_markdown("x" * (sanitize.MAX_MARKDOWN + 1)) == ""
    rows = "<tr><td>1</td><td>2</td></tr>\n" * 4000
    assert clean(f"<table><tbody>{rows}</tbody></table>").count("<td>") == 8000


def test_a_styled_frame_cannot_make_it_grow_without_bound():
    rule = "color:" + "a" * (sanitize.MAX_RULE - 10)
    text = f"<style>#a {{{rule}}}</style>" + '<p id="a">x</p>' * 10_000
    assert len(clean(text)) < 50 * len(text)
    assert "style" not in clean(f"<style>#a {{{rule * 2}}}</style>" + '<p id="a">x</p>')


def test_texts_that_no_page_can_hold_are_replaced():
    assert clean("<b>\ud800</b>") == "<b>\ufffd</b>"
    assert clean_markdown("\ud800") == "<p>\ufffd</p>\n"


# -- without nh3 ----------------------------------------------------------------------------------


@pytest.fixture
def no_nh3(monkeypatch):
    monkeypatch.setattr(sanitize.importlib.util, "find_spec", lambda name: None)
    real = builtins.__import__

    def without(name, *rest):
        if name in ("nh3", "markdown_it"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)


def shown(**raw):
    by_type = {name.replace("_", "/"): value for name, value in raw.items()}
    return Result(raw=by_type, is_main_result=True)


def test_without_nh3_text_is_shown_everywhere_and_it_is_said(no_nh3):
    table = shown(text_html="<table><td>1", text_plain="one")
    only = shown(text_html="<b onclick=x>1")
    assert table._repr_mimebundle_() == {"text/plain": "one"}
    assert notebook._bundle(table) == {"text/plain": "one"}
    assert notebook._bundle(only) == {"text/plain": "<b onclick=x>1"}
    assert page._result(only) == ('<div class="result main"><pre>&lt;b onclick=x&gt;1</pre></div>')
    assert sanitize.MISSING in execution(table)._repr_html_()
    assert sanitize.MISSING not in execution(shown(text_plain="one"))._repr_html_()


# -- viewers --------------------------------------------------------------------------------------


def execution(*results):
    return Execution(
        outcome=Outcome.ok,
        text=None,
        value=None,
        results=results,
        stdout="",
        stderr="",
        logs=Logs(stdout=(), stderr=()),
        error=None,
        exit_code=None,
        signal=None,
        execution_count=1,
        usage=Usage(wall=0.001, cpu=None, peak_memory=None, output_bytes=0),
        state_preserved=True,
        truncated=False,
    )


EXECUTING = [
    "application/javascript",
    "text/javascript",
    "application/vnd.jupyter.widget-view+json",
    "application/vnd.jupyter.widget-state+json",
    "application/vnd.plotly.v1+json",
    "application/vnd.vega.v5+json",
    "application/vnd.vegalite.v5+json",
    "application/vnd.bokehjs_exec.v0+json",
    "application/vnd.bokehjs_load.v0+json",
    "application/vnd.holoviews_exec.v0+json",
    "application/geo+json",
    "application/pdf",
    "application/xhtml+xml",
    "text/xml",
    "text/latex",
    "text/vnd.mermaid",
    "image/svg+xml",
    "text/markdown",
    "text/x-whatever",
    "application/vnd.belljar.table",
]


@pytest.mark.parametrize("mime", EXECUTING)
def test_a_notebook_file_has_known_types_only(mime):
    content = json.dumps({"a": "<script>alert(1)</script>"}) if "json" in mime else ALL[0]
    bundle = notebook._bundle(Result(raw={mime: content, "text/plain": "t"}, is_main_result=True))
    known = {"text/plain", "text/html", "image/png", "image/jpeg", "application/json"}
    assert bundle.keys() <= known
    if "text/html" in bundle:
        assert "<svg" not in bundle["text/html"]
        assert "<script" not in bundle["text/html"]
        assert "<a" not in bundle["text/html"]


def test_html_of_a_notebook_file_is_clean_and_its_mathematics_stays_text():
    bundle = notebook._bundle(shown(text_html='<b class="a" onclick="x">$\\href{x}{y}$</b>'))
    assert bundle["text/html"] == (
        '<div class="tex2jax_ignore mathjax_ignore"><b>$\\href{x}{y}$</b></div>'
    )


def test_markdown_is_html_in_a_notebook_file_and_on_the_page():
    result = shown(text_markdown="**b** <script>alert(1)</script>")
    for text in (notebook._bundle(result)["text/html"], page._result(result)):
        assert "<script" not in text
        assert "<strong>b</strong>" in text or "&lt;strong&gt;b" in text


def test_every_payload_is_harmless_in_a_notebook_file():
    types = ("text/html", *EXECUTING)
    for text in ALL[::11]:
        results = [Result(raw={mime: text}, is_main_result=False) for mime in types]
        for output in notebook._outputs(execution(*results)):
            for mime, content in output["data"].items():
                assert mime in ("text/html", "text/plain")
                if mime == "text/html" and content.startswith("<img"):
                    assert content.startswith('<img alt="" src="data:image/svg+xml;base64,')
                    assert content.count("<") == 1
                elif mime == "text/html":
                    head = '<div class="tex2jax_ignore mathjax_ignore">'
                    assert content.startswith(head)
                    assert_harmless(content.removeprefix(head).removesuffix("</div>"))
