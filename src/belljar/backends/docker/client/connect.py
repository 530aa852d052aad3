"""Connections to an engine: over a unix socket, TCP, TLS or ssh. No event loop owns one.

A connection is a plain non-blocking socket that any thread and any loop may use next. The stream
classes of asyncio, trio and anyio do not allow that; but a guest outlives the loop that started
it, and any thread may kill it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread

from belljar.backends.docker.client.endpoint import Endpoint, Tls, ssh_parts
from belljar.backends.docker.client.engine_errors import EngineUnavailable

if TYPE_CHECKING:
    import ssl

# A program may have restored the default action of SIGPIPE, which would end it.
SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
TLS_CHUNK = 64 * 1024
MAX_COMPLAINT = 4000
ALIVE = "ServerAliveInterval=20"  # seconds; three unanswered questions end the connection
BACKLOG_PAUSE = 0.02
ONE_ADDRESS = 5.0  # seconds for one address of a host that has several
# A machine that has gone away is silent: it is asked after 20 s of silence, and the connection ends
# after three questions, or when it has not acknowledged what was sent for as long.
KEEPALIVE = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPALIVE": 20,  # the same on macOS
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 50_000,  # milliseconds
}


class Connection:
    """A byte stream to an engine: one reader and one writer at a time, in any thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._ahead = b""
        self._ended = False

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end. Raises BlockingIOError when there is nothing yet."""
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        try:
            return self._receive(size)
        except OSError:  # also if there is nothing yet: shutdown() may not have reached the socket
            if self._ended:
                return b""
            raise

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some of `data`; return how much. After a BlockingIOError, repeat the same bytes."""
        return self._socket.send(data, SEND_FLAGS)

    def _receive(self, size: int) -> bytes:
        return self._socket.recv(size)

    def unread(self, data: bytes) -> None:
        """Return bytes that were read too far: the next recv() gives them first."""
        self._ahead = data + self._ahead

    def fileno(self) -> int:
        """For polling. It does not see bytes that were given back: try recv() first."""
        return self._socket.fileno()

    def _has_more(self) -> bool:
        """True if recv() has something that polling would not show."""
        return bool(self._ahead) or self._ended

    async def wait_readable(self) -> None:
        if self._has_more():
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.wait_readable(self._socket)

    async def wait_writable(self) -> None:
        if self._ended:
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.wait_writable(self._socket)

    def ended(self) -> bool:
        """True if it is known to have ended. Does not wait or take any bytes."""
        if self._ended or self._ahead:
            return self._ended
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def complaint(self) -> str:
        """What a program in between said about its end, if there is one."""
        return ""

    def shutdown(self) -> None:
        """End it both ways, from any thread: a waiting reader wakes and reads b""."""
        self._ended = True
        with contextlib.suppress(OSError):  # the other side or close() may have ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """shutdown(), and close the descriptor. No task may wait in it."""
        # Without the shutdown, a fork of this process would keep the connection open.
        self.shutdown()
        self._socket.close()

    def abandon(self) -> None:
        """Close it in a fork of the process; the parent goes on using it."""
        self._ended = True
        self._socket.close()


