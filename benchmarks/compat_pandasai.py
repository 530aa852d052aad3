"""PandasAI's sandbox: pandasai_docker against Belljar, side by side, in one run.

    scripts/bench compat_pandasai [--rounds N] [--json FILE]

The same calls of the same interface (`execute`, `stop`), with the same data. pandasai_docker runs
if it is installed (`pip install pandasai-docker==0.1.4`) and an engine answers; its image is
made of the one Belljar has for its environment "data", so that both have the same packages.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["SCARF_NO_ANALYTICS"] = "true"

import numpy as np
import pandas as pd

import belljar
from belljar.compat.pandasai import BelljarSandbox

IMAGE = "belljar-bench-pandasai"
ROWS = 200_000
NUMBER = "result = {'type': 'number', 'value': 6 * 7}"
QUERY = """
rows = execute_sql_query("SELECT * FROM sales")
result = {'type': 'number', 'value': int(rows['amount'].sum())}
"""
FRAME = """
rows = execute_sql_query("SELECT * FROM sales")
result = {'type': 'dataframe', 'value': rows}
"""
PLOT = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.savefig('exports/charts/bench.png')
plt.close()
result = {'type': 'plot', 'value': 'exports/charts/bench.png'}
"""
STEPS = {
    "start and first answer": NUMBER,
    "a further answer": NUMBER,
    "an answer out of a frame": QUERY,
    "a frame in, and out again": FRAME,
    "a chart": PLOT,
    "an answer, and a print": f"print('so far')\n{NUMBER}",
}


def make_sales() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "amount": random.integers(0, 1000, ROWS),
            "price": random.random(ROWS),
            "city": random.choice(["Oslo", "Rome", "Bern"], ROWS),
            "when": pd.date_range("2024", periods=ROWS, freq="min"),
        }
    )


def build_image() -> str:
    """The image for pandasai_docker: that of Belljar's environment, with its python as `python`."""
    with BelljarSandbox(backend="docker"):  # so that it is there
        pass
    listed = ["docker", "images", "belljar/data", "--format", "{{.Repository}}:{{.Tag}}"]
    base = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()[0]
    dockerfile = f"FROM {base}\nUSER root\nENV PATH=/opt/env/bin:/usr/local/bin:/usr/bin:/bin\n"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_text(dockerfile)
        subprocess.run(["docker", "build", "-q", "-t", IMAGE, folder], check=True, stdout=2)
    return IMAGE


def contenders() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    has_engine = subprocess.run(["docker", "version"], capture_output=True).returncode == 0
    if has_engine and importlib.util.find_spec("pandasai_docker") is not None:
        # docker.py, which lies beside this file, is not the package that it means.
        sys.path = [path for path in sys.path if path != os.path.dirname(__file__)]
        from pandasai_docker import DockerSandbox

        image = build_image()
        found["pandasai_docker"] = lambda: DockerSandbox(image_name=image)
    if has_engine:
        found["Belljar, docker"] = lambda: BelljarSandbox(backend="docker")
    found["Belljar, native"] = lambda: BelljarSandbox(backend="native")
    return found


def measure(make: Callable[[], Any], rounds: int) -> dict[str, float | str]:
    """Medians in seconds; the words of the error where it fails."""
    sales = make_sales()
    environment = {"execute_sql_query": lambda query: sales}
    make_and_end(make)  # what is done once for a process: images, the engine's connection
    times: dict[str, list[float]] = {}
    failures: dict[str, str] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        if name in failures:
            return
        began = time.perf_counter()
        try:
            work()
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:90]}"
        else:
            times.setdefault(name, []).append(time.perf_counter() - began)

    for _ in range(rounds):
        sandbox = make()
        for name, code in STEPS.items():
            timed(name, functools.partial(sandbox.execute, code, dict(environment)))
        timed("stop", sandbox.stop)
    return {name: statistics.median(each) for name, each in times.items()} | failures


def make_and_end(make: Callable[[], Any]) -> None:
    sandbox = make()
    sandbox.execute(NUMBER, {})
    sandbox.stop()


def show(results: dict[str, dict[str, float | str]]) -> None:
    names = list(results)
    print(f"| {ROWS:,} rows of 4 columns | {' | '.join(names)} |")
    print(f"|---{'|---' * len(names)}|")
    order = list(dict.fromkeys(row for each in results.values() for row in each))
    for row in order:
        cells = [results[name].get(row, "") for name in names]
        shown = [f"{cell * 1000:,.0f} ms" if isinstance(cell, float) else cell for cell in cells]
        print(f"| {row} | {' | '.join(shown)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the medians there")
    options = parser.parse_args()
    results: dict[str, dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # charts go here
        Path("exports/charts").mkdir(parents=True)
        for name, make in contenders().items():
            print(f"{name} ...", file=sys.stderr)
            results[name] = measure(make, options.rounds)
        os.chdir("/")
    show(results)
    print(f"\nBelljar {belljar.__version__}, Python {sys.version.split()[0]}; medians of", end=" ")
    print(f"{options.rounds} rounds", end="")
    print("" if "pandasai_docker" in results else "; pandasai_docker is not installed here")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
