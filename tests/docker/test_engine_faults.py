"""The client of an engine, against a server that misbehaves: nothing hangs, leaks or lies."""

import errno
import os
import pickle
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import anyio
import pytest

from belljar import BackendUnavailable, InvalidOption
from belljar.backends.docker.client import engine as engine_module
from belljar.backends.docker.client import http
from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.client.endpoint import Endpoint
from belljar.backends.docker.client.engine import Engine, EngineError, EngineUnavailable
from belljar.backends.docker.client.engine_errors import unreachable_error
from fake_engine import FakeEngine, answer, chunked, until_end

EMPTY = answer(b"{}")
MANY = 4 * 1024 * 1024  # bytes that no socket takes at once


@pytest.fixture(params=["asyncio", "trio"])
def run(request):
    """Runs an async function under each event loop."""
    return lambda function, *args: anyio.run(function, *args, backend=request.param)


@pytest.fixture
def directory():
    """A short path, as sockets need."""
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.fixture
def fake(directory):
    """Makes a server that misbehaves as it is told, and the client for it."""

    class Faked(FakeEngine):
        def __enter__(self):
            super().__enter__()
            self.client = Engine(Endpoint(kind="unix", address=self.path))
            return self

    return lambda behave=EMPTY, **options: Faked(f"{directory}/e", behave, **options)


def request_fails(run, client, method="GET", path="/info", **options):
    async def ask():
        with pytest.raises(EngineError) as caught:
            await client.request(method, path, **options)
        return caught.value

    return run(ask)


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (answer(b'{"a": [1, null]}'), {"a": [1, None]}),
        (answer(b"[]\n"), []),
        (answer(b"", status="204 No Content"), None),
        (answer(b"", status="304 Not Modified"), None),
        (answer(b"OK", kind="text/plain"), None),
        (answer(b"{}", kind="Application/JSON; charset=utf-8"), {}),
        (chunked(b'{"a"', b": 1}"), {"a": 1}),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"1"), 1),
        (b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"old": 1}', {"old": 1}),
    ],
)
def test_an_answer_is_what_its_json_says(raw, value, run, fake):
    with fake(raw) as server:
        assert run(server.client.request, "GET", "/info") == value


def test_an_answer_that_comes_byte_by_byte_is_whole(run, fake):
    def drip(sock):
        for byte in chunked(b'{"a": 1}'):
            sock.send(bytes([byte]))

    with fake(drip) as server:
        assert run(server.client.request, "GET", "/info") == {"a": 1}


def test_what_is_asked_arrives_as_the_engine_expects_it(run, fake):
    async def ask(client):
        await client.request(
            "POST",
            "/images/a b?c#d%2Fe:tag@x/json",
            query={"filters": {"label": ["a=b"]}, "all": True, "force": False, "n": 3, "no": None},
            body={"ä": 1},
            headers={"X-Registry-Auth": "abc"},
        )

    with fake() as server:
        run(ask, server.client)
        head = server.requests.get(timeout=5)
    assert head.startswith(
        "POST /v1.41/images/a%20b%3Fc%23d%2Fe:tag@x/json"
        "?filters=%7B%22label%22%3A+%5B%22a%3Db%22%5D%7D&all=1&force=0&n=3 HTTP/1.1\r\n"
    )
    for line in ["Host: docker", "Connection: close", "X-Registry-Auth: abc"]:
        assert f"\r\n{line}\r\n" in head
    assert "\r\nContent-Type: application/json\r\n" in head
    assert server.ends.get(timeout=5) == b'{"\\u00e4": 1}'


@pytest.mark.parametrize("path", ["/a\r\nX: y", "/a\0"])
def test_a_path_cannot_add_to_the_request(path, run, fake):
    with fake() as server:
        run(server.client.request, "GET", path)
        assert "\r\nX: y" not in server.requests.get(timeout=5)


