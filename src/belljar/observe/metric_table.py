"""The metrics, as data: name, kind, labels, meaning. The collector and the docs are made of it.

No label takes its value from a guest. Each either has a fixed set of values, or the values come
from the host's own program and are capped: what comes after the first `MOST_VALUES` is "other".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from belljar.errors import SandboxError
from belljar.results.ending import Outcome

OTHER = "other"
MOST_VALUES = 64  # of one label whose values the host's program chooses
MOST_SANDBOXES = 1000  # of the label `sandbox`, if it is wanted

# Seconds. A warm cell takes about a millisecond, a container's start one or two seconds, and a
# cell as long as its time-out.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

STAGES = ("start", "workspace", "policy", "wait", "run", "total")
OUTCOMES = tuple(outcome.value for outcome in Outcome)


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    meaning: str
    optional: bool = False  # only if it was asked for


def _metric(
    name: str, kind: Literal["counter", "histogram", "gauge"], labels: str, meaning: str
) -> Metric:
    return Metric(
        name=f"belljar_{name}",
        kind=kind,
        labels=tuple(labels.split()),
        meaning=meaning,
        optional="sandbox" in labels.split(),
    )


METRICS = (
    _metric("cells_total", "counter", "outcome backend environment", "cells that ended"),
    _metric("cell_failures_total", "counter", "reason backend", "cells that Belljar failed at"),
    _metric("commands_total", "counter", "outcome backend", "commands that ended"),
    _metric("starts_total", "counter", "backend environment", "guests that were started"),
    _metric("start_failures_total", "counter", "reason backend", "guests that did not start"),
    _metric("ends_total", "counter", "reason backend", "sandboxes that ended"),
    _metric("refusals_total", "counter", "by backend", "what was refused, by policy or limits"),
    _metric("host_calls_total", "counter", "function result", "calls of the host's functions"),
    _metric("output_bytes_total", "counter", "backend", "written to stdout and stderr"),
    _metric("file_changes_total", "counter", "operation", "changes of files by the host"),
    _metric("alerts_total", "counter", "kind", "alerts that began"),
    _metric("pool_leases_total", "counter", "reason", "guests that pools gave to tenants"),
    _metric("pool_discarded_total", "counter", "reason", "guests of pools that were ended unused"),
    _metric("pool_start_failures_total", "counter", "reason", "guests of pools that did not start"),
    _metric("stage_seconds", "histogram", "stage backend", "how long a stage took"),
    _metric("pool_wait_seconds", "histogram", "reason", "how long a tenant waited for his guest"),
    _metric("sandboxes", "gauge", "backend", "live sandboxes of this process"),
    _metric("memory_bytes", "gauge", "backend", "memory of all live sandboxes"),
    _metric("cpus_in_use", "gauge", "backend", "processors that all live sandboxes keep busy"),
    _metric("processes", "gauge", "backend", "processes of all live sandboxes"),
    _metric("orphans", "gauge", "backend", "what killed processes left behind, at the last look"),
    _metric("pool_guests", "gauge", "state", "guests of pools: idle, starting, leased, ending"),
    _metric("pool_waiting", "gauge", "", "tenants who wait for a guest of a pool"),
    _metric("sandbox_memory_bytes", "gauge", "sandbox backend", "memory of one sandbox"),
    _metric("sandbox_memory_limit_bytes", "gauge", "sandbox backend", "its limit"),
    _metric("sandbox_cpus_in_use", "gauge", "sandbox backend", "processors that one keeps busy"),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def known_errors() -> frozenset[str]:
    """The names of our own exceptions: what else fails is "other"."""
    found, todo = set[str](), [SandboxError]
    while todo:
        kind = todo.pop()
        if kind.__module__ == SandboxError.__module__:
            found.add(kind.__name__)
            todo += kind.__subclasses__()
    return frozenset(found)


def reference() -> str:
    """The table of the reference page, in Markdown."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        asked = " (only with `per_sandbox=True`)" if metric.optional else ""
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning}{asked} |")
    return "\n".join(rows) + "\n"
