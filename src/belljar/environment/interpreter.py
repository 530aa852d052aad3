"""The Python that a guest runs: found by path or version, then asked for its facts."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.environment import interpreter_facts
from belljar.environment.uv import find_uv
from belljar.errors import EnvironmentBuildError

OLDEST = (3, 9)
NEWEST = "newest"  # the newest of these that the host has, if the running Python is not newer
_PREFERRED = ("3.14", "3.13", "3.12", "3.11")  # packages of `data` have wheels for them
_VERSION = re.compile(r"3\.\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """One CPython installation of this host, symlinks resolved."""

    executable: str  # the base binary, never that of a virtual environment
    version: tuple[int, int, int]
    prefix: str  # sys.base_prefix
    stdlib: str
    shared: bool  # needs libpython.so from libdir
    libdir: str
    abi: str = ""  # SOABI, e.g. cpython-311-x86_64-linux-gnu
    complete: bool = True  # a final release, an ordinary build, with all that packages need

    @property
    def short_version(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"


def load_interpreter(fields: Mapping[str, Any]) -> Interpreter:
    """What `asdict` made of one, after JSON; perhaps by another version of Belljar."""
    known = {name: fields[name] for name in Interpreter.__dataclass_fields__ if name in fields}
    return Interpreter(**{**known, "version": tuple(fields["version"])})


def guest_python(interpreter: Interpreter) -> str:
    """Where the guest sees this interpreter's binary.

    /usr is mounted at its own place; any other installation is mounted at /opt/python.
    """
    if interpreter.prefix == "/usr":
        return interpreter.executable
    return "/opt/python/" + os.path.relpath(interpreter.executable, interpreter.prefix)


def find_interpreter(python: str | None = None) -> Interpreter:
    """The interpreter for `python`: None (the running one), a path, a version like "3.12", or
    "newest"."""
    if python is None:
        return _running_interpreter()
    if python == NEWEST:
        return next(list_newest())
    problems: list[str] = []
    wanted = tuple(map(int, python.split("."))) if _VERSION.fullmatch(python) else ()
    for candidate in _candidates(python):
        found = _ask(candidate, problems)
        if found is not None and found.version[: len(wanted)] == wanted:
            return found
    raise EnvironmentBuildError(
        f"no usable Python for {python!r}" + "".join(f"\n  {problem}" for problem in problems),
        hint=f"install it (`uv python install {python}`) or give the path of an interpreter"
        if wanted
        else "give the path of a CPython interpreter, or a version like '3.12'",
    )


def list_newest() -> Iterator[Interpreter]:
    """What "newest" may mean, the best first. The last is the running one: no older one is used."""
    running = _running_interpreter()
    for version in _PREFERRED:
        if tuple(map(int, version.split("."))) <= running.version[:2]:
            break
        try:
            found = find_interpreter(version)
        except EnvironmentBuildError:
            continue
        if found.complete:
            yield found
    yield running


@functools.cache
def _running_interpreter() -> Interpreter:
    return _parse_facts(interpreter_facts.facts())


def _candidates(python: str) -> Iterator[str]:
    if not _VERSION.fullmatch(python):
        found = shutil.which(os.path.expanduser(python))
        if found is not None:
            yield found
        return
    short = ".".join(python.split(".")[:2])
    on_path = shutil.which(f"python{short}")
    if on_path is not None:
        yield on_path
    # uv knows its own managed interpreters and the usual places of others.
    uv = _run([find_uv(), "python", "find", "--no-project", python])
    if uv.returncode == 0 and uv.stdout.strip():
        yield uv.stdout.strip()


def _ask(candidate: str, problems: list[str]) -> Interpreter | None:
    try:
        status = os.stat(candidate)
        with Path(candidate).open("rb") as file:
            is_binary = file.read(4) == b"\x7fELF"
        if is_binary:
            return _ask_binary(os.path.realpath(candidate), status.st_mtime_ns, status.st_size)
        # A script, such as a version manager's shim: it may start another Python each time.
        return _run_facts(candidate)
    except (OSError, EnvironmentBuildError) as error:
        problems.append(f"{candidate}: {error}")
        return None


@functools.lru_cache(maxsize=64)
def _ask_binary(executable: str, mtime_ns: int, size: int) -> Interpreter:
    return _run_facts(executable)


def _run_facts(executable: str) -> Interpreter:
    try:
        # -I and -S: ignore the caller's PYTHON* variables and any site-packages.
        asked = _run([executable, "-I", "-S", interpreter_facts.__file__], timeout=30)
        answer = json.loads(asked.stdout) if asked.returncode == 0 else None
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise EnvironmentBuildError(f"does not behave like a Python ({error})") from error
    if answer is None:
        lines = asked.stderr.strip().splitlines() or ["no message"]
        line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
        raise EnvironmentBuildError(f"exit status {asked.returncode}: {line}")
    return _parse_facts(answer)


def _run(command: list[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    quiet = subprocess.DEVNULL
    return subprocess.run(
        command, stdin=quiet, capture_output=True, text=True, timeout=timeout, check=False
    )


def _parse_facts(answer: Mapping[str, object]) -> Interpreter:
    major, minor, micro = (int(part) for part in answer["version"])  # type: ignore[attr-defined]
    found = Interpreter(
        executable=str(answer["executable"]),
        version=(major, minor, micro),
        prefix=str(answer["prefix"]),
        stdlib=str(answer["stdlib"]),
        shared=bool(answer["shared"]),
        libdir=str(answer["libdir"]),
        abi=str(answer["abi"]),
        complete=bool(answer["complete"]),
    )
    if answer["implementation"] != "cpython" or answer["system"] != "linux":
        raise EnvironmentBuildError(
            f"is {answer['implementation']} on {answer['system']}; CPython on Linux is needed"
        )
    if found.version < OLDEST:
        raise EnvironmentBuildError(f"is Python {found.short_version}; 3.9 or newer is needed")
    if found.prefix != "/usr" and not found.executable.startswith(found.prefix + "/"):
        raise EnvironmentBuildError(
            f"its binary {found.executable} is outside its prefix {found.prefix}"
        )
    return found
