"""An engine, or what answers in its place, that says anything: broken HTTP, odd JSON, cut streams.

Whatever comes, a call ends soon, with a result or with an error of belljar's, in a bounded piece of
memory, and without a descriptor left open.

A case is one byte (what is asked), one byte (how the answers are cut), and the answers, one for
each connection, the last one again for all that follow; each behind its length.
"""

import asyncio
import functools
import json
import os
import socket
import struct
from unittest import mock

import anyio

import fuzzing
from belljar.backends.docker import cleanup, guest, owner
from belljar.backends.docker.client import engine as client
from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.client.endpoint import Endpoint
from belljar.backends.docker.images import image_store, pull
from belljar.backends.docker.isolation import EngineFacts
from belljar.backends.docker.stream import AttachedStream
from belljar.errors import SandboxError
from belljar.protocol import wire
from belljar.sandbox.channel import Channel

PATIENCE = 20.0  # seconds
QUICK = 0.1  # seconds that it has for its answer
KEY = bytes(range(wire.KEY_SIZE))
ENDPOINT = Endpoint(kind="unix", address="/run/fuzz.sock", source="fuzz")
_LENGTH = struct.Struct("=I")


class Wrong(Exception):
    """What must not be."""


class Impatient(client.Engine):
    async def request(self, *args, timeout=QUICK, **options):
        return await super().request(*args, timeout=QUICK, **options)

    def lines(self, *args, idle_timeout=QUICK, **options):
        return super().lines(*args, idle_timeout=QUICK, **options)

    async def upgrade(self, path, *, query=None, timeout=QUICK):
        return await super().upgrade(path, query=query, timeout=QUICK)


# --- what is asked ---------------------------------------------------------------------------


class Teller:
    def say(self, stage, text):
        if not isinstance(text, str):
            raise Wrong("what is told is no text")


async def _lines(engine):
    async with engine.lines("GET", "/events") as lines:
        async for line in lines:
            if not isinstance(line, dict):
                raise Wrong("a line that is no object")


async def _upload(engine):
    async def data():
        for _ in range(40):
            yield bytes(50_000)

    await engine.request("POST", "/build", data=data())


async def _attach(engine):
    stream = AttachedStream(await engine.upgrade("/containers/c/attach"))
    stream._unseal = wire.SealReader(KEY).feed
    channel = Channel(stream)
    try:
        await channel.call(wire.RESTART, timeout=QUICK)
    finally:
        stream.close()


async def _facts(engine):
    info = await engine.request("GET", "/info")
    version = await engine.request("GET", "/version")
    with client.parsing_answer(engine, "about itself"):
        EngineFacts.parse(info, version)


async def _reading(engine):
    seen = await guest.RemoteUsage(engine, "c").read()
    for each in (seen.peak_memory, seen.memory, seen.processes, seen.memory_kills):
        if each is not None and type(each) is not int:
            raise Wrong(f"a reading of {each!r}")


async def _image(engine):
    with client.parsing_answer(engine, "about an image"):
        await image_store.inspect_image(engine, "python:3.12", "linux/amd64")
        await pull.pull_image(engine, "python:3.12", None, Teller())


async def _images(engine):
    with client.parsing_answer(engine, "about its images"):
        await image_store.list_images(engine)


WORK = [
    lambda engine: engine.request("GET", "/containers/c/json"),
    _lines,
    _upload,
    _attach,
    _facts,
    _reading,
    lambda engine: guest.ran_out_of_memory(engine, "c"),
    lambda engine: cleanup.sweep_leftovers(engine, living=(), dry_run=True),
    _image,
    _images,
    lambda engine: cleanup.remove_container(engine, "c"),
]


# --- one case --------------------------------------------------------------------------------


