"""TLS over a `Connection`'s socket.

`ssl.SSLSocket` may not be used by a reader and a writer in two threads, and mixes up what it
waits for. Here OpenSSL sees only memory, under a lock, and the socket stays an ordinary one.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable

import anyio

from belljar.backends.docker.client.connect import SEND_FLAGS, Connection
from belljar.backends.docker.client.endpoint import Tls
from belljar.backends.docker.client.engine_errors import EngineUnavailable

CHUNK = 64 * 1024


class TlsConnection(Connection):
    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        super().__init__(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._lock = threading.Lock()
        self._unsent = bytearray()  # encrypted, not taken by the kernel yet
        self._encrypted = 0  # bytes of the caller's that are in it
        self._dry = False  # whether recv() has given all it can
        self._waiters = 0

    async def handshake(self) -> None:
        """Before anything else. Raises ssl.SSLError, OSError."""
        while True:
            try:
                self._step(self._tls.do_handshake)
                return
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self._socket)
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    def _step(self, action: Callable[[], None]) -> None:
        with self._lock:
            while True:
                try:
                    action()
                    return self._flush()
                except ssl.SSLWantReadError:
                    self._flush()
                    try:
                        self._fill()
                    except BlockingIOError:
                        raise ssl.SSLWantReadError from None

    def _receive(self, size: int) -> bytes:
        with self._lock:
            while True:
                try:
                    data = self._tls.read(size)
                except ssl.SSLWantReadError:
                    self._answer()
                    self._dry = True
                    self._fill()
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
                else:
                    self._dry = False
                    return data

    def _fill(self) -> None:
        """Take what the socket has; raises BlockingIOError if that is nothing."""
        if data := self._socket.recv(CHUNK):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _answer(self) -> None:
        """What the protocol itself has to say (a new key), as far as it goes now."""
        try:
            self._flush()
        except OSError:
            # It goes with what is sent next. If nothing goes any more, what there is to read says
            # why, such as that our certificate is refused.
            return

    def send(self, data: bytes | bytearray | memoryview) -> int:
        # Bytes count as sent when the kernel has them in encrypted form: if it does not take all,
        # nothing else would send the rest later. So the caller comes again with the same bytes.
        with self._lock:
            if not self._encrypted:
                self._encrypted = self._tls.write(memoryview(data)[:CHUNK])
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
        # Who waits for the socket must not be robbed of what would wake him.
        if self._waiters or self._ahead or self._ended:
            return super().ended()
        try:
            data = self.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.give_back(data)
        return not data


def context(tls: Tls) -> ssl.SSLContext:
    """Raises EngineUnavailable if the files cannot be used."""
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
            hint="certificates in PEM form, and a key that fits them and has no password",
        ) from error
    return made


def _no_password() -> str:
    raise ValueError("the key has a password")
