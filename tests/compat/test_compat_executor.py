"""DockerExecutor: the document's blocks as they are, its result dictionary, and what is better.

The blocks are those of the document, with `src.sandbox` read as `belljar.compat.executor`.
"""

import concurrent.futures
import json
import logging
import os
import socket
import subprocess
import textwrap
from pathlib import Path

import pandas as pd
import pytest

import setting
from belljar import InvalidOption
from belljar.compat import placement
from belljar.compat.executor import container_monitor, docker_executor, translate
from belljar.compat.executor.docker_config import DockerConfig
from belljar.compat.executor.docker_executor import DockerExecutor
from belljar.compat.executor.runtime_monitor import SecurityPolicy
from belljar.runtime import wait

KEYS = {"success", "signal", "error", "execution_time", "container_id", "validated"}
KEYS |= {"cleanup_success", "logs"}
BACKEND = setting.BACKEND
# A limit that is chosen is enforced, or nothing starts.
pytestmark = [pytest.mark.needs_cgroup, pytest.mark.contract("docker")]
QUICK = {"memory_limit": "512m", "tmpfs_size": "16m", "export_container_stats": False}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Relative paths of the document lead to a directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BELLJAR_BACKEND", BACKEND)
    return tmp_path


@pytest.fixture
def executor(backend):
    with DockerExecutor(DockerConfig(**QUICK)) as made:
        yield made
        assert made.cleanup_all()["failed"] == 0


# -- the document's blocks ------------------------------------------------------------------

BASIC = '''
from src.sandbox.docker_executor import DockerExecutor
from src.sandbox.docker_config import DockerConfig

# Use default configuration
executor = DockerExecutor()

# Execute code
code = """
import pandas as pd
signal = pd.DataFrame({'stock': ['AAPL'], 'position': [1.0]})
print(f"Signal created: {signal}")
"""

result = executor.execute(code)

if result['success']:
    print(f"Execution time: {result['execution_time']:.2f}s")
    print(f"Output: {result.get('logs', '')}")
else:
    print(f"Error: {result['error']}")

# Cleanup
executor.cleanup_all()
'''

CONTEXT = """
with DockerExecutor() as executor:
    result = executor.execute(code)
    # Automatic cleanup on exit
"""

CUSTOM = """
config = DockerConfig(
    memory_limit="1g",
    cpu_limit=0.25,
    timeout_seconds=300,
    network_mode="none",
    read_only=True
)

executor = DockerExecutor(config)
"""

YAML = """
# Load from config/docker_config.yaml
config = DockerConfig.from_yaml()
executor = DockerExecutor(config)
"""

VALIDATOR = """
from src.sandbox.security_validator import SecurityValidator

validator = SecurityValidator()
is_valid, errors = validator.validate(code)

if not is_valid:
    print(f"Validation failed: {errors}")
"""

CONFIG = """
from src.sandbox.docker_config import DockerConfig

# Default values
config = DockerConfig()

# From YAML
config = DockerConfig.from_yaml("config/docker_config.yaml")

# Custom values
config = DockerConfig(
    memory_limit="2g",
    cpu_limit=0.5,
    timeout_seconds=600
)
"""

EXECUTOR = """
from src.sandbox.docker_executor import DockerExecutor

executor = DockerExecutor()

# Execute with validation
result = executor.execute(code, timeout=60, validate=True)

# Execute without validation (use with caution)
result = executor.execute(code, validate=False)

# Cleanup all containers
stats = executor.cleanup_all()
print(f"Cleaned up {stats['success']}/{stats['total']} containers")
"""

ORPHANS = """
# Check active containers
executor.get_orphaned_containers()

# Force cleanup all
executor.cleanup_all()
"""

PERFORMANCE = """
# Check execution time breakdown
result = executor.execute(code)
print(f"Total time: {result['execution_time']:.2f}s")

# Enable debug logging
import logging
logging.basicConfig(level=logging.DEBUG)
"""

