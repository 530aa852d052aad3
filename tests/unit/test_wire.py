"""The wire: frames survive any cutting, and a hostile peer can neither hang nor fill the host."""

import contextlib
import itertools
import json
import random
import tracemalloc

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.backends.base import UsageSample
from belljar.errors import GuestLost, ProtocolError, SandboxError
from belljar.guest import cells
from belljar.limits import Limits
from belljar.protocol import buffers, values, wire
from belljar.sandbox import channel, outcome
from belljar.sandbox.channel import Channel
from belljar.sandbox.commands import _Command
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.outcome import MAX_CHANGES
from belljar.sandbox.run import Cell, Run
from belljar.sandbox.streams import Stream, Window

PATIENCE = 90.0  # seconds after which a test says "it hangs"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
headers = st.dictionaries(st.text(max_size=10), json_values, max_size=4)
from_guest = st.sampled_from(sorted(wire.FROM_GUEST))
frames = st.builds(
    wire.Frame,
    kind=from_guest,
    request=st.integers(0, 2**32 - 1),
    header=headers,
    payload=st.binary(max_size=2000),
)


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_frames_arrive_as_sent_however_the_bytes_are_cut(sent, places):
    data = b"".join(wire.pack(*frame[:4]) for frame in sent)
    reader = wire.Reader(wire.FROM_GUEST)
    received = []
    for piece in cut(data, places):
        reader.feed(piece)
        received += reader.frames()
    assert [frame[:4] for frame in received] == [frame[:4] for frame in sent]
    assert sum(frame.size for frame in received) == len(data)
    assert len(reader) == 0


def test_lone_surrogates_travel_in_a_header():
    reader = wire.Reader(wire.FROM_GUEST)
    reader.feed(wire.pack(wire.REPLY, 1, {"path": "\udcff\ud800"}))
    assert next(iter(reader.frames())).header == {"path": "\udcff\ud800"}


def test_a_payload_of_the_largest_size_passes_and_one_byte_more_is_refused_by_both_ends():
    reader = wire.Reader(wire.FROM_GUEST)
    reader.feed(wire.pack(wire.DATA, 1, None, bytes(wire.MAX_PAYLOAD)))
    assert len(next(iter(reader.frames())).payload) == wire.MAX_PAYLOAD
    with pytest.raises(wire.WireError, match="payload"):
        wire.pack(wire.DATA, 1, None, bytes(wire.MAX_PAYLOAD + 1))
    with pytest.raises(wire.WireError, match="header"):
        wire.pack(wire.DATA, 1, {"x": "y" * wire.MAX_HEADER})


@pytest.mark.parametrize(
    "head",
    [
        wire.HEAD.pack(wire.DATA, 1, 0, wire.MAX_PAYLOAD + 1),
        wire.HEAD.pack(wire.DATA, 1, wire.MAX_HEADER + 1, 0),
        wire.HEAD.pack(wire.DATA, 1, 2**32 - 1, 2**32 - 1),
        wire.HEAD.pack(0, 1, 0, 0),
        wire.HEAD.pack(wire.RUN, 1, 0, 0),
        wire.HEAD.pack(wire.CELL_DONE, 1, 0, 0),
    ],
)
def test_a_forbidden_head_is_refused_before_its_body_is_awaited(head):
    reader = wire.Reader(wire.FROM_GUEST)
    reader.feed(head)
    with pytest.raises(wire.WireError):
        list(reader.frames())


BAD_HEADERS = [
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b'{"a":' + b"9" * 10_000 + b"}",
    b"{}{}",
]


@pytest.mark.parametrize("text", BAD_HEADERS, ids=lambda text: repr(text[:8]))
def test_a_header_that_is_no_json_object_is_refused(text):
    reader = wire.Reader(wire.FROM_GUEST)
    reader.feed(wire.HEAD.pack(wire.DATA, 1, len(text), 0) + text)
    with pytest.raises(wire.WireError):
        list(reader.frames())


