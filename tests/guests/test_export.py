"""A record as a notebook, a script and a page, whatever is in it."""

import base64
import compileall
import copy
import html
import html.parser
import json
import os
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest

from belljar import Environment, InvalidOption, Limits, Sandbox
from belljar.record import Recorder, read
from belljar.record.export import FORMATS, render
from belljar.record.export import notebook as ipynb
from belljar.record.export.export_text import MAX_HIGHLIGHTED, highlight_code
from belljar.record.export.page import MOST

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SHOW = """
class Shown:
    def __init__(self, **formats):
        self.formats = formats
    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.formats
def show(**formats):
    display(Shown(**{name.replace("_", "/"): value for name, value in formats.items()}))
"""
EVIL = "</script></pre></iframe><script>alert(1)</script><img src=x onerror=alert(1)>\"'`"
CELLS = [
    SHOW,
    "print('out'); import sys; print('err', file=sys.stderr)\n6 * 7",
    f"Shown(**{{'text/plain': 'pic', 'image/png': {PNG!r}}})",
    f"show(text_html={'<b>bold</b>' + EVIL!r})",
    f"Shown(**{{'image/svg+xml': {'<svg onload=alert(1)>' + EVIL + '</svg>'!r}}})",
    f"print({EVIL!r}, '\\x1b[31mred\\x1b[0m\\x1b]0;owned\\x07', '\\0', '\\u202e\\n10%\\r20%')",
    f"# {EVIL}\nraise ValueError('\\x1b[1m' + {EVIL!r})",
    "show(application_json={'a': [1, None, '\\ud800']})",
    "Shown(**{'application/json': 'no json {'})",
    "'\\ud800 lone'",
    "x = (",
    "import os; os._exit(3)",
    "# coding: utf-7\nprint('x' * 300_000)",
]


