"""What a sandbox leaves on the host: its workspace, if that is kept there, and its record."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio.to_thread

from belljar.backends.base import Guest
from belljar.files.api import AsyncFiles
from belljar.files.script import Script
from belljar.files.workspace import HostWorkspace, open_session
from belljar.record import Recorder
from belljar.results.execution import Execution
from belljar.sandbox import value_transfer
from belljar.sandbox.channel import Channel
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.options import Options

MANY = 2**20  # bytes of a cell that are written down off the event loop


@dataclass(frozen=True, kw_only=True)
class Code:
    """What a caller gave to run_code, as a record keeps it."""

    script: Script
    env: Mapping[str, str]
    timeout: float | None  # None: that of the limits
    undo_on_error: bool
    context: str | None  # the id of the interpreter; None: the sandbox's own


class Persistence:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._recorder = Recorder(options.record) if options.record is not None else None
        self._mirror: HostWorkspace | None = None
        self._begun = False
        self.mirrors = options.workspace is not None or options.session is not None

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        if self._recorder is not None:
            self._recorder.close()

    async def keep(
        self, code: Code, execution: Execution, session: GuestSession | None, *, began: float
    ) -> Execution:
        """Bring the workspace out and record a cell, before the next one may begin."""
        notes = [*execution.notes, *await self.save(session)]
        saved = self._mirror is not None and self._mirror.saved if self.mirrors else None
        execution = replace(execution, notes=tuple(notes), saved=saved)
        if self._recorder is None:
            return execution
        write = functools.partial(
            self._recorder.cell,
            code=code.script.code,
            execution=execution,
            timeout=code.timeout,
            began=began,
            env=list(code.env),
            undo_on_error=code.undo_on_error,
            script=code.script,
            context=code.context,
        )
        if _size(execution) > MANY:
            await anyio.to_thread.run_sync(write)
        else:
            write()
        if failed := self._recorder.failed:
            notes.append(f"the record is incomplete: {failed}")
        return replace(execution, notes=tuple(notes))

    # -- files ------------------------------------------------------------------------------

    async def load(self, session: GuestSession) -> None:
        """Bring the workspace in. Called when a guest has started."""
        if self.mirrors:
            if self._mirror is None:
                options, limit = self._options, self._options.limits.workspace
                if options.session is not None:
                    self._mirror = open_session(options.session, limit)
                else:
                    self._mirror = HostWorkspace(options.workspace or "", limit=limit)
            try:
                await self._mirror.load(self._files(session))
            except BaseException:
                self._mirror.close()
                self._mirror = None
                raise

    async def refresh(self, session: GuestSession) -> None:
        """Bring in what changed on the host meanwhile. Called before each cell."""
        if self._mirror is not None:
            await self._mirror.refresh(self._files(session))

    async def save(self, session: GuestSession | None) -> list[str]:
        """Bring out what changed. Gives notes about what could not be brought out."""
        if self._mirror is None or session is None:
            return []
        if not session.alive:
            self._mirror.saved = False
            return [f"not all changes were copied back to {self._mirror.path!r}: the guest died"]
        return await self._mirror.save(self._files(session))

    def _files(self, session: GuestSession) -> AsyncFiles:
        return AsyncFiles(_Directly(self._options, session))

    # -- the record -------------------------------------------------------------------------

    def begin_record(self, functions: Sequence[str]) -> None:
        """Called before anything is recorded; a second call does nothing."""
        if self._recorder is not None and not self._begun:
            self._begun = True
            given = self._options
            self._recorder.begin(
                sandbox=given.id,
                backend=given.backend,
                environment=given.environment,
                limits=given.limits,
                env=given.env,
                functions=functions,
                metadata=given.metadata,
                workdir=given.workdir,
                host_files=[
                    *([given.workdir] if self.mirrors else []),
                    *(mount.guest for mount in given.mounts),
                ],
            )

    async def record_put(self, values: Mapping[str, object], context: str | None) -> None:
        if self._recorder is not None:
            kept = await value_transfer.encode_for_record(values)
            where = {} if context is None else {"context": context}
            self._recorder.event("put", values=kept, **where)

    def record_event(self, kind: str, **fields: object) -> None:
        if self._recorder is not None:
            kept = {k: bytes(v) if isinstance(v, memoryview) else v for k, v in fields.items()}
            self._recorder.event(kind, **kept)


def _size(execution: Execution) -> int:
    """About how many bytes there are to record."""
    parts = sum(len(part) for result in execution.results for part in result.raw.values())
    errors = sum(len(call.error or "") for call in execution.calls)
    return execution.usage.output_bytes + parts + errors


class _Directly:
    """Gives AsyncFiles the guest while the sandbox is busy with it."""

    def __init__(self, options: Options, session: GuestSession) -> None:
        self.limits, self.workdir = options.limits, options.workdir
        self._session = session

    @contextlib.asynccontextmanager
    async def using(self, *, watching: bool = False) -> AsyncIterator[tuple[Channel, Guest]]:
        yield self._session.channel, self._session.guest
