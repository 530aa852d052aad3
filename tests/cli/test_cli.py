"""The command line, run as its users run it: as a process, on real sandboxes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine_view
import setting
from belljar.backends.isolation import Isolation, Layer
from belljar.cli import doctor
from belljar.cli.host_facts import Fact
from belljar.cli.statements import Splitter
from belljar.environment import store
from project import ROOT

BELLJAR = [sys.executable, "-m", "belljar"]
SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Cli:
    """Starts `belljar` in a directory of its own."""

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory = directory
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
            "BELLJAR_CACHE": str(cache),
            "XDG_STATE_HOME": str(directory / "state"),
            "TERM": "xterm-256color",
        }

    def __call__(self, *args: str, code: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        raw = code.encode() if isinstance(code, str) else code
        done = subprocess.run(
            [*BELLJAR, *args],
            input=raw,
            capture_output=True,
            cwd=self.directory,
            env=self.environ,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def run(self, code: str | bytes, *args: str) -> subprocess.CompletedProcess[str]:
        return self("run", "-e", "python", *args, "-", code=code)

    @contextlib.contextmanager
    def started(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [*BELLJAR, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env=self.environ,
        )
        with process:
            try:
                yield process
            finally:
                end(process)

    @contextlib.contextmanager
    def running(self, code: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """`belljar run`, once the code has said that it is ready."""
        (self.directory / "code.py").write_text(code)
        with self.started("run", "-e", "python", "code.py", *args) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process

    @contextlib.contextmanager
    def terminal(self, *args: str, **environ: str) -> Iterator[Terminal]:
        ours, theirs = os.openpty()
        # The first terminal that a session leader opens becomes the one whose Ctrl-C it gets.
        become = (
            "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", become, *BELLJAR, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=self.directory,
            env={**self.environ, **environ},
        )
        os.close(theirs)
        try:
            with process:
                try:
                    yield Terminal(ours, process)
                finally:
                    end(process)
        finally:
            os.close(ours)


def end(process: subprocess.Popen[bytes]) -> None:
    """Orderly, so that a test that is done early leaves nothing for the next start to sweep."""
    for _ in range(10):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
            return
        # A signal in the moment before readline begins to wait is seen with the next one only.
    process.kill()


class Terminal:
    """The person's side of a terminal."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.seen = b""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def press_ctrl_c(self, until: str) -> str:
        """As a person does: once more, if the first one came before readline began to wait."""
        for _ in range(10):
            self.type("\x03")
            with contextlib.suppress(TimeoutError):
                return self.read_until(until, timeout=5)
        raise TimeoutError(f"Ctrl-C did nothing: {self.seen!r}")

    def read_until(self, text: str, timeout: float = 30) -> str:
        """What appeared since the last call, up to and with `text`."""
        deadline = time.monotonic() + timeout
        while text.encode() not in self.seen:
            assert self._read(deadline - time.monotonic()), f"no {text!r} in {self.seen!r}"
        before, found, self.seen = self.seen.partition(text.encode())
        return (before + found).decode()

    def read_all(self, timeout: float = 30) -> str:
        deadline = time.monotonic() + timeout
        while self._read(deadline - time.monotonic()):
            pass
        self.process.wait(timeout)
        return self.seen.decode()

    def _read(self, timeout: float) -> bool:
        if not select.select([self._descriptor], [], [], max(timeout, 0))[0]:
            raise TimeoutError(f"nothing more after {self.seen!r}")
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # EIO: nobody has the other side any more
            return False
        self.seen += data
        return bool(data)


@pytest.fixture
def belljar(tmp_path: Path, cache: Path, backend: str) -> Cli:
    return Cli(tmp_path, cache)


@pytest.fixture
def alone(tmp_path: Path, cache: Path) -> Cli:
    """For what starts no guest."""
    return Cli(tmp_path, cache)


@pytest.fixture
def data_belljar(tmp_path: Path, backend: str) -> Cli:
    """With the cache that all tests share: the environment "data" is built once only."""
    return Cli(tmp_path, store.cache_root())


class Family:
    """The processes below one and of its containers, to see from outside that all of them end."""

    def __init__(self, parent: int) -> None:
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    status = (entry / "status").read_text()
                    found = int(re.search(r"^PPid:\t(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]
                    children.setdefault(found, []).append(int(entry.name))
        self._containers = engine_view.guests_of(parent) if setting.DOCKER else []
        pids = list(self._containers)
        waiting = [parent, *self._containers]
        while waiting:
            below = children.get(waiting.pop(), [])
            pids += below
            waiting += below
        self.pids: list[int] = []
        self._descriptors: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                self._descriptors.append(os.pidfd_open(pid))
                self.pids.append(pid)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def init(self) -> int:
        """The first process of the guest: the container's, or the innermost pid 1."""
        if self._containers:
            return self._containers[0]
        inits: list[tuple[int, int]] = []
        for pid in self.pids:
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                numbers = re.search(r"^NSpid:\t(.*)$", status, re.MULTILINE)[1].split()  # type: ignore[index]
                if numbers[-1] == "1":
                    inits.append((len(numbers), pid))
        return max(inits)[1]

    def survivors(self, timeout: float = 30) -> list[int]:
        """Those that have not ended in time."""
        deadline = time.monotonic() + timeout
        alive = []
        for pid, descriptor in zip(self.pids, self._descriptors, strict=True):
            if not select.select([descriptor], [], [], max(0, deadline - time.monotonic()))[0]:
                alive.append(pid)
        self.close()
        return alive


# -- the command itself ---------------------------------------------------------------------------


def test_version_says_the_version(alone: Cli) -> None:
    assert re.fullmatch(r"belljar \d+\.\d+\.\d+\S*\n", alone("--version").stdout)


def test_console_script_of_the_package_is_the_same_command(alone: Cli) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["belljar"].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}(['--version']))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=alone.environ,
        check=True,
    )
    assert done.stdout == alone("--version").stdout


def test_version_imports_neither_anyio_nor_rich(alone: Cli) -> None:
    script = (
        "import sys\nfrom belljar.cli import main\ntry: main(['--version'])\n"
        "except SystemExit: print(sorted({'anyio', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=alone.environ,
        check=True,
    )
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_without_arguments_it_shows_a_short_help(alone: Cli) -> None:
    done = alone()
    assert done.returncode == 0
    for command in ("run", "repl", "doctor", "env"):
        assert re.search(rf"^\s+{command} ", done.stdout, re.MULTILINE)
    assert len(done.stdout.splitlines()) < 40


