"""Where a figure was measured: processors, memory, kernel, versions, load."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

from quiet import quiet_words

from belljar import __version__
from belljar.environment.environment import Built


def describe(built: Built, versions: list[str]) -> dict[str, Any]:
    """`versions`: the installed packages of the Environment, as name==version."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "belljar": __version__,
        "python": ".".join(map(str, built.interpreter.version)),
        "packages": versions,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _field("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory": int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "root": os.geteuid() == 0,
        "load": os.getloadavg()[0],
    }


def sentence(host: dict[str, Any]) -> str:
    return (
        f"{host['date']}; Belljar {host['belljar']}, Python {host['python']}, "
        f"{', '.join(host['packages']).replace('==', ' ')}; {host['processors']} cores "
        f"({host['processor'] or host['machine']}), {host['memory'] / 2**30:.0f} GiB, "
        f"Linux {host['kernel']}, as {'root' if host['root'] else 'an ordinary user'}, "
        + (
            quiet_words(host["quiet"])
            if "quiet" in host
            else f"load {host['load']:.1f} at the start"
        )
    )


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
