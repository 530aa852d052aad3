"""Terminals that code makes for itself: those of the guest's own devpts."""

from textwrap import dedent

import pytest

import setting

pytestmark = pytest.mark.contract("native", "docker", "gvisor")


def test_code_can_make_a_terminal(sandbox):
    code = """
        import os
        leader, follower = os.openpty()
        os.write(follower, b"to the leader")
        status = os.fstat(follower)
        same = os.stat(os.ttyname(follower)).st_rdev == status.st_rdev
        (os.read(leader, 100), os.isatty(follower), same, status.st_uid == os.getuid())
    """
    assert sandbox.run_code(dedent(code)).value == (b"to the leader", True, True, True)


def test_a_program_in_a_terminal_has_it_as_its_controlling_one(sandbox):
    """Read until the program has ended: in gVisor a leader is not told that its terminal closed."""
    code = """
        import os, pty, time
        child, leader = pty.fork()
        if child == 0:
            os.execvp("bash", ["bash", "-ic", "tty; stty size; echo $-; kill -INT $$; echo no end"])
        os.waitpid(child, 0)
        os.set_blocking(leader, False)
        got, deadline = b"", time.monotonic() + 20
        while len(got.split()) < 4 and time.monotonic() < deadline:
            try:
                got += os.read(leader, 4096)
            except BlockingIOError:
                time.sleep(0.01)  # the kernel passes output on a moment later
        got.decode().split()
    """
    lines = sandbox.run_code(dedent(code)).value
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:3] == ["0", "0"]
    assert {"i", "m"} <= set(lines[3]), "it is not interactive, or has no job control"


@pytest.mark.skipif(setting.GVISOR, reason="its terminals make no signals of keys")
def test_a_program_in_a_terminal_is_interrupted_by_a_key(sandbox):
    code = """
        import os, pty
        child, leader = pty.fork()
        if child == 0:
            os.execvp("cat", ["cat"])
        os.write(leader, b"ready\\n")
        got = b""
        while got.count(b"ready") < 2:
            got += os.read(leader, 100)
        os.write(leader, b"\\x03")
        os.WTERMSIG(os.waitpid(child, 0)[1])
    """
    assert sandbox.run_code(dedent(code)).value == 2


@pytest.mark.skipif(setting.GVISOR, reason="there /dev/tty answers EIO, and spawn() has no end")
def test_pty_spawn_and_dev_tty_work(sandbox):
    code = """
        import subprocess, sys
        program = "import pty; pty.spawn(['bash', '-c', 'echo by name > /dev/tty'])"
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    """
    assert sandbox.run_code(dedent(code)).value == "by name\n"


@pytest.mark.fresh
def test_a_guest_sees_its_own_terminals_alone(make_sandbox):
    code = "import os; held = os.openpty(); sorted(os.listdir('/dev/pts'))"
    first, second = (make_sandbox().run_code(code).value for _ in range(2))
    assert first == second == ["0", "ptmx"]


@pytest.mark.native_only("an engine mounts its devpts without a limit")
def test_the_number_of_terminals_is_limited(sandbox):
    code = """
        import os
        held = []
        try:
            while len(held) < 100:
                held.append(os.openpty())
        except OSError as error:
            why = error.errno
        (len(held), why)
    """
    assert sandbox.run_code(dedent(code)).value == (16, 28)


def test_requests_that_reach_beyond_a_terminal_are_refused_in_ones_own(sandbox):
    code = """
        import fcntl, os, termios
        leader, follower = os.openpty()
        def ask(request):
            try:
                fcntl.ioctl(follower, request, bytes(64))
            except OSError as error:
                return error.errno
        TIOCLINUX, TIOCCONS = 0x541C, 0x541D
        [ask(request) for request in (termios.TIOCSTI, TIOCLINUX, TIOCCONS, termios.TIOCSETD)]
    """
    refused = sandbox.run_code(dedent(code)).value
    assert refused == [1, 1, 1, 1] or (setting.GVISOR and None not in refused)
    assert sandbox.run_code("ask(termios.TIOCGWINSZ), ask(termios.TCGETS)").value == (None, None)