def test_a_header_cannot_add_to_the_request(run, fake):
    async def ask(client):
        with pytest.raises(InvalidOption, match="not valid HTTP"):
            await client.request("GET", "/info", headers={"X-A": "b\r\nX-C: d"})

    with fake() as server:
        run(ask, server.client)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("404 Not Found", b'{"message": "No such container: x"}', "No such container: x"),
        ("409 Conflict", b'{"cause": "a", "message": "b", "response": 409}', "b"),
        ("500 Oops", b"<h1>oops</h1>\n", "<h1>oops</h1>"),
        ("500 Oops", b"", "the engine answered with status 500"),
        ("500 Oops", b'{"message": 7}', "the engine answered with status 500"),
        ("500 Oops", b"[" * 100_000, "[" * 2000 + " …"),
        ("503 Busy", b'{"message": "\\u001b[31mred\\u202e"}', r"\x1b[31mred\u202e"),
        ("400 Bad", b"\xff\x00", "\ufffd\\x00"),
        ("301 Moved", b"", "the engine answered with status 301"),
    ],
)
def test_a_refusal_has_the_engines_own_words_made_printable(status, body, message, run, fake):
    with fake(answer(body, status=status)) as server:
        error = request_fails(run, server.client)
    assert (error.message, error.status) == (message, int(status[:3]))
    assert not isinstance(error, BackendUnavailable)


@pytest.mark.parametrize("raw", [b"x" * MANY, b"x" * 3000 + b"\xff"])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_refusal_of_any_length_is_capped_and_need_not_be_whole(raw, missing, run, fake):
    whole = answer(raw, status="500 Oops")
    with fake(whole[: len(whole) - missing]) as server:
        error = request_fails(run, server.client)
    assert len(str(error)) < 2100
    assert error.status == 500


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (b"Client sent an HTTP request to an HTTPS server.\n", "DOCKER_TLS_VERIFY"),
        (
            b'{"message": "client version 1.44 is too old. Minimum supported API version is 1.60"}',
            "newer belljar",
        ),
    ],
)
def test_a_refusal_that_has_a_remedy_has_a_hint(words, hint, run, fake):
    with fake(answer(words, status="400 Bad Request")) as server:
        assert hint in request_fails(run, server.client).hint


def test_an_engine_error_survives_pickling():
    error = pickle.loads(pickle.dumps(EngineError("a", status=404, hint="b")))
    assert (error.message, error.status, error.hint) == ("a", 404, "b")


# --- what is no answer -----------------------------------------------------------------------


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff garbage \r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200",
        HEAD,
        HEAD + b"X-Big: " + b"x" * 200_000,
        HEAD + b"X: y\r\n" * 100_000,
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 100_000,
        chunked(b'{"a": 1', end=False),
        answer(b'{"a": '),
        answer(b"[" * 100_000),
        answer(b"\xff"),
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    ],
)
def test_what_is_no_answer_is_an_engine_error_without_status(raw, run, fake):
    with fake(raw) as server:
        error = request_fails(run, server.client)
    assert error.status == 0
    assert "GET /info" in str(error)
    assert error.hint
    assert len(str(error)) < 2500


def test_an_answer_larger_than_the_limit_is_not_read_to_its_end(run, fake, monkeypatch):
    monkeypatch.setattr(engine_module, "MAX_JSON", 1000)
    with fake(answer(b'"' + b"x" * MANY + b'"')) as server:
        assert "larger than 1000 bytes" in str(request_fails(run, server.client))


@pytest.mark.parametrize("behave", [until_end, lambda sock: (sock.send(HEAD), until_end(sock))])
def test_an_engine_that_hangs_is_given_up(behave, run, fake):
    with fake(behave) as server:
        error = request_fails(run, server.client, timeout=0.2)
    assert error.status == 0
    assert "did not answer in 0.2 s (GET /info)" in str(error)


