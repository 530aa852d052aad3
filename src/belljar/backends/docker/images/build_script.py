"""The program of a build container: it installs packages into /opt/env with the image's Python.

This file and environment/addresses.py are sent to the container, whose Python 3 runs them. So they
need only the standard library and are written for Python 3.9. One line of JSON comes in on standard
input, then the files it names; lines of JSON go out on standard output:

    {"alive": true}    now and then
    {"line": ...}      a line of uv's output
    {"step": ..., "text": ...}
    {"failed": ..., "kind": ..., "lines": [...]}
    {"done": {...}}    facts for the labels; then the container waits to be committed

What must not become part of the image (certificates, index settings, uv itself) is on a tmpfs; what
is too large for one (uv's cache, wheels) is deleted at the end.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from belljar.environment.addresses import strip_credentials  # sent along

ROOT = "/opt/env"
SECRETS = "/tmp/belljar"  # a tmpfs
WORK = "/opt/.belljar"  # in the container's file system, deleted at the end
OLDEST = (3, 9)
LAST_LINES = 400
HEARTBEAT = 10.0  # seconds


class Failed(Exception):
    def __init__(self, message: str, kind: str = "", lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.lines = list(lines)


speaking = threading.Lock()


def emit(**event: object) -> None:
    with speaking:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def send_heartbeats() -> None:
    """Tell the host that the build is alive: a large download is silent for long."""
    while True:
        time.sleep(HEARTBEAT)
        emit(alive=True)


def main() -> None:
    os.umask(0o022)
    request = json.loads(sys.stdin.buffer.readline())
    try:
        check_python(request["python"])
        receive(request["files"])
        # The end of standard input means that the host's process is gone. Then this one ends, and
        # as PID 1 it takes every other process with it.
        threading.Thread(target=exit_at_end_of_input, daemon=True).start()
        threading.Thread(target=send_heartbeats, daemon=True).start()
        facts = build(request)
    except Failed as error:
        emit(failed=str(error), kind=error.kind, lines=error.lines)
    except OSError as error:
        emit(failed=str(error), kind="", lines=[])
    else:
        emit(done=facts)
        threading.Event().wait()
    os._exit(1)  # sys.exit() would wait for the thread that reads


def check_python(wanted: str | None) -> None:
    if sys.version_info < OLDEST:
        raise Failed(f"its Python is {platform.python_version()}; 3.9 or later is needed", "python")
    if sys.implementation.name != "cpython":
        raise Failed(f"its Python is {sys.implementation.name}; CPython is needed", "python")
    if wanted and not "{}.{}.{}.".format(*sys.version_info).startswith(wanted + "."):
        raise Failed(f"its Python is {platform.python_version()}, not {wanted}", "python")
    if os.path.lexists(ROOT):
        raise Failed(f"it already has something at {ROOT}", "root")


def receive(files: Sequence[tuple[str, int]]) -> None:
    for directory in (SECRETS, WORK):
        os.makedirs(directory, mode=0o700)
    for path, size in files:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # Executable, because uv is one of them.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(descriptor, "wb") as file:
            while size:
                piece = sys.stdin.buffer.read(min(size, 1 << 20))
                if not piece:
                    raise Failed("the files for the build are incomplete")
                file.write(piece)
                size -= len(piece)


def exit_at_end_of_input() -> None:
    sys.stdin.buffer.read(1)  # only the end can come
    os._exit(1)


def build(request: Mapping[str, Any]) -> dict[str, object]:
    env = {**make_variables(), **request["env"]}
    uv = find_uv(env)
    emit(step="resolving", text="resolving packages")
    run([uv, "venv", "--python", sys.executable, ROOT], env)
    python = ROOT + "/bin/python"
    lock = ROOT + "/belljar.lock"
    wanted = os.path.join(WORK, "requirements.in")
    with open(wanted, "w", encoding="utf-8") as file:
        file.writelines(package + "\n" for package in request["packages"])
    compile_ = [uv, "pip", "compile", "--python", python, "--generate-hashes", "--no-header"]
    compile_ += ["--no-annotate", *request["arguments"], "-o", lock, wanted]
    run(compile_, env)
    install = [uv, "pip", "install", "--python", python, *request["arguments"], "-r", lock]
    run(install, env)
    shutil.rmtree(WORK)
    tidy()
    emit(step="compiling", text="compiling bytecode")
    compile_bytecode()
    os.makedirs("/workspace", exist_ok=True)
    os.chown("/workspace", request["uid"], request["uid"])
    return describe(request["description"], lock)


def make_variables() -> dict[str, str]:
    """Variables for uv and pip: the base image's settings and home directory are not used."""
    os.makedirs(os.path.join(WORK, "home"))
    os.makedirs(os.path.join(WORK, "tmp"))
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.path.join(WORK, "home"),
        "TMPDIR": os.path.join(WORK, "tmp"),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "UV_CACHE_DIR": os.path.join(WORK, "cache"),
        "UV_PYTHON_DOWNLOADS": "never",
    }


