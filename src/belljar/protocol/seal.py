"""Seals on what init sends, so that the code in the sandbox cannot speak in its name.

On Linux nobody else can open init's descriptors. gVisor lets them be opened through /proc by
whoever is in the sandbox, so there the wire alone proves nothing. Each record carries a number and
a code made with a key that only init and the host have. What is forked from init has a copy of
its memory: so after each fork init draws a new key, which the copy never sees, and the host has
heard of it before the copy runs any code (init writes to the pipe before it does anything else).

Both ends are here. A record: length, code, data; the length's highest bit marks a new key.
"""

import hashlib
import hmac
import os
import struct

from . import wire

KEY = 32
CODE = 16
_LENGTH = struct.Struct(">I")
_NEW_KEY = 1 << 31
MAX_RECORD = wire.MAX_PAYLOAD + wire.MAX_HEADER + 64


def _code(key: "bytes | bytearray", number: int, length: bytes, data: bytes) -> bytes:
    made = hashlib.blake2b(number.to_bytes(8, "big"), key=key, digest_size=CODE)
    made.update(length)
    made.update(data)
    return made.digest()


class Seal:
    """Init's end."""

    def __init__(self, key: bytearray) -> None:
        self._key = key
        self._number = 0

    def __call__(self, data: bytes) -> bytes:
        return self._record(data, len(data))

    def renew(self) -> bytes:
        """Called after a fork: what tells the host of the new key, sealed with the old one."""
        key = bytearray(os.urandom(KEY))
        announced = self._record(bytes(key), KEY | _NEW_KEY)
        self._key = key
        return announced

    def forget(self) -> None:
        """Called in the child of a fork."""
        self._key[:] = bytes(len(self._key))

    def _record(self, data: bytes, length: int) -> bytes:
        self._number += 1
        head = _LENGTH.pack(length)
        return head + _code(self._key, self._number, head, data) + data


class Opener:
    """The host's end: bytes in, however they are cut, and out what init has sealed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Raises WireError for what init has not sealed."""
        self._buffer += data
        opened = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size + CODE:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            size = length & ~_NEW_KEY
            if size > MAX_RECORD:
                raise wire.WireError("a record that is too long")
            body = start + _LENGTH.size + CODE
            if len(self._buffer) < body + size:
                break
            opened.append(self._open(start, body, body + size, length))
            start = body + size
        del self._buffer[:start]
        return b"".join(opened)

    def _open(self, start: int, body: int, end: int, length: int) -> bytes:
        self._number += 1
        data = bytes(self._buffer[body:end])
        head = bytes(self._buffer[start : start + _LENGTH.size])
        code = bytes(self._buffer[start + _LENGTH.size : body])
        if not hmac.compare_digest(code, _code(self._key, self._number, head, data)):
            raise wire.WireError("a record that init has not sealed")
        if not length & _NEW_KEY:
            return data
        if len(data) != KEY:
            raise wire.WireError("a key that is none")
        self._key = data
        return b""
