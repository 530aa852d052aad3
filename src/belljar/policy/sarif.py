"""Reports as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar import __version__
from belljar.policy.policy import Policy
from belljar.policy.render import characters
from belljar.policy.report import Finding, Report
from belljar.policy.rules import RULES, SEVERITIES
from belljar.text import printable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: Mapping[str, Report], policy: Policy) -> dict[str, Any]:
    rules = list(RULES.values())
    index = {rule.id: number for number, rule in enumerate(rules)}
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
            for rule in rules
        ],
    }
    results = [
        _result(name, finding, index[finding.rule])
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
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(name: str, finding: Finding, index: int) -> dict[str, Any]:
    start, end = characters(finding)
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": start + 1}
    if finding.end_line == finding.line:
        region["endColumn"] = end + 1
    else:
        region["endLine"] = finding.end_line  # to its end
    region["snippet"] = {"text": printable(finding.snippet)}
    place = {"artifactLocation": {"uri": _uri(name)}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": printable(f"{finding.message}; {finding.remedy}")},
        "locations": [{"physicalLocation": place}],
    }


def _uri(name: str) -> str:
    from urllib.parse import quote

    return quote(name.replace("\\", "/"), errors="replace")
