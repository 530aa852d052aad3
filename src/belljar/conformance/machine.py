"""The machine a report is about."""

from __future__ import annotations

import datetime
import os
import platform
import pwd
import re
from pathlib import Path

from belljar import __version__
from belljar.backends.isolation import Isolation
from belljar.conformance.results import Head
from belljar.conformance.setting import Setting


def head(setting: Setting, isolation: Isolation, *, controls: bool, seconds: float) -> Head:
    return Head(
        version=__version__,
        setting=setting.name,
        backend=setting.backend,
        runtime=setting.runtime,
        user=_user(),
        machine=_machine(),
        kernel=f"{platform.system()} {platform.release()}",
        system=_system(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        engine=_engine() if setting.docker else None,
        isolation=isolation,
        controls=controls,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=seconds,
    )


def _user() -> str:
    uid = os.geteuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _machine() -> str:
    found = re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())
    memory = f"{int(found[1]) / 1024**2:.1f} GiB" if found else "unknown"
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    name = f", {model[1]}" if model else ""
    return f"{platform.machine()}, {os.cpu_count()} processors{name}, {memory} of memory"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown"


def _engine() -> str:
    from belljar.cli import engine_facts

    facts = {fact.name: fact.detail for fact in engine_facts.find().facts}
    return facts.get("version", "unknown")
