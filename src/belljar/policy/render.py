"""Reports for people: each finding with the line it is in, and a mark under the exact range."""

from __future__ import annotations

from collections.abc import Iterator

from belljar.policy.report import Finding, Report
from belljar.policy.rules import RULES
from belljar.text import one_line, printable

_WIDEST = 1000


def render(name: str, report: Report) -> str:
    """All findings of one file, and a line that sums up."""
    parts = [_finding(name, finding) for finding in report.findings]
    parts.append(f"{_one(name)}: {_verdict(report)} ({report.policy})")
    return "\n\n".join(parts)


def _one(text: str) -> str:
    """On one line: a file's name and a message hold the code's own words."""
    return one_line(text, _WIDEST)


def _verdict(report: Report) -> str:
    counts = {"error": 0, "warning": 0, "note": 0}
    for finding in report.findings:
        counts[finding.severity] += 1
    told = ", ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in counts.items() if n)
    verdict = report.verdict.value
    if verdict == "unknown":
        verdict += ", which this policy allows" if report.allowed else ", which this policy denies"
    return f"{verdict}: {told}" if told else verdict


def _finding(name: str, finding: Finding) -> str:
    rule = RULES[finding.rule]
    lines = [f"{finding.severity}[{finding.rule} {rule.name}]: {_one(finding.message)}"]
    gutter = " " * len(str(finding.line))
    start, end = characters(finding)
    lines.append(f"{gutter}--> {_one(name)}:{finding.line}:{start + 1}")
    if finding.snippet.strip():
        lines += _marked(finding, gutter, start, end)
    lines.append(f"{gutter} = help: {_one(finding.remedy)}")
    return "\n".join(lines)


def _marked(finding: Finding, gutter: str, start: int, end: int) -> Iterator[str]:
    text = finding.snippet.replace("\t", " ")
    before, marked = printable(text[:start]), printable(text[start:end])
    yield f"{gutter} |"
    yield f"{finding.line} | {printable(text)}"
    more = " ..." if finding.end_line > finding.line else ""
    yield f"{gutter} | {' ' * len(before)}{'^' * max(len(marked), 1)}{more}"


def characters(finding: Finding) -> tuple[int, int]:
    """The range on its first line, in characters: `ast` counts bytes."""
    raw = finding.snippet.encode("utf-8", "surrogatepass")
    start = _length(raw, finding.column)
    if finding.end_line > finding.line:
        return start, max(len(finding.snippet.rstrip()), start + 1)
    return start, max(_length(raw, finding.end_column), start + 1)


def _length(raw: bytes, count: int) -> int:
    return len(raw[:count].decode("utf-8", "ignore"))
