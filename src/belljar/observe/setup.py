"""`enable`: turn on metrics, alerts, audit and tracing in one call; `close()` turns them off."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Never, Self

from belljar.errors import InvalidOption, unknown_option
from belljar.observe import orphans
from belljar.observe.alerts import Alert, Alerts, Rules
from belljar.observe.audit import Audit
from belljar.observe.metrics import Metrics
from belljar.observe.sampling import Monitor, Repeating, Sample, check_seconds
from belljar.observe.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

ORPHANS_INTERVAL = 60.0  # seconds; it asks the container engine


class Observing:
    """What `enable` turned on: `metrics`, `monitor`, `alerts`, `audit`, `tracing`; None: off."""

    def __init__(self) -> None:
        self.metrics: Metrics | None = None
        self.metrics_port: int | None = None
        self.monitor: Monitor | None = None
        self.alerts: Alerts | None = None
        self.audit: Audit | None = None
        self.tracing: Tracing | None = None
        self._stack = ExitStack()

    def close(self) -> None:
        """Turn it all off. May be called twice."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def enable(
    *,
    audit: str | os.PathLike[str] | Audit | None = None,
    metrics: bool | Metrics = False,
    metrics_port: int | None = None,
    metrics_addr: str = "127.0.0.1",
    alerts: bool | Rules | None = None,
    on_alert: Callable[[Alert], None] | None = None,
    tracing: bool | TracerProvider = False,
    interval: float = 1.0,
    orphans_interval: float | None = ORPHANS_INTERVAL,
    **unknown: Never,
) -> Observing:
    """Watch the sandboxes of this process, until the returned handle is closed.

    `audit`: a path, or an Audit. `metrics`: count; with `metrics_port` also serve (0: a free
    port, see the handle's `metrics_port`). `alerts`: True or Rules; they go to the logger
    "belljar.alerts" and to `on_alert`. `tracing`: True, or a TracerProvider. `interval`: seconds
    between two samples, `orphans_interval` between two searches for orphans (None: never).

    with belljar.observe.enable(audit="audit.jsonl", metrics_port=9100, alerts=True):
        ...
    """
    for name in unknown:
        raise unknown_option("option of enable", name, enable.__kwdefaults__ or ())
    _check_outputs(audit, metrics, metrics_port, metrics_addr, tracing)
    _check_alerts(alerts, on_alert)
    check_seconds("interval", interval)
    if orphans_interval is not None:
        check_seconds("orphans_interval", orphans_interval)
    made = Observing()
    try:
        if audit is not None:
            made.audit = audit if isinstance(audit, Audit) else Audit(audit)
            made._stack.callback(made.audit.close)
            made.audit.subscribe()
        if tracing:
            made.tracing = Tracing(None if tracing is True else tracing)
            made._stack.callback(made.tracing.close)
            made.tracing.subscribe()
        if metrics or metrics_port is not None:
            made.metrics = metrics if isinstance(metrics, Metrics) else Metrics()
            made._stack.callback(made.metrics.close)
            made.metrics.subscribe()
        if alerts:
            rules = alerts if isinstance(alerts, Rules) else None
            made.alerts = Alerts(rules, *_alert_callbacks(made, on_alert))
        if made.metrics is not None or made.alerts is not None:
            _watch(made, interval, orphans_interval)
        if made.metrics is not None and metrics_port is not None:
            made.metrics_port = made.metrics.serve(metrics_port, metrics_addr)
    except BaseException:
        made.close()
        raise
    return made


def _check_outputs(
    audit: object, metrics: object, port: object, addr: object, tracing: object
) -> None:
    if audit is not None and not isinstance(audit, (str, os.PathLike, Audit)):
        raise InvalidOption(
            f"audit={audit!r} is neither a path nor an Audit", hint='such as audit="audit.jsonl"'
        )
    if not isinstance(metrics, (bool, Metrics)):
        raise InvalidOption(
            f"metrics={metrics!r} is neither True, False nor Metrics(...)",
            hint="metrics_port is the port to serve them on",
        )
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise InvalidOption(
            f"metrics_port={port!r} is not a port", hint="give a number up to 65535; 0: a free one"
        )
    if not isinstance(addr, str) or not addr:
        raise InvalidOption(f"metrics_addr={addr!r} is not an address", hint="such as 127.0.0.1")
    if not isinstance(tracing, bool) and not callable(getattr(tracing, "get_tracer", None)):
        raise InvalidOption(f"tracing={tracing!r} is neither True, False nor a TracerProvider")


def _check_alerts(alerts: object, on_alert: object) -> None:
    if alerts is not None and not isinstance(alerts, (bool, Rules)):
        raise InvalidOption(f"alerts={alerts!r} is neither True, False nor Rules(...)")
    if on_alert is None:
        return
    if not callable(on_alert):
        raise InvalidOption(
            f"on_alert={on_alert!r} cannot be called", hint="a function of one argument, the Alert"
        )
    if not alerts:
        raise InvalidOption("on_alert without alerts is never called", hint="add alerts=True")


def _alert_callbacks(
    made: Observing, callback: Callable[[Alert], None] | None
) -> list[Callable[..., None]]:
    def count(alert: Alert) -> None:
        if made.metrics is not None and not alert.ended:
            made.metrics.alerted(alert.kind)

    return [count] if callback is None else [count, callback]


def _watch(made: Observing, interval: float, orphans_interval: float | None) -> None:
    def sampled(samples: Mapping[str, Sample]) -> None:
        if made.alerts is not None:
            made.alerts.look(samples.values())

    made.monitor = Monitor(interval=interval, on_samples=[sampled])
    made._stack.callback(made.monitor.close)
    if made.metrics is not None:
        made.metrics.watch(made.monitor)
    if orphans_interval is not None:
        _watch_orphans(made, orphans_interval)
    made.monitor.start()


def _watch_orphans(made: Observing, interval: float) -> None:
    found: dict[tuple[str, ...], float] = {("native",): 0.0, ("docker",): 0.0}

    def look() -> None:
        left = orphans.find_orphans().leftovers
        running: list[str] = [each.backend for each in left if each.kind in orphans.RUNNING]
        found.update({(backend,): running.count(backend) for (backend,) in found})
        if made.alerts is not None:
            made.alerts.look(None, orphans=len(running))

    if made.metrics is not None:
        made.metrics.gauge_source("belljar_orphans", found.copy)
    # In a thread: a container engine may be slow.
    watch = Repeating(look, lambda: interval, what="searching for orphans", name="belljar-orphans")
    made._stack.callback(watch.close)
