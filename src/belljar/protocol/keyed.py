"""Sets, dicts whose keys are not all texts, and ranges.

Keys from a hostile guest may have equal hashes: with numbers, tuples and frozensets that is easy.
Each key then takes time in proportion to those before it, so a hash table is made in small steps,
and its time is limited (see Unpacker.check_hashing). A key that cannot be hashed, or that is there
twice, is refused.
"""

from typing import Any, Callable, Dict, List, Sequence, Set

from .parcel import Note, Packer, Unpacker, check_type

_FEW_KEYS = 64
_SHORT = 64 * 1024  # bytes of a parcel: few keys of it cannot take long
_STEP = 16  # keys between two looks at the clock
_LONG_LIST = 64
_PACKED = (int, float, str)
_SIMPLE = frozenset((int, float, bool, str, bytes, type(None)))  # these are compared at once


def encode_set(packer: Packer, value: Any) -> Dict[str, Any]:
    base: Any = set if issubclass(type(value), set) else frozenset
    return {base.__name__: packer.encode(list(base.__iter__(value)))}


def encode_map(packer: Packer, pairs: Sequence[Any], done: List[Any]) -> Dict[str, Any]:
    """`done`: the first items, which are encoded already."""
    packer.enter(Note(" keys"))
    keys = packer.encode([key for key, _ in pairs])
    packer.leave()
    kinds = {type(item) for _, item in pairs}
    if not done and len(pairs) >= _LONG_LIST and len(kinds) == 1 and kinds <= {*_PACKED}:
        return {"map": [keys, packer.encode([item for _, item in pairs])]}
    packer.enter()
    for key, item in pairs[len(done) :]:
        packer.at(key)
        done.append(packer.encode(item))
    packer.leave()
    return {"map": [keys, done]}


def encode_range(packer: Packer, value: Any) -> Dict[str, Any]:
    return {"range": [packer.encode(part) for part in (value.start, value.stop, value.step)]}


def _decode_set(unpacker: Unpacker, body: Any) -> Any:
    keys = check_type(list, unpacker.decode(body))
    made: Set[Any] = set()
    _fill(unpacker, keys, lambda start, end: made.update(keys[start:end]))
    _check_number(made, keys)
    return made


def _decode_map(unpacker: Unpacker, body: Any) -> Any:
    keys, items = check_type(list, body)
    unpacker.enter(Note(" keys"))
    keys = check_type(list, unpacker.decode(keys))
    unpacker.leave()
    items = _decode_items(unpacker, keys, items)
    if len(keys) != len(items):
        raise ValueError("there are more keys than values, or fewer")
    made: Dict[Any, Any] = {}
    _fill(unpacker, keys, lambda start, end: made.update(zip(keys[start:end], items[start:end])))
    _check_number(made, keys)
    return made


def _decode_items(unpacker: Unpacker, keys: List[Any], items: Any) -> List[Any]:
    if type(items) is not list or len(items) != len(keys):
        decoded: List[Any] = check_type(list, unpacker.decode(items))
        return decoded
    unpacker.enter()
    for index, item in enumerate(items):
        if type(item) is list or type(item) is dict:
            unpacker.at(keys[index])
            items[index] = unpacker.decode(item)
    unpacker.leave()
    return items


def _fill(unpacker: Unpacker, keys: List[Any], add: "Callable[[int, int], None]") -> None:
    """Make a hash table in steps. Comparing two keys takes long only if they have parts.

    A table that grows in a step costs no more than the steps before: keys that meet in the larger
    one have met in the smaller.
    """
    step = _STEP if set(map(type, keys)) <= _SIMPLE else 1
    quick = len(keys) <= _FEW_KEYS and unpacker.size <= _SHORT
    try:
        if quick:
            return add(0, len(keys))
        now = unpacker.start_hashing(len(keys))
        for start in range(0, len(keys), step):
            add(start, start + step)
            now = unpacker.check_hashing(now)
    except TypeError as error:
        raise unpacker.refusal(f"has a key that cannot be one here ({error})") from None


def _check_number(made: Any, keys: List[Any]) -> None:
    if len(made) != len(keys):
        raise ValueError("a key is there twice")


def _decode_range(unpacker: Unpacker, body: Any) -> range:
    start, stop, step = (check_type(int, unpacker.decode(part)) for part in check_type(list, body))
    return range(start, stop, step)


DECODERS: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "set": _decode_set,
    "frozenset": lambda unpacker, body: frozenset(_decode_set(unpacker, body)),
    "map": _decode_map,
    "range": _decode_range,
}
