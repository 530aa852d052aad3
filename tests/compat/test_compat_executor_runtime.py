"""RuntimeMonitor: what a policy says to numbers, whom it ends, and how long its thread lives."""

import gc
import threading

import pytest
from test_compat_executor_monitor import Client, Container

from belljar.compat.executor import runtime_monitor
from belljar.compat.executor.container_monitor import ContainerStats, ContainerStatus
from belljar.compat.executor.runtime_monitor import (
    ContainerState,
    RuntimeMonitor,
    SecurityPolicy,
    ViolationType,
    judge,
)

SOON = 0.01  # seconds between two checks


class Killable(Container):
    killed = None

    def kill(self, signal):
        self.killed = signal


def stats(cpu=0.0, memory=0.0, processes=1):
    return ContainerStats(
        container_id="abc",
        container_name="name",
        status=ContainerStatus.RUNNING,
        cpu_percent=cpu,
        memory_percent=memory,
        processes=processes,
    )


def judged(*seen, policy=None):
    """What is said to these, one after the other."""
    state = ContainerState("abc")
    said = [judge(policy or SecurityPolicy(), state, each) for each in seen]
    return [each and each[0] for each in said]


@pytest.mark.parametrize(
    ("seen", "last"),
    [
        ([stats(cpu=99)] * 3, ViolationType.CPU_SPIKE),
        ([stats(cpu=95), stats(cpu=94), stats(cpu=95), stats(cpu=95)], None),
        ([stats(memory=95)] * 2, ViolationType.MEMORY_SPIKE),
        ([stats(memory=99), stats(memory=1), stats(memory=99)], None),
        ([stats(cpu=80, memory=80)], ViolationType.COMBINED_ANOMALY),
        ([stats(cpu=80, memory=79)], None),
        ([stats(processes=90)], ViolationType.FORK_BOMB),
        ([stats(processes=89)], None),
    ],
)
def test_only_what_lasts_is_a_violation(seen, last):
    *before, said = judged(*seen)
    assert said is last
    assert before == [None] * len(before)


def test_a_policy_without_a_threshold_is_an_error():
    with pytest.raises(ValueError, match="check_interval_seconds must be positive, got 0"):
        SecurityPolicy(check_interval_seconds=0)


def test_a_violation_ends_the_container_and_is_kept_as_an_event():
    client = Client(Killable("abc"), Killable("calm"))  # both at 80 % of a processor
    monitor = RuntimeMonitor(
        SecurityPolicy(cpu_threshold_percent=75, cpu_spike_count=2, combined_cpu_threshold=500),
        docker_client=client,
    )
    told = []
    monitor.register_callback(lambda event: 1 / 0)
    monitor.register_callback(told.append)
    monitor.add_container("abcdef")  # an engine's client says short ids
    client.known["abcdef"] = client.known["abc"]
    for _ in range(3):
        monitor._check_all_containers()
    assert client.known["abc"].killed == "SIGKILL"
    assert client.known["calm"].killed is None  # it was not added
    (event,) = monitor.get_security_events()
    assert told == [event]
    assert event.to_dict() == {
        "timestamp": event.timestamp.isoformat(),
        "container_id": "abcdef",
        "container_name": "name-abc",
        "violation_type": "cpu_spike",
        "details": {"cpu_percent": pytest.approx(80), "threshold": 75, "spike_count": 2},
        "action_taken": "kill_container",
        "success": True,
    }
    counted = monitor.get_statistics()
    assert counted["events_by_type"]["cpu_spike"] == counted["successful_kills"] == 1
    assert (counted["monitored_containers"], counted["total_security_events"]) == (1, 1)


def test_what_is_not_ours_is_not_ended():
    container = Killable("abc", labels=("finlab-sandbox",))
    client = Client(container)
    monitor = RuntimeMonitor(SecurityPolicy(fork_bomb_threshold=1), docker_client=client)
    assert monitor._kill_container("nobody") is False
    container.labels = {}
    assert monitor._kill_container("abc") is False
    assert container.killed is None


def test_containers_are_added_and_removed():
    monitor = RuntimeMonitor()
    monitor.add_container("a")
    monitor.add_container("b")
    assert monitor.get_monitored_containers() == ["a", "b"]
    monitor.remove_container("a")
    monitor.remove_container("nobody")
    assert monitor.get_monitored_containers() == ["b"]
    monitor.close()


def test_the_thread_checks_from_start_to_stop():
    monitor = RuntimeMonitor(SecurityPolicy(check_interval_seconds=SOON))
    checked = threading.Event()

    def check():
        checked.set()
        raise RuntimeError("this check fails, the next one comes all the same")

    monitor._check_all_containers = check
    monitor.start()
    thread = monitor._monitoring_thread
    monitor.start()
    assert monitor._monitoring_thread is thread
    for _ in range(2):
        assert checked.wait(60)
        checked.clear()
    monitor.stop()
    assert not thread.is_alive()
    monitor.start()
    assert monitor._monitoring_thread.is_alive()
    monitor.close()


def test_the_thread_ends_with_a_monitor_that_nobody_has():
    monitor = RuntimeMonitor(SecurityPolicy(check_interval_seconds=SOON))
    monitor.start()
    thread = monitor._monitoring_thread
    del monitor
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_monitor_that_is_not_enabled_watches_nothing():
    monitor = RuntimeMonitor(enabled=False)
    monitor.start()
    assert monitor._monitoring_thread is None


def test_without_what_docker_needs_the_error_names_it(monkeypatch):
    monkeypatch.setattr(runtime_monitor, "DOCKER_AVAILABLE", False)
    with pytest.raises(RuntimeError, match="Docker SDK not available"):
        RuntimeMonitor()
