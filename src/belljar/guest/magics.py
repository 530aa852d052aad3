"""What `!` and `%` lines of a cell do, and what `get_ipython()` gives."""

import ast
import contextlib
import importlib.metadata
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import timeit
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ..protocol import messages

# Accepted, and without effect: figures are shown anyway, and nothing is to be reloaded.
IDLE = ("matplotlib", "config", "load_ext", "reload_ext", "autoreload")
ALIASES = ("cat", "cp", "head", "ls", "mkdir", "mv", "rm", "tail", "wc")
REPEATS = 7  # of a measurement by %timeit


class UsageError(Exception):
    """A magic that does not exist, or that cannot do what it was told."""

    __module__ = "builtins"  # so that a traceback shows the name alone


def explain_unknown(magic: str, known: "Iterable[str]") -> str:
    """`magic` with its `%` or `%%`."""
    name = magic.lstrip("%")
    sign = magic[: -len(name)]
    hint = _HINTS.get(name) or f"there are {', '.join(sign + each for each in known)}"
    return f"there is no magic {magic} here: {hint}"


class Shell:
    """What `get_ipython()` gives, as far as a sandbox has it."""

    colors = "NoColor"

    def __init__(self) -> None:
        self.events = _Registrations()
        self.display_formatter = _Registrations()
        self._previous = ""  # directory, for `%cd -`
        self._started: Any = None  # clocks of a cell

    @property
    def user_ns(self) -> Dict[str, Any]:
        return sys.modules["__main__"].__dict__

    def system(self, cmd: str) -> None:
        """`!cmd`: run it in a shell; its output is output of the cell."""
        self._system(_expand(cmd, sys._getframe(1)))

    def getoutput(self, cmd: str) -> List[str]:
        """`x = !cmd`: the lines that it writes to its standard output."""
        command = _expand(cmd, sys._getframe(1))
        output, status = _run(_shell(), ["-c", command], capture=True)
        self._note(status)
        return output.decode("utf-8", "replace").splitlines()

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        if magic_name in IDLE:
            return None
        if magic_name not in LINE_MAGICS:
            raise UsageError(explain_unknown(f"%{magic_name}", LINE_MAGICS))
        if magic_name not in ("time", "timeit"):
            line = _expand(line, sys._getframe(_stack_depth))
        return LINE_MAGICS[magic_name](self, line)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        if magic_name not in CELL_MAGICS:
            raise UsageError(explain_unknown(f"%%{magic_name}", CELL_MAGICS))
        return CELL_MAGICS[magic_name](self, line, cell)

    def magic(self, arg_s: str) -> Any:
        name, _, line = arg_s.lstrip("%").partition(" ")
        return self.run_line_magic(name, line, 2)

    def enable_gui(self, gui: Any = None) -> None:
        """A sandbox has no windows."""

    # -- clocks

    def start_clock(self) -> "Tuple[float, os.times_result]":
        return time.perf_counter(), os.times()

    def stop_clock(self, started: "Tuple[float, os.times_result]", value: Any = None) -> Any:
        wall, (began, before) = time.perf_counter(), started
        user, system, *_ = (now - then for now, then in zip(os.times(), before))
        total = _format_time(user + system)
        print(f"CPU times: user {_format_time(user)}, sys: {_format_time(system)}, total: {total}")
        print(f"Wall time: {_format_time(wall - began)}")
        return value

    @contextlib.contextmanager
    def clock(self) -> "Iterator[None]":
        started = self.start_clock()
        yield
        self.stop_clock(started)

    def start_cell(self) -> None:
        self._started = self.start_clock()

    def stop_cell(self, value: Any) -> Any:
        return self.stop_clock(self._started, value)

    # -- magics

    def _time(self, line: str, cell: str = "") -> Any:
        started, code = self.start_clock(), cell or line
        try:
            made = eval(compile(code, "<time>", "eval", dont_inherit=True), self.user_ns)
        except SyntaxError:
            made = None
            exec(compile(code, "<time>", "exec", dont_inherit=True), self.user_ns)
        return self.stop_clock(started, made)

    def _timeit(self, line: str, cell: str = "") -> None:
        given = re.match(r"(?:-[nr]\s*\d+\s+)*", line + " ")
        options = "" if given is None else given[0].strip()
        setup = (line + " ")[len(options) :].strip()
        numbers = dict(re.findall(r"-([nr])\s*(\d+)", options))
        timer = (
            timeit.Timer(cell, setup or "pass", globals=self.user_ns)
            if cell
            else timeit.Timer(setup or "pass", globals=self.user_ns)
        )
        loops = int(numbers["n"]) if "n" in numbers else timer.autorange()[0]
        runs = [each / loops for each in timer.repeat(int(numbers.get("r", REPEATS)), loops)]
        mean, spread = statistics.mean(runs), statistics.pstdev(runs)
        print(
            f"{_format_time(mean)} \u00b1 {_format_time(spread)} per loop "
            f"(mean \u00b1 std. dev. of {len(runs)} runs, {loops:,} loops each)"
        )

    def _cd(self, line: str) -> None:
        path = self._previous if line == "-" else os.path.expanduser(line.strip("'\"") or "~")
        if not path:
            raise UsageError("%cd -: there was no %cd before")
        before = os.getcwd()
        os.chdir(path)
        self._previous = before
        print(os.getcwd())

    def _env(self, line: str) -> Any:
        found = re.match(r"(\w+)(?:\s*=\s*|\s+)(.*)", line)
        if found:
            os.environ[found[1]] = found[2]
            print(f"env: {found[1]}={found[2]}")
            return None
        if line and line not in os.environ:
            raise UsageError(f"%env: there is no variable {line}")
        return os.environ[line] if line else dict(os.environ)

    def _install(self, line: str) -> None:
        self._system(f"pip {line}")

    def _system(self, command: str) -> None:
        missing = explain_install(command)
        if missing is None:
            self._note(_run(_shell(), ["-c", command])[1])
        else:
            self.user_ns["_exit_code"] = int(bool(missing))

    def _note(self, status: int) -> None:
        self.user_ns["_exit_code"] = status
        if status:
            print(f"[exit status {status}]", file=sys.stderr)

    def _script(self, line: str, cell: str) -> None:
        program, *arguments = line.split() or [_shell()]
        status = _run(program, [*arguments, "-c", cell])[1]
        self.user_ns["_exit_code"] = status
        if status:
            raise subprocess.CalledProcessError(status, program)

    def _writefile(self, line: str, cell: str) -> None:
        path = _expand(line.replace("-a ", "", 1).strip(), sys._getframe(2)).strip("'\"")
        appends = line.startswith("-a ")
        with open(os.path.expanduser(path), "a" if appends else "w", encoding="utf-8") as file:
            file.write(cell if cell.endswith("\n") else cell + "\n")
        print(f"{'Appending to' if appends else 'Writing'} {path}")


