"""DockerConfig into options of a sandbox, and what became of the code into DockerExecutor's result.

An option that cannot be enforced is an error. docs/compat/strategy-executor.md says what each one
does. At the end: running code WITHOUT a sandbox, if the configuration allows that.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from belljar.backends.docker.settings import docker_settings
from belljar.compat import get_plain
from belljar.compat.executor import docker_config
from belljar.compat.executor.docker_config import DEFAULT_SECCOMP, DockerConfig
from belljar.errors import CannotTravel, InvalidOption, NameMissing, SandboxError
from belljar.limits import RULES, Limits, parse_size
from belljar.results.execution import Execution, Outcome, describe_end
from belljar.sandbox.blocking import Sandbox

# Where the code may write besides /tmp. Not /workspace: code of this system expects that to be
# read-only. The executor saves the files below output_dir.
OUTPUT = "/output"
LOGS = "16m"  # kept of one execution; the original has no limit


def make(
    config: DockerConfig, placed: Mapping[str, Any], timeout: float
) -> tuple[dict[str, Any], str | None]:
    """The options of a Sandbox, and what the caller should know, though it is no error.

    `placed`: the options that `placement.place` chose. Raises InvalidOption for an option of the
    configuration that this backend cannot enforce.
    """
    _check_fixed(config)
    docker = placed["backend"] != "native"
    options: dict[str, Any] = {
        **placed,
        "limits": Limits(
            memory=_memory(config),
            cpus=float(config.cpu_limit),
            tmp=config.tmpfs_size,
            timeout=float(timeout),
            output=LOGS,
        ),
        "workdir": OUTPUT,
        "network": _network(config, docker=docker),
        "noexec": _noexec(config.tmpfs_options),
        "strict": _strict(config),
    }
    profile = _profile(config.seccomp_profile, docker=docker)
    note = None
    if docker:
        engine = docker_settings(options["backend"])
        # As in the original, a missing image is not fetched: the error names the command.
        options["backend"] = replace(engine, seccomp=profile, pull="never")
    elif profile is not None and not _is_own(profile):
        note = (
            f"seccomp_profile={config.seccomp_profile!r} is for docker, and this sandbox is "
            "native: it uses Belljar's own profile, which refuses every call that it does not list"
        )
    return options, note


def _strict(config: DockerConfig) -> bool | None:
    """Warn only if a limit that the caller chose cannot be enforced, not for the defaults."""
    names = ("memory_limit", "cpu_limit")
    chosen = any(getattr(config, name) != getattr(DockerConfig, name) for name in names)
    return None if chosen else False


def _check_fixed(config: DockerConfig) -> None:
    if not config.read_only:
        raise InvalidOption(
            "read_only=False: the file system of a sandbox is always read-only",
            hint=f"code may write to /tmp and {OUTPUT}; leave read_only=True",
        )
    if config.tmpfs_path.rstrip("/") != "/tmp":
        raise InvalidOption(
            f"tmpfs_path={config.tmpfs_path!r}: the writable tmpfs of a sandbox is /tmp",
            hint='leave tmpfs_path="/tmp", and let the code write there',
        )


def _memory(config: DockerConfig) -> int:
    memory = parse_size(config.memory_limit, field="memory_limit")
    swap = config.memory_swap_limit
    if swap is not None and parse_size(swap, field="memory_swap_limit") != memory:
        raise InvalidOption(
            f"memory_swap_limit={swap!r} with memory_limit="
            f"{config.memory_limit!r}: a sandbox has no swap",
            hint="give both the same value, or leave memory_swap_limit out",
        )
    if memory < RULES["memory"].low:
        raise InvalidOption(
            f"memory_limit={config.memory_limit!r} is too little for Python to start",
            hint="16m at least; with pandas imported, 128m",
        )
    return memory


def _network(config: DockerConfig, *, docker: bool) -> str:
    if config.network_mode == "none":
        return "none"
    if config.network_mode == "host":
        raise InvalidOption(
            "network_mode='host' would give the code every service of this machine",
            hint="network_mode='bridge' opens the network from a container",
        )
    if not docker:
        raise InvalidOption(
            "network_mode='bridge' needs docker, and this sandbox is native",
            hint='backend="docker", or network_mode="none"',
        )
    return "open"


def _noexec(given: str) -> bool:
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if word not in ("rw", "noexec", "exec", "nosuid", "nodev"):
            raise InvalidOption(
                f"tmpfs_options: {word!r} is not supported",
                hint="rw, noexec or exec, nosuid, nodev; the size is tmpfs_size",
            )
    if "exec" in words and "noexec" in words:
        raise InvalidOption("tmpfs_options has both exec and noexec")
    return "noexec" in words


def _profile(given: str, *, docker: bool) -> Path | None:
    """The caller's seccomp profile; None: Belljar's own, an allow-list."""
    if not given:
        return None
    path = Path(given)
    if not path.exists():
        if given == DEFAULT_SECCOMP:
            return None
        raise InvalidOption(
            f"Seccomp profile not found: {given}",
            hint="give a file that exists, or leave seccomp_profile out for Belljar's own",
        )
    if docker and given == DEFAULT_SECCOMP and docker_config.is_foreign(path):
        raise InvalidOption(
            f"another user owns {path.absolute()} or may write to it",
            hint=f'if you trust it, name it: seccomp_profile="./{given}"; "" is Belljar\'s own',
        )
    return path


def _is_own(path: Path) -> bool:
    own = resources.files("belljar.backends.linux").joinpath("seccomp.json")
    try:
        return bool(json.loads(path.read_bytes()) == json.loads(own.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOption(f"seccomp_profile={str(path)!r} cannot be read: {error}") from None


KILLED = 137  # 128 + SIGKILL, as the engine and the shell say it
NO_VALUES = ("module", "function", "type", "method", "builtin_function_or_method")

# Older programs print their signal. It is looked for only if no variable has the name.
_MARKS = ("__SIGNAL_JSON_START__", "__SIGNAL_JSON_END__")
_LONGEST = 1_000_000  # characters between them


def empty_result() -> dict[str, Any]:
    return {
        "success": False,
        "signal": None,
        "error": None,
        "execution_time": 0.0,
        "container_id": None,
        "validated": False,
        "cleanup_success": True,  # there is nothing to clean up yet
        "logs": "",
    }


def describe_failure(execution: Execution, logs: str, *, timeout: float, memory: str) -> str:
    """Why the code failed. Only a time-out is called one."""
    end = describe_end(execution, "the code")
    match execution.outcome:
        case Outcome.timeout:
            words = f"Container execution timeout exceeded ({timeout:g}s)"
            return f"{words}\n{logs}" if logs else words
        case Outcome.out_of_memory:
            why = f"Out of memory: the code wanted more than memory_limit={memory}"
            return exited(f"{why}\n{logs}")
        case Outcome.error:
            return f"Container exited with code 1:\n{logs}"
        case Outcome.exit:
            return f"Container exited with code {_code(execution)}:\n{logs}"
        case Outcome.killed:
            return f"Container exited with code {_code(execution)}:\n{end}\n{logs}"
        case Outcome.output_limit:
            return exited(f"{end}\n{logs}")
        case _:
            return f"Container error: {end}\n{logs}"


def exited(why: str) -> str:
    """For code that was killed from outside."""
    return f"Container exited with code {KILLED}:\n{why}"


def _code(execution: Execution) -> int:
    if execution.signal is not None:
        return 128 + execution.signal
    return -1 if execution.exit_code is None else execution.exit_code


def read_signal(sandbox: Sandbox, stdout: str, *, timeout: float) -> tuple[Any, str | None]:
    """The value of the variable `signal`, or why it could not be read."""
    try:
        return get_plain(sandbox, "signal", timeout=timeout), None
    except NameMissing:
        return _printed(stdout), None
    except CannotTravel as error:
        # `from scipy import signal` is not a result, and no failure either.
        if any(f"signal is a {kind}" in error.message for kind in NO_VALUES):
            return None, None
        return None, f"signal cannot leave the sandbox: {error.message}"
    except SandboxError as error:
        return None, f"signal could not be read: {error.message}"


def _printed(stdout: str) -> Any:
    # By find(): the guest chose the text, and a regular expression may take hours for it.
    start = stdout.find(_MARKS[0])
    end = stdout.find(_MARKS[1], start)
    if start < 0 or end < 0 or end - start > _LONGEST:
        return None
    try:
        return json.loads(stdout[start + len(_MARKS[0]) : end])
    except (ValueError, RecursionError):
        return None


# -- WITHOUT a sandbox: fallback_to_direct=True where no sandbox can run ---------------------
# Never the default and never silent. The code runs with all rights of this user. It runs in its own
# process, so that a time-out can kill it and it cannot reach the memory of this one.

DIRECT = "direct"  # in place of a container's id
MOST_OUTPUT = 1_000_000  # characters that are kept

# argv: the code's file, and the file for its signal. A frame is written as JSON, too: nothing that
# the code made is ever unpickled here.
_RUNNER = """\
import json, sys
code, result = sys.argv[1:3]
names = {"__name__": "__main__"}
with open(code, encoding="utf-8") as file:
    exec(compile(file.read(), "strategy.py", "exec"), names)
