"""The monitor, with sandboxes made by hand: rings, differences, what fails, how it ends."""

import threading

import anyio
import pytest

from belljar import InvalidOption
from belljar.backends.base import UsageSample
from belljar.errors import SandboxClosed
from belljar.limits import Limits
from belljar.observe import enable
from belljar.observe.metrics import Metrics
from belljar.observe.sampling import Monitor, compute_percent
from census import wait_until


class Fake:
    limits = Limits(memory="64m", cpus=2)

    def __init__(self, id="bj-1", error=None):
        self.id = id
        self.cpu = 0.0
        self.error = error

    async def usage(self):
        await anyio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.cpu += 1.0
        return UsageSample(
            cpu=self.cpu, peak_memory=2000, memory_kills=0, memory=int(self.cpu), processes=3
        )


def test_cpu_is_the_difference_of_two_readings():
    assert compute_percent((10.0, 1.0), (11.0, 3.0)) == 200.0
    assert compute_percent(None, (11.0, 3.0)) is None
    assert compute_percent((10.0, None), (11.0, 3.0)) is None
    assert compute_percent((10.0, 1.0), (10.0, 3.0)) is None
    assert compute_percent((10.0, 5.0), (11.0, 1.0)) is None, "a new guest counts from 0"


def test_each_sandbox_has_a_ring_of_its_last_samples():
    sandboxes = [Fake("a"), Fake("b")]
    monitor = Monitor(keep=3, sandboxes=lambda: sandboxes)
    for _ in range(5):
        monitor.sample_now()
    assert [sample.memory for sample in monitor.series("a")] == [3, 4, 5]
    first = monitor.series("a")[0]
    assert first.cpu_percent > 0
    assert (first.memory_limit, first.cpus, first.processes) == (64 * 2**20, 2.0, 3)
    assert monitor.latest().keys() == {"a", "b"}
    assert monitor.rounds == 5
    assert monitor.seconds > 0


def test_what_was_sampled_goes_with_the_sandbox():
    sandboxes = [Fake("a")]
    monitor = Monitor(sandboxes=lambda: sandboxes)
    monitor.sample_now()
    sandboxes.clear()
    monitor.sample_now()
    assert monitor.latest() == {}
    assert monitor.series("a") == ()


def test_a_sandbox_that_cannot_be_read_does_not_keep_others_from_being_read():
    sandboxes = [Fake("a", SandboxClosed("gone")), Fake("b"), Fake("c", OSError("no"))]
    assert Monitor(sandboxes=lambda: sandboxes).sample_now().keys() == {"b"}


def test_a_callback_that_fails_does_not_end_the_sampling(caplog):
    def broken(samples):
        raise ValueError("no")

    with Monitor(interval=0.01, sandboxes=lambda: [Fake()], on_samples=[broken]) as monitor:
        wait_until(lambda: monitor.rounds > 2, 30, "more samples")
    assert "an on_samples callback failed" in caplog.text


def test_its_thread_ends_with_it_and_may_begin_again():
    monitor = Monitor(interval=60, sandboxes=lambda: [Fake()])
    for _ in range(2):
        with monitor:
            assert "belljar-monitor" in {thread.name for thread in threading.enumerate()}
        assert "belljar-monitor" not in {thread.name for thread in threading.enumerate()}
    monitor.close()


@pytest.mark.parametrize(
    "wrong", [{"interval": 0}, {"interval": float("nan")}, {"keep": 1}, {"keep": 2.5}]
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidOption):
        Monitor(**wrong)


def test_gauges_add_up_what_the_monitor_has_seen():
    monitor = Monitor(sandboxes=lambda: [Fake("a"), Fake("b")])
    metrics = Metrics(per_sandbox=True)
    metrics.watch(monitor)
    monitor.sample_now()
    text = metrics.text()
    assert 'belljar_processes{backend="other"} 6.0' in text
    assert 'belljar_sandbox_memory_bytes{backend="other",sandbox="a"} 1.0' in text


def test_what_was_turned_on_before_an_error_is_off_again(tmp_path):
    threads = {thread.name for thread in threading.enumerate()}
    with Metrics() as other:
        port = other.serve(0)
        with pytest.raises(InvalidOption):
            enable(audit=tmp_path / "a.jsonl", alerts=True, metrics_port=port)
    with pytest.raises(InvalidOption, match="alerts=3 is neither"):
        enable(alerts=3)
    assert {thread.name for thread in threading.enumerate()} <= threads


def test_a_handle_may_be_closed_twice():
    observing = enable(metrics=True, alerts=True, orphans_interval=None)
    assert observing.metrics_port is None
    observing.close()
    observing.close()
