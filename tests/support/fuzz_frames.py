"""Hostile frames for the host's end of the wire, with descriptors of all sorts.

Whatever comes, a run or a request ends with an answer, with ProtocolError, or with the guest lost:
soon, in a bounded piece of memory, and without a descriptor left open.

A case is one byte (what the host is doing) and messages as they go over a socket: how many
descriptors, for each its sort and size, the length of the data, the data.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import socket
import struct

import anyio

import fuzzing
from belljar.backends.base import UsageSample
from belljar.backends.native.guest import SocketStream
from belljar.errors import GuestLost, ProtocolError
from belljar.functions.registry import HostFunction, Registry
from belljar.limits import Limits
from belljar.protocol import values, wire
from belljar.sandbox import outcome
from belljar.sandbox.channel import Channel
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.run import Cell, Lost, Run

MEMORY = 16 * 1024 * 1024  # the limit of the guest that is played
PATIENCE = 3.0  # seconds
MOST_MEMORY = 1 << 26  # of a descriptor's own
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_DESCRIPTOR = struct.Struct("=BI")
_LENGTH = struct.Struct("=I")


# --- descriptors -----------------------------------------------------------------------------


def _memory(size, seals, data=b""):
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data[:size] or bytes(min(size, 1 << 20)))
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _pipe(size):
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _socket(size):
    one, other = socket.socketpair()
    other.close()
    return one.detach()


def _lingering(size):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        sock = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
    sock.send(bytes(1000))
    peer.close()
    return sock.detach()


@functools.cache
def parcels():
    """Encoded values by their size: arguments, and others."""
    made = [
        {"args": [1], "kwargs": {}},
        {"args": [bytes(300_000)], "kwargs": {"x": "y"}},
        {"args": 5},
        "text" * 100_000,
        [1, 2, 3],
    ]
    joined = [values.encode(value).join() for value in made]
    return {len(data): data for data in joined}


SORTS = [
    lambda size: _memory(size, SEALS, parcels().get(size, b"")),
    lambda size: _memory(size, SEALS | fcntl.F_SEAL_SEAL, os.urandom(min(size, 4096))),
    lambda size: _memory(size, 0, parcels().get(size, b"")),
    lambda size: _memory(size, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    lambda size: _memory(size, fcntl.F_SEAL_WRITE),
    lambda size: _memory(size << 20, SEALS),  # nothing but a hole
    _pipe,
    _socket,
    _lingering,
    lambda size: os.open("/", os.O_RDONLY),
    lambda size: os.open("/", os.O_PATH),
    lambda size: os.open("/dev/zero", os.O_RDWR),
    lambda size: os.eventfd(0),
    lambda size: os.pidfd_open(os.getpid()),
]


# --- one case --------------------------------------------------------------------------------


class Guest:
    killed = False

    def __init__(self, stream):
        self.stream = stream

    async def read_usage(self, *, from_now=False):
        return UsageSample(cpu=None, peak_memory=None, memory_kills=0)

    def kill(self):
        self.killed = True


async def answer(*args, **kwargs):
    return [len(args), list(kwargs)]


async def large(*args):
    return bytes(400_000)


async def failing(*args):
    raise ValueError("no")


REGISTRY = Registry(HostFunction(function) for function in (answer, large, failing))
KNOWN = (Lost, ProtocolError, GuestLost)


async def run(channel, value=None):
    limits = Limits(memory=MEMORY, output=100_000)
    session = GuestSession(Guest(channel._stream), 0)
    session.channel = channel
    header = {"count": 1}
    cell = Cell(limits=limits, timeout=1.0, header=header, payload=b"1", value=value, grace=0.05)
    finished = await Run(session, cell, REGISTRY).execute()
    await outcome.make_execution(finished, limits=limits, count=1)


async def ask(channel):
    await channel.call(wire.FILE, {"op": "read"}, timeout=1.0)


WORK = [
    run,
    ask,
    lambda channel: run(channel, values.encode({"x": bytes(600_000)})),
    lambda channel: run(channel, values.encode({"x": 1})),
]


async def feed(sock, messages):
    """The guest's part: sends what the case says, and takes what comes."""
    for fds, data in messages:
        opened = [SORTS[sort % len(SORTS)](size % MOST_MEMORY) for sort, size in fds]
        try:
            while data or opened:
                await _drain(sock)
                try:
                    sent = socket.send_fds(sock, [data or b"\0"], opened)
                except BlockingIOError:
                    await anyio.wait_writable(sock)
                    continue
                data = data[sent:]
                while opened:
                    os.close(opened.pop())
        except OSError:
            return  # the host has closed it
        finally:
            for fd in opened:
                os.close(fd)
    sock.shutdown(socket.SHUT_WR)


