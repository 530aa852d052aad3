"""Belljar in a minute: an analysis, a plot, and three attacks that fail.

Run it with `scripts/demo`, or `python examples/demo.py [DIRECTORY]`. Every claim about an attack
is checked from outside the sandbox; the exit code is 0 only if all of them held.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from belljar import Execution, Limits, Outcome, Sandbox
from belljar.environment.environment import build
from belljar.text import printable

console = Console(highlight=False, soft_wrap=True)
PRETTY = console.is_terminal and console.encoding == "utf-8"
FRAME = box.ROUNDED if PRETTY else box.ASCII
MEGABYTE = 2**20

SALES = "month,region,units,price\n" + "".join(
    f"2026-{month:02d},{region},{(month * step) % 17 + base},{price}\n"
    for month in range(1, 13)
    for region, step, base, price in (("north", 5, 20, 9.5), ("south", 7, 12, 11.0))
)

LOAD = """\
import pandas as pd
sales = pd.read_csv("sales.csv", parse_dates=["month"])
sales["revenue"] = sales.units * sales.price
sales.groupby("region").revenue.agg(["sum", "mean", "max"]).round(1)
"""

PERSIST = """\
best = sales.loc[sales.revenue.idxmax()]     # `sales` is still here, from the cell before
f"best month: {best.month:%B} in the {best.region}, {best.revenue:.0f}"
"""

PLOT = """\
import matplotlib.pyplot as plt
table = sales.pivot(index="month", columns="region", values="revenue")
table.plot(marker="o", figsize=(8, 4), title="Revenue by region")
plt.show()
"""

READ_SECRET = """\
import glob, os
secret = {path!r}
for root in ["", "/proc/1/root", "/proc/self/root/../.."]:
    try:
        print(root + secret, "->", open(root + secret).read())
    except OSError as error:
        print(root + secret, "->", error.strerror)
print("environment:", os.environ.get("BELLJAR_DEMO_SECRET"))
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        if b"BELLJAR_DEMO_SECRET" in open(path, "rb").read():
            print(path, "->", open(path).read())
    except OSError as error:
        print(path, "->", error.strerror)
"""

OPEN_SOCKET = """\
import socket
for family, address in [
    (socket.AF_INET, ("127.0.0.1", {port})),
    (socket.AF_UNIX, {unix!r}),
]:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(2)
            sock.connect(address)
            sock.sendall(b"hello from inside")
            print(address, "-> connected")
    except OSError as error:
        print(address, "->", error.strerror or error)
"""

MEMORY_BOMB = """\
hoard = []
while True:
    hoard.append(b"x" * 20_000_000)
