"""What the documents say is so: examples run, tables are those of the code, files exist."""

import re
import textwrap
from pathlib import Path

import pytest

import belljar
from belljar import Outcome, errors
from belljar.cli import exit_codes
from belljar.limits import RULES, format_size

PROJECT = Path(__file__).parent.parent
README = PROJECT / "README.md"
TEXT = README.read_text()


def blocks(language):
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        yield TEXT.count("\n", 0, match.start(1)) + 1, match[1]


EXAMPLES = [pytest.param(line, code, id=f"line-{line}") for line, code in blocks("python")]


@pytest.mark.parametrize(("line", "code"), EXAMPLES)
def test_example_of_the_readme_runs(native, line, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Blank lines in front, so that a traceback has the line of the README.
    exec(compile("\n" * (line - 1) + code, str(README), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if line == EXAMPLES[0].values[0]:
        assert printed.strip() in TEXT, "what the first example prints is said below it"


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


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "SECURITY.md"])
def test_files_that_a_document_names_exist(name):
    text = (PROJECT / name).read_text()
    named = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(
        r"`((?:tests|scripts|examples)/.*?)`", text
    )
    assert named
    for path in named:
        assert (PROJECT / path).exists(), path


def test_architecture_names_every_source_file():
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    sources = (PROJECT / "src" / "belljar").rglob("*.py")
    named_as_directories = ("cli", "cgroup")
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
