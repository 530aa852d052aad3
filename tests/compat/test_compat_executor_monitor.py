"""ContainerMonitor and SecurityValidator, and metrics on their port."""

import logging
import socket
import urllib.request
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

import setting
from belljar import Sandbox
from belljar.compat.executor import container_monitor
from belljar.compat.executor.container_monitor import (
    ContainerMonitor,
    ContainerStats,
    ContainerStatus,
)
from belljar.compat.executor.docker_config import DockerConfig
from belljar.compat.executor.docker_executor import DockerExecutor
from belljar.compat.executor.security_validator import SecurityValidator

MB = 2**20
READ = {
    "memory_stats": {"usage": 1900 * MB, "limit": 2000 * MB},
    "cpu_stats": {
        "cpu_usage": {"total_usage": 1_000_000_000},
        "system_cpu_usage": 10_000_000_000,
        "online_cpus": 4,
    },
    "precpu_stats": {
        "cpu_usage": {"total_usage": 900_000_000},
        "system_cpu_usage": 9_500_000_000,
    },
}


class NotFound(Exception):
    """As the Docker SDK names it."""


class Container:
    """As the Docker SDK shows one."""

    def __init__(self, id, status="running", labels=("finlab-sandbox",)):
        self.short_id, self.name, self.status = id, f"name-{id}", status
        self.labels = dict.fromkeys(labels, "true")
        self.attrs = {
            "State": {"Created": "2024-10-26T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"}
        }
        self.removed = None

    def reload(self):
        pass

    def stats(self, stream):
        assert stream is False
        return READ

    def remove(self, force):
        self.removed = force


class Client:
    """As the Docker SDK's, with these containers."""

    def __init__(self, *containers):
        self.known = {each.short_id: each for each in containers}
        self.containers = SimpleNamespace(get=self.get, list=self.list)
        self.closed = False

    def ping(self):
        return True

    def get(self, id):
        if id not in self.known:
            raise NotFound(id)
        return self.known[id]

    def list(self, all, filters):
        wanted = filters.get("status")
        wanted = [wanted] if isinstance(wanted, str) else wanted
        return [
            each
            for each in self.known.values()
            if filters["label"] in each.labels and (wanted is None or each.status in wanted)
        ]

    def close(self):
        self.closed = True


# -- through a Docker client ----------------------------------------------------------------


def test_a_clients_container_is_measured():
    monitor = ContainerMonitor(docker_client=Client(Container("abc")))
    stats = monitor.get_container_stats("abc")
    assert (stats.container_id, stats.container_name) == ("abc", "name-abc")
    assert stats.status is ContainerStatus.RUNNING
    assert (stats.memory_usage_mb, stats.memory_limit_mb, stats.memory_percent) == (1900, 2000, 95)
    assert stats.cpu_percent == pytest.approx(80)
    assert stats.created_at == datetime(2024, 10, 26, tzinfo=UTC)
    assert stats.finished_at is None
    assert (stats["memory_usage"], stats["status"]) == (1900 * MB, "running")
    assert "memory_percent" in stats
    assert stats.to_dict()["created_at"] == "2024-10-26T00:00:00+00:00"
    assert monitor.get_container_stats("nobody") is None
    assert 0 < monitor.get_monitoring_overhead() < 1


def test_only_labelled_containers_that_ended_are_orphans(caplog):
    client = Client(
        Container("a", "exited"),
        Container("b", "dead"),
        Container("live"),
        Container("foreign", "exited", labels=()),
    )
    monitor = ContainerMonitor(docker_client=client, alert_threshold=2)
    with caplog.at_level(logging.WARNING):
        assert monitor.scan_orphaned_containers() == ["a", "b"]
    assert "2 orphaned containers" in caplog.text
    assert monitor.cleanup_orphaned_containers() == 2
    assert [client.known[id].removed for id in ("a", "b", "live", "foreign")] == [
        True,
        True,
        None,
        None,
    ]


def test_cleanup_leaves_what_is_not_ours_and_goes_on_after_an_error(caplog):
    broken, fine, foreign = Container("broken"), Container("fine"), Container("x", labels=())
    broken.remove = lambda force: (_ for _ in ()).throw(OSError("busy"))
    client = Client(broken, fine, foreign)
    monitor = ContainerMonitor(docker_client=client)
    assert monitor.cleanup_orphaned_containers(["broken", "fine", "x", "gone"], force=False) == 2
    assert (fine.removed, foreign.removed) == (False, None)
    assert "busy" in caplog.text
    off = ContainerMonitor(docker_client=client, cleanup_enabled=False)
    assert off.cleanup_orphaned_containers(["fine"]) == 0