STRICT = """
# Skip validation (use with caution)
result = executor.execute(code, validate=False)

# Or check what's allowed
from src.sandbox.security_validator import SecurityValidator
validator = SecurityValidator()
print(validator.get_allowed_imports())
"""


def run(block, names):
    exec(block.replace("src.sandbox", "belljar.compat.executor"), names)


def test_the_documents_blocks_run_as_they_are(backend, capsys):
    names = {}
    run(BASIC, names)
    out = capsys.readouterr().out
    assert "Execution time: " in out
    assert "Signal created:   stock  position" in out
    assert set(names["result"]) == KEYS
    run(CONTEXT, names)
    assert names["result"]["success"] is True
    run(CUSTOM, names)
    assert names["executor"].config.cpu_limit == 0.25
    run(YAML, names)
    run(VALIDATOR, names)
    assert (names["is_valid"], names["errors"]) == (True, [])
    run(CONFIG, names)
    run(EXECUTOR, names)
    assert "Cleaned up 0/0 containers" in capsys.readouterr().out
    assert names["result"]["validated"] is False
    run(ORPHANS, names)
    names["code"] = "signal = 1"
    run(PERFORMANCE, names)
    run(STRICT, names)
    assert "'pandas'" in capsys.readouterr().out
    names["executor"].close()


# -- the result -----------------------------------------------------------------------------


def test_signal_is_what_the_code_computed_whatever_it_prints(executor):
    code = """
    import pandas as pd
    print("__SIGNAL_JSON_START__")
    print('{"not": "this"}')
    print("__SIGNAL_JSON_END__")
    signal = pd.DataFrame({"stock": ["AAPL", "MSFT"], "position": [1.0, -1.0]},
                          index=pd.date_range("2024-01-01", periods=2))
    """
    result = executor.execute(textwrap.dedent(code))
    assert set(result) == KEYS
    assert (result["success"], result["error"], result["validated"]) == (True, None, True)
    expected = pd.DataFrame(
        {"stock": ["AAPL", "MSFT"], "position": [1.0, -1.0]},
        index=pd.date_range("2024-01-01", periods=2),
    )
    pd.testing.assert_frame_equal(result["signal"], expected, check_freq=False)
    assert '{"not": "this"}' in result["logs"]
    assert result["cleanup_success"] is True
    assert result["execution_time"] > 0


def test_a_printed_signal_counts_where_there_is_no_variable(executor):
    printed = json.dumps({"test": "success", "value": 42})
    code = f"print('__SIGNAL_JSON_START__')\nprint({printed!r})\nprint('__SIGNAL_JSON_END__')"
    assert executor.execute(code)["signal"] == {"test": "success", "value": 42}


def test_how_code_ended_is_said_and_only_a_timeout_is_called_one(executor):
    """Each in a sandbox of its own; on docker, these are seven containers."""

    def error(code, **options):
        result = executor.execute(code, validate=False, **options)
        assert (result["success"], result["signal"]) == (False, None)
        assert result["cleanup_success"] is True
        assert result["container_id"]
        return result["error"]

    raised = error("print('so far')\n1 / 0")
    assert raised.startswith("Container exited with code 1:\nso far\n")
    assert "ZeroDivisionError: division by zero" in raised
    assert error("import sys; sys.exit(3)").startswith("Container exited with code 3:\n")
    killed = error("import os; os.kill(os.getpid(), 11)")
    assert killed.startswith("Container exited with code 139:\n")
    memory = error("data = ['x' * (50 * 2**20) for _ in range(20)]")
    assert memory.startswith("Container exited with code 137:\nOut of memory: ")
    assert "memory_limit=512m" in memory
    for each in (raised, killed, memory):
        assert "timeout" not in each.lower()
    timeout = error("print('so far', flush=True)\nwhile True: pass", timeout=5)
    assert timeout.startswith("Container execution timeout exceeded (5s)\nso far\n")


