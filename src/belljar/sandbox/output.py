"""Output of programs: bytes that are kept whole, or head and tail of them."""

from __future__ import annotations

from collections.abc import Iterable

from belljar.sandbox.run import OnText, Stream

SLACK = 0.25  # of the limit: more than that is cut at once, so that not every byte moves others


class Output(Stream):
    """One output stream of a program. Callbacks get the text as it comes."""

    def __init__(self, name: str, callback: OnText | None = None) -> None:
        super().__init__(callback, name, [])
        self._data = bytearray()
        self._head = 0  # bytes before the gap
        self.left_out = 0  # bytes

    async def feed(self, data: bytes, *, final: bool = False) -> None:
        self.keep(data)
        if self.callback is not None:
            await super().feed(data, final=final)
            self.chunks.clear()

    def keep(self, data: bytes) -> None:
        self._data += data

    def __len__(self) -> int:
        return len(self._data)

    def cut(self, head: int, size: int) -> int:
        """Leave out so many bytes after the first `head`; how many those were."""
        size = min(size, max(len(self._data) - head, 0))
        if size:
            del self._data[head : head + size]
            self._head, self.left_out = head, self.left_out + size
        return size

    def data(self) -> bytes:
        """With a line that says how much was left out."""
        if not self.left_out:
            return bytes(self._data)
        gap = f"\n[... {self.left_out:,} bytes left out ...]\n".encode()
        return bytes(self._data[: self._head]) + gap + bytes(self._data[self._head :])

    def text(self) -> str:
        return self.data().decode("utf-8", "replace")


class Kept:
    """Keeps streams together within a limit: of the longest, the middle is left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def fit(self, streams: Iterable[Output], *, final: bool = False) -> bool:
        """True if something was left out, now or before."""
        streams = [*streams]
        excess = sum(map(len, streams)) - self._limit
        if excess > (0 if final else self._limit * SLACK):
            for stream in sorted(streams, key=len, reverse=True):
                excess -= stream.cut(self._limit // 4, excess)
        return any(stream.left_out for stream in streams)
