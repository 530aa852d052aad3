"""SecurityValidator: the policy "strategy" under its own name. Advice, not the boundary."""

from __future__ import annotations

import ast
import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any

from belljar.policy import Finding, Policy, Report, source
from belljar.policy.document import Caps

if TYPE_CHECKING:
    from belljar.sandbox.options import PolicyLike

PRESET = "strategy"
# Modules of the generator that strategies made from a template import.
ALSO_ALLOWED = ("src.templates",)
SECONDS = 0.1
_SYNTAX = "BJ001"


class SecurityValidator:
    """Checks the text of code against the rules for strategies.

    >>> SecurityValidator().validate("import subprocess")
    (False, ['Dangerous import detected: subprocess'])
    """

    def __init__(self, policy: PolicyLike | None = None, *, seconds: float = SECONDS) -> None:
        """`policy`: another policy than "strategy". `seconds`: code whose check takes longer is
        refused."""
        self.policy = _strategy() if policy is None else Policy.coerce(policy)
        self._seconds = seconds

    def validate(self, code: str) -> tuple[bool, list[str]]:
        """(allowed, reasons): one sentence for each finding."""
        if not isinstance(code, str):
            return False, [f"Code must be a string, not {type(code).__name__}"]
        began = time.thread_time()  # CPU time: a busy machine must not refuse code
        errors = _errors(self.policy.check(code))
        if time.thread_time() - began > self._seconds:
            errors.append(f"Validation timeout: it took more than {self._seconds * 1000:.0f}ms")
        return not errors, errors

    def get_allowed_imports(self) -> list[str]:
        """The modules that code may import, by name."""
        return sorted(self.policy.document.imports.allow)

    def get_validation_report(self, code: str) -> dict[str, Any]:
        began = time.perf_counter()
        valid, errors = self.validate(code)
        elapsed = time.perf_counter() - began
        text = code if isinstance(code, str) else ""
        nodes: list[ast.AST] = []
        with contextlib.suppress(source.Problem):
            source.refuse(text, Caps())
            nodes += ast.walk(source.parse(text))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {
            "is_valid": valid,
            "errors": errors,
            "validation_time_ms": elapsed * 1000,
            "code_lines": len(text.splitlines()),
            "import_count": sum(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes),
            "function_count": sum(isinstance(node, functions) for node in nodes),
        }


@functools.cache
def _strategy() -> Policy:
    """The preset, and the generator's own modules."""
    return Policy.from_dict({"extends": PRESET, "imports": {"extend_allow": list(ALSO_ALLOWED)}})


def _errors(report: Report) -> list[str]:
    if report.allowed:
        return []
    found = [_said(each) for each in report.findings if each.severity != "note"]
    # Denied code has a reason, even if all findings are notes.
    return list(dict.fromkeys(found)) or [report.summary()]


def _said(finding: Finding) -> str:
    if finding.rule == _SYNTAX:
        return f"Syntax error in line {finding.line}: {finding.message}"
    return finding.message
