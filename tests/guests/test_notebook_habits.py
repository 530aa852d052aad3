"""Habits of notebooks: IPython's names without IPython, magics passed over, others explained."""

import base64
from textwrap import dedent

import pytest

from belljar.guest.notebook import explain_magic
from belljar.protocol.messages import drop_magics

PNG = b"\x89PNG\r\n\x1a\nrest"


def results(sandbox, code):
    return sandbox.run_code(dedent(code)).raise_for_outcome().results


# --- IPython without IPython -----------------------------------------------------------------


def test_the_objects_of_ipython_give_their_formats(sandbox):
    found = results(
        sandbox,
        """
        from IPython.display import display, HTML, Markdown, SVG, Latex, JSON, Math, Code, Pretty
        from IPython.display import Image, clear_output
        clear_output(wait=True)
        display(HTML("<b>1</b>"), Markdown("**2**"), SVG("<svg/>"), Latex("$3$"), Math("$4$"))
        display(JSON({"5": 5}), JSON('[5]'), Code("a < b", language="python"), Pretty("six"))
        HTML("last")
        """,
    )
    page, markdown, svg, latex, formula, json, text, code, pretty, last = found
    assert (page.html, page.text) == ("<b>1</b>", "<IPython.display.HTML object>")
    assert (markdown.markdown, svg.svg, latex.latex) == ("**2**", "<svg/>", "$3$")
    assert formula.latex == r"$\displaystyle 4$"
    assert (json.json, text.json) == ({"5": 5}, [5])
    assert (code.text, code.html) == ("a < b", "<pre><code>a &lt; b</code></pre>")
    assert pretty.text == "six"
    assert (last.html, last.is_main_result) == ("last", True)


def test_the_objects_of_ipython_can_be_pickled(sandbox):
    code = """
        import pickle
        from IPython.display import HTML, Markdown, SVG, Latex
        [pickle.loads(pickle.dumps(kind("x"))).data for kind in (HTML, Markdown, SVG, Latex)]
    """
    assert sandbox.run_code(dedent(code)).value == ["x"] * 4


def test_pictures_come_from_bytes_files_and_base64(sandbox):
    sandbox.files.write("a.png", PNG)
    found = results(
        sandbox,
        f"""
        import pathlib
        from IPython.display import display, Image
        data = open("a.png", "rb").read()
        display(Image(data=data), Image(filename="a.png"), Image("a.png"))
        display(Image(pathlib.Path("a.png")), Image({base64.b64encode(PNG).decode()!r}))
        display(Image(b"\\xff\\xd8x"), Image("https://example.org/?a&b", width=3))
        """,
    )
    assert [each.png for each in found[:5]] == [PNG] * 5
    assert found[5].jpeg == b"\xff\xd8x"
    assert found[6].html == '<img src="https://example.org/?a&amp;b" width="3"/>'


def test_files_of_text_are_read(sandbox):
    sandbox.files.write("page.html", "<i>page</i>")
    code = "from IPython.core.display import HTML\nHTML(filename='page.html')"
    assert results(sandbox, code)[0].html == "<i>page</i>"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("HTML()", "ValueError: HTML needs data"),
        ("HTML('https://example.org')", "ValueError: .*fetch it"),
        ("Image(filename='none.png')", "FileNotFoundError"),
    ],
)
def test_what_cannot_be_shown_is_an_error_of_the_cell(sandbox, call, words):
    execution = sandbox.run_code(f"from IPython.display import HTML, Image\n{call}")
    with pytest.raises(Exception, match=words):
        execution.raise_for_outcome()


def test_ipython_itself_says_that_none_is_running(sandbox):
    code = """
        import IPython
        from IPython import get_ipython
        IPython.display.display(1)
        (IPython.get_ipython(), get_ipython(), IPython.version_info[0] >= 8)
        """
    execution = sandbox.run_code(dedent(code)).raise_for_outcome()
    assert execution.value == (None, None, True)
    assert execution.results[0].text == "1"