# --- a hostile guest -------------------------------------------------------------------------


class HostileStream:
    """Plays given bytes and then, like a socket whose peer died, nothing."""

    def __init__(self, pieces):
        self._pieces = iter(pieces)
        self.served = 0

    async def receive(self):
        await anyio.lowlevel.checkpoint()
        piece = next(self._pieces, b"")
        self.served += len(piece)
        return piece

    shares = False

    async def send(self, data, fd=-1):
        await anyio.lowlevel.checkpoint()

    def take_fd(self):
        raise wire.WireError("there are none")

    def ended(self):
        return False


class FakeGuest:
    def __init__(self, stream):
        self.stream = stream
        self.killed = False

    async def read_usage(self, *, from_now=False):
        return UsageSample(cpu=None, peak_memory=None, memory_kills=0)

    def kill(self):
        self.killed = True


def ask(pieces):
    """One request over a hostile stream: its answer or its error. Fails when it hangs."""
    stream = HostileStream(pieces)

    async def main():
        with anyio.fail_after(PATIENCE):
            try:
                return await Channel(stream).call(wire.FILE, {"op": "stat"})
            except SandboxError as error:
                return error

    return anyio.run(main), stream


def drive(pieces, *, timeout=5.0, limits=None):
    """One cell over a hostile stream. Fails when it hangs."""
    stream = HostileStream(pieces)
    guest = FakeGuest(stream)

    async def main():
        session = GuestSession(guest, 0, after=0)
        cell = Cell(limits=limits or Limits(output=10_000), timeout=timeout)
        with anyio.fail_after(PATIENCE):
            return await Run(session, cell).execute()

    return anyio.run(main), guest, stream


garbage = st.lists(st.binary(max_size=200), max_size=10)
kinds = from_guest | st.integers(0, 255)
hostile_frames = st.builds(
    lambda kind, request, header, payload, sizes: (
        wire.HEAD.pack(kind, request, sizes[0] or len(header), sizes[1] or len(payload))
        + header
        + payload
    ),
    kinds,
    st.integers(0, 3),
    headers.map(lambda header: json.dumps(header).encode())
    | st.sampled_from([b"", b"{", b"[]", b"\xff", b'{"name":"stdout"}', b'{"parts":[{}]}'])
    | st.binary(max_size=20),
    st.binary(max_size=300),
    st.tuples(st.sampled_from([0, 0, 0, 1, 2**31]), st.sampled_from([0, 0, 0, 7, 2**32 - 1])),
)


@given(garbage | st.lists(hostile_frames, max_size=12))
@settings(max_examples=300)
def test_a_request_to_a_hostile_guest_ends_with_an_answer_or_our_own_error(pieces):
    answer, _ = ask(pieces)
    assert isinstance(answer, (tuple, GuestLost, ProtocolError))


@given(garbage | st.lists(hostile_frames, max_size=12))
@settings(max_examples=300)
def test_a_cell_of_a_hostile_guest_ends_and_is_done_or_lost(pieces):
    run, guest, _ = drive(pieces)
    assert (run.done is None) != (run.lost is None)
    if isinstance(run.lost, ProtocolError):
        assert guest.killed
    assert run.usage.output_bytes <= 10_000


def honest_conversation():
    return [
        wire.pack(wire.STREAM, 1, {"name": "stdout"}, b"hello\n"),
        wire.pack(wire.RESULT, 1, {"parts": [{"mime": "text/plain", "size": 1}], "main": True}),
        wire.pack(wire.STREAM, 1, {"name": "background"}, b"late\n"),
        wire.pack(wire.DONE, 1, {"status": "ok", "lost": False, "state_lost": False}, b"42"),
    ]


