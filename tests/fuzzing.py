"""Runs a fuzzer in a process of its own, so that a crash, a hang or a flood is seen, and kept.

A fuzzer is a module `fuzz_NAME` with

    cases(random)       endless bytes to try
    attempt(data)       tries them; any exception is a finding
    allowance(data)     how many bytes of memory it may take
    main(seconds, seed) calls `run`

The child writes each case into shared memory before it tries it. What is found is saved under
tests/regressions/NAME/, where a test tries it again for ever.
"""

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

HERE = Path(__file__).parent
LONGEST = 5.0  # seconds that one case may take
_AREA = 32 * 1024 * 1024
_HEAD = struct.Struct("=QQQ")  # cases tried, size of the current one, findings
_SLACK = 48 * 1024 * 1024  # what libraries allocate on their first use, and arenas
_MOST_FINDINGS = 50


def run(name: str, seconds: float, seed: int) -> int:
    """The number of findings. A child that dies is replaced, until the time is over."""
    started, deadline = time.monotonic(), time.monotonic() + seconds
    found = tried = generation = 0
    while time.monotonic() < deadline and found < _MOST_FINDINGS:
        done, findings = _watch(name, deadline, seed + generation)
        tried, found, generation = tried + done, found + findings, generation + 1
    spent = time.monotonic() - started
    print(f"fuzz {name}: {tried} cases in {spent:.0f} s ({tried / spent:.0f}/s), {found} findings")
    return found


def _watch(name: str, deadline: float, seed: int) -> tuple[int, int]:
    """One child from start to end: how many cases it tried, and how many findings there are."""
    fd = os.memfd_create("fuzz")
    os.ftruncate(fd, _AREA)
    area = mmap.mmap(fd, _AREA)
    child = subprocess.Popen(
        [sys.executable, __file__, name, str(seed), str(fd), str(deadline)],
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
        elif time.monotonic() - since > (LONGEST if count else 120):  # the first one imports
            hung = True
            child.kill()
    said += child.stderr.read() or b""
    child.stderr.close()
    count, size, findings = _HEAD.unpack_from(area)
    if hung or child.returncode:
        findings += 1
        what = "hang" if hung else f"exit{child.returncode}"
        _keep(name, what, area[_HEAD.size : _HEAD.size + size], said.decode(errors="replace"))
    area.close()
    os.close(fd)
    return count, findings


def _keep(name: str, what: str, data: bytes, why: str) -> None:
    directory = HERE / "regressions" / name
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{what}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    print(f"fuzz {name}: {path.relative_to(HERE)}\n{why}", flush=True)


def _child(name: str, seed: int, fd: int, deadline: float) -> None:
    module = importlib.import_module(f"fuzz_{name}")
    area = mmap.mmap(fd, _AREA)
    findings, known = 0, set()
    for count, data in enumerate(module.cases(random.Random(seed))):
        if time.monotonic() > deadline or findings >= _MOST_FINDINGS:
            return
        if len(data) > _AREA - _HEAD.size:
            continue
        area[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(area, 0, count, len(data), findings)
        what, why = _try(module, data)
        if what and why not in known:
            known.add(why)
            findings += 1
            _keep(name, what, data, why)


def _try(module: object, data: bytes) -> tuple[str, str]:
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


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def _peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
