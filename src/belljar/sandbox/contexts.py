"""Contexts: interpreters of one sandbox that share its files and run at the same time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import anyio

from belljar.backends.event_loop import Lock
from belljar.errors import InvalidOption, SandboxError, suggests, unknown_option
from belljar.files.api import absolute_path
from belljar.protocol import wire
from belljar.sandbox.guest_session import GuestSession

if TYPE_CHECKING:
    from belljar.sandbox.lifecycle import Lifecycle
    from belljar.sandbox.run import Run

MOST = 64  # contexts of one sandbox


@dataclass(frozen=True, kw_only=True)
class Context:
    """An interpreter with variables of its own."""

    id: str
    name: str | None
    cwd: str


@dataclass(kw_only=True, eq=False)
class Interpreter:
    """What the host knows of one: which cell it runs, and how many it has run."""

    context: Context | None = None  # None: the sandbox's own
    number: int = 0  # on the wire
    session: GuestSession | None = None  # where the context is
    turn: Lock = field(default_factory=Lock)  # one cell after the other
    run: Run | None = None
    count: int = 0
    remarks: tuple[str, ...] = ()  # for the notes of the next Execution


@suggests
class AsyncContexts:
    """More interpreters of one sandbox: `run_code(code, context=...)`."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._made: dict[str, Interpreter] = {}  # by id
        self._last = 0

    async def create(self, name: str | None = None, *, cwd: str | None = None) -> Context:
        """Another interpreter, which starts in `cwd` (None: the workspace)."""
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidOption(f"the name of a context is a text, not {name!r}")
        workdir = self._lifecycle.workdir
        async with self._lifecycle.turn() as session:
            known = self._live()
            names = {*known, *(each.name for each in self._contexts())}
            if name is not None and name in names:
                raise InvalidOption(f"there is a context {name!r} already")
            if len(known) >= MOST:
                raise SandboxError(f"a sandbox has at most {MOST} contexts", hint="remove some")
            if session.shared:
                raise SandboxError(
                    "a sandbox that was forked has one context only", hint="close its forks"
                )
            self._last += 1
            context = Context(
                id=uuid.uuid4().hex[:16],
                name=name,
                cwd=absolute_path(cwd if cwd is not None else ".", workdir),
            )
            header = {"op": "make", "context": self._last, "cwd": context.cwd}
            try:
                answer, _ = await session.channel.call(wire.CONTEXT, header)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):  # no caller knows it
                    await self._remove(session, header["context"])
                raise
            if "error" in answer:
                raise SandboxError(f"no new context: {str(answer['error'])[:200]}")
            made = Interpreter(context=context, number=self._last, session=session)
            self._made[context.id] = made
        self._record("create", made)
        return context

    async def list(self) -> list[Context]:
        """All, the oldest first; not the sandbox's own."""
        self._live()
        return [*self._contexts()]

    async def restart(self, context: Context | str) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        made = self.find(context)
        async with self._lifecycle.turn() as session:
            await session.channel.call(wire.RESTART, {"context": made.number})
        self._record("restart", made)

    async def remove(self, context: Context | str) -> None:
        """End the interpreter, with what it has started."""
        made = self.find(context)
        async with self._lifecycle.turn() as session:
            self._made = {id: each for id, each in self._made.items() if each is not made}
            await self._remove(session, made.number)
        self._record("remove", made)

    def _record(self, operation: str, made: Interpreter) -> None:
        if made.context is not None:
            self._lifecycle.record("context", op=operation, **asdict(made.context))

    async def _remove(self, session: GuestSession, number: object) -> None:
        await session.channel.call(wire.CONTEXT, {"op": "remove", "context": number})

    def find(self, given: Context | str) -> Interpreter:
        """By the context, its id or its name."""
        if not isinstance(given, (Context, str)):
            what = type(given).__name__
            raise InvalidOption(f"context must be a Context, its id or its name, not a {what}")
        key = given.id if isinstance(given, Context) else given
        known = self._live()
        named = {each.context.name: each for each in known.values() if each.context is not None}
        found = known.get(key) or named.get(key)
        if found is None and (isinstance(given, Context) or not known):
            shown = key if isinstance(given, str) else given.name or key
            raise InvalidOption(
                f"unknown context {shown[:100]!r}",
                hint="it was removed, was lost with its guest or is of another sandbox; "
                "contexts.create() makes one",
            )
        if found is None:
            every = [*known, *(name for name in named if name is not None)]
            raise unknown_option("context", key, every)
        return found

    def check_alone(self) -> None:
        if self._live():
            raise SandboxError(
                "checkpoints and forks need a sandbox with one context",
                hint="remove the others: contexts.remove(id)",
            )

    def running(self) -> bool:
        return any(each.turn.locked() for each in self._made.values())

    def _live(self) -> dict[str, Interpreter]:
        """Those of the guest that lives. With a guest that was lost, its contexts are lost."""
        session = self._lifecycle.session
        alive = session is not None and session.alive
        kept = {id: each for id, each in self._made.items() if alive and each.session is session}
        self._made = kept
        return kept

    def _contexts(self) -> Sequence[Context]:
        return [each.context for each in self._made.values() if each.context is not None]
