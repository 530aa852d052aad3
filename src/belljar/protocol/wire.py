"""The wire: frames between host and guest, and between the guest's init and its worker.

A frame is a fixed head (kind, request, two lengths), a small JSON object, and raw payload:

    +------+---------+------------+-------------+---------------+-----------+
    | kind | request | len(header)| len(payload)| header (JSON) | payload   |
    | u8   | u32     | u32        | u32         |               |           |
    +------+---------+------------+-------------+---------------+-----------+

Both ends use this one file. Every length is checked before a byte of it is awaited, so a
hostile peer can make the reader hold at most one frame of the largest allowed size.

Values (see values.py) can be larger than frames. A small value is the payload of its frame. A large
value is a descriptor that comes with the frame, and the header says `shared` and the size. Where
memory cannot be shared, the value comes before its frame in PARTs, and the header says `parts` and
the size.

Between containers and the host, init seals what it sends (see Seal).
"""

import hashlib
import hmac
import json
import os
import struct
from typing import Any, Dict, Iterator, NamedTuple, Optional, Union

HEAD = struct.Struct("!BIII")
MAX_HEADER = 256 * 1024
MAX_PAYLOAD = 16 * 1024 * 1024
CHUNK = 256 * 1024  # how much of a file or stream travels in one frame
INLINE = 256 * 1024  # a larger value is not its frame's payload
VALUE_KEY = 0  # key of the parts of a cell's value; calls of host functions begin at 1
WINDOW = 1024 * 1024  # bytes of a stream that may be under way, before the reader takes them
STREAM_COST = 1024  # bytes of credit that a frame takes, beside its payload: many small ones
MAX_CALLS = 64  # calls of host functions under way at once
STDIN = "sys.stdin"  # called like a host function; their names have no dots

# host -> guest
RUN = 1  # run a cell; payload: the code, or {"op": "put" | "get"}
INTERRUPT = 2  # raise KeyboardInterrupt in the cell (request: the cell's)
KILL = 3  # end the worker, or the command of this request, with SIGKILL
RESTART = 4  # replace the worker; files stay
OPEN = 5  # a stream to a program, old or new, or to a port; payload: which, as JSON
FILE = 6  # an operation on files; payload: data to write
PING = 7
ANSWER = 8  # the result of a host function, for the cell of this request
PART = 9  # of a large value, {"key", "size"}; in both directions; the guest answers with TAKEN
KEEP = 10  # park a copy of the interpreter and of the workspace, as a checkpoint or a branch
RETURN = 11  # go back to a checkpoint
RELEASE = 12  # release a checkpoint or a branch
SWITCH = 13  # make another branch active
PROCESS = 14  # signal a process, resize its terminal, or list all
END = 15  # of a stream's input, or of the stream; from the guest: of its output
CONTEXT = 17  # make another interpreter, or remove it
CREDIT = 16  # so many more bytes of the stream may be sent; in both directions

# guest -> host
HELLO = 32  # every layer is on, or the step that failed
STREAM = 33  # payload: bytes of {"name": "stdout" | "stderr" | "background"}; from the host: input
RESULT = 34  # one rich result
DONE = 35  # how a cell or a stream ended
REPLY = 36  # the answer to FILE, OPEN, PROCESS, RESTART and PING
DATA = 37  # a part of a file
OVERFLOW = 38  # the output limit of this request was passed; the rest is dropped
CALL = 39  # a host function is called; its arguments are a value
TAKEN = 40  # the worker has a PART: send the next
CHANGES = 41  # payload: files that a cell created, changed, removed

# init <-> worker
CELL = 64
CELL_RESULT = 65
CELL_DONE = 66
SYNC = 67  # payload: a nonce for SYNCED
SYNCED = 68
FUNCTIONS = 69  # specs of the host functions
FORK = 70  # fork; the child serves the socket that comes with this
FORKED = 71  # done; names what the child cannot have
READY = 72  # the first frame of that child; the kernel adds its pid
WAKE = 73  # run cells from now on

FROM_GUEST = frozenset(
    (HELLO, STREAM, RESULT, DONE, REPLY, DATA, OVERFLOW, CALL, PART, TAKEN, CHANGES, CREDIT, END)
)
FROM_HOST = frozenset(
    (
        *(RUN, INTERRUPT, KILL, RESTART, OPEN, FILE, PING, ANSWER, PART, KEEP, RETURN, RELEASE),
        *(SWITCH, PROCESS, END, CREDIT, CONTEXT, STREAM),
    )
)
FROM_WORKER = frozenset((CELL_RESULT, CELL_DONE, SYNCED, CALL, PART, FORKED, READY))
FROM_INIT = frozenset((CELL, SYNC, ANSWER, PART, FUNCTIONS, FORK, WAKE))

Header = Dict[str, Any]


_decode_json = json.JSONDecoder().raw_decode  # json.loads, without spaces before and after


class WireError(Exception):
    """The peer sent something that no honest peer sends."""


class Frame(NamedTuple):
    kind: int
    request: int
    header: Header
    payload: bytes
    size: int = 0  # bytes it took on the wire
    fd: int = -1  # of a shared value


def pack(
    kind: int,
    request: int,
    header: Optional[Header] = None,
    payload: bytes = b"",
    follows: int = 0,
) -> bytes:
    """A frame. With `follows`, the sender sends a payload of so many bytes after it."""
    # ensure_ascii keeps lone surrogates alive: they travel as \\udXXX escapes.
    text = json.dumps(header, ensure_ascii=True).encode("ascii") if header else b""
    size = follows or len(payload)
    if len(text) > MAX_HEADER:
        raise WireError(f"a header has {len(text)} bytes; the limit is {MAX_HEADER}")
    if size > MAX_PAYLOAD:
        raise WireError(f"a payload has {size} bytes; the limit is {MAX_PAYLOAD}")
    return HEAD.pack(kind, request, len(text), size) + text + payload


