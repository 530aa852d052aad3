"""Values on the host's side: encoded and decoded, in a thread if that takes long."""

from __future__ import annotations

import functools
import mmap
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping

import anyio.to_thread

from belljar.backends.event_loop import caller_thread
from belljar.errors import CannotTravel, ProtocolError
from belljar.functions import signature
from belljar.limits import format_size
from belljar.protocol import buffers, values, wire
from belljar.protocol.values import Encoded
from belljar.record import INLINE as RECORDED
from belljar.sandbox.channel import Channel, Held

SHORT = 4096  # characters, or bytes
FEW = 32  # items
MAX_RECORDED_SOURCE = 1 << 40  # no limit: the value was put before
MAX_TEXT = 64 * 1024 * 1024  # of a value that goes in; the guest limits memory
MAX_DESCRIBED = 4000  # characters of the repr() of an object
_NAMED = re.compile(r"\bvalue\['(\w+)'\]")
_SENDERS_CLASS = "which only its sender knows"
_NO_LIBRARY = re.compile(r"; install (\w+)[\w.]* here to receive it$")

Blob = bytes | mmap.mmap


async def encode(value: object, limit: int, *, lenient: bool = True) -> Encoded:
    """Raises CannotTravel, which names the part of the value that cannot. If `lenient`, objects
    become plain data, or a text."""
    if caller_thread() is not None or _is_small(value):
        return _encode(value, limit, lenient)
    return await anyio.to_thread.run_sync(_encode, value, limit, lenient)


def _is_small(value: object, depth: int = 2) -> bool:
    """True if encoding here is cheaper than a thread hop."""
    if value is None or isinstance(value, (bool, float)):
        return True
    if isinstance(value, int):
        return value.bit_length() < SHORT
    if isinstance(value, (str, bytes)):
        return len(value) < SHORT
    items = value.values() if type(value) is dict else value
    if not depth or type(value) not in (list, tuple, dict) or len(items) > FEW:  # type: ignore[arg-type]
        return False
    return all(_is_small(item, depth - 1) for item in items)  # type: ignore[attr-defined]


def _describe(value: object, nested: bool) -> str:
    """For the guest, which must not learn of the host what the text of an object may tell."""
    return signature.remove_host_details(repr(value)[:MAX_DESCRIBED])


async def encode_named(given: Mapping[str, object], limit: int, *, lenient: bool) -> Encoded:
    """Several values by their names, which error messages use."""
    try:
        return await encode(dict(given), limit, lenient=lenient)
    except CannotTravel as error:
        words = _NAMED.sub(r"\1", error.message)
        raise CannotTravel(words, hint=error.hint) from None


def _encode(value: object, limit: int, lenient: bool) -> Encoded:
    try:
        return values.encode(value, limit, MAX_TEXT, _describe if lenient else None)
    except values.CannotTravel as error:
        words = str(error)
        too_large = f"{limit} bytes"
        if too_large in words:
            words = words.replace(too_large, format_size(limit))
            raise CannotTravel(
                words, hint="give the sandbox more with Limits(memory=...)"
            ) from None
        raise CannotTravel(words) from None


async def encode_for_record(given: Mapping[str, object]) -> dict[str, object]:
    """Values as a record keeps them: small ones whole, of others only the size."""
    kept: dict[str, object] = {}
    for name, value in given.items():
        encoded = await encode(value, MAX_RECORDED_SOURCE)
        small = encoded.size <= RECORDED
        kept[name] = encoded.join() if small else {"left_out": encoded.size, "sha256": ""}
    return kept


async def decode(
    blob: Blob,
    limit: int,
    text_limit: int = values.MAX_TEXT,
    *,
    reception: values.Reception = values.STRICT,
) -> object:
    """Decode bytes that a hostile guest may have made."""
    if caller_thread() is None and values.needs_thread(blob):
        # Not a shared thread: a hostile value may take long.
        own = anyio.CapacityLimiter(1)
        work = functools.partial(_decode, blob, limit, text_limit, reception)
        value, refusal = await anyio.to_thread.run_sync(work, limiter=own)
    else:
        value, refusal = _decode(blob, limit, text_limit, reception)
    if refusal is not None:
        hint = "name its class, get(..., types=[...]), or take plain data, get(..., lenient=True)"
        raise CannotTravel(refusal, hint=hint if _SENDERS_CLASS in refusal else None)
    return value


def receive(types: Iterable[object], *, lenient: bool) -> values.Reception:
    """How to take a value for which the caller gave some classes. No other class is looked for."""
    classes = signature.find_classes(*types)
    return values.Reception(lambda named: classes.get(signature.class_name(named)), lenient)


