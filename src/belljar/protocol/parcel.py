"""A parcel: a JSON text and the raw buffers that it refers to, in one sequence of bytes.

    head (magic, sizes) | JSON text | buffers, each on a 64-byte boundary

Buffers are not copied when a parcel is made or opened. The reader does not trust a parcel: all
sizes must add up, and each buffer can be taken once only, so that a small parcel cannot become a
large value.
"""

import importlib
import json
import struct
import sys
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

MAX_DEPTH = 100
MAX_BYTES = 1 << 30
MAX_TEXT = 8 * 1024 * 1024
# A limit for rows that take no bytes (a range, nulls, items of width zero).
MAX_FREE_ROWS = 1 << 24
# An array or a column takes far more memory and time than its text.
MAX_ARRAYS = 20_000
# Checking a freq of months or business days takes a step of Python for each row.
MAX_CALENDAR_ROWS = 20_000
# Objects that travel as their repr(), and notes about parts that arrive as something else.
MAX_REPRS = 1000
MAX_REPR = 1000  # characters
MAX_NOTES = 10
MAX_NOTE = 250  # characters
# Seconds of the CPU for hash tables of keys that a hostile guest chose: for all, for each byte of
# the parcel, and for each key. Keys that do not collide take a small part of it.
_HASHING = 0.2  # gVisor's clock has steps of ten milliseconds
_HASHING_BYTE = 50e-9
_HASHING_KEY = 5e-6

_MAGIC = b"BJ1" + (b"l" if sys.byteorder == "little" else b"b")
_HEAD = struct.Struct("=4sII")  # magic, size of the text, number of buffers
_ALIGN = 64
_SMALL = 4096  # smaller pieces are joined, because each takes a system call
JSON = json.JSONEncoder(separators=(",", ":"))

Buffer = Union[bytes, bytearray, memoryview, Any]


class CannotTravel(Exception):
    """The message names the path inside the value, what is there, and the remedy."""


class Encoded:
    """A finished parcel. It keeps the arrays alive whose memory it gives out."""

    def __init__(self, text: bytes, buffers: List[memoryview]) -> None:
        sizes = [buffer.nbytes for buffer in buffers]
        head = _HEAD.pack(_MAGIC, len(text), len(buffers)) + struct.pack(f"={len(sizes)}Q", *sizes)
        self._parts: List[Buffer] = [head, text]
        end = len(head) + len(text)
        for buffer in buffers:
            gap = -end % _ALIGN
            self._parts += [bytes(gap), buffer]
            end += gap + buffer.nbytes
        self.size = end

    def pieces(self) -> List[Buffer]:
        """The bytes in order; large buffers are the memory of the arrays."""
        found: List[Buffer] = []
        small: List[Buffer] = []
        for part in self._parts:
            if memoryview(part).nbytes < _SMALL:
                small.append(part)
                continue
            found += [b"".join(small), part]
            small.clear()
        found.append(b"".join(small))
        return [piece for piece in found if memoryview(piece).nbytes]

    def join(self) -> bytes:
        return b"".join(self._parts)


class Note:
    """A part of a path that is not an index: ` column 'x'`. The text is made when needed."""

    def __init__(self, words: str, labels: Any = None, number: int = 0) -> None:
        self._words, self._labels, self._number = words, labels, number

    def __str__(self) -> str:
        if self._labels is None:
            return self._words
        try:
            return f"{self._words} {self._labels[self._number]!r}"
        except Exception:  # a label without a repr(), such as a time out of range
            return f"{self._words} number {self._number}"


class Reception:
    """How a reader takes what is more than plain data.

    `find_class` gives the class for a name that the sender chose, "module:Class", or None. An
    object whose class it does not give is plain data if `lenient`, which `notes` tell, and refused
    otherwise.
    """

    def __init__(
        self, find_class: "Optional[Callable[[str], Any]]" = None, lenient: bool = False
    ) -> None:
        self.lenient = lenient
        self.notes: List[str] = []
        self._find_class = find_class
        self._classes: Dict[str, Any] = {}
        self._noted: Set[str] = set()

    def find_class(self, name: str) -> Any:
        if self._find_class is None:
            return None
        if name not in self._classes:
            self._classes[name] = self._find_class(name)
        return self._classes[name]

    def note(self, place: "Callable[[], str]", reason: str) -> None:
        """Keep it, unless the same was said of another part."""
        if reason not in self._noted and len(self.notes) < MAX_NOTES:
            self._noted.add(reason)
            self.notes.append(f"{place()} {reason}"[:MAX_NOTE])


