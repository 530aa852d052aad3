"""Ports: servers in the sandbox, reached from the host. The guest reaches nothing by them."""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Self, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from belljar.backends import event_loop
from belljar.errors import InvalidOption, SandboxError, suggests
from belljar.sandbox import options
from belljar.sandbox.lifecycle import Lifecycle
from belljar.sandbox.streams import Stream

T = TypeVar("T")
PATIENCE = 10.0  # seconds for a server to accept a connection
RETRY = 0.05  # seconds between attempts to reach a server that does not listen yet
HALF_CLOSED = 60.0  # seconds without a byte, after the client has ended its half or has gone
READ = 65536  # bytes that are read at once
MAX_CONNECTIONS = 256  # of one forwarded port, at once
REFUSED = "Connection refused"  # as init says it


class Connection(ByteStream):
    """A connection to a server in the sandbox, as a byte stream of anyio."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rest = b""

    async def receive(self, max_bytes: int = READ) -> bytes:
        if not self._rest:
            chunks = await self._stream.receive()
            if not chunks:
                raise anyio.EndOfStream
            self._rest = b"".join(data for _, data in chunks)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        if self._stream.end is not None:
            raise anyio.BrokenResourceError
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.end_input()

    @property
    def room(self) -> int:
        """Bytes that `send` takes without waiting."""
        return self._stream.room

    async def wait_for_room(self) -> int:
        """The room when there is some. 0: the connection has ended."""
        return await self._stream.wait_for_room()

    async def drain(self) -> None:
        """Wait until the server's socket has taken all that was sent."""
        await self._stream.drain()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._stream.close()


class _Local(ByteStream):
    """A socket of this process as a byte stream. Made without waiting: a task that is cancelled
    before it can close the socket would lose it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    async def receive(self, max_bytes: int = READ) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def hung_up(self) -> bool:
        """True if the other end is known to be closed. (Of TCP this is not known: it may have ended
        its half alone.)"""
        poll = select.poll()
        poll.register(self._socket, 0)
        return bool(poll.poll(0))

    def has_gone(self) -> bool:
        """True if no process has the other end open. Slow: it reads a table of the kernel."""
        if self.hung_up():
            return True
        if self._socket.family == socket.AF_UNIX:
            return False
        return not is_held(self._socket.getpeername(), self._socket.getsockname())

    async def aclose(self) -> None:
        self._socket.close()


class Forward(str):
    """The address of a forwarded port, "127.0.0.1:PORT", until it is closed."""

    port: int  # on this host
    _forwarding: _Forwarding

    def close(self) -> None:
        """Listen no more, and end the connections. May be called twice, from any thread."""
        with contextlib.suppress(ValueError):  # closed before
            self._forwarding.on_end.remove(self.close)
        self._forwarding.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


class _Forwarding:
    """One listener, and the connections that came by it."""

    def __init__(self, ports: AsyncPorts, port: int, listener: socket.socket) -> None:
        self._ports, self._port, self._listener = ports, port, listener
        self._slots = anyio.Semaphore(MAX_CONNECTIONS)
        self.on_end = ports._lifecycle.on_end
        self.loop = event_loop.here()
        self.cancel = event_loop.spawn(self._serve)

    def close(self) -> None:
        event_loop.post(self.loop, self.cancel)

    async def _serve(self) -> None:
        with self._listener:
            async with anyio.create_task_group() as tasks:
                while True:
                    await anyio.wait_readable(self._listener)
                    try:
                        client = _Local(self._listener.accept()[0])
                    except OSError:  # it has gone already, or this process is out of descriptors
                        await anyio.sleep(RETRY)
                    else:
                        tasks.start_soon(self._pass_on, client)

    async def _pass_on(self, client: _Local) -> None:
        async with client:
            try:
                self._slots.acquire_nowait()
            except anyio.WouldBlock:
                return
            try:
                async with await self._ports.connect(self._port) as server:
                    await relay(client, server)
            except (SandboxError, OSError):
                return  # the client sees its connection end
            finally:
                self._slots.release()


async def relay(client: _Local, server: Connection) -> None:
    """Pass bytes on in both directions, until both have ended or one has failed. A client that has
    ended its half may have gone: the server is then waited for only while it sends. A client that
    has gone for certain is kept only while the server reads."""
    patience = anyio.CancelScope()

    async def while_client_lives(wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for the server to take something. A cancelled `wait` loses nothing."""
        while True:
            with anyio.move_on_after(HALF_CLOSED):
                return await wait()
            if client.has_gone():
                raise anyio.BrokenResourceError

    async def copy_in() -> None:
        async for data in server:
            await client.send(data)
            if patience.deadline != math.inf:
                patience.deadline = anyio.current_time() + HALF_CLOSED
        await client.send_eof()

    async def copy_out() -> None:
        with contextlib.suppress(anyio.EndOfStream):
            # Bytes that the server has no room for stay in the client's socket.
            while room := server.room or await while_client_lives(server.wait_for_room):
                await server.send(await client.receive(min(room, READ)))
        await server.send_eof()
        patience.deadline = anyio.current_time() + HALF_CLOSED
        await while_client_lives(server.drain)
        if client.hung_up():
            patience.cancel()

    async def end_on_failure(copy: Callable[[], Awaitable[None]]) -> None:
        try:
            await copy()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, SandboxError):
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_on_failure, copy_out)
        with patience:
            await end_on_failure(copy_in)
        if patience.cancelled_caught:
            tasks.cancel_scope.cancel()


