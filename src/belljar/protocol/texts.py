"""Many texts as two buffers: their letters one after the other, and their lengths.

A negative length stands for one of the values that are no text (None, nan, …).
"""

import array
from itertools import accumulate
from typing import Any, Dict, List, Sequence

from .parcel import Packer, Unpacker


def lower_texts(packer: Packer, texts: Sequence[Any]) -> Dict[str, Any]:
    return lower_lengths(packer, array.array("i", map(len, texts)), texts)


def lower_lengths(packer: Packer, lengths: Any, texts: Sequence[Any]) -> Dict[str, Any]:
    """`lengths` counts what is missing too; `texts` are only those that are there."""
    letters = "".join(texts).encode("utf-8", "surrogatepass")
    return {"lengths": packer.buffer(lengths), "text": packer.buffer(letters)}


def raise_texts(unpacker: Unpacker, body: Any, missing: Sequence[Any] = ()) -> List[Any]:
    lengths = unpacker.buffer(body["lengths"]).cast("i")
    text = str(unpacker.buffer(body["text"]), "utf-8", "surrogatepass")
    found: List[Any] = []
    end = 0
    if min(lengths, default=0) >= 0:
        bounds = zip(accumulate(lengths, initial=0), accumulate(lengths))
        found = [text[start:end] for start, end in bounds]
        end = sum(lengths)
    else:
        for length in lengths:
            if length >= 0:
                found.append(text[end : end + length])
                end += length
            else:
                found.append(missing[-1 - length])  # out of range is an error, as it should be
    if end != len(text):
        raise ValueError("lengths do not add up")
    return found
