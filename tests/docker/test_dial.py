"""TCP, TLS and ssh: how they are set up, and what is told when they fail. Without an engine."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import ssl
import sys
import threading
import time

import anyio
import pytest

import certificates
from belljar.backends.docker.client import connect as dialing
from belljar.backends.docker.client.connect import TlsConnection, make_tls_context
from belljar.backends.docker.client.endpoint import Endpoint, tls_files
from belljar.backends.docker.client.engine import Engine, EngineError, EngineUnavailable
from fake_engine import SSH, FakeEngine, Relay, answer, close, until_end, write_program


@pytest.fixture(params=["asyncio", "trio"])
def run(request):
    """Runs an async function under each event loop."""
    return lambda function, *args: anyio.run(function, *args, backend=request.param)


@pytest.fixture
def fake(short_directory):
    with FakeEngine(f"{short_directory}/e", answer(b"7")) as server:
        yield server


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    base = tmp_path_factory.mktemp("certificates")
    return certificates.make(base / "mine"), certificates.make(base / "others")


def fails(run, endpoint, **options):
    async def ask():
        with pytest.raises(EngineError) as caught:
            await Engine(endpoint).request("GET", "/info", **options)
        return caught.value

    return run(ask)


def asks(run, endpoint):
    return run(Engine(endpoint).request, "GET", "/info")


# --- TCP -------------------------------------------------------------------------------------


def test_a_tcp_connection_notices_a_machine_that_is_gone(run, fake):
    async def look():
        connection = await dialing.dial(Endpoint(kind="tcp", address=f"localhost:{relay.port}"))
        sock = connection._socket
        alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        connection.close()
        return alive, idle

    with Relay(fake.path) as relay:
        assert run(look) == (1, 20)
        assert asks(run, Endpoint(kind="tcp", address=f"localhost:{relay.port}")) == 7
        assert f"Host: localhost:{relay.port}\r\n" in fake.requests.get(timeout=5)


def test_a_port_without_a_listener_is_told(run):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # and does not listen
        error = fails(run, Endpoint(kind="tcp", address=f"127.0.0.1:{sock.getsockname()[1]}"))
    assert isinstance(error, EngineUnavailable)
    assert "nothing listens" in error.hint


def test_the_next_address_of_a_host_is_tried(run, fake, monkeypatch):
    async def several(host, port, **options):
        sort = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*sort, ("127.0.0.1", dead)), (*sort, ("127.0.0.1", relay.port))]

    monkeypatch.setattr(anyio, "getaddrinfo", several)
    with Relay(fake.path) as relay, socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        dead = sock.getsockname()[1]
        assert asks(run, Endpoint(kind="tcp", address="many:1")) == 7


def test_the_relay_of_these_tests_closes_what_an_engine_does_not_take(short_directory):
    """Also when it is stopped meanwhile: some later test would find the connection unclosed."""
    path = f"{short_directory}/e"

    async def stop():
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(bytes(20_000_000))
        closing = asyncio.ensure_future(close(writer))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        return writer.get_extra_info("socket").fileno()

    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        assert asyncio.run(stop()) == -1


# --- TLS -------------------------------------------------------------------------------------


@pytest.fixture
def secure(fake, certs):
    """A relay that wants certificates, and the endpoint that has them."""
    with Relay(fake.path, certificates.server_context(certs[0])) as relay:
        tls = tls_files(str(certs[0]), verify=True)
        yield Endpoint(kind="tcp", address=f"127.0.0.1:{relay.port}", tls=tls)


def with_tls(endpoint, **changes):
    return dataclasses.replace(endpoint, tls=dataclasses.replace(endpoint.tls, **changes))


def test_tls_with_the_right_certificates_works(run, secure):
    assert asks(run, secure) == 7


def test_an_engine_signed_by_another_is_refused(run, secure, certs):
    error = fails(run, with_tls(secure, ca=str(certs[1] / "ca.pem")))
    assert isinstance(error, EngineUnavailable)
    assert "certificate verify failed" in error.message
    assert "ca.pem" in error.hint


def test_an_engine_of_another_name_is_refused(run, secure):
    address = secure.address.replace("127.0.0.1", "localhost")
    error = fails(run, dataclasses.replace(secure, address=address))
    assert "Hostname mismatch" in error.message


def test_without_verification_any_engine_is_believed(run, secure, certs):
    lax = with_tls(secure, ca=str(certs[1] / "ca.pem"), verify=False)
    address = lax.address.replace("127.0.0.1", "localhost")
    assert asks(run, dataclasses.replace(lax, address=address)) == 7


@pytest.mark.parametrize("own", ["none", "of another"])
@pytest.mark.parametrize("silently", [True, False])
def test_an_engine_that_refuses_our_certificate_is_told(own, silently, run, secure, certs):
    other = {"cert": str(certs[1] / "cert.pem"), "key": str(certs[1] / "key.pem")}
    changed = with_tls(secure, **({"cert": None, "key": None} if own == "none" else other))
    if silently:  # asyncio's server does not say why
        error = fails(run, changed)
    else:
        with Refusing(certs[0]) as port:
            error = fails(run, dataclasses.replace(changed, address=f"127.0.0.1:{port}"))
        assert "alert" in error.message
    assert isinstance(error, EngineUnavailable)
    assert "cert.pem" in error.hint


class Refusing:
    """A server for one connection, that tells why it does not like a certificate."""

    def __init__(self, short_directory):
        self._context = certificates.server_context(short_directory)

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self._listener.getsockname()[1]

    def _serve(self):
        sock, _ = self._listener.accept()
        with sock, contextlib.suppress(ssl.SSLError):
            secured = self._context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
            with secured:
                try:
                    secured.do_handshake()
                finally:
                    # Bytes that were never read would make the end a reset, before the alert.
                    socket.socket.shutdown(secured, socket.SHUT_WR)
                    while socket.socket.recv(secured, 1000):
                        continue

    def __exit__(self, *_):
        self._thread.join()
        self._listener.close()


def test_tls_to_a_port_without_it_is_told(run, fake, certs):
    with Relay(fake.path) as relay:
        tls = tls_files(str(certs[0]), verify=True)
        error = fails(
            run, Endpoint(kind="tcp", address=f"127.0.0.1:{relay.port}", tls=tls), timeout=0.5
        )
    assert error.status == 0


def test_tls_to_something_else_is_told(run, certs):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                until_end(sock)

        thread = threading.Thread(target=greet)
        thread.start()
        tls = tls_files(str(certs[0]), verify=True)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        error = fails(run, Endpoint(kind="tcp", address=address, tls=tls))
        thread.join()
    assert "speak TLS" in error.hint


def test_certificates_that_cannot_be_used_are_named(run, secure, tmp_path, certs):
    (tmp_path / "garbage.pem").write_text("garbage")
    locked = str(tmp_path / "locked.pem")
    key = ["ec", "-in", str(certs[0] / "key.pem"), "-out", locked, "-aes128"]
    certificates.openssl(tmp_path, *key, "-passout", "pass:secret")
    for changes, words in [
        ({"ca": str(tmp_path / "none.pem")}, "none.pem"),
        ({"ca": str(tmp_path / "garbage.pem")}, "garbage.pem"),
        ({"key": str(certs[1] / "key.pem")}, "others/key.pem"),
        ({"key": locked}, "the key has a password"),
    ]:
        error = fails(run, with_tls(secure, **changes))
        assert isinstance(error, EngineUnavailable)
        assert words in error.message


@pytest.fixture
def tls_pair(certs):
    """Both ends of a TLS connection over a socket pair; the far one is not moved by anything."""
    ours, theirs = socket.socketpair()
    server = certificates.server_context(certs[0])
    far = []

    def serve():
        far.append(server.wrap_socket(theirs, server_side=True))

    thread = threading.Thread(target=serve)
    thread.start()
    connection = TlsConnection(
        ours, make_tls_context(tls_files(str(certs[0]), verify=True)), "127.0.0.1"
    )
    anyio.run(connection.handshake)
    thread.join()
    yield connection, far[0]
    connection.close()
    far[0].close()


def test_records_that_were_read_ahead_wake_the_reader(run, tls_pair):
    connection, far = tls_pair
    for _ in range(3):
        far.sendall(b"abc")

    async def read():
        data = b""
        while len(data) < 9:
            await connection.wait_readable()  # also when the socket itself is empty
            try:
                data += connection.recv(2)
            except BlockingIOError:
                continue
        return data

    assert run(read) == b"abcabcabc"


def test_tls_bytes_count_as_sent_only_when_the_kernel_has_them(run, tls_pair):
    connection, far = tls_pair
    data = memoryview(os.urandom(5_000_000))
    got = bytearray()

    def slowly():
        while len(got) < len(data):
            got.extend(far.recv(10_000))

    thread = threading.Thread(target=slowly)

    async def write():
        sent, blocked = 0, 0
        while sent < len(data):
            try:
                sent += connection.send(data[sent:])
            except BlockingIOError:
                blocked += 1
                if not thread.is_alive() and not thread.ident:
                    thread.start()
                await connection.wait_writable()
        return blocked

    assert run(write) > 0
    thread.join()
    assert got == data


@pytest.mark.parametrize("politely", [True, False])
def test_the_end_of_a_tls_stream_is_known_without_reading_on(politely, run, tls_pair):
    connection, far = tls_pair

    def end():
        if politely:
            far.settimeout(0)
            with contextlib.suppress(ssl.SSLError, OSError):
                far.unwrap()  # says so, and would wait for our answer
        else:
            far.shutdown(socket.SHUT_WR)

    async def read():
        assert not connection.ended()
        far.sendall(b"last")
        assert not connection.ended()
        end()
        await connection.wait_readable()
        assert not connection.ended()
        assert connection.recv(10) == b"last"
        while not connection.ended():
            await anyio.sleep(0.01)
        assert connection.recv(10) == b""

    run(read)


def test_a_tls_reader_is_woken_from_another_thread(run, tls_pair):
    connection, _ = tls_pair

    async def read():
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        assert not connection.ended()
        threading.Timer(0.1, connection.shutdown).start()
        await connection.wait_readable()
        assert connection.recv(1) == b""
        assert connection.ended()

    run(read)


# --- ssh -------------------------------------------------------------------------------------


@pytest.fixture
def install_ssh(short_directory, monkeypatch):
    """Puts a program in the place of ssh."""

    def install(text):
        write_program(short_directory, "ssh", text)
        monkeypatch.setenv("PATH", f"{short_directory}:/usr/bin:/bin")

    return install


def no_children_of(program):
    """Whether every process that runs `program` has gone, zombies too; waited for."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                    if program in file.read():
                        found.append(pid)
            except OSError:
                continue
        if not found:
            return True
        threading.Event().wait(0.01)
    return False


