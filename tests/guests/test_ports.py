"""Servers in the sandbox, reached from the host: connections, forwarded ports, their ends."""

import contextlib
import gc
import os
import select
import socket
import threading
import urllib.request
from textwrap import dedent

import anyio
import pytest

import census
import setting
from belljar import Limits
from belljar.protocol import wire
from belljar.sandbox import ports

pytestmark = pytest.mark.contract("native", "docker", "gvisor")

PATIENCE = 60.0  # seconds
LARGE = 5 * wire.WINDOW

# Echoes until its client sends no more, and then says how much that was.
ECHO = """
import asyncio
async def serve(reader, writer):
    total = 0
    while data := await reader.read(65536):
        total += len(data)
        writer.write(data)
        await writer.drain()
    writer.write(b"total %d" % total)
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 8000, backlog=128)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
# Sends all it has, ends its output, and then reads.
HALF = """
import os
import socket
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
sock, _ = listener.accept()
sock.sendall(b"all of it")
sock.shutdown(socket.SHUT_WR)
got = b""
while data := sock.recv(65536): got += data
print(got.decode(), flush=True)
"""


def serve(sandbox, program):
    """A server in the sandbox, once it listens."""
    process = sandbox.commands.start(["python3", "-c", program])
    read_until(process, "ready\n")
    return process


def read_until(process, text):
    seen = ""
    while text not in seen:
        chunk = process.read()
        assert chunk is not None, f"it has ended: {seen!r}"
        seen += chunk.text
    return seen


def fill(sock):
    """Send until no one takes more; how many bytes went."""
    sock.setblocking(False)
    sent = 0
    while select.select([], [sock], [], 1.0)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += sock.send(bytes(65536))
    return sent


def receive_all(sock):
    found = b""
    while data := sock.recv(65536):
        found += data
    return found


def connect(address):
    return socket.create_connection(("127.0.0.1", address.port), timeout=PATIENCE)


def is_refused(address):
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it came just as the listener was closed
        return False
    return False


# --- connections -----------------------------------------------------------------------------


def test_a_server_is_connected_to(sandbox):
    with serve(sandbox, ECHO), sandbox.ports.connect(8000) as sock:
        sock.settimeout(PATIENCE)
        sock.sendall(b"hello")
        assert sock.recv(100) == b"hello"
        sock.shutdown(socket.SHUT_WR)
        assert receive_all(sock) == b"total 5"


def test_much_goes_both_ways_at_once(sandbox):
    with serve(sandbox, ECHO), sandbox.ports.connect(8000) as sock:
        sock.settimeout(PATIENCE)

        def send():
            sock.sendall(bytes(LARGE))
            sock.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        found = receive_all(sock)
        sending.join()
    assert found == bytes(LARGE) + f"total {LARGE}".encode()


def test_a_server_that_sends_no_more_still_reads(sandbox):
    with serve(sandbox, HALF) as server, sandbox.ports.connect(8000) as sock:
        sock.settimeout(PATIENCE)
        assert receive_all(sock) == b"all of it"
        sock.sendall(b"an answer")
        sock.shutdown(socket.SHUT_WR)
        read_until(server, "an answer\n")


def test_a_port_without_a_server_is_refused(sandbox):
    for _ in range(20):
        with pytest.raises(ConnectionRefusedError, match="8001"):
            sandbox.ports.connect(8001)
    with pytest.raises(ConnectionRefusedError):
        sandbox.ports.connect(8001, timeout=0.2)


@pytest.mark.parametrize("port", [0, -1, 65536, "80", True, None, 8.0])
def test_what_is_no_port_is_refused(sandbox, port):
    with pytest.raises(ValueError, match="port"):
        sandbox.ports.connect(port)
    with pytest.raises(ValueError, match="port"):
        sandbox.ports.forward(port)


def test_a_server_that_does_not_listen_yet_is_waited_for(sandbox):
    command = ["python3", "-c", "import time; time.sleep(0.3)\n" + ECHO]
    with sandbox.commands.start(command):
        sandbox.ports.connect(8000, timeout=PATIENCE).close()


def test_a_server_on_the_loopback_of_ipv6_is_found(sandbox):
    addresses = sandbox.commands.run("cat /proc/net/if_inet6").stdout
    if setting.BACKEND != "native" and f"{1:032x}" not in addresses:
        pytest.skip("this container has no IPv6")
    program = ECHO.replace("127.0.0.1", "::1")
    serve(sandbox, program)
    with sandbox.ports.connect(8000) as sock:
        sock.sendall(b"text")
        sock.shutdown(socket.SHUT_WR)
        assert receive_all(sock) == b"texttotal 4"


# Accepts nothing until it is told to, and then tells how much each client has sent.
LATE = """
import os
import socket
listener = socket.create_server(("127.0.0.1", 8000), backlog=4096)
print("ready", flush=True)
input()
for _ in range(3):
    sock, _ = listener.accept()
    total = 0
    while data := sock.recv(65536): total += len(data)
    print(total, flush=True)
