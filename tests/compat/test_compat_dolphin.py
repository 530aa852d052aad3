"""dolphin-mcp's sandbox: the document's blocks as they are, its sessions, and what is better.

The blocks are those of the document, with `dolphin_mcp.docker_sandbox` read as
`belljar.compat.dolphin`, and with its base directory where the test says.
"""

import asyncio
import gc
import http
import json
import os
import pwd
import queue
import re
import secrets
import subprocess
import sys
import textwrap

import anyio
import numpy as np
import pytest

import belljar.environment.environment
import setting
from belljar import AsyncSandbox, events
from belljar.compat import dolphin
from belljar.compat.dolphin import (
    ALLOWED_LIBRARIES,
    DockerSandboxExecutor,
    docker_sandbox,
    python_interpreter,
    sandboxed_python_interpreter,
    sessions,
    validate_imports,
)
from belljar.runtime import wait

pytestmark = pytest.mark.contract("docker")

BASE = "/tmp/sandboxes"


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setenv("BELLJAR_BACKEND", setting.BACKEND)
    monkeypatch.delenv("DOLPHIN_USE_DOCKER_SANDBOX", raising=False)


@pytest.fixture(scope="module")
def shared(backend, tmp_path_factory):
    """One session for many tests: in containers each costs a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BELLJAR_BACKEND", setting.BACKEND)
        base = tmp_path_factory.mktemp("sandboxes")
        with DockerSandboxExecutor("shared", str(base), timeout=20) as made:
            yield made


@pytest.fixture
def make(backend, tmp_path):
    made = []

    def make(session_id="one", **options):
        made.append(DockerSandboxExecutor(session_id, str(tmp_path), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# -- the document's blocks ------------------------------------------------------------------

BASIC = '''
from dolphin_mcp.docker_sandbox import DockerSandboxExecutor

# Create a sandbox with a session ID
with DockerSandboxExecutor(session_id="my-session") as sandbox:
    code = """
import json

# Do some computation
data = {"result": 42, "status": "success"}

# Write to /sandbox (appears on host at /tmp/sandboxes/my-session/)
with open('/sandbox/output.json', 'w') as f:
    json.dump(data, f, indent=2)

print("File created!")
"""

    output = sandbox.execute_code(code)
    print(output)
'''

OPTIONS = """
sandbox = DockerSandboxExecutor(
    session_id="my-session",           # Unique session identifier
    sandbox_base_dir="/tmp/sandboxes", # Base directory for volumes
    image_name="dolphin-python-sandbox", # Docker image to use
    memory_limit="512m",               # Memory limit
    cpu_quota=100000,                  # CPU quota (100000 = 1 CPU)
    enable_network=False,              # Enable/disable network
    timeout=30                         # Execution timeout in seconds
)
"""

SECURITY = '''
# This code will be blocked by the sandbox
code = """
import os

# Try to access host filesystem
try:
    with open('/etc/passwd', 'r') as f:
        print(f.read())
except Exception as e:
    print(f"Blocked: {e}")

# Try to list root directory
try:
    files = os.listdir('/home')
    print(files)
except Exception as e:
    print(f"Blocked: {e}")
"""

output = sandbox.execute_code(code)
# Will show errors - cannot access these paths
'''

ANALYSIS = '''
code = """
import json
import statistics

# Analyze data
data = [12, 15, 13, 18, 14, 16, 11, 19]
report = {
    'count': len(data),
    'mean': statistics.mean(data),
    'median': statistics.median(data),
    'stdev': statistics.stdev(data)
}

# Save report
with open('/sandbox/analysis.json', 'w') as f:
    json.dump(report, f, indent=2)

print(f"Analysis complete: {report}")
"""

output = sandbox.execute_code(code)
# Report available at /tmp/sandboxes/<session_id>/analysis.json
'''

STEPS = '''
# Step 1: Initialize
code1 = """
data = [1, 2, 3, 4, 5]
print(f"Initialized data: {data}")
"""
sandbox.execute_code(code1)

# Step 2: Process (variables persist)
code2 = """
result = sum(x**2 for x in data)
print(f"Sum of squares: {result}")

# Save to file
with open('/sandbox/result.txt', 'w') as f:
    f.write(f"Result: {result}\\\\n")
