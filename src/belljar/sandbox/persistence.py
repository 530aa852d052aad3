"""What a sandbox leaves on the host: its files, if they are kept there, and the record of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence

import anyio.to_thread

from belljar.backends.base import Guest
from belljar.files.api import AsyncFiles
from belljar.files.workspace import HostWorkspace, open_session
from belljar.record import Recorder
from belljar.results.execution import Execution
from belljar.sandbox import value_transfer
from belljar.sandbox.channel import Channel
from belljar.sandbox.guest_session import Place
from belljar.sandbox.options import Options
from belljar.sandbox.run import Cell

MANY = 2**20  # bytes of a cell that are written down off the event loop


class Keeping:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._recorder = Recorder(options.record) if options.record is not None else None
        self._mirror: HostWorkspace | None = None
        self._begun = False

    @property
    def mirrors(self) -> bool:
        return self._options.workspace is not None or self._options.session is not None

    @property
    def saved(self) -> bool:
        """Whether all files were on the host after the last save."""
        return self._mirror is not None and self._mirror.saved

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        if self._recorder is not None:
            self._recorder.close()

    # -- files ------------------------------------------------------------------------------

    async def load(self, place: Place) -> None:
        """Bring the workspace in. Called when a guest has started."""
        if self.mirrors:
            if self._mirror is None:
                self._mirror = self._open_mirror()
            try:
                await self._mirror.load(self._files(place))
            except BaseException:
                self._mirror.close()
                self._mirror = None
                raise

    def _open_mirror(self) -> HostWorkspace:
        options, limit = self._options, self._options.limits.workspace
        if options.session is not None:
            return open_session(options.session, limit)
        return HostWorkspace(options.workspace or "", limit=limit)

    async def refresh(self, place: Place) -> None:
        """Bring in what changed on the host meanwhile. Called before each cell."""
        if self._mirror is not None:
            await self._mirror.refresh(self._files(place))

    async def save(self, place: Place | None) -> list[str]:
        """Bring out what changed; what could not be is said."""
        if self._mirror is None or place is None:
            return []
        if not place.alive:
            self._mirror.saved = False
            return [f"not everything was brought back to {self._mirror.path!r}: the guest died"]
        return await self._mirror.save(self._files(place))

    def _files(self, place: Place) -> AsyncFiles:
        return AsyncFiles(_Directly(self._options, place))

    # -- the record -------------------------------------------------------------------------

    def begin(self, functions: Sequence[str]) -> None:
        """Called before whatever is kept of a sandbox, at its start as a rule; also twice."""
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

    async def cell(self, cell: Cell, execution: Execution, *, began: float) -> list[str]:
        """Notes, if it could not be recorded. Called before the next one may begin."""
        if self._recorder is None:
            return []
        write = functools.partial(
            self._recorder.cell,
            code=cell.code,
            execution=execution,
            timeout=cell.given_timeout,
            began=began,
            env=list(cell.env),
            undo_on_error=cell.undo_on_error,
            script=cell.script,
        )
        if _size(execution) > MANY:
            await anyio.to_thread.run_sync(write)
        else:
            write()
        failed = self._recorder.failed
        return [f"the record is incomplete: {failed}"] if failed else []

    async def put(self, values: Mapping[str, object]) -> None:
        if self._recorder is not None:
            self._recorder.event("put", values=await value_transfer.for_record(values))

    def event(self, kind: str, **fields: object) -> None:
        if self._recorder is not None:
            kept = {k: bytes(v) if isinstance(v, memoryview) else v for k, v in fields.items()}
            self._recorder.event(kind, **kept)


def _size(execution: Execution) -> int:
    """About what there is to be written down of it."""
    parts = sum(len(part) for result in execution.results for part in result.raw.values())
    errors = sum(len(call.error or "") for call in execution.calls)
    return execution.usage.output_bytes + parts + errors


class _Directly:
    """A guest for those who carry its files while the sandbox itself is busy with it."""

    def __init__(self, options: Options, place: Place) -> None:
        self.limits, self.workdir = options.limits, options.workdir
        self._place = place

    @contextlib.asynccontextmanager
    async def using(self) -> AsyncIterator[tuple[Channel, Guest]]:
        yield self._place.channel, self._place.guest
