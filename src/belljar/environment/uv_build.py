"""Fill an empty directory with an interpreter's packages, then turn it into what guests mount.

The steps: an ordinary virtual environment (PEP 405) is laid out, uv installs into it, and then
everything that names a place of this host is changed to the place in the guest. From then on the
directory is valid only inside a guest, at /opt/env. Nothing out of a package is run here, unless
the caller allowed source builds.

An environment that has all packages of one that is built already gets only what it has more: that
is installed and compiled as always, and then the files of the other one are added as hard links.
Nothing is ever written to a directory that has such links.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from belljar.environment.addresses import strip_credentials
from belljar.environment.build_progress import Step
from belljar.environment.interpreter import Interpreter, guest_python
from belljar.environment.requirement import UNSOLVABLE, canonical_name, few, why_unsolvable
from belljar.environment.uv import find_uv, read_pip_files, uv_settings
from belljar.errors import EnvironmentBuildError
from belljar.results.execution import printable

GUEST_ROOT = "/opt/env"
_SHOWN_LINES = 12  # of uv's complaint, from its start and again from its end
Say = Callable[[Step, str], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to put into the directory."""

    interpreter: Interpreter
    packages: Sequence[str]
    allow_builds: bool
    lock: int  # a descriptor that uv inherits, see Store.building
    base: Path | None = None  # an environment of the same interpreter, to start from


def assemble(directory: Path, recipe: Recipe, say: Say) -> dict[str, str]:
    """Make the environment in `directory`; give the installed distributions and versions."""
    _lay_out(directory, recipe.interpreter)
    if recipe.packages:
        say("resolving", "resolving packages")
        missing = list(recipe.packages)
        if recipe.base is not None:
            missing = _missing(directory, recipe, recipe.base, say)
        _install(directory, recipe, missing, say)
    _relocate(directory, recipe.interpreter)
    if recipe.packages:
        say("compiling", "compiling bytecode")
        _compile(directory, recipe.interpreter)
    _open_to_all(directory)
    if recipe.base is not None:
        _add_links(recipe.base, directory, recipe.interpreter)
    return distributions(directory, recipe.interpreter)


def distributions(directory: Path, interpreter: Interpreter) -> dict[str, str]:
    """Those that are installed, with their versions."""
    found = metadata.distributions(path=[str(site_packages(directory, interpreter))])
    return dict(sorted((each.name, each.version) for each in found))


def site_packages(directory: Path, interpreter: Interpreter) -> Path:
    # The standard library's own directory name, because free-threaded builds add a "t".
    return directory / "lib" / Path(interpreter.stdlib).name / "site-packages"


def _lay_out(directory: Path, interpreter: Interpreter) -> None:
    site_packages(directory, interpreter).mkdir(parents=True)
    (directory / "lib64").symlink_to("lib")
    (directory / "bin").mkdir()
    _point_at(directory, interpreter, interpreter.executable)


def _point_at(directory: Path, interpreter: Interpreter, executable: str) -> None:
    """Let the environment's `python` be `executable`."""
    for name in ("python", "python3", f"python{interpreter.short_version}"):
        link = directory / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(executable)
    (directory / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(executable)}\n"
        "include-system-site-packages = false\n"
        f"version = {'.'.join(map(str, interpreter.version))}\n"
    )


def _missing(directory: Path, recipe: Recipe, base: Path, say: Say) -> list[str]:
    """What is to be installed beside the distributions of `base`, with its version.

    Those of `base` stay as they are, unless what is added demands another version."""
    had = [
        f"{canonical_name(name)}=={version}"
        for name, version in distributions(base, recipe.interpreter).items()
    ]
    wanted, lock = directory / ".wanted", directory / ".lock-file"
    wanted.write_text("".join(f"{package}\n" for package in recipe.packages))
    lock.write_text("".join(f"{line}\n" for line in had))  # what is in it already is preferred
    options = ["--no-header", "--no-annotate", "--output-file", str(lock), str(wanted)]
    _uv(directory, recipe, ["compile"], options, say)
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    wanted.unlink()
    lock.unlink()
    return [line for line in lines if line not in had]


def _install(directory: Path, recipe: Recipe, packages: Sequence[str], say: Say) -> None:
    if not packages:
        return
    # Hard links would share files with uv's cache: what edits one would edit the other.
    options = ["--link-mode", "copy", *(["--no-deps"] if recipe.base else []), "--", *packages]
    _uv(directory, recipe, ["install"], options, say)