def test_a_marker_in_the_output_is_looked_for_in_no_time(executor):
    """As a pattern it took hours for these, in the host's process."""
    code = (
        "print('__SIGNAL_JSON_START__' + ' ' * 1_000_000)\nprint('__SIGNAL_JSON_START__' * 20_000)"
    )
    result = executor.execute(code)
    assert (result["success"], result["signal"]) == (True, None)


def test_arguments_that_make_no_sense_are_told(executor):
    assert executor.execute(None)["error"] == "Invalid argument: code is a str, not NoneType"
    valid, errors = executor.validator.validate(None)
    assert (valid, errors) == (False, ["Code must be a string, not NoneType"])
    assert executor.validator.get_validation_report(None)["errors"] == errors
    with pytest.raises(TypeError, match=r"config is a DockerConfig, not dict: .*DockerConfig\("):
        DockerExecutor({"memory_limit": "1g"})


def test_exit_code_zero_is_a_success(executor):
    result = executor.execute("signal = 5\nimport sys; sys.exit(0)", validate=False)
    assert (result["success"], result["error"]) == (True, None)


def test_a_signal_that_cannot_leave_is_an_error_and_a_module_of_that_name_is_none(executor):
    result = executor.execute("signal = object()")
    assert result["error"] == "signal cannot leave the sandbox: signal is a object"
    result = executor.execute("import json as signal")
    assert (result["success"], result["signal"]) == (True, None)


def test_a_signal_of_classes_of_the_code_is_plain_data(executor):
    result = executor.execute(
        "import collections, enum\n"
        "class Side(enum.IntEnum):\n    BUY = 1\n"
        "Order = collections.namedtuple('Order', 'side units')\n"
        "signal = {'A': Order(Side.BUY, 2)}"
    )
    assert (result["error"], result["signal"]) == (None, {"A": (1, 2)})


def test_refused_code_never_starts_anything(executor):
    result = executor.execute("import subprocess\n")
    assert result["error"] == "Security validation failed: Dangerous import detected: subprocess"
    assert (result["validated"], result["container_id"]) == (True, None)
    assert (result["success"], result["cleanup_success"], result["logs"]) == (False, True, "")


@pytest.mark.parametrize("timeout", [0, -1, "5", True, float("nan")])
def test_a_timeout_that_is_none_is_told(executor, timeout):
    error = executor.execute("1", timeout=timeout)["error"]
    assert error.startswith("Invalid argument: timeout is a number of seconds")


# -- where it runs --------------------------------------------------------------------------


def test_only_tmp_and_output_are_writable_and_nothing_is_shared_between_runs(executor):
    code = """
    import os
    signal = {}
    for path in ("/tmp/x", "/output/x", "x", "/x", "/workspace/x", "/etc/x", "/usr/x"):
        try:
            with open(path, "x") as file:
                file.write("x")
            signal[path] = True
        except OSError:
            signal[path] = False
    signal["seen"] = sorted(os.listdir("/tmp"))
    with open("/tmp/program", "w") as file:
        file.write("#!/bin/sh\\n")
    os.chmod("/tmp/program", 0o755)
    try:
        os.posix_spawn("/tmp/program", ["/tmp/program"], {})
    except OSError as error:
        signal["exec"] = error.strerror
    """
    expected = dict.fromkeys(("/x", "/workspace/x", "/etc/x", "/usr/x", "x"), False)
    expected |= {"/tmp/x": True, "/output/x": True, "exec": "Permission denied"}
    for _ in range(2):
        signal = executor.execute(textwrap.dedent(code), validate=False)["signal"]
        seen = signal.pop("seen")
        assert signal == expected
        assert "x" in seen
        assert not any("docker_executor" in name for name in seen)
    # Where the original keeps the code of the last run, for whoever reads /tmp.
    last = Path("/tmp/docker_executor_last_code.py")
    assert not last.exists() or "for path in" not in last.read_text()


