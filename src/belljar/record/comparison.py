"""The differences between a recorded run and a replay of the same code.

Times, memory and addresses of objects differ from run to run, so they do not count; everything else
that the code showed does.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from belljar.record.reader import Cell
from belljar.results.execution import CommandResult, Execution, Outcome, Result

Run = Execution | CommandResult
# "<object at 0x7f…>", and a bare number as long as an address of a 64-bit process.
_ADDRESS = re.compile(r"(?<=\bat )0x[0-9a-fA-F]{4,16}\b|\b0x[0-9a-f]{12}\b")
_STOPPED = (
    *(Outcome.timeout, Outcome.output_limit, Outcome.out_of_memory),
    *(Outcome.cancelled, Outcome.lost),
)
# difflib takes quadratic time, and the guest chose the texts.
_DIFF_LINES = 400
_DIFF_WIDTH = 500
# The head of a hunk. A line of the texts cannot look like it: it starts with " ", "-" or "+".
_HUNK = re.compile(r"@@ -(\d+)(\S*) \+(\d+)(\S* @@)")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs."""

    what: str  # "outcome", "stdout", "result 1, png"
    recorded: str
    replayed: str

    def diff(self) -> str:
        """The lines that differ, as a unified diff; empty for short texts of one line."""
        if max(len(self.recorded), len(self.replayed)) < 60 and "\n" not in (
            self.recorded + self.replayed
        ):
            return ""
        return "\n".join(_unified_diff(self.recorded.splitlines(), self.replayed.splitlines()))

    def __str__(self) -> str:
        diff = self.diff()
        return (
            f"{self.what}:\n{diff}" if diff else f"{self.what}: {self.recorded} -> {self.replayed}"
        )


def compare_cells(cell: Cell, replayed: Execution, *, exact: bool) -> tuple[Difference, ...]:
    """Compare what the code showed; `exact` counts addresses and tracebacks as well."""
    return tuple(_Comparison(cell.left_out, exact=exact).cells(cell.execution, replayed))


def compare_commands(
    recorded: CommandResult, replayed: CommandResult, left_out: Mapping[str, str], *, exact: bool
) -> tuple[Difference, ...]:
    return tuple(_Comparison(left_out, exact=exact).commands(recorded, replayed))


def sha256(content: str | bytes) -> str:
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(raw).hexdigest()


class _Comparison:
    def __init__(self, left_out: Mapping[str, str], *, exact: bool) -> None:
        self._left_out = left_out
        self._exact = exact

    def cells(self, recorded: Execution, replayed: Execution) -> Iterator[Difference]:
        yield from self._ends(recorded, replayed)
        if self._both_stopped(recorded, replayed):
            yield from self._streams("execution", recorded, replayed, partial=True)
            return
        for part in ("name", "value", *(["traceback"] if self._exact else [])):
            before, after = (getattr(run.error, part, None) for run in (recorded, replayed))
            yield from self._contents(f"error {part}", f"execution.error.{part}", before, after)
        yield from self._contents("text", "execution.text", recorded.text, replayed.text)
        yield from self._streams("execution", recorded, replayed)
        yield from self._results(recorded.results, replayed.results)

    def commands(self, recorded: CommandResult, replayed: CommandResult) -> Iterator[Difference]:
        yield from self._ends(recorded, replayed)
        partial = self._both_stopped(recorded, replayed)
        yield from self._streams("result", recorded, replayed, partial=partial)

    def _both_stopped(self, recorded: Run, replayed: Run) -> bool:
        """True if both were stopped for the same reason, so how far each ran is chance."""
        same = recorded.outcome is replayed.outcome
        return same and recorded.outcome in _STOPPED and not self._exact

    def _streams(
        self, place: str, recorded: Run, replayed: Run, *, partial: bool = False
    ) -> Iterator[Difference]:
        """Compare the output; `partial`: only as far as both have it."""
        for name in ("stdout", "stderr"):
            before, after = getattr(recorded, name), getattr(replayed, name)
            if partial:
                if f"{place}.{name}" in self._left_out:
                    continue
                length = min(len(before), len(after))
                before, after = before[:length], after[:length]
            yield from self._contents(name, f"{place}.{name}", before, after)

    def _ends(self, recorded: Run, replayed: Run) -> Iterator[Difference]:
        for name in ("outcome", "exit_code", "signal"):
            before, after = getattr(recorded, name), getattr(replayed, name)
            if before != after:
                yield _difference(name.replace("_", " "), before, after)

    def _contents(
        self, what: str, place: str, before: str | bytes | None, after: str | bytes | None
    ) -> Iterator[Difference]:
        if place in self._left_out:  # the record has only a hash, which cannot ignore addresses
            old, new = self._left_out[place], "none" if after is None else sha256(after)
            if old != new:
                yield _difference(what, f"sha256 {old[:16]}", f"sha256 {new[:16]}")
        elif self._masked(before) != self._masked(after):
            yield _difference(what, before, after)

    def _masked(self, content: str | bytes | None) -> str | bytes | None:
        if self._exact or not isinstance(content, str):
            return content
        return _ADDRESS.sub("0x…", content)

    def _results(
        self, before: tuple[Result, ...], after: tuple[Result, ...]
    ) -> Iterator[Difference]:
        for index, (old, new) in enumerate(itertools.zip_longest(before, after)):
            what = f"result {index + 1}"
            if old is None or new is None or set(old.raw) != set(new.raw):
                formats = [each and ", ".join(sorted(each.formats())) for each in (old, new)]
                yield _difference(what, *formats)
                continue
            names = dict(zip(old.raw, old.formats(), strict=True))
            for mime in old.raw:
                if mime == "text/plain" and old.is_main_result:
                    continue  # `cells` has compared it as the text of the cell
                place = f"execution.results[{index}].raw.{mime}"
                yield from self._contents(
                    f"{what}, {names[mime]}", place, old.raw[mime], new.raw[mime]
                )


def _difference(what: str, before: object, after: object) -> Difference:
    return Difference(what=what, recorded=_format_value(before), replayed=_format_value(after))


def _format_value(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes, sha256 {sha256(value)[:16]}"
    return "none" if value is None else str(value)


def _unified_diff(before: list[str], after: list[str]) -> list[str]:
    pairs = enumerate(zip(before, after, strict=False))
    same = next((index for index, (old, new) in pairs if old != new), min(len(before), len(after)))
    start = max(0, same - 3)  # difflib shows three lines around
    left, right = ([line[:_DIFF_WIDTH] for line in lines[start:]] for lines in (before, after))
    lines = list(
        difflib.unified_diff(
            left[:_DIFF_LINES], right[:_DIFF_LINES], "recorded", "replayed", lineterm=""
        )
    )
    lines = [
        _HUNK.sub(lambda hunk: _shift_hunk(hunk, start), line) if line[:2] == "@@" else line
        for line in lines
    ]
    if not lines:  # they differ beyond _DIFF_WIDTH, or in line ends
        lines = ["the texts differ in line ends, or far to the right"]
    more = max(len(left), len(right)) - _DIFF_LINES
    return lines + [f"… ({more} more lines)"] * (more > 0)


def _shift_hunk(hunk: re.Match[str], by: int) -> str:
    return f"@@ -{int(hunk[1]) + by}{hunk[2]} +{int(hunk[3]) + by}{hunk[4]}"
