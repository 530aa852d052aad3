"""What mkdocs does at build time: tables from the code, and the documents of the root as pages.

A page asks for a table with a line such as `<!-- generated: limits -->`. Links between `docs/` and
the root of the repository are written for its readers; here they become links of the site.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar import cli, errors
from belljar.cli import exit_codes
from belljar.config import Setting, schema
from belljar.conformance import rows
from belljar.limits import RULES, format_size
from belljar.observe import metrics

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security/index.md",
    "ARCHITECTURE.md": "internals/index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
}


# -- tables -------------------------------------------------------------------------------------


def limits() -> str:
    rows = ["| limit | default | allowed | what it limits |", "|---|---|---|---|"]
    for name, rule in RULES.items():
        default = "None" if rule.default is None else f"{rule.default:g}"
        if rule.default is not None and rule.kind == "size":
            default = format_size(int(rule.default))
        rows.append(f"| `{name}` | {default} | {rule.range} | {rule.meaning} |")
    return "\n".join(rows)


def exit_code_list() -> str:
    return _text(exit_codes.HELP.partition("\n")[2])


def error_tree() -> str:
    return _text((errors.__doc__ or "").split("\n\n")[2])


def settings() -> str:
    """A heading and a table for each section of a configuration file."""
    parts = []
    for section in dict.fromkeys(each.section for each in schema().values()):
        rows = [each for each in schema().values() if each.section == section and each.in_files]
        title = f"`[{section}]`" if section else "Sandboxes"
        parts.append(f"### {title}\n\n{_settings_table(rows)}")
    alone = [each for each in schema().values() if not each.in_files]
    parts.append(f"### By a variable alone\n\n{_settings_table(alone)}")
    return "\n\n".join(parts)


def _settings_table(settings: list[Setting]) -> str:
    rows = ["| key | what | default | meaning | variable |", "|---|---|---|---|---|"]
    for each in settings:
        variable = f"`{each.variable}`" if each.variable else ""
        rows.append(
            f"| `{each.key}` | {each.kind.words} | `{each.shown_default}` | {each.meaning} "
            f"| {variable} |"
        )
    return "\n".join(rows)


def threats() -> str:
    parts = []
    for family in rows.FAMILIES:
        table = ["| | what is tried | what stops it |", "|---|---|---|"]
        for row in (row for row in rows.ROWS if row.family == family):
            stopped = "; ".join(rows.explain_mechanisms(row.stopped_by, "native", counted=True))
            table.append(f"| {row.number} | {row.title} | {stopped} |")
        parts.append(f"## {family}\n\n" + "\n".join(table))
    return "\n\n".join(parts)


def command_line() -> str:
    """The help of every command, as the command itself prints it."""
    parts = [_text(_help())]
    for name in _commands(_help()):
        parts.append(f"## belljar {name}\n\n{_text(_help(name))}")
        for below in _commands(_help(name)):
            parts.append(f"### belljar {name} {below}\n\n{_text(_help(name, below))}")
    return "\n\n".join(parts)


def _help(*words: str) -> str:
    os.environ["COLUMNS"] = "88"  # argparse asks for it
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main(["help", *words])
    return said.getvalue()


def _commands(said: str) -> list[str]:
    _, _, listing = said.partition("\ncommands:\n")
    return re.findall(r"^    ([a-z]+)\b", listing, re.MULTILINE)


def _text(said: str) -> str:
    return f"```text\n{textwrap.dedent(said).strip()}\n```"


TABLES = {
    "limits": limits,
    "exit codes": exit_code_list,
    "errors": error_tree,
    "command line": command_line,
    "settings": settings,
    "metrics": metrics.make_reference,
    "threats": threats,
}


# -- what mkdocs calls --------------------------------------------------------------------------


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents of the root; README has its own page here, `index.md`."""
    from mkdocs.structure.files import File

    for name, uri in ROOT_PAGES.items():
        if (ROOT / name).exists() and files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **rest: Any) -> str:
    markdown = re.sub(r"<!-- generated: (.+?) -->", lambda found: TABLES[found[1]](), markdown)
    source = Path(page.file.abs_src_path or "")
    return re.sub(
        r"\[([^][]*)\]\(([^)#:\s]+)(#[^)]*)?\)",
        lambda found: site_link(found, source, page.file.src_uri),
        markdown,
    )


def site_link(found: re.Match[str], source: Path, uri: str) -> str:
    """A link between two files, as a link between two pages; to other files, its text alone."""
    text, target, anchor = found[1], found[2], found[3] or ""
    path = (source.parent / target).resolve()
    if path.is_relative_to(DOCS):
        page = path.relative_to(DOCS).as_posix()
    elif path.parent == ROOT and path.name in ROOT_PAGES:
        page = ROOT_PAGES[path.name]
    elif path.exists():
        return text
    else:
        return found[0]  # mkdocs tells
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(uri))}{anchor})"
