"""DockerExecutor: each execution in a fresh sandbox, its result as a dictionary.

validate → translate the options → start → run → result → clean up. Failures are in the dictionary.
Nothing runs without a sandbox unless the configuration says so, and then with warnings.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from belljar.backends import docker as docker  # older programs replace this name in their tests
from belljar.backends.docker.client.engine_errors import EngineError, EngineUnavailable
from belljar.backends.docker.settings import Docker
from belljar.compat import placement
from belljar.compat.executor import container_monitor, container_stats, translate
from belljar.compat.executor.container_stats import DOCKER_AVAILABLE as DOCKER_AVAILABLE
from belljar.compat.executor.container_stats import MISSING
from belljar.compat.executor.docker_config import DEFAULT_IMAGE, DockerConfig
from belljar.compat.executor.runtime_monitor import RuntimeMonitor
from belljar.compat.executor.security_validator import SecurityValidator
from belljar.errors import InvalidOption, SandboxError
from belljar.results.execution import Execution, Outcome
from belljar.runtime import wait
from belljar.sandbox.blocking import Sandbox

if TYPE_CHECKING:
    from belljar.sandbox.options import PolicyLike

log = logging.getLogger(__name__)

VALIDATION_SECONDS = 2.0  # a busy machine is no reason to refuse code
UNSAFE = (
    "fallback_to_direct: this code runs WITHOUT a sandbox, as this user, with everything this "
    "user may do"
)


class NotNow(RuntimeError):
    """The engine is there, and did not answer in time; a retry may succeed."""


class DockerExecutor:
    """Runs code in sandboxes: in containers if an engine answers, else natively.

    with DockerExecutor() as executor:
        result = executor.execute("signal = 6 * 7")
        print(result["signal"])
    """

    def __init__(
        self,
        config: DockerConfig | None = None,
        *,
        backend: str | Docker | None = None,
        policy: PolicyLike | None = None,
    ) -> None:
        """`policy`: the policy that validates code, instead of "strategy"."""
        if config is not None and not isinstance(config, DockerConfig):
            raise TypeError(
                f"config is a DockerConfig, not {type(config).__name__}: "
                'DockerExecutor(DockerConfig(memory_limit="1g"))'
            )
        self.config = config if config is not None else DockerConfig.from_yaml()
        self.validator = SecurityValidator(policy, seconds=VALIDATION_SECONDS)
        self._backend = backend
        self._lock = threading.Lock()
        self._sandboxes: dict[str, Sandbox] = {}  # those that run or are kept, by container_id
        self._images: set[str] = set()  # that the engine has
        self._warned: set[str] = set()
        self._why_not: str | None = None  # why no sandbox can run here
        self.runtime_monitor: RuntimeMonitor | None = None
        if not self.config.enabled:
            return
        try:
            self._reach()
        except RuntimeError as error:
            if not self.config.fallback_to_direct:
                raise
            self._why_not = str(error)
            log.warning("%s. fallback_to_direct is set; each execution tries again", error)
        if self.config.runtime_monitor_enabled:
            self.runtime_monitor = RuntimeMonitor()

    @property
    def client(self) -> DockerExecutor | None:
        """Not None if sandboxes can run; in the original, the client of the engine."""
        return None if not self.config.enabled or self._why_not else self

    @property
    def _active_containers(self) -> list[str]:
        with self._lock:
            return list(self._sandboxes)

    def _reach(self) -> None:
        """Raise RuntimeError if no sandbox can start here, NotNow if a retry may succeed."""
        if not DOCKER_AVAILABLE:
            raise RuntimeError(MISSING)
        try:
            options = self._place()
        except InvalidOption:
            return  # execute() raises it again, and reports it
        try:
            placement.check_backend(options)
        except SandboxError as error:
            kind = NotNow if _may_pass(error) else RuntimeError
            raise kind(
                f"Failed to connect to Docker daemon: {error.message}. Ensure Docker is running "
                f"and accessible\n  hint: {error.hint or 'belljar doctor'}"
            ) from None

    def _is_reachable(self) -> bool:
        """Called before each execution that would otherwise run without a sandbox."""
        try:
            self._reach()
        except NotNow:
            raise
        except RuntimeError as error:
            self._why_not = str(error)
            return False
        self._why_not = None
        return True

    def _place(self) -> dict[str, Any]:
        return wait(
            placement.place,
            self._backend,
            image=self.config.image,
            default_image=DEFAULT_IMAGE,
        )

    # -- one execution ----------------------------------------------------------------------

    def execute(
        self, code: str, timeout: float | None = None, validate: bool = True
    ) -> dict[str, Any]:
        """Run code in a fresh sandbox, and return its result.

        `timeout` is in seconds (None: that of the configuration). The keys are success, signal,
        error, execution_time, container_id, validated, cleanup_success and logs; `signal` is the
        value of the variable of that name.
        """
        began = time.perf_counter()
        result = translate.empty_result()
        seconds = self.config.timeout_seconds if timeout is None else timeout
        if problem := _check_arguments(code, seconds):
            result["error"] = f"Invalid argument: {problem}"
            return result
        try:
            self._execute(code, seconds, validate, result)
        except InvalidOption as error:
            result["error"] = f"Invalid configuration: {error}"
        except NotNow as error:
            result["error"] = (
                f"{error}\nNothing was run: the engine may answer soon, so fallback_to_direct does "
                "not apply; retry"
            )
        except SandboxError as error:
            result["error"] = _describe_error(error)
        result["execution_time"] = time.perf_counter() - began
        return result

    def _execute(self, code: str, timeout: float, validate: bool, result: dict[str, Any]) -> None:
        if validate:
            valid, errors = self.validator.validate(code)
            result["validated"] = True
            if not valid:
                result["error"] = f"Security validation failed: {'; '.join(errors)}"
                return
        if not self.config.enabled:
            self._without(code, timeout, result, "Docker sandbox is disabled (enabled=False)")
            return
        if self.config.fallback_to_direct and not self._is_reachable():
            self._without(code, timeout, result, self._why_not or "")
            return
        options, note = translate.make(self.config, self._place(), timeout)
        if note is not None and note not in self._warned:
            self._warned.add(note)
            log.warning("%s", note)
        if self._image_missing(options.get("image")):
            result["error"] = (
                f"Docker image not found: {self.config.image}. "
                f"Pull image with: docker pull {self.config.image}"
            )
            return
        if self.config.export_container_stats:
            container_stats.serve_metrics(self.config.prometheus_port)
        self._in_sandbox(options, code, timeout, result)

    def _image_missing(self, image: str | None) -> bool:
        if image is None or image in self._images:
            return False
        if not wait(placement.has_image, image):
            return True
        self._images.add(image)
        return False

    def _in_sandbox(
        self, options: Mapping[str, Any], code: str, timeout: float, result: dict[str, Any]
    ) -> None:
        sandbox = Sandbox(**options)
        key = None
        try:
            sandbox.start()
            key = result["container_id"] = container_monitor.get_container_id(sandbox)
            with self._lock:
                self._sandboxes[key] = sandbox
            if self.runtime_monitor is not None:
                self.runtime_monitor.add_container(key)
                self.runtime_monitor.start()
            self._run(sandbox, code, timeout, result)
        except BaseException:
            # On any error, also Ctrl-C: leave nothing running.
            result["cleanup_success"] = self._cleanup_container(key) if key else _kill(sandbox)
            raise
        # Without cleanup_on_exit, cleanup_all() does it.
        result["cleanup_success"] = self.config.cleanup_on_exit and self._cleanup_container(key)

    def _run(self, sandbox: Sandbox, code: str, timeout: float, result: dict[str, Any]) -> None:
        written: list[str] = []
        execution = sandbox.run_code(
            code, timeout=timeout, on_stdout=written.append, on_stderr=written.append
        )
        logs = "".join(written)
        if execution.error is not None and execution.error.traceback:
            logs += execution.error.traceback.removesuffix("\n") + "\n"
        result["logs"] = logs
        unsaved = self._save(sandbox, execution, result["container_id"])
        if not placement.succeeded(execution):
            result["error"] = self._monitored(execution, result) or translate.describe_failure(
                execution, logs, timeout=timeout, memory=self.config.memory_limit
            )
            return
        signal, problem = None, None
        if execution.state_preserved:
            signal, problem = translate.read_signal(sandbox, execution.stdout, timeout=timeout)
        problem = problem or unsaved
        result.update(success=problem is None, signal=signal, error=problem)

    def _monitored(self, execution: Execution, result: dict[str, Any]) -> str | None:
        """Why it failed, if the RuntimeMonitor killed it."""
        if self.runtime_monitor is None or execution.outcome is not Outcome.killed:
            return None
        for event in self.runtime_monitor.get_security_events():
            if event.container_id == result["container_id"]:
                return translate.exited(f"RuntimeMonitor killed it: {event}\n{result['logs']}")
        return None

    def _save(self, sandbox: Sandbox, execution: Execution, container_id: str) -> str | None:
        """Save the files that the code wrote; return why that failed, if it did."""
        if not execution.files:
            return None
        target = Path(self.config.output_dir) / container_id[:32]
        try:
            sandbox.files.download(".", target)
        except (SandboxError, OSError) as error:
            return f"the files of {translate.OUTPUT} could not be saved to {target}: {error}"
        log.info("files of the code are in %s", target)
        return None

    # -- without a sandbox ------------------------------------------------------------------

    def _without(self, code: str, timeout: float, result: dict[str, Any], why: str) -> None:
        if not self.config.fallback_to_direct:
            result["error"] = f"{why}. Nothing was run; set enabled=True"
            return
        log.warning("%s (%s)", UNSAFE, why)
        warnings.warn(f"{UNSAFE} ({why})", RuntimeWarning, stacklevel=4)
        result.update(translate.run_directly(code, timeout=timeout))
        result["container_id"] = translate.DIRECT
        result["logs"] = f"[{UNSAFE}]\n{result['logs']}"

    # -- cleaning up ------------------------------------------------------------------------

    def _cleanup_container(self, container_id: str) -> bool:
        with self._lock:
            sandbox = self._sandboxes.pop(container_id, None)
        if self.runtime_monitor is not None:
            self.runtime_monitor.remove_container(container_id)
        if sandbox is None or _kill(sandbox):
            return True
        with self._lock:
            self._sandboxes[container_id] = sandbox
        return False

    def cleanup_all(self) -> dict[str, int]:
        """Kill every sandbox of this executor; return the counts."""
        done = [self._cleanup_container(each) for each in self._active_containers]
        return {"total": len(done), "success": sum(done), "failed": done.count(False)}

    def get_orphaned_containers(self) -> list[dict[str, Any]]:
        """Belljar's sandboxes whose process is dead; no containers of other programs."""
        found = container_monitor.find_orphans()
        if len(found) > self.config.alert_on_orphaned_containers:
            log.warning(
                "%d orphaned containers (alert above %d): `belljar gc` removes them",
                len(found),
                self.config.alert_on_orphaned_containers,
            )
        return found

    def close(self) -> None:
        """Kill every sandbox. May be called twice."""
        self.cleanup_all()
        if self.runtime_monitor is not None:
            self.runtime_monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_arguments(code: object, timeout: object) -> str | None:
    """Why the arguments of execute() are invalid; None if they are valid."""
    if not isinstance(code, str):
        return f"code is a str, not {type(code).__name__}"
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        return f"timeout is a number of seconds, not {timeout!r}"
    return None


def _may_pass(error: BaseException | None) -> bool:
    """True if the engine is there, and was slow or busy or gave an unexpected answer."""
    while error is not None:
        if isinstance(error, EngineError) and not isinstance(error, EngineUnavailable):
            return True
        if isinstance(error, (TimeoutError, BlockingIOError)):  # no room in its queue
            return True
        error = error.__cause__
    return False


def _kill(sandbox: Sandbox) -> bool:
    try:
        sandbox.kill()
    except SandboxError as error:
        log.error("a sandbox could not be removed; `belljar gc` will remove it: %s", error)
        return False
    return True


def _describe_error(error: SandboxError) -> str:
    """What Belljar or the engine failed to do, in the words of the original."""
    if type(error).__name__ == "EngineError":
        return f"Docker API error: {error}"
    return f"Container error: {type(error).__name__}: {error}"
