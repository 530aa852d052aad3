"""The picture of a run: `python plot.py RUN.json PICTURE.png`, where matplotlib is."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS, THEIRS = "#1b6e5a", "#b9b4a7"
PANELS = (  # heading, work, what, factor, unit, better
    ("Cold start to a first pandas result", "cold", "first result", 1000, "ms", "less"),
    ("Round trip of 1+1 in a live session", "trip", "round trip", 1000, "ms", "less"),
    ("10 MB frame, in and out", "frames", "10 MB both", 1000, "ms", "less"),
    ("One-shots with pandas, 8 at once", "throughput", "at 8: rate", 1, "per second", "more"),
    ("Memory of one more, idle", "memory", "private", 1e-6, "MB", "less"),
    ("Output to a callback", "streaming", "writes", 1, "MB/s", "more"),
)


def draw(run: dict[str, Any], path: str) -> None:
    figure, axes = plt.subplots(3, 2, figsize=(13, 14))
    for place, (heading, work, what, factor, unit, better) in zip(axes.flat, PANELS, strict=True):
        rows = [row for row in run["figures"] if (row["work"], row["what"]) == (work, what)]
        place.set_visible(bool(rows))  # not every run measures everything
        rows.sort(key=lambda row: row["median"], reverse=better == "less")
        names = [run["peers"][row["peer"]]["title"] for row in rows]
        colours = [OURS if row["peer"].startswith("belljar") else THEIRS for row in rows]
        values = [row["median"] * factor for row in rows]
        low = [max((row["median"] - row["q1"]) * factor, 0) for row in rows]
        high = [max((row["q3"] - row["median"]) * factor, 0) for row in rows]
        place.barh(names, values, color=colours, xerr=[low, high], ecolor="#555555")
        if values:
            place.set_xscale("log")
            place.set_xlim(min(values) / 3, max(values) * 8)
        for number, value in enumerate(values):
            text = f" {value:,.3g}" if value < 1000 else f" {value:,.0f}"
            place.text(value * 1.15, number, text, va="center", fontsize=8)
        place.set_title(f"{heading} ({unit}; {better} is better)", fontsize=10, loc="left")
        place.tick_params(labelsize=8)
        place.spines[["top", "right"]].set_visible(False)
    host = run["host"]
    figure.suptitle(
        f"Belljar {host['belljar']} and others, {host['date']}: medians and quartiles, log scale; "
        f"{host['processors']} cores, Linux {host['kernel']}",
        fontsize=11,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])
