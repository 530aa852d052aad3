"""Host, launcher, zygote, init and worker, killed or refused something at a step of their lives.

The steps are system calls, counted by strace. Here are those that once failed, or would do most
harm; `scripts/faults` walks all of them. None may hang, leave anything, or say what is not so.
docs/reports/faults.md has the table.
"""

import concurrent.futures
import queue

import pytest

import inject
from belljar.environment.store import cache_root

pytestmark = [
    pytest.mark.root_only,
    pytest.mark.native_only("a container is the engine's"),
    pytest.mark.skipif(inject.ABSENT, reason="there is no strace here"),
    pytest.mark.timeout(900),  # on a machine that has much else to do
]
POINTS = {
    "host": [("EMFILE", "socketpair", 2), ("EMFILE", "pidfd_open", 1), ("EAGAIN", "clone3", 1)],
    "start": [("ENOMEM", "mount", 3), ("KILL", "pivot_root", 1)],
    "guest": [("ENOMEM", "setns", 1), ("ENOMEM", "seccomp", 1), ("EPERM", "capset", 1)],
    "inside": [("KILL", "sendmsg", 3)],
}
LANES = 2


@pytest.mark.parametrize("stage", inject.STAGES)
def test_a_fault_at_a_step_neither_hangs_nor_leaks_nor_lies(backend, stage):
    stories = _in_lanes([inject.Point(stage, *words) for words in POINTS[stage]])
    assert [story for story in stories if story.problems] == []
    assert all(story.faults for story in stories), "a step was not met: is it called otherwise now?"


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
