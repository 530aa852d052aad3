"""What `!` and `%` lines of a cell do, and what `get_ipython()` gives."""

import contextlib
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import display, shell_commands
from .shell_commands import expand, explain_unknown, run_program

# Accepted, and without effect: figures are shown anyway, and nothing is to be reloaded.
IDLE = ("matplotlib", "config", "load_ext", "reload_ext", "autoreload")
ALIASES = ("cat", "cp", "head", "ls", "mkdir", "mv", "rm", "tail", "wc")
SHELLS = ("bash", "sh")
SHORT = 30_000  # characters of a script: an argument has at most 128 KiB
CONTENT = {"html": "text/html", "latex": "text/latex", "markdown": "text/markdown"}
REPEATS = 7  # of a measurement by %timeit


class UsageError(Exception):
    """A magic that does not exist, or that cannot do what it was told."""

    __module__ = "builtins"  # so that a traceback shows the name alone


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
        self._system(expand(cmd, sys._getframe(1)))

    def getoutput(self, cmd: str) -> List[str]:
        """`x = !cmd`: the lines that it writes to its standard output."""
        command = expand(cmd, sys._getframe(1))
        output, status = shell_commands.run_command(command, capture=True)
        self._note(status, command)
        return output.decode("utf-8", "replace").splitlines()

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        if magic_name in IDLE:
            return None
        if magic_name not in LINE_MAGICS:
            raise UsageError(explain_unknown(f"%{magic_name}", LINE_MAGICS))
        if magic_name not in ("time", "timeit"):
            line = expand(line, sys._getframe(_stack_depth))
        return LINE_MAGICS[magic_name](self, line)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        if magic_name not in CELL_MAGICS:
            raise UsageError(explain_unknown(f"%%{magic_name}", CELL_MAGICS))
        if magic_name not in ("time", "timeit"):
            line = expand(line, sys._getframe(1))
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

    # -- captured output

    @contextlib.contextmanager
    def capture(self, line: str) -> "Iterator[None]":
        words, captured = line.split(), Captured()
        with contextlib.ExitStack() as stack:
            for name in ("stdout", "stderr"):
                if f"--no-{name}" not in words:
                    stack.enter_context(captured.redirect(name))
            if "--no-display" not in words:
                stack.enter_context(display.capture_bundles(captured.bundles))
            self.user_ns.update((name, captured) for name in words if not name.startswith("-"))
            yield
            if "matplotlib.pyplot" in sys.modules:
                sys.modules["matplotlib.pyplot"].show()  # the open figures

    def _capture(self, line: str, cell: str) -> None:
        with self.capture(line):
            exec(compile(cell, "<capture>", "exec", dont_inherit=True), self.user_ns)

    def show_value(self, value: Any) -> None:
        if value is not None:
            display.show(value)

    # -- magics

    def _time(self, line: str, cell: str = "") -> Any:
        started, code = self.start_clock(), cell or line
        try:
            made = eval(compile(code, "<time>", "eval", dont_inherit=True), self.user_ns)
        except SyntaxError:
            made = None
            exec(compile(code, "<time>", "exec", dont_inherit=True), self.user_ns)
        return self.stop_clock(started, made)

    def _timeit(self, line: str, cell: str = "") -> "Optional[TimeitResult]":
        given = re.match(r"(?:-(?:[nrp]\s*\d+|[cotq]+)\s+)*", line + " ")
        options = "" if given is None else given[0].strip()
        setup = (line + " ")[len(options) :].strip()
        numbers = dict(re.findall(r"-([nr])\s*(\d+)", options))
        timer = (
            timeit.Timer(cell, setup or "pass", globals=self.user_ns)
            if cell
            else timeit.Timer(setup or "pass", globals=self.user_ns)
        )
        loops = int(numbers["n"]) if "n" in numbers else timer.autorange()[0]
        made = TimeitResult(loops, timer.repeat(int(numbers.get("r", REPEATS)), loops))
        flags = "".join(re.findall(r"-([cotq]+)", options))
        if "q" not in flags:
            print(made)
        return made if "o" in flags else None

    def _who(self, line: str) -> List[str]:
        """The names of the code, of these types if some are named."""
        kinds = line.split()
        names = sorted(name for name in self.user_ns if not name.startswith("_"))
        return [n for n in names if not kinds or type(self.user_ns[n]).__name__ in kinds]

    def _print_who(self, line: str) -> None:
        print("\t ".join(self._who(line)) or "Interactive namespace is empty.")

    def _print_whos(self, line: str) -> None:
        rows = [("Variable", "Type", "Data/Info"), ("-" * 8, "-" * 4, "-" * 9)]
        for name in self._who(line):
            value = self.user_ns[name]
            rows.append((name, type(value).__name__, _summarize(value)))
        widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
        for name, kind, info in rows:
            print(f"{name:<{widths[0]}}   {kind:<{widths[1]}}   {info}")

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

    def _system(self, command: str) -> None:
        missing = shell_commands.explain_install(command)
        if missing is None:
            self._note(shell_commands.run_command(command)[1], command)
        else:
            self.user_ns["_exit_code"] = int(bool(missing))

    def _note(self, status: int, command: str) -> None:
        self.user_ns["_exit_code"] = status
        if status:
            print(f"[exit status {status}]", file=sys.stderr)
            shell_commands.explain_failure(command)

    def _script(self, line: str, cell: str) -> None:
        words, names = shlex.split(line), {}
        for option in ("--out", "--err"):
            if option in words[:-1]:
                place = words.index(option)
                names[option[2:]] = words[place + 1]
                del words[place : place + 2]
        argv = [word for word in words if word != "--no-raise-error"]
        unknown = [word for word in argv if word in ("--bg", "--proc", "--out", "--err")]
        if unknown or not argv:
            what = f"{unknown[0]} cannot be used like this" if unknown else "which program?"
            raise UsageError(f"{what}: %%script PROGRAM [--out NAME] [--err NAME] ...")
        if argv[0] in SHELLS and not {"-c", "-s"}.intersection(argv) and len(cell) < SHORT:
            # Else a command that reads its input would take the rest of the script.
            command, text = [*argv, "-c", cell], None
        else:
            command, text = argv, cell
        if shutil.which(argv[0]) is None:
            raise UsageError(f"there is no program {argv[0]!r} here")
        *texts, status = run_program(command, text, out="out" in names, err="err" in names)
        for name, written in zip(("out", "err"), texts):
            if name in names:
                self.user_ns[names[name]] = written.decode("utf-8", "replace")
        self.user_ns["_exit_code"] = status
        if status and argv == words:
            shell_commands.explain_failure(cell)
            raise subprocess.CalledProcessError(status, argv[0], *texts)

    def _writefile(self, line: str, cell: str) -> None:
        path = line.replace("-a ", "", 1).strip().strip("'\"")
        appends = line.startswith("-a ")
        with open(os.path.expanduser(path), "a" if appends else "w", encoding="utf-8") as file:
            file.write(cell if cell.endswith("\n") else cell + "\n")
        print(f"{'Appending to' if appends else 'Writing'} {path}")