# -- uv -----------------------------------------------------------------------------------------


def find_uv(env: Mapping[str, str]) -> str:
    """The path of uv: the host's, if it runs here; else the image's; else one that pip installs."""
    tried = []
    for candidate in (os.path.join(SECRETS, "uv"), shutil.which("uv", path=env["PATH"])):
        if candidate and os.path.exists(candidate):
            problem = find_problem(candidate, env)
            if problem is None:
                return candidate
            tried.append(f"{candidate}: {problem}")
    emit(step="resolving", text="getting uv with the image's pip")
    target = os.path.join(SECRETS, "pip")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--only-binary", ":all:", "--target", target, "uv"]
    try:
        run(command, {**env, **pip_variables(env), "PIP_NO_CACHE_DIR": "1"})
    except Failed as error:
        raise Failed("uv could not be installed", "uv", tried + error.lines) from error
    uv = os.path.join(target, "bin", "uv")
    problem = find_problem(uv, env)
    if problem is not None:
        raise Failed("uv does not run", "uv", [*tried, f"{uv}: {problem}"])
    return uv


def find_problem(uv: str, env: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(
            [uv, "--version"], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"


def pip_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The index settings in pip's variables."""
    names = {
        "UV_INDEX_URL": "PIP_INDEX_URL",
        "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
        "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
        "UV_INSECURE_HOST": "PIP_TRUSTED_HOST",
        "SSL_CERT_FILE": "PIP_CERT",
    }
    return {pip: env[uv] for uv, pip in names.items() if uv in env}


def run(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a command to its end; report each line of its output."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env=env,
        cwd=WORK,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            del lines[:-LAST_LINES]
            emit(line=line.rstrip())
    if process.returncode:
        status = process.returncode
        how = f"exit status {status}" if status > 0 else f"killed by signal {-status}"
        raise Failed(f"{os.path.basename(command[0])}: {how}", "install", lines)


# -- the directory ------------------------------------------------------------------------------


def tidy() -> None:
    for name in (".lock", ".gitignore", "CACHEDIR.TAG"):  # uv's
        if os.path.exists(os.path.join(ROOT, name)):
            os.unlink(os.path.join(ROOT, name))
    for parent, _, files in os.walk(ROOT + "/lib"):
        if parent.endswith(".dist-info"):
            # They name the origin of a wheel and uv's cache.
            for name in {"direct_url.json", "uv_cache.json", "uv_build.json"}.intersection(files):
                os.unlink(os.path.join(parent, name))
    clean_lock(ROOT + "/belljar.lock")


def clean_lock(path: str) -> None:
    """Remove passwords of indexes and paths of the build: guests may read the file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"(file://)?" + re.escape(WORK) + r"/wheels/\d+/", "", text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(strip_credentials(text))


def compile_bytecode() -> None:
    """As in native environments: valid for any file times, without the packages' tests.

    The official images lack the standard library's bytecode, and a guest cannot write any.
    """
    compile_tree(ROOT + "/lib", "/tests/")
    library = os.path.dirname(os.__file__)
    if not os.path.exists(importlib.util.cache_from_source(library + "/asyncio/events.py")):
        compile_tree(library, "/(site-packages|dist-packages|test|tests|idlelib|lib2to3)/")


def compile_tree(directory: str, left_out: str) -> None:
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-m", "compileall", "-qq"]
    command += ["--invalidation-mode", "unchecked-hash", "-x", left_out]
    failure = ""
    for jobs in (min(len(os.sched_getaffinity(0)), 8), 1):
        done = subprocess.run(
            [*command, "-j", str(jobs), directory],
            env={"LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        # Status 1 without a message: a file that is not valid Python, such as a template.
        if done.returncode in (0, 1) and not done.stderr:
            return
        failure = done.stderr or f"exit status {done.returncode}"
    raise Failed("compiling bytecode failed", "", failure.splitlines()[-20:])


def describe(description: Mapping[str, Any], lock: str) -> dict[str, object]:
    """Write the description that guests may read; return the facts for the labels."""
    from importlib import metadata  # only here: Python 3.7 must get as far as check_python()

    packages = os.path.join(
        ROOT, "lib", os.path.basename(os.path.dirname(os.__file__)), "site-packages"
    )
    found = metadata.distributions(path=[packages])
    distributions = dict(sorted((each.metadata["Name"], each.version) for each in found))
    version = platform.python_version()
    described = {**description, "python": version, "distributions": distributions}
    with open(ROOT + "/belljar.json", "w", encoding="utf-8") as file:
        file.write(json.dumps(described, indent=1) + "\n")
    with open(lock, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {"python": version, "lock": digest, "distributions": distributions}


if __name__ == "__main__":
    main()
