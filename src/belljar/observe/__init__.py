"""Watching sandboxes: metrics, sampling, alerts, an audit log, traces. `enable` turns it on.

Names are imported at their first use: every process writes presence files, and most processes need
nothing else from here.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.observe.alerts import Alert, Alerts, Rules
    from belljar.observe.audit import Audit, AuditFailed
    from belljar.observe.metrics import Metrics
    from belljar.observe.sampling import Monitor, Sample
    from belljar.observe.setup import Observing, enable
    from belljar.observe.tracing import Tracing

_HOME = {
    "belljar.observe.alerts": ("Alert", "Alerts", "Rules"),
    "belljar.observe.audit": ("Audit", "AuditFailed"),
    "belljar.observe.setup": ("Observing", "enable"),
    "belljar.observe.metrics": ("Metrics",),
    "belljar.observe.sampling": ("Monitor", "Sample"),
    "belljar.observe.tracing": ("Tracing",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'belljar.observe' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Alert",
    "Alerts",
    "Audit",
    "AuditFailed",
    "Metrics",
    "Monitor",
    "Observing",
    "Rules",
    "Sample",
    "Tracing",
    "enable",
]