class Reader:
    """Turns received bytes into frames: call `feed`, then take `frames`.

    Large output is thousands of frames. Each is cut out of the received bytes without moving the
    rest, as long as a frame arrives in at most two pieces.
    """

    def __init__(self, kinds: "frozenset[int]", max_payload: int = MAX_PAYLOAD) -> None:
        self._kinds = kinds
        self._max_payload = max_payload
        self._first = b""  # a frame that came in two pieces
        self._data: Union[bytes, bytearray] = b""
        self._taken = 0  # bytes of it that were frames
        self._wanted = 0  # bytes of the incomplete frame; 0 while its head is incomplete

    def feed(self, data: bytes) -> None:
        left = len(self._data) - self._taken
        if not left:
            self._data, self._taken = data, 0
            return
        missing = self._wanted - left
        if self._wanted and not self._first and len(data) >= missing:
            self._first = b"".join((self._rest(), memoryview(data)[:missing]))
            self._data, self._taken = data, missing
            return
        if self._taken or isinstance(self._data, bytes):
            self._data, self._taken = bytearray(self._rest()), 0
        self._data += data

    def _rest(self) -> memoryview:
        return memoryview(self._data)[self._taken :]

    def __len__(self) -> int:
        return len(self._first) + len(self._data) - self._taken

    def frames(self) -> Iterator[Frame]:
        """The frames that are complete. Raises WireError for what no honest peer sends."""
        while True:
            data, begin = (self._first, 0) if self._first else (self._data, self._taken)
            left = len(data) - begin
            self._wanted = 0
            if left < HEAD.size:
                return
            kind, request, header_size, payload_size = HEAD.unpack_from(data, begin)
            if kind not in self._kinds:
                raise WireError(f"unexpected frame kind {kind}")
            if header_size > MAX_HEADER or payload_size > self._max_payload:
                raise WireError(f"frame too large: header {header_size}, payload {payload_size}")
            size = HEAD.size + header_size + payload_size
            if left < size:
                self._wanted = size
                return
            start = begin + HEAD.size
            middle, end = start + header_size, begin + size
            header = _parse(data[start:middle]) if header_size else {}
            payload = (
                data[middle:end] if type(data) is bytes else bytes(memoryview(data)[middle:end])
            )
            if self._first:
                self._first = b""
            else:
                self._taken = end
            yield Frame(kind, request, header, payload, size)


def _parse(text: "Union[bytes, bytearray]") -> Header:
    try:
        read = str(text, "utf-8")
        header, end = _decode_json(read)
        if end != len(read):
            raise WireError("bad frame header: more than one object")
    # RecursionError: deeply nested JSON. ValueError covers bad UTF-8, bad JSON, huge integers.
    except (ValueError, RecursionError) as error:
        raise WireError(f"bad frame header: {type(error).__name__}") from None
    if not isinstance(header, dict):
        raise WireError("a frame header is not a JSON object")
    return header


# -- seals ----------------------------------------------------------------------------------------

KEY_SIZE = 32
CODE_SIZE = 16
_LENGTH = struct.Struct(">I")
_NEW_KEY = 1 << 31
MAX_RECORD = MAX_PAYLOAD + MAX_HEADER + 64


def _authenticate(key: "bytes | bytearray", number: int, length: bytes, data: bytes) -> bytes:
    made = hashlib.blake2b(number.to_bytes(8, "big"), key=key, digest_size=CODE_SIZE)
    made.update(length)
    made.update(data)
    return made.digest()


class Seal:
    """Init's end of a sealed wire: the code in the sandbox cannot send in init's name.

    On Linux no other process can open init's descriptors. gVisor lets the processes of a sandbox
    open them through /proc, so there the wire alone proves nothing. Each record carries a number
    and a code made with a key that only init and the host have. A process that is forked from init
    has a copy of its memory. So init draws a new key after each fork, which the copy never sees,
    and sends it to the host before the copy runs any code.

    A record is length, code, data; the highest bit of the length marks a new key.
    """

    def __init__(self, key: bytearray) -> None:
        self._key = key
        self._number = 0

    def __call__(self, data: bytes) -> bytes:
        return self._record(data, len(data))

    def renew(self) -> bytes:
        """Called after a fork: the record with the new key, sealed with the old one."""
        key = bytearray(os.urandom(KEY_SIZE))
        announced = self._record(bytes(key), KEY_SIZE | _NEW_KEY)
        self._key = key
        return announced

    def erase_key(self) -> None:
        """Called in the child of a fork."""
        self._key[:] = bytes(len(self._key))

    def _record(self, data: bytes, length: int) -> bytes:
        self._number += 1
        head = _LENGTH.pack(length)
        return head + _authenticate(self._key, self._number, head, data) + data


class SealReader:
    """The host's end: takes bytes in pieces of any size, gives the data that init has sealed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Raises WireError for what init has not sealed."""
        self._buffer += data
        opened = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size + CODE_SIZE:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            size = length & ~_NEW_KEY
            if size > MAX_RECORD:
                raise WireError("a sealed record is too long")
            body = start + _LENGTH.size + CODE_SIZE
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
        if not hmac.compare_digest(code, _authenticate(self._key, self._number, head, data)):
            raise WireError("init has not sealed this record")
        if not length & _NEW_KEY:
            return data
        if len(data) != KEY_SIZE:
            raise WireError("the new key of a seal has the wrong size")
        self._key = data
        return b""
