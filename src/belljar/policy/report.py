"""What a check says: findings, each with its rule and exact range, and the verdict they add up to.

deny     a finding of severity "error": the policy forbids what the code does
unknown  a finding of severity "warning": what the code does cannot be told by reading it
allow    neither; there may be notes
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal

Severity = Literal["error", "warning", "note"]


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
    allowed: bool  # the verdict, with the policy's word on what "unknown" means
    findings: tuple[Finding, ...]  # in the order of the code
    policy: str  # "name@version"
    seconds: float  # what the check took
    lines: int  # of the code

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry."""
        return {
            "verdict": self.verdict.value,
            "allowed": self.allowed,
            "policy": self.policy,
            "seconds": self.seconds,
            "lines": self.lines,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def summary(self) -> str:
        """One line: the gravest finding, and how many more there are."""
        if not self.findings:
            return f"{self.verdict}: nothing found ({self.policy})"
        gravest = min(self.findings, key=lambda finding: _ORDER[finding.severity])
        more = len(self.findings) - 1
        told = f"line {gravest.line}: {gravest.message} [{gravest.rule}]"
        return f"{self.verdict}: {told}" + (f", and {more} more" if more else "")


_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        return Verdict.deny
    return Verdict.unknown if "warning" in severities else Verdict.allow
