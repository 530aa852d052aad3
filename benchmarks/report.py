"""What came of a run: tables for a terminal, a page of Markdown, and JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from figures import Figure, Figures, digits, quantity, times
from machine import sentence
from rich import box
from rich.console import Console
from rich.table import Table

# The columns of the one table that shows all: heading, work, what. Ratios are to the reference.
COLUMNS = (
    ("cold start to a first pandas result", "cold", "first result"),
    ("its end", "close", "close"),
    ("round trip of `1+1`", "trip", "round trip"),
    ("10 MB frame in and out", "frames", "10 MB both"),
    ("100 MB frame in and out", "frames", "100 MB both"),
    ("one-shots, 8 at once", "throughput", "at 8: rate"),
    ("processor time of one", "throughput", "at 8: processor"),
    ("one more, idle", "memory", "private"),
    ("output to a callback", "streaming", "writes"),
)
# The rows of the README: heading, work, what.
ROWS = (
    ("new sandbox to a first pandas result", "cold", "first result"),
    ("`1+1` in a live session", "trip", "round trip"),
    ("100 MB DataFrame in and out", "frames", "100 MB both"),
    ("memory of one more idle sandbox", "memory", "private"),
)
Run = dict[str, Any]


def figures_of(run: Run) -> Figures:
    names = ("work", "what", "peer", "unit", "median", "q1", "q3", "n")
    return Figures(Figure(**{name: row[name] for name in names}) for row in run["figures"])


def title_of(run: Run, peer: str) -> str:
    return str(run["peers"].get(peer, {}).get("title", peer))


def show(run: Run, console: Console) -> None:
    """Every figure, then those that are missing, then what was promised."""
    frame = box.ROUNDED if console.is_terminal else box.ASCII
    figures = figures_of(run)
    console.print(sentence(run["host"]), soft_wrap=True)
    console.print(run["how"], soft_wrap=True)
    works = dict.fromkeys((figure.work, figure.what) for figure in figures.all)
    for work in dict.fromkeys(work for work, _ in works):
        table = Table("who", "what", title=work, box=frame, title_justify="left")
        for heading in ("median", "quartiles", "n", "ratio"):
            table.add_column(heading, justify="right")
        for key in works:
            if key[0] != work:
                continue
            for figure in figures.all:
                if (figure.work, figure.what) == key:
                    table.add_row(*_cells(run, figures, figure))
            table.add_section()
        console.print(table, soft_wrap=False)
    absent = Table("who", "what", "why it is not measured", title="missing", box=frame)
    for peer, what, why in missing(run):
        absent.add_row(title_of(run, peer), what, why)
    console.print(absent, soft_wrap=False)
    promised = Table("wanted", "measured", "holds", title="promised", box=frame)
    for verdict in run["criteria"]:
        promised.add_row(verdict["wanted"], verdict["measured"], word(verdict["holds"]))
    console.print(promised, soft_wrap=False)


def _cells(run: Run, figures: Figures, figure: Figure) -> tuple[str, ...]:
    ratio = figures.ratio(figure)
    what = f"{int(figure.what) / 1024:,.0f} KB" if figure.work == "outputs" else figure.what
    return (
        title_of(run, figure.peer),
        what,
        figure.shown,
        figure.spread,
        str(figure.n),
        times(ratio) if ratio is not None else "",
    )


def word(holds: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not measured"}[holds]


def missing(run: Run) -> list[tuple[str, str, str]]:
    """Peers that are not there, then work that one could not do; with the reasons."""
    rows = [(peer, "everything", why) for peer, why in run["missing"].items()]
    for peer, about in run["peers"].items():
        rows += [(peer, what, why) for what, why in about["failures"].items()]
        rows += [(peer, what, why) for what, why in about["left_out"].items()]
    return rows


def table_of_all(run: Run) -> str:
    """For the README: who, what stands between, and the figures that matter."""
    figures = figures_of(run)
    shown = [
        column
        for column in COLUMNS
        if any((one.work, one.what) == column[1:] for one in figures.all)
    ]
    lines = [
        "| | isolation | " + " | ".join(heading for heading, *_ in shown) + " |",
        "|---|---|" + "--:|" * len(shown),
    ]
    for peer, about in run["peers"].items():
        cells = [_cell(figures, peer, work, what) for _, work, what in shown]
        title = f"**{about['title']}**" if peer.startswith("belljar") else about["title"]
        lines.append(f"| {title} | {about['isolation']} | " + " | ".join(cells) + " |")
    for peer, why in run["missing"].items():
        lines.append(f"| {peer} | missing: {why} |" + " |" * len(shown))
    against = {}  # heading: the peer that this run had for it
    for heading, work, what in shown:
        if other := figures.reference(work, what):
            against[heading] = title_of(run, other.peer)
    said = "; ".join(f"{heading}: {title}" for heading, title in against.items())
    lines += ["", f"In brackets: the ratio to a peer of the same run ({said})."]
    return "\n".join(lines)


def table_for_readme(run: Run) -> str:
    """Belljar beside the reference of each row."""
    figures = figures_of(run)
    lines = ["| | Belljar | compared with |", "|---|--:|--:|"]
    for heading, work, what in ROWS:
        ours, other = figures.find(work, what, "belljar_native"), figures.reference(work, what)
        if ours and other:
            lines.append(
                f"| {heading} | {ours.shown} | {other.shown}, {title_of(run, other.peer)} |"
            )
    return "\n".join(lines)


def _cell(figures: Figures, peer: str, work: str, what: str) -> str:
    found = figures.find(work, what, peer)
    if found is None:
        return "–"
    ratio = figures.ratio(found)
    return found.shown + (f" ({times(ratio)})" if ratio is not None else "")


# What grows: its work, the figure of so many, and the one that it is set against.
GROWN = {
    "sandboxes: a start beside them; alone, afterwards": (
        "many",
        "last tenth",
        "alone, afterwards",
    ),
    "sandboxes: the last starts; the first": ("many", "last tenth", "first tenth"),
    "sandboxes: a new page of memory from the kernel beside them; before the first": (
        "many",
        "new page, beside",
        "new page, before",
    ),
    "cells: one more; one in a new session": ("cells", "old session", "new session beside it"),
}


def _growth_lines(figures: Figures, run: Run) -> list[str]:
    lines = ["| what | who | first figure | second | ratio |", "|---|---|--:|--:|--:|"]
    for name, (work, what, other) in GROWN.items():
        for late in figures.all:
            against = figures.find(work, other, late.peer)
            if (late.work, late.what) == (work, what) and against:
                count = figures.value(work, "count", late.peer) or 0
                lines.append(
                    f"| {count:,.0f} {name} | {title_of(run, late.peer)} | {late.shown} "
                    f"| {against.shown} | {times(late.median / against.median)} |"
                )
    return lines


def _course_lines(figures: Figures, run: Run) -> list[str]:
    """Steps of a session: the first, at a tenth, a half, and the last."""
    lines = [
        "| cells | who | time of one | processor, guest | processor, host "
        "| memory: init | worker | host |",
        "|--:|---|" + "--:|" * 6,
    ]
    for peer, course in run.get("courses", {}).items():
        chosen = (0, len(course) // 10 - 1, len(course) // 2 - 1, len(course) - 1)
        for step in (course[max(number, 0)] for number in sorted(set(chosen))):
            cells = [quantity(step[key], "s") for key in ("time", "guest", "host")]
            cells += [
                quantity(step[f"{side}_bytes"], "bytes") for side in ("init", "worker", "host")
            ]
            lines.append(
                f"| {step['cells']:,} | {title_of(run, peer)} | " + " | ".join(cells) + " |"
            )
    return lines


def _burst_lines(figures: Figures, run: Run) -> list[str]:
    parts = ("wait", "last answer", "full again", "processes left")
    lines = ["| | median wait | " + " | ".join(parts[1:]) + " |", "|---|" + "--:|" * len(parts)]
    bursts = [one.what.partition(":")[0] for one in figures.all if one.work == "burst"]
    for name in dict.fromkeys(bursts):
        found = [figures.find("burst", f"{name}: {part}", "belljar_pool") for part in parts]
        lines.append(f"| {name} | " + " | ".join(one.shown for one in found if one) + " |")
    return lines


def _command_lines(figures: Figures, run: Run) -> list[str]:
    whats = list(dict.fromkeys(one.what for one in figures.all if one.work == "command"))
    lines = ["| command | " + " | ".join(whats) + " |", "|---|" + "--:|" * len(whats)]
    for peer in dict.fromkeys(one.peer for one in figures.all if one.work == "command"):
        cells = [_cell(figures, peer, "command", what) for what in whats]
        lines.append(f"| {title_of(run, peer)} | " + " | ".join(cells) + " |")
    return lines


def _output_lines(figures: Figures, run: Run) -> list[str]:
    sizes = list(dict.fromkeys(one.what for one in figures.all if one.work == "outputs"))
    sizes.sort(key=int)
    names = [f"{int(s) >> 10} KB" if int(s) < 1 << 20 else f"{int(s) >> 20} MB" for s in sizes]
    lines = ["| output of one run | " + " | ".join(names) + " |", "|---|" + "--:|" * len(sizes)]
    for peer in dict.fromkeys(one.peer for one in figures.all if one.work == "outputs"):
        cells = [_cell(figures, peer, "outputs", size) for size in sizes]
        lines.append(f"| {title_of(run, peer)} | " + " | ".join(cells) + " |")
    return lines


def _storm_lines(figures: Figures, run: Run) -> list[str]:
    storms = [one for one in figures.all if one.work == "throughput" and one.what.endswith("rate")]
    levels = list(dict.fromkeys(one.what.removesuffix(": rate") for one in storms))
    lines = [
        "| one-shots per second; p50, p99 | " + " | ".join(levels) + " |",
        "|---|" + "--:|" * len(levels),
    ]
    for peer in dict.fromkeys(one.peer for one in storms):
        cells = []
        for level in levels:
            rate, p50, p99 = (
                figures.find("throughput", f"{level}: {what}", peer)
                for what in ("rate", "p50", "p99")
            )
            cells.append(
                f"{digits(rate.median)}; {p50.shown}, {p99.shown}" if rate and p50 and p99 else "–"
            )
        lines.append(f"| {title_of(run, peer)} | " + " | ".join(cells) + " |")
    return lines


def _promised_lines(figures: Figures, run: Run) -> list[str]:
    lines = ["| wanted | measured | holds |", "|---|---|---|"]
    for one in run["criteria"]:
        lines.append(f"| {one['wanted']} | {one['measured']} | {word(one['holds'])} |")
    return lines


def _peer_lines(figures: Figures, run: Run) -> list[str]:
    lines = ["| who | version | configured | isolation |", "|---|---|---|---|"]
    for about in run["peers"].values():
        cells = (about["title"], about["version"], about["settings"], about["isolation"])
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _missing_lines(figures: Figures, run: Run) -> list[str]:
    lines = ["| who | what | why |", "|---|---|---|"]
    for peer, what, why in missing(run):
        lines.append(f"| {title_of(run, peer)} | {what} | {why.replace('|', '/')} |")
    return lines


SECTIONS: dict[str, Callable[[Figures, Run], list[str]]] = {
    "What was promised": _promised_lines,
    "Throughput": _storm_lines,
    "The command line": _command_lines,
    "Growth": _growth_lines,
    "Cells of one session": _course_lines,
    "64 requests at once on a pool of 8": _burst_lines,
    "Output": _output_lines,
    "Who, and how": _peer_lines,
    "Not measured": _missing_lines,
}


def markdown(run: Run) -> dict[str, str]:
    """The texts between the markers of the pages: four rows, one table, and all."""
    figures = figures_of(run)
    stamp = f"{sentence(run['host'])}. {run['how']}"
    short = f"{table_of_all(run)}\n\n{stamp}"
    parts = [short]
    for heading, lines in SECTIONS.items():
        parts.append(f"### {heading}\n\n" + "\n".join(lines(figures, run)))
    all_parts = "\n\n".join(parts)
    return {"speed": table_for_readme(run), "benchmarks": short, "benchmark results": all_parts}
