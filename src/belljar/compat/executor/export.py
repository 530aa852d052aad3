"""Metrics on a port of this machine, for Prometheus: one server a port, as long as the runtime.

A scraper wants the same address for the life of the process, whichever executors come and go. The
server is a task of the runtime, and ends with it: it costs no thread.
"""

from __future__ import annotations

import logging
import os
import threading

import anyio
from anyio.abc import SocketAttribute, SocketStream

from belljar import runtime
from belljar.errors import SandboxError
from belljar.observe.metrics import Metrics
from belljar.observe.sampling import Monitor
from belljar.sandbox.blocking import wait

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
MOST_REQUEST = 8192  # bytes
REQUEST_TIMEOUT = 5.0
SAMPLE_TIMEOUT = 8.0  # who scrapes waits for 10 s, as a rule


class Server:
    """Counts what happens in this process, and answers whoever asks on the port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.metrics = Metrics(per_sandbox=True)
        self.monitor = Monitor()
        self.metrics.watch(self.monitor)
        self._bound: anyio.abc.Listener[SocketStream] | None = None

    async def bind(self) -> None:
        """Raises OSError if the port is taken."""
        self._bound = await anyio.create_tcp_listener(local_host=ADDRESS, local_port=self.port)
        self.port = self._bound.extra(SocketAttribute.local_port)
        self.metrics.subscribe()

    async def run(self) -> None:
        """Until the runtime ends."""
        assert self._bound is not None
        try:
            async with self._bound:
                await self._bound.serve(self._answer)
        finally:
            self.metrics.close()

    async def _answer(self, stream: SocketStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(REQUEST_TIMEOUT):
                    line = await _request(stream)
                status, body = await self._page(line)
                with anyio.fail_after(REQUEST_TIMEOUT):
                    await stream.send(_response(status, body))
            except (TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
                log.debug("a scrape was not answered: %r", error)

    async def _page(self, line: str) -> tuple[str, bytes]:
        method, _, rest = line.partition(" ")
        if method != "GET" or rest.partition(" ")[0].partition("?")[0] not in ("/", "/metrics"):
            return "404 Not Found", b"metrics are at /metrics\n"
        with anyio.move_on_after(SAMPLE_TIMEOUT):
            await self.monitor.sample()
        return "200 OK", self.metrics.text().encode()


async def _request(stream: SocketStream) -> str:
    """The first line; what follows it is read, and nothing is made of it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
        if len(data) > MOST_REQUEST:
            raise anyio.EndOfStream
    return data.partition(b"\r\n")[0].decode("latin-1")


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


_lock = threading.Lock()
_servers: dict[int, tuple[runtime.Runtime, Server]] = {}
_complained: set[object] = set()


def serve(port: int) -> Server | None:
    """The server of this port, started if there is none. None, and a warning once, if there
    cannot be one: code is run all the same."""
    with _lock:
        current = runtime.current()
        known = _servers.get(port)
        if known is not None and known[0] is current:
            return known[1]
        try:
            server = Server(port)
            wait(server.bind)
        except (SandboxError, OSError) as error:
            if port not in _complained:
                _complained.add(port)
                log.warning("metrics are not served on %s:%d: %s", ADDRESS, port, error)
            return None
        current.submit(server.run)
        _servers[port] = current, server
        return server


def _after_fork() -> None:
    """The servers are the parent's."""
    global _lock, _servers
    _lock, _servers = threading.Lock(), {}


os.register_at_fork(after_in_child=_after_fork)
