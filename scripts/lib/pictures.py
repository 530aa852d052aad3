"""The pictures of the README: docs/assets/terminal.svg and docs/assets/speed.svg.

Both are drawn by rich as a terminal with its own dark background, so they look the same on light
and dark pages. They contain no fonts or images from elsewhere.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
THEME = TerminalTheme(
    (13, 17, 23),
    (214, 221, 230),
    # black, red, green, yellow, blue, magenta, cyan, white
    [
        *((72, 79, 88), (255, 123, 114), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (177, 186, 196)),
    ],
)

SALES = "month,units\nJan,10\nFeb,14\nMar,9\nApr,17\n"
PLOT = """\
import pandas as pd
sales = pd.read_csv("sales.csv")
print(sales.units.sum(), "units sold")
axes = sales.plot.bar(x="month", y="units")
"""
COMMANDS = (  # the command, its exit code, the outcome that this code stands for
    ("belljar run plot.py --put sales.csv --out results", 0, "ok"),
    ("""belljar run -c 'open("/etc/shadow")'""", 1, "error"),
    ("""belljar run -c 'import socket; socket.socket().connect(("1.1.1.1", 53))'""", 1, "error"),
    (
        """belljar run -c 'hoard = [b"x" * 10**7 for _ in range(10**6)]' --memory 256m""",
        125,
        "out_of_memory",
    ),
)

PEERS = ("belljar_native", "bubblewrap", "docker_run")
BAR = 36  # columns of the longest


def draw_terminal() -> None:
    """What the commands print, and the exit code of each."""
    console = _console(80)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "sales.csv").write_text(SALES)
        Path(directory, "plot.py").write_text(PLOT)
        for command, code, outcome in COMMANDS:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=directory,
                env={**os.environ, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            for line in done.stdout.splitlines():
                failed, ours = re.match(r"\w+Error: ", line), line.startswith("belljar: ")
                console.print(line, style="red" if failed else "cyan" if ours else "")
            if done.returncode != code:
                sys.exit(f"{command}: exit code {done.returncode}, expected {code}")
            colour = "green" if code == 0 else "yellow"
            console.print(f"exit code {code}: {outcome}", style=f"bold {colour}", end="\n\n")
    _save(console, "terminal.svg", "belljar")


def draw_bars() -> None:
    """The time to a first pandas result, of Belljar and two others."""
    [source] = (ROOT / "docs").rglob("benchmarks.json")
    run = json.loads(source.read_text())
    medians = {
        row["peer"]: row["median"] * 1000
        for row in run["figures"]
        if (row["work"], row["what"]) == ("cold", "first result")
    }
    console = _console(BAR + 6)
    console.print("\n  A new sandbox until its first result\n  with pandas\n\n", style="bold")
    for peer in PEERS:
        ours = peer.startswith("belljar")
        width = max(1, round(BAR * medians[peer] / max(medians[each] for each in PEERS)))
        name = "Belljar" if ours else run["peers"][peer]["title"]
        console.print(f"  {name}  {medians[peer]:,.0f} ms", style="bold" if ours else "")
        bar = Text("  ").append(" " * width, "on green" if ours else "on bright_black")
        console.print(bar, bar, bar, "\n\n", sep="\n")
    host = run["host"]
    console.print("  Medians of one run, less is better", style="white")
    machine = f"{host['processors']} cores, Linux {host['kernel'].partition('-')[0]}"
    console.print(f"  {host['date'][:10]}, {machine}\n\n", style="white")
    _save(console, "speed.svg", "scripts/bench")


def _console(width: int) -> Console:
    return Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False
    )


def _save(console: Console, name: str, title: str) -> None:
    svg = console.export_svg(title=title, theme=THEME, unique_id=name.partition(".")[0])
    # The fonts would come from a server; without them the reader's own monospace font is used.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / name).write_text(svg)
    print(f"written: docs/assets/{name}")


if __name__ == "__main__":
    draw_terminal()
    draw_bars()
