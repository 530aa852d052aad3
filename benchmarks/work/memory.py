"""Memory of one more idle place: private pages of all its processes.

Several are alive at once, so that what they share is seen as shared. What this process itself has
grown by is counted in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from peers.contract import ANSWER, Peer, expect


def parents() -> dict[int, int]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            found[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return found


def below(roots: Iterable[int]) -> list[int]:
    """All descendants of some processes, without these."""
    above, found = parents(), set(roots)
    start = set(found)
    while more := {pid for pid, parent in above.items() if parent in found} - found:
        found |= more
    return sorted(found - start)


def pages(pid: int) -> dict[str, int]:
    """Bytes by kind, as smaps_rollup has them; nothing of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)
    }


def private(pid: int) -> int:
    found = pages(pid)
    return found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)


def processor(pids: Iterable[int]) -> float:
    """Seconds that the threads of these processes have run."""
    each = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in each) / 1e9


def in_namespace_of(pid: int) -> list[int]:
    """A guest's first process and all others in its process namespace, also those of a zygote."""
    try:
        wanted, found = os.readlink(f"/proc/{pid}/ns/pid"), below([pid])
    except PermissionError:  # an ordinary user may not look there
        return [pid, *below([pid])]
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == wanted:
                found.append(int(entry))
        except OSError:  # it has ended, or is not ours to see
            continue
    return [pid, *sorted(set(found) - {pid})]


def measure(peer: Peer, count: int) -> dict[str, object]:
    before = set(below([os.getpid()]))
    warm = peer.start(session=True)
    expect(warm.run(peer.first), ANSWER)
    warm.run(peer.resident)
    own = private(os.getpid())
    known = set(below([os.getpid()]))
    places, each, proportional = [], [], []
    for _ in range(count):
        place = peer.start(session=True)
        expect(place.run(peer.first), ANSWER)
        place.run(peer.resident)
        now = set(below([os.getpid()]))
        places.append((place, {*place.processes()} | (now - known)))
        known |= now
    time.sleep(0.5)  # what is freed or started behind an answer
    for _, processes in places:
        each.append(sum(private(pid) for pid in processes))
        proportional.append(sum(pages(pid).get("Pss", 0) for pid in processes))
    grown = (private(os.getpid()) - own) / count
    for place, _ in places:
        place.close()
    warm.close()
    left = [pid for pid in below([os.getpid()]) if pid not in before]
    return {
        "private": [one + max(grown, 0) for one in each],
        "pss": proportional,
        "processes": median(len(processes) for _, processes in places),
        "of_the_host": grown,
        "left": len(left),
    }
