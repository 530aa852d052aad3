"""Values on the host's side: encoded and decoded, off the event loop where that takes long."""

from __future__ import annotations

import mmap
import re
from collections.abc import Awaitable, Callable, Mapping

import anyio.to_thread

from belljar.channel import Channel
from belljar.errors import CannotTravel, ProtocolError
from belljar.guest import blobs, values, wire
from belljar.guest.values import Encoded
from belljar.record import INLINE as RECORDED

_AT_ONCE = (type(None), bool, int, float, str, bytes)
SHORT = 4096  # characters, or bytes
MAX_RECORDED_SOURCE = 1 << 40  # it went in already
MAX_TEXT = 64 * 1024 * 1024  # of what goes in; memory has its own limit there

Blob = bytes | mmap.mmap
Taken = Callable[[], Awaitable[None]]


async def encode(value: object, limit: int) -> Encoded:
    """Raises CannotTravel, which names the part of the value that cannot."""
    if isinstance(value, _AT_ONCE) and (not isinstance(value, (str, bytes)) or len(value) < SHORT):
        return _encode(value, limit)
    return await anyio.to_thread.run_sync(_encode, value, limit)


async def encode_named(given: Mapping[str, object], limit: int) -> Encoded:
    """Several values by their names; what cannot travel is named by these."""
    try:
        return await encode(dict(given), limit)
    except CannotTravel as error:
        raise CannotTravel(re.sub(r"^value\['(\w+)'\]", r"\1", str(error))) from None


def _encode(value: object, limit: int) -> Encoded:
    try:
        return values.encode(value, limit, MAX_TEXT)
    except values.CannotTravel as error:
        raise CannotTravel(str(error)) from None


async def for_record(given: Mapping[str, object]) -> dict[str, object]:
    """Values as a record keeps them: small ones whole, of others only that they were there."""
    kept: dict[str, object] = {}
    for name, value in given.items():
        encoded = await encode(value, MAX_RECORDED_SOURCE)
        small = encoded.size <= RECORDED
        kept[name] = encoded.join() if small else {"left_out": encoded.size, "sha256": ""}
    return kept


async def decode(blob: Blob, limit: int, text_limit: int = values.MAX_TEXT) -> object:
    """Out of bytes that a hostile guest may have made."""
    if values.needs_thread(blob):
        return await anyio.to_thread.run_sync(_decode, blob, limit, text_limit)
    return _decode(blob, limit, text_limit)


def _decode(blob: Blob, limit: int, text_limit: int) -> object:
    try:
        return values.decode(blob, limit, text_limit)
    except values.CannotTravel as error:
        raise CannotTravel(str(error)) from None


async def send(
    channel: Channel,
    kind: int,
    request: int,
    header: dict[str, object],
    value: Encoded,
    *,
    key: int,
    taken: Taken,
) -> None:
    """A frame with a value: in it, beside it, or before it, by its size. `taken` waits until the
    guest has taken a part."""
    if value.size <= wire.INLINE:
        await channel.send(kind, request, header, value.join())
    elif channel.may_share(value.size):
        fd = await anyio.to_thread.run_sync(blobs.seal, value.pieces())
        await channel.send_shared(kind, request, {**header, "shared": value.size}, fd)
    else:
        for part in blobs.cut(value.pieces()):
            await channel.send(wire.PART, request, {"key": key, "size": value.size}, part)
            await taken()
        await channel.send(kind, request, {**header, "parts": value.size, "key": key})


class Receiver:
    """Takes the values out of frames, of which none may be larger than `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts = blobs.Parts(limit)

    def add(self, frame: wire.Frame) -> None:
        try:
            self._parts.add(frame.header.get("key"), frame.header.get("size"), frame.payload)
        except wire.WireError as error:
            raise ProtocolError(f"the guest broke the protocol: {error}") from None

    def take(self, frame: wire.Frame, key: int) -> Blob:
        """The blob of a frame. Its descriptor, if it has one, is closed here."""
        try:
            if frame.fd >= 0:
                size = frame.header.get("shared")
                if not isinstance(size, int) or not 0 < size <= self._limit:
                    size = -1  # unseal() finds that it is not so, and closes the descriptor
                return blobs.unseal(frame.fd, size)
            if "parts" in frame.header:
                return self._parts.take(key, frame.header["parts"])
        except wire.WireError as error:
            raise ProtocolError(f"the guest broke the protocol: {error}") from None
        return frame.payload
