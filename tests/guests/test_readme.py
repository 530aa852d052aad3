"""What the documents say is so: examples run, tables are those of the code, files exist."""

import inspect
import re
import textwrap

import pytest

import belljar
from belljar import Outcome, Sandbox, errors
from belljar.cli import exit_codes
from belljar.limits import RULES, format_size
from belljar.sandbox.blocking import Files
from project import ROOT

README = ROOT / "README.md"
TEXT = README.read_text()
GUIDES = sorted((ROOT / "docs").glob("*.md"))


def blocks(language, path=README):
    text = path.read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


# Those of the guide to containers need an engine.
NEEDS = {"docker": [pytest.mark.docker]}
EXAMPLES = [
    pytest.param(path, line, code, id=f"{path.stem}-line-{line}", marks=NEEDS.get(path.stem, ()))
    for path in (README, *GUIDES)
    for line, code in blocks("python", path)
]


@pytest.mark.parametrize(("path", "line", "code"), EXAMPLES)
def test_example_of_a_document_runs(backend, path, line, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BELLJAR_STATE", str(tmp_path / "state"))
    # Blank lines in front, so that a traceback has the line of the document.
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for said in promises(code):
        assert said in printed
    if (path, line) == EXAMPLES[0].values[:2]:
        assert printed.strip() in TEXT, "what the first example prints is said below it"


def promises(code):
    """What the comments behind `print` say that it prints: up to a colon, and "..." is anything."""
    for line in code.splitlines():
        call, hash_, said = line.partition("  # ")
        if hash_ and call.strip().startswith("print("):
            yield from said.partition(": ")[0].split(" ... ")


def default(rule):
    if rule.default is None:
        return "None"
    return format_size(rule.default) if rule.kind == "size" else f"{rule.default:g}"


def test_table_of_limits_is_that_of_the_code():
    rows = [
        f"| `{name}` | {default(rule)} | {rule.range} | {rule.meaning} |"
        for name, rule in RULES.items()
    ]
    assert "\n".join(rows) in TEXT


def test_table_of_outcomes_has_each_outcome_once():
    table = TEXT[TEXT.index("| outcome |") :].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(Outcome)


def test_exit_codes_are_those_of_the_command():
    _, _, listing = exit_codes.HELP.partition("\n")
    assert textwrap.dedent(listing).strip() in {code.strip() for _, code in blocks("text")}


def test_tree_of_errors_is_that_of_the_code():
    tree = textwrap.dedent(errors.__doc__.split("\n\n")[2]).strip()
    assert tree in {code.strip() for _, code in blocks("text")}


def test_table_of_options_has_each_option_with_its_default():
    options = inspect.signature(Sandbox.__init__).parameters
    table = TEXT[TEXT.index("| option |") :].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
    assert {name: value.replace('"', "'") for name, value in rows.items()} == {
        name: repr(option.default) for name, option in options.items() if name != "self"
    }


@pytest.mark.parametrize("kind", [Sandbox, Files])
def test_listing_of_the_api_has_each_public_name(kind):
    listing = next(code for _, code in blocks("text") if code.startswith("run_code("))
    public = {name for name in dir(kind) if not name.startswith("_")} - {"create"}
    assert public <= set(re.findall(r"\w+", listing))


DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md")] + GUIDES


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_exist(document):
    text = document.read_text()
    linked = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    named = re.findall(r"`((?:tests|scripts|examples|docs)/[^`\s]*)", text)
    assert linked + named
    for path in linked:
        assert (document.parent / path).exists(), path
    for path in named:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_headings_that_a_document_links_to_exist(document):
    for path, name in re.findall(r"\]\(([^)#]*)#([^)]+)\)", document.read_text()):
        target = document.parent / path if path else document
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert name in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_guide_is_named_by_the_readme():
    for path in GUIDES:
        assert f"](docs/{path.name})" in TEXT


def test_architecture_names_every_source_file():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    sources = (ROOT / "src" / "belljar").rglob("*.py")
    named_as_directories = ("cli", "cgroup", "escapes", "export")
    missing = [
        path.name
        for path in sources
        if path.name != "__init__.py"
        and path.parent.name not in named_as_directories
        and f"{path.name}`" not in text
    ]
    assert missing == []


def test_version_in_the_status_is_this_one():
    assert f"Version {belljar.__version__.rpartition('.')[0]}," in TEXT


def test_nothing_says_to_install_belljar_from_an_index_that_does_not_have_it():
    sources = (ROOT / "src").rglob("*.py")
    found = [
        str(path.relative_to(ROOT))
        for path in (README, *GUIDES, *sources)
        if re.search(r"(?i)pip install '?belljar\b", path.read_text())
    ]
    assert found == []