class TlsConnection(Connection):
    """`ssl.SSLSocket` may not be used by a reader and a writer in two threads, and mixes up what
    it waits for. Here OpenSSL sees only memory, under a lock, and the socket is an ordinary one."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        import ssl  # only here: most engines need none

        super().__init__(sock)
        self._ssl = ssl
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._lock = threading.Lock()
        self._unsent = bytearray()  # encrypted, not taken by the kernel yet
        self._encrypted = 0  # how many of the caller's bytes are in it
        self._dry = False  # recv() has given all it can
        self._waiters = 0

    async def handshake(self) -> None:
        """Called first, by its only user. Raises ssl.SSLError, OSError."""
        finished = False
        while not finished:
            with contextlib.suppress(self._ssl.SSLWantReadError):
                self._tls.do_handshake()
                finished = True
            await self._repeat(self._flush, anyio.wait_writable)
            if not finished:
                await self._repeat(self._fill, anyio.wait_readable)

    async def _repeat(
        self, action: Callable[[], None], wait: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        while True:
            try:
                return action()
            except BlockingIOError:
                await wait(self._socket)

    def _receive(self, size: int) -> bytes:
        with self._lock:
            while True:
                try:
                    data = self._tls.read(size)
                except self._ssl.SSLWantReadError:
                    self._send_replies()
                    self._dry = True
                    self._fill()
                except (self._ssl.SSLZeroReturnError, self._ssl.SSLEOFError):
                    return b""
                else:
                    self._dry = False
                    return data

    def _fill(self) -> None:
        """Take what the socket has; raises BlockingIOError if it has nothing."""
        if data := self._socket.recv(TLS_CHUNK):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _send_replies(self) -> None:
        """Send what the protocol itself has to send (a new key), as far as that is possible now."""
        # The next send() sends the rest. If that fails, what there is to read says why, such as
        # that our certificate is refused.
        with contextlib.suppress(OSError):
            self._flush()

    def send(self, data: bytes | bytearray | memoryview) -> int:
        # Bytes count as sent when the kernel has them in encrypted form: otherwise nothing would
        # send the rest later. So the caller repeats the same bytes.
        with self._lock:
            if not self._encrypted:
                self._encrypted = self._tls.write(memoryview(data)[:TLS_CHUNK])
            self._flush()
            sent, self._encrypted = self._encrypted, 0
            return sent

    def _flush(self) -> None:
        self._unsent += self._outgoing.read()
        while self._unsent:
            sent = self._socket.send(self._unsent, SEND_FLAGS)
            del self._unsent[:sent]

    def _has_more(self) -> bool:
        return super()._has_more() or not self._dry

    async def wait_readable(self) -> None:
        self._waiters += 1
        try:
            await super().wait_readable()
        finally:
            self._waiters -= 1

    def ended(self) -> bool:
        # A task that waits for the socket must not lose the bytes that would wake it.
        if self._waiters or self._ahead or self._ended:
            return super().ended()
        try:
            data = self.recv(TLS_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.unread(data)
        return not data


def make_tls_context(tls: Tls) -> ssl.SSLContext:
    """Raises EngineUnavailable if the files cannot be used."""
    import ssl

    try:
        made = ssl.create_default_context(cafile=tls.ca)
        if not tls.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        if tls.cert and tls.key:
            # Without a password here, OpenSSL would ask for one at the terminal.
            made.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(file for file in (tls.ca, tls.cert, tls.key) if file)
        raise EngineUnavailable(
            f"the TLS files {files} cannot be used: {error}",
            hint="certificates in PEM form, and their key without a password",
        ) from error
    return made


def _no_password() -> str:
    raise ValueError("the key has a password")


def ssh_command(address: str) -> list[str]:
    """The ssh command for `address`. The other machine's shell gets one quoted command."""
    user, host, port, path = ssh_parts(address)
    options = ["-T", "-o", "BatchMode=yes", "-o", ALIVE, *(["-l", user] if user else [])]
    options += ["-p", str(port)] if port else []
    there = ["docker", *(["--host", f"unix://{path}"] if path else []), "system", "dial-stdio"]
    return ["ssh", *options, "--", host, shlex.join(there)]


class SshConnection(Connection):
    """Through an ssh process with the user's configuration, keys and agent. It never asks for a
    password: there may be no terminal."""

    def __init__(self, address: str) -> None:
        """Blocks. Raises OSError if ssh cannot be run; reading shows if it reached the engine."""
        ours, theirs = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - not a pipe: a full one would block
        try:
            with theirs:
                self._process = subprocess.Popen(
                    ssh_command(address),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._words,
                    # Ctrl-C must not end ssh: it is needed to remove what runs there.
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            self._words.close()
            raise
        super().__init__(ours)

    def complaint(self) -> str:
        said = os.pread(self._words.fileno(), MAX_COMPLAINT, 0)
        return said.replace(b"\r\n", b"\n").decode("utf-8", "replace")

    def close(self) -> None:
        super().close()
        self._words.close()
        self._process.kill()
        if self._process.poll() is None:  # its exit may take a moment
            threading.Thread(target=self._process.wait, name="belljar-ssh", daemon=True).start()

    def abandon(self) -> None:
        super().abandon()
        self._words.close()


async def dial(endpoint: Endpoint) -> Connection:
    """Connect. Raises OSError or EngineUnavailable. Has no time limit of its own."""
    match endpoint.kind:
        case "unix":
            return await _dial_unix(endpoint.address)
        case "tcp":
            return await _dial_tcp(endpoint.address, endpoint.tls)
        case "ssh":
            return await anyio.to_thread.run_sync(SshConnection, endpoint.address)


async def _dial_unix(path: str) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:
                # Its queue is full. Unlike for TCP, nothing signals when it has room.
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

    settings = make_tls_context(tls)
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
    except UnicodeError as error:  # not a valid name, such as one with a long part
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
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
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
