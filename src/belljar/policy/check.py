"""One check from text to Report. A check that fails denies the code, with a finding."""

from __future__ import annotations

import ast
import time
from typing import TYPE_CHECKING

from belljar.policy import fold, source
from belljar.policy.analyser import Analyser
from belljar.policy.report import Finding, Report, Verdict
from belljar.policy.rules import RULES, SEVERITIES
from belljar.policy.scopes import survey
from belljar.policy.source import START, Problem, Range, find_range

if TYPE_CHECKING:
    from belljar.policy.policy import Policy

_MOST = 200  # findings of each severity
_WIDEST = 240  # characters of a snippet
_DEEPEST = 3  # levels of code in a string


def check(policy: Policy, code: str) -> Report:
    began = time.perf_counter()
    checked = _Check(policy, code)
    try:
        checked.run(code)
    except Problem as problem:
        checked.add_problem(problem)
    except RecursionError:
        checked.add("BJ003", "more levels than the check can follow")
    except MemoryError:
        checked.add("BJ002", "not enough memory")
    except Exception as error:  # a failed check must not allow anything
        checked.add("BJ006", f"{type(error).__name__}: {error}"[:200])
    return checked.report(time.perf_counter() - began)


class _Check:
    """One piece of code, and what was found in it."""

    def __init__(self, policy: Policy, code: object) -> None:
        self._policy = policy
        self._caps = policy.document.limits
        self._deadline = time.thread_time() + self._caps.seconds
        self._code = code if isinstance(code, str) else ""
        self._lines: list[str] | None = None
        self._found: dict[tuple[object, ...], Finding] = {}
        self._count = {"error": 0, "warning": 0, "note": 0}

    def run(self, code: object) -> None:
        if not isinstance(code, str):
            raise Problem("BJ007", f"it is {type(code).__name__}, not text")
        source.refuse(code, self._caps)
        for problem in source.disguised(code, self._deadline):
            self.add_problem(problem)
        fold.begin()
        self._read(source.parse(code), None, 0)

    def _read(self, tree: ast.Module, place: ast.AST | None, level: int) -> None:
        """Check the code, or code in a string of it, whose findings are shown at `place`."""

        def report(rule: str, node: ast.AST, name: str) -> None:
            self.add(rule, name, find_range(node if place is None else place))

        def nested(text: str, where: ast.AST) -> None:
            if level < _DEEPEST:
                try:
                    inner = source.parse(text.strip())
                except Problem:  # it would fail when run
                    return
                self._read(inner, place or where, level + 1)

        surveyed = survey(tree, self._caps, self._deadline)
        Analyser(self._policy, surveyed, report, nested, self._deadline).run()

    def add_problem(self, problem: Problem) -> None:
        self.add(problem.rule, problem.told, problem.where, problem.remedy)

    def add(
        self, identity: str, name: str, where: Range = START, remedy: str | None = None
    ) -> None:
        rule = RULES[identity]
        action = "deny" if rule.fixed else self._policy.actions[identity]
        if action == "off":
            return
        severity = SEVERITIES[action]
        key = (identity, name, where)
        if key in self._found or self._count[severity] >= _MOST:
            return
        self._count[severity] += 1
        template = self._policy.document.messages.get(identity, rule.message)
        self._found[key] = Finding(
            rule=identity,
            severity=severity,
            message=template.replace("{name}", name),
            remedy=remedy or rule.remedy,
            line=where[0],
            column=where[1],
            end_line=where[2],
            end_column=where[3],
            snippet=self._line(where[0]),
        )

    def _line(self, number: int) -> str:
        if self._lines is None:
            # Only the beginning of a text that is too large.
            self._lines = source.lines(self._code[: 2 * self._caps.bytes])
        text = self._lines[number - 1] if number <= len(self._lines) else ""
        return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"

    def report(self, seconds: float) -> Report:
        findings = tuple(
            sorted(self._found.values(), key=lambda one: (one.line, one.column, one.rule))
        )
        verdict = Verdict.unknown if self._count["warning"] else Verdict.allow
        if self._count["error"]:
            verdict = Verdict.deny
        lenient = self._policy.document.unknown == "allow"
        return Report(
            verdict=verdict,
            allowed=verdict is Verdict.allow or (verdict is Verdict.unknown and lenient),
            findings=findings,
            policy=f"{self._policy.name}@{self._policy.version}",
            seconds=seconds,
            lines=self._code.count("\n") + bool(self._code and not self._code.endswith("\n")),
        )
