"""The conversation with a build container: program and inputs go in, lines of JSON come out.

In: the modules of the program (`BOOTSTRAP` reads them), one line of JSON that says what to build,
then the files it names in their order: uv, this host's index settings, wheels.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import anyio
import anyio.lowlevel

from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.images import build_script, index
from belljar.backends.docker.images.build_script import SECRETS, WORK
from belljar.backends.docker.images.image_store import ImagePlan, repository_name
from belljar.backends.docker.images.index import BuildSettings
from belljar.backends.docker.settings import DEFAULT, Docker
from belljar.backends.docker.stream import AttachedStream
from belljar.environment import addresses
from belljar.environment.addresses import hide_credentials
from belljar.environment.requirement import hide_secrets
from belljar.environment.uv import find_uv
from belljar.environment.uv_build import (
    BuildProgress,
    Listener,
    Step,
    open_listener,
    report_line,
)
from belljar.errors import EnvironmentBuildError, SandboxError
from belljar.protocol.wire import WireError
from belljar.text import printable

USER_ID = 1000
FILE_CHUNK = 256 * 1024
SILENCE = 120.0  # seconds; the container reports at least every ten that it is alive
MAX_LINE = 4 * 1024 * 1024
MOST_SAID = 16 * 1024 * 1024  # bytes in all; a build of hundreds of packages needs less than one

Progress = Listener | Literal["auto"] | None


class Reporter:
    """Reports the progress of one image; makes all text safe to show."""

    def __init__(self, name: str, listener: Listener, *, prints: bool) -> None:
        self._name = name
        self._listener = listener
        self._prints = prints
        self._secrets: frozenset[str] = frozenset()

    def hide(self, secrets: Iterable[str]) -> None:
        """Show none of these from now on."""
        self._secrets |= frozenset(secrets)

    def _clean(self, text: str) -> str:
        return printable(hide_credentials(text, self._secrets)).replace("\n", " ")

    def say(self, step: Step, text: str) -> None:
        self._listener(BuildProgress(environment=self._name, step=step, text=self._clean(text)))

    def note(self, text: str) -> None:
        """Report something on a line that stays on the terminal."""
        if self._prints:
            print(f"belljar: note: {self._clean(text)}", file=sys.stderr, flush=True)
        else:
            self.say("resolving", f"note: {text}")


@contextmanager
def reporting(name: str, progress: Progress) -> Iterator[Reporter]:
    with open_listener(progress) as listener:
        yield Reporter(name, listener, prints=progress == "auto")


# -- what is sent -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BuildOrder:
    """What is to be built, and how."""

    plan: ImagePlan
    key: str
    base: Mapping[str, Any]  # as inspected
    docker: Docker = DEFAULT

    @property
    def container(self) -> str:
        return f"belljar-build-{self.key}"

    @property
    def tag(self) -> str:
        return f"{repository_name(self.plan.environment.name)}:{self.key}"


def collect_inputs(order: BuildOrder) -> tuple[dict[str, Any], BuildSettings]:
    """The line of JSON, and the settings with all files. Blocks: looks at files of this host."""
    settings = index.collect_settings(os.environ, order.docker.ca_bundle)
    environment = order.plan.environment
    settings.secrets |= index.find_secrets(environment.packages)
    uv = Path(find_uv())
    if _is_built_for(uv, str(order.base.get("Architecture", ""))):
        settings.files[f"{SECRETS}/uv"] = uv
    packages = []
    for number, package in enumerate(environment.packages):
        if package.startswith("/"):  # a wheel of this host
            wheel = Path(package)
            package = f"{WORK}/wheels/{number}/{wheel.name}"
            settings.files[package] = wheel
        packages.append(package)
    request = {
        "python": order.plan.python,
        "env": settings.env,
        "arguments": [
            *settings.arguments,
            *(() if environment.allow_builds else ("--only-binary", ":all:")),
        ],
        "packages": packages,
        "files": [
            (path, len(content) if isinstance(content, bytes) else content.stat().st_size)
            for path, content in settings.files.items()
        ],
        "uid": USER_ID,
        "description": {
            "name": environment.name,
            "key": order.key,
            "packages": [hide_secrets(each) for each in environment.packages],
        },
    }
    return request, settings


_MACHINES = {"amd64": 62, "arm64": 183, "386": 3, "arm": 40, "ppc64le": 21, "s390x": 22}


def _is_built_for(binary: Path, architecture: str) -> bool:
    """True if the file is a program for this machine; the container tries if it runs."""
    with binary.open("rb") as file:
        head = file.read(20)
    machine = int.from_bytes(head[18:20], "big" if architecture == "s390x" else "little")
    return head[:4] == b"\x7fELF" and machine == _MACHINES.get(architecture)


# Run by PID 1 of the container. Reads modules, each behind its name and size; the last is the
# program, which reads the rest itself.
BOOTSTRAP = (
    "import sys, types\n"
    "name = ''\n"
    "while name != '__main__':\n"
    "    name, size = sys.stdin.buffer.readline().decode().split()\n"
    "    module = types.ModuleType(name)\n"
    "    sys.modules.setdefault(name, module)\n"
    "    exec(compile(sys.stdin.buffer.read(int(size)), name, 'exec'), vars(module))\n"
)


async def stream_inputs(
    request: Mapping[str, Any], files: Iterable[Path | bytes]
) -> AsyncGenerator[bytes]:
    for name, module in ((addresses.__name__, addresses), ("__main__", build_script)):
        program = await anyio.to_thread.run_sync(Path(str(module.__file__)).read_bytes)
        yield f"{name} {len(program)}\n".encode() + program
    yield json.dumps(request).encode() + b"\n"
    for content, (path, left) in zip(files, request["files"], strict=True):
        if isinstance(content, bytes):
            yield content
            continue
        # Closed by `with`, not in a thread: a cancelled task cannot wait for one.
        with content.open("rb") as file:
            while left:
                piece = await anyio.to_thread.run_sync(file.read, min(FILE_CHUNK, left))
                if not piece:
                    raise EnvironmentBuildError(f"{content} changed while it was read ({path})")
                left -= len(piece)
                yield piece


# -- what comes back ----------------------------------------------------------------------------

_NOT_UNDERSTOOD = "the container sent something that is not a report of the build"
# What the program reports at its end; labels are made from it.
_FACTS = {"python": re.compile(r"3\.[0-9a-z.+-]{1,30}"), "lock": re.compile(r"[0-9a-f]{64}")}


@dataclass(frozen=True)
class Failure:
    """Why a build failed."""

    message: str
    kind: str = ""  # "python", "root", "uv", "install", "start", "ended" or ""
    lines: tuple[str, ...] = ()  # uv's messages


class BuildStream:
    def __init__(self, connection: Connection, reporter: Reporter) -> None:
        self._stream = AttachedStream(connection, sealed=False)
        self._reporter = reporter
        self._error: SandboxError | None = None  # in what is sent

    async def run(self, pieces: AsyncGenerator[bytes]) -> Mapping[str, Any] | Failure:
        """Send everything and listen to the end; return the facts that the program reports."""
        end: Mapping[str, Any] | Failure = Failure("the build broke off", "ended")
        async with anyio.create_task_group() as group:
            group.start_soon(self._send, pieces, group.cancel_scope)
            end = await self._listen()
            group.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        return end

    async def _send(self, pieces: AsyncGenerator[bytes], scope: anyio.CancelScope) -> None:
        try:
            async with aclosing(pieces):  # it has files open
                async for piece in pieces:
                    await self._stream.send(piece)
        except OSError:
            return  # the container has ended, and its last report says why
        except SandboxError as error:
            # Kept, because a task group would wrap it into a group.
            self._error = error
            scope.cancel()

    async def _listen(self) -> Mapping[str, Any] | Failure:
        said, rest = 0, b""
        while True:
            # A container that always has more must not keep others on this event loop waiting.
            await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(SILENCE) as waiting:
                try:
                    data = await self._stream.receive()
                except WireError as error:
                    return Failure(str(error), "ended")
            if waiting.cancelled_caught:
                return Failure(f"the container said nothing for {SILENCE:g} s", "ended")
            if not data:
                words = self._stream.last_words.splitlines()
                return Failure("the container ended", "ended", tuple(words))
            said += len(data)
            if said > MOST_SAID:
                return Failure(f"the container sent more than {MOST_SAID} bytes", "ended")
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE:
                return Failure(_NOT_UNDERSTOOD, "ended")
            for line in lines:
                # Written by the base image's own Python, or by what a package's build has started.
                try:
                    end = self._handle(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError):
                    return Failure(_NOT_UNDERSTOOD, "ended")
                if end is not None:
                    return end

    def _handle(self, event: object) -> Mapping[str, Any] | Failure | None:
        if not isinstance(event, dict):
            raise TypeError(event)
        if "line" in event:
            report_line(str(event["line"]).strip(), self._reporter.say)
        elif "step" in event:
            steps = get_args(Step)
            self._reporter.say(steps[steps.index(event["step"])], str(event["text"]))
        elif "failed" in event:
            lines = tuple(map(str, event["lines"]))
            return Failure(str(event["failed"]), str(event["kind"]), lines)
        elif "done" in event:
            facts = {name: event["done"][name] for name in _FACTS}
            if not all(_FACTS[name].fullmatch(fact) for name, fact in facts.items()):
                raise ValueError(facts)
            return facts
        return None
