"""Whether one more costs more than the one before: cells of a session, and sandboxes."""

from __future__ import annotations

import mmap
import os
import time
from statistics import median

from peers.contract import ANSWER, Peer, Place, expect

from work.memory import below, private, processor

CELLS = (  # small ones that differ, as a session has them
    "x{n} = {i} * 2\nprint(x{n})",
    "sum(range({n}))",
    "def f{n}(a):\n    return a + {i}\nf{n}(1)",
    "'{i}'.upper()",
    "1+1",
)
FIRST_CELLS = 200  # not counted: what is made once
TURN = 50
PAGES = 65536  # 256 MiB


def run_cells(place: Place, begin: int, count: int) -> list[float]:
    times = []
    for i in range(begin, begin + count):
        code = CELLS[i % len(CELLS)].format(i=i, n=i % 50)
        began = time.perf_counter()
        place.run(code)
        times.append(time.perf_counter() - began)
    return times


def cells(peer: Peer, count: int) -> dict[str, object]:
    """Many cells in one session, in 50 steps: time, processor time and memory of all processes.

    At the end a new session takes turns with it: a machine that is busier at the end than at the
    beginning slows both.
    """
    peer.one_shot()  # what all sessions share is there
    before = set(below([os.getpid()]))
    place = peer.start(session=True)
    beside: Place | None = None
    try:
        run_cells(place, 0, FIRST_CELLS)
        more = set(below([os.getpid()])) - before
        guest_processes = list(dict.fromkeys([*place.processes(), *sorted(more)]))
        step, course = max(count // 50, 1), []
        for done in range(0, count, step):
            guest, host = processor(guest_processes), time.process_time()
            times = run_cells(place, done, step)
            course.append(
                {
                    "cells": done + step,
                    "time": median(times),
                    "guest": (processor(guest_processes) - guest) / step,
                    "host": (time.process_time() - host) / step,
                    "init_bytes": sum(map(private, guest_processes[:1])),
                    "worker_bytes": sum(map(private, guest_processes[1:])),
                    "host_bytes": private(os.getpid()),
                }
            )
        beside = peer.start(session=True)
        run_cells(beside, 0, FIRST_CELLS)
        old, new = [], []
        for turn in range(10):
            old += run_cells(place, turn * TURN, TURN)
            new += run_cells(beside, turn * TURN, TURN)
        return {"course": course, "old": median(old), "new": median(new)}
    finally:
        place.close()
        if beside is not None:
            beside.close()


def first_result(peer: Peer, kept: list[Place] | None = None) -> float:
    """Seconds from the start to the first result of one that is kept, or else closed."""
    began = time.perf_counter()
    place = peer.start(session=True)
    try:
        expect(place.run(peer.first), ANSWER)
        return time.perf_counter() - began
    finally:
        if kept is None:
            place.close()
        else:
            kept.append(place)


def new_page() -> float:
    """Seconds to get a page from the kernel. A virtual machine gives free memory back to its
    hypervisor, and is slow to get it again: that has nothing to do with what is measured here."""
    size = PAGES * mmap.PAGESIZE
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        began = time.perf_counter()
        memory[:: mmap.PAGESIZE] = bytes(PAGES)
        return (time.perf_counter() - began) / PAGES


def many(peer: Peer, count: int) -> dict[str, object]:
    """Ever more idle places, all kept: how long each took to its first result, and its memory."""
    page = new_page()
    times: list[float] = []
    places: list[Place] = []
    try:
        for _ in range(count):
            times.append(first_result(peer, places))
        page_beside = new_page()
        time.sleep(0.5)
        everything = sum(private(pid) for pid in [os.getpid(), *below([os.getpid()])])
        again = []
        for place in places:  # all of them answer
            began = time.perf_counter()
            place.trip()
            again.append(time.perf_counter() - began)
        closing = time.perf_counter()
        for place in places:
            place.close()
        places = []
        closed = time.perf_counter()
        alone = [first_result(peer) for _ in range(max(count // 10, 1))]  # the others are gone
        return {
            "times": times,
            "alone": alone,
            "answers": again,
            "private": everything / count,
            "closing": (closed - closing) / count,
            "page": page,
            "page_beside": page_beside,
        }
    finally:
        for place in places:
            place.close()


def burst(peer: Peer, count: int) -> dict[str, object]:
    """An idle pool that is full; then many requests at once; then it is idle and full again."""
    peer.burst(1)  # the pool is there, and full
    before = len(below([os.getpid()]))
    found = peer.burst(count)
    return found | {"left": len(below([os.getpid()])) - before}


def soak(peer: Peer, count: int, at_once: int) -> dict[str, object]:
    """Thousands of one-shots: memory of this process and of all it started, in tenths.

    How many guests there are differs from moment to moment: ten looks in each tenth, their median.
    """
    looks: list[int] = []
    every = max(count // 100, 1)

    def watch(done: int) -> None:
        if done % every == 0:
            looks.append(sum(private(pid) for pid in [os.getpid(), *below([os.getpid()])]))

    storm = peer.storm(at_once, 0, count, watch)
    tenth = max(len(looks) // 10, 1)
    memory = [median(looks[i * tenth : (i + 1) * tenth]) for i in range(10)]
    done = len(storm.times)
    return {"memory": memory, "per_second": done / storm.took, "count": done}