def _alias(program: str) -> "Callable[[Shell, str], None]":
    return lambda shell, line: shell._system(f"{program} {line}")


LINE_MAGICS: "Dict[str, Callable[[Shell, str], Any]]" = {
    "cd": Shell._cd,
    "env": Shell._env,
    "set_env": Shell._env,
    "pip": Shell._install,
    "pwd": lambda shell, line: os.getcwd(),
    "time": Shell._time,
    "timeit": Shell._timeit,
    **{program: _alias(program) for program in ALIASES},
}
CELL_MAGICS: "Dict[str, Callable[[Shell, str, str], Any]]" = {
    "bash": lambda shell, line, cell: shell._script("bash", cell),
    "sh": lambda shell, line, cell: shell._script("sh", cell),
    "script": Shell._script,
    "time": Shell._time,
    "timeit": Shell._timeit,
    "writefile": Shell._writefile,
}


class _Registrations:
    """What libraries tell IPython about themselves, and a sandbox does not need."""

    def __init__(self) -> None:
        self.type_printers: Dict[Any, Any] = {}

    @property
    def formatters(self) -> "Dict[str, _Registrations]":
        return dict.fromkeys(("text/plain", "text/latex", "image/png", "image/svg+xml"), self)

    def register(self, *args: Any) -> None: ...

    unregister = for_type = for_type_by_name = register


# -- commands -------------------------------------------------------------------------------------

