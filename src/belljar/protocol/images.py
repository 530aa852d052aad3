"""PIL images, as their pixels: no format has to be decoded, and no bytes become many.

A reader that has no PIL, and is lenient, gets a PNG instead. It is written here, from the pixels.
"""

import struct
import sys
import zlib
from typing import Any, Callable, Dict, Optional

from .parcel import CannotTravel, Packer, Unpacker, check_type

# Bytes of a pixel; "1" has eight pixels in a byte.
_MODES = {"1": 0, "L": 1, "P": 1, "LA": 2, "PA": 2, "I;16": 2, "RGB": 3, "YCbCr": 3, "LAB": 3}
_MODES.update({"HSV": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4})
_PALETTES = ("RGB", "RGBA")
_MAX_EMPTY = 65536  # of the side of an image that has no pixels
_MAX_PALETTE = 4 * 256
# Depth and colour type in a PNG.
_PNG = {"1": (1, 0), "L": (8, 0), "LA": (8, 4), "RGB": (8, 2), "RGBA": (8, 6), "P": (8, 3)}


def encode_image(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    base = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if base is None or not issubclass(type(value), base):
        return None
    packer.count()
    if value.mode == "P" and "transparency" in value.info:
        value = value.convert("RGBA")
    if value.mode not in _MODES:
        raise packer.refusal(f"is an image of the mode {value.mode}; convert it, .convert('RGB')")
    body: Dict[str, Any] = {"mode": value.mode, "size": list(value.size)}
    body["pixels"] = packer.buffer(value.tobytes() if all(value.size) else b"")
    if value.mode in ("P", "PA"):
        kind = value.palette.mode if value.palette.mode in _PALETTES else "RGB"
        body["palette"] = [kind, packer.buffer(bytes(value.getpalette(kind) or b""))]
    return {"image": body}


def _decode_image(unpacker: Unpacker, body: Any) -> Any:
    unpacker.count()
    mode, (width, height) = check_type(str, body["mode"]), body["size"]
    pixels = unpacker.buffer(body["pixels"])
    if not (type(width) is type(height) is int and min(width, height) >= 0):
        raise ValueError("not a size")
    if len(pixels) != _row_size(mode, width) * height:
        raise ValueError("the pixels do not fill the image")
    kind, palette = None, b""
    if "palette" in body:
        kind, number = check_type(list, body["palette"])
        palette = bytes(unpacker.buffer(number))
        if kind not in _PALETTES or mode not in ("P", "PA") or len(palette) > _MAX_PALETTE:
            raise ValueError("not a palette")
    try:
        image = unpacker.imported("PIL.Image", "PIL image")
    except CannotTravel:
        # A palette with transparency has another form in a PNG.
        writable = mode in _PNG and width and height and kind != "RGBA"
        if not writable or not unpacker.reception.lenient:
            raise unpacker.refusal("is a PIL image; install pillow here to receive it") from None
        png = _write_png(mode, width, height, pixels, palette)
        return unpacker.soften("is a PIL image, as PNG without pillow", png)
    if not (width and height):
        if max(width, height) > _MAX_EMPTY:
            raise ValueError("not an image")
        return image.new(mode, (width, height))
    made = image.frombytes(mode, (width, height), bytes(pixels))
    if kind is not None:
        made.putpalette(palette, kind)
    return made


def _row_size(mode: str, width: int) -> int:
    return _MODES[mode] * width or (width + 7) // 8


def _write_png(mode: str, width: int, height: int, pixels: memoryview, palette: bytes) -> bytes:
    depth, colour = _PNG[mode]
    size = _row_size(mode, width)
    # Each row begins with its filter, 0: none.
    rows = b"".join(b"\0" + pixels[at : at + size] for at in range(0, size * height, size))
    chunks = [(b"IHDR", struct.pack("!2I5B", width, height, depth, colour, 0, 0, 0))]
    chunks += [(b"PLTE", palette)] if mode == "P" else []
    chunks += [(b"IDAT", zlib.compress(rows, 1)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


DECODERS: Dict[str, Callable[[Unpacker, Any], Any]] = {"image": _decode_image}
