"""The report of a soak, in Markdown, from its record alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import machine
from figures import quantity
from soak_criteria import BESIDE, WARM, drift_of, judge


def render(found: dict[str, Any]) -> str:
    return "\n".join(
        [
            *_head(found),
            *_verdicts(found),
            *_wrong(found),
            *_kinds(found),
            *_neighbour(found),
            *_drift(found),
            *_method(found),
        ]
    )


def _head(found: dict[str, Any]) -> Iterable[str]:
    yield "# Soak: mixed good and hostile load"
    yield ""
    yield (
        f"{machine.sentence(found['machine'])}. {found['seconds'] / 60:.1f} minutes, "
        f"{found['at_once']} at once, {found['backend']}, {found['executions']:,} executions "
        f"({found['executions'] / max(found['seconds'], 1):.0f} a second), seed {found['seed']}."
    )
    yield ""
    if found["cut_short"]:
        yield f"**Cut short:** {found['minutes']:g} minutes were asked for."
        yield ""
    yield f"Again: `{found['command']}`; what is drawn is the same, what overlaps what is not."
    yield ""


def _verdicts(found: dict[str, Any]) -> Iterable[str]:
    yield "## Verdicts"
    yield ""
    yield from table(
        ("criterion", "measured", "verdict"),
        [(each.wanted, each.measured, each.word) for each in judge(found)],
    )


def _wrong(found: dict[str, Any]) -> Iterable[str]:
    for title, sentences in (("Wrong", found["wrong"]), ("Leaks", found["leaks"])):
        if sentences:
            yield f"## {title}: the first of them"
            yield ""
            yield from (f"- `{one.translate(_PLAIN)}`" for one in sentences[:20])
            yield ""


_PLAIN = {ord("`"): "'", ord("\n"): " "}


def _kinds(found: dict[str, Any]) -> Iterable[str]:
    yield "## Executions"
    yield ""
    rows = []
    for name, row in sorted(found["kinds"].items(), key=lambda item: (item[1]["hostile"], item[0])):
        outcomes = ", ".join(f"{word} {count:,}" for word, count in sorted(row["outcomes"].items()))
        drift = drift_of(row)
        rows.append(
            (
                f"{name} (hostile)" if row["hostile"] else name,
                outcomes,
                f"{row['wrong']:,}",
                *_times(row["latency"]),
                "–" if drift is None else f"{drift:.2f} ×",
            )
        )
    yield from table(
        ("kind", "outcomes", "wrong", "p50", "p99", "last fifth to first"), rows, right=2
    )


def _neighbour(found: dict[str, Any]) -> Iterable[str]:
    yield "## A neighbour"
    yield ""
    yield (
        "A live sandbox (cpus=1) runs a cell of fixed work, again and again. As the caller sees "
        "it; what the work took inside, without the way there and back; and how late the event "
        "loop of the host was meanwhile."
    )
    yield ""
    quiet = found["neighbour"]["quiet"]["caller"]["p99"]
    rows = []
    for name, felt in found["neighbour"].items():
        p99 = felt["caller"]["p99"]
        ratio = "–" if not (quiet and p99) else f"{p99 / quiet:.2f} ×"
        count = f"{felt['caller']['count']:,}"
        inside, late = _times(felt["inside"]), _times(felt["lag"])[1]
        rows.append((name, count, *_times(felt["caller"]), ratio, *inside, late))
    header = ("beside", "calls", "p50", "p99", "to quiet", "inside p50", "inside p99", "loop p99")
    yield from table(header, rows, right=1)
    yield f"At most {BESIDE:.0f} × is wanted beside each; all five at once is for information."
    yield ""


def _drift(found: dict[str, Any]) -> Iterable[str]:
    yield "## Drift"
    yield ""
    points = found["drift"]
    yield (
        f"At {len(points)} quiet points, when the pool is closed and nothing runs; the first "
        f"{WARM:.0%} warm up and are not judged."
    )
    yield ""
    step = max(1, len(points) // 10)
    rows = [
        (
            f"{each['at'] / 60:.1f} min",
            f"{each['memory'] / 1e6:.1f} MB",
            f"{each['resident'] / 1e6:.1f} MB",
            f"{each['zygotes'] / 1e6:.1f} MB",
            f"{each['descriptors']:.0f}",
            f"{each['executions']:,.0f}",
        )
        for each in points[::step]
    ]
    header = ("at", "host process", "with what its allocator keeps", "what it keeps running")
    header = (*header, "descriptors", "executions so far")
    yield from table(header, rows, right=1)


def _method(found: dict[str, Any]) -> Iterable[str]:
    yield "## How"
    yield ""
    yield (
        f"Cycles of load ({found['at_once']} tasks, each draws a kind and waits for its end), a "
        "quiet point, and the neighbour. Every snippet carries a number of its own, which must "
        "come back in its value or output. At a quiet point processes, namespaces, control groups, "
        "mounts, files and descriptors must be those of the beginning; after the end, seen from "
        "the process that started it, nothing may be left. Memory is what is resident when the C "
        "library's allocator has given back what it keeps free for later (malloc_trim; it keeps "
        "nothing for single threads, tcache_count=0), and before that for information; the "
        "interpreter's table of interned strings has its size from the beginning. Times are in "
        "buckets of 3 %."
    )
    yield ""


def _times(histogram: dict[str, Any]) -> tuple[str, str]:
    if not histogram["count"]:
        return "–", "–"
    return quantity(histogram["p50"], "s"), quantity(histogram["p99"], "s")


def table(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: int = 99
) -> Iterable[str]:
    """`right`: the first column whose content is set to the right."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'|'.join('--:' if n >= right else '---' for n in range(len(header)))}|"
    yield from (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    yield ""
