"""Build an environment: fill a directory with packages by uv, then adapt it to the guest's paths.

The steps: make an ordinary virtual environment (PEP 405), let uv install into it, change every path
of this host to the path in the guest. After that the directory is valid only inside a guest, at
/opt/env. No code of a package runs here, unless the caller allowed source builds.

If an environment with a part of the packages exists, only the others are installed and compiled,
and then the files of the existing one are added as hard links. Nothing is written to a directory
after it has such links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from belljar.environment.addresses import strip_credentials
from belljar.environment.interpreter import Interpreter, guest_python
from belljar.environment.requirement import (
    UNSOLVABLE,
    canonical_name,
    install_error,
    join_packages,
)
from belljar.environment.store import CACHE_MODE, make_directory
from belljar.environment.uv import find_uv, read_pip_files, uv_settings
from belljar.errors import EnvironmentBuildError
from belljar.text import printable

GUEST_ROOT = "/opt/env"
Step = Literal["waiting", "resolving", "downloading", "installing", "compiling", "finished"]
Say = Callable[[Step, str], None]


@dataclass(frozen=True, kw_only=True)
class BuildProgress:
    """One report from the build of an environment."""

    environment: str  # its name
    step: Step
    text: str  # for people, one line
    packages: int | None = None  # how many are installed in total, once known
    at: float = field(default_factory=time.monotonic)


Listener = Callable[[BuildProgress], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to put into the directory."""

    interpreter: Interpreter
    packages: Sequence[str]
    allow_builds: bool
    lock: int  # a descriptor that uv inherits, see Store.building
    base: Path | None = None  # an environment of the same interpreter, to start from


def fill_directory(directory: Path, recipe: Recipe, say: Say) -> dict[str, str]:
    """Make the environment in `directory`; return the installed distributions and versions."""
    _make_layout(directory, recipe.interpreter)
    if recipe.packages:
        say("resolving", "resolving packages")
        missing = list(recipe.packages)
        if recipe.base is not None:
            missing = _resolve_missing(directory, recipe, recipe.base, say)
        if missing:
            # Hard links would share files with uv's cache: an edit of one would change the other.
            options = ["--link-mode", "copy", *(["--no-deps"] if recipe.base else [])]
            _run_uv(directory, recipe, "install", [*options, "--", *missing], say)
    _relocate(directory, recipe.interpreter)
    if recipe.packages:
        say("compiling", "compiling bytecode")
        _compile(directory, recipe.interpreter)
    _make_readable(directory)
    if recipe.base is not None:
        _add_links(recipe.base, directory, recipe.interpreter)
    return list_distributions(directory, recipe.interpreter)


def list_distributions(directory: Path, interpreter: Interpreter) -> dict[str, str]:
    found = metadata.distributions(path=[str(site_packages(directory, interpreter))])
    return dict(sorted((each.name, each.version) for each in found))


def site_packages(directory: Path, interpreter: Interpreter) -> Path:
    # The name of the standard library's directory, because free-threaded builds add a "t".
    return directory / "lib" / Path(interpreter.stdlib).name / "site-packages"


def _make_layout(directory: Path, interpreter: Interpreter) -> None:
    site_packages(directory, interpreter).mkdir(parents=True)
    (directory / "lib64").symlink_to("lib")
    (directory / "bin").mkdir()
    _link_python(directory, interpreter, interpreter.executable)


def _link_python(directory: Path, interpreter: Interpreter, executable: str) -> None:
    """Make the environment's `python` a link to `executable`."""
    for name in ("python", "python3", f"python{interpreter.short_version}"):
        link = directory / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(executable)
    (directory / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(executable)}\n"
        "include-system-site-packages = false\n"
        f"version = {'.'.join(map(str, interpreter.version))}\n"
    )


def _resolve_missing(directory: Path, recipe: Recipe, base: Path, say: Say) -> list[str]:
    """The packages to install besides those of `base`, with versions.

    Those of `base` keep their versions, unless an added package needs another one."""
    had = [
        f"{canonical_name(name)}=={version}"
        for name, version in list_distributions(base, recipe.interpreter).items()
    ]
    wanted, lock = directory / ".wanted", directory / ".lock-file"
    wanted.write_text("".join(f"{package}\n" for package in recipe.packages))
    lock.write_text("".join(f"{line}\n" for line in had))  # uv prefers the versions in it
    options = ["--no-header", "--no-annotate", "--output-file", str(lock), str(wanted)]
    _run_uv(directory, recipe, "compile", options, say)
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    wanted.unlink()
    lock.unlink()
    return [line for line in lines if line not in had]


