"""dolphin-mcp's sandbox of before against belljar.compat.dolphin: a call of execute_code.

`scripts/bench compat_dolphin` runs it. "before" is what the old system asked of the engine for one
call (ping, look for the image, create with the session's directory mounted, start, wait, logs,
remove), over the engine's own socket, in the image that Belljar builds for its Environment `data`.
The two are measured in turns; look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from compat_executor import PYTHON, image_of_data
from rich import box
from rich.console import Console
from rich.table import Table

from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine
from belljar.compat.dolphin import DockerSandboxExecutor
from belljar.runtime import wait

CODES = {
    "pandas": "import pandas as pd\nprint(pd.Series([1, 2, 3]).sum())",
    "plain": "import math\nprint(math.pi)",
}


async def before(engine: Engine, image: str, directory: str) -> float:
    began = time.perf_counter()
    await engine.request("GET", "/version")
    await engine.request("GET", f"/images/{image}/json")
    body = {
        "Image": image,
        "Cmd": [PYTHON, "/sandbox/script.py"],
        "User": "1000:1000",
        "HostConfig": {
            "Binds": [f"{directory}:/sandbox:rw"],
            "NetworkMode": "none",
            "Memory": 512 * 2**20,
            "CpuQuota": 100_000,
            "SecurityOpt": ["no-new-privileges"],
            "CapDrop": ["ALL"],
            "Tmpfs": {"/tmp": "size=100M,mode=1777"},
        },
    }
    made = await engine.request("POST", "/containers/create", body=body)
    path = f"/containers/{made['Id']}"
    try:
        await engine.request("POST", f"{path}/start")
        ended = await engine.request("POST", f"{path}/wait", timeout=60)
        assert ended["StatusCode"] == 0, ended
    finally:
        await engine.request("DELETE", path, query={"force": True}, timeout=60)
    return time.perf_counter() - began


def first(backend: str, base: str, code: str) -> float:
    """A new session, to the output of its first code."""
    began = time.perf_counter()
    with DockerSandboxExecutor(sandbox_base_dir=base, backend=backend) as sandbox:
        output = sandbox.execute_code(code)
        took = time.perf_counter() - began
    assert "ERROR" not in output, output
    return took


def following(sandbox: DockerSandboxExecutor, code: str) -> float:
    began = time.perf_counter()
    output = sandbox.execute_code(code)
    took = time.perf_counter() - began
    assert "ERROR" not in output, output
    return took


def measure(code: str, rounds: int) -> dict[str, float]:
    engine, image = Engine(endpoint.find_endpoint()), image_of_data()
    found: dict[str, list[float]] = {"before, every call": []}
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        (Path(base) / "script.py").write_text(code)
        wait(before, engine, image, base)
        live = {
            backend: DockerSandboxExecutor("live", f"{base}/{backend}", backend=backend)
            for backend in ("native", "docker")
        }
        for backend, sandbox in live.items():
            first(backend, base, code), following(sandbox, code)
            found[f"{backend}, first call"] = []
            found[f"{backend}, following calls"] = []
        for _ in range(rounds):
            found["before, every call"].append(wait(before, engine, image, base))
            for backend, sandbox in live.items():
                found[f"{backend}, first call"].append(first(backend, base, code))
                found[f"{backend}, following calls"].append(following(sandbox, code))
        for sandbox in live.values():
            sandbox.close()
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name in list(medians)[1:]:
        medians[f"before / {name}"] = medians["before, every call"] / medians[name]
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {name: measure(code, args.rounds) for name, code in CODES.items()}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=box.SIMPLE, title=f"execute_code; medians of {args.rounds}, ms and ratios")
    table.add_column("what")
    for name in found:
        table.add_column(name, justify="right")
    for row in next(iter(found.values())):
        values = [found[name][row] for name in found]
        ratio = " / " in row
        table.add_row(row, *(f"{v:.1f} x" if ratio else f"{v * 1000:,.1f}" for v in values))
    Console().print(table)


if __name__ == "__main__":
    main()
