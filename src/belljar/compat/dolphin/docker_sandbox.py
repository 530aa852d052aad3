"""DockerSandboxExecutor: sessions whose variables persist and whose files are on the host."""

from __future__ import annotations

import atexit
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from belljar.backends import mounts
from belljar.backends.docker.settings import Docker
from belljar.compat import where
from belljar.compat.dolphin import directory, sessions
from belljar.compat.dolphin.libraries import ALLOWED_LIBRARIES as ALLOWED_LIBRARIES
from belljar.compat.dolphin.libraries import validate_imports
from belljar.environment.environment import Environment, resolve
from belljar.errors import InvalidOption, SandboxError
from belljar.limits import Limits
from belljar.sandbox.blocking import wait

DEFAULT_IMAGE = "dolphin-python-sandbox"
MOUNT = "/sandbox"
MEMORY = "512m"
TMP = "100m"
OUTPUT = "4m"  # of one call that is kept
CPU_PERIOD = 100_000  # microseconds; the quota is counted against it
ENVIRONMENT = "data"
VARIABLE = "DOLPHIN_USE_DOCKER_SANDBOX"
IDLE = 3600.0  # seconds after which a session that nobody uses gives its memory back


def wants_docker() -> bool:
    """Whether DOLPHIN_USE_DOCKER_SANDBOX asks for containers."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


class DockerSandboxExecutor:
    """A session: in a container if an engine answers, else natively.

    with DockerSandboxExecutor(session_id="my-session") as sandbox:
        print(sandbox.execute_code("print(6 * 7)"))
    """

    def __init__(
        self,
        session_id: str | None = None,
        sandbox_base_dir: str = "/tmp/sandboxes",
        image_name: str = DEFAULT_IMAGE,
        memory_limit: str = MEMORY,
        cpu_quota: int = CPU_PERIOD,
        enable_network: bool = False,
        timeout: float = 30,
        image_tag: str = "latest",
        container_mount_base_dir: str | None = None,
        *,
        backend: str | Docker | None = None,
        environment: str | Environment | None = None,
    ) -> None:
        """`container_mount_base_dir`: where the files are in the sandbox, followed by the
        session's id (None: at /sandbox). `environment`: an Environment or its name, in place of
        an image (None: "data"). `backend` None: docker if DOLPHIN_USE_DOCKER_SANDBOX=1."""
        self.session_id = directory.check_session_id(
            str(uuid.uuid4()) if session_id is None else session_id
        )
        self.sandbox_base_dir = Path(sandbox_base_dir)
        self.image_name, self.image_tag = image_name, image_tag
        self.full_image_name = f"{image_name}:{image_tag}"
        self.memory_limit, self.cpu_quota = memory_limit, cpu_quota
        self.enable_network, self.timeout = enable_network, timeout
        self.container_mount_path = _mount_path(container_mount_base_dir, self.session_id)
        options = self._options(backend, environment)
        self.sandbox_dir = directory.make(self.sandbox_base_dir.absolute(), self.session_id)
        self._settings = {**options, "workspace": self.sandbox_dir}
        self._session: sessions.Session | None = None
        self._entering = threading.Lock()
        # So that the first code need not wait for the start.
        self._ahead = sessions.start_ahead(self.sandbox_dir, self._settings)

    @property
    def session_dir(self) -> Path:
        return self.sandbox_dir

    def _options(
        self, backend: str | Docker | None, environment: str | Environment | None
    ) -> dict[str, Any]:
        """For Sandbox. Raises RuntimeError where it could not be started."""
        limits = {
            "memory": self.memory_limit,
            "cpus": self.cpu_quota / CPU_PERIOD,
            "timeout": self.timeout,
            "tmp": TMP,
            "output": OUTPUT,
            "idle": IDLE,
        }
        Limits.coerce(limits)  # said now, not at the first code
        placed = self._placed(backend, environment)
        if self.enable_network and placed.backend == "native":
            raise InvalidOption(
                "enable_network=True needs docker, and this sandbox is native",
                hint='backend="docker", or leave the network off',
            )
        options = dict(placed.options)
        chosen = options.get("environment")
        if placed.backend == "docker" and isinstance(chosen, Environment):
            # A container imports for itself alone: what the code does not need is not waited for.
            # Natively the imports are done once, for all sandboxes of the process.
            options["environment"] = replace(chosen, preload=(), warmup="")
        if placed.backend == "docker":
            given = options["backend"]
            settings = given if isinstance(given, Docker) else Docker()
            options["backend"] = replace(settings, named_user=True)
        return {
            **options,
            "limits": limits,
            "workdir": self.container_mount_path,
            "network": "open" if self.enable_network else "none",
            # A limit that was chosen and cannot be enforced gets a warning, a default does not.
            "strict": False
            if (self.memory_limit, self.cpu_quota) == (MEMORY, CPU_PERIOD)
            else None,
        }

    def _placed(
        self, backend: str | Docker | None, environment: str | Environment | None
    ) -> where.Placed:
        default = f"{DEFAULT_IMAGE}:latest"
        if environment is not None and self.full_image_name != default:
            raise InvalidOption(
                f"image_name={self.image_name!r} and environment= both say what the code finds",
                hint="give one of them",
            )
        if backend in (None, "auto") and wants_docker():
            backend = "docker"  # by word: never without a container then
        try:
            placed = where.place_now(
                backend,
                image=self.full_image_name,
                default_image=default,
                environment=resolve(ENVIRONMENT if environment is None else environment),
                prefer_local=environment is None,
            )
            if placed.backend == "docker":
                wait(where.ask_engine, "/version", timeout=where.PING_TIMEOUT)
            else:
                from belljar.backends.native.backend import check_host

                check_host()
            image = placed.options.get("image")
            missing = image is not None and not wait(where.has_image, str(image))
        except InvalidOption:
            raise
        except SandboxError as error:
            raise RuntimeError(
                f"Docker is not available: {error.message}. Install Docker and ensure it is "
                f"running\n  hint: {error.hint or 'belljar doctor'}"
            ) from None
        if missing:
            raise RuntimeError(
                f"Docker image '{self.full_image_name}' not found. Build it with: "
                f"docker build -f Dockerfile.sandbox -t {self.full_image_name} ."
            )
        return placed

    def execute_code(self, code: str, context: Mapping[str, object] | None = None) -> str:
        """Run code in the session and give its output; failures are in it, after a prefix.

        Variables stay for the next time. The entries of `context` become variables. Files below
        /sandbox are in `sandbox_dir` afterwards.
        """
        return self._execute(code, context)

    def execute_in(self, context: dict[str, Any], code: str) -> str:
        """The same, and the plain variables that the code has left are in `context` afterwards."""
        return self._execute(code, context, fill=context)

    def _execute(
        self,
        code: str,
        context: Mapping[str, object] | None,
        *,
        fill: dict[str, Any] | None = None,
    ) -> str:
        if not isinstance(code, str):
            return f"ERROR:\ncode is a str of Python, not {type(code).__name__}\n"
        allowed, message = validate_imports(code)
        if not allowed:
            kind = "EXECUTION" if message.startswith("Syntax error") else "IMPORT RESTRICTION"
            return f"{kind} ERROR:\n{message}"
        with self._entering:
            if self._session is None:
                directory.make(self.sandbox_dir.parent, self.session_id)  # cleanup() removed it
                self._session = sessions.enter(self.sandbox_dir, self._settings)
            session = self._session
        try:
            return session.run(code, context, fill=fill)
        except SandboxError as error:
            return sessions.problem(error)

    # -- files ------------------------------------------------------------------------------

    def get_session_files(self) -> list[str]:
        """The files of the session, relative to its directory."""
        return directory.files(self.sandbox_dir)

    def read_session_file(self, filename: str) -> str:
        """The text of a file of the session."""
        return directory.read(self.sandbox_dir, filename)

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End the sandbox: variables are gone, files stay. May be called twice, and used again."""
        with self._entering:
            session, self._session = self._session, None
            ahead, self._ahead = self._ahead, None
        if session is not None:
            sessions.leave(session)
        elif ahead is not None:
            sessions.forget(ahead)

    def cleanup(self) -> None:
        """End the sandbox, and remove the session's directory."""
        self.close()
        directory.remove(self.sandbox_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _mount_path(base: str | None, session_id: str) -> str:
    if base is None:
        return MOUNT
    try:
        return mounts.check_workdir(f"{os.fspath(base).rstrip('/')}/{session_id}")
    except (InvalidOption, TypeError):
        raise InvalidOption(
            f"container_mount_base_dir={base!r}: the files of a session cannot be there",
            hint="an absolute path where a sandbox has nothing of its own, such as /data or "
            "/mnt/sessions; not below /tmp, /usr, /etc and the like",
        ) from None


# -- one function, without an object to keep ---------------------------------------------------

MOST_KEPT = 32
_kept: OrderedDict[tuple[object, ...], DockerSandboxExecutor] = OrderedDict()
_keeping = threading.Lock()


def sandboxed_python_interpreter(
    code: str,
    context: dict[str, Any],
    session_id: str | None = None,
    image_name: str = DEFAULT_IMAGE,
    image_tag: str = "latest",
    *,
    backend: str | Docker | None = None,
    sandbox_base_dir: str = "/tmp/sandboxes",
    environment: str | Environment | None = None,
) -> str:
    """Run code in the session that `session_id` names, or that belongs to the context.

    Never raises for what goes wrong with the code or the sandbox: it is in the text. The plain
    variables that the code has left are in `context` afterwards. The session is kept for the next
    call, until it is idle for an hour, or 32 others were used since.
    """
    try:
        if not isinstance(context, dict):
            raise InvalidOption(f"context is a dict of variables, not {type(context).__name__}")
        if session_id is None:
            session_id = context.setdefault(sessions.SESSION_KEY, str(uuid.uuid4()))
        name = directory.check_session_id(session_id)
        chosen = None if environment is None else resolve(environment)
        executor = _keep(name, image_name, image_tag, backend, sandbox_base_dir, chosen)
        return executor.execute_in(context, code)
    except (SandboxError, RuntimeError, ValueError, OSError) as error:
        return f"SANDBOX ERROR:\n{error}"


def _keep(
    session_id: str,
    image_name: str,
    image_tag: str,
    backend: str | Docker | None,
    base: str,
    environment: str | Environment | None,
) -> DockerSandboxExecutor:
    key = (session_id, image_name, image_tag, backend, base, environment, wants_docker())
    with _keeping:
        executor = _kept.pop(key, None)
    if executor is None:
        executor = DockerSandboxExecutor(
            session_id,
            base,
            image_name,
            image_tag=image_tag,
            backend=backend,
            environment=environment,
        )
    with _keeping:
        _kept[key] = executor
        old = [_kept.popitem(last=False)[1] for _ in range(len(_kept) - MOST_KEPT)]
    for each in old:
        each.close()
    return executor


def close_sessions() -> None:
    """End the sessions that sandboxed_python_interpreter keeps. Called at exit."""
    with _keeping:
        kept = list(_kept.values())
        _kept.clear()
    for executor in kept:
        executor.close()


atexit.register(close_sessions)
