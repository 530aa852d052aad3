"""Commands that the code of a cell runs: values of the code in them, and answers to those that
install or list packages. And what to do instead of what a cell cannot do."""

import ast
import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

_EXPANDED = re.compile(r"\{\{|\}\}|(?<!\$)\{([^{}]+)\}|\$\$|\$([A-Za-z_]\w*)")
_PIP = r"(?:sudo\s+)?(?:\S*python\S*\s+-m\s+)?(?:uv\s+)?pip\d?"
_INSTALL = re.compile(
    rf"(?:{_PIP}|(?:sudo\s+)?(?:conda|mamba|apt|apt-get))\s(?:[^;&|]*\s)?install\b([^;&|]*)\Z"
)
_INSTALLER = re.compile(r"\b(pip\d?|conda|mamba|apt-get|apt)\s")
_PROJECT = re.compile(r"['\"]?([A-Za-z0-9][\w.-]*)")
# Without options but a format. Whatever follows (a pipe, a file) gets the answer as its input.
_QUERY = re.compile(
    rf"{_PIP}\s+(list|freeze|show)\b"
    r"((?:\s+(?:--format[= ]\w+|--disable-pip-version-check|\w[\w.-]*)(?=[\s;|&]|\Z))*)"
    r"(\s*(?:\d?[;&|>].*)?)\Z",
    re.DOTALL,
)
_INSTALLERS = re.compile(
    r"(?:\A|[\s;&|(])(?:(?:(pip\d?|uv|conda|mamba)|apt|apt-get|apk|dnf|yum|brew)\s[^;&|\n]*"
    r"(?<=\s)(?:install|add)|sudo)\s"
)

PACKAGES_HINT = (
    "a cell installs no packages: name them in the sandbox's environment, "
    "Environment(name, packages=[...])"
)
PROGRAMS_HINT = (
    "a cell installs no programs and cannot become root: Python packages come with the sandbox's "
    "environment (packages=[...]), programs from the host or from the image of a container"
)

COMMANDS_HINT = (
    "use Python (os, pathlib, subprocess), or run commands from the host with "
    "sandbox.commands.run()"
)
_TIME_HINT = "measure with time.perf_counter(), or read the duration of the Execution"
HINTS = {
    **dict.fromkeys(("pip", "conda", "mamba", "uv"), PACKAGES_HINT),
    **dict.fromkeys(("bash", "sh", "script", "system", "sx", "ls", "cat", "pwd"), COMMANDS_HINT),
    **dict.fromkeys(("time", "timeit", "prun"), _TIME_HINT),
    "writefile": "write it with open(), or from the host with sandbox.files.write()",
    "run": "use runpy.run_path()",
    "cd": "use os.chdir()",
    "env": "use os.environ",
    "pylab": "import numpy and matplotlib.pyplot by name",
}


def explain_unknown(magic: str, known: "Iterable[str]") -> str:
    """`magic` with its `%` or `%%`."""
    name = magic.lstrip("%")
    sign = magic[: -len(name)]
    hint = HINTS.get(name) or f"there are {', '.join(sign + each for each in known)}"
    return f"there is no magic {magic} here: {hint}"


def expand(text: str, frame: Any) -> str:
    """Replace `{expression}` and `$variable` by values of the code, where they have one."""

    def replace(found: "re.Match[str]") -> str:
        if found[0] in ("{{", "}}", "$$"):
            return found[0][0]
        if found[2] is not None:
            known = {**frame.f_globals, **frame.f_locals}
            return str(known[found[2]]) if found[2] in known else found[0]
        try:
            if isinstance(ast.parse(found[1].strip(), mode="eval").body, ast.Tuple):
                return found[0]  # {a,b} of the shell
            return str(eval(found[1].strip(), frame.f_globals, frame.f_locals))
        except Exception:  # it is meant for the shell: awk '{print}'
            return found[0]

    return _EXPANDED.sub(replace, text)


def run_command(command: str, capture: bool = False) -> "Tuple[bytes, int]":
    """In a shell: its standard output, if it is captured, and its exit status."""
    command, text = _answer_query(command)
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    output, _, status = run_program([shell, "-c", command], text, out=capture)
    return output, status


