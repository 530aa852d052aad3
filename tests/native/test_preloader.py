"""What code can make the preloader do, which works for other guests too and is outside of all
limits of one."""

import time

import pytest

from oracles import status, worker_of

pytestmark = [pytest.mark.contract("native"), pytest.mark.timeout(60)]

# A child stops the interpreter and lets it go on; the kernel tells the parent, unless that prefers
# not to hear of it.
STOPS = """
import os, signal
me, child = os.getpid(), os.fork()
if child == 0:
    for _ in range(5000):
        os.kill(me, signal.SIGSTOP)
        os.kill(me, signal.SIGCONT)
    os._exit(0)
os.waitpid(child, 0)[1]
"""


def preloader_of(sandbox):
    return int(status(worker_of(sandbox))["PPid"])


def processor_time(pid):
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def test_stopping_the_interpreter_costs_the_preloader_nothing(make_sandbox):
    sandbox = make_sandbox(environment="python")
    preloader = preloader_of(sandbox)
    before = processor_time(preloader)
    assert sandbox.run_code(STOPS).raise_for_outcome().value == 0
    assert processor_time(preloader) - before < 0.005


def test_interpreters_that_die_at_once_are_replaced_at_a_bounded_rate(make_sandbox):
    sandbox = make_sandbox(environment="python")
    began = time.monotonic()
    for _ in range(100):
        assert sandbox.run_code("import os; os._exit(3)").outcome == "killed"
    assert time.monotonic() - began > 0.9  # 50 at once, then 50 per second
    assert sandbox.run_code("6 * 7").value == 42