def test_files_of_the_code_are_saved_below_output_dir(executor, here):
    result = executor.execute(
        "import os\nos.mkdir('plots')\nopen('plots/a.txt', 'w').write('1')\n"
        "os.symlink('/etc/passwd', 'link')\n1 / 0",
        validate=False,
    )
    saved = here / "sandbox_output" / result["container_id"][:32]
    assert [str(path.relative_to(saved)) for path in saved.rglob("*")] == ["plots", "plots/a.txt"]
    assert executor.execute("1")["success"]
    assert len(list((here / "sandbox_output").iterdir())) == 1  # none where nothing was written


def test_a_policy_of_ones_own_lets_files_of_the_output_be_written(backend, here):
    files = {"extends": "strategy", "name": "files", "paths": {"extend_allow": ["/output/**"]}}
    writes = "import pandas as pd\npd.DataFrame({'a': [1]}).to_csv('/output/a.csv', index=False)"
    with DockerExecutor(DockerConfig(**QUICK), policy=files) as executor:
        result = executor.execute(writes)
        assert "Security validation failed" in executor.execute("open('/etc/passwd')")["error"]
    saved = here / "sandbox_output" / result["container_id"][:32] / "a.csv"
    assert saved.read_text() == "a\n1\n"
    plain = DockerExecutor(DockerConfig(**QUICK)).execute(writes)["error"]
    assert plain.startswith("Security validation failed: File operation detected: ")


def test_a_sandbox_is_kept_when_cleanup_on_exit_is_false(executor):
    executor.config.cleanup_on_exit = False
    result = executor.execute("signal = 1")
    assert (result["success"], result["cleanup_success"]) == (True, False)
    assert executor._active_containers == [result["container_id"]]
    # It is in use, and so no orphan; nor is any other container of this machine.
    assert result["container_id"] not in [each["id"] for each in executor.get_orphaned_containers()]
    assert executor.cleanup_all() == {"total": 1, "success": 1, "failed": 0}
    assert executor.cleanup_all() == {"total": 0, "success": 0, "failed": 0}


def test_executions_at_once_do_not_disturb_each_other(executor):
    number = 3 if setting.DOCKER else 8
    with concurrent.futures.ThreadPoolExecutor(number) as pool:
        code = "import time\ntime.sleep(0.1)\nsignal = {}"
        results = list(pool.map(lambda i: executor.execute(code.format(i)), range(number)))
    assert [result["signal"] for result in results] == list(range(number))
    assert len({result["container_id"] for result in results}) == number
    assert executor._active_containers == []


