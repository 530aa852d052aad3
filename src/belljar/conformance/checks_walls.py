"""Isolation of a guest from its siblings and the caller: memory, terminals, networks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from belljar.conformance.attempts import MIB
from belljar.conformance.canaries import ENVIRONMENT_SECRET, VARIABLE, collect_output
from belljar.conformance.posture import posture, status
from belljar.conformance.processes import TooLate, init_of, tree, wait_until
from belljar.conformance.programs import find_program, shared_source
from belljar.conformance.report_data import Look, NotHere
from belljar.conformance.stage import Stage, check, is_visible

_OUTSIDE = "the host sees gVisor's kernel, not the guest's processes"
_UNSEEN = "this user may not inspect the guest's processes"


@check(
    46,
    1,
    what="find a secret of the host in the memory of the guest",
    expected="no process of the guest has it",
)
def memory_of_the_guest(stage: Stage, look: Look) -> None:
    if stage.setting.gvisor:
        raise NotHere(_OUTSIDE)
    sandbox = stage.open(strict=False)
    sandbox.run_code("1")
    if not is_visible(init_of(sandbox)):
        raise NotHere(_UNSEEN)
    wanted = ENVIRONMENT_SECRET.encode()
    for pid in tree(init_of(sandbox)):
        size, found = _scan(pid, wanted)
        look.expect(size > MIB and not found, f"{size // 1024} KiB of process {pid}: not there")
    environment = {**os.environ, VARIABLE: ENVIRONMENT_SECRET}
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment
    )
    try:
        wait_until(lambda: _scan(child.pid, wanted)[1], timeout=20.0)
        look.control(True, "the scan finds it in a process that inherits it")
    except TooLate:
        look.control(False, "the scan does not find it in a process that inherits it")
    finally:
        child.communicate(b"\n")


def _scan(pid: int, wanted: bytes) -> tuple[int, bool]:
    """How many bytes were read, and whether `wanted` was among them."""
    read, found = 0, False
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            begin, end = (int(word, 16) for word in place.split("-"))
            if not rights.startswith("rw") or end - begin > 256 * MIB:
                continue
            try:
                memory.seek(begin)
                data = memory.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
            read += len(data)
            found = found or wanted in data
    return read, found


_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path[:0] = {path!r}
if {control!r}:
    fcntl.ioctl(0, termios.TIOCSTI, b"!")
else:
    from belljar import Sandbox
    with Sandbox(environment="python", **{options!r}) as sandbox:
        sandbox.files.write("hostile.py", {hostile!r})
        execution = sandbox.run_code({program!r}, timeout=60)
        assert execution.ok, execution
        sandbox.commands.run(["python", "-c", {program!r}])
"""


@check(64, what="type into the terminal of the caller", expected="its input stays empty")
def terminal(stage: Stage, look: Look) -> None:
    typed, output, code = _on_a_terminal(stage, control=False)
    look.expect(code == 0, "a sandbox was used on a terminal", output)
    look.expect(typed == b"\n", f"the terminal's input: {typed!r}", typed)
    typed, output, code = _on_a_terminal(stage, control=True)
    if "Operation not permitted" in output or "Input/output error" in output:
        look.saw("this kernel lets no process forge terminal input, so the control cannot trip")
    else:
        look.control(typed == b"!\n", f"the caller itself can forge input: {typed!r}")


def _on_a_terminal(stage: Stage, *, control: bool) -> tuple[bytes, str, int]:
    """What was typed, what was printed, and the exit code."""
    program = _TERMINAL.format(
        path=[path for path in sys.path if path],
        options=stage.setting.options,
        control=control,
        program=find_program("r64_terminal_input").source,
        hostile=shared_source(),
    )
    master, slave = os.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = process.communicate(timeout=120)[0].decode(errors="replace")
        os.set_blocking(slave, False)
        os.write(master, b"\n")  # ends the line that the guest may have begun
        return os.read(slave, 100), output, process.returncode
    finally:
        os.close(master)
        os.close(slave)


_OWN_TERMINAL = """
import fcntl, os, pty, stat, struct, termios
reached, accepted = [], []
for path in [{path!r}, *(f'/dev/pts/{{number}}' for number in range(64))]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        os.write(fd, {mark!r}); reached.append(path)
    except OSError: pass
for number in range(16):
    try:
        os.mknod(f'/tmp/tty{{number}}', stat.S_IFCHR | 0o666, os.makedev(136, number))
        os.write(os.open(f'/tmp/tty{{number}}', os.O_RDWR | os.O_NOCTTY), {mark!r})
        reached.append(number)
    except OSError: pass
child, leader = pty.fork()
if child == 0:
    TIOCLINUX, TIOCCONS = 0x541C, 0x541D
    for request in (termios.TIOCSTI, TIOCLINUX, TIOCCONS, termios.TIOCSETD):
        for high in (0, 1 << 32, 0xDEADBEEF << 32):
            try:
                fcntl.ioctl(0, request, bytes(64)); print('ACCEPTED', hex(request))
            except (OSError, OverflowError): pass
    print('TERMINAL', os.ttyname(0), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
reached, os.read(leader, 4096).decode()
"""


