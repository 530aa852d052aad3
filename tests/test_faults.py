"""Host, launcher, zygote, init and worker, killed or refused something at a step of their lives.

The steps are system calls, counted by strace: a first run tells which there are. A sample of them
is taken here, and all of them by `scripts/faults`. None may hang, leave anything, or say what is
not so. docs/faults.md has the table.
"""

import concurrent.futures
import queue
import random

import pytest

import inject
from belljar.environment_store import cache_root

pytestmark = [
    pytest.mark.root_only,
    pytest.mark.native_only("a container is the engine's"),
    pytest.mark.skipif(inject.ABSENT, reason="there is no strace here"),
    pytest.mark.timeout(900),  # on a machine that has much else to do
]
SEED = 7
# Where each stage once failed, or where a failure would do most harm; the rest is drawn.
ALWAYS = {
    "host": [("EMFILE", "socketpair", 2), ("EMFILE", "pidfd_open", 1), ("EAGAIN", "clone3", 1)],
    "start": [("ENOMEM", "mount", 3), ("KILL", "pivot_root", 1)],
    "guest": [("ENOMEM", "setns", 1), ("ENOMEM", "seccomp", 1), ("EPERM", "capset", 1)],
    "inside": [("KILL", "sendmsg", 3)],
}
DRAWN = {"host": 9, "start": 6, "guest": 9, "inside": 7}
LANES = 2


@pytest.mark.parametrize("stage", inject.STAGES)
def test_a_fault_at_a_step_neither_hangs_nor_leaks_nor_lies(backend, stage):
    with inject.Nursery(cache_root()) as nursery:
        story = nursery.tell(inject.Point(stage, ""))
    assert story.problems == ()
    stories = _in_lanes(_sample(stage, story.log))
    assert [story for story in stories if story.problems] == []
    met = [story for story in stories if story.faults]
    # How often a call is made differs a little from run to run.
    assert len(met) >= len(stories) * 0.7


def _in_lanes(points):
    """Some at once: half of the time something is waited for."""
    todo = queue.SimpleQueue()
    for point in points:
        todo.put(point)
    with concurrent.futures.ThreadPoolExecutor(LANES) as lanes:
        lots = [lanes.submit(_lane, todo) for _ in range(LANES)]
        return [story for lot in lots for story in lot.result()]


def _lane(todo):
    stories = []
    with inject.Nursery(cache_root()) as nursery:
        while True:
            try:
                point = todo.get_nowait()
            except queue.Empty:
                return stories
            stories.append(nursery.tell(point))


def _sample(stage, log):
    """A few of each stage, of different calls, always the same."""
    draw = random.Random(SEED)
    by_kind = {}
    for point in inject.points(stage, log):
        by_kind.setdefault((point.fault, point.call), []).append(point)
    kinds = draw.sample(sorted(by_kind), min(DRAWN[stage], len(by_kind)))
    chosen = [draw.choice(by_kind[kind]) for kind in kinds]
    known = [inject.Point(stage, *words) for words in ALWAYS[stage]]
    return dict.fromkeys([*known, *chosen])