def test_the_honest_conversation_that_is_mutated_below_is_understood():
    run, guest, _ = drive(honest_conversation())
    assert run.done is not None
    assert run.stdout == "hello\n"
    assert len(run.results) == 1
    assert not guest.killed


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    st.lists(st.integers(0, 10**6), max_size=6),
)
@settings(max_examples=300)
def test_a_mutated_conversation_never_hangs_nor_raises_anything_foreign(changes, places):
    data = bytearray(b"".join(honest_conversation()))
    for place, value in changes:
        data[place % len(data)] = value
    run, guest, _ = drive(cut(bytes(data), places))
    assert (run.done is None) != (run.lost is None)
    if isinstance(run.lost, ProtocolError):
        assert guest.killed


FLOODS = {
    "data for the request": wire.pack(wire.DATA, 1, None, bytes(2**20)),
    "output for the request": wire.pack(wire.STREAM, 1, {"name": "stdout"}, bytes(2**20)),
    "results for the request": wire.pack(wire.RESULT, 1, {"parts": []}, bytes(2**20)),
    "data for nobody": wire.pack(wire.DATA, 9, None, bytes(2**20)),
    "frames without end": wire.HEAD.pack(wire.DATA, 1, 0, wire.MAX_PAYLOAD) + bytes(2**20),
    "empty frames": wire.pack(wire.DATA, 1) * 10_000,
    "many small frames": wire.pack(wire.DATA, 1, None, b"x" * 100) * 10_000,
}


def flood(piece):
    """400 MB, if the guest is let; of small frames fewer, because they cost time."""
    return itertools.repeat(piece, 400 if piece.count(piece[:100]) < 100 else 20)


# What the host may hold of 400 MB: one frame, what is queued for the request, copies of these.
MOST = 200 * 2**20


@pytest.mark.parametrize("piece", FLOODS.values(), ids=FLOODS)
def test_a_flood_does_not_fill_the_host(piece):
    tracemalloc.start()
    try:
        answer, stream = ask(flood(piece))
        assert isinstance(answer, (GuestLost, ProtocolError))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST, f"after {stream.served} bytes"