def is_held(end: tuple[str, int], other: tuple[str, int]) -> bool:
    """True if a process has this end of a TCP connection within this host open.

    The connection itself does not tell: the close comes only after all bytes that were sent before
    it, and looks like the end of one half.
    """
    name, other_name = (
        f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
        for host, port in (end, other)
    )
    for table in ("tcp", "tcp6"):  # a socket of IPv6 may be connected to an address of IPv4
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/net/{table}") as lines:
            for line in lines:
                words = line.split()
                if words[1].endswith(name) and words[2].endswith(other_name):
                    return words[9] != "0"  # the inode: none is left when all have closed it
    return False


@suggests
class AsyncPorts:
    """Servers in the sandbox, reached from this process."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def connect(self, port: int, *, timeout: float | None = None) -> Connection:
        """A connection to a server in the sandbox. ConnectionRefusedError: no server listens.

        `timeout` is in seconds, for a server that does not listen yet.
        """
        check_port(port, least=1)
        deadline = time.monotonic() + (options.check_timeout(timeout, None) or 0.0)
        while True:
            session = await self._lifecycle.connect()
            stream = Stream(session, self._lifecycle.branch)
            patience = max(deadline - time.monotonic(), PATIENCE)
            answer: Mapping[str, object] = {"error": "the server does not accept the connection"}
            with anyio.move_on_after(patience) as scope:
                async with session.streaming():
                    answer = await stream.open({"port": port})
            if scope.cancelled_caught:
                await stream.close()
            if "error" not in answer:
                return Connection(stream)
            if time.monotonic() >= deadline:
                what = str(answer["error"])[:200]
                refused = what == REFUSED
                number = errno.ECONNREFUSED if refused else errno.EIO
                raise OSError(number, f"port {port} of the sandbox: {what}")
            await anyio.sleep(RETRY)

    async def dial(self, port: int, *, timeout: float | None = None) -> socket.socket:
        """A connection for blocking code."""
        server = await self.connect(port, timeout=timeout)
        ours, theirs = socket.socketpair()

        async def serve() -> None:
            with contextlib.suppress(SandboxError):  # the caller sees its connection end
                async with server, _Local(ours) as client:
                    await relay(client, server)

        event_loop.spawn(serve)
        return theirs

    async def forward(self, port: int, *, to: int = 0, timeout: float | None = None) -> Forward:
        """Listen on this host's loopback, at port `to` (0: any free one), and pass connections on
        to a server in the sandbox, until it is closed or the sandbox ends: "127.0.0.1:PORT".

        With `timeout`, wait so many seconds for the server first.
        """
        check_port(port, least=1)
        check_port(to, least=0)
        if timeout is not None:
            await (await self.connect(port, timeout=timeout)).aclose()
        listener = socket.create_server(("127.0.0.1", to), backlog=MAX_CONNECTIONS)
        listener.setblocking(False)
        number = listener.getsockname()[1]
        address = Forward(f"127.0.0.1:{number}")
        address.port = number
        address._forwarding = _Forwarding(self, port, listener)
        self._lifecycle.on_end.append(address.close)
        return address


def check_port(port: int, *, least: int) -> None:
    if type(port) is not int or not least <= port < 65536:
        raise InvalidOption(f"a port is a number from {least} to 65535, not {port!r}")
