"""Whether all items of an index differ, at a cost that a stranger's choice of them cannot raise.

Numbers, times and tuples with equal hashes can be made at will, and so can texts for the tables
that pandas has of its own; such a table then takes quadratic time, and the whole process waits.
So numbers are sorted here, and all else is told apart by texts, whose hashes Python draws anew
in each process. Equal numbers of different types are one item, as they are in pandas; a Decimal
or a part of a tuple is its own spelling.
"""

import operator
from typing import Any, Callable, Dict, List

from .arrow import chunks_of
from .parcel import Unpacker

_EXACT_BITS = 53  # whole numbers of so many bits are floats as well
_FLOAT_BITS = 1024
_ARROW_TEXTS = ("string", "large_string", "binary", "large_binary", "boolean")


def check_distinct(unpacker: Unpacker, pd: Any, index: Any) -> None:
    """ValueError if an item is there twice; TypeError if nobody can tell."""
    np = unpacker.imported("numpy", "pandas Index")
    with np.errstate(all="ignore"):  # nan comes in kinds that numpy warns of
        if not isinstance(index.dtype, np.dtype):
            _CHECKS.get(type(index.dtype).__name__, _check_masked)(unpacker, np, index.array)
        elif index.dtype.kind == "O":
            _check_objects(unpacker, np, np.asarray(index))
        elif not isinstance(index, pd.RangeIndex):
            _check_numbers(unpacker, np, np.asarray(index))
    # What pandas remembers, it does not ask its hash table for.
    index._cache["is_unique"] = True


def _check_numbers(unpacker: Unpacker, np: Any, numbers: Any) -> None:
    """Not np.unique: it has a hash table too."""
    if numbers.dtype.kind in "mM":
        numbers = numbers.view("i8" if numbers.dtype.isnative else numbers.dtype.str[0] + "i8")
    if (numbers[1:] > numbers[:-1]).all():
        return
    if np.count_nonzero(numbers != numbers) > 1:
        raise _twice()
    numbers = np.sort(numbers)
    if (numbers[1:] == numbers[:-1]).any():
        raise _twice()


def _check_moments(unpacker: Unpacker, np: Any, column: Any) -> None:
    _check_numbers(unpacker, np, column.asi8)


def _check_codes(unpacker: Unpacker, np: Any, column: Any) -> None:
    _check_numbers(unpacker, np, np.asarray(column.codes))


def _check_masked(unpacker: Unpacker, np: Any, column: Any) -> None:
    if np.count_nonzero(column._mask) > 1:
        raise _twice()
    _check_numbers(unpacker, np, column._data[~column._mask])


def _check_intervals(unpacker: Unpacker, np: Any, column: Any) -> None:
    left, right = (getattr(side, "asi8", side) for side in (column.left, column.right))
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.kind not in "iuf" or right.dtype.kind not in "iuf":
        raise TypeError("intervals that cannot be told apart")
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    alike = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
    if alike.any() or np.count_nonzero(left != left) > 1:
        raise _twice()


def _check_strings(unpacker: Unpacker, np: Any, column: Any) -> None:
    if column.dtype.storage != "python":
        return _check_arrow(unpacker, np, column)
    _check_objects(unpacker, np, column.to_numpy(dtype=object))


def _check_arrow(unpacker: Unpacker, np: Any, column: Any) -> None:
    pa = unpacker.imported("pyarrow", "column of Arrow")
    chunks = chunks_of(pa, column)
    if chunks.null_count > 1:
        raise _twice()
    kind, types = chunks.type, pa.types
    if any(getattr(types, f"is_{name}")(kind) for name in _ARROW_TEXTS):
        compute = unpacker.imported("pyarrow.compute", "column of Arrow")
        before, after = chunks.slice(0, max(0, len(chunks) - 1)), chunks.slice(1)
        if chunks.null_count or not compute.all(compute.less(before, after)).as_py():
            _check_keys(chunks.to_pylist())
        return
    if types.is_nested(kind) or types.is_dictionary(kind) or types.is_null(kind):
        raise TypeError(f"items of the Arrow type {kind} cannot be told apart")
    if len(chunks):
        array = pa.concat_arrays(chunks.chunks).drop_null()
        _check_numbers(unpacker, np, _fixed(np, types, array))


def _fixed(np: Any, types: Any, array: Any) -> Any:
    """Items of one width, as floats or as their bytes."""
    width, start, end = array.type.bit_width // 8, array.offset, array.offset + len(array)
    if not width:
        return np.zeros(len(array), dtype="u1")
    letter = "f" if types.is_floating(array.type) else "u" if width in (1, 2, 4, 8) else "S"
    return np.frombuffer(array.buffers()[1], dtype=f"{letter}{width}", count=end)[start:]


def _check_objects(unpacker: Unpacker, np: Any, items: Any) -> None:
    items = items.tolist()
    if set(map(type, items)) <= {str}:
        if not all(map(operator.lt, items, items[1:])):
            _check_keys(items)
        return

    def key(item: Any) -> Any:
        hash(item)  # or else it is no label
        if isinstance(item, np.generic) and item.dtype.char in "?bBhHiIlLqQefd":
            item = item.item()
        return _number(item) if type(item) in (bool, int, float) else unpacker.spelling(item)

    _check_keys(list(map(key, items)))


def _check_keys(keys: List[Any]) -> None:
    """All of them texts or bytes."""
    if len(set(keys)) != len(keys):
        raise _twice()


def _number(number: Any) -> bytes:
    """The same for 1, 1.0 and True, and short."""
    bits = number.bit_length() if type(number) is not float else 0
    if bits > _EXACT_BITS:
        return (repr(float(number)) if _is_float(number, bits) else hex(number)).encode()
    if type(number) is not float or (number.is_integer() and abs(number) < 1 << _EXACT_BITS):
        return b"%d" % int(number)
    return repr(number).encode()


def _is_float(number: int, bits: int) -> bool:
    # A float has few bits; all below them are zero.
    return bits < _FLOAT_BITS and not number & ((1 << (bits - _EXACT_BITS)) - 1)


def _twice() -> ValueError:
    return ValueError("the same item twice")


_CHECKS: Dict[str, Callable[[Unpacker, Any, Any], None]] = {
    "DatetimeTZDtype": _check_moments,
    "PeriodDtype": _check_moments,
    "CategoricalDtype": _check_codes,
    "StringDtype": _check_strings,
    "IntervalDtype": _check_intervals,
    "ArrowDtype": _check_arrow,
}