def test_nothing_of_it_is_there_before_it_is_imported_and_no_more_than_it_has(sandbox):
    assert sandbox.run_code("import sys; 'IPython' in sys.modules").value is False
    assert sandbox.run_code("import IPython.terminal").error.name == "ModuleNotFoundError"
    code = "from IPython.display import YouTubeVideo"
    assert sandbox.run_code(code).error.name == "ImportError"


def test_a_real_ipython_wins(sandbox):
    sandbox.files.write("IPython/__init__.py", "real = True")
    assert sandbox.run_code("import IPython; IPython.real").value is True
    assert sandbox.run_code("import IPython.display").error.name == "ModuleNotFoundError"


def test_matplotlib_works_beside_it(data_sandbox):
    code = """
        import IPython
        import matplotlib.pyplot as plt
        plt.ion()
        plt.plot([1, 2]);
        """
    assert results(data_sandbox, code)[-1].png


# --- magics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("%matplotlib inline\nx = 1", "\nx = 1"),
        ("%config InlineBackend.figure_format = 'retina'", ""),
        ("x = 1\n%load_ext autoreload\n%autoreload 2\nx", "x = 1\n\n\nx"),
        ("if x:\n    %matplotlib inline\ny", "if x:\n    pass\ny"),
        ("%matplotlib inline\r\nx", "\nx"),
        ("%matplotlib inline\nawait f()", "\nawait f()"),
    ],
)
def test_magics_without_effect_are_passed_over_and_lines_keep_their_numbers(written, meant):
    assert drop_magics(written) == meant
    assert explain_magic(meant) is None


@pytest.mark.parametrize(
    "code",
    [
        "%pylab inline",
        "%matplotlibs",
        "!ls",
        "x = (7\n%matplotlib)",  # arithmetic
        "x = '''\n%matplotlib inline\n'''\nx ==== 3",
        "%%time\n%matplotlib inline",
        "x = 1 +",
        "x = (1",
        "",
    ],
)
def test_everything_else_stays_as_it_is(code):
    assert drop_magics(code) == code


def test_a_magic_in_a_string_stays_while_one_beside_it_goes():
    assert drop_magics("s = '''\n%config a\n'''\n%config b") == "s = '''\n%config a\n'''\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("!ls -l", "sandbox.commands.run"),
        ("x = 1\nfiles = !ls 'x", "sandbox.commands.run"),
        ("%%bash\necho 'it's $x", "sandbox.commands.run"),
        ("%pip install foo", "Environment(name, packages"),
        ("!pip install -q foo", "Environment(name, packages"),
        ("!python3 -m pip install foo", "Environment(name, packages"),
        ("%%writefile a.txt\nhello you", "sandbox.files.write"),
        ("x = %timeit f()", "perf_counter"),
        ("print?", "help(print)"),
        ("?str.join", "help(str.join)"),
        ("%who", "no magics"),
    ],
)
def test_other_habits_are_explained(code, words):
    said = explain_magic(code)
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "code", ["x = 1 +", "x ==== 3", "s = '''\n!ls\n'''\nx ==== 3", "x = (1", "1", "", "print('a"]
)
def test_what_is_just_wrong_is_not_explained(code):
    assert explain_magic(code) is None


def test_a_cell_with_magics_runs_and_its_errors_name_the_right_line(sandbox):
    assert sandbox.run_code("%matplotlib inline\n6 * 7").value == 42
    failed = sandbox.run_code("%matplotlib inline\n\n1 / 0")
    assert "line 3" in failed.error.traceback


def test_a_cell_with_another_habit_is_told_what_to_do(sandbox):
    error = sandbox.run_code("x = 1\n!ls").error
    assert error.name == "SyntaxError"
    assert "line 2" in error.value
    assert "sandbox.commands.run" in error.value
    assert "packages=" in sandbox.run_code("%matplotlib inline\n%pip install foo").error.value
