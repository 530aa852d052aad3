"""The report of a check: findings, each with its rule and exact range, and the verdict; as data, as
text for a terminal, and as SARIF.

deny     a finding of severity "error": the policy forbids what the code does
unknown  a finding of severity "warning": the text does not show what the code does
allow    neither; there may be notes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from belljar import __version__
from belljar.policy.rules import RULES, SEVERITIES, Severity
from belljar.text import one_line, printable

if TYPE_CHECKING:
    from belljar.policy.policy import Policy


class Verdict(StrEnum):
    allow = "allow"
    deny = "deny"
    unknown = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    rule: str  # its id, such as "BJ101"
    severity: Severity
    message: str
    remedy: str
    line: int  # from 1
    column: int  # from 0, in bytes of UTF-8, as `ast` counts
    end_line: int
    end_column: int
    snippet: str  # the first line of the range, cut if it is long

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.rule} {self.message}"


@dataclass(frozen=True, kw_only=True)
class Report:
    verdict: Verdict
    allowed: bool  # the verdict, where the policy decides what "unknown" means
    policy: str  # "name@version"
    seconds: float  # what the check took
    lines: int  # of the code
    findings: tuple[Finding, ...]  # in the order of the code

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        plain = {"verdict": self.verdict.value, "findings": [*map(asdict, self.findings)]}
        return asdict(self) | plain

    def summary(self) -> str:
        """One line: the gravest finding, and the number of others."""
        if not self.findings:
            return f"{self.verdict}: nothing found ({self.policy})"
        gravest = min(self.findings, key=lambda finding: _ORDER[finding.severity])
        more = len(self.findings) - 1
        told = f"line {gravest.line}: {gravest.message} [{gravest.rule}]"
        return f"{self.verdict}: {told}" + (f", and {more} more" if more else "")


_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


_WIDEST = 1000


def render(name: str, report: Report) -> str:
    """All findings of one file, each with its line and a mark under the range; then a summary."""
    parts = [_render_finding(name, finding) for finding in report.findings]
    parts.append(f"{_one_line(name)}: {_render_verdict(report)} ({report.policy})")
    return "\n\n".join(parts)


def _one_line(text: str) -> str:
    """Escaped, as a file's name and a message contain text of the code."""
    return one_line(text, _WIDEST)


def _render_verdict(report: Report) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    found = [(counts[word], word) for word in _ORDER if counts[word]]
    told = ", ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in found)
    verdict = report.verdict.value
    if verdict == "unknown":
        verdict += ", which this policy allows" if report.allowed else ", which this policy denies"
    return f"{verdict}: {told}" if told else verdict


def _render_finding(name: str, finding: Finding) -> str:
    rule = RULES[finding.rule]
    lines = [f"{finding.severity}[{finding.rule} {rule.name}]: {_one_line(finding.message)}"]
    gutter = " " * len(str(finding.line))
    start, end = character_range(finding)
    lines.append(f"{gutter}--> {_one_line(name)}:{finding.line}:{start + 1}")
    if finding.snippet.strip():
        text = finding.snippet.replace("\t", " ")
        before, marked = len(printable(text[:start])), len(printable(text[start:end]))
        more = " ..." if finding.end_line > finding.line else ""
        mark = f"{gutter} | {' ' * before}{'^' * max(marked, 1)}{more}"
        lines += [f"{gutter} |", f"{finding.line} | {printable(text)}", mark]
    lines.append(f"{gutter} = help: {_one_line(finding.remedy)}")
    return "\n".join(lines)


def character_range(finding: Finding) -> tuple[int, int]:
    """The range on its first line, in characters: `ast` counts bytes."""
    raw = finding.snippet.encode("utf-8", "surrogatepass")
    start = _length(raw, finding.column)
    if finding.end_line > finding.line:
        return start, max(len(finding.snippet.rstrip()), start + 1)
    return start, max(_length(raw, finding.end_column), start + 1)


def _length(raw: bytes, count: int) -> int:
    return len(raw[:count].decode("utf-8", "ignore"))


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def make_sarif(reports: Mapping[str, Report], policy: Policy) -> dict[str, Any]:
    driver = {
        "name": "belljar",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "name": "".join(word.title() for word in rule.name.split("-")),
                "shortDescription": {"text": rule.message.replace("{name}", "…")},
                "help": {"text": rule.remedy},
                "defaultConfiguration": {
                    "enabled": policy.actions[rule.id] != "off",
                    "level": SEVERITIES.get(policy.actions[rule.id], "none"),
                },
            }
            for rule in RULES.values()
        ],
    }
    results = [
        _sarif_result(name, finding)
        for name, report in reports.items()
        for finding in report.findings
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "properties": {
            "policy": f"{policy.name}@{policy.version}",
            "policyDigest": policy.digest,
            "verdicts": {name: report.verdict.value for name, report in reports.items()},
        },
        "results": results,
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_result(name: str, finding: Finding) -> dict[str, Any]:
    start, end = character_range(finding)
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": start + 1}
    if finding.end_line == finding.line:
        region["endColumn"] = end + 1
    else:
        region["endLine"] = finding.end_line  # to its end
    region["snippet"] = {"text": printable(finding.snippet)}
    uri = quote(name.replace("\\", "/"), errors="replace")
    place = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": finding.severity,
        "message": {"text": printable(f"{finding.message}; {finding.remedy}")},
        "locations": [{"physicalLocation": place}],
    }
