"""A sandbox that starts in the background is ready early, and leaves nothing however it ends."""

import contextlib
import gc
import logging
import time

import anyio
import pytest

import census
from belljar import Environment, runtime
from belljar.compat.placement import HeadStart
from belljar.errors import EnvironmentBuildError, InvalidOption
from host_script import Script

PLACE = {"environment": "python"}
PREAMBLE = """
from belljar.compat.placement import HeadStart
from belljar import runtime
import time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
early = HeadStart([{"environment": "python"}])
"""


@pytest.fixture
def nothing_left(backend):
    """After the test nothing is there that was not there before, but this process's zygotes.
    (Mounts of this machine are no affair of a guest, which has its own.)"""
    HeadStart([PLACE]).close()
    with contextlib.closing(HeadStart([PLACE])) as early:
        early.take()
    before = census.take()
    yield
    gc.collect()
    assert census.settle(before, timeout=30.0, ignore=["thread", "mount"]) == []


@pytest.fixture
def script(backend):
    with contextlib.ExitStack() as stack:

        def start(program):
            made = Script(PREAMBLE + program)
            stack.callback(made.kill)
            return made

        yield start


def test_it_starts_before_anybody_waits_for_it(nothing_left):
    with contextlib.closing(HeadStart([PLACE])) as early:
        (sandbox,) = early._sandboxes
        census.wait_until(lambda: sandbox.alive, 60, "the start in the background")
        assert early.take() is sandbox
        assert sandbox.run_code("1 + 1").value == 2


@pytest.mark.parametrize("delay", [0, 0.01, 0.1, 1])
def test_one_that_is_closed_leaves_nothing_whether_it_has_started_or_not(nothing_left, delay):
    early = HeadStart([PLACE])
    time.sleep(delay)  # the moment does not matter: whichever it is, nothing is left
    early.close()
    early.close()
    assert not early._sandboxes[0].alive


def test_one_that_is_discarded_leaves_nothing(nothing_left):
    for _ in range(3):
        HeadStart([PLACE]).discard()


def test_one_that_is_not_wanted_any_more_does_not_keep_its_maker_waiting(backend, monkeypatch):
    """Closing cancels the start; it does not wait for it to be done first."""
    began, ended = [], []

    async def endless(self):
        began.append(self)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(self)

    monkeypatch.setattr("belljar.sandbox.sandbox.AsyncSandbox.start", endless)
    early = HeadStart([PLACE])
    census.wait_until(lambda: began, 60, "the start")
    early.close()
    census.wait_until(lambda: ended == began, 60, "the end of the start")


def test_a_guest_that_was_lost_meanwhile_is_not_given_out(nothing_left):
    early = HeadStart([PLACE])
    sandbox = early.take()
    sandbox.kill()
    assert early.take() is None


def test_a_process_that_ends_at_once_leaves_nothing(nothing_left, script):
    for rest in ("", "time.sleep(0.2)", "early.take()", "raise SystemExit(0)"):
        status, _, err = script(rest).end()
        assert (status, err) == (0, "")


def test_a_start_in_the_background_imports_nothing(backend):
    """A fork in the middle of it would else wait for ever for the import to end."""
    program = """
import threading
found = []
def note(event, arguments):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        found.append(arguments[0])
sys.addaudithook(note)
"""
    ended = Script(program + PREAMBLE + "early.take().run_code('1')\nearly.close()\nprint(found)")
    status, out, err = ended.end()
    assert (status, out) == (0, "[]\n"), err


def test_a_fork_makes_its_own_and_the_parents_goes_on(nothing_left, script):
    """Also a fork in the middle of the start, whose child outlives what the parent has made."""
    program = """
import belljar.backends.native.zygote_client as zygotes
zygotes.CLOSE_TIMEOUT = 1000  # the end of a zygote is not waited for in vain
time.sleep({delay})
waits, ends = os.pipe()
child = os.fork()
if child == 0:
    code = 1
    try:
        os.close(ends)
        assert early.take() is None
        early.close()
        early.discard()
        own = HeadStart([{{"environment": "python"}}])
        code = 0 if own.take().run_code("1 + 1").value == 2 else 2
        os.read(waits, 1)  # until the parent has ended everything of its own
        runtime.shutdown()
    finally:
        os._exit(code)
sandbox = early.take()
print(sandbox.run_code("2 + 2").value)
sandbox.kill()
runtime.shutdown()
os.close(ends)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    for delay in (0, 0.05, 0.2):
        status, out, err = script(program.format(delay=delay)).end()
        assert (status, out.split()) == (0, ["4", "0"]), err


def test_options_are_checked_at_once_and_other_failures_when_it_is_taken(backend, tmp_path):
    with pytest.raises(InvalidOption, match="backend"):
        HeadStart([{"backend": "nowhere"}])
    unbuildable = Environment(name="lost", python=str(tmp_path / "python"), packages=["numpy"])
    early = HeadStart([{"environment": unbuildable}])
    with pytest.raises(EnvironmentBuildError):
        early.take()
    assert early.failed
    early.close()


def test_the_next_place_is_tried_where_an_environment_cannot_be_had(nothing_left, tmp_path, caplog):
    unbuildable = Environment(name="lost", python=str(tmp_path / "python"), packages=["numpy"])
    with caplog.at_level(logging.WARNING, "belljar"):
        early = HeadStart([{"environment": unbuildable}, PLACE])
        assert early.take().run_code("1 + 1").value == 2
    assert "lost" in caplog.text or "python" in caplog.text
    early.close()
    early = HeadStart([{"environment": unbuildable}, {"environment": unbuildable}])
    with pytest.raises(EnvironmentBuildError) as raised:
        early.take()
    assert len(raised.value.__notes__) == 1


def test_one_of_a_runtime_that_was_shut_down_is_not_given_out(backend):
    early = HeadStart([PLACE])
    early.take()
    runtime.shutdown()
    assert early.take() is None
    early.close()
