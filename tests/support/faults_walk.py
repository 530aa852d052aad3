"""Walks through the points of inject.py, for scripts/faults: every one, or one in N."""

import argparse
import collections
import concurrent.futures
import itertools
import os
import queue
import sys
import tempfile

import census
import inject
from belljar.environment.store import cache_root

COLUMNS = ("points", "met", "all right", "refused", "host ended", "wrong")


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    stages = ", ".join(inject.STAGES)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {stages} (all)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one point in N (1)")
    parser.add_argument("--fault", action="append", metavar="NAME", help="KILL, ENOMEM, ... (all)")
    lanes = (os.cpu_count() or 1) + 1
    parser.add_argument("--lanes", type=int, default=lanes, metavar="N", help=f"at once ({lanes})")
    given = parser.parse_args()
    if unknown := set(given.stages) - set(inject.STAGES):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {stages}")
    return given


def main():
    given = arguments()
    census.become_subreaper()
    wrong = []
    table = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory(prefix="belljar-faults-") as directory:
        tempfile.tempdir = directory
        for stage in given.stages or inject.STAGES:
            todo = plan(stage, given)
            if given.fault and not todo.qsize():
                sys.exit(f"{stage}: no point has the fault {', '.join(given.fault)}")
            print(f"{stage}: {todo.qsize()} points", flush=True)
            for story in walk(todo, given.lanes):
                count(table[stage, story.point.fault], story)
                if story.problems:
                    wrong.append(story)
                    print(f"  {story.point} ({story.seconds:.0f} s):", *story.problems, flush=True)
    show(table)
    return 1 if wrong else 0


def plan(stage, given):
    """What there is to break, after a look at a life without faults. Neighbours are much alike: of
    each kind of call and fault, one in N, and at least one."""
    with inject.Nursery(cache_root()) as nursery:
        story = nursery.tell(inject.Point(stage, ""))
    if story.problems:
        raise SystemExit(f"{stage}: wrong without any fault: {story.problems}")
    todo = queue.SimpleQueue()
    points = inject.points(stage, story.log)
    for (fault, _), alike in itertools.groupby(points, lambda each: (each.fault, each.call)):
        if given.fault and fault not in given.fault:
            continue
        for point in list(alike)[:: given.every]:
            todo.put(point)
    return todo


def walk(todo, lanes):
    """Stories as they come, from several nurseries."""
    done = queue.SimpleQueue()
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        running = [pool.submit(_lane, todo, done) for _ in range(lanes)]
        while not all(lane.done() for lane in running) or not done.empty():
            try:
                yield done.get(timeout=0.5)
            except queue.Empty:
                continue
        for lane in running:
            lane.result()


def _lane(todo, done):
    with inject.Nursery(cache_root()) as nursery:
        while True:
            try:
                point = todo.get_nowait()
            except queue.Empty:
                return
            done.put(nursery.tell(point))


def count(row, story):
    row["points"] += 1
    row["met"] += bool(story.faults)
    if story.problems:
        row["wrong"] += 1
    else:
        row[{"all right": "all right", "it ended": "host ended"}.get(story.how, "refused")] += 1


def show(table):
    print(f"{'stage':8}{'fault':8}" + "".join(f"{name:>12}" for name in COLUMNS))
    for (stage, fault), row in table.items():
        print(f"{stage:8}{fault:8}" + "".join(f"{row[name]:12}" for name in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