"""
sandbox.execute_code(code2)
'''

INTEGRATION = """
from dolphin_mcp.client import run_interaction
from dolphin_mcp.reasoning import ReasoningConfig

config = ReasoningConfig(enable_code_execution=True)

# This will use Docker sandbox if DOLPHIN_USE_DOCKER_SANDBOX=1
result = await run_interaction(
    user_query="Calculate fibonacci numbers and save to a file",
    reasoning_config=config,
    use_reasoning=True
)
"""


def test_the_documents_blocks_run_as_they_are(backend, tmp_path, monkeypatch, capsys):
    """Only where the base directory is differs: the default is shared by the whole machine."""
    defaults = DockerSandboxExecutor.__init__.__defaults__
    elsewhere = tuple(str(tmp_path) if value == BASE else value for value in defaults)
    monkeypatch.setattr(DockerSandboxExecutor.__init__, "__defaults__", elsewhere)
    directory, names = tmp_path / "my-session", {}

    def run(block):
        block = block.replace("dolphin_mcp.docker_sandbox", "belljar.compat.dolphin")
        exec(block.replace(BASE, str(tmp_path)), names)

    run(BASIC)
    assert capsys.readouterr().out == "File created!\n\n"
    assert json.loads((directory / "output.json").read_text()) == {
        "result": 42,
        "status": "success",
    }
    run(OPTIONS)
    run(SECURITY)
    people = [user.pw_name for user in pwd.getpwall() if 1000 <= user.pw_uid < 60000]
    assert not any(f"{name}:x:" in names["output"] for name in people)
    alone = ("Blocked: ", "[]", "['user']")  # the guest's own home, and no other
    assert any(text in names["output"] for text in alone)
    run(ANALYSIS)
    assert names["output"].startswith("Analysis complete: {'count': 8, 'mean': 14.75")
    assert json.loads((directory / "analysis.json").read_text())["count"] == 8
    run(STEPS)
    assert (directory / "result.txt").read_text() == "Result: 55\n"
    names["sandbox"].close()


def test_the_reasoning_block_runs_in_an_installed_dolphin(backend, tmp_path, monkeypatch, request):
    """With a model that is scripted; the rest of dolphin is as small as it can be."""
    package = tmp_path / "site" / "dolphin_mcp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "docker_sandbox.py").write_text("raise ImportError('Docker SDK for Python')")
    (package / "reasoning.py").write_text(
        textwrap.dedent("""
        import os
        from .docker_sandbox import sandboxed_python_interpreter, validate_imports

        class ReasoningConfig:
            def __init__(self, enable_code_execution=True):
                self.enable_code_execution = enable_code_execution

        def python_interpreter(code, context):
            exec(code, context)
            return "ran in this process"
        """)
    )
    (package / "client.py").write_text(
        textwrap.dedent("""
        from dolphin_mcp import reasoning

        async def run_interaction(user_query, reasoning_config, use_reasoning):
            context = {}
            steps = ["a, b = 0, 1", "while a < 50:\\n    print(a, end=' ')\\n    a, b = b, a + b"]
            steps += ["open('/sandbox/last.txt', 'w').write(str(a)); import os; print(os.getpid())"]
            return [reasoning.python_interpreter(step, context) for step in steps], context
        """)
    )
    monkeypatch.syspath_prepend(str(package.parent))
    for name in ("", ".docker_sandbox", ".reasoning", ".client"):
        monkeypatch.setitem(sys.modules, f"dolphin_mcp{name}", None)
        del sys.modules[f"dolphin_mcp{name}"]
    defaults = dict(python_interpreter.__kwdefaults__, sandbox_base_dir=str(tmp_path))
    monkeypatch.setattr(python_interpreter, "__kwdefaults__", defaults)
    request.addfinalizer(docker_sandbox.close_sessions)
    monkeypatch.setenv("DOLPHIN_USE_DOCKER_SANDBOX", "1" if setting.DOCKER else "0")
    dolphin.install()
    names = {}
    exec(f"async def main():\n{textwrap.indent(INTEGRATION, '    ')}\n    return result", names)
    (first, second, third), context = asyncio.run(names["main"]())
    assert (first, second) == ("", "0 1 1 2 3 5 8 13 21 34 ")
    assert int(third) != os.getpid()
    assert (tmp_path / context["__sandbox_session_id__"] / "last.txt").read_text() == "55"


def test_without_dolphin_there_is_nothing_to_install():
    with pytest.raises(ImportError, match="pip install dolphin-mcp"):
        dolphin.install()


# -- one execution --------------------------------------------------------------------------


def test_output_comes_first_and_then_the_failure_under_its_prefix(shared):
    output = shared.execute_code("import sys\nprint('a', end='')\nprint('b', file=sys.stderr)\n1/0")
    assert output.startswith("ab\nEXECUTION ERROR:\nTraceback (most recent call last):\n")
    assert output.endswith("ZeroDivisionError: division by zero\n")


def test_code_runs_as_it_is(shared):
    code = 'from __future__ import annotations\ntext = """\nnot\n  indented\n"""\nprint(repr(text))'
    assert shared.execute_code(code) == "'\\nnot\\n  indented\\n'\n"


def test_imports_that_are_not_allowed_are_refused_before_anything_runs(shared):
    output = shared.execute_code("print('ran')\nimport requests, numpy, flask.views")
    assert output.startswith(
        "IMPORT RESTRICTION ERROR:\nImport restriction violation: The following imports are not "
        "allowed: flask.views, requests\n\nAllowed libraries:\n- Standard Python library modules ("
    )
    assert "ran" not in output
    assert shared.execute_code("def f(").startswith("EXECUTION ERROR:\nSyntax error in code: ")


def test_a_context_becomes_variables(shared):
    context = {"frame": np.arange(3), "name": "x", "__sandbox_session_id__": "s"}
    code = "print(frame.sum(), name, context['name'])"
    assert shared.execute_code(code, context) == "3 x x\n"
    assert context["name"] == "x"
    assert shared.execute_code("print(status + 1)", {"status": http.HTTPStatus.OK}) == "201\n"
    assert shared.execute_code("print(name)") == "x\n"


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"f": lambda: 1}, "f is a function"),
        ({"not a name": 1}, "'not a name' cannot be the name of a variable"),
        ([1], "context is a dict"),
    ],
)
def test_a_context_that_cannot_travel_is_an_error_and_nothing_runs(shared, context, said):
    output = shared.execute_code("print('ran')", context)
    assert output.startswith("ERROR:\n")
    assert said in output
    assert "ran" not in output


def test_exit_codes_are_told(shared):
    assert shared.execute_code("import sys; sys.exit(0)") == ""
    assert "exit code 3" in shared.execute_code("import sys; sys.exit(3)")


def test_tmp_has_100_megabytes_and_the_user_is_not_root(shared):
    output = shared.execute_code(
        "import os\nfs = os.statvfs('/tmp')\nprint(fs.f_blocks * fs.f_frsize, os.getuid() != 0)"
    )
    assert output == f"{100 * 2**20} True\n"


def test_the_user_is_called_sandbox(shared):
    code = """
        import os, subprocess, sys
        ask = "import getpass, os, pwd; print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name)"
        same = "import os, pwd; print(pwd.getpwnam('sandbox').pw_uid == os.getuid())"
        run = [sys.executable, "-c"]
        for command in (["whoami"], ["id", "-un"], [*run, ask], [*run, same]):
            print(subprocess.run(command, capture_output=True, text=True).stdout.strip())
        del os.environ["USER"], os.environ["LOGNAME"]
        print(subprocess.run([*run, ask], capture_output=True, text=True).stdout)
        print("sandbox:" in open("/etc/passwd").read())
    """
    said = shared.execute_code(textwrap.dedent(code)).split()
    assert said == ["sandbox"] * 4 + ["True"] + ["sandbox"] * 2 + ["True"]


def test_the_libraries_of_the_document_are_there(shared):
    code = "import numpy, pandas, matplotlib, scipy, sklearn\nprint(pandas.Series([1, 2]).sum())"
    assert shared.execute_code(code) == "3\n"


def test_there_is_no_network(shared):
    output = shared.execute_code(
        "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)"
    )
    assert "EXECUTION ERROR:\n" in output


@pytest.mark.needs_cgroup
def test_a_timeout_and_too_much_memory_are_killed_and_said(make):
    sandbox = make(timeout=5, memory_limit="256m")
    output = sandbox.execute_code("x = 1\nprint('so far', flush=True)\nwhile True: pass")
    said = r"so far\nEXECUTION ERROR:\nExecution timed out after (\d+) seconds"
    assert 5 <= int(re.match(said, output)[1]) < 30  # the time that it took
    output = sandbox.execute_code("print('now')\ndata = bytearray(10**9)")
    assert output.startswith("now\nEXECUTION ERROR:\nOut of memory: ")
    assert "memory_limit=256m" in output
    assert "variables of this session are gone" in output
    assert sandbox.execute_code("print('alive')").startswith("alive\n")


def test_a_session_that_ended_goes_on_with_its_files_and_says_so(make):
    sandbox = make()
    sandbox.execute_code("x = 1\nopen('kept.txt', 'w').write('1')")
    sandbox._session._sandbox.kill()  # as its idle time would
    output = sandbox.execute_code("print(open('kept.txt').read(), 'x' in globals())")
    assert output == "1 False\n[the session was restarted]\n"


def test_there_is_one_sandbox_for_a_session(shared):
    import belljar.events

    shared.execute_code("kept = 5")
    before = {each.id for each in belljar.events.live()}
    again = DockerSandboxExecutor("shared", str(shared.sandbox_base_dir), timeout=20)
    assert again.execute_code("print(kept)") == "5\n"
    assert {each.id for each in belljar.events.live()} == before
    again.close()
    assert shared.execute_code("print(kept)") == "5\n"  # the first goes on
    other = DockerSandboxExecutor("shared", str(shared.sandbox_base_dir), timeout=21)
    with pytest.raises(ValueError, match="in use with other options"):
        other.execute_code("1")


# -- files ----------------------------------------------------------------------------------


def test_files_go_both_ways_and_links_lead_nowhere(shared):
    (shared.sandbox_dir / "from-host.txt").write_text("hello")
    output = shared.execute_code(
        "import os\nprint(open('/sandbox/from-host.txt').read(), os.getcwd())\n"
        "os.makedirs('deep/er')\nopen('deep/er/file.txt', 'w').write('é')\n"
        "os.symlink('/etc/passwd', 'link')\nos.symlink('deep', 'inner')"
    )
    assert output.startswith("hello /sandbox\n")
    assert {"deep/er/file.txt", "from-host.txt"} <= set(shared.get_session_files())
    assert shared.read_session_file("deep/er/file.txt") == "é"
    assert not os.path.lexists(shared.sandbox_dir / "link")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "..", "", "a\0b"])
def test_names_that_climb_out_are_refused(tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    sandbox = DockerSandboxExecutor("one", str(tmp_path), backend="native")
    with pytest.raises(ValueError, match="Path traversal"):
        sandbox.read_session_file(name)


def test_links_on_the_host_are_not_followed_either(tmp_path):
    (tmp_path / "secret").write_text("secret")
    sandbox = DockerSandboxExecutor("one", str(tmp_path), backend="native")
    os.symlink(tmp_path / "secret", sandbox.sandbox_dir / "link")
    os.symlink(tmp_path, sandbox.sandbox_dir / "above")
    (sandbox.sandbox_dir / "directory").mkdir()
    for name in ("link", "above/secret"):
        with pytest.raises(ValueError, match="Path traversal"):
            sandbox.read_session_file(name)
    with pytest.raises(ValueError, match="Not a file"):
        sandbox.read_session_file("directory")
    with pytest.raises(FileNotFoundError, match="File not found: missing"):
        sandbox.read_session_file("missing")
    assert sandbox.get_session_files() == []


@pytest.mark.parametrize("session_id", ["../x", "a/b", "..", ".", ".hidden", "", "a b", "x" * 129])
def test_session_ids_that_are_not_one_plain_name_are_refused(tmp_path, session_id):
    with pytest.raises(ValueError, match="Invalid session_id"):
        DockerSandboxExecutor(session_id, str(tmp_path / "base"), backend="native")
    assert not (tmp_path / "base").exists()


def test_a_session_directory_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "base").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "base" / "one")
    with pytest.raises(ValueError, match="is a link"):
        DockerSandboxExecutor("one", str(tmp_path / "base"), backend="native")


def test_the_files_of_a_session_are_its_users_alone(tmp_path):
    sandbox = DockerSandboxExecutor("one", str(tmp_path / "base"), backend="native")
    assert (tmp_path / "base").stat().st_mode & 0o777 == 0o700
    assert sandbox.sandbox_dir.stat().st_mode & 0o777 == 0o700


def test_a_base_directory_that_others_can_write_is_refused_unless_it_is_sticky(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    for mode in (0o777, 0o770):
        base.chmod(mode)
        with pytest.raises(PermissionError, match=r"Another user owns .*sandbox_base_dir"):
            DockerSandboxExecutor("one", str(base), backend="native")
        output = sandboxed_python_interpreter("1", {}, backend="native", sandbox_base_dir=str(base))
        assert output.startswith("SANDBOX ERROR:\n")
    assert list(base.iterdir()) == []
    base.chmod(0o1777)
    DockerSandboxExecutor("one", str(base), backend="native")


@pytest.mark.root_only
def test_a_base_or_a_session_of_another_user_is_refused(tmp_path):
    """/tmp/sandboxes is a name that anybody can take first."""
    base = tmp_path / "base"
    base.mkdir(mode=0o755)
    session = base / "one"
    session.mkdir()
    link = tmp_path / "link"
    link.symlink_to(base)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(PermissionError, match="Another user"):
        DockerSandboxExecutor("one", str(link), backend="native")
    os.chown(session, 12345, 12345)
    with pytest.raises(PermissionError, match="another user"):
        DockerSandboxExecutor("one", str(base), backend="native")
    os.chown(base, 12345, 12345)
    with pytest.raises(PermissionError, match="Another user"):
        DockerSandboxExecutor("two", str(base), backend="native")


def test_sessions_do_not_see_each_other_and_cleanup_removes_the_files(make, tmp_path):
    one, two = make("session-1"), make("session-2")
    one.execute_code("mine = 1\nopen('/sandbox/one.txt', 'w').write('1')")
    output = two.execute_code("import os\nprint(os.listdir('/sandbox'), 'mine' in globals())")
    assert output == "[] False\n"
    assert one.session_id == "session-1"
    assert one.sandbox_dir == one.session_dir == tmp_path / "session-1"
    one.close()
    assert one.read_session_file("one.txt") == "1"
    assert one.execute_code("print(open('one.txt').read())") == "1\n"
    one.cleanup()
    assert not one.sandbox_dir.exists()
    assert one.get_session_files() == []


def test_a_session_without_a_name_gets_one(tmp_path):
    sandbox = DockerSandboxExecutor(sandbox_base_dir=str(tmp_path), backend="native")
    assert len(sandbox.session_id) == 36


# -- where it runs --------------------------------------------------------------------------


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.delenv("BELLJAR_BACKEND")


def test_who_asks_for_docker_and_has_no_engine_is_told_and_nothing_runs(
    no_engine, tmp_path, monkeypatch
):
    with pytest.raises(RuntimeError, match="Docker is not available") as caught:
        DockerSandboxExecutor("one", str(tmp_path), backend="docker")
    assert "hint: " in str(caught.value)
    assert caught.value.__suppress_context__  # what was the cause is said in the text
    monkeypatch.setenv("DOLPHIN_USE_DOCKER_SANDBOX", "1")
    for backend in (None, "auto"):
        with pytest.raises(RuntimeError, match="Install Docker and ensure it is running"):
            DockerSandboxExecutor("one", str(tmp_path), backend=backend)
    for function in (sandboxed_python_interpreter, python_interpreter):
        output = function("print('ran')", {}, sandbox_base_dir=str(tmp_path))
        assert output.startswith("SANDBOX ERROR:\nDocker is not available")
        assert "ran\n" not in output.partition("running")[2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.native_only("nothing is said about docker")
def test_who_asks_for_nothing_and_has_no_engine_gets_a_native_sandbox(no_engine, tmp_path):
    sandbox = DockerSandboxExecutor("one", str(tmp_path))
    assert sandbox._settings["backend"] == "native"


@pytest.mark.docker
def test_an_image_that_is_not_there_is_said_with_the_remedy(tmp_path):
    with pytest.raises(RuntimeError, match="Docker image 'nope:9' not found") as caught:
        DockerSandboxExecutor(
            "one", str(tmp_path), image_name="nope", image_tag="9", backend="docker"
        )
    assert "docker build -f Dockerfile.sandbox -t nope:9 ." in str(caught.value)


def test_what_only_docker_has_is_an_error_natively(tmp_path):
    for options in ({"enable_network": True}, {"image_name": "mine"}):
        with pytest.raises(ValueError, match="native"):
            DockerSandboxExecutor("one", str(tmp_path), backend="native", **options)


def test_the_variable_wins_over_the_loops_explicit_false(monkeypatch):
    """dolphin's loop gives what its configuration has: False, if nobody said anything."""
    asked = []
    monkeypatch.setattr(
        "belljar.compat.dolphin.reasoning.sandboxed_python_interpreter",
        lambda *args, backend, **options: asked.append(backend),
    )
    monkeypatch.setenv("BELLJAR_BACKEND", "native")
    python_interpreter("1", {}, use_docker_sandbox=False)
    monkeypatch.setenv("DOLPHIN_USE_DOCKER_SANDBOX", "1")
    python_interpreter("1", {}, use_docker_sandbox=False)
    python_interpreter("1", {}, use_docker_sandbox=False, backend="native")
    assert asked == ["native", "docker", "native"]