"""


def test_clients_that_have_gone_hold_nothing_although_the_server_does_not_answer(sandbox):
    process = sandbox.commands.start(["python3", "-c", LATE], stdin=True)
    read_until(process, "ready\n")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with sandbox.ports.connect(8000) as sock:
            sock.sendall(b"text")
    census.wait_until(
        lambda: len(os.listdir("/proc/self/fd")) <= before + 3, 20, "the end of the connections"
    )
    process.send("\n")
    assert read_until(process, "4\n4\n4\n")


# The same with little room for what comes before that.
IDLE = LATE.replace(
    "print", "listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\nprint", 1
)


@pytest.mark.parametrize("way", ["connect", "forward"])
def test_clients_that_have_gone_hold_nothing_although_the_server_does_not_read(
    sandbox, monkeypatch, way
):
    monkeypatch.setattr(ports, "HALF_CLOSED", 0.5)
    process = sandbox.commands.start(["python3", "-c", IDLE], stdin=True)
    read_until(process, "ready\n")
    with sandbox.ports.forward(8000) as address:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with sandbox.ports.connect(8000) if way == "connect" else connect(address) as sock:
                assert fill(sock) > 0
        census.wait_until(
            lambda: len(os.listdir("/proc/self/fd")) <= before + 3, 20, "the end of the connections"
        )


@pytest.mark.parametrize("ends_half", [False, True])
def test_a_client_that_is_still_there_is_not_cut_by_a_server_that_reads_late(
    sandbox, monkeypatch, ends_half
):
    monkeypatch.setattr(ports, "HALF_CLOSED", 0.2)
    asked = threading.Semaphore(0)
    has_gone = ports._Local.has_gone

    def tell(client):
        gone = has_gone(client)
        asked.release()
        return gone

    monkeypatch.setattr(ports._Local, "has_gone", tell)
    process = sandbox.commands.start(["python3", "-c", IDLE], stdin=True)
    read_until(process, "ready\n")
    ipv6 = socket.socket(socket.AF_INET6) if socket.has_ipv6 else socket.socket()
    host = "::ffff:127.0.0.1" if socket.has_ipv6 else "127.0.0.1"
    with sandbox.ports.forward(8000) as address, ipv6:
        ipv6.connect((host, address.port))
        socks = [sandbox.ports.connect(8000), connect(address), ipv6]
        sizes = [fill(sock) for sock in socks]
        if ends_half:
            for sock in socks:
                sock.shutdown(socket.SHUT_WR)
        for _ in range(4 * len(socks)):
            assert asked.acquire(timeout=PATIENCE)
        monkeypatch.setattr(ports, "HALF_CLOSED", PATIENCE)
        process.send("\n")
        if not ends_half:
            for sock in socks:
                sock.shutdown(socket.SHUT_WR)
        seen = ""
        while seen.count("\n") < len(socks):
            seen += read_until(process, "\n")
        assert sorted(map(int, seen.split())) == sorted(sizes)
        for sock in socks:
            sock.close()


def test_what_a_client_sent_before_it_has_gone_comes_whole(sandbox):
    process = sandbox.commands.start(["python3", "-c", LATE], stdin=True)
    read_until(process, "ready\n")
    process.send("\n")
    for _ in range(3):
        with sandbox.ports.connect(8000) as sock:
            sock.sendall(bytes(LARGE))
    assert read_until(process, f"{LARGE}\n" * 3)


def test_a_server_sees_that_a_client_has_gone(sandbox):
    program = """
        import socket
        listener = socket.create_server(("127.0.0.1", 8000))
        print("ready", flush=True)
        sock, _ = listener.accept()
        print(sock.recv(100), sock.recv(100), flush=True)
    """
    with serve(sandbox, dedent(program)) as server:
        with sandbox.ports.connect(8000) as sock:
            sock.sendall(b"x")
        read_until(server, "b'x' b''\n")


def test_a_client_that_does_not_read_holds_up_its_own_connection_only(sandbox):
    program = """
        import socket, threading
        def serve(sock):
            size = int(sock.recv(100))
            sock.sendall(bytes(size))
            sock.close()
        listener = socket.create_server(("127.0.0.1", 8000))
        print("ready", flush=True)
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    """
    with serve(sandbox, dedent(program)):
        slow, quick = (sandbox.ports.connect(8000) for _ in range(2))
        with slow, quick:
            slow.sendall(b"%d" % (4 * LARGE))
            quick.settimeout(PATIENCE)
            quick.sendall(b"%d" % LARGE)
            assert len(receive_all(quick)) == LARGE
            assert sandbox.run_code("1 + 1").value == 2
            slow.settimeout(PATIENCE)
            assert len(receive_all(slow)) == 4 * LARGE


def test_a_hundred_connections_at_once(sandbox):
    with serve(sandbox, ECHO):
        socks = [sandbox.ports.connect(8000, timeout=PATIENCE) for _ in range(100)]
        try:
            for n, sock in enumerate(socks):
                sock.settimeout(PATIENCE)
                sock.sendall(b"%d" % n)
                sock.shutdown(socket.SHUT_WR)
            for n, sock in enumerate(socks):
                assert receive_all(sock) == b"%dtotal %d" % (n, len(str(n)))
        finally:
            for sock in socks:
                sock.close()


# --- forwarded ports -------------------------------------------------------------------------


def test_a_forwarded_port_serves_http(sandbox):
    sandbox.files.write("a.txt", "hello")
    sandbox.files.write("big.bin", bytes(LARGE))
    with sandbox.commands.start(["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"]):
        with sandbox.ports.forward(8000, timeout=PATIENCE) as address:
            assert address == f"127.0.0.1:{address.port}"
            for name, size in (("a.txt", 5), ("big.bin", LARGE)):
                with urllib.request.urlopen(f"http://{address}/{name}", timeout=PATIENCE) as reply:
                    assert len(reply.read()) == size
        census.wait_until(lambda: is_refused(address), what="the end of the port")
        address.close()


def test_a_forwarded_port_carries_a_long_conversation(sandbox):
    """As a WebSocket does: either end speaks first, at any time."""
    program = """
        import socket, threading, time
        listener = socket.create_server(("127.0.0.1", 8000))
        print("ready", flush=True)
        sock, _ = listener.accept()
        def tick():
            for n in range(5):
                sock.sendall(b"tick %d\\n" % n)
                time.sleep(0.05)
            sock.sendall(b"quiet\\n")
        threading.Thread(target=tick).start()
        for line in sock.makefile("rb"):
            sock.sendall(b"echo " + line)
    """
    with (
        serve(sandbox, dedent(program)),
        sandbox.ports.forward(8000) as address,
        connect(address) as sock,
    ):
        lines = sock.makefile("rb")
        seen = []
        while b"quiet\n" not in seen:
            seen.append(lines.readline())
            if seen[-1].startswith(b"tick"):
                sock.sendall(seen[-1])
        for _ in range(5 - len([each for each in seen if each.startswith(b"echo")])):
            seen.append(lines.readline())
        lines.close()
    assert [each for each in seen if each.startswith(b"echo")] == [
        b"echo tick %d\n" % n for n in range(5)
    ]


def test_a_port_of_ones_choice_is_used_or_told_to_be_taken(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            sandbox.ports.forward(8000, to=taken.getsockname()[1])
        number = taken.getsockname()[1]
    with sandbox.ports.forward(8000, to=number) as address:
        assert address.port == number


def test_without_a_server_a_forwarded_connection_ends(sandbox):
    with sandbox.ports.forward(8001) as address:
        with connect(address) as sock:
            assert sock.recv(100) == b""
        with serve(sandbox, ECHO), sandbox.ports.forward(8000) as other, connect(other) as sock:
            sock.sendall(b"x")
            assert sock.recv(100) == b"x"


def test_a_forwarded_port_ends_with_its_sandbox(make_sandbox):
    sandbox = make_sandbox(limits=Limits(timeout=100))
    serve(sandbox, ECHO).detach()
    address = sandbox.ports.forward(8000)
    with connect(address) as sock:
        sock.sendall(b"x")
        assert sock.recv(100) == b"x"
        sandbox.close()
        assert sock.recv(100) == b""
    census.wait_until(lambda: is_refused(address), what="the end of the port")


# --- under event loops -----------------------------------------------------------------------


def test_a_connection_is_a_byte_stream(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            server = await sandbox.commands.start(["python3", "-c", ECHO])
            assert "ready" in (await server.read()).text
            async with await sandbox.ports.connect(8000) as stream:
                assert isinstance(stream, anyio.abc.ByteStream)
                await stream.send(b"hello")
                assert await stream.receive(2) == b"he"
                assert await stream.receive() == b"llo"
                await stream.send_eof()
                assert await stream.receive() == b"total 5"
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
            with pytest.raises(ConnectionRefusedError):
                await sandbox.ports.connect(8001)

    run_async(main)


def test_a_guest_that_ends_with_a_connection_to_a_client_that_has_gone_is_no_error(
    run_async, open_sandbox, monkeypatch, caplog
):
    async def main():
        draining = anyio.Event()
        drain = ports.Connection.drain

        async def tell(connection):
            draining.set()
            await drain(connection)

        monkeypatch.setattr(ports.Connection, "drain", tell)
        async with open_sandbox() as sandbox:
            server = await sandbox.commands.start(["python3", "-c", IDLE], stdin=True)
            assert "ready" in (await server.read()).text
            with await sandbox.ports.dial(8000) as sock:
                await anyio.to_thread.run_sync(sock.sendall, bytes(600_000))
            with anyio.fail_after(PATIENCE):
                await draining.wait()

    run_async(main)
    gc.collect()
    assert not caplog.records


def test_a_port_is_forwarded_under_any_event_loop(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            server = await sandbox.commands.start(["python3", "-c", ECHO])
            assert "ready" in (await server.read()).text
            address = await sandbox.ports.forward(8000)
            replies = []

            async def ask(n):
                async with await anyio.connect_tcp("127.0.0.1", address.port) as client:
                    await client.send(b"%d" % n)
                    await client.send_eof()
                    replies.append(b"".join([data async for data in client]))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for n in range(10):
                        tasks.start_soon(ask, n)
            assert sorted(replies) == [b"%dtotal 1" % n for n in range(10)]
            address.close()

    run_async(main)
