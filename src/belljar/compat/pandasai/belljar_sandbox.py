"""BelljarSandbox: where PandasAI runs generated code; `Agent(frames, sandbox=BelljarSandbox())`.
DockerSandbox: the same with the signature of pandasai_docker's class.

One sandbox serves many executions, and none sees another: between two of them the interpreter is
replaced, processes are killed and files removed, which takes milliseconds. If that fails, the
sandbox is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Self

from pandasai.constants import DEFAULT_CHART_DIRECTORY
from pandasai.sandbox import Sandbox

from belljar.backends.docker.settings import Docker, docker_settings
from belljar.compat import placement
from belljar.compat.pandasai import answers
from belljar.compat.pandasai.answers import NO_SQL, NOT_RUNNING, BadResult, BadSyntax, make_failure
from belljar.compat.pandasai.exchange import (
    SCRUB,
    explain_missing_name,
    fetch_picture,
    fetch_result,
    guard_queries,
    is_function,
    preparation_code,
    put_data,
)
from belljar.compat.placement import HeadStart
from belljar.compat.query_process import Bounds, QueryProcess
from belljar.environment.environment import Environment
from belljar.errors import FileError, InvalidOption, SandboxClosed, StartError
from belljar.limits import Limits
from belljar.policy import source
from belljar.policy.document import Caps
from belljar.results.execution import Execution
from belljar.runtime import wait
from belljar.sandbox.blocking import Sandbox as Jar

logger = logging.getLogger("belljar")

SQL = "execute_sql_query"
SKILL_TIMEOUT = 60.0  # seconds that a skill may take

# The sandboxes whose code waits for a host function in this thread.
_calling: ContextVar[tuple[object, ...]] = ContextVar("belljar-pandasai-calling", default=())


class BelljarSandbox(Sandbox):
    """Runs generated code in Belljar's sandbox, natively or on an engine.

    `timeout` (seconds) and `memory` are short for `limits`. Charts are written to `charts` (None:
    PandasAI's own exports/charts), queries may take `sql_timeout` seconds. `last_execution` has the
    details of the last run, such as what the code printed.
    """

    def __init__(
        self,
        *,
        backend: str | Docker | None = None,
        environment: str | Environment = "data",
        limits: Limits | Mapping[str, object] | None = None,
        timeout: float | None = None,
        memory: int | str | None = None,
        charts: str | os.PathLike[str] | None = None,
        sql_timeout: float = 60.0,
    ) -> None:
        super().__init__()
        self._started: bool = False
        self._jar: Jar | None = None
        self._turn = threading.Lock()
        self._mark = object()  # identifies this sandbox without a reference to it
        self._fresh = False  # True until code has run in it
        self._files: dict[str, str] = {}  # transferred files, by name
        self.last_execution: Execution | None = None
        self._backend = backend
        self._environment = environment
        self._limits = _limits(limits, timeout, memory)
        charts = DEFAULT_CHART_DIRECTORY if charts is None else charts
        self._charts = answers.chart_directory(charts)
        self._queries = QueryProcess(Bounds(seconds=sql_timeout, result=self._limits.memory))
        self._places = [{"limits": self._limits, **place} for place in self._choose()]
        # Not with a limit whose clock would run before the caller starts the sandbox.
        early = self._limits.lifetime is None and self._limits.idle is None
        self._early = self._begin() if early else None

    def _choose(self) -> list[dict[str, Any]]:
        """The options of Sandbox that say where it may run, the first choice first."""
        return [{"backend": self._backend or "auto", "environment": self._environment}]

    # -- start and stop ---------------------------------------------------------------------

    def _begin(self) -> HeadStart:
        """Start the sandbox in the background, and the query process."""
        early = HeadStart(self._places)
        self._queries.start()
        return early

    def start(self) -> None:
        """Start the sandbox, if it does not run. `execute` calls this too."""
        if self._started:
            return
        early, self._early = self._early, None
        try:
            # After a failed start in the background, try again: the cause may have gone.
            jar = early.take() if early is not None and not early.failed else None
            self._jar = jar or self._new_jar()
        except BaseException:
            self._queries.stop()
            raise
        self._fresh = True
        self._started = True

    def _new_jar(self) -> Jar:
        jar = self._begin().take()
        if jar is None:
            raise StartError("the sandbox ended as soon as it was started")
        return jar

    def stop(self) -> None:
        """Kill the sandbox and what runs in it. It can be started again."""
        jar, self._jar = self._jar, None
        early, self._early = self._early, None
        self._started = False
        self._files.clear()
        try:
            if jar is not None:
                jar.kill()
            if early is not None:
                early.close()
        finally:
            self._queries.stop()  # after the code, which could start it again

    @property
    def _container(self) -> Jar | None:
        """By the name that it has in pandasai_docker."""
        return self._jar

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __del__(self) -> None:
        # PandasAI never calls stop(). At the end of the process the runtime kills all sandboxes.
        jar = getattr(self, "_jar", None)
        if jar is not None and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                placement.kill_soon([jar._sandbox])

    # -- code -------------------------------------------------------------------------------

    def _exec_code(self, code: str, environment: dict[str, Any]) -> dict[str, Any]:
        """Run generated code, and return its `result`.

        Functions of `environment` run on the host when the code calls them; modules are imported in
        the sandbox, data is copied into it. Raises CodeFailed or another error that PandasAI's loop
        knows.
        """
        if self._mark in _calling.get():
            raise RuntimeError("a skill cannot run code in the sandbox that called it")
        with self._turn:
            if self._jar is None:
                raise RuntimeError(NOT_RUNNING)
            try:
                self._compile_code(code)
            except SyntaxError as error:
                raise BadSyntax(str(error)) from error
            try:
                return self._run(self._clean_jar(self._jar), code, environment)
            except SandboxClosed as error:  # its lifetime is over; the next execute() restarts it
                self.stop()
                raise RuntimeError(NOT_RUNNING) from error

    def _compile_code(self, code: str) -> None:
        """Parse the code. The original compiles it, and a few hundred characters of nested
        `finally` then make gigabytes of bytecode on the host."""
        try:
            source.refuse(code, Caps())
            source.parse(code)
        except source.Problem as problem:
            told = problem.told.removeprefix("(").removesuffix(")")
            raise SyntaxError(f"Syntax error in code: {told} (line {problem.where[0]})") from None

    def _clean_jar(self, jar: Jar) -> Jar:
        """The sandbox, without any trace of earlier code."""
        if not self._fresh:
            if jar.commands.run(["sh", "-c", SCRUB], timeout=30).ok:
                jar.restart()
            else:
                jar.kill()
                self._jar = jar = self._new_jar()
            for name, text in self._files.items():  # as they were given, without changes by code
                jar.files.write(f"/tmp/{name}", text)
        self._fresh = False
        return jar

    def _run(self, jar: Jar, code: str, environment: Mapping[str, Any]) -> dict[str, Any]:
        no_sql = threading.Event()
        left_out = put_data(jar, environment)
        jar.run_code(preparation_code(code, environment)).raise_for_outcome()
        with self._exposed(jar, environment, no_sql):
            self.last_execution = execution = jar.run_code(code)
        if not execution.ok:
            if no_sql.is_set():
                raise RuntimeError(NO_SQL) from make_failure(execution)
            raise make_failure(execution, explain_missing_name(execution, left_out))
        return answers.check_answer(
            fetch_result(jar, execution), functools.partial(self._chart, jar)
        )

    @contextlib.contextmanager
    def _exposed(
        self, jar: Jar, environment: Mapping[str, Any], no_sql: threading.Event
    ) -> Iterator[None]:
        """Expose the functions of `environment` to the code, inside the `with` only.

        They refer to the agent, and the agent to this sandbox. If they stayed exposed, the cycle
        would keep an unused sandbox alive.
        """

        def missing(sql_query: str) -> None:
            no_sql.set()
            raise RuntimeError(NO_SQL)

        functions = {name: each for name, each in environment.items() if is_function(name, each)}
        sql = functions.get(SQL)
        functions[SQL] = missing if sql is None else guard_queries(sql, self._queries)
        for name, function in functions.items():
            timeout = self._queries.bounds.seconds + 5 if name == SQL else SKILL_TIMEOUT
            marked = function if inspect.iscoroutinefunction(function) else self._marked(function)
            jar.expose(marked, name, timeout=timeout)
        try:
            yield
        finally:
            for name in functions:
                jar.expose(_gone(name), name)

    def _marked(self, function: Callable[..., object]) -> Callable[..., object]:
        """Wrap the function so that `_calling` has this sandbox's mark while it runs."""
        mark = self._mark

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            token = _calling.set((*_calling.get(), mark))
            try:
                return function(*args, **kwargs)
            finally:
                _calling.reset(token)

        return call

    def _chart(self, jar: Jar, path: str) -> str:
        """Copy a chart to the host; the path is one of the guest."""
        try:
            data = fetch_picture(jar, path)
            if data is None and self.last_execution is not None:
                shown = [each.png for each in self.last_execution.results if each.png]
                data = shown[-1] if shown else None
            if data is None:
                raise ValueError("no such file was saved, and no figure shown")
            answers.check_png(data)
        except (FileError, ValueError) as error:
            raise BadResult(f"result['value'] is {path[:200]!r}, and there: {error}") from error
        return str(answers.save_chart(data, path, self._charts))

    # -- files ------------------------------------------------------------------------------

    def transfer_file(self, csv_data: Any, filename: str = "file.csv") -> None:
        """Write a frame as CSV to /tmp of the sandbox, where generated code can read it."""
        if self._jar is None:
            raise RuntimeError(NOT_RUNNING)
        if filename in ("", ".", "..") or "/" in filename or "\0" in filename:
            raise InvalidOption(f"{filename!r} is not a file name", hint="it is a name in /tmp")
        self._files[filename] = csv_data.to_csv(index=False)
        self._jar.files.write(f"/tmp/{filename}", self._files[filename])


def _limits(
    limits: Limits | Mapping[str, object] | None,
    timeout: float | None,
    memory: int | str | None,
) -> Limits:
    given = Limits.coerce(limits)
    for name, value in (("timeout", timeout), ("memory", memory)):
        if value is not None:
            if name in given.explicit:
                raise InvalidOption(f"{name} was given twice", hint=f"{name}=, or in limits=")
            given = given.replace(**{name: value})
    return given


def _gone(name: str) -> Callable[..., object]:
    def gone(*args: object, **kwargs: object) -> object:
        raise NameError(f"name {name!r} is not defined")

    return gone


DEFAULT_IMAGE = "pandasai-sandbox"


class DockerSandbox(BelljarSandbox):
    """In a container if an engine answers, else native. If the engine lacks the image `image_name`,
    it is built from `dockerfile_path`; without that, Belljar's environment with numpy, pandas and
    matplotlib is used.
    """

    def __init__(
        self,
        image_name: str = DEFAULT_IMAGE,
        dockerfile_path: str | os.PathLike[str] | None = None,
        *,
        backend: str | Docker | None = None,
        environment: str | Environment = "data",
        limits: Limits | Mapping[str, object] | None = None,
        timeout: float | None = None,
        memory: int | str | None = None,
        charts: str | os.PathLike[str] | None = None,
        sql_timeout: float = 60.0,
    ) -> None:
        self._image_name = image_name
        self._dockerfile_path = dockerfile_path
        super().__init__(
            backend=backend,
            environment=environment,
            limits=limits,
            timeout=timeout,
            memory=memory,
            charts=charts,
            sql_timeout=sql_timeout,
        )

    def _choose(self) -> list[dict[str, Any]]:
        # As in the original, a missing Dockerfile or an image without an engine is an error now.
        options = wait(
            placement.place,
            self._backend,
            image=self._image_name,
            default_image=DEFAULT_IMAGE,
            environment=self._environment,
            dockerfile=self._dockerfile_path,
        )
        if options["backend"] == "native":
            return [options]
        options = {"backend": options["backend"]}
        if wait(placement.has_image, self._image_name):
            return [{**options, "image": self._image_name}]
        if self._dockerfile_path is not None:
            engine = docker_settings(self._backend)
            named = replace(engine, dockerfile=self._dockerfile_path, tag=self._image_name)
            return [{**options, "backend": named}]
        logger.info("no image %r; using environment %s", self._image_name, self._environment)
        places = [{**options, "environment": self._environment}]
        if self._image_name == DEFAULT_IMAGE and not placement.asks_for_docker(self._backend):
            places.append({"backend": "native", "environment": self._environment})
        return places
