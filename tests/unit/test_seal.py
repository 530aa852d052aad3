"""Seals: what init has not sealed never reaches the host, however it is cut, replayed or forged."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.backends.docker.stream import ERROR, OUTPUT, Demultiplexer
from belljar.protocol import wire
from belljar.protocol.wire import KEY_SIZE, MAX_RECORD, Seal, SealReader


def pair():
    key = os.urandom(KEY_SIZE)
    return Seal(bytearray(key)), SealReader(key)


@st.composite
def cut(draw, data):
    """The same bytes in pieces."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.data(), st.lists(st.binary(max_size=60)), st.sets(st.integers(0, 8)))
def test_what_is_sealed_comes_out_whole_also_over_new_keys(data, messages, forks):
    seal, opener = pair()
    sent = b""
    for number, message in enumerate(messages):
        if number in forks:
            sent += seal.renew()
        sent += seal(message)
    pieces = data.draw(cut(sent))
    assert b"".join(opener.feed(piece) for piece in pieces) == b"".join(messages)


@settings(max_examples=60)
@given(st.data())
def test_a_changed_bit_anywhere_is_refused(data):
    seal, opener = pair()
    sent = bytearray(seal(b"a message") + seal(b"another"))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        got = opener.feed(bytes(sent))
    except wire.WireError:
        return
    assert b"another" not in got  # a length that grew waits for more, which then fits no code
    with pytest.raises(wire.WireError):
        opener.feed(bytes(MAX_RECORD + 64))


def test_a_record_is_good_once_and_in_its_turn():
    seal, opener = pair()
    first, second = seal(b"one"), seal(b"two")
    with pytest.raises(wire.WireError):
        SealReader(opener._key).feed(second)
    opener.feed(first)
    with pytest.raises(wire.WireError):
        opener.feed(first)


def test_a_fork_cannot_seal_with_what_it_remembers():
    seal, opener = pair()
    remembered = bytes(seal._key)
    assert opener.feed(seal.renew()) == b""
    assert opener.feed(seal(b"after the fork")) == b"after the fork"
    forger = Seal(bytearray(remembered))
    forger._number = seal._number
    with pytest.raises(wire.WireError):
        opener.feed(forger(b"forged"))


def test_a_child_has_no_key():
    seal, opener = pair()
    seal.erase_key()
    with pytest.raises(wire.WireError):
        opener.feed(seal(b"forged"))


@pytest.mark.parametrize("size", [0, 1, KEY_SIZE - 1, KEY_SIZE + 1, 64, 65, 100, 5000])
def test_a_new_key_of_another_length_is_refused(size):
    """By an image that has the first key by right, and speaks for its init."""
    seal, opener = pair()
    announced = seal._record(b"k" * size, size | 1 << 31)
    with pytest.raises(wire.WireError, match="the new key of a seal has the wrong size"):
        opener.feed(announced)


def piece(kind, data):
    return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(st.data(), st.lists(st.tuples(st.sampled_from([OUTPUT, ERROR]), st.binary(max_size=40))))
def test_streams_are_told_apart_however_they_are_cut(data, pieces):
    sent = b"".join(piece(kind, body) for kind, body in pieces)
    streams = Demultiplexer()
    got = b"".join(streams.feed(part) for part in data.draw(cut(sent)))
    assert got == b"".join(body for kind, body in pieces if kind == OUTPUT)
    assert bytes(streams.last_words) == b"".join(body for kind, body in pieces if kind == ERROR)


def test_of_last_words_only_the_last_are_kept_and_strange_streams_are_refused():
    streams = Demultiplexer()
    streams.feed(piece(ERROR, b"x" * 100_000 + b"the end"))
    assert len(streams.last_words) == 8192
    assert streams.last_words.endswith(b"the end")
    with pytest.raises(wire.WireError):
        streams.feed(piece(7, b"?"))