def refused_inside(message: str, name: str | None) -> CannotTravel:
    """For what the guest's side of a `get` of this name, or of a `put`, said."""
    if name is not None:
        words, hint = message.replace("value", name, 1), None
        if " is a " in message:
            hint = "get(..., lenient=True) takes such a part as plain data or text"
    elif library := _NO_LIBRARY.search(message):
        found = _NAMED.sub(r"\1", message[: library.start()])
        words = f"{found}, and the sandbox has no {library[1]}"
        hint = f"make it a list or a dict first, or give the sandbox packages=[{library[1]!r}]"
    else:
        words, hint = _NAMED.sub(r"\1", message), "with lenient=True it is plain data there"
    return CannotTravel(words[:2000], hint=hint)


def _decode(
    blob: Blob, limit: int, text_limit: int, reception: values.Reception
) -> tuple[object, str | None]:
    """The value, or why it cannot be decoded. The codec's exception refers to all that was decoded,
    so it must not live on in the caller's exception, nor in that of a thread's future."""
    try:
        return values.decode(blob, limit, text_limit, reception), None
    except values.CannotTravel as error:
        return None, str(error)


async def load(
    channel: Channel,
    request: int,
    header: Mapping[str, object],
    value: Encoded,
    *,
    key: int,
    taken: Callable[[], Awaitable[None]],
) -> tuple[Mapping[str, object], bytes, int]:
    """Header, payload and descriptor of the frame that carries a value, by the value's size. Parts
    are sent before it; `taken` waits until the guest has taken one."""
    if value.size <= wire.INLINE:
        return header, value.join(), -1
    if (fd := await _share(channel, value)) >= 0:
        return {**header, "shared": value.size}, b"", fd
    for part in buffers.cut_parts(value.pieces()):
        await channel.send(wire.PART, request, {"key": key, "size": value.size}, part)
        await taken()
    return {**header, "parts": value.size, "key": key}, b"", -1


async def _share(channel: Channel, value: Encoded) -> int:
    """A descriptor of shared memory with the value; -1 if the value must go in parts."""
    if not channel.may_share(value.size):
        return -1
    sealing = _Sealing(value)
    try:
        await anyio.to_thread.run_sync(sealing.run)
    except OSError:  # no descriptors, no memory
        return -1
    except BaseException:
        sealing.cancel()
        raise
    return sealing.fd


class _Sealing:
    """Copies a value in a thread. Under asyncio a cancelled task does not wait for the thread."""

    def __init__(self, value: Encoded) -> None:
        self._value = value
        self._lock = threading.Lock()
        self._cancelled = False
        self.fd = -1

    def run(self) -> None:
        fd = buffers.share_memory(self._value.pieces())
        with self._lock:
            if self._cancelled:
                os.close(fd)
            else:
                self.fd = fd

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self.fd >= 0:
                os.close(self.fd)


class Receiver:
    """Puts together values that came in parts or as shared memory, of `limit` bytes each."""

    def __init__(self, limit: int, held: Held) -> None:
        self._limit = limit
        self._held = held
        self._parts: buffers.Parts | None = None  # few values come in parts

    def add(self, frame: wire.Frame) -> None:
        if self._parts is None:
            self._parts = buffers.Parts(self._limit)
        try:
            self._parts.add(frame.header.get("key"), frame.header.get("size"), frame.payload)
        except wire.WireError as error:
            raise ProtocolError(f"the guest broke the protocol: {error}") from None

    def take(self, frame: wire.Frame, key: int) -> Blob:
        """The blob of a frame. Its descriptor, if it has one, is closed here. Raises MemoryError
        if the host has no room for the value, also if the guest lied about the size."""
        try:
            if frame.fd >= 0:
                size = frame.header.get("shared")
                if not isinstance(size, int) or not 0 < size <= self._limit:
                    size = -1  # map_shared() refuses that, and closes the descriptor
                memory = buffers.map_shared(frame.fd, size)
                self._held.add(memory)
                return memory
            if "parts" in frame.header:
                if self._parts is None:
                    raise buffers.IncompleteValue("a value without its parts")
                return self._parts.take(key, frame.header["parts"])
        except buffers.IncompleteValue as error:
            if frame.kind == wire.CALL:
                return b""  # a thread began to send it in the cell before: not a lie
            raise ProtocolError(f"the guest broke the protocol: {error}") from None
        except MemoryError:
            if frame.kind == wire.CALL:
                return b""  # this call fails, not the run
            raise
        except wire.WireError as error:
            raise ProtocolError(f"the guest broke the protocol: {error}") from None
        return frame.payload
