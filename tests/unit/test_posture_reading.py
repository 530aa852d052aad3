"""Which processes count as living, when the posture of a guest is read from outside."""

import os
import subprocess
import sys

import pytest

from belljar.backends.linux.posture import same_guest
from census import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# The first thread ends alone (exit, not exit_group), and another goes on.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[__import__("platform").machine()], 0)
"""


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def wait_for_zombie(pid):
    wait_until(lambda: state(pid) == "Z", 20.0, "the end of its first thread")


def test_a_process_that_has_ended_and_was_not_reaped_lives_no_more():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert same_guest(process.pid, os.getpid())
        process.stdin.close()
        wait_for_zombie(process.pid)
        # The kernel still tells its pid namespace.
        assert os.readlink(f"/proc/{process.pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
        assert not same_guest(process.pid, os.getpid())


def test_a_process_whose_first_thread_has_ended_lives():
    with subprocess.Popen([sys.executable, "-c", HEADLESS]) as process:
        wait_for_zombie(process.pid)
        assert same_guest(process.pid, os.getpid())
        process.kill()
