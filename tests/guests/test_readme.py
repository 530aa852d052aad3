"""What the documents say is so: examples run, tables are those of the code, files exist."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import belljar
from belljar import Outcome, Sandbox, errors
from belljar.cli import exit_codes
from belljar.config import schema
from belljar.limits import RULES
from belljar.sandbox.blocking import Files
from project import DOCS, ROOT

README = ROOT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
REFERENCE = DOCS / "reference"


def blocks(language, path):
    text = path.read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


def name(path):
    return str(path.relative_to(ROOT).with_suffix("")).removeprefix("docs/").replace("/", "-")


# Those of the guide to containers need an engine.
EXAMPLES = [
    pytest.param(
        *(path, line, code),
        id=f"{name(path)}-line-{line}",
        marks=[pytest.mark.docker] if path.stem.startswith("docker") else [],
    )
    for path in (README, *PAGES)
    for line, code in blocks("python", path)
]
FIRST = {path: next(blocks("python", path))[0] for path in (README, DOCS / "index.md")}


@pytest.mark.parametrize(("path", "line", "code"), EXAMPLES)
def test_example_of_a_document_runs(backend, path, line, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BELLJAR_STATE", str(tmp_path / "state"))
    # Blank lines in front, so that a traceback has the line of the document.
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for said in promises(code):
        assert said in printed
    if FIRST.get(path) == line:
        assert printed.strip() in path.read_text(), "what the first example prints is said below it"


def promises(code):
    """What the comments behind `print` say that it prints: up to a colon, and "..." is anything."""
    for line in code.splitlines():
        call, hash_, said = line.partition("  # ")
        if hash_ and call.strip().startswith("print("):
            yield from said.partition(": ")[0].split(" ... ")


# -- tables -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hooks():
    """The part of the site's build that makes tables from the code."""
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_setting_with_its_variable(hooks):
    rows = hooks.settings().splitlines()
    for setting in schema().values():
        row = next(row for row in rows if f"| `{setting.key}` |" in row)
        assert (setting.variable or "") in row


def test_every_generated_table_is_on_one_page(hooks):
    asked = re.findall(r"<!-- generated: (.+?) -->", "".join(map(Path.read_text, PAGES)))
    assert sorted(asked) == sorted(hooks.TABLES)


def test_table_of_limits_has_each_limit(hooks):
    rows = hooks.limits().splitlines()[2:]
    assert [re.match(r"\| `(\w+)` \| \w", row)[1] for row in rows] == list(RULES)


def test_tree_of_errors_has_each_error(hooks):
    tree = hooks.error_tree()
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SandboxError):
            assert f" {kind.__name__} " in tree or tree.startswith(f"```text\n{kind.__name__} ")


def test_list_of_exit_codes_has_that_of_each_outcome(hooks):
    listed = re.findall(r"^(\d+)", hooks.exit_code_list(), re.MULTILINE)
    assert {str(code) for code in exit_codes._BY_OUTCOME.values()} <= set(listed)


def test_reference_of_the_command_line_has_each_command_with_its_options(hooks):
    page = hooks.command_line()
    for heading, option in (
        ("## belljar run", "--timeout"),
        ("## belljar conformance", "--row"),
        ("### belljar config show", "--changed"),
        ("### belljar image prune", "--dry-run"),
    ):
        section = page[page.index(f"{heading}\n") :].removeprefix("#").partition("\n## ")[0]
        assert option in section


def test_list_of_threats_has_each_row(hooks):
    from belljar.conformance.rows import ROWS

    page = hooks.threats()
    assert all(f"| {row.number} | {row.title} |" in page for row in ROWS)


def test_table_of_outcomes_has_each_outcome_once():
    text = (REFERENCE / "outcomes.md").read_text()
    table = text[text.index("| outcome |") :].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(Outcome)


def test_table_of_options_has_each_option_with_its_default():
    options = inspect.signature(Sandbox.__init__).parameters
    text = (REFERENCE / "options.md").read_text()
    table = text[text.index("| option |") :].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
    assert {name: value.replace('"', "'") for name, value in rows.items()} == {
        name: repr(option.default) for name, option in options.items() if name != "self"
    }


@pytest.mark.parametrize("kind", [Sandbox, Files])
def test_listing_of_the_api_has_each_public_name(kind):
    path = REFERENCE / "api" / "index.md"
    listing = next(code for _, code in blocks("text", path) if code.startswith("run_code("))
    public = {name for name in dir(kind) if not name.startswith("_")} - {"create"}
    assert public <= set(re.findall(r"\w+", listing))


def test_every_public_name_has_an_entry_in_the_api():
    text = "".join(path.read_text() for path in (REFERENCE / "api").glob("*.md"))
    entries = set(re.findall(r"^::: belljar\.(?:\w+\.)*(\w+)$", text, re.MULTILINE))
    exceptions = {name for name in belljar.__all__ if name in vars(errors)}  # in the tree of errors
    awaited = {"AsyncPool", "AsyncProcess", "AsyncSandboxManager", "AsyncShell"}  # as without
    assert set(belljar.__all__) - exceptions - awaited - {"__version__"} <= entries


# -- files --------------------------------------------------------------------------------------

ROOT_DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md")]
DOCUMENTS = [*ROOT_DOCUMENTS, *PAGES]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_a_document_names_exist(document):
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    linked = re.findall(r"\]\(([^)#:\s]+)[^)]*\)", text)
    named = re.findall(r"`((?:tests|scripts|examples|docs)/[^`\s]*)", text)
    for path in linked:
        assert (document.parent / path).exists(), path
    for path in named:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_headings_that_a_document_links_to_exist(document):
    for path, name in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", document.read_text()):
        target = document.parent / path if path else document
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert name in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_test_files_that_a_document_names_exist():
    there = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for document in DOCUMENTS:
        named = set(re.findall(r"`(test_\w+\.py)\b", document.read_text()))
        assert named <= there, document


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for path in PAGES:
        page = path.relative_to(DOCS)
        assert f"{page}\n" in navigation or page.parts[:2] == ("internals", "decisions")


def test_every_decision_is_in_the_index():
    index = DOCS / "internals" / "decisions" / "index.md"
    listed = re.findall(r"\]\((\S+\.md)\)", index.read_text())
    assert sorted(listed) == sorted(path.name for path in index.parent.glob("20*.md"))


@pytest.mark.parametrize("document", ROOT_DOCUMENTS, ids=name)
def test_a_document_of_the_root_is_one_page(document):
    assert document.stat().st_size <= 9 * 1024


def test_version_in_the_status_is_this_one():
    text = (DOCS / "index.md").read_text()
    assert f"Version {belljar.__version__.rpartition('.')[0]}:" in text


def test_nothing_says_to_install_belljar_from_an_index_that_does_not_have_it():
    sources = (ROOT / "src").rglob("*.py")
    found = [
        str(path.relative_to(ROOT))
        for path in (README, *PAGES, *sources)
        if re.search(r"(?i)pip install '?belljar\b", path.read_text())
    ]
    assert found == []
