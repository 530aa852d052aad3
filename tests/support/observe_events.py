"""Events as a sandbox tells them, made by hand: for tests of who listens, without a guest."""

from belljar import events
from belljar.backends.base import Location
from belljar.limits import Limits
from belljar.results.execution import (
    Call,
    CommandResult,
    Execution,
    FileChanges,
    Logs,
    Outcome,
    Usage,
)

USAGE = Usage(wall=0.01, cpu=0.01, peak_memory=1000, output_bytes=10)


def subject(id="bj-0123456789abcdef", *, environment="python", backend="native", **metadata):
    return events.Subject(
        id=id, backend=backend, environment=environment, metadata=metadata, limits=Limits()
    )


def execution(outcome=Outcome.ok, **fields):
    return Execution(
        **{
            "outcome": outcome,
            "text": None,
            "value": None,
            "results": (),
            "stdout": "",
            "stderr": "",
            "logs": Logs(stdout=(), stderr=()),
            "error": None,
            "exit_code": None,
            "signal": None,
            "execution_count": 1,
            "usage": USAGE,
            "state_preserved": True,
            "truncated": False,
            **fields,
        }
    )


def cell(code="1", *, of=None, outcome=Outcome.ok, stages=None, **fields):
    return events.CellEnded(
        subject=of or subject(),
        code=code,
        execution=execution(outcome, **fields),
        began=1000.0,
        seconds=0.02,
        stages=stages or {"policy": 0.0, "wait": 0.001, "run": 0.01},
    )


def call(name, *, ok=True):
    return Call(name=name, duration=0.001, ok=ok, argument_bytes=1, error=None if ok else "x: y")


def started(*, of=None, pid=None):
    return events.Started(
        subject=of or subject(),
        seconds=0.1,
        stages={"start": 0.09, "workspace": 0.01},
        whereabouts=Location(pid=pid),
    )


def command(cmd="true"):
    result = CommandResult(
        stdout="",
        stderr="",
        exit_code=0,
        signal=None,
        outcome=Outcome.ok,
        usage=USAGE,
        truncated=False,
    )
    return events.CommandEnded(subject=subject(), cmd=cmd, result=result)


def changed(*names):
    return FileChanges(created=tuple(names))