@pytest.mark.parametrize("piece", FLOODS.values(), ids=FLOODS)
def test_a_flood_during_a_cell_ends_with_the_cell(piece):
    tracemalloc.start()
    try:
        run, _, _ = drive(flood(piece), timeout=2.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.done is None
    assert run.usage.output_bytes <= 10_000
    assert peak < MOST


def test_a_flood_for_a_request_that_does_not_read_its_frames_does_not_fill_the_host():
    stream = HostileStream(flood(FLOODS["data for the request"]))

    async def main():
        channel = Channel(stream)
        channel.open()  # the first: it waits for something else, and does not read
        with anyio.fail_after(PATIENCE), pytest.raises(ProtocolError):
            await channel.call(wire.FILE)

    tracemalloc.start()
    try:
        anyio.run(main)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST


CHANGES = {"created": [], "changed": [], "removed": []}


@pytest.mark.parametrize(
    "frame",
    [
        wire.pack(wire.CHANGES, 1, None, b" " * MAX_CHANGES + json.dumps(CHANGES).encode()),
        wire.pack(wire.CHANGES, 1, None, json.dumps(CHANGES | {"created": "abc"}).encode()),
        wire.pack(wire.CHANGES, 1, None, json.dumps(CHANGES | {"changed": {"a": 1}}).encode()),
        wire.pack(wire.CHANGES, 1, None, json.dumps(CHANGES | {"removed": [["a"]]}).encode()),
        wire.pack(wire.CHANGES, 1, None, b"[" * 100_000),
        wire.pack(wire.RESULT, 1, {"parts": [{"mime": "m" * 101, "size": 0}]}),
        wire.pack(wire.RESULT, 1, {"parts": [{"mime": "m", "size": -1}]}),
    ],
)
def test_what_init_would_not_say_of_a_cell_costs_the_guest_its_life(frame):
    run, guest, _ = drive([frame])
    assert isinstance(run.lost, ProtocolError)
    assert guest.killed


def test_changes_as_long_as_init_tells_them_are_taken():
    assert cells.MAX_CHANGES == MAX_CHANGES
    told = json.dumps(CHANGES | {"created": ["x" * 100] * 9_000}).encode()
    run, _, _ = drive([wire.pack(wire.CHANGES, 1, None, told), wire.pack(wire.DONE, 1)])
    assert len(run.files.created) == 9_000


@pytest.mark.parametrize("code", [2**32, -(2**31) - 1, 2**70, True, "1", None])
def test_an_exit_code_that_no_process_can_have_is_none(code):
    run, _, _ = drive([wire.pack(wire.DONE, 1, {"status": "exit", "exit_code": code})])
    assert run.number("exit_code") is None


@pytest.mark.parametrize("worker", ["x" * 200_000, None, True, [1]])
def test_a_worker_that_is_no_number_is_not_repeated(worker):
    value = values.encode(bytes(2 * wire.INLINE))
    taken = wire.HEAD.pack(wire.TAKEN, 1, len(json.dumps({"worker": worker})), 0)
    guest = FakeGuest(HostileStream([taken + json.dumps({"worker": worker}).encode()]))

    async def main():
        session = GuestSession(guest, 0, after=0)
        return await Run(session, Cell(limits=Limits(), timeout=5.0, value=value)).execute()

    assert isinstance(anyio.run(main).lost, ProtocolError)
    assert guest.killed


def judged(run, limits):
    return anyio.run(lambda: outcome.make_execution(run, limits=limits, count=1))


def test_a_value_that_nobody_asked_for_is_not_decoded_if_no_worker_would_send_it():
    """A small one may become a hundred times as many objects."""
    limits = Limits(output=1024)
    value = values.encode(["ab"] * 100_000)
    frames = [
        wire.pack(wire.PART, 1, {"key": wire.VALUE_KEY, "size": value.size}, part)
        for part in buffers.cut_parts(value.pieces())
    ]
    frames.append(wire.pack(wire.DONE, 1, {"status": "ok", "parts": value.size}))
    run, _, _ = drive(frames, limits=limits)
    execution = judged(run, limits)
    assert execution.ok
    assert execution.value is None
    assert "value is None, because it takes more than 8k" in execution.notes[0]


def test_a_value_for_which_the_host_has_no_memory_costs_the_cell_only_its_value(monkeypatch):
    """One byte of it and a lie about its size are enough, where memory is bounded."""
    monkeypatch.setattr(buffers, "_map_anonymous", lambda size: None)
    limits = Limits()
    part = {"key": wire.VALUE_KEY, "size": 300_000_000}
    done = {"status": "ok", "parts": 300_000_000}
    frames = [wire.pack(wire.PART, 1, part, b"x"), wire.pack(wire.DONE, 1, done)]
    run, guest, _ = drive(frames, limits=limits)
    execution = judged(run, limits)
    assert execution.ok
    assert not guest.killed
    assert "no memory for a value of 300000000 bytes" in execution.notes[0]


def test_a_key_of_another_length_is_not_taken():
    opener, sealing = wire.SealReader(bytes(wire.KEY_SIZE)), wire.Seal(bytearray(wire.KEY_SIZE))
    with pytest.raises(wire.WireError):
        opener.feed(sealing._record(bytes(100), 100 | wire._NEW_KEY))


@pytest.mark.parametrize("kind", [wire.DATA, wire.STREAM])
def test_others_have_their_turn_among_many_small_frames(kind):
    """All of them came at once, so that the stream itself does not pause."""
    frame = wire.pack(kind, 1, {"name": "stdout"}, b"x")
    many = 20 * channel.AT_ONCE
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def main():
        stream = HostileStream([frame * many + wire.pack(wire.DONE, 1, {"status": "ok"})])
        session = GuestSession(FakeGuest(stream), 0, after=0)
        run = Run(session, Cell(limits=Limits(output=many), timeout=None))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            finished = await run.execute()
            tasks.cancel_scope.cancel()
        return finished

    run = anyio.run(main)
    if kind == wire.STREAM:
        assert run.stdout == "x" * many
        assert turns >= 20


def test_who_is_cancelled_among_many_frames_leaves_the_others_to_whoever_reads_next():
    frames = wire.pack(wire.DATA, 9) * (3 * channel.AT_ONCE)

    async def main():
        talk = Channel(HostileStream([frames + wire.pack(wire.REPLY, 2, {"result": 1})]))
        first, second = talk.open(), talk.open()
        with anyio.CancelScope() as scope, anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first.next)
                while talk._came is None:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        with anyio.fail_after(PATIENCE):
            return await second.next()

    assert anyio.run(main).header == {"result": 1}


