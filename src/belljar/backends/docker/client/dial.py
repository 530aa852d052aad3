"""From an `Endpoint` to a `Connection`: over a unix socket, TCP, TLS or ssh."""

from __future__ import annotations

import os
import socket

import anyio

from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.client.endpoint import Endpoint, Tls

__all__ = ["Connection", "dial"]

BACKLOG_PAUSE = 0.02
ONE_ADDRESS = 5.0  # seconds for one address of a host that has several

# A machine that has gone away says nothing: it is asked after 20 s of silence, and given up after
# three questions, or when it has not acknowledged what was sent for as long.
KEEPALIVE = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPALIVE": 20,  # the same, by its name on macOS
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 50_000,  # milliseconds
}


async def dial(endpoint: Endpoint) -> Connection:
    """Connect. Raises OSError or EngineUnavailable; bounded by the caller's time limit only."""
    match endpoint.kind:
        case "unix":
            return await _dial_unix(endpoint.address)
        case "tcp":
            return await _dial_tcp(endpoint.address, endpoint.tls)
        case "ssh":
            from belljar.backends.docker.client.ssh import dial_ssh

            return await dial_ssh(endpoint.address)


async def _dial_unix(path: str) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:
                # Its queue is full; unlike TCP's, such a connect cannot be waited for.
                await anyio.sleep(BACKLOG_PAUSE)
            else:
                return Connection(sock)
    except BaseException:
        sock.close()
        raise


async def _dial_tcp(address: str, tls: Tls | None) -> Connection:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if tls is None:
        return Connection(await _connect(host, int(port)))
    from belljar.backends.docker.client.tls import TlsConnection, context

    settings = context(tls)
    connection = TlsConnection(await _connect(host, int(port)), settings, host)
    try:
        await connection.handshake()
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(host: str, port: int) -> socket.socket:
    """A connected socket to the first address of `host` that answers."""
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # no name by the rules of DNS, such as one with a long part
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    failure = OSError(f"{host} has no address")
    for index, (family, kind, protocol, _, address) in enumerate(found):
        last = index == len(found) - 1
        try:
            with anyio.fail_after(None if last else ONE_ADDRESS):
                return await _connect_to(socket.socket(family, kind, protocol), address)
        except OSError as error:
            failure = error
    raise failure


async def _connect_to(sock: socket.socket, address: tuple[str | int, ...]) -> socket.socket:
    try:
        sock.setblocking(False)
        _set_options(sock)
        try:
            sock.connect(address)
        except BlockingIOError:
            await anyio.wait_writable(sock)
            if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code)) from None
    except BaseException:
        sock.close()
        raise
    return sock


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
