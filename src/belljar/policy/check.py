"""One check from text to Report. A check that fails denies the code, with a finding."""

from __future__ import annotations

import ast
import time
from typing import TYPE_CHECKING

from belljar.policy import fold, source
from belljar.policy.analyser import Analyser
from belljar.policy.catalogue import catalogue
from belljar.policy.report import Finding, Report, Verdict, verdict_of
from belljar.policy.rules import RULES, SEVERITIES
from belljar.policy.scopes import survey
from belljar.policy.source import Problem
from belljar.policy.values import Exceeded

if TYPE_CHECKING:
    from belljar.policy.policy import Policy

_MOST = 200  # findings of each severity
_WIDEST = 240  # characters of a snippet
Range = tuple[int, int, int, int]  # line, column, end line, end column
_START: Range = (1, 0, 1, 0)
_DEEPEST = 3  # levels of code in a string


def check(policy: Policy, code: str) -> Report:
    began = time.perf_counter()
    collected = _Findings(policy, code)
    try:
        _judge(policy, code, collected, time.thread_time() + policy.document.limits.seconds)
    except Exceeded as error:
        collected.add(error.rule, error.told, _range(error.node))
    except RecursionError:
        collected.add("BJ003", "more levels than the check can follow")
    except MemoryError:
        collected.add("BJ002", "not enough memory")
    except Exception as error:  # a failed check must not allow anything
        collected.add("BJ006", f"{type(error).__name__}: {error}"[:200])
    return collected.report(time.perf_counter() - began)


def _judge(policy: Policy, code: str, found: _Findings, deadline: float) -> None:
    if not isinstance(code, str):
        found.add("BJ007", f"it is {type(code).__name__}, not text")
        return
    problem = source.refuse(code, policy.document.limits)
    if problem is not None:
        found.problem(problem)
        return
    for each in source.disguised(code, deadline):
        found.problem(each)
    fold.begin()
    _read(policy, code, found, deadline, None, 0)


def _read(
    policy: Policy,
    code: str,
    found: _Findings,
    deadline: float,
    place: ast.AST | None,
    level: int,
) -> None:
    """Check the code, or code in a string of it: then `place` is where its findings are shown."""
    tree = source.parse(code)
    if isinstance(tree, Problem):
        if place is None:
            found.problem(tree)
        return
    surveyed = survey(tree, policy.document.limits, deadline)

    def report(rule: str, node: ast.AST, name: str) -> None:
        if policy.actions[rule] != "off":
            found.add(rule, name, _range(node if place is None else place))

    def nested(text: str, where: ast.AST) -> None:
        if level < _DEEPEST:
            _read(policy, text.strip(), found, deadline, place or where, level + 1)

    Analyser(policy, surveyed, catalogue(), report, nested, deadline).run()


def _range(node: ast.AST | None) -> Range:
    if node is None or not hasattr(node, "lineno"):
        return _START
    line, column = node.lineno, getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end_column = getattr(node, "end_col_offset", None)
    return line, column, end_line, column if end_column is None else end_column


class _Findings:
    def __init__(self, policy: Policy, code: object) -> None:
        self._policy = policy
        self._code = code if isinstance(code, str) else ""
        self._lines: list[str] | None = None
        self._found: dict[tuple[object, ...], Finding] = {}
        self._count = {"error": 0, "warning": 0, "note": 0}

    def problem(self, problem: Problem) -> None:
        if self._policy.actions[problem.rule] != "off":
            where = (problem.line, problem.column, problem.end_line, problem.end_column)
            self.add(problem.rule, problem.told, where, problem.remedy)

    def add(
        self, identity: str, name: str, where: Range = _START, remedy: str | None = None
    ) -> None:
        rule = RULES[identity]
        severity = SEVERITIES[self._policy.actions[identity]]
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
            self._lines = source.lines(self._code[: 2 * self._policy.document.limits.bytes])
        text = self._lines[number - 1] if number <= len(self._lines) else ""
        return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"

    def report(self, seconds: float) -> Report:
        findings = tuple(
            sorted(self._found.values(), key=lambda one: (one.line, one.column, one.rule))
        )
        verdict = verdict_of(findings)
        lenient = self._policy.document.unknown == "allow"
        return Report(
            verdict=verdict,
            allowed=verdict is Verdict.allow or (verdict is Verdict.unknown and lenient),
            findings=findings,
            policy=f"{self._policy.name}@{self._policy.version}",
            seconds=seconds,
            lines=self._code.count("\n") + bool(self._code and not self._code.endswith("\n")),
        )
