"""Runs a fuzzer in a process of its own, so that a crash, a hang or a flood is seen, and kept.

A fuzzer is a module `fuzz_NAME` with

    cases(random)       endless bytes to try
    attempt(data)       tries them; any exception is a finding
    allowance(data)     how many bytes of memory it may take
    main(seconds, seed) calls `run`

and, if it likes, `finish()`, called when a process has tried its last.

The child writes each case into shared memory before it tries it. What is found is saved under
tests/robustness/regressions/NAME/, where a test tries it again for ever.
"""

import gc
import hashlib
import importlib
import mmap
import os
import random
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from project import REGRESSIONS

HERE = Path(__file__).parent
LONGEST = 30.0  # seconds that one case may take
_AREA = 32 * 1024 * 1024
_HEAD = struct.Struct("=QQQ")  # cases tried, size of the current one, findings
_SLACK = 48 * 1024 * 1024  # what libraries allocate on their first use, and arenas
_MOST_FINDINGS = 50
KEPT = REGRESSIONS


def run(
    name: str,
    seconds: float,
    seed: int,
    *,
    most: int = 1 << 62,
    longest: float = LONGEST,
    keep: Path = KEPT,
) -> int:
    """The number of findings. A child that dies is replaced, until the time is over, or `most`
    cases were tried."""
    started, deadline = time.monotonic(), time.monotonic() + seconds
    found = tried = generation = 0
    while time.monotonic() < deadline and found < _MOST_FINDINGS and tried < most:
        job = _Job(name, deadline, seed + generation, most - tried, longest, keep)
        done, findings = _watch(job)
        tried, found, generation = tried + done, found + findings, generation + 1
    spent = time.monotonic() - started
    print(f"fuzz {name}: {tried} cases in {spent:.0f} s ({tried / spent:.0f}/s), {found} findings")
    return found


class _Job(NamedTuple):
    name: str
    deadline: float
    seed: int
    most: int  # cases
    longest: float  # seconds of one case
    keep: Path


def _watch(job: _Job) -> tuple[int, int]:
    """One child from start to end: how many cases it tried, and how many findings there are."""
    fd = os.memfd_create("fuzz")
    os.ftruncate(fd, _AREA)
    area = mmap.mmap(fd, _AREA)
    child = subprocess.Popen(
        [sys.executable, __file__, str(fd), *map(str, job)],
        pass_fds=[fd],
        cwd=HERE,
        env={**os.environ, "RUST_BACKTRACE": "0"},
        stderr=subprocess.PIPE,
    )
    os.set_blocking(child.stderr.fileno(), False)
    last, since, said = -1, time.monotonic(), b""
    hung = False
    while child.poll() is None:
        time.sleep(0.2)
        said = (said + (child.stderr.read() or b""))[-20_000:]
        count = _HEAD.unpack_from(area)[0]
        if count != last:
            last, since = count, time.monotonic()
        elif time.monotonic() - since > (job.longest if count else 120):  # the first one imports
            hung = True
            child.kill()
    said += child.stderr.read() or b""
    child.stderr.close()
    count, size, findings = _HEAD.unpack_from(area)
    if hung or child.returncode:
        findings += 1
        what = "hang" if hung else f"exit{child.returncode}"
        _keep(job, what, area[_HEAD.size : _HEAD.size + size], said.decode(errors="replace"))
    area.close()
    os.close(fd)
    return count, findings


def _keep(job: _Job, what: str, data: bytes, why: str) -> None:
    directory = job.keep / job.name
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{what}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    print(f"fuzz {job.name}: {path}\n{why}", flush=True)


def _child(fd: int, job: _Job) -> None:
    module = importlib.import_module(f"fuzz_{job.name}")
    area = mmap.mmap(fd, _AREA)
    try:
        _try_all(module, area, job)
    finally:
        getattr(module, "finish", lambda: None)()


def _try_all(module: Any, area: mmap.mmap, job: _Job) -> None:
    findings, known = 0, set()
    for count, data in enumerate(module.cases(random.Random(job.seed))):
        _HEAD.pack_into(area, 0, count, 0, findings)
        if time.monotonic() > job.deadline or findings >= _MOST_FINDINGS or count >= job.most:
            return
        if len(data) > _AREA - _HEAD.size:
            continue
        area[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(area, 0, count, len(data), findings)
        what, why = judge(module, data)
        if what and why not in known:
            known.add(why)
            findings += 1
            _keep(job, what, data, why)


def judge(module: Any, data: bytes) -> tuple[str, str]:
    """What was found and why, or two empty texts."""
    before = _resident()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the peak
    try:
        module.attempt(data)
    except Exception as error:
        return type(error).__name__, "".join(traceback.format_exception(error)[-6:])
    grown = _peak() - before
    if grown > module.allowance(data) + _SLACK:
        return "flood", f"{grown >> 20} MB for {len(data)} bytes"
    return "", ""


def left_open(before: set[str]) -> set[str]:
    """The descriptors of this process, as /proc lists them, that are new, and stay: garbage has
    some, and other threads for a moment."""
    deadline = time.monotonic() + 10
    while (extra := set(os.listdir("/proc/self/fd")) - before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return extra


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def _peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    _fd, _name, _deadline, _seed, _most, _longest, _kept = sys.argv[1:]
    _child(
        int(_fd),
        _Job(_name, float(_deadline), int(_seed), int(_most), float(_longest), Path(_kept)),
    )