def _run_uv(directory: Path, recipe: Recipe, verb: str, options: Sequence[str], say: Say) -> None:
    pip_files = read_pip_files(os.environ)
    env, arguments = uv_settings(os.environ, pip_files, allow_builds=recipe.allow_builds)
    command = [
        find_uv(),
        # Without it uv would read the settings of a project in the current directory.
        "--project",
        str(directory),
        "pip",
        verb,
        "--python",
        str(directory / "bin" / "python"),
        *arguments,
        *(() if recipe.allow_builds else ("--only-binary", ":all:")),
        *options,
    ]
    lines: deque[str] = deque(maxlen=1000)
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        pass_fds=(recipe.lock,),
    ) as uv:
        try:
            assert uv.stderr is not None
            for line in uv.stderr:
                line = strip_credentials(printable(line.rstrip()), "***@")
                lines.append(line)
                report_line(line.strip(), say)
        except BaseException:
            uv.kill()
            raise
    if uv.returncode != 0:
        status = uv.returncode
        how = f"exit status {status}" if status > 0 else f"killed by signal {-status}"
        message = f"installing {join_packages(recipe.packages)} failed (uv: {how})"
        raise install_error(message, list(lines), remedies=_REMEDIES)


def report_line(line: str, say: Say) -> None:
    """Report what a line of uv's output means."""
    if line.startswith("Resolved "):
        say("downloading", f"downloading ({line.split(' in ')[0].lower()})")
    elif line.startswith(("Downloading ", "Building ")):
        say("downloading", line[0].lower() + line[1:])
    elif line.startswith("Prepared "):
        say("installing", "installing")


# Pattern in uv's messages -> the hint. The first that matches is used.
_REMEDIES = (
    (
        r"building from source is disabled|no usable wheels|Building source distributions|"
        r"--no-build|only-binary",
        "Belljar installs only wheels, because building a package runs its code on this host, "
        "outside any sandbox; if you trust it: Environment(…, allow_builds=True), or "
        "belljar env build NAME … --allow-builds",
    ),
    (
        r"network was disabled|offline",
        "UV_OFFLINE forbids uv to use the network, and its cache lacks a package",
    ),
    (
        r"certificate|UnknownIssuer",
        "name your CA bundle in SSL_CERT_FILE (PIP_CERT and REQUESTS_CA_BUNDLE are read too)",
    ),
    (
        r"dns error|error sending request|Failed to fetch|[Cc]onnect|timed out|Could not resolve",
        "the package index could not be reached; check the network, or name a mirror in "
        "UV_DEFAULT_INDEX or PIP_INDEX_URL, or a directory of wheels in UV_FIND_LINKS",
    ),
    *UNSOLVABLE,
    (r"No space left", "free some disk space, or set BELLJAR_CACHE to a larger file system"),
)


