"""The strategy executor of before against belljar.compat.executor: one execution, and its end.

`scripts/bench compat_executor` runs it. "before" is what the old system asked of the engine for
one execution (create, start, wait, logs, remove), over the engine's own socket, with the same
limits, in the image that Belljar builds for its Environment `data`: python:3.10-slim has no pandas.
The two are measured in turns; look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from belljar import Sandbox
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine
from belljar.compat.executor import DockerConfig, DockerExecutor
from belljar.runtime import wait

CODES = {
    "pandas": "import pandas as pd\nsignal = pd.DataFrame({'stock': ['AAPL'], 'position': [1.0]})\n"
    "print(f'Signal created: {signal}')",
    "plain": "signal = {'ticker': 'AAPL', 'position': 1.0}\nprint(signal)",
}
PYTHON = "/opt/env/bin/python"


async def before(engine: Engine, image: str, directory: str) -> tuple[float, float]:
    """Seconds for all of it, and for the removal alone."""
    began = time.perf_counter()
    body = {
        "Image": image,
        "Cmd": [PYTHON, "/code/strategy.py"],
        "User": "1000:1000",
        "HostConfig": {
            "Binds": [f"{directory}:/code:ro"],
            "NetworkMode": "none",
            "Memory": 2 * 2**30,
            "NanoCpus": 500_000_000,
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "rw,noexec,nosuid"},
            "CapDrop": ["ALL"],
            "PidsLimit": 100,
        },
    }
    made = await engine.request("POST", "/containers/create", body=body)
    path = f"/containers/{made['Id']}"
    try:
        await engine.request("POST", f"{path}/start")
        ended = await engine.request("POST", f"{path}/wait", timeout=60)
        assert ended["StatusCode"] == 0, ended
    finally:
        removal = time.perf_counter()
        await engine.request("DELETE", path, query={"force": True}, timeout=60)
    now = time.perf_counter()
    return now - began, now - removal


def image_of_data() -> str:
    with Sandbox(backend="docker", environment="data") as sandbox:
        sandbox.run_code("1")
        seen = sandbox.whereabouts
        assert seen is not None
        found = wait(
            Engine(endpoint.find_endpoint()).request, "GET", f"/containers/{seen.container}/json"
        )
    return str(found["Image"])


def after(executor: DockerExecutor, code: str) -> tuple[float, float]:
    began = time.perf_counter()
    result = executor.execute(code)
    ended = time.perf_counter()
    assert result["success"], result["error"]
    return ended - began, _cleanup(executor, code)


def _cleanup(executor: DockerExecutor, code: str) -> float:
    """The removal alone, of a sandbox that was kept for it."""
    executor.config.cleanup_on_exit = False
    executor.execute(code)
    began = time.perf_counter()
    assert executor.cleanup_all()["failed"] == 0
    executor.config.cleanup_on_exit = True
    return time.perf_counter() - began


def measure(code: str, rounds: int) -> dict[str, float]:
    engine, image = Engine(endpoint.find_endpoint()), image_of_data()
    config = DockerConfig(export_container_stats=False)
    found: dict[str, list[tuple[float, float]]] = {"before": [], "native": [], "docker": []}
    with (
        tempfile.TemporaryDirectory() as directory,
        DockerExecutor(config, backend="native") as native,
        DockerExecutor(config, backend="docker") as docker,
    ):
        Path(directory).chmod(0o755)
        (Path(directory) / "strategy.py").write_text(code)
        native.execute(code), docker.execute(code)  # what is done once in a process
        wait(before, engine, image, directory)
        for _ in range(rounds):
            found["before"].append(wait(before, engine, image, directory))
            found["native"].append(after(native, code))
            found["docker"].append(after(docker, code))
    medians = {
        f"{name}, {what}": statistics.median(pair[index] for pair in pairs)
        for name, pairs in found.items()
        for index, what in enumerate(("execution", "cleanup"))
    }
    for name in ("native", "docker"):
        for what in ("execution", "cleanup"):
            ratio = medians[f"before, {what}"] / medians[f"{name}, {what}"]
            medians[f"before / {name}, {what}"] = ratio
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    found = {name: measure(code, args.rounds) for name, code in CODES.items()}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=box.SIMPLE, title=f"one execution; medians of {args.rounds}, ms and ratios")
    table.add_column("what")
    for name in found:
        table.add_column(name, justify="right")
    for row in next(iter(found.values())):
        values = [found[name][row] for name in found]
        ratio = " / " in row
        table.add_row(row, *(f"{v:.1f} x" if ratio else f"{v * 1000:,.0f}" for v in values))
    Console().print(table)


if __name__ == "__main__":
    main()
