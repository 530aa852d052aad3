"""Builds the caller's Dockerfile, once for each content of its directory; and renders one for an
Environment.

The engine's classic builder is used: it needs only one request, and every engine has it. A file for
BuildKit must be built with the docker command; the error says so.
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
from belljar.backends.docker.images import pull
from belljar.backends.docker.images.build_script import ROOT
from belljar.backends.docker.images.build_stream import USER_ID, Reporter
from belljar.backends.docker.images.context import Context, archive, read_context
from belljar.backends.docker.images.image_store import (
    DOCKERFILE,
    IMAGE,
    KEY,
    LAYOUT,
    ImagePlan,
    hash_parts,
    repository_name,
)
from belljar.backends.docker.settings import Docker
from belljar.environment.addresses import hide_credentials
from belljar.environment.environment import BUILTIN
from belljar.environment.requirement import hide_secrets
from belljar.errors import EnvironmentBuildError, InvalidOption
from belljar.text import printable

SHOWN_LINES = 20  # of what a failed step said
IDLE = 3600.0  # seconds; a step may be silent for long
MAX_NAME = 60  # characters of a directory's name in the image's name


async def plan_dockerfile(docker: Docker) -> tuple[str, Context]:
    """The tag of the image, and the context it is built from."""
    assert docker.dockerfile is not None
    context = await anyio.to_thread.run_sync(read_context, Path(docker.dockerfile))
    key = hash_parts([LAYOUT, context.digest, docker.platform])
    return f"{repository_name(directory_as_name(context.directory.name))}:{key}", context


def directory_as_name(name: str) -> str:
    """A directory's name as part of an image's name.

    >>> directory_as_name("My Dir (2)"), directory_as_name("日本"), directory_as_name("")
    ('my-dir-2', 'dockerfile', 'dockerfile')
    """
    written = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return written[:MAX_NAME].strip("-") or "dockerfile"


async def build_dockerfile(
    engine: Engine, docker: Docker, tag: str, context: Context, reporter: Reporter
) -> None:
    started = time.monotonic()
    size = f"{len(context.entries)} files, {context.size / 2**20:.1f} MiB"
    reporter.say("resolving", f"building image {tag} from {context.dockerfile} ({size}), once")
    log = BuildLog(reporter)
    try:
        async with (
            aclosing(archive(context)) as data,
            engine.lines(
                "POST",
                "/build",
                query=_query(docker, tag, context),
                data=data,
                headers={"Content-Type": "application/x-tar", **await pull.build_auth_header()},
                idle_timeout=IDLE,
            ) as lines,
        ):
            async for line in lines:
                log.take(line)
    except EngineError as error:
        if error.status == 0:
            raise
        raise _build_error(context, error.message, log) from error
    if log.error:
        raise _build_error(context, log.error, log)
    reporter.say("finished", f"image {tag} built in {time.monotonic() - started:.1f} s")


def _query(docker: Docker, tag: str, context: Context) -> dict[str, object]:
    # Few: the classic builder makes a step of each.
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


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # the builder prints standard error in red


class BuildLog:
    """The builder's output: steps for the display, the last lines for an error."""

    def __init__(self, reporter: Reporter) -> None:
        self._teller = reporter
        self._layers = pull.PullProgress()
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
        # Without the number of steps: Belljar's labels count as steps too.
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


def _build_error(context: Context, said: str, log: BuildLog) -> EnvironmentBuildError:
    path = context.directory / context.dockerfile
    hint = None
    if re.search(_BUILDKIT, said):
        hint = (
            "the engine's classic builder does not understand this; if BuildKit does, build it "
            "with the docker command and use the image: `docker build -t NAME "
            f"{shlex.quote(str(context.directory))}` and image='NAME'"
        )
    elif re.search(r"no such host|dial tcp|i/o timeout|pull access denied|manifest", said):
        hint = f"the image in FROM could not be pulled; {pull.OFFLINE}"
    elif re.search(r"COPY failed|ADD failed|no such file or directory", said):
        hint = "files that it copies must be in its directory and not in .dockerignore"
    what = f"building {path} failed: {said}"
    steps = [log.step, *log.lines] if log.step else []
    return EnvironmentBuildError("\n".join([what, *steps]), hint=hint)