def test_ssh_carries_a_request_and_ends_with_it(run, install_ssh, fake, short_directory):
    log = f"{short_directory}/log"
    install_ssh(SSH.format(python=sys.executable, log=log, path=fake.path))
    assert asks(run, Endpoint(kind="ssh", address="me@far:2222")) == 7
    assert no_children_of(f"{short_directory}/ssh")
    with open(log) as file:
        called = file.read().splitlines()
    assert len(called) == 2  # the version, and the request
    assert called[0].endswith("'-l', 'me', '-p', '2222', '--', 'far', 'docker system dial-stdio']")


@pytest.mark.parametrize("words", ["Permission denied (publickey).", "docker: command not found"])
def test_what_ssh_says_about_its_failure_is_told(words, run, install_ssh):
    install_ssh(f"#!/bin/sh\nprintf '{words}\x1b[2J\r\n' >&2\nexit 255\n")
    error = fails(run, Endpoint(kind="ssh", address="me@far:2222/run/x.sock"))
    assert isinstance(error, EngineUnavailable)
    assert error.message.endswith(f"{words}\\x1b[2J")
    assert "`ssh -p 2222 me@far docker version`" in error.hint


def test_an_ssh_that_fails_without_a_word_is_told(run, install_ssh):
    install_ssh("#!/bin/sh\nexit 1\n")
    assert fails(run, Endpoint(kind="ssh", address="me@far")).status == 0