class Answers:
    """In the place of `dial`."""

    def __init__(self, cut, answers):
        self._step = (1, 7, 100, 5000, 1 << 20)[cut % 5]
        self._stays = cut >= 128  # silent, and does not close
        self._answers = answers
        self.tasks = None
        self.open = []

    async def dial(self, endpoint):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.open.append(theirs)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.tasks.start_soon(self._give, theirs, answer)
        return Connection(ours)

    async def _give(self, sock, answer):
        step = max(self._step, len(answer) // 200)
        try:
            for start in range(0, len(answer), step):
                rest = answer[start : start + step]
                while rest:
                    try:
                        rest = rest[sock.send(rest, socket.MSG_NOSIGNAL) :]
                    except BlockingIOError:
                        await anyio.wait_writable(sock)
                await anyio.lowlevel.checkpoint()
            if not self._stays:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the client has enough


async def play(work, cut, answers):
    there = Answers(cut, answers)
    quick = mock.patch.multiple
    with (
        quick(client, dial=there.dial),
        quick(guest, USAGE_TIMEOUT=QUICK, REASON_TIMEOUT=0.0),
        quick(cleanup, GONE_TIMEOUT=QUICK, RETRY_PAUSE=0.0),
    ):
        await _play(work, there)


async def _play(work, there):
    try:
        async with anyio.create_task_group() as there.tasks:
            try:
                with anyio.fail_after(PATIENCE):
                    await work(Impatient(ENDPOINT))
            except SandboxError as error:
                str(error).encode("utf-8")
            there.tasks.cancel_scope.cancel()
    finally:
        for sock in there.open:
            sock.close()


def parse(data):
    answers, at = [], 2
    while at + _LENGTH.size <= len(data) and len(answers) < 8:
        (length,) = _LENGTH.unpack_from(data, at)
        answers.append(data[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    return answers or [b""]


def attempt(data):
    if len(data) < 2:
        return
    runner = _runner()
    before = set(os.listdir("/proc/self/fd"))
    try:
        runner.run(play(WORK[data[0] % len(WORK)], data[1], parse(data)))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    if left := fuzzing.left_open(before):
        raise Wrong(f"{len(left)} descriptors are left")


@functools.cache
def _runner():
    runner = asyncio.Runner()
    runner.run(anyio.sleep(0))
    return runner


def finish():
    if _runner.cache_info().currsize:
        _runner().close()
    _runner.cache_clear()


def allowance(data):
    return (96 << 20) + 40 * len(data)


# --- cases -----------------------------------------------------------------------------------

ID = "0" * 64
LABELS = {
    **owner.labels("x"),
    image_store.IMAGE: "1",
    image_store.KEY: "k",
    image_store.PYTHON_LABEL: "3",
}
STATE = {"Running": False, "OOMKilled": False, "ExitCode": 137, "Pid": 7}
OBJECTS = [
    {"Id": ID, "State": STATE, "Name": "/x", "HostConfig": {}},
    [{"Id": ID, "Names": ["/belljar-x"], "Labels": LABELS, "State": "running", "ImageID": ID}],
    [{"Id": ID, "RepoTags": ["belljar/x:k"], "Labels": LABELS, "Created": 1, "Size": 5}],
    {"Id": ID, "Os": "linux", "Architecture": "amd64", "Variant": "", "Config": {"Env": []}},
    {
        "ServerVersion": "28.0.1",
        "Architecture": "x86_64",
        "NCPU": 2,
        "CgroupVersion": "2",
        "Runtimes": {"runc": {}},
        "SecurityOptions": ["name=seccomp,profile=default", "name=userns"],
        "Warnings": None,
        "SwapTotal": 5,
        "Components": [{"Name": "Engine", "Version": "1"}],
        "ApiVersion": "1.41",
    },
    {
        "cpu_stats": {"cpu_usage": {"total_usage": 5}},
        "memory_stats": {"usage": 5, "max_usage": 7},
        "pids_stats": {"current": 3},
    },
    {"status": "Downloading", "id": "ab", "progressDetail": {"current": 5, "total": 9}},
    {"time": 5, "timeNano": 6, "Type": "container", "Action": "oom"},
    {"error": "no such thing", "errorDetail": {"message": "no"}},
    {"message": "removal of container c is already in progress"},
]
ODD = [
    *(None, True, -1, 0, 2**63, 10**400, 1.5, 1e400, "", "x", "\ud800", "\x1b[2J", "9" * 5000),
    *([], {}, [[]] * 50, {"a": {"b": 1}}, "\u202e", "a\nb", [None], {"": ""}),
]
STATUS = [
    *(b"200 OK", b"200 OK", b"200 OK", b"201 Created", b"204 No Content", b"101 UPGRADED"),
    *(b"101 UPGRADED", b"304 x", b"400 Bad", b"404 Not Found", b"409 Conflict", b"500 x"),
    *(b"100 Continue", b"999 x", b"000 x", b"-1 x", b"2 x", b"200", b"200 \xff\xfe"),
]
HEADERS = [
    *(b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Content-Length: -1"),
    *(b"Content-Length: x", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip"),
    *(b"Connection: Upgrade", b"Upgrade: tcp", b"Api-Version: 1.44", b"Api-Version: 0.1"),
    *(
        b"Api-Version: \xff",
        b"Content-Type: text/html",
        b"Content-Type: \xff",
        b"X: " + b"y" * 70_000,
    ),
    *(b" folded: x", b"no colon", b": empty", b"A\0B: c", b"Location: /x"),
]


def twisted(random, value):
    """Like it, with something of it odd."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        name = random.choice(list(value))
        if random.random() < 0.1:
            return {each: value[each] for each in value if each != name}
        return {**value, name: twisted(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.85:
        if random.random() < 0.2:
            return value * random.choice([2, 50, 2000])
        at = random.randrange(len(value))
        return [*value[:at], twisted(random, value[at]), *value[at + 1 :]]
    return random.choice(ODD)


def text(random):
    value = random.choice(OBJECTS)
    if random.random() < 0.7:
        value = twisted(random, value)
    made = json.dumps(value).encode()
    kind = random.random()
    if kind < 0.05:
        return b"[" * 100_000
    if kind < 0.1:
        return b'{"a":' * 20_000 + b"1"
    if kind < 0.15:
        return made[: random.randrange(len(made) + 1)]
    if kind < 0.2:
        return b"\xff" + made
    if kind < 0.4:
        return b"\n".join([made] * random.choice([2, 10, 1000]))
    return made


def stream(random):
    """What comes after an upgrade: pieces, with records in them."""
    sealing, out = wire.Seal(bytearray(KEY)), b""
    for _ in range(random.choice([1, 2, 10])):
        frame = wire.pack(random.choice([wire.REPLY, wire.DONE, wire.STREAM, 0, 255]), 1, {}, b"x")
        record = sealing(frame if random.random() < 0.7 else random.randbytes(50))
        if random.random() < 0.1:
            record = random.randbytes(random.choice([1, 20, 500]))
        kind = random.choice([1, 1, 1, 1, 2, 0, 3, 255])
        length = len(record) if random.random() < 0.9 else random.choice([0, 1, 2**31, 2**32 - 1])
        out += bytes([kind, 0, 0, random.random() < 0.03]) + length.to_bytes(4, "big") + record
    return out


def answer(random, attach):
    body = stream(random) if attach and random.random() < 0.8 else text(random)
    status = b"101 UPGRADED" if attach and random.random() < 0.8 else random.choice(STATUS)
    head = [b"HTTP/1.1 " + status]
    kind = random.random()
    if attach and kind < 0.8:
        head += [b"Connection: Upgrade", b"Upgrade: tcp"]
    elif kind < 0.5:
        head += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    elif kind < 0.8:
        head += [b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
        size = random.choice([1, 50, 4096, 1 << 20])
        parts = [body[at : at + size] for at in range(0, len(body), size)][:500]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        body += random.choice(
            [b"0\r\n\r\n", b"0\r\n\r\n", b"", b"0\r\nX: y\r\n\r\n", b"zz\r\n", b"-1\r\n"]
        )
    if random.random() < 0.8:
        head.append(b"Api-Version: 1.41")
    while random.random() < 0.15:
        head.insert(random.randrange(len(head) + 1), random.choice(HEADERS))
    made = b"\r\n".join(head) + b"\r\n\r\n" + body
    if random.random() < 0.05:
        made = b"HTTP/1.1 100 Continue\r\n\r\n" * random.choice([1, 3000]) + made
    if random.random() < 0.1:
        made += random.randbytes(random.choice([1, 100]))
    if random.random() < 0.1:
        at = random.randrange(len(made))
        made = made[:at] + random.randbytes(1) + made[at + 1 :]
    return made if random.random() < 0.9 else made[: random.randrange(len(made) + 1)]


def cases(random):
    while True:
        work = random.randrange(len(WORK))
        attach = WORK[work] is _attach
        answers = [answer(random, attach) for _ in range(random.choice([1, 2, 2, 3]))]
        if random.random() < 0.8:  # most get past the question for the version
            answers.insert(0, b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 0\r\n\r\n")
        cut = random.choice([0, 1, 2, 3, 4, 4, 4, 129, 132])
        yield bytes([work, cut]) + b"".join(_LENGTH.pack(len(a)) + a for a in answers)


def main(seconds, seed):
    return fuzzing.run("engine", seconds, seed)