def test_an_engine_that_only_drips_is_given_up(run, fake):
    def drip(sock):
        while True:
            sock.send(b"X: y\r\n")
            time.sleep(0.01)

    with fake(lambda sock: (sock.send(HEAD), drip(sock))) as server:
        assert "did not answer" in str(request_fails(run, server.client, timeout=0.3))


def test_an_engine_that_accepts_nobody_is_given_up(run, directory):
    path = f"{directory}/full"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        waiting = []
        while True:  # until its queue is full
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            waiting.append(sock)
            try:
                sock.connect(path)
            except BlockingIOError:
                break
        error = request_fails(run, Engine(Endpoint(kind="unix", address=path)), timeout=0.2)
        for sock in waiting:
            sock.close()
    assert "did not answer" in str(error)


# --- no connection ---------------------------------------------------------------------------


def test_a_missing_socket_is_told_with_what_to_do(run, directory):
    endpoint = Endpoint(kind="unix", address=f"{directory}/none", source="DOCKER_HOST")
    error = request_fails(run, Engine(endpoint))
    assert isinstance(error, BackendUnavailable)
    assert "from DOCKER_HOST: No such file" in error.message
    assert "systemctl start docker" in error.hint


def test_a_socket_without_a_listener_is_told_with_what_to_do(run, directory):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{directory}/dead")
    error = request_fails(run, Engine(Endpoint(kind="unix", address=f"{directory}/dead")))
    assert isinstance(error, EngineUnavailable)
    assert "nothing listens there" in error.hint


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "group that owns the socket"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), "nothing listens"),
        (socket.gaierror(-2, "Name or service not known"), "name of the host"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "machine up"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "DOCKER_CERT_PATH"),
        (ssl.SSLError(1, "wrong version number"), "speak TLS"),
        (OSError("AF_UNIX path too long"), "address right"),
    ],
)
def test_each_failure_to_connect_has_its_remedy(error, hint):
    made = unreachable_error(Endpoint(kind="tcp", address="a:1"), error)
    assert hint in made.hint
    assert (error.strerror or str(error)) in made.message


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 70 + ".invalid"])
def test_a_host_that_does_not_exist_is_told(name, run):
    error = request_fails(run, Engine(Endpoint(kind="tcp", address=f"{name}:1")))
    assert isinstance(error, EngineUnavailable)
    assert "name of the host" in error.hint


def test_without_h11_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(BackendUnavailable) as caught:
        Engine(Endpoint(kind="unix", address="/x"))
    assert caught.value.hint == "pip install h11"


