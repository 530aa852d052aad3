"""The caller's Dockerfile becomes an image, once for each content of its directory.

The engine's classic builder does it: it needs nothing but one request, and every engine has it.
What only BuildKit understands has to be built with the docker command; the error says so.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import deque
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio

from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images import auth, pull
from belljar.backends.docker.images.context import Context, archive, read
from belljar.backends.docker.images.key import DOCKERFILE, IMAGE, KEY, LAYOUT, hashed, repository
from belljar.backends.docker.images.progress import Teller
from belljar.backends.docker.settings import Docker
from belljar.errors import EnvironmentBuildError
from belljar.text import printable

SHOWN_LINES = 20  # of what a failed step said
IDLE = 3600.0  # a step may be silent for long
MAX_NAME = 60  # characters of a directory's name in that of its image


async def wanted(docker: Docker) -> tuple[str, Context]:
    """The tag of the image, and the context it is built from."""
    assert docker.dockerfile is not None
    context = await anyio.to_thread.run_sync(read, Path(docker.dockerfile))
    key = hashed([LAYOUT, context.digest, docker.platform])
    return f"{repository(plain(context.directory.name))}:{key}", context


def plain(name: str) -> str:
    """A directory's name as a part of the name of an image.

    >>> plain("My Dir (2)"), plain("日本"), plain("")
    ('my-dir-2', 'dockerfile', 'dockerfile')
    """
    written = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return written[:MAX_NAME].strip("-") or "dockerfile"


async def build(engine: Engine, docker: Docker, tag: str, context: Context, teller: Teller) -> None:
    started = time.monotonic()
    size = f"{len(context.entries)} files, {context.size / 2**20:.1f} MiB"
    teller.say("resolving", f"building image {tag} from {context.dockerfile} ({size}), once")
    log = Log(teller)
    try:
        async with (
            aclosing(archive(context)) as data,
            engine.lines(
                "POST",
                "/build",
                query=_query(docker, tag, context),
                data=data,
                headers={"Content-Type": "application/x-tar", **await auth.all_known()},
                idle_timeout=IDLE,
            ) as lines,
        ):
            async for line in lines:
                log.take(line)
    except EngineError as error:
        if error.status == 0:
            raise
        raise _failed(context, error.message, log) from error
    if log.error:
        raise _failed(context, log.error, log)
    teller.say("finished", f"image {tag} built in {time.monotonic() - started:.1f} s")


def _query(docker: Docker, tag: str, context: Context) -> dict[str, object]:
    # Few, because the classic builder makes a step of each.
    labels = {
        IMAGE: "1",
        KEY: tag.rpartition(":")[2],
        DOCKERFILE: context.dockerfile,
    }
    return {
        "t": tag,
        "dockerfile": context.dockerfile,
        "version": "1",
        "rm": True,
        "forcerm": True,
        "pull": True if docker.pull == "always" else None,
        "platform": docker.platform,
        "networkmode": docker.build_network,
        "labels": json.dumps(labels),
    }


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # the builder paints standard error red


class Log:
    """What the builder says: steps for the display, the last lines for an error."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._layers = pull.Layers()
        self.lines: deque[str] = deque(maxlen=SHOWN_LINES)
        self.step = ""
        self.error = ""

    def take(self, line: dict[str, Any]) -> None:
        if "error" in line:
            detail = line.get("errorDetail")
            said = detail.get("message") if isinstance(detail, dict) else None
            self.error = printable(str(said or line["error"])).strip()
        elif "stream" in line:
            for text in str(line["stream"]).splitlines():
                self._take_text(printable(_COLOURS.sub("", text)))
        elif "status" in line:
            self._layers.take(line)
            self._teller.say("downloading", f"pulling{self._layers}")

    def _take_text(self, text: str) -> None:
        # Without how many there are: the labels that are added count as steps too.
        if match := re.match(r"(?:Step|STEP) (\d+)/\d+ ?: ?(.*)", text):
            self.step = f"step {match[1]}: {match[2]}"
            self.lines.clear()
            self._teller.say("installing", self.step)
        elif text.strip() and not re.match(r" ---> |Removing intermediate container ", text):
            self.lines.append(text)


_BUILDKIT = (
    r"requires BuildKit|[Uu]nknown flag|[Uu]nknown instruction|heredoc|"
    r"can't find .* stage|dockerfile parse error"
)


def _failed(context: Context, said: str, log: Log) -> EnvironmentBuildError:
    path = context.directory / context.dockerfile
    hint = None
    if re.search(_BUILDKIT, said):
        hint = (
            "the engine's classic builder does not understand this; if BuildKit does, build it "
            "with the docker command and name the image: `docker build -t NAME "
            f"{shlex.quote(str(context.directory))}` and image='NAME'"
        )
    elif re.search(r"no such host|dial tcp|i/o timeout|pull access denied|manifest", said):
        hint = f"the image in FROM could not be pulled; {pull.OFFLINE}"
    elif re.search(r"COPY failed|ADD failed|no such file or directory", said):
        hint = "what it copies must lie in its directory, and not be named in .dockerignore"
    what = f"building {path} failed: {said}"
    steps = [log.step, *log.lines] if log.step else []
    return EnvironmentBuildError("\n".join([what, *steps]), hint=hint)
