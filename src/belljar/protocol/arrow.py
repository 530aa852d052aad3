"""Arrow arrays and tables as their buffers, and polars frames through them.

The layout is described by our own JSON and built again with `Array.from_buffers`, then
validated in full; no IPC message of a stranger is ever parsed. Metadata stays behind, because
libraries act on it. A node is {"n": length, "b": buffers, "c": children, "d": dictionary}.
"""

import functools
import re
import sys
from typing import Any, Dict, List, Optional

from .parcel import Packer, Unpacker

_MAX_NESTING = 16
_UNITS = ("s", "ms", "us", "ns")
_ZONE = re.compile(r"[A-Za-z0-9_+:/-]{1,64}")


def encode_arrow(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    pa = sys.modules.get("pyarrow")
    if pa is None or not hasattr(pa, "Table"):
        return None
    kind = type(value)
    if issubclass(kind, (pa.Table, pa.RecordBatch)):
        return {"table": _encode_table(packer, pa, value)}
    if issubclass(kind, pa.ChunkedArray):
        return {"arrow": {**encode_chunks(packer, pa, value), "chunked": True}}
    if issubclass(kind, pa.Array):
        return {"arrow": encode_chunks(packer, pa, value)}
    if issubclass(kind, pa.Scalar):
        raise packer.refusal("is a pyarrow scalar; send the value in it, .as_py()")
    return None


def _encode_table(packer: Packer, pa: Any, table: Any) -> Dict[str, Any]:
    pairs = packer.walk_columns(zip(table.schema, table.columns), lambda pair: pair[0].name)
    columns = [[f.name, f.nullable, encode_chunks(packer, pa, column)] for f, column in pairs]
    return {"columns": columns, "batch": issubclass(type(table), pa.RecordBatch)}


def encode_chunks(packer: Packer, pa: Any, array: Any) -> Dict[str, Any]:
    """An array, or a chunked one."""
    kind, chunks = array.type, getattr(array, "chunks", [array])
    view = pa.types.is_string_view(kind) if hasattr(pa.types, "is_string_view") else False
    if view or (hasattr(pa.types, "is_binary_view") and pa.types.is_binary_view(kind)):
        kind = pa.large_string() if view else pa.large_binary()
        chunks = [chunk.cast(kind) for chunk in chunks]
    spec = _encode_type(packer, pa, kind, _MAX_NESTING)
    return {"type": spec, "chunks": [_encode_node(packer, pa, chunk) for chunk in chunks]}


@functools.lru_cache(maxsize=1)
def _list_plain_types(pa: Any) -> Dict[str, Any]:
    """The types without parameters (but a unit) by name."""
    found = [getattr(pa, f"{sign}int{size}")() for sign in ("", "u") for size in (8, 16, 32, 64)]
    found += [pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64()]
    found += [pa.date32(), pa.date64(), pa.month_day_nano_interval()]
    found += [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
    found += [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    found += [make(unit) for make in (pa.duration, pa.timestamp) for unit in _UNITS]
    return {str(kind): kind for kind in found}


def _encode_type(packer: Packer, pa: Any, kind: Any, nesting: int) -> Any:
    types = pa.types
    if kind in _list_plain_types(pa).values():
        return str(kind)
    if nesting == 0:
        raise packer.refusal("has an Arrow type nested too deep")

    def field(given: Any) -> List[Any]:
        return [given.name, given.nullable, _encode_type(packer, pa, given.type, nesting - 1)]

    if types.is_timestamp(kind) and _ZONE.fullmatch(kind.tz):
        return {"timestamp": [kind.unit, kind.tz]}
    if types.is_decimal(kind):
        return {"decimal": [kind.bit_width, kind.precision, kind.scale]}
    if types.is_fixed_size_binary(kind):
        return {"fixed": kind.byte_width}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"list" if types.is_list(kind) else "large_list": field(kind.value_field)}
    if types.is_fixed_size_list(kind):
        return {"fixed_list": [*field(kind.value_field), kind.list_size]}
    if types.is_struct(kind):
        return {"struct": [field(kind.field(i)) for i in range(kind.num_fields)]}
    if types.is_map(kind):
        return {"map": [field(kind.key_field), field(kind.item_field), kind.keys_sorted]}
    if types.is_dictionary(kind):
        inner = [
            _encode_type(packer, pa, t, nesting - 1) for t in (kind.index_type, kind.value_type)
        ]
        return {"dictionary": [*inner, kind.ordered]}
    raise packer.refusal(f"has the Arrow type {kind}, which cannot travel; cast it first")


def _encode_node(packer: Packer, pa: Any, array: Any) -> Dict[str, Any]:
    packer.count()
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        node = _encode_node(packer, pa, array.indices)
        node["d"] = _encode_node(packer, pa, array.dictionary)
        return node
    if array.offset:
        array = pa.concat_arrays([array])  # a slice: only its visible part
    count = len(array)
    buffers = array.buffers()
    if types.is_null(kind):
        packer.free_rows(count)
        return {"n": count, "b": []}
    bits = _add_trimmed(packer, buffers[0], (count + 7) // 8) if array.null_count else None
    node = {"n": count, "b": [bits]}
    width, last = _offset_width(types, kind), 0
    if width:
        offsets = _slice_offsets(buffers[1], count, width)
        last = int.from_bytes(offsets[-width:], sys.byteorder)
        node["b"].append(packer.buffer(offsets))
    if types.is_nested(kind):
        children = _slice_children(packer, types, array, last)
        node["c"] = [_encode_node(packer, pa, child) for child in children]
    elif width:
        node["b"].append(_add_trimmed(packer, buffers[2], last))
    else:
        packer.free_rows(0 if kind.bit_width else count)
        node["b"].append(_add_trimmed(packer, buffers[1], (count * kind.bit_width + 7) // 8))
    return node


def _slice_offsets(buffer: Any, count: int, width: int) -> memoryview:
    raw = memoryview(buffer or b"").cast("B")
    return raw[: (count + 1) * width] if len(raw) else memoryview(bytes(width))


def _slice_children(packer: Packer, types: Any, array: Any, last: int) -> List[Any]:
    """Only as much as the array needs: `last` is where its lists end."""
    kind, count = array.type, len(array)
    if types.is_struct(kind):
        packer.free_rows(0 if kind.num_fields else count)
        return [array.field(i).slice(0, count) for i in range(kind.num_fields)]
    if types.is_fixed_size_list(kind):
        packer.free_rows(0 if kind.list_size else count)
        last = count * kind.list_size
    return [array.values.slice(0, last)]


def _offset_width(types: Any, kind: Any) -> int:
    """The size of an offset, for types that have offsets."""
    if types.is_string(kind) or types.is_binary(kind) or types.is_list(kind) or types.is_map(kind):
        return 4
    large = types.is_large_string(kind) or types.is_large_binary(kind)
    return 8 if large or types.is_large_list(kind) else 0


def _add_trimmed(packer: Packer, buffer: Any, size: int) -> int:
    if size == 0:
        return packer.buffer(b"")
    return packer.buffer(memoryview(buffer).cast("B")[:size])


# --- decode ---------------------------------------------------------------------------------------


def _decode_type(unpacker: Unpacker, pa: Any, spec: Any, nesting: int = _MAX_NESTING) -> Any:
    if type(spec) is str:
        return _list_plain_types(pa)[spec]
    if nesting == 0:
        raise ValueError("a type is nested too deep")
    ((tag, body),) = spec.items()

    def field(given: Any) -> Any:
        name, nullable, inner = given
        if type(name) is not str or type(nullable) is not bool:
            raise TypeError("not a field")
        return pa.field(name, _decode_type(unpacker, pa, inner, nesting - 1), nullable)

    if tag == "timestamp" and body[0] in _UNITS and _ZONE.fullmatch(body[1]):
        return pa.timestamp(*body)
    if tag == "decimal" and body[0] in (32, 64, 128, 256):
        return getattr(pa, f"decimal{body[0]}")(*body[1:])
    if tag == "fixed" and type(body) is int and 0 <= body < 1 << 31:
        return pa.binary(body)
    if tag == "list" or tag == "large_list":
        return (pa.list_ if tag == "list" else pa.large_list)(field(body))
    if tag == "fixed_list" and type(body[3]) is int and 0 <= body[3] < 1 << 31:
        return pa.list_(field(body[:3]), body[3])
    if tag == "struct":
        unpacker.fields(len(body))
        return pa.struct([field(given) for given in body])
    if tag == "map" and type(body[2]) is bool:
        return pa.map_(field(body[0]), field(body[1]), keys_sorted=body[2])
    if tag == "dictionary" and type(body[2]) is bool:
        index, value = (_decode_type(unpacker, pa, inner, nesting - 1) for inner in body[:2])
        if not pa.types.is_integer(index):
            raise TypeError("not an index")
        # Arrow and pandas fail to show dictionaries of these.
        types = pa.types
        if types.is_null(value) or types.is_dictionary(value) or types.is_nested(value):
            raise TypeError("a dictionary has values that it cannot have")
        return pa.dictionary(index, value, body[2])
    raise ValueError("unknown type")


def _decode_node(unpacker: Unpacker, pa: Any, kind: Any, node: Any) -> Any:
    """An array whose buffers have the right sizes; what is in them is not checked yet."""
    unpacker.count()
    types, count, specs = pa.types, node["n"], node["b"]
    if type(count) is not int or not 0 <= count < 1 << 48:
        raise ValueError("not a length")
    if types.is_dictionary(kind):
        indices = _decode_node(unpacker, pa, kind.index_type, {"n": count, "b": specs})
        values = _decode_node(unpacker, pa, kind.value_type, node["d"])
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered, safe=True)
    if types.is_null(kind):
        unpacker.free_rows(count)
        return pa.nulls(count)
    buffers: List[Any] = [None]
    if specs[0] is not None:
        buffers = [_take_buffer(unpacker, pa, specs[0], (count + 7) // 8)]
    children: List[Any] = []
    width = _offset_width(types, kind)
    if width:
        buffers.append(_take_buffer(unpacker, pa, specs[1], (count + 1) * width))
    if types.is_map(kind):
        _check_map(types, kind, node["c"])
    if types.is_nested(kind):
        children = _decode_children(unpacker, pa, kind, node["c"], count)
    elif width:
        buffers.append(_take_buffer(unpacker, pa, specs[2], None))
    else:
        unpacker.free_rows(0 if kind.bit_width else count)
        buffers.append(_take_buffer(unpacker, pa, specs[1], (count * kind.bit_width + 7) // 8))
    if width:
        held: Any = children[0] if children else buffers[2]
        _check_offsets(buffers[1], width, len(held))
    if len(specs) != len(buffers):
        raise ValueError("too many buffers")
    return pa.Array.from_buffers(kind, count, buffers, children=children or None)


def _check_map(types: Any, kind: Any, nodes: Any) -> None:
    """Arrow aborts the process, without an exception, for a map with a null entry or key."""
    (entries,) = nodes
    keys = entries["c"][0]
    if types.is_null(kind.key_type) or entries["b"] != [None] or keys["b"][0] is not None:
        raise ValueError("nulls in a map")


def _check_offsets(buffer: Any, width: int, most: int) -> None:
    """Check the first and the last. Arrow checks those between, but not in an empty array."""
    data = memoryview(buffer)
    first, last = (
        int.from_bytes(part, sys.byteorder, signed=True) for part in (data[:width], data[-width:])
    )
    if not 0 <= first <= last <= most:
        raise ValueError("offsets out of range")


def _decode_children(unpacker: Unpacker, pa: Any, kind: Any, nodes: Any, count: int) -> List[Any]:
    types = pa.types
    if types.is_struct(kind):
        unpacker.free_rows(0 if kind.num_fields else count)
        inner, lengths = [kind.field(i).type for i in range(kind.num_fields)], count
    elif types.is_fixed_size_list(kind):
        unpacker.free_rows(0 if kind.list_size else count)
        inner, lengths = [kind.value_type], count * kind.list_size
    elif types.is_map(kind):
        inner, lengths = [pa.struct([kind.key_field, kind.item_field])], None
    else:
        inner, lengths = [kind.value_type], None
    if len(nodes) != len(inner):
        raise ValueError("not its children")
    children = [_decode_node(unpacker, pa, *pair) for pair in zip(inner, nodes)]
    if lengths is not None and any(len(child) != lengths for child in children):
        raise ValueError("children of another length")
    return children


def _take_buffer(unpacker: Unpacker, pa: Any, number: Any, size: Optional[int]) -> Any:
    data = unpacker.buffer(number)
    if size is not None and len(data) != size:
        raise ValueError("a buffer of another size")
    buffer = pa.py_buffer(data)
    if buffer.address % 16:  # Arrow reads aligned numbers only
        buffer = pa.py_buffer(bytes(data))
    return buffer


def decode_chunks(unpacker: Unpacker, pa: Any, body: Any) -> Any:
    kind = _decode_type(unpacker, pa, body["type"])
    chunks = [_decode_node(unpacker, pa, kind, node) for node in body["chunks"]]
    made = pa.chunked_array(chunks, type=kind)
    made.validate(full=True)
    return made


def decode_texts(unpacker: Unpacker, body: Any) -> List[Any]:
    """A chunked array of strings as a list, for a Python without pyarrow."""
    if body["type"] not in ("string", "large_string"):
        raise TypeError("not strings")
    found: List[Any] = []
    for node in body["chunks"]:
        unpacker.count()
        count, (bits, offsets, letters) = node["n"], node["b"]
        present = None if bits is None else bytes(unpacker.buffer(bits))
        places = unpacker.buffer(offsets).cast("i" if body["type"] == "string" else "q")
        data = bytes(unpacker.buffer(letters))
        if len(places) != count + 1:
            raise ValueError("a buffer of another size")
        start = places[0]
        for i in range(count):
            end = places[i + 1]
            if not 0 <= start <= end <= len(data):
                raise ValueError("offsets out of range")
            there = present is None or present[i >> 3] >> (i & 7) & 1
            found.append(str(data[start:end], "utf-8") if there else None)
            start = end
    return found


def _decode_array(unpacker: Unpacker, body: Any) -> Any:
    made = decode_chunks(unpacker, unpacker.imported("pyarrow", "pyarrow array"), body)
    if body.get("chunked") is True:
        return made
    return made.chunk(0)


def _decode_table(unpacker: Unpacker, body: Any) -> Any:
    pa = unpacker.imported("pyarrow", "pyarrow table")
    fields, columns = [], []
    for name, nullable, column in unpacker.walk_columns(body["columns"], lambda row: row[0]):
        columns.append(decode_chunks(unpacker, pa, column))
        fields.append(pa.field(name, columns[-1].type, nullable is True))
    schema = pa.schema(fields)
    if body["batch"] is True:
        columns = [column.chunk(0) for column in columns]
        made = pa.RecordBatch.from_arrays(columns, schema=schema)
    else:
        made = pa.Table.from_arrays(columns, schema=schema)
    made.validate(full=True)
    return made


DECODERS = {"arrow": _decode_array, "table": _decode_table}