def test_importing_the_client_loads_neither_h11_nor_ssl():
    code = (
        "import sys; before = set(sys.modules); import belljar.backends.docker.client.engine;"
        "print([name for name in ('h11', 'ssl') if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the version of the API ------------------------------------------------------------------


def pong(version):
    return answer(b"OK", kind="text/plain", extra=f"Api-Version: {version}\r\n" if version else "")


@pytest.mark.parametrize(("theirs", "used"), [("1.41", "1.41"), ("1.52", "1.44"), ("2.0", "1.44")])
def test_the_version_is_one_that_both_speak(theirs, used, run, fake):
    with fake(pong=pong(theirs)) as server:
        run(server.client.request, "GET", "/info")
        assert server.requests.get(timeout=5).startswith(f"GET /v{used}/info ")


def test_an_engine_that_is_too_old_is_refused(run, fake):
    with fake(pong=pong("1.24")) as server:
        error = request_fails(run, server.client)
    assert isinstance(error, EngineUnavailable)
    assert "1.24" in error.message
    assert "Docker 20.10" in error.hint


@pytest.mark.parametrize("version", [None, "one", "1", "9" * 5000 + ".1"])
def test_a_server_that_is_no_engine_is_seen(version, run, fake):
    with fake(pong=pong(version)) as server:
        assert "which version of Docker's API" in str(request_fails(run, server.client))


@pytest.mark.parametrize("raw", [b"", answer(b"too new", status="400 Bad Request")])
def test_the_version_is_asked_again_after_a_failure(raw, run, fake):
    with fake(raw) as server:
        request_fails(run, server.client)
        server._pong = pong("1.43")
        request_fails(run, server.client)
        heads = [server.requests.get(timeout=5) for _ in range(2)]
    assert [head.split("/")[1] for head in heads] == ["v1.41", "v1.43"]


# --- lines -----------------------------------------------------------------------------------


async def all_lines(client, **options):
    async with client.lines("POST", "/build", **options) as lines:
        return [line async for line in lines]


def test_lines_are_objects_however_they_are_cut(run, fake):
    raw = chunked(b'{"a": 1}\r\n{"a"', b": 2}\n\n", b'{"a": 3}\r\n{"a": 4}')
    with fake(raw) as server:
        assert run(all_lines, server.client) == [{"a": n} for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (chunked(b"{}\n[]\n"), "not a JSON object"),
        (chunked(b"{}\nnonsense\n"), "invalid JSON"),
        (chunked(b"{}\n", end=False), "without sending complete message body"),
        (chunked(b"{}\n", b"x" * 5000), "line of more than 1000 bytes"),
    ],
)
def test_lines_that_are_none_end_in_an_error(raw, words, run, fake, monkeypatch):
    monkeypatch.setattr(engine_module, "MAX_LINE", 1000)

    async def read(client):
        seen = []
        async with client.lines("POST", "/build") as lines:
            with pytest.raises(EngineError, match=words) as caught:  # noqa: PT012
                async for line in lines:
                    seen.append(line)
        assert caught.value.status == 0
        return seen

    with fake(raw) as server:
        assert run(read, server.client) in ([{}], [])


def test_lines_that_are_refused_say_so_at_once(run, fake):
    async def read(client):
        with pytest.raises(EngineError, match="no space") as caught:
            async with client.lines("POST", "/build"):
                pytest.fail("it was refused")
        assert caught.value.status == 500

    with fake(answer(b'{"message": "no space"}', status="500 Oops")) as server:
        run(read, server.client)


@pytest.mark.parametrize("before", [b"", chunked(b'{"a": 1}\n', end=False)])
def test_silence_ends_lines(before, run, fake):
    async def read(client):
        with pytest.raises(EngineError, match=r"did not answer in 0\.3 s"):
            await all_lines(client, idle_timeout=0.3)

    with fake(lambda sock: (sock.send(before), until_end(sock))) as server:
        run(read, server.client)


def test_lines_may_take_longer_than_any_silence_may(run, fake):
    def slowly(sock):
        sock.send(HEAD + b"\r\n")
        for _ in range(12):
            sock.send(b"{}\n")
            time.sleep(0.4)

    with fake(slowly) as server:
        assert len(run(lambda: all_lines(server.client, idle_timeout=4.0))) == 12


def test_who_reads_slowly_is_not_taken_for_a_silent_engine(run, fake):
    async def read(client):
        async with client.lines("POST", "/build", idle_timeout=4.0) as lines:
            seen = [await anext(lines)]
            await anyio.sleep(4.5)
            return seen + [line async for line in lines]

    with fake(chunked(b"{}\n", b"{}\n")) as server:
        assert run(read, server.client) == [{}, {}]


def test_lines_may_be_left_before_their_end(run, fake):
    async def read(client):
        async with client.lines("GET", "/events") as lines:
            async for line in lines:
                return line

    raw = chunked(b'{"a": 1}\n', end=False)
    with fake(lambda sock: (sock.send(raw), until_end(sock))) as server:
        assert run(read, server.client) == {"a": 1}


# --- uploads ---------------------------------------------------------------------------------


class Upload:
    """An endless upload, that knows whether it was ended properly, if it began at all."""

    def __init__(self, count=None):
        self.count, self.ended = count, True

    async def chunks(self):
        self.ended = False
        try:
            sent = 0
            while self.count is None or sent < self.count:
                yield b"x" * 65536
                sent += 1
        finally:
            await anyio.lowlevel.checkpoint()  # as closing a file would
            self.ended = True


