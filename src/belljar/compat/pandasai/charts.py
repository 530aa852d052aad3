"""Charts that come out of the sandbox: looked at, and written where the caller said.

The guest may propose a file name, and nothing else about the place. No file that exists is touched.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from itertools import count
from pathlib import Path

from belljar.errors import InvalidOption

MAX_BYTES = 16 * 2**20
MAX_PARTS = 20_000  # chunks of a PNG; they have kilobytes each
MAX_PIXELS = 64_000_000  # below that at which PIL warns of a decompression bomb
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)
# What PandasAI takes for the path of a plot (core/response/parser.py refuses all others).
_PATH = re.compile(r"(/[\w.-]+)+|[^\s/]+(/[\w.-]+)*")


def directory(path: str | os.PathLike[str]) -> Path:
    """Where charts go; raises InvalidOption for a place whose charts PandasAI would refuse."""
    if not _PATH.fullmatch(os.fspath(path)):
        raise InvalidOption(
            f"charts={os.fspath(path)!r}: PandasAI takes no plot from there",
            hint="its paths have letters, digits, '_', '.' and '-' only",
        )
    return Path(path)


def check_png(data: bytes) -> None:
    """Raise ValueError unless it is a whole PNG of a sane size. No pixel is decoded."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"the picture has {len(data)} bytes, more than {MAX_BYTES}")
    if not data.startswith(_SIGNATURE):
        raise ValueError("the picture is not a PNG")
    at, kinds = len(_SIGNATURE), []
    while at < len(data):
        if len(data) - at < 12:
            raise ValueError("the PNG is cut off")
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + size
        if end + 4 > len(data) or zlib.crc32(data[at + 4 : end]) != _number(data, end):
            raise ValueError("the PNG is damaged")
        kinds.append(kind)
        if len(kinds) > MAX_PARTS:
            raise ValueError(f"the PNG has more than {MAX_PARTS} parts")
        at = end + 4
    if kinds[:1] != [b"IHDR"] or kinds[-1:] != [b"IEND"] or b"IDAT" not in kinds:
        raise ValueError("the PNG lacks a part")
    width, height = _number(data, 16), _number(data, 20)
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"the picture is {width} by {height}, more than {MAX_PIXELS} pixels")


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def save(data: bytes, proposed: str, folder: Path) -> Path:
    """Write a picture that `check_png` has passed into `folder`, under a name that is free there.

    `proposed` is the guest's word: its last part is taken if it is a plain file name.
    """
    name = proposed.replace("\\", "/").rpartition("/")[2].removesuffix(".png")
    if not _NAME.fullmatch(name):
        name = "chart"
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = folder / (f"{name}.png" if number == 1 else f"{name}-{number}.png")
        try:
            with path.open("xb") as file:  # follows no link, replaces nothing
                file.write(data)
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() has no end")
