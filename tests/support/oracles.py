"""What the host sees of a hostile guest: canaries, counters, postures. Never the guest's word.

All of it is in `belljar.conformance`, which runs on the machines of users too; here it is told in
which setting this run is.
"""

import os

import setting
from belljar.conformance import canaries, processes
from belljar.conformance.canaries import ENVIRONMENT_SECRET, collect_output
from belljar.conformance.controls import Control
from belljar.conformance.posture import (
    NAMESPACES,
    STORE,
    descriptors,
    drift,
    posture,
    status,
    unusual,
)
from belljar.conformance.processes import (
    Counters,
    init_of,
    mounts,
    own_memory,
    tasks_below,
    threads,
    tree,
)
from belljar.conformance.programs import ESCAPES
from belljar.conformance.setting import NOBODY, ROOT, Setting

__all__ = [
    "ENVIRONMENT_SECRET",
    "ESCAPES",
    "NAMESPACES",
    "NOBODY",
    "ROOT",
    "SETTING",
    "STORE",
    "Canaries",
    "Control",
    "Counters",
    "collect_output",
    "descriptors",
    "drift",
    "init_of",
    "mounts",
    "own_memory",
    "posture",
    "status",
    "tasks_below",
    "threads",
    "tree",
    "unusual",
    "worker_of",
]

SETTING = Setting(
    backend=setting.BACKEND,
    runtime=setting.NAME.partition("-")[2] if setting.DOCKER else None,
    counted=setting.COUNTED,
)
# Before any zygote starts, so that an inherited one would be seen.
os.environ[canaries.VARIABLE] = ENVIRONMENT_SECRET


def Canaries():
    return canaries.Canaries(SETTING)


def worker_of(sandbox):
    return processes.worker_of(sandbox, gvisor=setting.GVISOR)
