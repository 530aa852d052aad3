"""What goes in and out: a frame against CSV, a call of a host function, checkpoints.

`scripts/bench exchange` runs it. One process, one machine; look at the ratios.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from belljar import Sandbox

LIMITS = {"memory": "3g", "workspace": "768m", "timeout": 300}
READ = "dtype={'category': 'category', 'text': str}, parse_dates=['time']"
HELD = 200_000_000  # bytes, all of them touched, in a session that is checkpointed
CALLS = """
import time
times = []
for number in range(1000):
    began = time.perf_counter()
    echo(number)
    times.append(time.perf_counter() - began)
sorted(times)[500]
"""


def mixed(size: int) -> pd.DataFrame:
    """Some `size` bytes of what frames are made of."""
    rows, random = size // 79, np.random.default_rng(1)
    return pd.DataFrame(
        {
            "price": random.normal(size=rows),
            "volume": random.normal(size=rows),
            "number": random.integers(0, 1 << 40, rows),
            "small": random.integers(0, 100, rows, dtype="int32"),
            "flag": random.random(rows) > 0.5,
            "time": pd.date_range("2020", periods=rows, freq="s", tz="UTC"),
            "category": pd.Categorical.from_codes(random.integers(0, 4, rows), list("abcd")),
            "text": pd.Series(random.integers(0, 10**9, rows)).astype(str),
            "factor": random.normal(size=rows),
            "weight": random.normal(size=rows),
        }
    )


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def peak(function: Callable[[], object]) -> int:
    """How much more memory the process held at most, while this ran."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before = _status("VmRSS")
    function()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def frames(sandbox: Sandbox, frame: pd.DataFrame, rounds: int) -> dict[str, float]:
    size = int(frame.memory_usage(deep=True).sum())
    sandbox.run_code("import pandas as pd").raise_for_outcome()
    sandbox.put(head=frame.head())
    sandbox.get("head")  # what is imported for it is not measured
    got: list[object] = []

    def in_and_out() -> None:
        sandbox.put(frame=frame)
        got.append(sandbox.get("frame"))

    held = peak(in_and_out)
    pd.testing.assert_frame_equal(frame, got.pop())
    inward = [timed(lambda: sandbox.put(frame=frame)) for _ in range(rounds)]
    outward = [timed(lambda: sandbox.get("frame")) for _ in range(rounds)]

    def csv_in() -> None:
        sandbox.files.write("in.csv", frame.to_csv(index=False))
        sandbox.run_code(f"table = pd.read_csv('in.csv', {READ})").raise_for_outcome()

    def csv_out() -> None:
        sandbox.run_code("table.to_csv('out.csv', index=False)").raise_for_outcome()
        content = sandbox.files.read("out.csv", format="bytes")
        pd.read_csv(
            io.BytesIO(content), dtype={"category": "category", "text": str}, parse_dates=["time"]
        )

    return {
        "frame in": statistics.median(inward),
        "frame out": statistics.median(outward),
        "CSV in": timed(csv_in),
        "CSV out": timed(csv_out),
        "memory": (size + held) / size,
        "bytes": size,
    }


def calls(sandbox: Sandbox) -> float:
    sandbox.expose(lambda number: number, "echo")
    median = sandbox.run_code(CALLS).raise_for_outcome().value
    assert isinstance(median, float)
    return median


def checkpoints(sandbox: Sandbox, rounds: int) -> dict[str, float]:
    sandbox.run_code(f"import numpy as np; held = np.ones({HELD} // 8)").raise_for_outcome()
    made, back = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        checkpoint = sandbox.checkpoint()
        made.append(time.perf_counter() - began)
        sandbox.run_code("held[:1000] = 2").raise_for_outcome()
        back.append(timed(lambda checkpoint=checkpoint: sandbox.rollback(checkpoint)))
        assert sandbox.run_code("float(held[0])").value == 1.0
        sandbox.release(checkpoint)
    return {"checkpoint": statistics.median(made), "rollback": statistics.median(back)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="of the frame (100)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with Sandbox(limits=LIMITS, strict=False) as sandbox:
        found = frames(sandbox, mixed(args.size * 1_000_000), args.rounds)
        found["call"] = calls(sandbox)
    with Sandbox(limits=LIMITS, strict=False) as sandbox:
        found |= checkpoints(sandbox, args.rounds)
    found["CSV / frame"] = (found["CSV in"] + found["CSV out"]) / (
        found["frame in"] + found["frame out"]
    )
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=box.SIMPLE, title=f"a frame of {found['bytes'] / 1e6:.0f} MB; medians")
    table.add_column("what")
    table.add_column("ms", justify="right")
    for name in ("frame in", "frame out", "CSV in", "CSV out", "call", "checkpoint", "rollback"):
        table.add_row(name, f"{found[name] * 1000:,.2f}")
    console = Console()
    console.print(table)
    console.print(f"CSV in and out / frame in and out: {found['CSV / frame']:.0f} x")
    console.print(f"memory of the host at its peak / frame: {found['memory']:.2f} x")


if __name__ == "__main__":
    main()