def _uv(
    directory: Path, recipe: Recipe, verb: Sequence[str], options: Sequence[str], say: Say
) -> None:
    pip_files = read_pip_files(os.environ)
    env, arguments = uv_settings(os.environ, pip_files, allow_builds=recipe.allow_builds)
    command = [
        find_uv(),
        # Settings of whatever project the caller happens to stand in are not meant for guests.
        "--project",
        str(directory),
        "pip",
        *verb,
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
                _tell(line.strip(), say)
        except BaseException:
            uv.kill()
            raise
    if uv.returncode != 0:
        raise _install_error(list(lines), uv.returncode, recipe)


def _tell(line: str, say: Say) -> None:
    """Pass on what one line of uv's messages means."""
    if line.startswith("Resolved "):
        say("downloading", f"downloading ({line.split(' in ')[0].lower()})")
    elif line.startswith(("Downloading ", "Building ")):
        say("downloading", line[0].lower() + line[1:])
    elif line.startswith("Prepared "):
        say("installing", "installing")


# What uv says -> what to do about it. The first that matches is given as the hint.
_REMEDIES = (
    (
        r"building from source is disabled|no usable wheels|Building source distributions|"
        r"--no-build|only-binary",
        "only ready-made wheels are installed, because building a package runs its code on this "
        "host, outside any sandbox; if you trust it: Environment(…, allow_builds=True), or "
        "belljar env build NAME … --allow-builds",
    ),
    (
        r"network was disabled|offline",
        "uv was told to stay offline (UV_OFFLINE), and its cache lacks a package",
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


def _install_error(lines: list[str], status: int, recipe: Recipe) -> EnvironmentBuildError:
    said = "\n".join(lines)
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, said)), None)
    starts = [i for i, line in enumerate(lines) if re.match(r"\s*(error\b|×)", line)]
    complaint = lines[starts[0] :] if starts else lines
    if len(complaint) > 2 * _SHOWN_LINES:
        complaint = [*complaint[:_SHOWN_LINES], "…", *complaint[-_SHOWN_LINES:]]
    how = f"exit status {status}" if status > 0 else f"killed by signal {-status}"
    message = f"installing {few(recipe.packages)} failed (uv: {how})"
    if (why := why_unsolvable(said)) is not None:
        message = f"{why}; {message}"
    return EnvironmentBuildError("\n".join([message, *complaint]), hint=hint)


def _relocate(directory: Path, interpreter: Interpreter) -> None:
    """Change every place of this host to the place in the guest."""
    _point_at(directory, interpreter, guest_python(interpreter))
    for script in (directory / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            _relocate_script(script, str(directory).encode())
    (directory / ".lock").unlink(missing_ok=True)  # uv's
    # Where a wheel came from, which may be a home directory, and uv's notes on its cache.
    for name in ("direct_url.json", "uv_cache.json", "uv_build.json"):
        for note in site_packages(directory, interpreter).glob(f"*.dist-info/{name}"):
            note.unlink()


def _relocate_script(script: Path, here: bytes) -> None:
    text = script.read_bytes()
    first, _, rest = text.partition(b"\n")
    if first == b"#!/bin/sh" and rest.startswith(b"'''exec' "):
        # For a path too long for a first line, installers write a line of shell in a Python string.
        rest = rest.split(b"\n", 2)[2]
    elif not (first.startswith(b"#!") and here in first):
        return
    script.write_bytes(f"#!{GUEST_ROOT}/bin/python\n".encode() + rest)


def _compile(directory: Path, interpreter: Interpreter) -> None:
    """Write bytecode whose file names are the guest's, so that no build path is in it.

    Validity is not tied to time stamps: the guest cannot write, so a copy of the directory with
    new times would otherwise be compiled again at every import. The packages' own tests, a third
    of the files of the scientific ones, are left as they are.
    """
    jobs = min(len(os.sched_getaffinity(0)), 8)
    command = [interpreter.executable, "-I", "-S", "-W", "ignore", "-m", "compileall"]
    command += ["-qq", "--invalidation-mode", "unchecked-hash"]
    command += ["-p", GUEST_ROOT, "-x", "/tests/"]
    failure = ""
    # Parallel compilation needs semaphores, which some containers (no /dev/shm) do not have.
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
        # Status 1 without a message: a file that is no valid Python, such as a template.
        if done.returncode in (0, 1) and not done.stderr:
            return
        failure = printable(done.stderr)[-2000:] or f"exit status {done.returncode}"
    raise EnvironmentBuildError(f"compiling bytecode failed\n{failure}")


def _add_links(base: Path, directory: Path, interpreter: Interpreter) -> None:
    """Add the files of `base`, but for those of distributions that `directory` has itself."""
    own = {canonical_name(name) for name in distributions(directory, interpreter)}
    replaced: set[str] = set()
    for each in metadata.distributions(path=[str(site_packages(base, interpreter))]):
        if canonical_name(each.name) in own:
            for file in each.files or ():
                replaced.add(os.path.normpath(os.path.relpath(str(each.locate_file(file)), base)))
    linked: set[str] = set()
    for top in ("bin", "lib"):
        for parent, _, names in os.walk(base / top):
            below = os.path.relpath(parent, base)
            # Bytecode goes with its source, which is in the directory above.
            sources = None if os.path.basename(parent) != "__pycache__" else linked
            for path in (os.path.join(below, name) for name in names):
                if path in replaced or (sources is not None and _source(path) not in sources):
                    continue
                if _link(os.path.join(base, path), os.path.join(directory, path)):
                    linked.add(path)


def _source(bytecode: str) -> str:
    directory, name = os.path.split(bytecode)
    return os.path.join(os.path.dirname(directory), f"{name.partition('.')[0]}.py")


def _link(existing: str, path: str) -> bool:
    """False if there is something at `path` already."""
    if os.path.lexists(path) or os.path.islink(existing):
        return False
    _make_directory(os.path.dirname(path))
    try:
        os.link(existing, path)
    except OSError:  # somebody else's file, or a file system without links
        shutil.copy2(existing, path)
    return True


def _make_directory(path: str) -> None:
    if not os.path.isdir(path):
        _make_directory(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)  # whatever the umask


def _open_to_all(directory: Path) -> None:
    """Readable by the unprivileged users guests run as, whatever the umask of the builder."""
    directory.chmod(0o755)
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                executable = name in directories or os.stat(path).st_mode & 0o111
                os.chmod(path, 0o755 if executable else 0o644)