def test_random_bytes_in_bulk_are_refused_at_once():
    source = random.Random(7)
    for _ in range(200):
        answer, stream = ask([source.randbytes(4096)] * 100)
        assert isinstance(answer, (GuestLost, ProtocolError))
        assert stream.served <= 100 * 4096


# --- streams ---------------------------------------------------------------------------------

OPENED = wire.pack(wire.REPLY, 1, {"pid": 7, "cmd": "x", "cwd": "/", "stdin": True, "end": None})
OUTPUT = {"name": "stdout"}
ENDED = wire.pack(wire.DONE, 1, {"exit_code": 0, "signal": None})


def stream(pieces, *, send=b"", port=False):
    """One stream over a hostile wire, read to its end: what came, or the error; and the guest."""
    guest = FakeGuest(HostileStream(pieces))

    async def main():
        opened = Stream(GuestSession(guest, 0, after=0), 0)
        found = []
        with anyio.fail_after(PATIENCE):
            try:
                answer = await opened.open({"port": 1} if port else {"argv": ["x"]})
                if "error" in answer:
                    return answer
                await opened.send(send)
                while chunks := await opened.receive():
                    found += chunks
            except SandboxError as error:
                return error
            finally:
                await opened.close()
        return found

    return anyio.run(main), guest


def command(pieces, **options):
    """A command over a hostile wire: its end, and the guest."""
    guest = FakeGuest(HostileStream(pieces))
    options = {"stdin": b"", "truncate": False, **options}

    async def main():
        cell = Cell(limits=Limits(output=10_000), timeout=5.0, kind=wire.OPEN, grace=0.0)
        with anyio.fail_after(PATIENCE):
            return await _Command(GuestSession(guest, 0, after=0), cell, **options).execute()

    return anyio.run(main), guest


def output(size, name="stdout"):
    return wire.pack(wire.STREAM, 1, {"name": name}, bytes(size))


def credit(size):
    return wire.pack(wire.CREDIT, 1, {"size": size})


def test_an_honest_stream_is_understood():
    pieces = [OPENED, output(5), output(3, "stderr"), credit(wire.STREAM_COST + 4), ENDED]
    found, guest = stream(pieces, send=b"text")
    assert found == [("stdout", bytes(5)), ("stderr", bytes(3))]
    assert not guest.killed
    finished, guest = command(pieces, stdin=b"text")
    assert (finished.number("exit_code"), finished.stdout) == (0, "\0" * 5)
    assert not guest.killed


def test_a_server_may_end_its_output_alone():
    found, guest = stream([OPENED, output(5), wire.pack(wire.END, 1)], port=True)
    assert found == [("stdout", bytes(5))]
    assert not guest.killed