async def _drain(sock):
    with contextlib.suppress(BlockingIOError):
        while sock.recv(1 << 20):
            continue


async def play(work, messages, share):
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    stream = SocketStream(ours)
    channel = Channel(stream, 1 << 20 if share else 0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed, theirs, messages)
            tasks.start_soon(_drain_always, theirs)
            with contextlib.suppress(*KNOWN), anyio.fail_after(PATIENCE):
                await work(channel)
            tasks.cancel_scope.cancel()
    finally:
        stream.close()
        theirs.close()


async def _drain_always(sock):
    while True:
        await anyio.sleep(0.001)
        with contextlib.suppress(ConnectionError):
            await _drain(sock)


def parse(data):
    messages, position = [], 1
    with contextlib.suppress(struct.error, IndexError):
        while position < len(data):
            number, position, fds = data[position] % 32, position + 1, []
            for _ in range(number):
                fds.append(_DESCRIPTOR.unpack_from(data, position))
                position += _DESCRIPTOR.size
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            messages.append((fds, data[position : position + length]))
            position += length
    return messages


def attempt(data):
    if not data:
        return
    runner, before = _runner(), _descriptors()
    runner.run(play(WORK[data[0] % len(WORK)], parse(data), data[0] & 64))
    if left := fuzzing.left_open(before):
        raise AssertionError(f"{len(left)} descriptors are left")


@functools.cache
def _runner():
    runner = asyncio.Runner()
    runner.run(anyio.sleep(0))  # its own descriptors are no leak
    return runner


def finish():
    """Close the event loop that cases share."""
    _runner().close()
    _runner.cache_clear()


def _descriptors():
    return set(os.listdir("/proc/self/fd"))


def allowance(data):
    return 4 * MEMORY + 20 * len(data)


# --- cases -----------------------------------------------------------------------------------

NUMBERS = [
    *(0, 1, -1, 2, 3, 10, 100, 64, 2**31, 2**32, 2**32 - 1, 2**47, 2**48, 2**63, 2**64, 10**30),
    *(wire.INLINE, wire.CHUNK, wire.CHUNK + 1, MEMORY, MEMORY + 1, 1 << 20, 600_000),
]
ODD = [None, True, False, "", "x", 0.5, [], {}, [1], {"a": 1}, "1", -0.0, "\ud800"]
KINDS = [
    *([wire.CALL] * 6 + [wire.PART] * 6 + [wire.DONE] * 3 + [wire.TAKEN] * 2 + [wire.RESULT] * 2),
    *(wire.STREAM, wire.CHANGES, wire.REPLY, wire.DATA, wire.OVERFLOW, wire.HELLO),
    *(0, 1, wire.RUN, wire.ANSWER, wire.CELL_DONE, 255),
]


def number(random):
    return random.choice(NUMBERS) if random.random() < 0.5 else random.choice(list(parcels()))


def value(random):
    kind = random.random()
    return number(random) if kind < 0.7 else random.choice(ODD)


def header(random, kind):
    fields = {}
    if kind == wire.CALL:
        names = ["answer", "large", "failing", "nothing", "", "x" * 300]
        fields = {"call": random.choice([1, 2, 3, value(random)]), "function": random.choice(names)}
    elif kind in (wire.PART, wire.TAKEN):
        size = random.choice([600_000, *parcels()])
        fields = {"key": random.choice([0, 1, 2, 3, value(random)]), "size": size}
    elif kind == wire.DONE:
        fields = {"status": random.choice(["ok", "ok", "error", "exit", "died", "", 5])}
    elif kind == wire.STREAM:
        fields = {"name": random.choice(["stdout", "stderr", "background", "x"])}
    elif kind == wire.RESULT:
        part = {"mime": "text/plain", "size": random.choice([0, 5, 2**40]), "text": True}
        fields = {"parts": [part] * random.choice([0, 1, 3, 40]), "main": True}
    for name in ("shared", "parts", "key", "size", "value_error", "shown", "lost", "unknown"):
        if random.random() < (0.25 if name in ("shared", "parts") else 0.04):
            fields[name] = value(random)
    if fields and random.random() < 0.1:
        fields[random.choice(list(fields))] = value(random)
    return fields


