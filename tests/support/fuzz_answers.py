"""A hostile guest that answers the host's requests: files, trees, workspaces, forks, commands.

Each request gets an answer, right but for what the case says is wrong. Whatever it is, the work
ends soon, with a result or with an error of belljar's; nothing outside of the directory that the
caller named is changed, nothing of it is sent to the guest, and no descriptor is left open.

A case is JSON: {"work": what the host does, "tree": {directory: [[name, kind, ...], ...]},
"wrong": {number of the request: what is wrong with its answer}, "again": whether it all begins
anew when the last was answered}.
"""

import asyncio
import contextlib
import errno
import functools
import json
import os
import socket
import tempfile
from unittest import mock

import anyio

import fuzzing
from belljar.backends.base import UsageSample
from belljar.backends.native.guest import SocketStream
from belljar.errors import SandboxError
from belljar.files import workspace
from belljar.files.api import AsyncFiles
from belljar.limits import Limits
from belljar.protocol import removal, wire
from belljar.sandbox import channel, commands, guest_session, outcome, ports, process, run, streams
from belljar.sandbox.channel import Channel, Lost
from belljar.sandbox.run import Cell
from fuzzing_guest import MOST, Answers, Field, Wrong, serve

PATIENCE = 60.0  # seconds: of a busy machine
LIMITS = Limits(workspace="1m", tmp="1m", memory="64m")


QUICK = 0.3  # seconds that a guest has for its answer


class Impatient(Channel):
    async def call(self, kind, header=None, payload=b"", *, timeout=QUICK):
        return await super().call(kind, header, payload, timeout=QUICK)


# --- the host --------------------------------------------------------------------------------


class Guest:
    def __init__(self, stream):
        self.stream = stream

    async def read_usage(self, *, from_now=False):
        return UsageSample(cpu=None, peak_memory=None, memory_kills=0)

    def kill(self):
        self.stream.socket.shutdown(socket.SHUT_RDWR)

    async def close(self):
        pass


class Connected:
    limits, workdir, branch = LIMITS, "/workspace", 0

    def __init__(self, channel):
        self._channel = channel

    @contextlib.asynccontextmanager
    async def using(self, *, watching=False):
        yield self._channel, self

    def note_use(self):
        pass

    def reading(self):
        return contextlib.nullcontext()

    def find_mapped(self):
        return None  # ask the guest, which is fuzzed


async def _workspace(files, field):
    mirrored = workspace.HostWorkspace(field.inner, limit=LIMITS.workspace)
    try:
        await mirrored.load(files)
        await mirrored.save(files)
        with open(f"{field.inner}/of the caller", "w") as file:
            file.write("new")
        await mirrored.refresh(files)
        await mirrored.save(files)
    finally:
        mirrored.close()


async def _forks(channel, field):
    guest = Guest(channel._stream)
    here = guest_session.GuestSession(guest, 0)
    here.channel = channel
    async with here.turn(0):
        number, _ = await here.keep(branch=False)
        await here.go_back(number)
    async with here.turn(0):
        branch, _ = await here.keep(branch=True)
    async with here.turn(branch):
        pass
    await here.leave(branch)


async def _command(channel, field):
    asked = json.dumps({"argv": ["x"], "stdin": True}).encode("ascii")
    credit = {"credit": wire.WINDOW}
    cell = Cell(
        limits=LIMITS, timeout=QUICK, kind=wire.OPEN, header=credit, payload=asked, grace=0.0
    )
    run = commands._Command(_session(channel), cell, b"x" * 3_000_000, truncate=True)
    finished = await run.execute()
    if finished.lost is None:
        outcome.make_command_result(finished)


def _session(channel):
    session = guest_session.GuestSession(Guest(channel._stream), 0)
    session.channel = channel
    return session


async def _process(channel, field):
    session = _session(channel)
    asked = {"argv": ["x"], "stdin": True}
    program = await process.open_process(Connected(channel), session, asked)
    try:
        await process.list_processes(session, ended=True)
        await program.resize(80, 24)
        await program.output()
        with anyio.move_on_after(QUICK):
            await program.send(b"x" * 3_000_000)
            await program.close_stdin()
        with anyio.move_on_after(QUICK):
            async for chunk in program:
                str(chunk.text)
        await program.wait(QUICK)
    except TimeoutError:
        pass
    finally:
        await program.detach()
        repr((program, program.info, program.skipped))


async def _port(channel, field):
    stream = streams.Stream(_session(channel), 0)
    if "error" in await stream.open({"port": 80}):
        return
    async with ports.Connection(stream) as connection:
        with anyio.move_on_after(QUICK), contextlib.suppress(anyio.EndOfStream):
            await connection.send(b"x" * 100_000)
            await connection.send_eof()
            while True:
                await connection.receive(1000)


async def _exists(files, field):
    await files.exists("a")
    await files.make_dir("b")
    await files.rename("a", "c")
    await files.remove("c")


async def _export(files, field):
    async for _ in await files.export_tar("a", max_size=MOST):
        continue