_TEMPLATE = """\
# The environment {name} as an image. Needs BuildKit. From the directory of this file{wheels}:
#
#   docker build -t NAME --build-arg BASE={base} \\
#     --secret id=ca,src=CA_BUNDLE.pem --secret id=index,src=INDEX.env .
#
# Both secrets may be left out, and become part of no layer. CA_BUNDLE.pem: certificates to trust.
# INDEX.env: where packages come from, a line each, such as UV_DEFAULT_INDEX='https://...'.
# Then: Sandbox(image="NAME"{preload})

ARG BASE={base}
FROM ${{BASE}}
USER 0:0
RUN --mount=type=tmpfs,target=/tmp \\
    --mount=type=secret,id=ca \\
    --mount=type=secret,id=index \\
{mounts}    set -eu; umask 022; \\
    if [ -e /run/secrets/ca ]; then \\
        export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca; \\
    fi; \\
    if [ -e /run/secrets/index ]; then set -a; . /run/secrets/index; set +a; fi; \\
    export UV_CACHE_DIR=/opt/.uv-cache UV_PYTHON_DOWNLOADS=never PATH="/tmp/uv/bin:$PATH"; \\
    command -v uv >/dev/null || python3 -m pip install --quiet --target /tmp/uv uv; \\
    uv venv --python python3 {root}; \\
    printf '%s\\n' {packages} > /tmp/requirements.in; \\
    uv pip compile --python {root}/bin/python --generate-hashes --no-header --no-annotate \\
        {only_wheels}--quiet -o {root}/belljar.lock /tmp/requirements.in >/dev/null; \\
    uv pip install --python {root}/bin/python {only_wheels}-r {root}/belljar.lock; \\
    rm -rf "$UV_CACHE_DIR"; \\
    {root}/bin/python -m compileall -qq -j 0 --invalidation-mode unchecked-hash \\
        -x /tests/ {root}/lib || true; \\
    mkdir -p /workspace; chown {uid}:{uid} /workspace
ENV PATH={root}/bin:$PATH VIRTUAL_ENV={root}
WORKDIR /workspace
USER {uid}:{uid}
ENTRYPOINT []
CMD ["{root}/bin/python"]
"""


def render_dockerfile(plan: ImagePlan) -> str:
    """A Dockerfile that builds the same image, for use in the caller's CI. Passwords in addresses
    of packages are left out."""
    environment = plan.environment
    if not environment.packages:
        raise InvalidOption(
            f"environment {environment.name!r} has no packages: its image is {plan.base}"
        )
    wheels = [hide_secrets(each) for each in environment.packages if each.startswith("/")]
    packages = [
        f"/run/wheels/{hide_secrets(each)}" if each.startswith("/") else hide_credentials(each)
        for each in environment.packages
    ]
    preload = ""
    if BUILTIN.get(environment.name) == environment:
        preload = f", environment={environment.name!r}"
    elif environment.preload:
        modules = list(environment.preload)
        preload = f", environment=Environment({environment.name!r}, preload={modules!r})"
    mounts = "".join(
        f"    --mount=type=bind,source={each},target=/run/wheels/{each} \\\n" for each in wheels
    )
    return _TEMPLATE.format(
        name=printable(environment.name),
        wheels=f", with {', '.join(wheels)} in it" if wheels else "",
        base=plan.base,
        preload=preload,
        mounts=mounts,
        packages=" ".join(map(shlex.quote, packages)),
        only_wheels="" if environment.allow_builds else "--only-binary :all: ",
        root=ROOT,
        uid=USER_ID,
    )