def test_an_upload_arrives_whole(run, fake):
    def read(sock):
        data = b""
        while not data.endswith(b"0\r\n\r\n") and (piece := sock.recv(65536)):
            data += piece
        sock.sendall(answer(str(data.count(b"x")).encode()))

    upload = Upload(100)
    with fake(read) as server:
        got = run(lambda: server.client.request("POST", "/build", data=upload.chunks()))
    assert got == 100 * 65536
    assert upload.ended


@pytest.mark.parametrize("close", [True, False])
def test_an_upload_that_is_refused_early_stops_and_tells_why(close, run, fake):
    def refuse(sock):
        sock.recv(1000)
        sock.sendall(answer(b'{"message": "too large"}', status="400 Bad"))
        if not close:
            until_end(sock)

    async def upload():
        with pytest.raises(EngineError, match="too large") as caught:
            await server.client.request("POST", "/build", data=endless.chunks())
        assert caught.value.status == 400

    endless = Upload()
    with fake(refuse) as server:
        run(upload)
    assert endless.ended


def test_an_engine_that_talks_while_it_takes_an_upload_does_not_block_it(run, fake):
    progress = chunked(*[b'{"a": "' + b"x" * 1000 + b'"}\n'] * 3000, end=False)

    def talk_first(sock):
        sock.sendall(progress)  # more than fits into a socket, before anything is read
        data = b""
        while not data.endswith(b"0\r\n\r\n") and (piece := sock.recv(65536)):
            data = data[-10:] + piece
        sock.sendall(b"0\r\n\r\n")

    async def load():
        return await all_lines(server.client, data=Upload(100).chunks(), idle_timeout=20)

    with fake(talk_first) as server:
        assert len(run(load)) == 3000


def test_an_engine_that_only_talks_during_an_upload_is_given_up(run, fake, monkeypatch):
    monkeypatch.setattr(http, "MAX_WAITING", 100_000)

    def babble(sock):
        sock.sendall(chunked(b"x" * MANY, end=False))
        until_end(sock)

    async def load():
        with pytest.raises(EngineError, match="before it had the whole request"):
            await server.client.request("POST", "/images/load", data=Upload().chunks())

    with fake(babble) as server:
        run(load)


def test_an_upload_that_is_not_taken_is_given_up(run, fake):
    async def load():
        with pytest.raises(EngineError, match="did not answer"):
            await all_lines(server.client, data=endless.chunks(), idle_timeout=0.3)

    endless = Upload()
    pause = threading.Event()
    with fake(lambda sock: pause.wait(10)) as server:
        run(load)
        pause.set()
    assert endless.ended


def test_an_error_of_the_upload_itself_is_the_callers(run, fake):
    async def broken():
        yield b"x"
        raise TimeoutError("the disk")

    async def load():
        with pytest.raises(TimeoutError, match="the disk"):
            await server.client.request("POST", "/build", data=broken())

    with fake(until_end) as server:
        run(load)


# --- cancellation ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["request", "lines", "upgrade", "upload"])
def test_a_cancelled_call_closes_its_connection(what, run, fake):
    """The server waits for that, at its end."""

    async def call(client):
        match what:
            case "request":
                await client.request("GET", "/info")
            case "lines":
                await all_lines(client)
            case "upgrade":
                await client.upgrade("/containers/x/attach")
            case "upload":
                await client.request("POST", "/build", data=Upload().chunks())

    async def cancel(client):
        async with anyio.create_task_group() as group:
            group.start_soon(call, client)
            await anyio.to_thread.run_sync(server.requests.get)
            await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    with fake(until_end) as server:
        run(cancel, server.client)


def test_many_calls_at_once_do_not_wait_for_each_other(run, fake):
    everybody = threading.Barrier(20)  # none is answered before all are asked

    def together(sock):
        everybody.wait(20)
        sock.sendall(answer(b"1"))

    async def ask():
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(server.client.request, "GET", "/info")

    with fake(together) as server:
        run(ask)