@pytest.mark.parametrize(
    "options", [{"memory_limit": "lots"}, {"cpu_quota": 0}, {"timeout": -1}, {"cpu_quota": -1}]
)
def test_limits_out_of_range_are_errors_of_the_constructor(tmp_path, options):
    with pytest.raises(ValueError):  # noqa: PT011
        DockerSandboxExecutor("one", str(tmp_path), backend="native", **options)


def test_the_mount_can_be_elsewhere_and_the_environment_another(make):
    sandbox = make(container_mount_base_dir="/data/", environment="python")
    output = sandbox.execute_code("import os; print(os.getcwd())\nimport pandas")
    assert output.startswith("/data/one\nEXECUTION ERROR:\n")
    assert "No module named 'pandas'" in output


@pytest.mark.parametrize("base", ["/tmp/x", "/usr/lib", "relative", "/data/../etc", 3, b"/data"])
def test_a_mount_where_none_can_be_is_an_error_of_the_constructor(tmp_path, base):
    with pytest.raises(ValueError, match="container_mount_base_dir=") as caught:
        DockerSandboxExecutor("one", str(tmp_path), backend="native", container_mount_base_dir=base)
    assert "workdir" not in str(caught.value)


def test_an_environment_is_one_that_exists_and_no_image_beside_it(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'data'"):
        DockerSandboxExecutor("one", str(tmp_path), backend="native", environment="dat")
    with pytest.raises(ValueError, match="give one of them"):
        DockerSandboxExecutor("one", str(tmp_path), image_name="mine", environment="data")


@pytest.mark.parametrize("code", [None, b"1", 3])
def test_code_that_is_no_text_is_said_to_be_none(tmp_path, code):
    sandbox = DockerSandboxExecutor("one", str(tmp_path), backend="native")
    said = f"not {type(code).__name__}"
    assert sandbox.execute_code(code) == f"ERROR:\ncode is a str of Python, {said}\n"
    assert validate_imports(code) == (False, f"The code is a str of Python, {said}")


def test_a_deep_tree_is_removed_by_cleanup(tmp_path):
    sandbox = DockerSandboxExecutor("one", str(tmp_path), backend="native")
    fd = os.open(sandbox.sandbox_dir, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    sandbox.cleanup()
    assert list(tmp_path.iterdir()) == []


# -- the function ---------------------------------------------------------------------------


@pytest.fixture
def interpret(backend, tmp_path):
    yield lambda function, *args, **options: function(
        *args, sandbox_base_dir=str(tmp_path), **options
    )
    docker_sandbox.close_sessions()


def test_the_function_keeps_the_session_of_its_context(interpret, tmp_path):
    context = {}
    assert interpret(sandboxed_python_interpreter, "x = 41", context) == ""
    session = context["__sandbox_session_id__"]
    assert interpret(sandboxed_python_interpreter, "print(x + 1)", context) == "42\n"
    named = interpret(sandboxed_python_interpreter, "print(x)", {}, session_id=session)
    assert named == "41\n"
    assert (tmp_path / session).is_dir()
    assert interpret(sandboxed_python_interpreter, "1", {}, session_id="../x").startswith(
        "SANDBOX ERROR:\nInvalid session_id"
    )


PLAIN = """
import math
class Own(list): pass
def f(): return shared
a, b, c, none, large = 1, 2.5, "text", None, 10**2000
shared = same = [1, (2, {"k": b"v"})]
_kept, frame, kinds, own, huge = True, object(), {1, 2}, Own([1]), "x" * 2_000_000
cycle = []
cycle.append(cycle)
"""


def test_a_context_has_the_plain_variables_that_the_code_left(interpret):
    context = {"given": 1, "items": [1]}
    assert interpret(python_interpreter, "items.append(given)\ngiven = 5\n" + PLAIN, context) == ""
    session = context.pop("__sandbox_session_id__")
    nested = [1, (2, {"k": b"v"})]
    assert context == {
        **{"given": 5, "items": [1, 1], "a": 1, "b": 2.5, "c": "text", "none": None},
        **{"large": 10**2000, "shared": nested, "same": nested, "_kept": True},
    }
    again = {**context, "__sandbox_session_id__": session}
    again["a"] = 7  # the caller's word counts; what he left alone is what it was in the sandbox
    code = "same.append(3)\nprint(a, shared is same, f() is same, huge[:2])\ndel b, a"
    assert interpret(python_interpreter, code, again) == "7 True True xx\n"
    assert again["shared"] == [*nested, 3]
    assert not {"a", "b", "context"} & set(again)


def test_what_a_context_has_survives_the_end_of_the_variables(interpret):
    context = {}
    interpret(python_interpreter, "x = 41", context)
    assert "gone" in interpret(python_interpreter, "import os\nos._exit(3)", context)
    assert interpret(python_interpreter, "print(x + 1)", context).startswith("42\n")
    assert interpret(python_interpreter, "y = x + 2", context) == ""
    assert (context["x"], context["y"]) == (41, 43)


def test_a_context_is_filled_with_data_whatever_the_code_does_to_prevent_it(interpret):
    context = {"x": 1}
    hostile = "globals = exec = lambda *a: 1 / 0\nx = 2\nprint('ran')"
    assert interpret(python_interpreter, hostile, context) == "ran\n"
    assert context["x"] == 1  # nothing came, and nothing was changed
    assert interpret(python_interpreter, "x = 3\n1 / 0", {}).endswith("division by zero\n")


@pytest.mark.parametrize("context", [None, [], {"__sandbox_session_id__": []}])
def test_the_function_says_what_is_wrong_with_a_context(context):
    assert sandboxed_python_interpreter("1", context, backend="native").startswith(
        "SANDBOX ERROR:\n"
    )


def test_code_never_runs_in_this_process_whatever_the_variable_says(
    interpret, monkeypatch, tmp_path
):
    left = f"/tmp/from-dolphin-{secrets.token_hex(8)}"
    code = f"import os\nprint(os.getpid())\nopen({left!r}, 'w')"
    values = ("1",) if setting.DOCKER else ("0", "", None)
    for value in values:
        if value is None:
            monkeypatch.delenv("DOLPHIN_USE_DOCKER_SANDBOX", raising=False)
        else:
            monkeypatch.setenv("DOLPHIN_USE_DOCKER_SANDBOX", value)
        output = interpret(python_interpreter, code, {})
        assert int(output) != os.getpid()
        assert not os.path.exists(left)


def test_the_variable_chooses_docker(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "belljar.compat.dolphin.reasoning.sandboxed_python_interpreter",
        lambda *args, backend, **options: asked.append(backend),
    )
    monkeypatch.delenv("BELLJAR_BACKEND")
    for value in ("1", "true", "0", ""):
        monkeypatch.setenv("DOLPHIN_USE_DOCKER_SANDBOX", value)
        python_interpreter("1", {})
    python_interpreter("1", {}, use_docker_sandbox=True)
    assert asked[:2] == ["docker", "docker"]
    assert "docker" not in asked[2:4]
    assert asked[4] == "docker"


# -- started ahead --------------------------------------------------------------------------


class Lives:
    """Sandboxes of this process that start and end."""

    def __init__(self):
        self._told = queue.SimpleQueue()
        self.subscription = events.subscribe(self._told.put, cells=False)

    def next(self, kind):
        while not isinstance(event := self._told.get(timeout=120), kind):
            pass
        return event.subject.id


@pytest.fixture
def lives(backend):
    made = Lives()
    with made.subscription:
        yield made


def test_a_sandbox_starts_when_the_object_is_made_and_is_the_one_that_is_used(lives, make):
    made = make()
    started = lives.next(events.Started)  # nobody has asked for anything
    assert made.execute_code("print(6 * 7)") == "42\n"
    assert started in [each.id for each in events.live()]
    made.close()
    assert lives.next(events.Ended) == started


def test_one_that_is_dropped_unused_ends_without_a_word(lives, tmp_path, recwarn):
    made = DockerSandboxExecutor("one", str(tmp_path))
    started = lives.next(events.Started)
    del made
    gc.collect()
    assert lives.next(events.Ended) == started
    assert not recwarn.list


def test_one_that_is_closed_at_once_has_left_nothing(make, tmp_path):
    before = {each.id for each in events.live()}
    for _ in range(3):
        make().close()
        assert {each.id for each in events.live()} <= before
    with make() as made:
        assert made.execute_code("print(1)") == "1\n"
    made.cleanup()
    assert not (tmp_path / "one").exists()


def test_only_a_few_are_started_ahead_and_all_can_be_used(make):
    made = [make(f"session-{n}") for n in range(4)]
    ahead = [each._ahead._head_start for each in made]
    assert sum(each is not None for each in ahead) <= sessions.MOST_AHEAD
    assert made[3].execute_code("print(3)") == "3\n"


def test_nothing_is_built_ahead(make, monkeypatch):
    monkeypatch.setattr("belljar.compat.placement.is_built", lambda environment: False)
    monkeypatch.setattr("belljar.backends.docker.images.resolve.image_exists", is_not_there)
    asked = []
    monkeypatch.setattr(AsyncSandbox, "start", lambda self: asked.append(self))
    make()
    wait(anyio.sleep, 0)  # what was submitted before it has begun
    make("two").close()  # and has ended
    assert asked == []


async def is_not_there(*args):
    return False


def test_a_fork_of_the_process_starts_its_own(backend, tmp_path):
    program = """
        import os, sys
        from belljar.compat.dolphin import DockerSandboxExecutor
        made = DockerSandboxExecutor("one", sys.argv[1])
        for _ in range(3):  # while it starts, and later
            if not (pid := os.fork()):
                print(made.execute_code("print('of a fork')"), end="", flush=True)
                made.close()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        print(made.execute_code("print('of the parent')"), end="")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["of a fork"] * 3 + ["of the parent"]


# -- the imports ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import numpy",
        "import matplotlib.pyplot as plt",
        "from scipy import stats",
        "import sklearn, pdfplumber, fitz, docx, pptx, openpyxl, chardet, magic",
        "import sys, os, json, datetime, re",
        "from pathlib import Path",
        "from __future__ import annotations",
    ],
)
def test_allowed_imports_pass(code):
    assert validate_imports(code) == (True, "")


@pytest.mark.parametrize(
    "name", ["requests", "flask", "django", "tensorflow", "torch", "pip", "setuptools"]
)
def test_other_imports_are_refused_however_they_are_written(name):
    for code in (f"import {name}", f"from {name} import x", f"m = __import__({name!r})"):
        valid, message = validate_imports(code)
        assert not valid
        assert f"The following imports are not allowed: {name}\n" in message


def test_what_is_not_installed_is_not_promised():
    _, message = validate_imports("import requests")
    installed, maybe = message.split("\n\nAllowed if they are installed in the sandbox:\n")
    assert "- pandas\n" in installed
    assert "- pdfplumber\n" in maybe
    data = {
        package.partition(">")[0]
        for package in belljar.environment.environment.BUILTIN["data"].packages
    }
    named = {
        line[2:].partition(" ")[0] for line in installed.partition("libraries:\n")[2].split("\n")
    }
    assert named - {"Standard"} <= data


def test_a_library_can_be_added(monkeypatch):
    monkeypatch.setattr("belljar.compat.dolphin.docker_sandbox.ALLOWED_LIBRARIES", {"requests"})
    assert validate_imports("import requests")[0]
    assert not validate_imports("import numpy")[0]
    assert "numpy" in ALLOWED_LIBRARIES