def test_alerts_tell_which_threshold_was_crossed():
    monitor = ContainerMonitor(docker_client=Client(Container("a")))
    (alert,) = monitor.check_resource_alerts(memory_threshold=90.0, cpu_threshold=90.0)
    assert alert["container_id"] == "a"
    assert alert["memory_violation"] == {"current": 95.0, "threshold": 90.0}
    assert "cpu_violation" not in alert
    assert monitor.check_resource_alerts(96.0) == []
    assert monitor.check_resource_alerts(memory_threshold_percent=96.0) == []
    assert set(monitor.monitor_all_containers()) == {"a"}


def test_a_client_is_pinged_at_once_and_closed_at_the_end():
    client = Client()
    client.ping = lambda: (_ for _ in ()).throw(OSError("Connection refused"))
    with pytest.raises(RuntimeError, match="Failed to connect to Docker daemon: Connection"):
        ContainerMonitor(docker_client=client)
    client = Client()
    ContainerMonitor(docker_client=client).close()
    assert client.closed


def test_where_nothing_can_run_the_monitor_says_what_to_install(monkeypatch):
    monkeypatch.setattr(container_monitor, "DOCKER_AVAILABLE", False)
    with pytest.raises(RuntimeError, match="Docker SDK not available"):
        ContainerMonitor()


def test_a_collector_of_before_is_told():
    class Metric:
        def __init__(self):
            self.values = []

        def add_value(self, value, labels=None):
            self.values.append((value, labels))

    class Collector:
        def __init__(self):
            self.metrics = {
                name: Metric()
                for name in ("sandbox_containers_orphaned", "sandbox_container_cpu_percent")
            }
            self.errors = []

        def record_error(self, kind):
            self.errors.append(kind)

    collector = Collector()
    client = Client(Container("a", "exited"), Container("b"))
    monitor = ContainerMonitor(collector, client, alert_threshold=1)
    monitor.scan_orphaned_containers()
    monitor.get_container_stats("b")
    assert collector.metrics["sandbox_containers_orphaned"].values == [(1, None)]
    ((_, labels),) = collector.metrics["sandbox_container_cpu_percent"].values
    assert labels["container_id"] == "b"
    assert collector.errors == ["orphaned_containers_alert"]
    with pytest.raises(ValueError, match="cannot record metrics"):
        ContainerMonitor(object())


def test_belljars_metrics_show_the_containers():
    from belljar.observe.metrics import Metrics

    metrics = Metrics()
    monitor = ContainerMonitor(metrics, Client(Container("a"), Container("b", "exited")))
    monitor.get_running_containers()
    monitor.cleanup_orphaned_containers()
    text = metrics.text()
    assert 'sandbox_container_memory_percent{container_id="a"' in text
    assert "sandbox_containers_running 1.0" in text
    assert "sandbox_containers_cleaned_total 1.0" in text


# -- of Belljar's own sandboxes ---------------------------------------------------------------


def test_own_sandboxes_are_measured_and_no_orphans(backend, monkeypatch):
    left = {"id": "0" * 64, "short_id": "0" * 12, "name": "left", "backend": "docker"}
    with Sandbox(environment="python", backend=setting.BACKEND) as sandbox:
        sandbox.run_code("data = bytearray(50 * 2**20)")
        with ContainerMonitor() as monitor:
            (stats,) = [
                s for s in monitor.get_running_containers() if s["container_name"] == sandbox.id
            ]
            assert isinstance(stats, ContainerStats)
            assert stats.status is ContainerStatus.RUNNING
            assert stats.memory_limit_mb == 512
            if setting.COUNTED:
                assert 50 < stats.memory_usage_mb < 300
                assert stats.memory_percent == pytest.approx(stats.memory_usage_mb / 5.12)
            assert monitor.get_container_stats(stats.container_id).container_name == sandbox.id
            assert stats.container_id not in monitor.scan_orphaned_containers()
            # One that lives is not removed, even by its id.
            assert monitor.cleanup_orphaned_containers([stats.container_id]) == 0
            assert sandbox.run_code("len(data)").text == str(50 * 2**20)
            monkeypatch.setattr(container_monitor, "find_orphans", lambda: [left])
            assert set(monitor.monitor_all_containers()) >= {stats.container_id, left["id"]}
            assert monitor.get_container_stats("left").status is ContainerStatus.DEAD