def test_credit_counts_the_frames_as_well_as_their_bytes():
    """What an honest guest may send at most before the host has taken any."""
    large = output(wire.WINDOW - wire.STREAM_COST)
    found, guest = stream([OPENED + large + ENDED])
    assert len(found[0][1]) == wire.WINDOW - wire.STREAM_COST
    assert not guest.killed
    error, guest = stream([OPENED + large + output(1) + ENDED])
    assert isinstance(error, ProtocolError)
    assert guest.killed
    window = Window()
    small = wire.Frame(wire.STREAM, 1, {"name": "stdout"}, b"x")
    for _ in range(wire.WINDOW // (wire.STREAM_COST + 1)):
        window.receive(small)
    with pytest.raises(ProtocolError):
        window.receive(small)


NOT_FOR_A_STREAM = {
    "more than its credit": output(wire.WINDOW),
    "no bytes": output(0),
    "an unknown output": output(5, "background"),
    "no name": wire.pack(wire.STREAM, 1, None, b"x"),
    "a list as name": wire.pack(wire.STREAM, 1, {"name": ["stdout"]}, b"x"),
    "credit that it does not owe": credit(1),
    "credit of nothing": credit(0),
    "credit below zero": credit(-5),
    "credit without end": credit(2**70),
    "credit that is no number": credit("1"),
    "credit that is true": credit(True),
    "a second answer": OPENED,
    "data": wire.pack(wire.DATA, 1, None, b"x"),
    "a call": wire.pack(wire.CALL, 1, {"call": 1, "function": "f"}),
    "the end of a program's output": wire.pack(wire.END, 1),
    "a frame of its own making": wire.HEAD.pack(wire.OPEN, 1, 0, 0),
}


@pytest.mark.parametrize("frame", NOT_FOR_A_STREAM.values(), ids=NOT_FOR_A_STREAM)
def test_what_init_would_not_say_of_a_stream_costs_the_guest_its_life(frame):
    error, guest = stream([OPENED, frame, ENDED])
    assert isinstance(error, ProtocolError)
    assert guest.killed
    error, guest = stream([OPENED + output(5) + frame + ENDED])  # taken together
    assert isinstance(error, ProtocolError)
    assert guest.killed


@pytest.mark.parametrize(
    "frame", [*NOT_FOR_A_STREAM.values(), wire.pack(wire.OVERFLOW, 9)], ids=[*NOT_FOR_A_STREAM, "-"]
)
def test_a_command_that_a_hostile_guest_runs_ends(frame):
    finished, guest = command([OPENED, frame, ENDED])
    if frame == wire.pack(wire.OVERFLOW, 9):  # the control: for nobody
        assert finished.done is not None
        assert not guest.killed
    else:
        assert isinstance(finished.lost, ProtocolError)
        assert guest.killed


@pytest.mark.parametrize("frame", [output(5), ENDED, credit(5)])
def test_nothing_comes_before_a_stream_is_open(frame):
    error, guest = stream([frame, OPENED, ENDED])
    assert isinstance(error, ProtocolError)
    assert guest.killed


def test_what_comes_after_the_end_of_a_stream_is_dropped():
    flooding = [OPENED, output(5), ENDED, *[output(2**20)] * 400]
    tracemalloc.start()
    try:
        found, guest = stream(flooding)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [("stdout", bytes(5))]
    assert not guest.killed
    assert peak < 8 * 2**20


STREAM_FLOODS = {
    "output": [output(2**16)] * 4000,
    "small output": [output(1) * 1000] * 100,
    "credit": [credit(1) * 1000] * 100,
    "answers": [OPENED * 1000] * 100,
    "ends": [wire.pack(wire.END, 1) * 1000] * 100,
}


@pytest.mark.parametrize("pieces", STREAM_FLOODS.values(), ids=STREAM_FLOODS)
def test_a_flood_for_a_stream_that_is_not_read_does_not_fill_the_host(pieces):
    """Another request reads the wire meanwhile, and hands on what is the stream's."""
    guest = FakeGuest(HostileStream([OPENED, *pieces, wire.pack(wire.REPLY, 2)]))

    async def main():
        session = GuestSession(guest, 0, after=0)
        unread = Stream(session, 0)
        await unread.open({"argv": ["x"]})
        with anyio.fail_after(PATIENCE):
            with contextlib.suppress(GuestLost, ProtocolError):
                await session.channel.call(wire.FILE)
            with pytest.raises((GuestLost, ProtocolError)):
                await unread.receive()

    tracemalloc.start()
    try:
        anyio.run(main)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


@given(garbage | st.lists(hostile_frames, max_size=12), st.booleans())
@settings(max_examples=120)
def test_a_stream_of_a_hostile_guest_ends(pieces, port):
    found, guest = stream([OPENED, *pieces], send=b"text", port=port)
    assert isinstance(found, (list, dict, GuestLost, ProtocolError))
    assert guest.killed == isinstance(found, ProtocolError)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    st.lists(st.integers(0, 10**6), max_size=6),
)
@settings(max_examples=120)
def test_a_mutated_stream_never_hangs_nor_raises_anything_foreign(changes, places):
    honest = [OPENED, output(50), output(3, "stderr"), credit(wire.STREAM_COST + 4), ENDED]
    data = bytearray(b"".join(honest))
    for place, value in changes:
        data[place % len(data)] = value
    found, guest = stream(cut(bytes(data), places), send=b"text")
    assert isinstance(found, (list, dict, GuestLost, ProtocolError))
    assert guest.killed == isinstance(found, ProtocolError)