@check(
    93,
    64,
    what="reach terminals of the host from the guest's own ones, type into them, take them over",
    expected="the guest sees its own terminals alone, and refused requests are refused there too",
)
def own_terminal(stage: Stage, look: Look) -> None:
    leader, follower = os.openpty()
    mark = b"TERMINAL-" + os.urandom(8).hex().encode()
    try:
        os.set_blocking(leader, False)
        os.fchmod(follower, 0o666)  # what a careless `mesg y` allows, and more
        path = os.ttyname(follower)
        sandbox = stage.start()
        told = sandbox.run_code(_OWN_TERMINAL.format(path=path, mark=mark), timeout=60)
        found, said = told.value if isinstance(told.value, tuple) else (None, str(told.error))
        look.expect(found == [], "it opens no terminal but those it made", found)
        look.expect("ACCEPTED" not in said, "TIOCSTI and its like are refused in its own", said)
        look.expect("TERMINAL /dev/pts/" in said, "it has a controlling terminal of its own", said)
        look.expect(mark not in _read_all(leader), "nothing came to a terminal of the host")
        init = init_of(sandbox)
        if not stage.setting.gvisor and is_visible(init):
            theirs = os.stat(f"/proc/{init}/root/dev/pts").st_dev
            look.expect(theirs != os.stat("/dev/pts").st_dev, "its devpts is another than ours")
        with open(path, "wb", buffering=0) as terminal:
            terminal.write(mark)
        look.control(mark in _read_all(leader), "a process of the host can write there")
    finally:
        os.close(leader)
        os.close(follower)