def test_an_ssh_that_hangs_is_killed(run, install_ssh, short_directory):
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(99)\n"
    install_ssh(f"#!{sys.executable}\n{deaf}")
    error = fails(run, Endpoint(kind="ssh", address="me@far"), timeout=0.5)
    assert "did not answer" in error.message
    assert no_children_of(f"{short_directory}/ssh")


def test_ssh_that_talks_a_lot_is_not_blocked(run, install_ssh, fake, short_directory):
    talk = "import sys\nsys.stderr.write('debug1: ' * 100_000)\n"
    text = SSH.format(python=sys.executable, log=f"{short_directory}/log", path=fake.path)
    install_ssh(text.replace("import os", talk + "import os", 1))
    assert asks(run, Endpoint(kind="ssh", address="me@far")) == 7


def test_without_ssh_the_error_says_what_to_install(run, monkeypatch, short_directory):
    monkeypatch.setenv("PATH", short_directory)
    error = fails(run, Endpoint(kind="ssh", address="me@far"))
    assert isinstance(error, EngineUnavailable)
    assert "OpenSSH" in error.hint


def test_an_abandoned_ssh_connection_lives_on_in_the_parent(
    run, install_ssh, fake, short_directory
):
    install_ssh(SSH.format(python=sys.executable, log=f"{short_directory}/log", path=fake.path))

    async def fork():
        connection = await dialing.dial(Endpoint(kind="ssh", address="far"))
        if (child := os.fork()) == 0:
            connection.abandon()
            os._exit(0)
        os.waitpid(child, 0)
        connection.send(b"GET /v1.41/info HTTP/1.1\r\nHost: x\r\n\r\n")
        await connection.wait_readable()
        data = connection.recv(100)
        connection.close()
        return data

    assert run(fork).startswith(b"HTTP/1.1 200")
    assert no_children_of(f"{short_directory}/ssh")