STRICT = Reception()


class _Walk:
    """The current place inside a value, and what the value may still have. The place stays after an
    error, for the message."""

    def __init__(self, depth: int) -> None:
        self._place: List[Any] = []
        self._depth = depth
        self._free_rows = MAX_FREE_ROWS
        self._arrays = MAX_ARRAYS
        self._calendar_rows = MAX_CALENDAR_ROWS

    def enter(self, key: Any = None) -> None:
        if len(self._place) >= self._depth:
            raise self.refusal(f"is nested more than {MAX_DEPTH} deep")
        self._place.append(key)

    def at(self, key: Any) -> None:
        self._place[-1] = key

    def leave(self) -> None:
        self._place.pop()

    def walk_columns(self, columns: Iterable[Any], get_name: Callable[[Any], str]) -> Iterator[Any]:
        """Give one column after the other, and be at its place meanwhile."""
        self.enter()
        for column in columns:
            self.at(Note(" column", [get_name(column)]))
            yield column
        self.leave()

    def where(self) -> str:
        parts = [str(part) if type(part) is Note else _subscript(part) for part in self._place]
        if len(parts) > 12:
            parts[8:-2] = ["..."]
        return "value" + "".join(part if len(part) < 80 else part[:76] + "...]" for part in parts)

    def refusal(self, reason: str) -> CannotTravel:
        return CannotTravel(f"{self.where()} {reason}")

    def free_rows(self, count: int) -> None:
        """Count rows that take no bytes. A hostile count may be negative."""
        self._free_rows -= count
        if count < 0 or self._free_rows < 0:
            raise self.refusal(f"has more than {MAX_FREE_ROWS} rows that hold no data")

    def count(self) -> None:
        """Count one array or column."""
        self._arrays -= 1
        if self._arrays < 0:
            raise self.refusal(f"is one array or column more than {MAX_ARRAYS}; join some")

    def calendar_rows(self, count: int) -> bool:
        """True if the reader can check so many more rows."""
        if count > self._calendar_rows:
            return False
        self._calendar_rows -= count
        return True


def _subscript(key: Any) -> str:
    try:
        return f"[{key!r}]"
    except Exception:  # a key without a repr(), such as an int of many digits
        return f"[a key of type {type(key).__name__}]"


# The text for an object that cannot travel; None if it must be refused. The second argument tells
# if the object is a part of the value, or the value itself.
Describe = Callable[[Any, bool], Optional[str]]


class Packer(_Walk):
    """Collects the buffers of a value, and stops when it becomes too large."""

    def __init__(
        self,
        encode: "Callable[[Packer, Any], Any]",
        limit: int,
        text_limit: int,
        describe: "Optional[Describe]" = None,
    ) -> None:
        super().__init__(MAX_DEPTH)
        self._encode = encode
        self._describe = describe
        self._reprs = MAX_REPRS
        self._buffers: List[memoryview] = []
        self._limit = limit
        self._room = limit
        self._text_limit = text_limit
        self._text_room = text_limit

    def encode(self, value: Any) -> Any:
        return self._encode(self, value)

    def buffer(self, data: Buffer) -> int:
        view = memoryview(data)
        self._room -= view.nbytes
        if self._room < 0:
            raise self._too_large()
        self._buffers.append(view)
        return len(self._buffers) - 1

    def spend(self, size: int) -> None:
        """Count bytes of text: at least so many follow."""
        self._text_room -= size
        if self._text_room < 0:
            raise self._too_much_text()

    @property
    def lenient(self) -> bool:
        return self._describe is not None

    def describe(self, value: Any) -> Optional[str]:
        """A text in place of an object that cannot travel; None if it must be refused."""
        self._reprs -= 1
        if self._describe is None or self._reprs < 0:
            return None
        text = self._describe(value, bool(self._place))
        return None if text is None else text[:MAX_REPR]

    def spell(self, skeleton: Any) -> bytes:
        text = JSON.encode(skeleton).encode("ascii")
        return Encoded(text, self._buffers).join() if self._buffers else text

    def seal(self, skeleton: Any) -> Encoded:
        text = JSON.encode(skeleton).encode("ascii")
        self._place.clear()
        if len(text) + 8 * len(self._buffers) > self._text_limit:
            raise self._too_much_text()
        encoded = Encoded(text, self._buffers)
        if encoded.size > self._limit:
            raise self._too_large()
        return encoded

    def _too_large(self) -> CannotTravel:
        return CannotTravel(f"value takes more than {self._limit} bytes (at {self.where()})")

    def _too_much_text(self) -> CannotTravel:
        return CannotTravel(
            f"value has more than {self._text_limit} bytes of small parts (at {self.where()}); "
            "put them into an array, a table or one text"
        )


