"""The processes of a live sandbox, as the host numbers them."""

from __future__ import annotations

from belljar.conformance.processes import descendants, wait_until
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.sandbox import AsyncSandbox


def init_of(sandbox: Sandbox | AsyncSandbox) -> int:
    """The first process of the guest; with gVisor, its kernel. 0: it is not on this machine."""
    inner = sandbox._sandbox if isinstance(sandbox, Sandbox) else sandbox
    session = inner._session
    return int(getattr(session.guest, "pid", 0)) if session is not None else 0


def worker_of(sandbox: Sandbox | AsyncSandbox, *, gvisor: bool = False) -> int:
    """The process that runs the cells: the one child of init that is not a command. With gVisor,
    the host sees no more than gVisor's kernel, which is what `init_of` gives."""
    init = init_of(sandbox)
    if gvisor:
        return init
    children = wait_until(
        lambda: [p for p in descendants(init) if p.parent == init], what="a worker"
    )
    return min(children, key=lambda p: p.started).pid
