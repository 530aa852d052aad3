"""The table of all settings, as the documentation has it: made from the schema."""

from __future__ import annotations

from belljar.config.schema import Setting, schema

_TITLES = {
    "": "Sandboxes",
    "limits": "`[limits]`",
    "docker": "`[docker]`",
    "manager": "`[manager]`",
    "observe": "`[observe]`",
    "observe.alerts": "`[observe.alerts]`",
}


def reference() -> str:
    """A heading and a table for each section, in Markdown."""
    parts = []
    for section, title in _TITLES.items():
        rows = [each for each in schema().values() if each.section == section and each.in_files]
        parts.append(f"### {title}\n\n{_table(rows)}")
    alone = [each for each in schema().values() if not each.in_files]
    parts.append(f"### By a variable alone\n\n{_table(alone)}")
    return "\n\n".join(parts)


def _table(rows: list[Setting]) -> str:
    lines = ["| key | what | default | meaning | variable |", "|---|---|---|---|---|"]
    for each in rows:
        variable = f"`{each.variable}`" if each.variable else ""
        lines.append(
            f"| `{each.key}` | {each.kind.words} | `{each.shown_default}` | {each.meaning} "
            f"| {variable} |"
        )
    return "\n".join(lines)