@pytest.fixture
def free_port():
    """Nobody else gets it, and who reuses addresses, as servers do, can listen on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def get(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.needs_cgroup
def test_metrics_are_served_on_the_port(backend, tmp_path, monkeypatch, free_port):
    monkeypatch.chdir(tmp_path)
    port = free_port
    config = DockerConfig(memory_limit="512m", tmpfs_size="16m", prometheus_port=port)
    config.export_container_stats = False
    with DockerExecutor(config, backend=setting.BACKEND) as executor:
        executor.execute("signal = 1")
        with pytest.raises(OSError, match="refused"):
            get(port)
        config.export_container_stats = True
        config.cleanup_on_exit = False
        executor.execute("signal = 1")
        executor.execute("1 / 0")
        text = get(port)
        assert 'belljar_cells_total{backend="' + setting.BACKEND in text
        assert 'outcome="error"' in text
        for kept in executor._sandboxes.values():
            assert kept.id in text or not setting.COUNTED
        assert f'belljar_sandboxes{{backend="{setting.BACKEND}"}}' in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/else")


@pytest.mark.needs_cgroup
def test_a_port_that_is_taken_is_a_warning_and_code_runs(backend, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = DockerConfig(
            memory_limit="512m", tmpfs_size="16m", prometheus_port=taken.getsockname()[1]
        )
        with DockerExecutor(config, backend=setting.BACKEND) as executor:
            assert executor.execute("signal = 1")["signal"] == 1
            assert executor.execute("signal = 2")["signal"] == 2
    assert caplog.text.count("metrics are not served on 127.0.0.1") == 1


# -- the validator --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "e = eval\ne('1')",
        "import pandas as pd\npd.read_csv('/etc/passwd')",
        "import pandas as pd\npd.io.common.os.system('id')",
        "().__class__.__base__.__subclasses__()",
        "import subprocess as sp",
        "from os.path import join",
        "def f():\n    import socket",
        "eval('1')",
        "exec('1')",
        "__import__('os')",
        "open('x')",
        "import pathlib",
        "import shutil",
        "from io import BytesIO",
        "import urllib.request",
        "import requests",
    ],
)
def test_what_the_validator_of_before_let_pass_is_refused(code):
    valid, errors = SecurityValidator().validate(code)
    assert not valid
    assert errors
    assert all(isinstance(error, str) and error for error in errors)


@pytest.mark.parametrize(
    "code",
    [
        "import re\nre.compile('a+').match('aa')",
        "import pandas as pd\npd.DataFrame({'a': [1]}).eval('a + 1')",
        "import pandas as pd\npd.DataFrame({'a': [1]}).query('a > 0')",
        "from collections import defaultdict\nfrom typing import Any",
        "",
        "# nothing",
    ],
)
def test_what_the_validator_of_before_refused_passes(code):
    assert SecurityValidator().validate(code) == (True, [])


@pytest.mark.parametrize(
    "code",
    [
        "if 'report' in locals():\n    signal = {'sharpe': getattr(report, 'sharpe_ratio', 0.0)}",
        "if 'data' not in locals():\n    data = {}",
        "import threading\nthreads = [threading.Thread(target=print) for _ in range(10)]",
        "from src.templates.momentum_template import MomentumTemplate",
        "print(f'Model R² score: {score:.3f}')",
    ],
)
def test_idioms_of_the_generators_own_programs_pass(code):
    assert SecurityValidator().validate(code) == (True, [])


@pytest.mark.parametrize(
    "code",
    [
        "from src.templates.momentum_template import os\nos.system('id')",
        "from src.sandbox import docker_executor",
    ],
)
def test_of_the_generators_own_modules_only_templates_may_be_imported(code):
    assert not SecurityValidator().validate(code)[0]


def test_the_report_counts():
    report = SecurityValidator().get_validation_report(
        "import pandas as pd\nimport numpy as np\n\ndef f():\n    pass\n"
    )
    assert (report["is_valid"], report["errors"]) == (True, [])
    assert (report["code_lines"], report["import_count"], report["function_count"]) == (5, 2, 1)
    assert 0 < report["validation_time_ms"] < 30_000
    broken = SecurityValidator().get_validation_report("def f(\n")
    assert (broken["is_valid"], broken["import_count"]) == (False, 0)
    assert broken["errors"][0].startswith("Syntax error in line 1: ")


def test_a_check_that_takes_too_long_refuses(monkeypatch):
    moments = iter([0.0, 0.11])
    clock = SimpleNamespace(thread_time=lambda: next(moments))
    monkeypatch.setattr("belljar.compat.executor.security_validator.time", clock)
    valid, errors = SecurityValidator().validate("import pandas")
    assert (valid, errors) == (False, ["Validation timeout: it took more than 100ms"])


def test_allowed_imports_are_listed():
    allowed = SecurityValidator().get_allowed_imports()
    assert {"pandas", "numpy", "json", "typing"} <= set(allowed)
    assert not {"os", "subprocess", "socket"} & set(allowed)
