"""Whether one more costs more than the one before: cells of a session, and sandboxes."""

from __future__ import annotations

import os
import time
from statistics import median

from peers.contract import ANSWER, Peer, expect

from work.memory import below, private


def cells(peer: Peer, count: int) -> dict[str, object]:
    """Many cells in one session: time and memory at its beginning and at its end."""
    before = set(below([os.getpid()]))
    place = peer.start(session=True)
    try:
        peer.trips(place, 200)  # what is made once
        times: list[float] = []
        memory: list[int] = []
        host: list[int] = []
        tenth = max(count // 10, 1)
        for _ in range(10):
            processes = {*place.processes(), *(set(below([os.getpid()])) - before)}
            memory.append(sum(private(pid) for pid in processes))
            host.append(private(os.getpid()))
            times += peer.trips(place, tenth)
        return {
            "first": median(times[:tenth]),
            "last": median(times[-tenth:]),
            "tenths": [median(times[i * tenth : (i + 1) * tenth]) for i in range(10)],
            "guest_bytes_per_cell": (memory[-1] - memory[1]) / (8 * tenth),
            "host_bytes_per_cell": (host[-1] - host[1]) / (8 * tenth),
            "count": count,
        }
    finally:
        place.close()


def many(peer: Peer, count: int) -> dict[str, object]:
    """Ever more idle places, all kept: how long each took to its first result, and its memory."""
    times: list[float] = []
    places = []
    try:
        for _ in range(count):
            began = time.perf_counter()
            place = peer.start(session=True)
            places.append(place)
            expect(place.run(peer.first), ANSWER)
            times.append(time.perf_counter() - began)
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
        return {
            "times": times,
            "answers": again,
            "private": everything / count,
            "closing": (time.perf_counter() - closing) / count,
        }
    finally:
        for place in places:
            place.close()


def soak(peer: Peer, count: int, at_once: int) -> dict[str, object]:
    """Thousands of one-shots: memory of this process and of all it started, in tenths.

    How many guests there are differs from moment to moment: ten looks in each tenth, their median.
    """
    looks: list[int] = []
    every = max(count // 100, 1)

    def watch(done: int) -> None:
        if done % every == 0:
            looks.append(sum(private(pid) for pid in [os.getpid(), *below([os.getpid()])]))

    times, took = peer.storm(at_once, 0, count, watch)
    tenth = max(len(looks) // 10, 1)
    memory = [median(looks[i * tenth : (i + 1) * tenth]) for i in range(10)]
    return {"memory": memory, "per_second": len(times) / took, "count": len(times)}