def test_help_of_run_documents_the_exit_codes(alone: Cli) -> None:
    text = alone("run", "--help").stdout
    for code in ("120", "121", "122", "123", "124", "125", "128+N", "130"):
        assert re.search(rf"^  {re.escape(code)} ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["rnu", "x.py"], "run"),
        (["doktor"], "doctor"),
        (["env", "biuld", "x"], "build"),
        (["run", "x.py", "--memmory", "1g"], "--memory"),
        (["run", "x.py", "--time-out=5"], "--timeout"),
        (["repl", "--enviroment", "data"], "--environment"),
        (["run", "--env", "pyhton", "-"], "python"),
        (["run", "--env", "python", "--backend", "nativ", "-"], "native"),
    ],
)
def test_unknown_word_names_the_nearest(alone: Cli, args: list[str], meant: str) -> None:
    done = alone(*args)
    assert done.returncode == 2
    assert f"did you mean '{meant}'?" in done.stderr


def test_help_speaks_of_set_env_only_where_there_is_such_an_option(alone: Cli) -> None:
    for command in ("run", "repl", "doctor", "env list", "env build", "env remove"):
        text = alone(*command.split(), "--help").stdout
        assert ("--set-env" in text) == (command in ("run", "repl"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run"], "FILE"),
        (["run", "missing.py"], "cannot read 'missing.py'"),
        (
            ["run", "a", "b"],
            "too many arguments: b\n  hint: put arguments for the code itself",
        ),
        (["run", "-", "--memory", "1k"], "16m to 1t"),
        (["run", "-", "--memory", "lots"], "is not a size"),
        (["run", "-", "--timeout", "soon"], "is not a number"),
        (["run", "-", "--set-env", "KEY"], "--set-env KEY=VALUE"),
        (["run", "-", "--env", "KEY=VALUE"], "--set-env KEY=VALUE"),
        (["run", "-", "--put", "missing.csv"], "cannot read 'missing.csv'"),
        (["run", "-", "--put", "."], "one file"),
        (["run", "-", "--get", "/"], "does not name a file"),
        (["run", "-", "--get", "a:nowhere/b"], "no directory 'nowhere'"),
        (["env", "build", "python", "--packages", "six"], "choose another name"),
        (["env", "remove", "nonesuch"], "unknown environment"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    alone: Cli, args: list[str], said: str
) -> None:
    done = alone(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("belljar: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.native_only("only native keeps environments in the cache")
def test_what_belljar_cannot_do_is_message_and_hint_without_traceback(belljar: Cli) -> None:
    belljar.environ["BELLJAR_CACHE"] = "/proc/no/such"
    done = belljar.run("1")
    assert done.returncode == 120
    assert re.match(r"belljar: .*\n  hint: set BELLJAR_CACHE", done.stderr)
    assert "Traceback" not in done.stderr


# -- run: output and outcome ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "options", "exit_code"),
    [
        ("print(1)", [], 0),
        ("1/0", [], 1),
        ("syntax error", [], 1),
        ("import sys; sys.exit()", [], 0),
        ("import sys; sys.exit(7)", [], 7),
        ("import sys; sys.exit(-1)", [], 255),
        ("import sys; sys.exit('a message')", [], 1),
        ("while True: pass", ["--timeout", "0.3"], 124),
        ("x = bytearray(10**9)", ["--memory", "64m", "--best-effort"], 125),
        ("while True: print('x' * 999)", ["--output", "8k"], 123),
        ("import os; os.kill(os.getpid(), 9)", [], 137),
        ("import os; os.kill(os.getpid(), 11)", [], 139),
        ("import os; os._exit(3)", [], 128),
    ],
)
def test_exit_code_tells_the_outcome(
    belljar: Cli, code: str, options: list[str], exit_code: int
) -> None:
    done = belljar.run(code, *options)
    assert done.returncode == exit_code, done.stderr


def test_sandbox_that_dies_under_the_code_is_lost_with_exit_code_122(belljar: Cli) -> None:
    with belljar.running(SLEEP) as process:
        family = Family(process.pid)
        os.kill(family.init(), signal.SIGKILL)
        assert process.wait(30) == 122
        assert process.stderr is not None
        assert b"lost" in process.stderr.read()
        assert family.survivors() == []


def test_stdout_and_stderr_of_the_code_stay_apart(belljar: Cli) -> None:
    done = belljar.run("import sys; print('to out'); print('to err', file=sys.stderr)")
    assert (done.stdout, done.stderr) == ("to out\n", "to err\n")


def test_output_arrives_while_the_code_still_runs(belljar: Cli) -> None:
    with belljar.running(SLEEP) as process:  # has read "ready"; the code sleeps for a minute
        assert process.poll() is None


def test_control_characters_pass_unchanged_into_a_pipe(belljar: Cli) -> None:
    assert belljar.run(r"print('\x1b[31mred\x1b[0m\r')").stdout == "\x1b[31mred\x1b[0m\r\n"


def test_output_in_a_locale_without_unicode_is_escaped_not_an_error(belljar: Cli) -> None:
    belljar.environ["PYTHONIOENCODING"] = "ascii"
    assert belljar.run("print('\u00e4')").stdout == "\\xe4\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("6 * 7", "42\n"),
        ("'text'", "'text'\n"),
        ("None", ""),
        ("x = 1", ""),
        ("print('no newline', end='')\n1", "no newline\n1\n"),
        ("display('shown')\nprint('last')", None),
    ],
)
def test_value_of_the_last_expression_is_printed_as_in_a_repl(
    belljar: Cli, code: str, shown: str | None
) -> None:
    out = belljar.run(code).stdout
    if shown is None:
        assert sorted(out.splitlines()) == ["'shown'", "last"]
    else:
        assert out == shown


def test_quiet_leaves_only_the_codes_own_output(belljar: Cli) -> None:
    done = belljar.run("print('mine')\n6 * 7", "--quiet", "-v")
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_traceback_goes_to_stderr_and_what_was_printed_before_is_kept(belljar: Cli) -> None:
    done = belljar.run("print('before')\n1/0")
    assert done.stdout == "before\n"
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_cost_is_said_only_when_asked(belljar: Cli) -> None:
    assert belljar.run("1").stderr == ""
    assert re.fullmatch(r"belljar: ok in .* ms, .*\n", belljar.run("1", "--verbose").stderr)


def test_file_is_read_in_the_encoding_it_declares(belljar: Cli) -> None:
    source = "# coding: latin-1\nprint(ascii('\u00e4'))".encode("latin-1")
    assert belljar.run(source).stdout == "'\\xe4'\n"
    done = belljar.run(b"'\xff\xfe'")
    assert done.returncode == 2
    assert "is not Python source" in done.stderr


def test_variable_is_set_by_set_env_and_the_hosts_are_not_passed_on(belljar: Cli) -> None:
    belljar.environ["HOST_SECRET"] = "canary"
    code = "import os; print(os.environ['GIVEN'], 'canary' in os.environ.values())"
    assert belljar.run(code, "--set-env", "GIVEN=a=b").stdout == "a=b False\n"


def test_code_of_a_file_gets_its_name_and_what_follows_two_dashes(belljar: Cli) -> None:
    (belljar.directory / "sub").mkdir()
    code = "import sys; print(sys.argv, __file__)\n1/0"
    (belljar.directory / "sub" / "it's.py").write_text(code)
    strange = ["--json", "a b", "--", "\"'\\\n{}", "\u00e4"]
    done = belljar("run", "sub/it's.py", "-q", "-e", "python", "--", *strange)
    expected = ["it's.py", *strange]
    assert done.stdout == f"{expected!r} it's.py\n"
    assert "line 2" in done.stderr  # its own lines, in a traceback
    assert done.returncode == 1


def test_names_given_to_the_code_add_no_others_and_the_result_is_its_own(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text("sorted(n for n in globals() if '__' not in n)")
    done = belljar("run", "code.py", "-e", "python", "--json")
    described = json.loads(done.stdout)
    assert described["value"] == []
    assert (described["state_preserved"], described["notes"], done.stderr) == (True, [], "")


def test_code_from_standard_input_can_have_arguments_too(belljar: Cli) -> None:
    code = "import sys; print(sys.argv, '__file__' in globals())"
    assert belljar.run(code).stdout == "['-'] False\n"
    done = belljar("run", "-e", "python", "-", "--", "a", code=code)
    assert done.stdout == "['-', 'a'] False\n"


def test_end_of_the_lifetime_is_named_as_the_reason(belljar: Cli) -> None:
    done = belljar.run("import time; time.sleep(50)", "--lifetime", "5")
    assert done.returncode == 128
    assert "lifetime" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root can enforce every limit")
def test_limit_that_cannot_be_enforced_has_one_warning_that_names_the_option(belljar: Cli) -> None:
    done = belljar.run("1", "--memory", "64m", "--require-limits")
    if done.returncode == 0:
        pytest.skip("this user has a cgroup")
    assert done.returncode == 120
    assert done.stderr.count("hint:") == 1
    assert "--best-effort" in done.stderr
    assert "strict=" not in done.stderr
    done = belljar.run("1", "--memory", "64m")
    assert done.returncode == 0
    assert done.stderr.count("warning: this host cannot enforce the limit memory") == 1
    assert "--require-limits" in done.stderr
    assert "strict=" not in done.stderr
    assert "warning" not in belljar.run("1", "--memory", "64m", "--best-effort").stderr


def test_json_is_the_whole_execution_and_nothing_else(belljar: Cli) -> None:
    done = belljar.run("print('out')\n[1, 2]", "--json")
    described = json.loads(done.stdout)
    assert described["outcome"] == "ok"
    assert (described["stdout"], described["value"]) == ("out\n", [1, 2])
    assert done.stderr == ""


def test_json_of_a_failure_keeps_the_exit_code_and_holds_the_traceback(belljar: Cli) -> None:
    done = belljar.run("1/0", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["name"] == "ZeroDivisionError"
    assert done.stderr == ""


def test_reader_that_has_enough_ends_the_run_quietly(belljar: Cli) -> None:
    code = "import time\nprint('ready', flush=True)\nwhile True: print('x'); time.sleep(0.01)\n"
    with belljar.running(code) as process:
        family = Family(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
        assert family.survivors() == []


def test_output_that_cannot_be_written_is_said_with_exit_code_121(belljar: Cli) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*BELLJAR, "run", "-e", "python", "-"],
            input=b"print('x')",
            stdout=full,
            stderr=subprocess.PIPE,
            env=belljar.environ,
            check=False,
        )
    assert (done.returncode, done.stderr) == (121, b"belljar: No space left on device\n")


# -- run: files -----------------------------------------------------------------------------------


def test_put_and_get_carry_a_file_there_and_back(belljar: Cli) -> None:
    content = bytes(range(256)) * 5000
    (belljar.directory / "in.bin").write_bytes(content)
    done = belljar.run(
        "data = open('in.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1]);",
        *("--put", "in.bin", "--get", "out.bin"),
    )
    assert done.returncode == 0, done.stderr
    assert (belljar.directory / "out.bin").read_bytes() == content[::-1]


def test_put_and_get_can_give_other_names(belljar: Cli) -> None:
    (belljar.directory / "a.txt").write_text("A")
    (belljar.directory / "there").mkdir()
    done = belljar.run(
        "both = open('sub/b.txt').read() + open('/workspace/d/a.txt').read()\n"
        "open('sub/c.txt', 'w').write(both);",
        *("--put", "a.txt:sub/b.txt", "--put", "a.txt:d/"),
        *("--get", "sub/c.txt:e.txt", "--get", "/workspace/sub/c.txt:there", "--get", "sub/c.txt"),
    )
    assert done.returncode == 0, done.stderr
    for name in ("e.txt", "there/c.txt", "c.txt"):
        assert (belljar.directory / name).read_text() == "AA"


def test_file_whose_name_has_a_colon_can_be_put(belljar: Cli) -> None:
    (belljar.directory / "a:b").write_text("colon")
    assert belljar.run("print(open('a:b').read())", "--put", "a:b").stdout == "colon\n"


def test_get_fetches_also_after_the_code_failed(belljar: Cli) -> None:
    done = belljar.run("open('log', 'w').write('so far')\n1/0", "--get", "log")
    assert done.returncode == 1
    assert (belljar.directory / "log").read_text() == "so far"


def test_get_fetches_also_after_the_codes_process_died(belljar: Cli) -> None:
    code = "import os\nopen('log', 'w').write('so far')\nos.kill(os.getpid(), 9)"
    assert belljar.run(code, "--get", "log").returncode == 137
    assert (belljar.directory / "log").read_text() == "so far"


def test_file_that_is_not_there_is_said_and_the_others_are_fetched(belljar: Cli) -> None:
    done = belljar.run("open('b', 'w').write('B');", "--get", "a", "--get", "b")
    assert done.returncode == 121
    assert done.stderr == "belljar: --get: there is no 'a' in the sandbox\n"
    assert (belljar.directory / "b").read_text() == "B"
    assert belljar.run("1/0", "--get", "a").returncode == 1


def test_guest_cannot_choose_where_a_fetched_file_lands(belljar: Cli) -> None:
    canary = belljar.directory / "canary"
    canary.write_text("untouched")
    (belljar.directory / "box").mkdir()
    code = f"""
import os
os.symlink({str(canary)!r}, 'link')
os.makedirs('/tmp/x/..hidden')
open('/tmp/evil', 'w').write('EVIL')
os.symlink('/tmp/evil', 'named')
"""
    done = belljar.run(
        code, "--get", "link:box/", "--get", "named:box/", "--get", "/workspace/../tmp/evil:box/"
    )
    assert done.returncode == 121  # the first leads nowhere: the guest has no such file
    assert canary.read_text() == "untouched"
    assert sorted(os.listdir(belljar.directory / "box")) == ["evil", "named"]
    assert not (belljar.directory / "box" / "named").is_symlink()


def test_guest_cannot_make_get_read_a_file_of_the_host(belljar: Cli) -> None:
    secret = belljar.directory / "secret"
    secret.write_text("canary")
    done = belljar.run(f"import os; os.symlink({str(secret)!r}, 'x')", "--get", "x:out")
    assert done.returncode == 121
    assert not (belljar.directory / "out").exists()


def test_rich_results_are_saved_where_out_says(belljar: Cli) -> None:
    code = """
class Picture:
    def _repr_png_(self): return b"\\x89PNG..."
    def _repr_html_(self): return "<b>picture</b>"
display("text only")
display(Picture())
Picture()
"""
    done = belljar.run(code, "--out", "new/results")
    assert done.returncode == 0
    saved = belljar.directory / "new" / "results"
    assert sorted(os.listdir(saved)) == [
        "result-1.html",
        "result-1.png",
        "result-2.html",
        "result-2.png",
    ]
    assert (saved / "result-1.png").read_bytes() == b"\x89PNG..."
    assert "saved new/results/result-1.png" in done.stderr
    assert "--out DIR" in belljar.run(code).stderr
    assert belljar.run(code, "--json").stderr == ""


DATA = """
import matplotlib.pyplot as plt, pandas as pd
plt.plot([1, 2], [3, 4])
plt.show()
display({"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "plotly"}, raw=True)
display({"application/vnd.vegalite.v5+json": {"mark": "bar"}, "text/plain": "altair"}, raw=True)
pd.DataFrame({"name": ["ada", "bob"] * 15, "age": range(30)})
"""


def test_figures_charts_and_tables_are_saved_where_out_says(data_belljar: Cli) -> None:
    pytest.importorskip("pandas")
    done = data_belljar("run", "--out", "results", "-", code=DATA)
    assert done.returncode == 0, done.stderr
    saved = data_belljar.directory / "results"
    assert sorted(os.listdir(saved)) == [
        "result-1.chart.json",
        "result-1.png",
        "result-2.plotly.json",
        "result-3.vega.json",
        "result-4.csv",
        "result-4.html",
    ]
    assert (saved / "result-1.png").read_bytes().startswith(b"\x89PNG")
    chart = json.loads((saved / "result-1.chart.json").read_text())
    assert chart["elements"][0]["points"] == [[1.0, 3.0], [2.0, 4.0]]
    assert (saved / "result-4.csv").read_text().splitlines()[:2] == [",name,age", "0,ada,0"]
    assert json.loads((saved / "result-3.vega.json").read_text()) == {"mark": "bar"}
    # In a pipe a table is the text that the code would have printed.
    assert done.stdout.splitlines()[-1] == "29  bob   29"


def test_table_without_csv_is_said_and_the_rest_is_saved(belljar: Cli) -> None:
    code = """
display({"application/vnd.belljar.table": b"\\x80\\x04.", "text/html": "<b>"}, raw=True)
"""
    done = belljar.run(code, "--out", "results")
    assert done.returncode == 0
    assert os.listdir(belljar.directory / "results") == ["result-1.html"]
    assert "no CSV was saved: the table is too large or contains lists" in done.stderr


def test_table_is_drawn_at_a_terminal(data_belljar: Cli) -> None:
    pytest.importorskip("pandas")
    (data_belljar.directory / "code.py").write_text(DATA)
    with data_belljar.terminal("run", "code.py") as terminal:
        seen = terminal.read_all()
    assert "--out DIR saves such results" in seen
    assert "───" in seen
    assert "20 of 30 rows" in seen


def test_result_that_cannot_be_saved_is_exit_code_121(belljar: Cli) -> None:
    (belljar.directory / "taken").write_text("a file")
    code = "class P:\n    def _repr_png_(self): return b'png'\nP()"
    done = belljar.run(code, "--out", "taken")
    assert done.returncode == 121
    assert "cannot write" in done.stderr


# -- run: what comes with the code ----------------------------------------------------------------


@pytest.mark.contract("native", "docker", "gvisor")
def test_standard_input_of_the_command_reaches_the_code_of_a_file(belljar: Cli) -> None:
    (belljar.directory / "ask.py").write_text(
        "import sys\nprint('hi', input('name? '))\nprint(sum(map(int, sys.stdin)))"
    )
    done = belljar("run", "-e", "python", "ask.py", code="Ann\n1\n2\n")
    assert (done.stdout, done.stderr, done.returncode) == ("name? hi Ann\n3\n", "", 0)


def test_code_from_standard_input_has_no_input_of_its_own(belljar: Cli) -> None:
    done = belljar.run("input()\nmore")
    assert "EOFError: input() has nothing to read" in done.stderr


def test_input_that_the_code_does_not_read_is_left_to_others(belljar: Cli) -> None:
    command = f"{' '.join(BELLJAR)} run -e python -c 'print(1)'; cat"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=b"next\n",
        capture_output=True,
        cwd=belljar.directory,
        env=belljar.environ,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"1\nnext\n"


def test_silent_pipe_keeps_neither_the_code_nor_the_command_waiting(belljar: Cli) -> None:
    """`started` keeps the other end of the pipe open, and writes nothing."""
    with belljar.started("run", "-e", "python", "-c", "print(1)") as process:
        assert process.wait(60) == 0
    with belljar.started("run", "-e", "python", "--timeout", "1", "-c", "input()") as process:
        assert process.wait(60) == 124


def test_code_asks_the_person_at_the_terminal(belljar: Cli) -> None:
    (belljar.directory / "ask.py").write_text("print('hi', input('name? '))")
    with belljar.terminal("run", "-e", "python", "ask.py") as terminal:
        terminal.read_until("name? ")
        terminal.type("Ann\n")
        assert "hi Ann" in terminal.read_all()
        assert terminal.process.returncode == 0


def test_ctrl_c_ends_code_that_asks_the_person_at_the_terminal(belljar: Cli) -> None:
    with belljar.terminal("run", "-e", "python", "-c", "input('name? ')") as terminal:
        terminal.read_until("name? ")
        terminal.press_ctrl_c("interrupted")
        terminal.read_all()
        assert terminal.process.returncode == 130


def test_command_without_standard_input_runs_code(belljar: Cli) -> None:
    closed = f"exec {' '.join(BELLJAR)} run -e python -c 'print(1)' <&-"
    done = subprocess.run(
        ["/bin/sh", "-c", closed],
        capture_output=True,
        cwd=belljar.directory,
        env=belljar.environ,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == (b"1\n", 0), done.stderr


def test_traceback_names_the_file_and_nothing_of_ours_is_counted_or_recorded(belljar: Cli) -> None:
    (belljar.directory / "analysis.py").write_text("import sys\nprint(sys.argv)\n1 / 0\n")
    done = belljar(
        *("run", "-e", "python", "analysis.py", "--json", "--record", "r.jsonl", "--", "a")
    )
    told = json.loads(done.stdout)
    assert 'File "analysis.py", line 3, in <module>\n    1 / 0\n' in told["error"]["traceback"]
    assert told["execution_count"] == 1
    lines = map(json.loads, (belljar.directory / "r.jsonl").read_text().splitlines())
    cells = [line for line in lines if line["kind"] == "cell"]
    assert [(cell["file"], cell["argv"]) for cell in cells] == [
        ("analysis.py", ["analysis.py", "a"])
    ]
    belljar("export", "r.jsonl", "--to", "py")
    script = (belljar.directory / "r.py").read_text()
    assert "argv =" not in script
    assert "print(sys.argv)" in script


def test_code_can_be_given_in_the_command(belljar: Cli) -> None:
    code = "import sys\nprint(sys.argv, '__file__' in globals())"
    done = belljar("run", "-e", "python", "-c", code, "--", "a", "-b")
    assert (done.stdout, done.returncode) == ("['-c', 'a', '-b'] False\n", 0)


@pytest.mark.parametrize("args", [["run"], ["run", "-c", "1", "x.py"]])
def test_exactly_one_piece_of_code_is_needed(alone: Cli, args: list[str]) -> None:
    done = alone(*args)
    assert done.returncode == 2
    assert "`belljar run FILE`, `belljar run -c CODE`" in done.stderr


def test_name_of_a_file_alone_runs_it(belljar: Cli) -> None:
    (belljar.directory / "script.py").write_text("import sys; print(sys.argv)")
    done = belljar("script.py", "-e", "python", "--", "a")
    assert (done.stdout, done.returncode) == ("['script.py', 'a']\n", 0)
    missing = belljar("missing.py")
    assert (missing.returncode, "cannot read 'missing.py'" in missing.stderr) == (2, True)


def test_help_is_a_command_too(alone: Cli) -> None:
    assert alone("help").stdout == alone("--help").stdout
    assert alone("help", "run").stdout == alone("run", "--help").stdout
    assert alone("help", "env", "build").stdout == alone("env", "build", "--help").stdout
    wrong = alone("help", "rnu")
    assert (wrong.returncode, "did you mean 'run'" in wrong.stderr) == (2, True)


# -- run: notes -----------------------------------------------------------------------------------


@pytest.mark.contract("native", "docker", "gvisor")
def test_file_of_this_host_that_was_not_put_in_is_named_with_the_option(belljar: Cli) -> None:
    for name in ("sales.csv", "helpers.py", "sub/deep.csv"):
        (belljar.directory / name).parent.mkdir(exist_ok=True)
        (belljar.directory / name).touch()
    for code, option in (
        ("open('sales.csv')", "--put sales.csv\n"),
        ("open('./sales.csv')", "--put sales.csv\n"),
        ("open('sub/deep.csv')", "--put sub/deep.csv:sub/deep.csv\n"),
        ("import helpers", "--put helpers.py\n"),
    ):
        done = belljar.run(code)
        assert done.stderr.endswith(f" is on this host; add {option}"), done.stderr
        assert "--with" not in done.stderr
        assert done.returncode == 1


def test_file_beside_the_script_is_named_with_where_it_lies(belljar: Cli) -> None:
    (belljar.directory / "sub").mkdir()
    (belljar.directory / "sub" / "code.py").write_text("open('in.csv')")
    (belljar.directory / "sub" / "in.csv").touch()
    done = belljar("run", "-e", "python", "sub/code.py")
    assert done.stderr.endswith("sub/in.csv is on this host; add --put sub/in.csv\n")


def test_code_cannot_ask_which_files_this_host_has(belljar: Cli) -> None:
    """Neither outside the current directory, nor by what a program would give back to it."""
    (belljar.directory / "out").symlink_to("/etc")
    (belljar.directory / "here.csv").touch()
    paths = ["/etc/passwd", "../" * 9 + "etc/passwd", "out/passwd", "here.csv/../here.csv"]
    for path in paths:
        done = belljar.run(f"raise FileNotFoundError(2, 'No such file or directory', {path!r})")
        assert "on this host" not in done.stderr, done.stderr
    done = belljar.run("open('here.csv')", "--json", "--record", "r.jsonl")
    assert "here.csv is on this host" in done.stderr
    assert "on this host" not in done.stdout
    assert "on this host" not in (belljar.directory / "r.jsonl").read_text()


def test_notes_are_said_without_being_asked_for(belljar: Cli) -> None:
    done = belljar.run("import no_such_module")
    assert "--with no_such_module" in done.stderr
    assert "--with" not in belljar.run("import no_such_module", "--quiet").stderr
    late = belljar.run("while True: pass", "--timeout", "1")
    assert "the time limit was 1 s" in late.stderr
    assert "--timeout SECONDS" in late.stderr
    assert "variables were lost" not in late.stderr


@pytest.mark.root_only
@pytest.mark.parametrize("more", [[], ["--quiet"], ["--json"]])
def test_files_that_a_full_disk_could_not_take_are_named_with_exit_code_121(
    belljar: Cli, more: list[str]
) -> None:
    small = belljar.directory / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=True)
    try:
        code = "open('a', 'w').write('fits')\nopen('big', 'wb').write(bytes(1 << 20))\n"
        done = belljar.run(code, "--workspace", str(small), *more)
        assert done.returncode == 121, done.stderr
        assert "No space left on device): 'big'" in done.stderr
        assert (small / "a").read_text() == "fits"
        fine = belljar.run("open('a', 'w').write('new')", "--workspace", str(small), *more)
        assert fine.returncode == 0, fine.stderr
    finally:
        subprocess.run(["umount", small], check=True)


def test_link_that_is_never_carried_is_no_failure(belljar: Cli) -> None:
    done = belljar.run("import os; os.symlink('/etc', 'etc')", "--workspace", "w")
    assert done.returncode == 0
    assert "is a link that leads out" in done.stderr


def test_learn_takes_files(belljar: Cli) -> None:
    (belljar.directory / "sales.csv").write_text("a\n")
    (belljar.directory / "code.py").write_text(
        "import csv\nprint(list(csv.reader(open('sales.csv'))), __file__)\n"
    )
    done = belljar("learn", "-e", "python", "code.py", "--put", "sales.csv")
    assert done.returncode == 0, done.stderr
    assert "[['a']] code.py" in done.stderr


def test_tables_are_saved_as_csv_by_a_host_without_pandas(data_belljar: Cli) -> None:
    blocked = data_belljar.directory / "blocked"
    for name in ("pandas", "numpy", "pyarrow"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not on this host')")
    path = data_belljar.environ["PYTHONPATH"]
    data_belljar.environ["PYTHONPATH"] = f"{blocked}:{path}"
    code = "import pandas as pd; pd.DataFrame({'a': [1, 2]})"
    done = data_belljar("run", "--out", "results", "-c", code)
    assert done.returncode == 0, done.stderr
    assert (data_belljar.directory / "results" / "result-1.csv").read_text() == ",a\n0,1\n1,2\n"


# -- run: signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stubborn", [False, True])
def test_signal_leaves_no_process(
    belljar: Cli, number: signal.Signals, exit_code: int, stubborn: bool
) -> None:
    child = "import subprocess\nsubprocess.Popen(['sleep', '60'])\n"
    ignore = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" * stubborn
    with belljar.running(child + ignore + SLEEP) as process:
        family = Family(process.pid)
        assert len(family.pids) >= 3  # init, the interpreter, sleep
        process.send_signal(number)
        assert process.wait(30) == exit_code
        assert family.survivors() == []
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_kill_of_the_command_itself_leaves_no_process(belljar: Cli) -> None:
    with belljar.running(SLEEP) as process:
        family = Family(process.pid)
        process.kill()
        process.wait(30)
        assert family.survivors() == []
    belljar.run("1")  # what the killed one could not remove is swept by the next start


# -- run: at a terminal ---------------------------------------------------------------------------

HOSTILE = r"""
import sys
print('\x1b]0;owned\x07 \x1b[2J \x9b31m \r \x08 \u202e')
print('\x1b[31m', file=sys.stderr)
class Value:
    def __repr__(self): return '\x1b]52;c;AAAA\x07'
"""


@pytest.mark.parametrize("end", ["Value()", "raise ValueError('\\x1b[5m')", "display(Value())"])
def test_hostile_output_cannot_drive_the_terminal(belljar: Cli, end: str) -> None:
    (belljar.directory / "hostile.py").write_text(HOSTILE + end)
    with belljar.terminal("run", "-e", "python", "hostile.py") as terminal:
        seen = terminal.read_all()
    assert "\\x1b]0;owned\\x07" in seen
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", seen), seen
    assert "\r" not in seen.replace("\r\n", "\n")  # the line discipline makes \r\n of \n


def test_raw_lets_control_characters_reach_the_terminal(belljar: Cli) -> None:
    (belljar.directory / "colour.py").write_text(r"print('\x1b[31mred')")
    with belljar.terminal("run", "-e", "python", "--raw", "colour.py") as terminal:
        assert "\x1b[31mred" in terminal.read_all()


def test_error_that_quotes_the_guest_cannot_drive_the_terminal(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text("pass")
    with belljar.terminal("run", "-e", "python", "code.py", "--get", "\x1b[2J") as terminal:
        assert "\x1b" not in terminal.read_all()


def test_cost_is_said_at_a_terminal(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text("6 * 7")
    with belljar.terminal("run", "-e", "python", "code.py") as terminal:
        assert re.search(r"42\r\nbelljar: ok in .* ms", terminal.read_all())
    with belljar.terminal("run", "-e", "python", "-q", "code.py") as terminal:
        assert terminal.read_all() == ""


def test_ctrl_c_at_a_terminal_ends_the_run_and_everything_in_it(belljar: Cli) -> None:
    (belljar.directory / "code.py").write_text(SLEEP)
    with belljar.terminal("run", "-e", "python", "code.py") as terminal:
        terminal.read_until("ready")
        family = Family(terminal.process.pid)
        terminal.type("\x03")
        terminal.read_all()
        assert terminal.process.returncode == 130
        assert family.survivors() == []


# -- repl -----------------------------------------------------------------------------------------

PROMPT, MORE = ">>> ", "... "


@contextlib.contextmanager
def session(belljar: Cli, *args: str) -> Iterator[Terminal]:
    with belljar.terminal("repl", "-e", "python", *args) as terminal:
        terminal.read_until(PROMPT)
        yield terminal


def test_repl_keeps_variables_and_shows_values(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("x = 41\n")
        terminal.read_until(PROMPT)
        terminal.type("x + 1\n")
        assert "\r\n42\r\n" in terminal.read_until(PROMPT)


def test_repl_asks_on_until_a_block_is_ended_by_an_empty_line(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("for i in range(2):\n")
        terminal.read_until(MORE)
        terminal.type("    print('n', i)\n")
        assert "n 0" not in terminal.read_until(MORE)
        terminal.type("\n")
        assert "n 0\r\nn 1\r\n" in terminal.read_until(PROMPT)
        terminal.type("'''a\n")
        terminal.read_until(MORE)
        terminal.type("b'''\n")
        assert "'a\\nb'" in terminal.read_until(PROMPT)


def test_ctrl_c_interrupts_the_cell_and_keeps_the_session(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("x = 'kept'; import time\n")
        terminal.read_until(PROMPT)
        terminal.type("print('rea' + 'dy', flush=True); time.sleep(60)\n")
        terminal.read_until("ready\r\n")
        terminal.type("\x03")
        assert "KeyboardInterrupt" in terminal.read_until(PROMPT)
        terminal.type("x\n")
        assert "'kept'" in terminal.read_until(PROMPT)


def test_second_ctrl_c_ends_a_cell_that_will_not_stop(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("import signal, time; signal.signal(2, signal.SIG_IGN)\n")
        terminal.read_until(PROMPT)
        ignoring = "[print('rea' + 'dy', flush=True), [time.sleep(60) for _ in range(9)]]\n"
        terminal.type("def stubborn():\n  signal.signal(2, signal.SIG_IGN)\n  " + ignoring + "\n")
        terminal.read_until(PROMPT)
        terminal.type("stubborn()\n")
        terminal.read_until("ready\r\n")
        terminal.type("\x03")
        terminal.read_until("Ctrl-C again")
        terminal.type("\x03")
        terminal.read_until(PROMPT)
        terminal.type("6 * 7\n")
        assert "42" in terminal.read_until(PROMPT)


def test_ctrl_c_at_the_prompt_drops_what_was_typed(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("def f():\n")
        terminal.read_until(MORE)
        terminal.press_ctrl_c(until="KeyboardInterrupt")
        terminal.read_until(PROMPT)
        terminal.type("6 * 7\n")
        terminal.read_until("42\r\n")  # after one more prompt, if Ctrl-C was pressed twice


def test_ctrl_d_leaves_with_exit_code_0_and_nothing_running(belljar: Cli) -> None:
    with session(belljar) as terminal:
        family = Family(terminal.process.pid)
        terminal.type("\x04")
        terminal.read_all()
        assert terminal.process.returncode == 0
        assert family.survivors() == []


@pytest.mark.parametrize(
    ("typed", "exit_code"),
    [("exit", 0), ("exit()", 0), ("%exit", 0), ("\x04", 0), ("import sys; sys.exit(9)", 9)],
)
def test_exit_leaves_the_repl_whatever_failed_before(
    belljar: Cli, typed: str, exit_code: int
) -> None:
    with session(belljar) as terminal:
        terminal.type("1/0\n")
        terminal.read_until(PROMPT)
        terminal.type(typed if typed == "\x04" else typed + "\n")
        terminal.read_all()
        assert terminal.process.returncode == exit_code


@pytest.mark.parametrize("last", ["exit", "%exit", "import sys; sys.exit(9)"])
def test_piped_repl_that_is_left_early_tells_the_first_failure(belljar: Cli, last: str) -> None:
    assert belljar("repl", "-e", "python", code=f"1/0\n{last}\n").returncode == 1


def test_greeting_of_the_repl_fits_into_80_columns(belljar: Cli) -> None:
    with belljar.terminal("repl", "-e", "python", "--timeout", "none") as terminal:
        lines = terminal.read_until(PROMPT).splitlines()
    assert any("Belljar" in line for line in lines)
    assert max(map(len, lines)) < 80


def test_repl_does_not_say_that_a_value_did_not_travel(belljar: Cli) -> None:
    assert belljar("repl", "-e", "python", code="object").stderr == ""


def test_beginning_of_a_repl_command_suggests_that_command(belljar: Cli) -> None:
    done = belljar("repl", "-e", "python", code="%iso\n%e\n")
    assert "did you mean '%isolation'?" in done.stderr
    assert "did you mean '%exit'?" in done.stderr


def test_repl_history_is_kept_for_the_next_session_and_private(belljar: Cli) -> None:
    pytest.importorskip("readline")
    with session(belljar) as terminal:
        terminal.type("remembered = 6 * 7\n")
        terminal.read_until(PROMPT)
        terminal.type("\x04")
        terminal.read_all()
    history = belljar.directory / "state" / "belljar" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with session(belljar) as terminal:
        terminal.type("\x1b[A")  # the key "up"
        terminal.read_until("remembered = 6 * 7")


def test_repl_output_cannot_drive_the_terminal(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("print(chr(27) + ']0;owned')\n")
        terminal.read_until("\\x1b]0;owned\r\n")


def test_piped_repl_runs_each_statement_in_order_in_one_interpreter(belljar: Cli) -> None:
    code = """\
x = 1
def double(n):

    return 2 * n

# a comment
double(x)
1/0
if x:
    print("still here")
else:
    print("not")
"""
    done = belljar("repl", "-e", "python", code=code)
    assert done.stdout == "2\nstill here\n"
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert done.returncode == 1


def test_piped_repl_that_succeeds_is_exit_code_0_without_prompts(belljar: Cli) -> None:
    done = belljar("repl", "-e", "python", code="6 * 7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_repl_commands_reset_list_and_transfer(belljar: Cli) -> None:
    (belljar.directory / "in.txt").write_text("IN")
    code = """\
x = 1
%put in.txt:sub/there.txt
open('sub/there.txt').read()
%get sub/there.txt:out.txt
%files
%files sub
%reset
x
%files sub
%filse
%get nothing
%help
"""
    done = belljar("repl", "-e", "python", code=code)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "'IN'"
    assert lines[1].startswith("sub/ dir ")
    assert lines[2:4] == ["there.txt file 2 B"] * 2  # files outlive the reset
    assert lines[4].startswith("%help")
    assert (belljar.directory / "out.txt").read_text() == "IN"
    assert "NameError: name 'x' is not defined" in done.stderr
    assert "did you mean '%files'?" in done.stderr
    assert "No such file" in done.stderr


def test_name_of_a_file_in_the_guest_cannot_drive_the_terminal(belljar: Cli) -> None:
    with session(belljar) as terminal:
        terminal.type("open('\\x1b[2J\\nfake', 'w').close()\n")
        terminal.read_until(PROMPT)
        terminal.type("%files\n")
        terminal.read_until("\\x1b[2J\\nfake")


# -- the statements of the repl -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "statements"),
    [
        (["a", "b"], ["a", "b"]),
        (["", "# only a comment", "a"], ["a"]),
        (["f(", "1)", "b"], ["f(\n1)", "b"]),
        (["x = [  # (", "]"], ["x = [  # (\n]"]),
        (["'''", "a:", "'''"], ["'''\na:\n'''"]),
        (['"""\\""""', "b"], ['"""\\""""', "b"]),
        (["r'\\'", "b'", "c"], ["r'\\'", "b'", "c"]),  # broken strings are for the guest to tell
        (["'a\\", "b'", "c"], ["'a\\\nb'", "c"]),
        (["a + \\", "b", "c"], ["a + \\\nb", "c"]),
        (["'#'; (", ")"], ["'#'; (\n)"]),
        ([")", "a"], [")", "a"]),
        (["if a: b", "c"], ["if a: b", "c"]),
        (["if a:", " b", "elif c:", " d", "else:", " e", "f"],
         ["if a:\n b\nelif c:\n d\nelse:\n e", "f"]),
        (["try:", " a", "except E:", " b", "finally:", " c"],
         ["try:\n a\nexcept E:\n b\nfinally:\n c"]),
        (["@d", "@e(", "1)", "def f():", " a", "", " b", "c"],
         ["@d\n@e(\n1)\ndef f():\n a\n\n b", "c"]),
        (["def f():", "    '''", "doc", "    '''", "f()"],
         ["def f():\n    '''\ndoc\n    '''", "f()"]),
        (["match x:", "  case 1:", "    a", "b"], ["match x:\n  case 1:\n    a", "b"]),
        (["match = 1", "iffy = 2", "d = {1:", "2}"], ["match = 1", "iffy = 2", "d = {1:\n2}"]),
        (["async def f():", "  pass", "await f()"], ["async def f():\n  pass", "await f()"]),
        (["def f(", "  a):", "  b", "c"], ["def f(\n  a):\n  b", "c"]),
        (["class A: pass", "# note", "class B: pass"], ["class A: pass\n# note", "class B: pass"]),
        (["x[a:", "b]", "lambda: 1"], ["x[a:\nb]", "lambda: 1"]),
    ],
)  # fmt: skip
def test_lines_are_cut_into_statements(lines: list[str], statements: list[str]) -> None:
    splitter = Splitter(empty_line_ends_block=False)
    found = [statement for line in lines for statement in splitter.feed(line)]
    assert found + splitter.finish() == statements


def test_every_statement_of_a_real_module_is_found_whole() -> None:
    import ast
    import textwrap as module

    source = Path(module.__file__).read_text()
    splitter = Splitter(empty_line_ends_block=False)
    found = [s for line in source.splitlines() for s in splitter.feed(line)] + splitter.finish()
    assert [ast.dump(node) for s in found for node in ast.parse(s).body] == [
        ast.dump(node) for node in ast.parse(source).body
    ]


def test_empty_line_ends_a_block_at_a_terminal_only_between_statements() -> None:
    splitter = Splitter(empty_line_ends_block=True)
    assert splitter.feed("def f(a,") == []
    assert splitter.feed("") == []
    assert splitter.feed("b):") == []
    assert splitter.feed("    return a") == []
    assert splitter.feed("") == ["def f(a,\n\nb):\n    return a"]
    assert not splitter.pending


# -- doctor ---------------------------------------------------------------------------------------


def check_doctor(done: subprocess.CompletedProcess[str]) -> str:
    described = json.loads(done.stdout)
    guest = described["guest"]
    layers = guest["isolation"]["layers"] + list(guest["isolation"]["limits"])
    states = {layer["state"] for layer in layers}
    assert done.returncode == (0 if states == {"enforced"} else 1)
    assert {"kernel", "user namespaces", "seccomp", "landlock", "cgroups", "interpreter"} <= {
        fact["name"] for fact in described["host"]
    }
    for layer in layers:
        assert layer["state"] == "enforced" or layer["remedy"]
    assert 0 < guest["round_trip"] < guest["first_start"]
    return described["verdict"]


def test_doctor_measures_a_live_guest_and_its_exit_code_is_the_verdict(belljar: Cli) -> None:
    verdict = check_doctor(belljar("doctor", "--json"))
    done = belljar("doctor")
    assert done.returncode == {"enforced": 0, "best-effort": 1}[verdict]
    assert re.search(r"^  enforced +seccomp ", done.stdout, re.MULTILINE)
    assert re.search(r"^  run_code\('1\+1'\) +\S+ ms$", done.stdout, re.MULTILINE)


@pytest.mark.native_only("only native keeps environments in the cache")
def test_doctor_on_a_host_that_cannot_run_says_why_with_exit_code_2(belljar: Cli) -> None:
    belljar.environ["BELLJAR_CACHE"] = "/proc/no/such"
    belljar.environ["DOCKER_HOST"] = "unix:///nowhere.sock"
    done = belljar("doctor", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["problem"]["hint"].startswith("set BELLJAR_CACHE")
    assert belljar("doctor").returncode == 2


def test_doctor_says_a_reason_and_a_remedy_once(capsys: pytest.CaptureFixture[str]) -> None:
    why = [f"/{name} may not be written: run as root" for name in ("cpu", "memory")]
    facts = [
        Fact(name=f"cgroup {number}", state="no", detail=text) for number, text in enumerate(why)
    ]
    limits = tuple(
        Layer(name=name, state="best-effort", detail=f"watched; {text}", remedy="delegate")
        for name, text in zip(("cpus", "memory"), why, strict=True)
    )
    isolation = Isolation(backend="native", layers=(), limits=limits)
    measured = doctor.Measured(isolation=isolation, first_start=1, next_start=1, round_trip=1)
    doctor._show_host(facts)
    doctor._show_guest("python", facts, measured, None, doctor.BEST_EFFORT)
    shown = capsys.readouterr().out
    assert [shown.count(text) for text in ("run as root", "delegate", "/memory may")] == [1, 1, 1]
    assert "remedy (also for memory): delegate" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's already")
def test_doctor_of_an_ordinary_user_says_what_is_best_effort_and_the_remedy(
    tmp_path: Path,
) -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None or not _can_be_an_ordinary_users(python):
        pytest.skip("no Python of the system that can import what Belljar needs")
    # Not below tmp_path, which an ordinary user cannot enter.
    home = Path(tempfile.mkdtemp(dir="/tmp", prefix="belljar-test-"))
    try:
        os.chown(home, 65534, 65534)
        done = subprocess.run(
            [python, "-m", "belljar", "doctor", "--json"],
            capture_output=True,
            text=True,
            cwd=home,
            env=_ordinary_environ(home),
            user=65534,
            group=65534,
            extra_groups=[],
            check=False,
        )
        assert check_doctor(done) in ("enforced", "best-effort"), done.stderr
    finally:
        shutil.rmtree(home)


def _ordinary_environ(home: Path) -> dict[str, str]:
    import anyio

    packages = Path(anyio.__file__).parents[1]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'src'}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _can_be_an_ordinary_users(python: str) -> bool:
    done = subprocess.run(
        [python, "-c", "import belljar.sandbox.sandbox"],
        env=_ordinary_environ(Path("/nonexistent")),
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
        check=False,
        capture_output=True,
    )
    return done.returncode == 0


def test_colours_are_for_terminals_and_no_color_is_honoured(belljar: Cli) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*(?:3|4|9)[0-7]m")
    assert "\x1b" not in belljar("doctor").stdout
    with belljar.terminal("doctor") as terminal:
        assert colour.search(terminal.read_all())
    with belljar.terminal("doctor", NO_COLOR="1") as terminal:
        assert not colour.search(terminal.read_all())


# -- env ------------------------------------------------------------------------------------------


def test_environment_of_ones_own_is_built_listed_used_and_removed(
    belljar: Cli, tmp_path: Path
) -> None:
    belljar.environ["BELLJAR_CACHE"] = str(tmp_path / "own-cache")
    assert "not built" in belljar("env", "list").stdout

    done = belljar("env", "build", "mine", "--preload", "json", "decimal", "--json")
    assert done.returncode == 0, done.stderr
    key = json.loads(done.stdout)["key"]

    (listed,) = (e for e in json.loads(belljar("env", "list", "--json").stdout) if e["built"])
    assert (listed["name"], listed["key"], listed["packages"]) == ("mine", key, [])
    assert re.search(rf"^  mine +{key} +3\.", belljar("env", "list").stdout, re.MULTILINE)

    done = belljar("run", "-e", "mine", "-", code="import sys; 'decimal' in sys.modules")
    assert done.stdout == "True\n", done.stderr

    assert belljar("env", "remove", "mine").returncode == 0
    assert not any(e["built"] for e in json.loads(belljar("env", "list", "--json").stdout))
    done = belljar("run", "-e", "mine", "-", code="1")
    assert (done.returncode, "unknown environment 'mine'" in done.stderr) == (2, True)


def test_environment_made_in_python_is_marked_and_why_its_name_is_not_known_is_said(
    belljar: Cli, tmp_path: Path
) -> None:
    belljar.environ["BELLJAR_CACHE"] = str(tmp_path / "own-cache")
    make = "from belljar import environment as e; e.build(e.Environment('mine', preload=['json']))"
    subprocess.run([sys.executable, "-c", make], env=belljar.environ, check=True)
    assert "mine (made in Python)" in belljar("env", "list").stdout
    listed = {
        each["name"]: each["named"] for each in json.loads(belljar("env", "list", "--json").stdout)
    }
    assert listed == {"mine": False, "python": True, "data": True}
    done = belljar("run", "-e", "mine", "-", code="1")
    assert done.returncode == 2
    assert "'mine' was made in Python" in done.stderr
    assert belljar("env", "build", "mine", "--preload", "json").returncode == 0
    assert "made in Python" not in belljar("env", "list").stdout
    assert belljar("run", "-e", "mine", "-", code="6 * 7").stdout == "42\n"


def test_description_that_somebody_else_could_have_written_is_refused(
    alone: Cli, tmp_path: Path
) -> None:
    alone.environ["BELLJAR_CACHE"] = str(tmp_path / "own-cache")
    assert alone("env", "build", "mine", "--preload", "json").returncode == 0
    (description,) = (tmp_path / "own-cache" / "named").iterdir()
    assert stat.S_IMODE(description.stat().st_mode) == 0o600
    description.chmod(0o666)
    done = alone("run", "-e", "mine", "-", code="1")
    assert done.returncode == 120
    assert "another user" in done.stderr