_EXPANDED = re.compile(r"\{\{|\}\}|(?<!\$)\{([^{}]+)\}|\$\$|\$([A-Za-z_]\w*)")
_INSTALL = re.compile(
    r"(?:sudo\s+)?(?:\S*python\S*\s+-m\s+)?(?:uv\s+)?(pip\d?|conda|mamba|apt|apt-get)\s"
    r"(?:[^;&|]*\s)?install\b([^;&|]*)\Z"
)
_PROJECT = re.compile(r"['\"]?([A-Za-z0-9][\w.-]*)")


def _expand(text: str, frame: Any) -> str:
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


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _run(program: str, arguments: List[str], capture: bool = False) -> "Tuple[bytes, int]":
    """Its standard output, if it is captured, and its exit status. It writes to the pipes of the
    cell itself, so that the order of all output is kept."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    process = subprocess.Popen(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        start_new_session=True,
    )
    try:
        output = process.communicate()[0]
    except BaseException:  # a limit, or the caller: the command ends with the cell
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    status = process.returncode
    return output or b"", 128 - status if status < 0 else status


def explain_install(command: str) -> Optional[List[str]]:
    """Say why nothing is installed, and what is there. None if the command installs nothing, else
    the packages that are missing."""
    found = _INSTALL.match(command.strip())
    if found is None:
        return None
    print(f"{found[1]} installs nothing here: packages are fixed when the sandbox starts.")
    words = [] if re.search(r"\s(-r|--requirement)\b", found[2]) else found[2].split()
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


def _format_time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(seconds, 0.0) * 1e9:.3g} ns"


SHELL = Shell()


# -- lines that are not Python --------------------------------------------------------------------

_CELL_MAGIC = re.compile(r"%%(\w+)")
_LINE = re.compile(r"(?:[\w., \t]+=)?[ \t]*(?:(!+)[ \t]*(.*)|%([A-Za-z]\w*)[ \t]*(.*))")
_HELP = re.compile(r"\?{1,2}[ \t]*([\w.]+)[ \t]*$|([\w.]+)[ \t]*\?{1,2}[ \t]*$")
_INSTALLS = re.compile(r"(?:\S*python\S* -m )?(?:uv )?(?:pip\d?|conda|mamba|apt|apt-get)\b")

_PACKAGES_HINT = (
    "a cell installs no packages: name them in the sandbox's environment, "
    "Environment(name, packages=[...])"
)
_COMMANDS_HINT = (
    "use Python (os, pathlib, subprocess), or run commands from the host with "
    "sandbox.commands.run()"
)
_TIME_HINT = "measure with time.perf_counter(), or read the duration of the Execution"
_HINTS = {
    **dict.fromkeys(("pip", "conda", "mamba", "uv"), _PACKAGES_HINT),
    **dict.fromkeys(("bash", "sh", "script", "system", "sx", "ls", "cat", "pwd"), _COMMANDS_HINT),
    **dict.fromkeys(("time", "timeit", "prun"), _TIME_HINT),
    "writefile": "write it with open(), or from the host with sandbox.files.write()",
    "run": "use runpy.run_path()",
    "cd": "use os.chdir()",
    "env": "use os.environ",
    "pylab": "import numpy and matplotlib.pyplot by name",
}


def explain_magic(code: str) -> Optional[str]:
    """What to write instead of notebook syntax that does not compile; None for other errors."""
    cell = _CELL_MAGIC.match(code.lstrip())
    if cell:
        return _advise(f"%%{cell[1]}", _HINTS.get(cell[1]))
    lines = code.split("\n")
    number = messages.find_syntax_error(code)
    if number is None or number > len(lines):
        return None
    line = lines[number - 1].strip()
    found, help_ = _LINE.match(line), _HELP.match(line)
    if help_:
        return _advise(f"{line[:40]!r}", f"use help({(help_[1] or help_[2])[:80]})")
    if found is None:
        return None
    if found[1]:
        return _advise("!", _PACKAGES_HINT if _INSTALLS.match(found[2]) else _COMMANDS_HINT)
    return _advise(f"%{found[3]}", _HINTS.get(found[3]))


def _advise(what: str, instead: Optional[str]) -> str:
    said = f"{what} is notebook syntax, not Python"
    return f"{said}: {instead}" if instead else f"{said}; there are no magics here"
