"""Arrow values on which pyarrow would end the process are refused before it sees them.

Each runs in a process of its own: what is wrong here shows as a signal, not as an exception.
"""

import json
import subprocess
import sys

import pytest

OFFSETS = [0, 1]
HUGE = [2**31 - 1]


def words(numbers, size=4):
    return b"".join(n.to_bytes(size, "little", signed=True) for n in numbers)


def a_map(entries=None, keys=None):
    nodes = [{"n": 1, "b": [keys, 2]}, {"n": 1, "b": [None, 3]}]
    chunk = {"n": 1, "b": [None, 0], "c": [{"n": 1, "b": [entries], "c": nodes}]}
    kind = {"map": [["k", False, "int8"], ["v", True, "int8"], False]}
    return kind, chunk, [words(OFFSETS), b"\0", b"\1", b"\1"]


def empty_list(kind="list"):
    chunk = {"n": 0, "b": [None, 0], "c": [{"n": 1, "b": [None, 1]}]}
    return {kind: ["item", True, "int8"]}, chunk, [words(HUGE, 4 if kind == "list" else 8), b"\1"]


def dictionary(value):
    chunk = {"n": 1, "b": [None, 0], "d": {"n": 1, "b": []}}
    return {"dictionary": ["int32", value, False]}, chunk, [words([0])]


HOSTILE = {
    "a null among the entries of a map": a_map(entries=1),
    "a null among the keys of a map": a_map(keys=1),
    "an offset out of an empty list": empty_list(),
    "an offset out of an empty large list": empty_list("large_list"),
    "an offset out of an empty string": ("string", {"n": 0, "b": [None, 0, 1]}, [words(HUGE), b""]),
    "a dictionary of nulls": dictionary("null"),
    "a dictionary of a dictionary": dictionary({"dictionary": ["int8", "int8", False]}),
}
PROGRAM = """
import json, sys
from belljar.protocol import values
given = json.load(sys.stdin)
buffers = [memoryview(bytes.fromhex(text)) for text in given["buffers"]]
blob = values.Encoded(json.dumps(given["text"]).encode(), buffers).join()
try:
    made = values.decode(blob)
except values.CannotTravel as error:
    print("refused:", error)
else:
    print("decoded:", repr(made), repr(made.to_pandas()))
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_and_the_process_lives(name):
    kind, chunk, buffers = HOSTILE[name]
    given = {
        "text": {"arrow": {"type": kind, "chunks": [chunk]}},
        "buffers": [buffer.hex() for buffer in buffers],
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:"), done.stdout


def test_the_same_without_what_is_hostile_is_decoded():
    kind, chunk, buffers = a_map()
    del buffers[1]
    chunk["c"][0]["c"][0]["b"] = [None, 1]
    chunk["c"][0]["c"][1]["b"] = [None, 2]
    given = {
        "text": {"arrow": {"type": kind, "chunks": [chunk]}},
        "buffers": [buffer.hex() for buffer in buffers],
    }
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, input=json.dumps(given), capture_output=True, text=True)
    assert done.stdout.startswith("decoded:"), done.stdout + done.stderr