value = names.get("signal")
if value is not None and type(value).__name__ in ("DataFrame", "Series"):
    value = {"frame": value.to_json(orient="split"), "kind": type(value).__name__}
else:
    value = {"value": value}
try:
    text = json.dumps(value)
except (TypeError, ValueError) as error:
    text = json.dumps({"problem": str(error)})
with open(result, "w", encoding="utf-8") as file:
    file.write(text)
"""


def run_directly(code: str, *, timeout: float) -> dict[str, Any]:
    """The entries of the result: success, signal, error and logs."""
    with tempfile.TemporaryDirectory(prefix="belljar-direct-") as directory:
        source, result, output = (
            Path(directory, name) for name in ("strategy.py", "signal", "output")
        )
        source.write_text(code, encoding="utf-8")
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-c", _RUNNER, str(source), str(result)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its children can be killed with it
            )
            try:
                status: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        with output.open("rb") as file:
            logs = file.read(MOST_OUTPUT).decode("utf-8", "replace")
        value, error = _read_direct_signal(result) if status == 0 else (None, None)
    if status is None:
        error = f"Container execution timeout exceeded ({timeout:g}s)\n{logs}"
    elif status != 0:
        error = f"Process exited with code {128 - status if status < 0 else status}:\n{logs}"
    return {"success": error is None, "signal": value, "error": error, "logs": logs}


def _read_direct_signal(result: Path) -> tuple[Any, str | None]:
    try:
        found = json.loads(result.read_text(encoding="utf-8"))
        if "problem" in found:
            return None, f"signal cannot leave the process: {found['problem']}"
        if "frame" not in found:
            return found["value"], None
        import pandas

        kind = "frame" if found["kind"] == "DataFrame" else "series"
        return pandas.read_json(io.StringIO(found["frame"]), orient="split", typ=kind), None
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        return None, f"signal could not be read: {error}"