"""


class Listener:
    """A TCP and a Unix socket on the host that count who comes."""

    def __enter__(self) -> Self:
        self.visits = 0
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = tcp.getsockname()[1]
        self.unix = f"\0belljar-demo-{secrets.token_hex(8)}"  # abstract: no file, no permissions
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(self.unix)
        unix.listen()
        self._servers = (tcp, unix)
        self._threads = [threading.Thread(target=self._count, args=(s,)) for s in self._servers]
        for thread in self._threads:
            thread.start()
        return self

    def _count(self, server: socket.socket) -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return  # shut down
            self.visits += 1

    def __exit__(self, *exception: object) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            server.close()


class Demo:
    def __init__(self, output: Path) -> None:
        self.output = output
        self.costs: list[tuple[str, Execution]] = []
        self.attacks: list[tuple[str, bool]] = []

    # -- telling ----------------------------------------------------------------------------

    def chapter(self, title: str) -> None:
        console.print()
        console.rule(f"[bold]{title}", align="left", characters="─" if PRETTY else "-")

    def run(self, sandbox: Sandbox, title: str, code: str) -> Execution:
        """Run a cell, and show it with what came out of it."""
        console.print(f"\n[bold cyan]{'▸' if PRETTY else '>'} {title}")
        for line in code.rstrip().splitlines():
            console.print(f"    [dim]{escape(line)}")
        execution = sandbox.run_code(code)
        usage = execution.usage
        cpu = "" if usage.cpu is None else f", cpu {usage.cpu * 1000:.0f} ms"
        # What the guest wrote is foreign text: str() has its control characters escaped.
        console.print(indent(str(execution), "  "), markup=False)
        colour = "green" if execution.ok else "yellow"
        wall = f"wall {usage.wall * 1000:.0f} ms{cpu}, peak memory {_megabytes(usage.peak_memory)}"
        console.print(f"  [{colour}]{execution.outcome}[/] [dim]({wall})")
        self.costs.append((title, execution))
        return execution

    def verdict(self, attack: str, held: bool, seen: str) -> None:
        self.attacks.append((attack, held))
        word = "[bold green]HELD[/]" if held else "[bold red]BROKEN[/]"
        console.print(f"  {word}, seen from outside: {seen}")

    # -- the story --------------------------------------------------------------------------

    def play(self) -> bool:
        self.chapter("1. The environment: numpy, pandas, matplotlib, ... built once, then cached")
        began = time.perf_counter()
        built = build("data")
        took = time.perf_counter() - began
        console.print(f"  {built.path} [dim]({took:.1f} s)")
        # strict=False: a user without a control group gets memory as best effort; the last
        # chapter says so, and no warning interrupts the picture.
        limits = Limits(memory="256m", timeout=10)
        began = time.perf_counter()
        with Sandbox(limits=limits, strict=False) as sandbox:
            took = time.perf_counter() - began
            console.print(f"  first sandbox of this process, pandas imported: {took:.2f} s")
            self.analyse(sandbox)
            self.chapter("3. Three attacks")
            self.read_a_secret(sandbox)
            self.open_a_socket(sandbox)
            self.fill_the_memory(sandbox, limits)
            self.report(sandbox)
        return all(held for _, held in self.attacks)

    def analyse(self, sandbox: Sandbox) -> None:
        self.chapter("2. An analysis")
        sandbox.files.write("sales.csv", SALES)
        self.run(sandbox, "read a CSV that the host put there", LOAD).raise_for_outcome()
        self.run(sandbox, "variables persist between cells", PERSIST).raise_for_outcome()
        drawn = self.run(sandbox, "draw a plot", PLOT).raise_for_outcome()
        png = next(result.png for result in drawn.results if result.png is not None)
        self.output.mkdir(parents=True, exist_ok=True)
        target = self.output / "revenue.png"
        target.write_bytes(png)
        console.print(f"  plot saved: [bold]{target.resolve()}[/] ({len(png):,} bytes)")

    def read_a_secret(self, sandbox: Sandbox) -> None:
        secret = secrets.token_hex(16)
        os.environ["BELLJAR_DEMO_SECRET"] = secret
        with tempfile.TemporaryDirectory(prefix="belljar-demo-") as directory:
            path = Path(directory, "secret.txt")
            path.write_text(secret)
            # World-readable, so that it is not mere file permissions that protect it.
            os.chmod(directory, 0o755)
            path.chmod(0o644)
            code = READ_SECRET.format(path=str(path))
            outside = _unconfined(code)
            execution = self.run(sandbox, "attack: read a secret of the host", code)
        found = secret in execution.to_json() or secret in str(execution)
        works = secret in outside
        self.verdict(
            "read a secret of the host",
            works and not found,
            f"the secret is {'in' if found else 'nowhere in'} its output; the same code without "
            f"Belljar {'printed it' if works else 'did not find it either'}",
        )

    def open_a_socket(self, sandbox: Sandbox) -> None:
        with Listener() as listener:
            code = OPEN_SOCKET.format(port=listener.port, unix=listener.unix)
            _unconfined(code)
            _settle(lambda: listener.visits == 2)
            expected = listener.visits
            execution = self.run(sandbox, "attack: connect to a listener on the host", code)
            time.sleep(0.2)  # a visit would be counted by another thread
            inside = listener.visits - expected
        self.verdict(
            "connect to a listener on the host",
            expected > 0 and inside == 0 and execution.outcome is not Outcome.lost,
            f"the listener counted {inside} connections from the sandbox; the same code without "
            f"Belljar made {expected}",
        )

    def fill_the_memory(self, sandbox: Sandbox, limits: Limits) -> None:
        before = _available()
        execution = self.run(sandbox, "attack: fill the memory of the host", MEMORY_BOMB)
        peak = execution.usage.peak_memory or 0
        how = sandbox.isolation.layer("memory")
        # Best effort may overshoot, by what fits between two looks of the watchdog.
        allowed = limits.memory if how.state == "enforced" else 2 * limits.memory
        self.verdict(
            "fill the memory of the host",
            execution.outcome is Outcome.out_of_memory and 0 < peak <= allowed,
            f"peak {_megabytes(peak)}, the limit is {_megabytes(limits.memory)} ({how.state}); "
            f"{_megabytes(before)} were free on the host",
        )
        after = self.run(sandbox, "the sandbox lives on", "1 + 1")
        if after.text != "2":
            self.attacks.append(("the sandbox lives on", False))

    def report(self, sandbox: Sandbox) -> None:
        self.chapter("4. What each run cost")
        costs = Table("run", "outcome", box=FRAME)
        for heading in ("wall", "cpu", "peak memory"):
            costs.add_column(heading, justify="right")
        for title, execution in self.costs:
            usage = execution.usage
            cpu = "?" if usage.cpu is None else f"{usage.cpu * 1000:.1f} ms"
            peak = _megabytes(usage.peak_memory)
            costs.add_row(title, execution.outcome, f"{usage.wall * 1000:.1f} ms", cpu, peak)
        console.print(costs, soft_wrap=False)
        self.chapter("5. What held it, as measured on the live guest")
        isolation = sandbox.isolation
        colours = {"enforced": "green", "best-effort": "yellow", "absent": "red"}
        table = Table("layer or limit", "state", "how", box=FRAME)
        for layer in (*isolation.layers, *isolation.limits):
            table.add_row(layer.name, f"[{colours[layer.state]}]{layer.state}", layer.detail)
        console.print(table, soft_wrap=False)
        for layer in (*isolation.layers, *isolation.limits):
            if layer.state != "enforced":
                console.print(
                    f"  {layer.name} is {layer.state}. {layer.remedy or ''}", markup=False
                )


def _unconfined(code: str) -> str:
    """The control: the same code in an ordinary subprocess, where the attack must work."""
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout


def _settle(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)


def _available() -> int:
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":") for line in file)
    return int(rows["MemAvailable"].split()[0]) * 1024


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / MEGABYTE:.0f} MB"


def main() -> int:
    parser = argparse.ArgumentParser(description=dedent(__doc__ or "").splitlines()[0])
    parser.add_argument("output", nargs="?", default="demo-output", help="where the plot goes")
    demo = Demo(Path(parser.parse_args().output))
    held = demo.play()
    console.print()
    for attack, result in demo.attacks:
        console.print(f"  {'failed, as it should' if result else 'SUCCEEDED'}: {printable(attack)}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
