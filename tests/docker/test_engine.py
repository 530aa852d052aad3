"""The client of an engine, against a real one, over each way that leads there."""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time

import anyio
import pytest

import certificates
from belljar.backends.docker import cleanup
from belljar.backends.docker.client.endpoint import Endpoint, find_endpoint, tls_files
from belljar.backends.docker.client.engine import Engine, EngineError
from fake_engine import SSH, Relay, write_program

pytestmark = pytest.mark.docker

IMAGE = os.environ.get("BELLJAR_DOCKER_BASE", "belljar-base:bookworm")
ECHO = """
import sys
while data := sys.stdin.buffer.raw.read(65536):
    sys.stdout.buffer.raw.write(data)
"""
SIZE = 6_000_000


CASES = ["asyncio-unix", "trio-unix", "asyncio-tls", "trio-tls", "asyncio-tcp", "trio-ssh"]


@pytest.fixture(params=CASES)
def case(request):
    return request.param.split("-")


@pytest.fixture
def run(case):
    """Runs an async function under the event loop of the case."""
    return lambda function, *args: anyio.run(function, *args, backend=case[0])


@pytest.fixture(scope="module")
def local():
    endpoint = find_endpoint()
    if endpoint.kind != "unix":
        pytest.skip("the engine is not on a local socket")
    return endpoint


