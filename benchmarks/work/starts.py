"""From nothing to a first result; and the round trip once something lives."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from peers.contract import ANSWER, COMMANDS, NotTried, Peer, expect


def cold(peer: Peer) -> dict[str, float]:
    """One start to the first result; the end is told apart."""
    peer.settle()
    began = time.perf_counter()
    place = peer.start()
    answer = place.run(peer.first)
    answered = time.perf_counter()
    expect(answer, ANSWER)
    place.close()
    peer.warm = True
    return {"seconds": answered - began, "close": time.perf_counter() - answered}


def trips(peer: Peer, count: int) -> list[float]:
    """In a session that is warm."""
    place = peer.start(session=True)
    try:
        peer.trips(place, min(count, 5))
        return peer.trips(place, count)
    finally:
        place.close()


def storm(
    peer: Peer, at_once: int, seconds: float, least: int, patience: float
) -> dict[str, object]:
    """One-shots at once, after one that is not counted; not if the first of all would take long."""
    if not peer.warm:
        peer.one_shot()
        peer.warm = True
    began = time.perf_counter()
    peer.one_shot()
    one = time.perf_counter() - began
    if one * at_once / min(at_once, os.cpu_count() or 1) > patience:
        raise NotTried(f"not tried: one takes {one:.1f} s")
    return asdict(peer.storm(at_once, seconds, least))


def command(peer: Peer, what: str) -> float:
    """A whole command, from its start to its exit."""
    environment, code, answer = COMMANDS[what]
    with tempfile.TemporaryDirectory() as folder:
        words = ["-c", code]
        if what.startswith("script"):
            words = [os.path.join(folder, "script.py")]
            Path(words[0]).write_text(code)
        arguments, environ = peer.command(environment, *words)
        began = time.perf_counter()
        done = subprocess.run(arguments, env=environ, check=True, capture_output=True, text=True)
        took = time.perf_counter() - began
    expect(done.stdout, answer)
    return took