def run_program(
    argv: List[str], text: Optional[str] = None, *, out: bool = False, err: bool = False
) -> "Tuple[bytes, bytes, int]":
    """What is captured of its output, and its exit status. `text` is its standard input. It writes
    to the pipes of the cell itself, so that the order of all output is kept."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE if out else None,
        stderr=subprocess.PIPE if err else None,
        start_new_session=True,
    )
    try:
        given = None if text is None else text.encode("utf-8", "surrogatepass")
        output, errors = process.communicate(given)
    except BaseException:  # a limit, or the caller: the command ends with the cell
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    status = process.returncode
    return output or b"", errors or b"", 128 - status if status < 0 else status


# -- packages -------------------------------------------------------------------------------------


def explain_install(command: str) -> Optional[List[str]]:
    """Say why nothing is installed, and what is there. None if the command installs nothing, else
    the packages that are missing."""
    found = _INSTALL.match(command.strip())
    if found is None:
        return None
    installer = _INSTALLER.search(command + " ")
    assert installer is not None
    if installer[1].startswith("apt"):
        print(f"{installer[1]} installs nothing here: {PROGRAMS_HINT}.")
        return ["programs"]
    print(f"{installer[1]} installs nothing here: packages are fixed when the sandbox starts.")
    words = [] if re.search(r"\s(-r|--requirement)\b", found[1]) else found[1].split()
    projects = [_PROJECT.match(word) for word in words if not word.startswith("-")]
    missing = []
    for project in filter(None, projects):
        try:
            print(f"{project[1]} {importlib.metadata.version(project[1])} is there.")
        except importlib.metadata.PackageNotFoundError:
            missing.append(project[1])
    if missing or not projects:
        listed = ", ".join(map(repr, missing)) or "..."
        print(f"Not there: {listed}. " if missing else "", end="")
        print(f"They are given at its start: Sandbox(packages=[{listed}]).")
    return missing


def explain_failure(commands: str) -> None:
    """Say why commands that install something have failed; nothing about others."""
    found = _INSTALLERS.search(commands + " ")
    if found:
        print(f"[{PACKAGES_HINT if found[1] else PROGRAMS_HINT}]", file=sys.stderr)


def _answer_query(command: str) -> "Tuple[str, Optional[str]]":
    """`pip list` and the like are answered here, because there may be no pip, or one of another
    Python. Returns the command to run instead, and its input."""
    found = _QUERY.match(command.strip())
    if found is None:
        return command, None
    words = found[2].replace("--format ", "--format=").split()
    names = [word for word in words if not word.startswith("-")]
    form = next((word[9:] for word in words if word.startswith("--format=")), found[1])
    if found[1] != "show":
        return f"cat{found[3]}", _list(form)
    text = "---\n".join(_describe(names))
    return ("cat" if text else "false") + found[3], text


def _list(form: str) -> str:
    known: Dict[str, str] = {}
    for each in importlib.metadata.distributions():
        # A broken one has no name. The first on the path is the one that is imported.
        if each.metadata["Name"]:
            known.setdefault(each.metadata["Name"], each.version)
    rows = sorted(known.items(), key=lambda row: row[0].lower())
    if form == "json":
        return json.dumps([{"name": name, "version": version} for name, version in rows]) + "\n"
    if form == "freeze":
        return "".join(f"{name}=={version}\n" for name, version in rows)
    rows = [("Package", "Version"), ("-" * max(map(len, known), default=7), "-------"), *rows]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}} {version}\n" for name, version in rows)


def _describe(names: List[str]) -> "Iterator[str]":
    for name in names:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"WARNING: Package(s) not found: {name}", file=sys.stderr)
            continue
        needed = [line for line in found.requires or () if "extra ==" not in line]
        needs = ", ".join(match[1] for match in map(_PROJECT.match, needed) if match)
        said = [(name, found.metadata[name]) for name in ("Name", "Version", "Summary", "License")]
        said += [("Location", str(found.locate_file(""))), ("Requires", needs)]
        # A license may be its whole text.
        yield "".join(f"{name}: {(text or '').partition(chr(10))[0]}\n" for name, text in said)