# --- several requests on one channel ---------------------------------------------------------


class LiveStream:
    """A stream whose other end is the test."""

    def __init__(self):
        self.sender, self._receiver = anyio.create_memory_object_stream(100)
        self.sent = []

    async def receive(self):
        try:
            return await self._receiver.receive()
        except anyio.EndOfStream:
            return b""

    shares = False

    async def send(self, data, fd=-1):
        reader = wire.Reader(wire.FROM_HOST)
        reader.feed(data)
        self.sent += reader.frames()

    def close(self):
        self.sender.close()
        self._receiver.close()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_answers_in_another_order_reach_those_who_asked(loop):
    async def main():
        stream = LiveStream()
        channel = Channel(stream)
        answers = {}

        async def client(name):
            answers[name] = await channel.call(wire.FILE, {"name": name})

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for name in ("a", "b", "c"):
                    group.start_soon(client, name)
                while len(stream.sent) < 3:
                    await anyio.lowlevel.checkpoint()
                for frame in reversed(stream.sent):
                    answer = wire.pack(wire.REPLY, frame.request, {"to": frame.header["name"]})
                    await stream.sender.send(answer)
        stream.close()
        assert {name: answer[0]["to"] for name, answer in answers.items()} == {
            "a": "a",
            "b": "b",
            "c": "c",
        }

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_when_the_one_who_reads_is_cancelled_the_others_still_get_their_answers(loop):
    async def main():
        stream = LiveStream()
        channel = Channel(stream)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                first = anyio.CancelScope()

                async def reader():
                    with first:
                        await channel.call(wire.FILE, {"name": "reader"})

                answers = []

                async def other():
                    answers.append(await channel.call(wire.FILE, {"name": "other"}))

                group.start_soon(reader)
                while len(stream.sent) < 1:
                    await anyio.lowlevel.checkpoint()
                group.start_soon(other)
                while len(stream.sent) < 2:
                    await anyio.lowlevel.checkpoint()
                first.cancel()
                number = next(f.request for f in stream.sent if f.header["name"] == "other")
                await stream.sender.send(wire.pack(wire.REPLY, number, {"ok": 1}))
        stream.close()
        assert answers == [({"ok": 1}, b"")]

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_death_of_the_guest_is_told_to_everybody_who_waits(loop):
    async def main():
        stream = LiveStream()
        channel = Channel(stream)
        lost = []

        async def client():
            try:
                await channel.call(wire.FILE)
            except GuestLost:
                lost.append(1)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(client)
                while len(stream.sent) < 3:
                    await anyio.lowlevel.checkpoint()
                stream.sender.close()
        stream.close()
        assert len(lost) == 3
        assert not channel.alive

    anyio.run(main, backend=loop)
