"""SdkContainer: a container that the caller made with the Docker SDK, for a terminal in it.

It belongs to the caller: Belljar neither confines nor removes it, and only the caller's limits
hold. Each command is an exec of the engine, as the container's user, never a privileged one. The
container needs bash, and nothing else. A command that takes too long, or writes too much, is killed
from inside, as an engine has no call for that.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio
import anyio.lowlevel

from belljar.backends.docker.client.engine_errors import EngineError
from belljar.compat.openmanus.config import OUTPUT as OUTPUT_LIMIT
from belljar.compat.openmanus.config import SandboxSettings
from belljar.compat.openmanus.core.exceptions import SandboxError
from belljar.compat.placement import across, find_engine
from belljar.limits import parse_size
from belljar.results.execution import CommandResult, Outcome, Usage
from belljar.sandbox.run import OnText, Stream
from belljar.sandbox.shell import AsyncShell

if TYPE_CHECKING:
    from belljar.backends.docker.client.engine import Connection, Engine

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 64 * 1024
PIECE = 64 * 1024  # characters of a file that one exec can write
KILL_TIMEOUT = 20.0
END_TIMEOUT = 10.0  # until an engine knows the status of what has ended
LOOK = 0.02  # seconds between two looks for it
PROCESS = "__bj_process"  # the variable with the path of the file that bash writes its pid to

# Kills the session of the process whose pid is in the file $0, and all its descendants.
_KILL = r"""
read -r top < "$0" && [[ $top =~ ^[1-9][0-9]*$ && $top != 1 ]] || exit 0
found=" $top " more=1
kill -STOP "$top"
while ((more)); do
    more=0
    for each in /proc/[0-9]*/stat; do
        { read -r line < "$each"; } 2>/dev/null || continue
        pid=${line%% *} rest=(${line##*) })
        [[ $found != *" $pid "* ]] || continue
        if [[ ${rest[3]} == "$top" || $found == *" ${rest[1]} "* ]]; then
            kill -STOP "$pid"
            found+="$pid " more=1
        fi
    done
done 2>/dev/null
kill -KILL $found 2>/dev/null
"""


def is_sdk_container(given: object) -> bool:
    """True for what `docker.from_env().containers.get(...)` returns. Does not import the SDK."""
    return isinstance(getattr(given, "id", None), str) and callable(
        getattr(given, "exec_run", None)
    )


class SdkContainer:
    """What a terminal needs of a container, and the Host of its shell: runs programs by execs of
    the engine. Only `do` may be used outside the runtime's loop."""

    alive = True  # the engine says at each command whether the container still runs
    timeout: float = SandboxSettings.timeout
    workdir = "/"

    def __init__(self, container_id: str) -> None:
        self.id = container_id
        self._engine: Engine | None = None

    async def do(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do one operation in the container, from any event loop."""
        return await across(function, *args, **kwargs)

    def shell(self, cwd: str, env: Mapping[str, str]) -> AsyncShell:
        return AsyncShell.on(self, cwd=cwd, env=env)

    async def make_dir(self, path: str) -> None:
        await self.check(["mkdir", "-p", "--", path])

    async def perform(
        self,
        argv: Sequence[str],
        *,
        shown: str = "",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> CommandResult:
        variables = dict(env or {})
        process = ""
        if directory := variables.get("__bj_dir"):  # a command of the shell, which can be killed
            process = variables[PROCESS] = f"{directory}.pid"
            first, option, line = argv
            argv = [first, option, f'builtin echo $$ >| "${PROCESS}"; {line}']
        run = _Exec(on_stdout, on_stderr)
        engine = await self._find_engine()
        body = {
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "WorkingDir": "/",
            "AttachStdout": True,
            "AttachStderr": True,
        }
        made = await engine.request("POST", f"/containers/{self.id}/exec", body=body)
        path = f"/exec/{made['Id']}"
        connection = await engine.upgrade(f"{path}/start", body={"Detach": False, "Tty": False})
        try:
            with anyio.move_on_after(timeout) as timer:
                await run.receive(connection)
            if timer.cancelled_caught or run.truncated:
                run.stopped_for = Outcome.output_limit if run.truncated else Outcome.timeout
                await self._kill(process, run, connection)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._kill(process, run, connection)
            raise
        finally:
            connection.close()
        return await run.result(await self._status(engine, path))

    async def _kill(self, process: str, run: _Exec, connection: Connection) -> None:
        """Kill the command, and read its output meanwhile: an engine reports the end of an exec
        only after it has delivered the output."""
        run.stopped_for = run.stopped_for or Outcome.killed
        with anyio.move_on_after(KILL_TIMEOUT):
            async with anyio.create_task_group() as group:
                group.start_soon(run.receive, connection)
                if process:
                    await self.perform(["bash", "-c", _KILL, process])
                else:
                    group.cancel_scope.cancel()  # a helper command, which ends by itself

    async def _find_engine(self) -> Engine:
        """The engine, after a check that it has the container."""
        if self._engine is not None:
            return self._engine
        engine = find_engine()
        try:
            await engine.request("GET", f"/containers/{self.id}/json")
        except EngineError as error:
            if error.status != 404:
                raise
            raise EngineError(
                f"No such container at the engine {engine.endpoint}: {self.id}",
                status=404,
                hint="DOCKER_HOST names the engine; does the SDK's client use the same?",
            ) from None
        self._engine = engine
        return engine

    async def _status(self, engine: Engine, path: str) -> int:
        with anyio.move_on_after(END_TIMEOUT):
            while True:
                found: dict[str, Any] = await engine.request("GET", f"{path}/json")
                if not found.get("Running") and isinstance(found.get("ExitCode"), int):
                    return int(found["ExitCode"])
                await anyio.sleep(LOOK)
        raise SandboxError(
            f"the engine did not report how a command in container {self.id[:12]} ended",
            hint="is the container paused, or the engine stuck?",
        )

    async def check(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        """Run a program and return its output. Raises SandboxError if it fails."""
        result = await self.perform(argv, timeout=KILL_TIMEOUT, env=env)
        if not result.ok:
            raise SandboxError(
                f"{argv[0]} failed in container {self.id[:12]}: {result.stderr.strip()[:1000]}"
            )
        return result.stdout

    # -- files of the shell -----------------------------------------------------------------

    async def read(self, path: str, size: int) -> bytes | None:
        line = 'IFS= read -r -d "" -n "$1" text < "$0" || [[ -n $text ]] && printf %s "$text"'
        found = await self.perform(["bash", "-c", line, path, str(size)], timeout=KILL_TIMEOUT)
        return found.stdout.encode() if found.ok else None

    async def write(self, path: str, text: str) -> None:
        line = 'umask 077; printf %s "$text" '
        for at in range(0, max(len(text), 1), PIECE):
            env = {"text": text[at : at + PIECE]}
            await self.check(["bash", "-c", f'{line} {">>" if at else ">|"} "$0"', path], env)

    async def remove(self, path: str) -> None:
        await self.check(["rm", "-rf", "--", path, f"{path}.pid"])


class _Exec:
    """One program: what it has written, and how it ended."""

    def __init__(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        from belljar.backends.docker.stream import ERROR, OUTPUT, Demultiplexer

        self._pieces = Demultiplexer()
        order: list[str] = []
        streams = (Stream(on_stdout, "stdout", order), Stream(on_stderr, "stderr", order))
        self._streams = dict(zip((OUTPUT, ERROR), streams, strict=True))
        self._room = parse_size(OUTPUT_LIMIT, field="output")
        self._written = 0
        self._began = time.monotonic()
        self.stopped_for: Outcome | None = None

    @property
    def truncated(self) -> bool:
        return self._room < 0

    async def receive(self, connection: Connection) -> None:
        """Read its output until it ends or has written too much. A stopped program is read to its
        end, and the output is dropped."""
        while self.stopped_for is not None or not self.truncated:
            await anyio.lowlevel.checkpoint()
            try:
                data = connection.recv(CHUNK)
            except BlockingIOError:
                await connection.wait_readable()
                continue
            if not data:
                return
            for kind, piece in self._pieces.split(data):
                self._written += len(piece)
                if self._room >= 0 and kind in self._streams:
                    await self._streams[kind].feed(bytes(piece[: self._room]))
                    self._room -= len(piece)

    async def result(self, status: int) -> CommandResult:
        for stream in self._streams.values():
            await stream.feed(b"", final=True)
        stdout, stderr = ("".join(stream.chunks) for stream in self._streams.values())
        return CommandResult(
            stdout=stdout,
            stderr=stderr,
            exit_code=status,
            signal=None,
            outcome=self.stopped_for or (Outcome.exit if status else Outcome.ok),
            usage=Usage(
                wall=time.monotonic() - self._began,
                cpu=None,
                peak_memory=None,
                output_bytes=self._written,
            ),
            truncated=self.truncated,
        )
