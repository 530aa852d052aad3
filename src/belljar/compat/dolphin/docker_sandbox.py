"""DockerSandboxExecutor: sessions whose variables persist and whose files are on the host."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from belljar.backends import mounts
from belljar.backends.docker.settings import Docker, docker_settings
from belljar.compat import placement
from belljar.compat.dolphin import directory, sessions
from belljar.environment.environment import Environment, resolve
from belljar.errors import CannotTravel, InvalidOption, SandboxError
from belljar.limits import Limits
from belljar.policy import RULES, Policy
from belljar.runtime import wait

DEFAULT_IMAGE = "dolphin-python-sandbox"
MOUNT = "/sandbox"
MEMORY = "512m"
# "output" is kept of one call; after "idle" seconds an unused session gives its memory back.
FIXED_LIMITS = {"tmp": "100m", "output": "4m", "idle": 3600.0}
CPU_PERIOD = 100_000  # microseconds; the quota is counted against it
ENVIRONMENT = "data"
VARIABLE = "DOLPHIN_USE_DOCKER_SANDBOX"


def wants_docker() -> bool:
    """True if DOLPHIN_USE_DOCKER_SANDBOX asks for containers."""
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
        """`container_mount_base_dir`: the directory in the sandbox below which the files are, by
        the session's id (None: the files are at /sandbox). `environment`: an Environment or its
        name, instead of an image (None: "data"). `backend` None: docker if
        DOLPHIN_USE_DOCKER_SANDBOX=1."""
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
        self.sandbox_dir = directory.make_directory(
            self.sandbox_base_dir.absolute(), self.session_id
        )
        self._settings = {**options, "workspace": self.sandbox_dir}
        self._session: sessions.Session | None = None
        self._entering = threading.Lock()
        self._ahead = sessions.find_session(self.sandbox_dir, self._settings)
        if self._ahead is not None:
            self._ahead.start_ahead()

    @property
    def session_dir(self) -> Path:
        return self.sandbox_dir

    def _options(
        self, backend: str | Docker | None, environment: str | Environment | None
    ) -> dict[str, Any]:
        """The options of Sandbox. Raises RuntimeError if it could not be started here."""
        limits = {
            "memory": self.memory_limit,
            "cpus": self.cpu_quota / CPU_PERIOD,
            "timeout": self.timeout,
            **FIXED_LIMITS,
        }
        chosen_limits = (self.memory_limit, self.cpu_quota) != (MEMORY, CPU_PERIOD)
        Limits.coerce(limits)  # a bad limit is an error now, not at the first code
        options = self._place(backend, environment)
        native = options["backend"] == "native"
        if self.enable_network and native:
            raise InvalidOption(
                "enable_network=True needs docker, and this sandbox is native",
                hint='backend="docker", or leave the network off',
            )
        if not native:
            options["backend"] = replace(docker_settings(options["backend"]), named_user=True)
        return {
            **options,
            "limits": limits,
            "env": {"USER": "sandbox", "LOGNAME": "sandbox"},
            "workdir": self.container_mount_path,
            "network": "open" if self.enable_network else "none",
            # Warn only if a limit that the caller chose cannot be enforced.
            "strict": None if chosen_limits else False,
        }

    def _place(
        self, backend: str | Docker | None, environment: str | Environment | None
    ) -> dict[str, Any]:
        default = f"{DEFAULT_IMAGE}:latest"
        if environment is not None and self.full_image_name != default:
            raise InvalidOption(
                f"image_name={self.image_name!r} and environment= both say what the code finds",
                hint="give one of them",
            )
        if backend in (None, "auto") and wants_docker():
            backend = "docker"  # explicitly: never without a container then
        try:
            options = wait(
                placement.place,
                backend,
                image=self.full_image_name,
                default_image=default,
                environment=resolve(ENVIRONMENT if environment is None else environment),
                prefer_local=environment is None,
            )
            placement.check_backend(options)
            image = options.get("image")
            if image is not None and not wait(placement.has_image, image):
                raise RuntimeError(
                    f"Docker image '{self.full_image_name}' not found. Build it with: "
                    f"docker build -f Dockerfile.sandbox -t {self.full_image_name} ."
                )
            return options
        except InvalidOption:
            raise
        except SandboxError as error:
            raise RuntimeError(
                f"Docker is not available: {error.message}. Install Docker and ensure it is "
                f"running\n  hint: {error.hint or 'belljar doctor'}"
            ) from None

    def execute_code(self, code: str, context: Mapping[str, object] | None = None) -> str:
        """Run code in the session and return its output; a failure follows it, after a prefix.

        Variables stay for the next call. The entries of `context` become variables. Files below
        /sandbox are in `sandbox_dir` afterwards.
        """
        return self._execute(code, context)

    def execute_in(self, context: dict[str, Any], code: str) -> str:
        """`execute_code`, and copy the plain variables that the code has left into `context`."""
        return self._execute(code, context, fill=context)

    def _execute(
        self, code: str, context: Mapping[str, object] | None, fill: dict[str, Any] | None = None
    ) -> str:
        if not isinstance(code, str):
            return f"ERROR:\ncode is a str of Python, not {type(code).__name__}\n"
        allowed, message = validate_imports(code)
        if not allowed:
            kind = "EXECUTION" if message.startswith("Syntax error") else "IMPORT RESTRICTION"
            return f"{kind} ERROR:\n{message}"
        with self._entering:
            if self._session is None:
                # cleanup() may have removed it.
                directory.make_directory(self.sandbox_dir.parent, self.session_id)
                self._session = sessions.enter_session(self.sandbox_dir, self._settings)
            session = self._session
        try:
            return session.run(code, context, fill=fill)
        except CannotTravel as error:
            return f"ERROR:\nthe context cannot go into the sandbox: {error}\n"
        except SandboxError as error:
            return f"ERROR:\n{error}\n"

    # -- files ------------------------------------------------------------------------------

    def get_session_files(self) -> list[str]:
        """The files of the session, relative to its directory."""
        return directory.list_files(self.sandbox_dir)

    def read_session_file(self, filename: str) -> str:
        """The text of a file of the session."""
        return directory.read_file(self.sandbox_dir, filename)

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the sandbox: variables are gone, files stay. May be called twice; the next
        `execute_code` starts another sandbox."""
        with self._entering:
            session, self._session = self._session, None
            ahead, self._ahead = self._ahead, None
        if known := session or ahead:
            sessions.release_session(known, entered=session is not None)

    def cleanup(self) -> None:
        """Close the sandbox, and remove the session's directory."""
        self.close()
        directory.remove_tree(self.sandbox_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _mount_path(base: str | None, session_id: str) -> str:
    if base is None:
        return MOUNT
    try:
        return mounts.check_workdir(f"{os.fspath(base).rstrip('/')}/{session_id}")
    except (InvalidOption, TypeError):
        raise InvalidOption(
            f"container_mount_base_dir={base!r} cannot hold the files of a session",
            hint="use an absolute path that a sandbox does not have, such as /data or "
            "/mnt/sessions; not below /tmp, /usr, /etc and the like",
        ) from None


# -- sandboxed_python_interpreter keeps the executors of its sessions --------------------------

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

    A failure of the code or the sandbox is text in the result, not an exception. The plain
    variables that the code has left are in `context` afterwards. The session is kept for the next
    call, until it is idle for an hour, or 32 others were used since.
    """
    try:
        if not isinstance(context, dict):
            raise InvalidOption(f"context is a dict of variables, not {type(context).__name__}")
        if session_id is None:
            session_id = context.setdefault(sessions.SESSION_KEY, str(uuid.uuid4()))
        executor = _keep_executor(
            session_id=directory.check_session_id(session_id),
            sandbox_base_dir=sandbox_base_dir,
            image_name=image_name,
            image_tag=image_tag,
            backend=backend,
            environment=None if environment is None else resolve(environment),
        )
        return executor.execute_in(context, code)
    except (SandboxError, RuntimeError, ValueError, OSError) as error:
        return f"SANDBOX ERROR:\n{error}"


def _keep_executor(**arguments: Any) -> DockerSandboxExecutor:
    """The executor of these arguments, kept from an earlier call or new; closes the oldest ones."""
    key = (*arguments.values(), wants_docker())
    with _keeping:
        executor = _kept.pop(key, None)
    executor = executor or DockerSandboxExecutor(**arguments)
    with _keeping:
        _kept[key] = executor
        old = [_kept.popitem(last=False)[1] for _ in range(len(_kept) - MOST_KEPT)]
    for each in old:
        each.close()
    return executor


def close_sessions() -> None:
    """Close the sessions that sandboxed_python_interpreter keeps. Called at exit."""
    with _keeping:
        kept = [_kept.popitem()[1] for _ in range(len(_kept))]
    for executor in kept:
        executor.close()


atexit.register(close_sessions)

# -- what code may import: a hint for the model that wrote it, not the boundary -----------------

# A set, so that a program can add to it. A package has its import name and its distribution name
# here, as messages may quote either.
ALLOWED_LIBRARIES: set[str] = {
    # the language and its types
    *("__future__", "abc", "ast", "builtins", "collections", "contextlib", "copy", "dataclasses"),
    *("enum", "functools", "inspect", "itertools", "numbers", "operator", "types", "typing"),
    # numbers, dates, text
    *("array", "bisect", "calendar", "cmath", "datetime", "decimal", "fractions", "heapq", "math"),
    *("random", "statistics", "time", "zoneinfo", "difflib", "locale", "pprint", "re", "string"),
    *("textwrap", "unicodedata", "html", "xml", "email"),
    # data and files
    *("base64", "binascii", "bz2", "codecs", "configparser", "csv", "fnmatch", "glob", "gzip"),
    *("hashlib", "hmac", "io", "json", "lzma", "pathlib", "pickle", "secrets", "shelve", "shutil"),
    *("sqlite3", "struct", "tarfile", "tempfile", "uuid", "zipfile", "zlib"),
    # the process
    *("argparse", "asyncio", "concurrent", "gc", "http", "logging", "multiprocessing", "os"),
    *("platform", "queue", "socket", "ssl", "subprocess", "sys", "threading", "timeit"),
    *("traceback", "urllib", "warnings", "weakref", "webbrowser"),
    # for data
    *("numpy", "np", "pandas", "pd", "matplotlib", "plt", "scipy", "sklearn", "scikit-learn"),
    *("pyarrow", "pdfplumber", "fitz", "pymupdf", "docx", "python-docx", "pptx", "python-pptx"),
    *("openpyxl", "chardet", "magic", "python-magic"),
}

# Environment "data" has these.
_INSTALLED = (
    *("Standard Python library modules (most of them)", "numpy", "pandas", "matplotlib", "scipy"),
    *("scikit-learn (import as sklearn)", "openpyxl"),
)
# These are allowed, but no environment that comes with Belljar has them.
_MAYBE_INSTALLED = (
    *("pdfplumber", "pymupdf (import as fitz)", "python-docx (import as docx)"),
    *("python-pptx (import as pptx)", "chardet", "python-magic (import as magic)"),
)
_IMPORTS = ("BJ101", "BJ102")


def validate_imports(code: str) -> tuple[bool, str]:
    """Check that the code imports allowed libraries only: (allowed, why not).

    >>> validate_imports("import numpy as np")
    (True, '')
    >>> validate_imports("import requests")[0]
    False
    """
    if not isinstance(code, str):
        return False, f"The code is a str of Python, not {type(code).__name__}"
    report = _import_policy(frozenset(ALLOWED_LIBRARIES)).check(code)
    if report.allowed:
        return True, ""
    refused = sorted({each.message for each in report.findings if each.rule in _IMPORTS})
    if not refused:
        first = report.findings[0]
        return False, f"Syntax error in code: line {first.line}: {first.message}"
    allowed = "\n".join(f"- {name}" for name in _INSTALLED)
    maybe = "\n".join(f"- {name}" for name in _MAYBE_INSTALLED)
    return False, (
        "Import restriction violation: The following imports are not allowed: "
        f"{', '.join(refused)}\n\nAllowed libraries:\n{allowed}"
        f"\n\nAllowed if they are installed in the sandbox:\n{maybe}"
    )


@functools.lru_cache(maxsize=8)
def _import_policy(allowed: frozenset[str]) -> Policy:
    """A policy that checks imports only; the sandbox confines everything else."""
    others = {id: "off" for id, rule in RULES.items() if not rule.fixed and id not in _IMPORTS}
    return Policy.from_dict(
        {
            "name": "dolphin",
            "version": "1",
            "unknown": "allow",
            "imports": {"allow": sorted(name for name in allowed if name.isidentifier())},
            "rules": {**others, **dict.fromkeys(_IMPORTS, "deny")},
            "messages": dict.fromkeys(_IMPORTS, "{name}"),
        }
    )