async def _watch(files, field):
    await files.realpath("a")
    await files.watch("a", recursive=True)


WORK = {
    "read": lambda files, field: files.read("a"),
    "bytes": lambda files, field: files.read("a", format="bytes"),
    "write": lambda files, field: files.write("a", b"x" * 5000),
    "list": lambda files, field: files.list("a"),
    "others": _exists,
    "upload": lambda files, field: files.upload(field.inner, "t"),
    "file": lambda files, field: files.download("a", f"{field.inner}/new", max_size=MOST),
    "into": lambda files, field: files.download("a", field.inner, max_size=MOST),
    "tree": lambda files, field: files.download("a", f"{field.inner}/a", max_size=MOST),
    "over": lambda files, field: files.download("a", field.inner, max_size=MOST),
    "export": _export,
    "watch": _watch,
    "workspace": _workspace,
    "forks": _forks,
    "command": _command,
    "process": _process,
    "port": _port,
}
ON_STREAMS = ["command", "process", "port"]
ON_CHANNEL = {"forks", *ON_STREAMS}


# --- one case --------------------------------------------------------------------------------


async def play(case, field):
    name = case.get("work")
    work = WORK.get(name, WORK["list"])
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    stream = SocketStream(ours)
    wired = Impatient(stream)
    subject = wired if name in ON_CHANNEL else AsyncFiles(Connected(wired))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, theirs, Answers(case))
            try:
                with anyio.fail_after(PATIENCE):
                    await work(subject, field)
            except (SandboxError, Lost, anyio.BrokenResourceError):
                pass
            tasks.cancel_scope.cancel()
    finally:
        stream.close()
        theirs.close()


def attempt(data):
    try:
        case = json.loads(data)
        if not isinstance(case, dict):
            return
    except (ValueError, RecursionError):
        return
    runner = _runner()
    base = tempfile.mkdtemp(dir=_place().name)
    try:
        field = Field(base)
        before = set(os.listdir("/proc/self/fd"))
        quick = mock.patch.multiple
        try:
            with (
                quick(run, DEATH=QUICK),
                quick(guest_session, KEEP_TIMEOUT=QUICK),
                quick(channel, SEND_TIMEOUT=QUICK),  # this guest does not read while it sends
            ):
                runner.run(play(case, field))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if field.seen() != field.before:
            raise Wrong("something outside has changed")
        if left := fuzzing.left_open(before):
            raise Wrong(f"{len(left)} descriptors are left")
    finally:
        with contextlib.suppress(OSError):
            removal.remove(base)


@functools.cache
def _place():
    return tempfile.TemporaryDirectory(prefix="fuzz-answers-", ignore_cleanup_errors=True)


@functools.cache
def _runner():
    runner = asyncio.Runner()
    runner.run(anyio.sleep(0))
    runner.run(anyio.to_thread.run_sync(lambda: None))
    return runner


def finish():
    if _runner.cache_info().currsize:
        _runner().close()
    _place().cleanup()
    _runner.cache_clear()
    _place.cache_clear()


def allowance(data):
    return 64 << 20


# --- cases -----------------------------------------------------------------------------------

NAMES = [
    *("x", "y", "a", "link", "file", "up", "plain", "new", "..", ".", "", "/", "/etc/passwd"),
    *("../outer/secret", "link/secret", "a/x", "a\0b", "a\nb", "\u202egpj.exe", "x" * 255),
    *("x" * 256, "é" * 128, "\udcff", "\ud800", "\ud83d", ".belljar-part-0", "con", "-rf", " "),
    *("a\\b", "~", "$HOME", "x" * 4000, "\x1b[2J", "\u0000", "..\u2044", "a\r", "%s"),
]
TARGETS = [
    *("x", "../outer", "../../outer/secret", "/etc/passwd", "..", "", "a/../../outer", "\0"),
    *("x" * 5000, "\ud800", ".", "link/secret", 5),
]
NUMBERS = [
    *(0, 1, -1, 3, 255, 420, 0o104755, 5000, MOST, MOST + 1, 2**31, 2**32, 2**62, 2**63),
    *(-(2**63), 2**64, 10**30, 10**300),
]
ODD = [None, True, "", "x", 0.5, 1e400, [], {}, [1], [[0]], {"a": 1}, "\ud800", [[]] * 300]
FIELDS = [
    *("size", "total", "rows", "done", "after", "inodes", "type", "mode", "mtime", "errno"),
    *("message", "missing", "lost", "name", "exit_code", "signal", "status", "parts", "shared"),
    *("pid", "cmd", "cwd", "pty", "stdin", "began", "end", "skipped", "timed_out"),
]
OF_STREAMS = [wire.STREAM, wire.CREDIT, wire.REPLY, wire.END, wire.DONE, wire.DATA, wire.RESULT]
DATA = [
    *("", "x", "[]", "{}", "null", "[[]]", '[{"name": "x"}]', "\xff" * 40, "[" * 5000),
    *("9" * 5000, '{"entries": [], "failed": []}', '{"entries": [], "failed": [[0, 2]]}'),
    *('{"entries": [], "failed": [[7, 2]]}', '{"entries": {}, "failed": {}}'),
    '{"entries": ' + "[" * 2000 + "]" * 2000 + ', "failed": []}',
    '{"entries": [' + ",".join(['[0, "d", "dir", 493, 0, 0, 0, 1]'] * 2000) + '], "failed": []}',
    '[{"name": ["x"], "type": "file", "size": 1, "mode": 1, "mtime": 1.0}]',
    "["
    + ",".join(['{"name": "", "type": "file", "size": 0, "mode": 0, "mtime": 0.0}'] * 3000)
    + "]",
    "x" * 70_000,
]


