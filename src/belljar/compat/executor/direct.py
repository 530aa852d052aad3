"""Code WITHOUT a sandbox, for `fallback_to_direct=True` where no sandbox can be had.

It is never the default and never silent. The code runs as this user, with all this user may do;
only in a process of its own, so that a time-out can end it and it cannot reach our memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "direct"  # in place of a container's id: there was none
MOST_OUTPUT = 1_000_000  # characters that are kept

# argv: the code's file, and where its signal shall be written. A frame is written as JSON, too:
# nothing that the code made is ever unpickled here.
_RUNNER = """\
import json, sys
code, result = sys.argv[1:3]
names = {"__name__": "__main__"}
with open(code, encoding="utf-8") as file:
    exec(compile(file.read(), "strategy.py", "exec"), names)
value = names.get("signal")
if value is not None and type(value).__name__ in ("DataFrame", "Series"):
    value = {"frame": value.to_json(orient="split"), "kind": type(value).__name__}
else:
    value = {"value": value}
try:
    text = json.dumps(value)
except (TypeError, ValueError) as error:
    text = json.dumps({"problem": str(error)})
with open(result, "w", encoding="utf-8") as file:
    file.write(text)
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    code: int | None  # None: it was killed for the time it took
    logs: str
    signal: Any
    seconds: float
    problem: str | None = None  # why the signal could not be had


def run(code: str, *, timeout: float) -> Ran:
    with tempfile.TemporaryDirectory(prefix="belljar-direct-") as directory:
        return _run(Path(directory), code, timeout)


def _run(directory: Path, code: str, timeout: float) -> Ran:
    source, result, output = (directory / name for name in ("strategy.py", "signal", "output"))
    source.write_text(code, encoding="utf-8")
    began = time.monotonic()
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, str(source), str(result)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts can be ended with it
        )
        try:
            ended: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            _end(process)
    with output.open("rb") as file:
        logs = file.read(MOST_OUTPUT).decode("utf-8", "replace")
    signal_, problem = _signal(result) if ended == 0 else (None, None)
    seconds = time.monotonic() - began
    return Ran(code=ended, logs=logs, signal=signal_, seconds=seconds, problem=problem)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended by itself
    finally:
        process.wait()


def _signal(result: Path) -> tuple[Any, str | None]:
    try:
        found = json.loads(result.read_text(encoding="utf-8"))
        if "problem" in found:
            return None, f"signal cannot leave the process: {found['problem']}"
        if "frame" not in found:
            return found["value"], None
        import io

        import pandas

        kind = "frame" if found["kind"] == "DataFrame" else "series"
        return pandas.read_json(io.StringIO(found["frame"]), orient="split", typ=kind), None
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        return None, f"signal could not be read: {error}"