class Page(html.parser.HTMLParser):
    """Every element and attribute that a browser would see."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append(SimpleNamespace(tag=tag, attributes=dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [element.attributes for element in self.elements if element.tag == tag]


@pytest.fixture(scope="module")
def path(backend, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "ses<b>sion.jsonl"
    metadata = {"task": EVIL}
    with Sandbox(environment="python", record=path, metadata=metadata) as sandbox:
        for cell in CELLS:
            sandbox.run_code(cell)
        result = sandbox.commands.run(["echo", EVIL])
        sandbox.restart()
    recorder = Recorder(path)
    recorder.begin(
        sandbox=EVIL, backend=EVIL, environment=Environment("python"), limits=Limits(), env=[EVIL]
    )
    recorder.event("command", cmd=["echo", EVIL], result=result)
    recorder.event("write", path=EVIL + "\n" + EVIL, content=b"")
    recorder.event(EVIL, id=EVIL)
    recorder.event("command", cmd=7)
    recorder.close()
    return path


@pytest.fixture(scope="module")
def record(path):
    return read(path)


@pytest.fixture(scope="module")
def notebook(record):
    return nbformat.reads(render(record, "ipynb"), as_version=4)


@pytest.fixture(scope="module")
def page(record):
    return Page(render(record, "html"))


def cli(*words, **options):
    command = [sys.executable, "-m", "belljar", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


# --- html --------------------------------------------------------------------------------------


def test_html_that_is_none_leaves_the_record_to_be_exported(backend, tmp_path):
    broken = "<![foo[a]]><![ x<title><style></title><link rel=x href=//e></style>" + "<a/" * 20_000
    with Sandbox(environment="python", record=tmp_path / "broken.jsonl") as sandbox:
        sandbox.files.write("broken.html", broken)
        sandbox.run_code(SHOW + "show(text_html=open('broken.html').read())")
    record = read(tmp_path / "broken.jsonl")
    for format in FORMATS:
        assert "<link" not in render(record, format)


# --- notebook ----------------------------------------------------------------------------------


def test_notebook_is_valid(notebook):
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_notebook_has_every_output(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    first, picture = code[1], code[2]
    assert [output.output_type for output in first.outputs] == [
        *("stream", "stream", "execute_result"),
    ]
    assert first.outputs[2].data["text/plain"] == "42"
    assert base64.b64decode(picture.outputs[0].data["image/png"]) == PNG
    assert code[3].outputs[0].output_type == "display_data"
    assert code[7].outputs[0].data["application/json"]["a"] == [1, None, "\ufffd"]


def test_traceback_in_a_notebook_has_no_escape_sequences(notebook):
    errors = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert {"ValueError", "SyntaxError"} <= {error.ename for error in errors}
    assert not any("\x1b" in line for error in errors for line in error.traceback)


def test_markdown_of_a_notebook_is_code_and_nothing_else(notebook):
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert texts
    for text in texts:
        assert_words(text)


def assert_words(text):
    for part in text.split("</code> <code>"):
        inner = part.removeprefix("<code>").removesuffix("</code>")
        assert re.fullmatch(r"([A-Za-z0-9 ,/-]|&#[0-9]+;)*", inner)


@pytest.mark.parametrize(
    "name",
    [
        "a\n<script>alert(1)</script>",
        "a\n\n    b",
        "`<b>`",
        "$$<b>$$",
        "www.x.example http://x",
        "[a](b)",
    ],
)
def test_no_name_of_a_record_is_markup_of_a_notebook(name):
    cell = ipynb._markdown(name, "b")
    assert_words(cell["source"])
    assert html.unescape(cell["source"]) == f"<code>{name}</code> <code>b</code>"


def test_json_that_is_nested_too_deeply_is_text(backend, tmp_path):
    path = tmp_path / "deep.jsonl"
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.run_code(SHOW)
        sandbox.run_code("Shown(**{'application/json': '[' * 900 + ']' * 900})")
    nbformat.validate(nbformat.reads(render(read(path), "ipynb"), as_version=4))


# --- script ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [False, True])
def test_script_compiles_and_is_what_ran(record, tmp_path, outputs):
    text = render(record, "py", outputs=outputs)
    assert text.count("\n# %%\n") == len(CELLS)
    assert ("# value: 42" in text) is outputs
    assert not set(text) & set("\x00\x1b\u202e")
    script = tmp_path / "script.py"
    script.write_text(text)
    assert compileall.compile_file(script, quiet=1)


def test_code_is_in_the_script_as_it_ran(backend, tmp_path):
    path = tmp_path / "s.jsonl"
    with Sandbox(environment="python", record=path) as sandbox:
        sandbox.run_code("def f():\n\treturn 'ä'\n")
        sandbox.run_code("print(f())")
    done = subprocess.run(
        [sys.executable, "-"], input=render(read(path), "py").encode(), capture_output=True
    )
    assert done.stdout.decode() == "ä\n"


# --- page --------------------------------------------------------------------------------------


def test_nothing_of_the_guest_is_markup_of_the_page(page):
    ours = {
        *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "div"),
        *("h1", "h2", "dl", "dt", "dd", "p", "span", "pre", "img", "iframe", "i", "a"),
    }
    assert {element.tag for element in page.elements} <= ours
    for element in page.elements:
        assert not any(name.startswith("on") for name in element.attributes)
    assert EVIL in page.text


def test_the_page_loads_nothing_and_runs_nothing(page):
    (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for element in page.elements:
        for name in ("src", "href"):
            assert element.attributes.get(name, "data:").startswith("data:")


def test_html_of_the_guest_is_in_a_sandboxed_frame(page):
    (frame,) = page.all("iframe")
    assert frame["sandbox"] == ""
    assert "<b>bold</b>" in frame["srcdoc"]
    assert "src" not in frame


def test_pictures_are_data_of_an_image(page):
    png, svg = page.all("img")
    assert base64.b64decode(png["src"].removeprefix("data:image/png;base64,")) == PNG
    assert svg["src"].startswith("data:image/svg+xml;base64,")


def test_control_characters_are_shown_or_gone(record, page):
    text = render(record, "html")
    assert not set(text) & {"\0", "\x1b", "\u202e", "\r", "\x7f"}
    assert not any(0xD800 <= ord(character) < 0xE000 for character in text)
    assert "red \\x00 \\u202e\n20%" in page.text


def test_huge_output_is_cut_on_the_page(page):
    assert "x" * MOST in page.text
    assert "x" * (MOST + 1) not in page.text
    assert f"{300_000 - MOST:,} more characters" in page.text


def test_outcomes_and_costs_are_told(page):
    for words in ("ok", "error", "killed, exit code 3", " ms", "memory 512m"):
        assert words in page.text


@pytest.mark.parametrize(
    "code",
    [
        "",
        "def f(x): return f'{x!r:>{10}} {{y}}' + \"s\"  # <c>\n",
        "x = '''a\n<b>\n'''\n\ty = 1",
        "\\",
        "(" * 1000,
        "'" * 99,
        "\f\n\x0bclass A:\n  pass\n pass",
        "x = $ ? € 'ä' \u2028 1",
        "a\rb\r\nc = 1",
        "f'{" * 300,
        "0x" + "9" * 5000,
        "x" * (MAX_HIGHLIGHTED + 1),
    ],
)
def test_highlighting_changes_no_character(code):
    page = Page(f"<pre>{highlight_code(code)}</pre>")
    assert page.text == code
    assert {element.tag for element in page.elements} <= {"pre", "span"}


def test_highlighting_knows_keywords_strings_comments_and_numbers():
    marked = highlight_code("for x in 'a', 1: print(x.print)  # c")
    assert '<span class="k">for</span>' in marked
    assert '<span class="s">&#x27;a&#x27;</span>' in marked
    assert '<span class="n">1</span>' in marked
    assert marked.count('class="b"') == 1
    assert '<span class="c"># c</span>' in marked


# --- records from anywhere ---------------------------------------------------------------------

ODD = [
    *(None, True, -1, 10**30, 1e308, "", "\ud800", "\x00\x1b[", "`<b>", "[[[", [], {}, [None]),
    *({"base64": "AA=="}, {"base64": 5}, {"left_out": 3, "sha256": "z", "begins": "<b>"}),
]


def places(value, found=()):
    """The way to every value inside this one."""
    if found:
        yield found
    if isinstance(value, (dict, list)):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*found, name))


@pytest.mark.parametrize("seed", range(4))
def test_a_record_changed_at_random_is_refused_or_exported(path, tmp_path, seed):
    chance = random.Random(seed)
    original = path.read_text().splitlines()
    exported = 0
    for _ in range(100):
        lines = list(original)
        at = chance.randrange(len(lines))
        changed = json.loads(lines[at])
        *way, last = chance.choice(list(places(changed)))
        inside = changed
        for name in way:
            inside = inside[name]
        inside[last] = copy.deepcopy(chance.choice(ODD))
        lines[at] = json.dumps(changed)
        target = tmp_path / "changed.jsonl"
        target.write_text("\n".join(lines))
        try:
            record = read(target)
        except InvalidOption:
            continue
        for to in FORMATS:
            assert render(record, to).encode()
        exported += 1
    assert exported > 5


# --- the command line --------------------------------------------------------------------------


def test_export_writes_beside_the_record_and_replaces_nothing_unasked(path):
    for to in FORMATS:
        target = path.with_suffix(f".{to}")
        assert cli("export", path, "--to", to).returncode == 0
        assert target.stat().st_size > 1000
        target.write_text("mine")
        done = cli("export", path, "--to", to)
        assert (done.returncode, target.read_text()) == (2, "mine")
        assert "--force" in done.stderr
        assert cli("export", path, "--to", to, "--force").returncode == 0
        assert target.stat().st_size > 1000
    assert not [name for name in os.listdir(path.parent) if name.startswith(".belljar")]


def test_export_to_standard_output(path):
    done = cli("export", path, "--to", "ipynb", "-o", "-")
    assert done.returncode == 0
    nbformat.validate(nbformat.from_dict(json.loads(done.stdout)))


def test_export_knows_the_format_by_the_name(path, tmp_path):
    assert cli("export", path, "-o", tmp_path / "a.html").returncode == 0
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    "words",
    [
        ["--to", "docx"],
        [],
        ["--to", "html", "--outputs"],
        ["--to", "html", "-o", "/nowhere/a.html"],
        ["--to", "html", "-o", "/tmp"],
        ["--to", "html", "--force", "-o", "{path}"],
    ],
)
def test_wrong_usage_of_export_is_said(path, words):
    before = path.read_bytes()
    done = cli("export", path, *(word.format(path=path) for word in words))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before


def test_an_unknown_format_is_an_error_that_names_the_nearest(record):
    with pytest.raises(InvalidOption, match="ipynb"):
        render(record, "ipnb")