def payload(random, kind):
    choice = random.random()
    if kind == wire.PART:
        whole = random.choice([bytes(600_000), *parcels().values()])
        start = random.choice([0, 0, 0, wire.CHUNK, 2 * wire.CHUNK])
        return whole[start : start + random.choice([wire.CHUNK, wire.CHUNK, 100, 300_000])]
    if choice < 0.4:
        return b""
    if choice < 0.8:
        return random.choice([data for data in parcels().values() if len(data) < wire.INLINE])
    return random.choice([b"{}", b"[]", b"\xff" * 50, bytes(100_000), b'{"created": [1]}'])


def frame(random):
    kind = random.choice(KINDS)
    request = random.choice([1, 1, 1, 1, 1, 1, 0, 2, 2**32 - 1])
    return wire.pack(kind, request, header(random, kind), payload(random, kind))


def descriptors(random, data):
    """Some for a message; most often one where the header speaks of one, of its size."""
    size = random.choice([*parcels(), 0, 1, 100, 4096, MEMORY, MEMORY + 1])
    if b'"shared"' in data and random.random() < 0.9:
        for known in parcels():
            if b'"shared": %d' % known in data:
                size = known
        return [(random.choice([0, 0, 0, random.randrange(len(SORTS))]), size)]
    if random.random() < 0.05:
        count = random.choice([1, 1, 2, 8, 9, 31])
        return [(random.randrange(len(SORTS)), size) for _ in range(count)]
    return []


def message(random):
    data = frame(random)
    if random.random() < 0.1:
        data = spoil(random, data)
    return descriptors(random, data), data


def spoil(random, data):
    raw = bytearray(data)
    for _ in range(random.choice([1, 1, 3])):
        raw[random.randrange(min(len(raw), 60))] = random.choice([0, 1, 0x7F, 0xFF, 0x22, 0x7B])
    return bytes(raw[: len(raw) if random.random() < 0.7 else random.randrange(1, len(raw) + 1)])


def whole_value(random):
    """A value in parts and the frame that it is of: what an honest guest sends."""
    data, key = random.choice(list(parcels().values())), random.choice([0, 1, 2])
    for start in range(0, len(data), wire.CHUNK):
        part = {"key": key, "size": len(data)}
        yield [], wire.pack(wire.PART, 1, part, data[start : start + wire.CHUNK])
    if key:
        fields = {"call": key, "function": "answer", "parts": len(data)}
        yield [], wire.pack(wire.CALL, 1, fields)
    else:
        yield [], wire.pack(wire.DONE, 1, {"status": "ok", "parts": len(data)})


def cases(random):
    while True:
        messages = []
        for _ in range(random.choice([1, 2, 4, 8, 20])):
            messages += whole_value(random) if random.random() < 0.2 else [message(random)]
        if random.random() < 0.1:
            fds, data = messages[-1]
            messages += [(fds[:1], data)] * random.choice([10, 100])
        if random.random() < 0.2:
            random.shuffle(messages)
        yield put_together(random.randrange(256), cut(random, messages))


def cut(random, messages):
    """Bytes may come in any pieces; descriptors come with the first."""
    for fds, data in messages:
        if random.random() < 0.2 and len(data) > 1:
            place = random.randrange(1, len(data))
            yield fds, data[:place]
            yield [], data[place:]
        else:
            yield fds, data


def put_together(work, messages):
    made = bytearray([work])
    for fds, data in messages:
        made.append(len(fds))
        made += b"".join(_DESCRIPTOR.pack(sort, size) for sort, size in fds)
        made += _LENGTH.pack(len(data)) + data
    return bytes(made)


def main(seconds, seed):
    return fuzzing.run("frames", seconds, seed)