def _relocate(directory: Path, interpreter: Interpreter) -> None:
    """Change every path of this host to the path in the guest."""
    _link_python(directory, interpreter, guest_python(interpreter))
    for script in (directory / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            _relocate_script(script, str(directory).encode())
    (directory / ".lock").unlink(missing_ok=True)  # uv's
    # They name where a wheel came from, perhaps a home directory, and uv's cache.
    for name in ("direct_url.json", "uv_cache.json", "uv_build.json"):
        for note in site_packages(directory, interpreter).glob(f"*.dist-info/{name}"):
            note.unlink()


def _relocate_script(script: Path, here: bytes) -> None:
    text = script.read_bytes()
    first, _, rest = text.partition(b"\n")
    if first == b"#!/bin/sh" and rest.startswith(b"'''exec' "):
        # For a path too long for a #! line, installers write a line of shell in a Python string.
        rest = rest.split(b"\n", 2)[2]
    elif not (first.startswith(b"#!") and here in first):
        return
    script.write_bytes(f"#!{GUEST_ROOT}/bin/python\n".encode() + rest)


def _compile(directory: Path, interpreter: Interpreter) -> None:
    """Write bytecode that names the guest's paths.

    It does not depend on time stamps: guests cannot write, so in a copy of the directory with new
    times every import would compile again. Tests of packages, a third of the files of scientific
    ones, are not compiled.
    """
    jobs = min(len(os.sched_getaffinity(0)), 8)
    command = [interpreter.executable, "-I", "-S", "-W", "ignore", "-m", "compileall"]
    command += ["-qq", "--invalidation-mode", "unchecked-hash"]
    command += ["-p", GUEST_ROOT, "-x", "/tests/"]
    failure = ""
    # Parallel compilation needs semaphores, which containers without /dev/shm lack.
    for attempt in (jobs, 1):
        done = subprocess.run(
            [*command, "-j", str(attempt), "lib"],
            cwd=directory,
            env={"LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        # Status 1 without a message: a file that is not valid Python, such as a template.
        if done.returncode in (0, 1) and not done.stderr:
            return
        failure = printable(done.stderr)[-2000:] or f"exit status {done.returncode}"
    raise EnvironmentBuildError(f"compiling bytecode failed\n{failure}")


def _add_links(base: Path, directory: Path, interpreter: Interpreter) -> None:
    """Link the files of `base`, except those of distributions that `directory` has itself."""
    own = {canonical_name(name) for name in list_distributions(directory, interpreter)}
    replaced: set[str] = set()
    for each in metadata.distributions(path=[str(site_packages(base, interpreter))]):
        if canonical_name(each.name) in own:
            for file in each.files or ():
                replaced.add(os.path.normpath(os.path.relpath(str(each.locate_file(file)), base)))
    linked: set[str] = set()
    for top in ("bin", "lib"):
        for parent, _, names in os.walk(base / top):
            below = os.path.relpath(parent, base)
            is_bytecode = os.path.basename(parent) == "__pycache__"
            for path in (os.path.join(below, name) for name in names):
                # Bytecode is linked only if its source, in the directory above, was.
                if path in replaced or (is_bytecode and _source_of_bytecode(path) not in linked):
                    continue
                if _link(os.path.join(base, path), os.path.join(directory, path)):
                    linked.add(path)


def _source_of_bytecode(bytecode: str) -> str:
    directory, name = os.path.split(bytecode)
    return os.path.join(os.path.dirname(directory), f"{name.partition('.')[0]}.py")


def _link(existing: str, path: str) -> bool:
    """False if `path` exists."""
    if os.path.lexists(path) or os.path.islink(existing):
        return False
    make_directory(Path(path).parent, CACHE_MODE)
    try:
        os.link(existing, path)
    except OSError:  # another user's file, or a file system without links
        shutil.copy2(existing, path)
    return True


def _make_readable(directory: Path) -> None:
    """Whatever the umask: guests run as unprivileged users."""
    directory.chmod(0o755)
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                executable = name in directories or os.stat(path).st_mode & 0o111
                os.chmod(path, 0o755 if executable else 0o644)


# -- progress ---------------------------------------------------------------------------------


@contextmanager
def open_listener(progress: Listener | Literal["auto"] | None) -> Iterator[Listener]:
    """The listener for `progress`: a display on a terminal, two lines elsewhere, or a callback."""
    if progress is None:
        yield lambda news: None
    elif progress != "auto":
        yield progress
    elif sys.stderr is not None and sys.stderr.isatty():
        with _open_display() as listener:
            yield listener
    else:
        yield _Lines()


class _Lines:
    """Prints the first report and the last as plain lines; nothing if nothing is built."""

    def __init__(self) -> None:
        self._said_start = False

    def __call__(self, news: BuildProgress) -> None:
        if news.step in ("waiting", "finished") or not self._said_start:
            print(f"belljar: {news.text}", file=sys.stderr, flush=True)
        self._said_start = self._said_start or news.step != "waiting"


@contextmanager
def _open_display() -> Iterator[Listener]:
    # Imported here: only a first build on a terminal needs it.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    # No markup: the text contains names from package indexes.
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("…")

        def show(news: BuildProgress) -> None:
            display.update(task, description=f"{news.environment}: {news.text}")
            if news.step == "finished":
                display.console.print(f"✓ {news.text}", markup=False, highlight=False)

        yield show
