"""The registry of checks: rows about the host's side, each with its oracle and its control."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from belljar.conformance.report_data import Look
from belljar.conformance.setting import temp_prefix
from belljar.conformance.stage import Stage

Body = Callable[[Stage, Look], None]

_MODULES = (
    *("checks_files", "checks_values", "checks_limits", "checks_lifecycle", "checks_newborn"),
    "checks_walls",
)


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    rows: tuple[int, ...]
    what: str
    expected: str
    run: Body


_CHECKS: dict[str, Check] = {}


def check(*rows: int, what: str, expected: str) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        name = body.__name__
        _CHECKS[name] = Check(name=name, rows=rows, what=what, expected=expected, run=body)
        return body

    return register


def checks() -> tuple[Check, ...]:
    for module in _MODULES:
        importlib.import_module(f"belljar.conformance.{module}")
    return tuple(_CHECKS.values())


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory on the host for one check."""
    with tempfile.TemporaryDirectory(prefix=temp_prefix("check")) as directory:
        yield Path(directory)