def _read_all(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


@check(
    73,
    what="reach metadata services, name servers and other hosts",
    expected="the guest's network has only loopback, no route, and sent no packet",
)
def way_out(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    stage.run_program(find_program("r73_metadata_and_names"), sandbox)
    init = init_of(sandbox)
    if not init:
        raise NotHere("the guest is on another machine")
    net = Path(f"/proc/{init}/net")
    sent = {name: words[8] for name, words in _devices(net).items() if int(words[8])}
    look.expect(set(sent) <= {"lo"}, f"packets sent by device: {sent or 'none'}", sent)
    up = [name for name in _devices(net) if name != "lo" and _is_up(net, name)]
    look.expect(not up, "only the loopback device is up", up)
    routes = net.joinpath("route").read_text().splitlines()[1:]
    look.expect(not routes, "there is no route", routes)
    other = os.readlink(f"/proc/{init}/ns/net") != os.readlink("/proc/self/ns/net")
    look.expect(other, "the guest has its own network namespace")
    ours = Path("/proc/self/net")
    host = {name: words[8] for name, words in _devices(ours).items() if int(words[8])}
    look.control(host, f"the host's own counters show packets sent by {', '.join(host)}")


def _devices(net: Path) -> dict[str, list[str]]:
    lines = net.joinpath("dev").read_text().splitlines()[2:]
    return {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines}


def _is_up(net: Path, name: str) -> bool:
    six = net / "if_inet6"
    return name in net.joinpath("route").read_text() or (six.exists() and name in six.read_text())


_SERVE = """
import socket
server = socket.create_server(('127.0.0.1', 4712))
client, _ = server.accept()
client.recv(100)
reached = []
for port in ports:
    for name in ('127.0.0.1', '0.0.0.0', client.getpeername()[0]):
        try:
            other = socket.create_connection((name, port), 2)
            other.sendall(b'REACHED'); reached.append((name, port))
        except OSError: pass
client.sendall(b'answer'); client.close()
reached
"""


@check(
    95,
    73,
    what="reach the host, and others who use a forwarded port, from a server behind that port",
    expected="the server has the connections that were passed on to it, and no way back",
)
def forwarded_port(stage: Stage, look: Look) -> None:
    sandbox, other = stage.start(), stage.open(strict=False)
    with socket.create_server(("127.0.0.1", 0)) as canary, sandbox.ports.forward(4712) as address:
        canary.settimeout(0.5)
        bystander = socket.create_connection(("127.0.0.1", canary.getsockname()[1]))
        accepted, _ = canary.accept()
        with bystander, accepted:
            ports = [address.port, canary.getsockname()[1], bystander.getsockname()[1]]
            sandbox.put(ports=ports)
            answers: list[bytes] = []

            def ask() -> None:
                deadline = time.monotonic() + 30
                while not any(answers) and time.monotonic() < deadline:
                    try:
                        with socket.create_connection(("127.0.0.1", address.port), 30) as client:
                            client.sendall(b"question")
                            answers.append(client.recv(100))
                    except OSError:
                        time.sleep(0.05)  # the server does not listen yet

            asking = threading.Thread(target=ask)
            asking.start()
            found = sandbox.run_code(_SERVE, timeout=60)
            asking.join()
            look.expect(found.value == [], "the server reached no port of the host", found.value)
            look.control(b"answer" in answers, "the server had a client, through the port")
            with look.refused("a connection into another sandbox", ConnectionRefusedError):
                other.ports.connect(4712)
            try:
                canary.accept()
                look.expect(False, "no connection came to a listener of the host")
            except TimeoutError:
                look.expect(True, "no connection came to a listener of the host")
            with socket.create_connection(("127.0.0.1", canary.getsockname()[1])):
                canary.accept()[0].close()
                look.control(True, "a process of the host reaches that listener")


_HIDE = """
import ctypes, os, socket
secret = {secret!r}
for place in ('/workspace', '/tmp', '/dev/shm', '/home/user', '/var/tmp'):
    open(place + '/secret', 'w').write(secret)
server = socket.create_server(('127.0.0.1', 4711))
unix = socket.socket(socket.AF_UNIX); unix.bind('/tmp/sock'); unix.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0sibling'); abstract.listen()
ctypes.CDLL(None).shmget(0x4711, 4096, 0o1666), os.getpid()
"""
_SEEK = """
import ctypes, glob, os, socket
found = []
for pattern in ('/workspace/*', '/tmp/*', '/dev/shm/*', '/home/user/*', '/var/tmp/*',
                '/proc/[0-9]*/environ', '/proc/*/stat'):
    for path in glob.glob(pattern):
        try: found.append(open(path).read())
        except OSError as error: found.append(str(error))
for family, address in ((2, ('127.0.0.1', 4711)), (1, '/tmp/sock'), (1, '\\0sibling')):
    try: socket.socket(family).connect(address); found.append('CONNECTED')
    except OSError as error: found.append(str(error))
found.append(ctypes.CDLL(None).shmget(0x4711, 4096, 0))
print(found); found
"""


@check(
    83,
    16,
    what="read a sibling's files, shared memory, environment; connect to its sockets",
    expected="the sibling finds nothing; they share no namespace and no host uid",
)
def siblings(stage: Stage, look: Look) -> None:
    secret = "sibling" + os.urandom(12).hex()
    one, two = stage.open(strict=False), stage.open(strict=False)
    look.expect(one.run_code(_HIDE.format(secret=secret)).ok, "one sibling hides a secret")
    sought = two.run_code(_SEEK)
    look.expect(secret not in collect_output(sought), "the other does not find it")
    look.expect("CONNECTED" not in sought.stdout, "the other cannot connect to its sockets")
    value = sought.value if isinstance(sought.value, list) else []
    look.expect(-1 in value, "the other cannot find its System V segment", sought.error)
    again = one.run_code(_SEEK)
    look.control(secret in collect_output(again), "in its own sandbox the same search finds it")
    look.control("CONNECTED" in again.stdout, "in its own sandbox the same search connects")
    inits = (init_of(one), init_of(two))
    if stage.setting.gvisor or not all(map(is_visible, inits)):
        look.saw(f"namespaces were not compared: {_OUTSIDE if stage.setting.gvisor else _UNSEEN}")
        return
    kinds = ("mnt", "pid", "net", "ipc", *(() if stage.setting.docker else ("user",)))
    spaces = [{str(posture(pid)[f"{kind} namespace"]) for kind in kinds} for pid in inits]
    look.expect(not spaces[0] & spaces[1], f"no common namespace among {', '.join(kinds)}")
    if stage.setting.counted:
        users = {status(pid)["Uid"].split()[0] for pid in inits}
        look.expect(len(users) == 2, f"their users on the host: {', '.join(sorted(users))}")


_WATCH = """
import ctypes, json, os
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0o4000)
for place in (os.path.dirname(json.__file__), '/usr/bin', '/opt/env', '/workspace'):
    libc.inotify_add_watch(fd, place.encode(), 0xfff)
"""
_SEEN = "try: seen = os.read(fd, 65536)\nexcept OSError: seen = b''\nlen(seen)"


@check(
    83,
    what="watch which files of the shared, read-only root other guests and the host open",
    expected="the watcher sees no event",
)
def watching_others(stage: Stage, look: Look) -> None:
    watcher, other = stage.open(strict=False), stage.open(strict=False)
    watcher.run_code(_WATCH)
    other.run_code("import json; open(json.__file__.replace('__init__', 'tool')).read()")
    subprocess.run(["/usr/bin/env", "true"], capture_output=True, check=False)
    seen = watcher.run_code(_SEEN).value
    look.expect(seen == 0, "a sibling and the host opened files; the watcher saw no event", seen)
    seen = watcher.run_code("open('/workspace/own', 'w').close()\n" + _SEEN).value
    if stage.setting.gvisor and not seen:
        look.saw("gVisor reports no file events here")
    else:
        look.saw(f"its own files: {seen} bytes of events (a filter may leave none)")
