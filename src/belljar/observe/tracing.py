"""OpenTelemetry spans: `sandbox.start` and `run_code`, children of the caller's current span.

The span of a cell is current while the cell runs, so spans of host functions that the code calls
are its children. Code and output are not attributes; the hash of the code is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from belljar import __version__, events
from belljar.errors import SandboxError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

Attributes = Mapping[str, str | bool | int | float]
_EndOfSpan = events.Started | events.StartFailed | events.CellEnded | events.CellFailed


@dataclass(frozen=True, eq=False)
class _Open:
    """A span that has begun in this task."""

    name: str
    sandbox: str
    span: Span
    token: Token[Context]


_open: ContextVar[tuple[_Open, ...]] = ContextVar("belljar_spans", default=())


class Tracing:
    """Makes spans. `provider`: an OpenTelemetry TracerProvider (default: the global one)."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        trace = require_opentelemetry()
        self._trace = trace
        self._tracer = trace.get_tracer("belljar", __version__, tracer_provider=provider)
        self._subscription: events.Subscription | None = None

    def subscribe(self) -> Self:
        """Make spans from now on. May be called twice."""
        if self._subscription is None:
            self._subscription = events.subscribe(self.observe)
        return self

    def observe(self, event: events.Event) -> None:
        match event:
            case events.Starting():
                self._begin("sandbox.start", event, {})
            case events.CellStarting():
                code = event.code.encode("utf-8", "surrogatepass")
                hashed = hashlib.sha256(code).hexdigest()
                said: Attributes = {"belljar.code.sha256": hashed, "belljar.code.bytes": len(code)}
                self._begin("run_code", event, said)
            case events.Started():
                stages = {f"belljar.stage.{name}": took for name, took in event.stages.items()}
                self._end("sandbox.start", event, stages)
            case events.StartFailed():
                self._end("sandbox.start", event, {})
            case events.CellEnded():
                self._end("run_code", event, _describe_cell(event))
            case events.CellFailed():
                self._end("run_code", event, {})

    def _begin(self, name: str, event: events.Event, more: Attributes) -> None:
        from opentelemetry import context

        span = self._tracer.start_span(
            name, attributes={**_describe_subject(event.subject), **more}
        )
        token = context.attach(self._trace.set_span_in_context(span))
        _open.set((*_open.get(), _Open(name, event.subject.id, span, token)))

    def _end(self, name: str, event: _EndOfSpan, more: Attributes) -> None:
        span = self._take(name, event.subject.id)
        if span is None:  # it began before subscribe()
            began = time.time_ns() - int(event.seconds * 1e9)
            span = self._tracer.start_span(name, start_time=began)
        span.set_attributes({**_describe_subject(event.subject), **more})
        status = self._trace.StatusCode
        if isinstance(event, (events.StartFailed, events.CellFailed)):
            span.record_exception(event.error)
            span.set_status(status.ERROR, type(event.error).__name__)
        elif isinstance(event, events.CellEnded) and not event.execution.ok:
            span.set_status(status.ERROR, event.execution.outcome.value)
        span.end()

    def _take(self, name: str, sandbox: str) -> Span | None:
        from opentelemetry import context

        opened = _open.get()
        if not opened or (opened[-1].name, opened[-1].sandbox) != (name, sandbox):
            return None
        _open.set(opened[:-1])
        context.detach(opened[-1].token)
        return opened[-1].span

    def close(self) -> None:
        """Stop making spans. May be called twice."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    def __enter__(self) -> Self:
        return self.subscribe()

    def __exit__(self, *exception: object) -> None:
        self.close()


def _describe_subject(subject: events.Subject) -> dict[str, str | bool | int | float]:
    said: dict[str, str | bool | int | float] = {
        "belljar.sandbox": subject.id,
        "belljar.backend": subject.backend,
        "belljar.environment": subject.environment,
    }
    if "owner" in subject.metadata:
        said["belljar.owner"] = subject.metadata["owner"]
    return said


def _describe_cell(event: events.CellEnded) -> Attributes:
    done = event.execution
    said: dict[str, str | bool | int | float] = {
        "belljar.outcome": done.outcome.value,
        "belljar.execution_count": done.execution_count,
        "belljar.state_preserved": done.state_preserved,
        "belljar.output.bytes": done.usage.output_bytes,
        "belljar.calls": len(done.calls),
    }
    said |= {f"belljar.stage.{name}": took for name, took in event.stages.items()}
    if done.usage.cpu is not None:
        said["belljar.cpu.seconds"] = done.usage.cpu
    if done.usage.peak_memory is not None:
        said["belljar.memory.peak"] = done.usage.peak_memory
    report = done.policy
    if report is not None:
        said["belljar.policy"] = report.policy
        said["belljar.policy.verdict"] = report.verdict.value
        said["belljar.policy.findings"] = len(report.findings)
    return said


def require_opentelemetry() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise SandboxError(
            "tracing needs the package opentelemetry-api", hint="pip install opentelemetry-api"
        ) from error
    return trace
