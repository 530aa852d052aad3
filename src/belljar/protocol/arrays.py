"""numpy arrays (their memory as it is) and numpy scalars, of every dtype except object.

A dtype is described as data and built again piece by piece, from an allow-list.
"""

import math
import re
import struct
import sys
from typing import Any, Dict, List, Optional, Tuple

from .parcel import CannotTravel, Packer, Unpacker, check_type

_MAX_DIMENSIONS = 32
_MAX_FIELDS = 1000
_MAX_NESTING = 8
_MAX_ITEM = 1 << 26
_PLAIN = re.compile(r"[<>|](b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)|[SUV][0-9]{1,9})")
_MOMENT = re.compile(r"[<>][mM]8(\[[0-9]{0,6}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_LAST_CODE_POINT = 0x10FFFF


def encode_numpy(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    np = sys.modules.get("numpy")
    if np is None or not hasattr(np, "ndarray"):
        return None
    kind = type(value)
    if kind is np.ndarray:
        return {"array": encode_array(packer, np, value)}
    if issubclass(kind, np.generic):
        return _encode_scalar(packer, np, value)
    if issubclass(kind, np.ndarray):
        if "ma" in np.__dict__ and issubclass(kind, np.ma.MaskedArray):
            raise packer.refusal("is a masked array; fill it first, .filled(...)")
        return {"array": encode_array(packer, np, np.ndarray.view(value, np.ndarray))}
    if issubclass(kind, np.dtype):
        raise packer.refusal("is a numpy dtype; send its name, str(...)")
    return None


def _encode_scalar(packer: Packer, np: Any, value: Any) -> Dict[str, Any]:
    if issubclass(type(value), (str, bytes)):  # an array would lose trailing zeros
        base = str if issubclass(type(value), str) else bytes
        return {"numpy": [base.__name__, packer.encode(base.__getitem__(value, slice(None)))]}
    raw = np.asarray(value)
    if raw.shape or raw.dtype.hasobject:
        raise packer.refusal(f"is a numpy scalar of dtype {raw.dtype}")
    spec = encode_dtype(packer, raw.dtype)
    data = (_clear_padding(np, raw) if _has_padding(raw.dtype) else raw).tobytes()
    if type(spec) is str and len(data) <= 32:
        return {"numpy": [spec, data.hex()]}
    return {"numpy": [spec, packer.buffer(data)]}


def encode_array(packer: Packer, np: Any, value: Any) -> Dict[str, Any]:
    packer.count()
    dtype = value.dtype
    if dtype.kind == "T":
        if getattr(dtype, "na_object", None) is not None:
            raise packer.refusal("is an array of texts, some of them missing; make it a list first")
        packer.enter()
        texts = packer.encode(value.reshape(-1).tolist())
        packer.leave()
        return {"shape": list(value.shape), "texts": texts}
    if dtype.hasobject:
        raise packer.refusal("is an array of dtype object; make it a list first, .tolist()")
    spec = encode_dtype(packer, dtype)
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    if value.size == 0 or dtype.itemsize == 0:
        packer.free_rows(_count_free_rows(value.shape))
    if _has_padding(dtype):
        value = _clear_padding(np, value)
    encoded = {"dtype": spec, "shape": list(value.shape)}
    encoded["data"] = packer.buffer(get_memory(np, value.T if fortran else value))
    if fortran:
        encoded["fortran"] = True
    return encoded


def _has_padding(dtype: Any) -> bool:
    """True if items have padding, which may hold any memory of this process."""
    if dtype.subdtype is not None:
        return _has_padding(dtype.subdtype[0])
    if dtype.names is None:
        return dtype.char in "gG"
    fields = [dtype.fields[name][0] for name in dtype.names]
    return sum(f.itemsize for f in fields) < dtype.itemsize or any(map(_has_padding, fields))


def _clear_padding(np: Any, value: Any) -> Any:
    clean = np.zeros(value.shape, dtype=value.dtype)
    _copy_items(np, value, clean)
    return clean


def _copy_items(np: Any, value: Any, clean: Any) -> None:
    if value.dtype.names is not None:
        for name in value.dtype.names:
            _copy_items(np, value[name], clean[name])
    elif value.dtype.char == "G":
        _copy_items(np, value.real, clean.real)
        _copy_items(np, value.imag, clean.imag)
    elif value.dtype.char == "g" and np.finfo(np.longdouble).nmant == 63:
        # An x86 long double has ten bytes, and takes sixteen in numpy.
        here, there = (part[..., None].view(np.uint8) for part in (value, clean))
        used = slice(10) if value.dtype.isnative else slice(-10, None)
        there[..., used] = here[..., used]
    else:
        clean[...] = value


def get_memory(np: Any, value: Any) -> Any:
    """The bytes of an array in C order, without a copy if it has that order."""
    if value.size == 0 or value.dtype.itemsize == 0:
        return b""
    flat = np.ascontiguousarray(value).reshape(-1)
    return memoryview(flat.view(np.uint8))


def encode_dtype(packer: Packer, dtype: Any) -> Any:
    """A string, {"fields": …} or {"item": …, "shape": …}."""
    if dtype.subdtype is not None:
        item, shape = dtype.subdtype
        if dtype.itemsize == 0:
            raise packer.refusal(f"has the dtype {dtype}, which holds nothing")
        return {"item": encode_dtype(packer, item), "shape": list(shape)}
    if dtype.names is not None:
        fields = []
        for name in dtype.names:
            field, offset = dtype.fields[name][:2]
            fields.append([name, encode_dtype(packer, field), offset])
        if _overlap([(offset, dtype.fields[name][0].itemsize) for name, _, offset in fields]):
            raise packer.refusal(f"has the dtype {dtype}, whose fields overlap")
        return {"fields": fields, "size": dtype.itemsize}
    text = dtype.str
    if not _PLAIN.fullmatch(text) and not _MOMENT.fullmatch(text):
        raise packer.refusal(f"has the dtype {dtype}, which cannot travel")
    return text


# --- decode ---------------------------------------------------------------------------------------


def decode_dtype(np: Any, spec: Any, nesting: int = _MAX_NESTING) -> Any:
    if type(spec) is str:
        if not _PLAIN.fullmatch(spec) and not _MOMENT.fullmatch(spec):
            raise ValueError("not a dtype that can travel")
        dtype = np.dtype(spec)
    elif nesting == 0:
        raise ValueError("a dtype is nested too deep")
    elif set(spec) == {"item", "shape"}:
        item = decode_dtype(np, spec["item"], nesting - 1)
        shape = _decode_shape(spec["shape"])
        if not 0 < item.itemsize * math.prod(shape) <= _MAX_ITEM:
            raise ValueError("a dtype is too large, or empty")
        dtype = np.dtype((item, shape))
    else:
        dtype = _decode_fields(np, spec, nesting)
    if dtype.hasobject or dtype.itemsize > _MAX_ITEM:
        raise ValueError("not a dtype that can travel")
    return dtype


def _decode_fields(np: Any, spec: Any, nesting: int) -> Any:
    fields, size = spec["fields"], spec["size"]
    if len(fields) > _MAX_FIELDS or type(size) is not int or not 0 <= size <= _MAX_ITEM:
        raise ValueError("not a record")
    names, formats, offsets = [], [], []
    for name, field, offset in fields:
        if type(name) is not str or type(offset) is not int or not 0 <= offset <= size:
            raise ValueError("not a field")
        names.append(name)
        formats.append(decode_dtype(np, field, nesting - 1))
        offsets.append(offset)
    if _overlap(list(zip(offsets, (dtype.itemsize for dtype in formats)))):
        raise ValueError("fields overlap")  # checking each could take a pass over all data
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def _overlap(spans: List[Tuple[int, int]]) -> bool:
    end = 0
    for offset, size in sorted(spans):
        if offset < end:
            return True
        end = offset + size
    return False


def _decode_shape(spec: Any) -> Tuple[int, ...]:
    if type(spec) is not list or len(spec) > _MAX_DIMENSIONS:
        raise ValueError("not a shape")
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in spec):
        raise ValueError("not a shape")
    return tuple(spec)


def _count_free_rows(shape: Tuple[int, ...]) -> int:
    """How many rows an array without bytes claims to have."""
    return math.prod(size for size in shape if size)


def _decode_array(unpacker: Unpacker, body: Any) -> Any:
    unpacker.count()
    np = unpacker.imported("numpy", "numpy array")
    shape = _decode_shape(body["shape"])
    if "texts" in body:
        unpacker.enter()
        texts = check_type(list, unpacker.decode(body["texts"]))
        unpacker.leave()
        if not all(type(text) is str for text in texts):
            raise TypeError("not texts")
        return np.array(texts, dtype=np.dtypes.StringDType()).reshape(shape)
    dtype, count = decode_dtype(np, body["dtype"]), math.prod(shape)
    if count * dtype.itemsize == 0:
        unpacker.free_rows(_count_free_rows(shape))
    flat = decode_flat(unpacker, np, dtype, body["data"], count)
    if body.get("fortran") is True:
        return flat.reshape(shape[::-1]).T
    return flat.reshape(shape)


def decode_flat(
    unpacker: Unpacker, np: Any, dtype: Any, buffer: Any, count: Optional[int] = None
) -> Any:
    """One dimension; as many items as the buffer holds, or exactly `count`."""
    data = unpacker.buffer(buffer)
    if count is None:
        if dtype.itemsize == 0 or len(data) % dtype.itemsize:
            raise ValueError("not a whole number of items")
        count = len(data) // dtype.itemsize
    if count * dtype.itemsize != len(data):
        raise ValueError("shape and size differ")
    made = _view_buffer(np, dtype, count, data)
    _check_items(np, made)
    if not unpacker.writable or not made.flags.aligned:
        made = made.copy()
    return made


def _view_buffer(np: Any, dtype: Any, count: int, data: Any) -> Any:
    if dtype.subdtype is not None:
        raise ValueError("an array of arrays")  # numpy would add dimensions
    if not len(data):
        return np.ndarray((count,), dtype, bytearray())  # others widen an item without bytes
    return np.frombuffer(data, dtype=dtype, count=count)


def _check_items(np: Any, made: Any) -> None:
    """Some bytes are not valid items: numpy relies on booleans of 0 or 1 and on code points."""
    dtype = made.dtype
    if dtype.names is not None:
        for name in dtype.names:
            _check_items(np, made[name])
    elif made.size == 0:
        return
    elif dtype.kind == "b":
        if made.view(np.uint8).max() > 1:
            raise ValueError("neither true nor false")
    elif dtype.kind == "U" and dtype.itemsize:
        letters = np.ascontiguousarray(made).reshape(-1).view(dtype.str[0] + "u4")
        if letters.max() > _LAST_CODE_POINT:
            raise ValueError("not a code point")


def _decode_scalar(unpacker: Unpacker, body: Any) -> Any:
    spec, data = body
    try:
        np = unpacker.imported("numpy", "numpy scalar")
    except CannotTravel:  # numpy is not installed here
        return _decode_without_numpy(unpacker, spec, data)
    if spec == "str" or spec == "bytes":
        base = str if spec == "str" else bytes
        return (np.str_ if base is str else np.bytes_)(check_type(base, unpacker.decode(data)))
    dtype = decode_dtype(np, spec)
    if type(data) is str:
        made = _view_buffer(np, dtype, 1, bytes.fromhex(data))
        if made.nbytes * 2 != len(data):
            raise ValueError("shape and size differ")
        _check_items(np, made)
    else:
        made = decode_flat(unpacker, np, dtype, data, 1)
    scalar = made[0]
    if not isinstance(scalar, np.generic):
        raise ValueError("not a scalar")
    return scalar


def _decode_without_numpy(unpacker: Unpacker, spec: Any, data: Any) -> Any:
    """The number of a scalar, for a Python without numpy."""
    if spec == "str" or spec == "bytes":
        return unpacker.decode(data)
    formats = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I"}
    formats.update({"i8": "q", "u8": "Q", "f2": "e", "f4": "f", "f8": "d", "c8": "ff", "c16": "dd"})
    form = formats.get(spec[1:]) if type(spec) is str else None
    if form is None or type(data) is not str:
        raise unpacker.refusal("is a numpy scalar; install numpy here to receive it")
    numbers: List[Any] = list(struct.unpack(spec[0].replace("|", "=") + form, bytes.fromhex(data)))
    return complex(*numbers) if len(numbers) == 2 else numbers[0]


DECODERS = {"array": _decode_array, "numpy": _decode_scalar}