# --- upgrade ---------------------------------------------------------------------------------

SWITCH = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
RAW = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"


async def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        try:
            piece = connection.recv(size - len(data))
        except BlockingIOError:
            await connection.wait_readable()
        else:
            assert piece, "it ended early"
            data += piece
    return data


@pytest.mark.parametrize("head", [SWITCH, RAW])
def test_an_upgrade_gives_the_stream_with_what_came_behind_the_head(head, run, fake):
    def greet(sock):
        sock.sendall(head + b"hello ")
        sock.sendall(b"again " + sock.recv(3, socket.MSG_WAITALL))

    async def attach():
        connection = await server.client.upgrade("/containers/x/attach", query={"stdin": True})
        try:
            await connection.wait_readable()
            assert not connection.ended()
            assert await read_exactly(connection, 4) == b"hell"
            connection.send(b"you")
            assert await read_exactly(connection, 11) == b"o again you"
            await connection.wait_readable()
            assert connection.ended()
            assert connection.recv(10) == b""
        finally:
            connection.close()

    with fake(greet) as server:
        run(attach)
        assert "Upgrade: tcp" in server.requests.get(timeout=5)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (answer(b'{"message": "no such container"}', status="404 Not Found"), 404),
        (answer(b"{}"), 0),
        (chunked(b"{}"), 0),
        (answer(b"", status="204 No Content"), 0),
        (b"", 0),
        (b"HTTP/1.1 101 Swi", 0),
    ],
)
def test_an_upgrade_that_is_not_given_is_an_error(raw, status, run, fake):
    async def attach():
        with pytest.raises(EngineError) as caught:
            await server.client.upgrade("/containers/x/attach")
        assert caught.value.status == status

    with fake(raw) as server:
        run(attach)


# --- connections -----------------------------------------------------------------------------


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    with theirs:
        yield connection, theirs
    connection.close()


def test_shutdown_from_another_thread_wakes_a_waiting_reader(run, pair):
    connection, _ = pair

    async def read():
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        threading.Timer(0.1, connection.shutdown).start()
        await connection.wait_readable()
        assert connection.recv(1) == b""
        assert connection.ended()

    run(read)


def test_a_connection_may_be_shut_and_closed_twice_and_reads_its_end_then(run, pair):
    connection, theirs = pair
    connection.shutdown()
    connection.close()
    connection.shutdown()
    connection.close()
    assert connection.recv(1) == b""
    assert connection.ended()
    assert theirs.recv(1) == b""
    run(connection.wait_readable)
    run(connection.wait_writable)


def test_what_was_given_back_comes_first(run, pair):
    connection, theirs = pair
    theirs.send(b"cd")
    connection.unread(b"ab")
    run(connection.wait_readable)
    assert connection.recv(1) + connection.recv(9) + connection.recv(9) == b"abcd"


def test_closing_ends_the_connection_even_if_a_fork_has_it_too(pair):
    connection, theirs = pair
    copy = os.dup(connection.fileno())  # as a fork has
    connection.close()
    theirs.settimeout(5)
    assert theirs.recv(1) == b""
    os.close(copy)


def test_a_fork_can_let_go_of_a_connection_without_ending_it(pair):
    connection, theirs = pair
    copy = Connection(socket.socket(fileno=os.dup(connection.fileno())))
    copy.abandon()
    connection.send(b"x")
    assert theirs.recv(1) == b"x"
    assert not connection.ended()


def test_a_broken_pipe_is_an_error_and_no_signal():
    """A program may have given SIGPIPE its default action back."""
    code = (
        "import signal, socket; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "from belljar.backends.docker.client.connect import Connection\n"
        "ours, theirs = socket.socketpair(); theirs.close()\n"
        "try: Connection(ours).send(b'x')\n"
        "except BrokenPipeError: print('told')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "told\n"