@pytest.mark.docker
def test_foreign_containers_are_no_orphans(executor):
    name = f"not-of-belljar-{os.getpid()}"
    made = subprocess.run(
        ["docker", "create", "--name", name, "belljar-base:bookworm", "true"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    try:
        assert made not in [each["id"] for each in executor.get_orphaned_containers()]
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=True, capture_output=True)


@pytest.mark.docker
def test_the_container_is_gone_after_the_execution(executor):
    container = executor.execute("signal = 1")["container_id"]
    found = subprocess.run(["docker", "inspect", container], capture_output=True)
    assert found.returncode != 0


def test_an_image_that_is_not_there_is_named_with_the_remedy(backend):
    config = DockerConfig(image="belljar-has-no-such:image", **QUICK)
    with DockerExecutor(config) as executor:
        error = executor.execute("signal = 1")["error"]
    if setting.DOCKER:
        assert error.startswith("Docker image not found: belljar-has-no-such:image")
        assert "docker pull belljar-has-no-such:image" in error
    else:
        assert "an image needs an engine" in error


def test_a_project_with_a_seccomp_file_of_its_own_runs(backend, here, caplog):
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"]}
    (here / "config").mkdir()
    (here / "config" / "seccomp_profile.json").write_text(json.dumps(profile))
    with DockerExecutor(DockerConfig(**QUICK)) as executor:
        for _ in range(2):
            assert executor.execute("signal = 1")["signal"] == 1
    warned = [each for each in caplog.messages if "it uses Belljar's own profile" in each]
    assert len(warned) == (0 if setting.DOCKER else 1)


# -- the runtime monitor --------------------------------------------------------------------


def test_the_runtime_monitor_ends_code_and_the_error_says_so(backend):
    config = DockerConfig(runtime_monitor_enabled=True, **QUICK)
    with DockerExecutor(config) as executor:
        monitor = executor.runtime_monitor
        monitor.policy = SecurityPolicy(
            memory_threshold_percent=0.001, memory_spike_count=1, check_interval_seconds=0.05
        )
        code = "print('so far', flush=True)\nwhile True: pass"
        result = executor.execute(code, timeout=300)
        assert monitor.get_monitored_containers() == []
        (event,) = monitor.get_security_events()
    assert event.container_id == result["container_id"]
    said = "Container exited with code 137:\nRuntimeMonitor killed it: memory_spike (memory_percent"
    assert result["error"].startswith(said)
    assert (result["success"], result["cleanup_success"]) == (False, True)
    assert monitor._monitoring_thread.is_alive() is False


def test_without_the_option_nothing_is_monitored(backend):
    with DockerExecutor(DockerConfig(runtime_monitor_enabled=False, **QUICK)) as executor:
        assert executor.runtime_monitor is None
        assert executor.execute("signal = 1")["signal"] == 1


# -- where there is no sandbox --------------------------------------------------------------


@pytest.fixture
def nothing(monkeypatch):
    """A host on which nothing can be started."""

    def refuse(self):
        raise RuntimeError("Failed to connect to Docker daemon: there is none")

    monkeypatch.setattr(DockerExecutor, "_reach", refuse)


def test_without_a_sandbox_nothing_runs(nothing):
    with pytest.raises(RuntimeError, match="Failed to connect to Docker daemon"):
        DockerExecutor(DockerConfig())


def test_without_what_docker_needs_the_error_names_it(monkeypatch):
    monkeypatch.setattr(docker_executor, "DOCKER_AVAILABLE", False)
    with pytest.raises(RuntimeError, match=r"Docker SDK not available\. Install with: pip"):
        DockerExecutor(DockerConfig())


def test_an_engine_that_does_not_answer_is_an_error_of_the_constructor(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(RuntimeError, match="Failed to connect to Docker daemon"):
        DockerExecutor(DockerConfig(), backend="docker")


def test_a_disabled_executor_refuses(here):
    result = DockerExecutor(DockerConfig(enabled=False)).execute("open('ran', 'w')", validate=False)
    assert "disabled" in result["error"]
    assert result["success"] is False
    assert not (here / "ran").exists()


def test_the_fallback_is_loud_and_in_a_process_of_its_own(nothing, caplog):
    executor = DockerExecutor(DockerConfig(fallback_to_direct=True))
    with caplog.at_level(logging.WARNING), pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        result = executor.execute("import os\nsignal = os.getpid()\nprint('hi')", validate=False)
    assert "WITHOUT a sandbox" in caplog.text
    assert "WITHOUT a sandbox" in result["logs"]
    assert result["logs"].endswith("hi\n")
    assert result["container_id"] == translate.DIRECT
    assert result["success"] is True
    assert result["signal"] != os.getpid()
    assert set(result) == KEYS


@pytest.fixture
def silent_engine(monkeypatch, short_directory):
    """An engine that takes connections, and does not answer."""
    path = f"{short_directory}/engine"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.setattr(placement, "PING_TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield listener


def test_the_fallback_is_not_for_an_engine_that_is_slow(silent_engine, here, recwarn):
    config = DockerConfig(fallback_to_direct=True, **QUICK)
    executor = DockerExecutor(config, backend="docker")
    code = f"open({str(here / 'ran')!r}, 'w').close()"
    result = executor.execute(code, validate=False)
    assert "did not answer" in result["error"]
    assert "Nothing was run" in result["error"]
    assert (result["success"], result["container_id"]) == (False, None)
    assert not (here / "ran").exists()
    assert [w for w in recwarn if w.category is RuntimeWarning] == []
    # Without an engine it is what the caller has chosen: the next execution asks again.
    silent_engine.close()
    os.unlink(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        assert executor.execute(code, validate=False)["success"] is True
    assert (here / "ran").exists()


def test_an_engine_that_is_slow_is_an_error_without_the_fallback(silent_engine):
    with pytest.raises(RuntimeError, match=r"Failed to connect to Docker daemon.*did not answer"):
        DockerExecutor(DockerConfig(**QUICK), backend="docker")


def test_a_sandbox_is_used_as_soon_as_one_can_be_had(monkeypatch, backend):
    def refuse(self):
        raise RuntimeError("Failed to connect to Docker daemon: there is none")

    with monkeypatch.context() as patched:
        patched.setattr(DockerExecutor, "_reach", refuse)
        executor = DockerExecutor(DockerConfig(fallback_to_direct=True, **QUICK))
        assert executor.client is None
    with executor:
        result = executor.execute("signal = 1")
        assert executor.client is not None
    assert (result["signal"], result["error"]) == (1, None)
    assert result["container_id"] != translate.DIRECT


@pytest.mark.filterwarnings("ignore:fallback_to_direct:RuntimeWarning")
def test_the_fallback_keeps_the_rules_it_can(nothing):
    executor = DockerExecutor(DockerConfig(fallback_to_direct=True))
    assert "Security validation failed" in executor.execute("import os")["error"]
    assert "timeout exceeded (1s)" in executor.execute("while True: pass", timeout=1)["error"]
    assert executor.execute("1 / 0")["error"].startswith("Process exited with code 1:\n")
    frame = executor.execute("import pandas as pd\nsignal = pd.DataFrame({'a': [1, 2]})")["signal"]
    assert frame["a"].tolist() == [1, 2]
    assert "cannot leave" in executor.execute("signal = object()")["error"]


def test_the_fallback_is_never_used_where_a_sandbox_can_be_had(backend, recwarn):
    config = DockerConfig(fallback_to_direct=True, **QUICK)
    with DockerExecutor(config) as executor:
        result = executor.execute("signal = 1")
    assert result["container_id"] != translate.DIRECT
    assert [w for w in recwarn if w.category is RuntimeWarning] == []


def test_more_orphans_than_the_threshold_are_a_warning(monkeypatch, caplog):
    found = [{"id": str(n)} for n in range(3)]
    monkeypatch.setattr(container_monitor, "find_orphans", lambda: found)
    executor = DockerExecutor(DockerConfig(enabled=False, alert_on_orphaned_containers=2))
    with caplog.at_level(logging.WARNING):
        assert executor.get_orphaned_containers() == found
    assert "3 orphaned containers (alert above 2)" in caplog.text
    caplog.clear()
    executor.config.alert_on_orphaned_containers = 3
    executor.get_orphaned_containers()
    assert caplog.text == ""


def test_an_error_of_the_engine_is_told_as_one(monkeypatch, backend):
    from belljar.backends.docker.client.engine import EngineError
    from belljar.sandbox.blocking import Sandbox

    def fail(self):
        raise EngineError("no space left on device", status=500)

    with DockerExecutor(DockerConfig(**QUICK)) as executor:
        monkeypatch.setattr(Sandbox, "start", fail)
        result = executor.execute("signal = 1")
    assert result["error"].startswith("Docker API error: no space left on device")
    assert (result["success"], result["cleanup_success"]) == (False, True)


def test_an_image_of_ones_own_needs_an_engine():
    with pytest.raises(InvalidOption):
        wait(placement.place, "native", image="x", default_image="y")
