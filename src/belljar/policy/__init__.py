"""Checks code against a policy before it runs: advice and an audit aid, never the boundary.

from belljar.policy import Policy

report = Policy.preset("strict").check("import os")
report.verdict, report.findings[0].rule      # Verdict.deny, "BJ101"
"""

from __future__ import annotations

from belljar.policy.document import Caps, ImportLists
from belljar.policy.policy import PRESETS, Policy
from belljar.policy.report import Finding, Report, Verdict
from belljar.policy.rules import RULES, Rule

__all__ = [
    "PRESETS",
    "RULES",
    "Caps",
    "Finding",
    "ImportLists",
    "Policy",
    "Report",
    "Rule",
    "Verdict",
]
