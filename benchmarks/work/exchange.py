"""Frames in and out, and output to a callback."""

from __future__ import annotations

import time

from peers.contract import Peer, Place

# Writes of 64 KB, which is what a program does that writes much; and lines, as `print` makes them.
WRITES = """import sys
part = "x" * 65535 + "\\n"
for _ in range({size} // 65536):
    sys.stdout.write(part)
"""
LINES = "line = 'x' * 79\nfor _ in range({size} // 80):\n    print(line)\n"
SMALL = "import sys\nsys.stdout.write('x' * {size})\n"
CODES = {"writes": WRITES, "lines": LINES, "once": SMALL}


def make_frame(size: int) -> object:
    """Numbers, times, texts and categories, some `size` bytes of them."""
    import numpy as np
    import pandas as pd

    rows, random = size // 63, np.random.default_rng(1)
    return pd.DataFrame(
        {
            "price": random.normal(size=rows),
            "volume": random.normal(size=rows),
            "number": random.integers(0, 1 << 40, rows),
            "small": random.integers(0, 100, rows, dtype="int32"),
            "flag": random.random(rows) > 0.5,
            "time": pd.date_range("2020", periods=rows, freq="s"),
            "text": pd.Series(random.integers(0, 10**9, rows)).astype(str),
        }
    )


def frames(peer: Peer, size: int, rounds: int) -> dict[str, object]:
    frame, small = make_frame(size), make_frame(10_000)
    place = peer.start(session=True, lifted=True)
    try:
        place.put(small)
        place.get()  # what is imported for it is not measured
        inward, outward = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            place.put(frame)
            there = time.perf_counter()
            back = place.get()
            outward.append(time.perf_counter() - there)
            inward.append(there - began)
            if len(back) != len(frame):  # type: ignore[arg-type]
                raise RuntimeError(f"{len(back)} rows came back of {len(frame)}")  # type: ignore[arg-type]
            del back
        size = int(frame.memory_usage(deep=True).sum())  # type: ignore[attr-defined]
        return {"in": inward, "out": outward, "bytes": size}
    finally:
        place.close()


def heard(place: Place, size: int, kind: str) -> float:
    """Seconds from asking to the last byte's arrival, and the run's end."""
    got = 0

    def count(amount: int) -> None:
        nonlocal got
        got += amount

    began = time.perf_counter()
    place.stream(CODES[kind].format(size=size), count)
    took = time.perf_counter() - began
    if got < size * 0.99:
        raise RuntimeError(f"{got} bytes came of {size}")
    return took


def streaming(peer: Peer, kind: str, most: int, seconds: float, rounds: int) -> dict[str, object]:
    """As much as fits into some seconds, so that starts do not count."""
    place = peer.start(session=True, lifted=True, streams=True)
    try:
        heard(place, 1 << 20, kind)
        trial = 8 << 20
        took = heard(place, trial, kind)
        size = max(min(most, int(trial * seconds / took)) >> 16 << 16, trial)
        return {"bytes": size, "seconds": [heard(place, size, kind) for _ in range(rounds)]}
    finally:
        place.close()


def outputs(peer: Peer, sizes: list[int], seconds: float) -> dict[str, object]:
    """The same code with ever more output; a size is left out that would take too long."""
    place = peer.start(session=True, lifted=True, streams=True)
    found: dict[str, float] = {}
    try:
        heard(place, 1024, "once")
        for size in sizes:
            kind = "writes" if size >= 1 << 20 else "once"
            times = [heard(place, size, kind)]
            while sum(times) < seconds / 10 and len(times) < 9:
                times.append(heard(place, size, kind))
            found[str(size)] = sorted(times)[len(times) // 2]
            if found[str(size)] * 10 > seconds:
                break
        return {"seconds": found}
    finally:
        place.close()