class Unpacker(_Walk):
    """Gives the buffers of a parcel that may be hostile."""

    def __init__(
        self,
        decode: "Callable[[Unpacker, Any], Any]",
        encode: "Callable[[Packer, Any], Any]",
        view: memoryview,
        spans: List[Tuple[int, int]],
        reception: Reception,
    ) -> None:
        super().__init__(MAX_DEPTH + 20)  # decoding a table goes a few steps deeper
        self._decode, self._encode = decode, encode
        self._view, self._spans = view, spans
        self._taken = [False] * len(self._spans)
        self._fields = MAX_ARRAYS
        self._libraries: Dict[str, Any] = {}
        self.zones: Dict[Any, Any] = {}  # time zones by name
        self.reception = reception
        self._hashing = 0.0

    @property
    def writable(self) -> bool:
        return not self._view.readonly

    @property
    def size(self) -> int:
        return len(self._view)

    def soften(self, reason: str, plain: Any) -> Any:
        """Take plain data in place of an object. A reader that is not lenient refuses it."""
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason)
        if not self.reception.lenient:
            raise self.refusal(reason)
        self.reception.note(self.where, f"{reason}; taken as {type(plain).__name__}")
        return plain

    def start_hashing(self, count: int) -> float:
        """Before `count` keys go into a hash table; for `check_hashing`."""
        self._hashing = self._hashing or _HASHING + len(self._view) * _HASHING_BYTE
        self._hashing += count * _HASHING_KEY
        return time.thread_time()

    def check_hashing(self, since: float) -> float:
        """Refuse keys that collide, before they cost much: the time for each grows with their
        number. Time of the CPU, so that a busy machine is not taken for collisions."""
        now = time.thread_time()
        self._hashing -= now - since
        if self._hashing < 0:
            raise self.refusal("has keys whose hashes collide; make it a list of pairs")
        return now

    def decode(self, skeleton: Any) -> Any:
        return self._decode(self, skeleton)

    def buffer(self, number: Any) -> memoryview:
        if type(number) is not int or not 0 <= number < len(self._spans) or self._taken[number]:
            raise ValueError("not a buffer")
        self._taken[number] = True
        start, size = self._spans[number]
        return self._view[start : start + size]

    def fields(self, count: int) -> None:
        """Count fields of a type: Arrow has a hash table of their names, open to collisions."""
        self._fields -= count
        if self._fields < 0:
            raise ValueError("too many fields")

    def finish(self) -> None:
        if not all(self._taken):
            raise ValueError("the text does not refer to all buffers")

    def imported(self, name: str, what: str) -> Any:
        if name not in self._libraries:
            try:
                self._libraries[name] = importlib.import_module(name)
            except ImportError:
                raise self.refusal(f"is a {what}; install {name} here to receive it") from None
        return self._libraries[name]

    def spelling(self, value: Any) -> bytes:
        """The bytes of a decoded value, if it were encoded again."""
        packer = Packer(self._encode, MAX_BYTES, MAX_BYTES)
        return packer.spell(packer.encode(value))


def open_parcel(view: memoryview, text_limit: int) -> Tuple[memoryview, List[Tuple[int, int]]]:
    """The text, and start and size of each buffer."""
    if len(view) < _HEAD.size:
        raise ValueError("the head is missing")
    magic, text_size, count = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise ValueError("not a value")
    if text_size + 8 * count > text_limit:
        raise CannotTravel(f"value has more than {text_limit} bytes of text")
    start = _HEAD.size + 8 * count
    end = start + text_size
    if end > len(view):
        raise ValueError("it is shorter than its head says")
    spans = []
    for size in struct.unpack_from(f"={count}Q", view, _HEAD.size):
        first = end + -end % _ALIGN
        end = first + size
        spans.append((first, size))
    if end != len(view):
        raise ValueError("its sizes do not add up")
    return view[start : start + text_size], spans


def check_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError("wrong body")
    return value