def number(random):
    return random.choice(NUMBERS)


def odd(random):
    return random.choice(NUMBERS) if random.random() < 0.6 else random.choice(ODD)


def row(random):
    kind = random.choice(["file", "file", "dir", "dir", "symlink", "other", "weird", None])
    made = [random.choice(NAMES), kind, *(random.choice([420, 493, 0o6777]), 3, 0, 0, 1)]
    if kind == "symlink":
        made.append(random.choice(TARGETS))
    if random.random() < 0.3:
        made[random.randrange(2, 7)] = number(random)
    if random.random() < 0.04:
        made[random.randrange(len(made))] = odd(random)
    return made if random.random() < 0.97 else made[: random.randrange(len(made))]


def good_row(random):
    kind = random.choice(["file", "dir", "symlink"])
    made = [random.choice(NAMES[:8]), kind, 420, random.choice([0, 3, 5000, MOST]), 0, 0, 1]
    return made + [random.choice(TARGETS[:5])] * (kind == "symlink")


def tree(random):
    make = row if random.random() < 0.5 else good_row
    found = {"": [make(random) for _ in range(random.choice([1, 2, 5, 30]))]}
    for name in ("a", "x", "link", "up", "a/x"):
        if random.random() < 0.4:
            found[name] = [make(random) for _ in range(random.choice([0, 1, 4]))]
    if random.random() < 0.15:
        found["*"] = [make(random) for _ in range(random.choice([1, 2]))]
    return found


def more(random):
    """Frames that a stream does not expect, or too many of those that it does."""
    kind = random.choice(OF_STREAMS)
    header = {"name": random.choice(["stdout", "stdout", "stderr", "background", "", 1])}
    if random.random() < 0.5:
        header["size"] = random.choice([1, 1, 1000, wire.WINDOW, wire.WINDOW + 1, odd(random)])
    if random.random() < 0.2:
        header[random.choice(FIELDS)] = odd(random)
    size = random.choice([0, 1, 1, 1000, 65_536, wire.WINDOW])
    return [kind, header, size, random.choice([1, 1, 2, 40, 3000 if size < 2 else 40])]


def wrong(random):
    made = {}
    if random.random() < 0.3:
        made["more"] = [more(random) for _ in range(random.choice([1, 1, 3]))]
    for _ in range(random.choice([1, 1, 2])):
        kind = random.random()
        if kind < 0.35:
            given = {random.choice(FIELDS): odd(random) for _ in range(random.choice([1, 1, 3]))}
            made["result"] = given if random.random() < 0.9 else odd(random)
        elif kind < 0.5:
            code = random.choice([errno.ENOENT, errno.EFBIG, errno.ENOTDIR, *NUMBERS, None, "x"])
            made["error"] = {"errno": code, "message": odd(random)}
        elif kind < 0.7:
            made["data"] = random.choice(DATA)
        elif kind < 0.8:
            made["header"] = {random.choice(FIELDS): odd(random) for _ in range(3)}
            if random.random() < 0.4:
                made["header"] = {"error": odd(random), "lost": odd(random)}
        elif kind < 0.88:
            made["kind"] = random.choice([*wire.FROM_GUEST, 0, 255, wire.RUN])
        elif kind < 0.92:
            made["fd"] = random.randrange(20)
            made["kind"] = random.choice([wire.DONE, wire.CALL, wire.REPLY])
        elif kind < 0.95:
            made["times"] = random.choice([2, 50, 500])
        elif kind < 0.98:
            made["shift"] = random.choice([1, -1, 2**31])
        else:
            made["gone"] = True
    return made


def cases(random):
    while True:
        work = ON_STREAMS if random.random() < 0.3 else list(WORK)
        case = {"work": random.choice(work), "tree": tree(random)}
        count = random.choice([0, 1, 1, 1, 2, 3])
        numbers = [random.choice([0, 0, 1, 1, 2, 3, 4, 6, 9]) for _ in range(count)]
        case["wrong"] = {str(each): wrong(random) for each in numbers}
        if random.random() < 0.2:
            case["again"] = True
        yield json.dumps(case).encode("ascii")


def main(seconds, seed):
    return fuzzing.run("answers", seconds, seed)