@pytest.fixture(scope="module")
def ways(local, tmp_path_factory):
    """The same engine, as it is met by each kind of address."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        plain = stack.enter_context(Relay(local.address))
        found = {"unix": local, "tcp": Endpoint(kind="tcp", address=f"127.0.0.1:{plain.port}")}
        if shutil.which("openssl"):
            made = certificates.make(tmp_path_factory.mktemp("tls") / "certificates")
            context = certificates.server_context(made)
            relay = stack.enter_context(Relay(local.address, context))
            tls = tls_files(str(made), verify=True)
            found["tls"] = Endpoint(kind="tcp", address=f"127.0.0.1:{relay.port}", tls=tls)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {"python": sys.executable, "log": f"{directory}/log", "path": local.address}
        write_program(directory, "ssh", SSH.format(**settings))
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        found["ssh"] = Endpoint(kind="ssh", address="me@far")
        yield found


@pytest.fixture
def engine(case, ways):
    if case[1] not in ways:
        pytest.skip("there is no openssl command")
    return Engine(ways[case[1]])


async def create(engine, code):
    made = await engine.request(
        "POST",
        "/containers/create",
        body={
            "Image": IMAGE,
            "Cmd": ["python3", "-c", code],
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
        },
    )
    return made["Id"]


async def remove(engine, identity):
    """By more than one attempt: Docker refuses to remove a container that ends meanwhile."""
    with anyio.CancelScope(shield=True):
        await cleanup.remove_container(engine, identity)


@contextlib.asynccontextmanager
async def container(engine, code):
    identity = await create(engine, code)
    try:
        yield identity
    finally:
        await remove(engine, identity)


async def attach(engine, identity):
    """The stream of a container that was not started yet, and is then."""
    ways = {"stream": True, "stdin": True, "stdout": True, "stderr": True}
    connection = await engine.upgrade(f"/containers/{identity}/attach", query=ways)
    try:
        await engine.request("POST", f"/containers/{identity}/start")
    except BaseException:
        connection.close()
        raise
    return connection


async def send_all(connection, data):
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            await connection.wait_writable()


class Output:
    """What a container writes, without the heads the engine puts before each piece."""

    def __init__(self, connection):
        self._connection, self._raw = connection, bytearray()

    async def read(self, size):
        data = bytearray()
        while len(data) < size:
            head = await self._exactly(8)
            assert head[0] == 1, "that is no standard output"
            data += await self._exactly(int.from_bytes(head[4:], "big"))
        return bytes(data)

    async def _exactly(self, size):
        while len(self._raw) < size:
            try:
                piece = self._connection.recv(65536)
            except BlockingIOError:
                await self._connection.wait_readable()
            else:
                assert piece, "it ended early"
                self._raw += piece
        found = bytes(self._raw[:size])
        del self._raw[:size]
        return found


def test_an_engine_tells_about_itself(run, engine):
    async def ask():
        return await engine.request("GET", "/version"), await engine.request("GET", "/_ping")

    version, ping = run(ask)
    assert version["ApiVersion"]
    assert ping is None


def test_what_the_engine_refuses_has_its_own_words(run, engine):
    async def ask():
        with pytest.raises(EngineError, match=r"(?i)no such container") as caught:
            await engine.request("GET", "/containers/belljar-no-such-one/json")
        assert caught.value.status == 404
        with pytest.raises(EngineError) as caught:
            await engine.upgrade("/containers/belljar-no-such-one/attach", query={"stream": True})
        assert caught.value.status == 404

    run(ask)


def test_megabytes_go_both_ways_at_once_unharmed(run, engine):
    data = os.urandom(SIZE)

    async def exchange():
        async with container(engine, ECHO) as identity:
            connection = await attach(engine, identity)
            with contextlib.closing(connection):
                async with anyio.create_task_group() as group:
                    group.start_soon(send_all, connection, data)
                    assert await Output(connection).read(SIZE) == data

    run(exchange)


def test_a_stream_survives_the_cancellation_of_its_reader(run, engine):
    data = os.urandom(SIZE // 4)

    async def exchange():
        async with container(engine, ECHO) as identity:
            connection = await attach(engine, identity)
            with contextlib.closing(connection):
                output = Output(connection)
                with anyio.move_on_after(0.1) as waiting:
                    await output.read(1)
                assert waiting.cancelled_caught
                async with anyio.create_task_group() as group:
                    group.start_soon(send_all, connection, data)
                    got = await output.read(1)
                    while len(got) < len(data):
                        with anyio.move_on_after(0.005):  # in the middle of it, again and again
                            await connection.wait_readable()
                        got += await output.read(1)
                    assert got == data

    run(exchange)


def test_a_stream_goes_on_in_another_event_loop(engine):
    """A sandbox outlives the loop it was made in."""

    identity = anyio.run(create, engine, ECHO, backend="asyncio")
    try:
        connection = anyio.run(attach, engine, identity, backend="asyncio")

        async def talk():
            await send_all(connection, b"hello")
            return await Output(connection).read(5)

        with contextlib.closing(connection):
            assert anyio.run(talk, backend="trio") == b"hello"
            assert anyio.run(talk, backend="asyncio") == b"hello"
    finally:
        anyio.run(remove, engine, identity, backend="trio")


def test_a_waiting_reader_is_woken_from_another_thread(run, engine):
    async def wait():
        async with container(engine, ECHO) as identity:
            connection = await attach(engine, identity)
            with contextlib.closing(connection):
                with pytest.raises(BlockingIOError):
                    connection.recv(1)
                threading.Timer(0.1, connection.shutdown).start()
                await connection.wait_readable()
                assert connection.recv(1) == b""

    run(wait)


def test_the_end_of_the_container_is_the_end_of_the_stream(run, engine):
    async def wait():
        async with container(engine, "print('bye', flush=True)") as identity:
            connection = await attach(engine, identity)
            with contextlib.closing(connection):
                assert await Output(connection).read(4) == b"bye\n"
                while not connection.ended():
                    await anyio.sleep(0.01)
                assert connection.recv(1) == b""

    run(wait)


def test_the_end_of_the_stream_is_the_end_of_the_container(run, engine):
    async def wait():
        async with container(engine, ECHO) as identity:
            connection = await attach(engine, identity)
            await send_all(connection, b"x")
            assert await Output(connection).read(1) == b"x"
            connection.close()
            return await engine.request("POST", f"/containers/{identity}/wait", timeout=60)

    assert run(wait)["StatusCode"] == 0


def test_events_come_as_they_happen_and_can_be_left(run, engine):
    async def watch():
        async with container(engine, "") as identity:
            # An engine begins its answer before it listens: what it would miss is asked for, too.
            query = {"filters": {"container": [identity]}, "since": int(time.time())}
            async with engine.lines("GET", "/events", query=query) as events:
                await engine.request("POST", f"/containers/{identity}/start")
                async for event in events:
                    if event["Action"] == "start":
                        return identity == event["id"]

    assert run(watch)


def test_a_build_takes_its_context_and_tells_its_errors_in_the_stream(run, engine):
    async def nonsense():
        for _ in range(20):
            yield b"\0" * 65536  # an empty archive, and long

    async def build():
        with contextlib.suppress(EngineError):
            async with engine.lines("POST", "/build", data=nonsense()) as lines:
                return [line async for line in lines][-1]
        return {"error": "refused"}

    assert "error" in run(build)


def test_cancelled_calls_do_no_harm(run, engine):
    async def ask():
        for delay in (0, 0.0005, 0.001, 0.002, 0.005, 0.01):
            with anyio.move_on_after(delay):
                await engine.request("GET", "/info")
        return await engine.request("GET", "/info")

    assert run(ask)["ServerVersion"]
