"""A peer in a process of its own: takes orders on stdin, one line of JSON each, and answers so.

    python -P drive.py NAME

Times are taken here, beside the peer, so that the way to the benchmark is in none of them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

# Last, because a module of the benchmarks has the name of a package (docker).
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from work import exchange, growth, memory, starts

from peers.contract import Missing, NotTried, Peer

WORK = {
    "cold": starts.cold,
    "trips": starts.trips,
    "storm": starts.storm,
    "command": starts.command,
    "frames": exchange.frames,
    "streaming": exchange.streaming,
    "outputs": exchange.outputs,
    "memory": memory.measure,
    "cells": growth.cells,
    "many": growth.many,
    "burst": growth.burst,
    "soak": growth.soak,
}


def about(peer: Peer) -> dict[str, object]:
    return {
        "title": peer.title,
        "settings": peer.settings,
        "isolation": peer.isolation,
        "works": peer.works,
        "cannot": peer.cannot,
        "rounds": peer.rounds,
        "most_at_once": peer.most_at_once,
        "version": peer.version(),
    }


def main() -> None:
    # What a peer prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: object) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        peer: Peer = importlib.import_module(f"peers.{sys.argv[1]}").PEER
        peer.prepare()
        answer(value=about(peer))
    except (Missing, ImportError) as error:
        answer(missing=str(error))
        return
    try:
        for line in sys.stdin:
            order = json.loads(line)
            try:
                answer(value=WORK[order.pop("work")](peer, **order))
            except NotTried as error:
                answer(failed=str(error))
            except Exception as error:
                traceback.print_exc()
                answer(failed=f"{type(error).__name__}: {str(error).strip()[:200]}")
    finally:
        peer.close()


if __name__ == "__main__":
    main()