class TimeitResult:
    """What `%timeit -o` gives: seconds of a loop."""

    def __init__(self, loops: int, all_runs: List[float]) -> None:
        self.loops, self.repeat, self.all_runs = loops, len(all_runs), all_runs
        self.timings = [each / loops for each in all_runs]
        self.best, self.worst = min(self.timings), max(self.timings)
        self.average, self.stdev = statistics.mean(self.timings), statistics.pstdev(self.timings)

    def __str__(self) -> str:
        return (
            f"{_format_time(self.average)} \u00b1 {_format_time(self.stdev)} per loop (mean \u00b1 "
            f"std. dev. of {self.repeat} run{'s' * (self.repeat > 1)}, "
            f"{self.loops:,} loop{'s' * (self.loops > 1)} each)"
        )

    def __repr__(self) -> str:
        return f"<TimeitResult : {self}>"


class Captured:
    """What `%%capture NAME` gives: output and results of a cell."""

    def __init__(self) -> None:
        self.stdout = self.stderr = ""
        self.bundles: List[display.Bundle] = []

    @contextlib.contextmanager
    def redirect(self, name: str) -> "Iterator[None]":
        """By its descriptor, for the commands of the cell."""
        fd = 1 if name == "stdout" else 2
        with tempfile.TemporaryFile() as file:
            before = os.dup(fd)
            os.dup2(file.fileno(), fd)
            try:
                yield
            finally:
                os.dup2(before, fd)
                os.close(before)
                file.seek(0)
                setattr(self, name, file.read().decode("utf-8", "replace"))

    @property
    def outputs(self) -> "List[_Output]":
        return [_Output(bundle) for bundle in self.bundles]

    def show(self) -> None:
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for bundle in self.bundles:
            display.send_bundle(bundle)

    __call__ = show

    def __str__(self) -> str:
        return self.stdout


class _Output:
    def __init__(self, data: display.Bundle) -> None:
        self.data = data

    def __repr__(self) -> str:
        return str(self.data.get("text/plain"))

    def _repr_mimebundle_(self, **options: Any) -> display.Bundle:
        return self.data


def _summarize(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"Shape: {value.shape}"
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return f"n={len(value)}"
    return repr(value).replace("\n", " ")[:60]


def _content(mime: str) -> "Callable[[Shell, str, str], None]":
    return lambda shell, line, cell: display.send_bundle({mime: cell})


def _alias(program: str) -> "Callable[[Shell, str], None]":
    return lambda shell, line: shell._system(f"{program} {line}")


def _interpreter(program: str) -> "Callable[[Shell, str, str], None]":
    return lambda shell, line, cell: shell._script(f"{program} {line}", cell)


LINE_MAGICS: "Dict[str, Callable[[Shell, str], Any]]" = {
    "cd": Shell._cd,
    "env": Shell._env,
    "set_env": Shell._env,
    "pwd": lambda shell, line: os.getcwd(),
    "time": Shell._time,
    "timeit": Shell._timeit,
    "who": Shell._print_who,
    "who_ls": Shell._who,
    "whos": Shell._print_whos,
    **{program: _alias(program) for program in (*ALIASES, "pip")},
}
CELL_MAGICS: "Dict[str, Callable[[Shell, str, str], Any]]" = {
    **{program: _interpreter(program) for program in (*SHELLS, "perl", "ruby")},
    **dict.fromkeys(("python", "python3"), _interpreter(shlex.quote(sys.executable or "python3"))),
    **{name: _content(mime) for name, mime in CONTENT.items()},
    "capture": Shell._capture,
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


def _format_time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(seconds, 0.0) * 1e9:.3g} ns"


SHELL = Shell()
