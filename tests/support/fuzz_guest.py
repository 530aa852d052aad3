"""The guest's own ends of the wire: init, between a worker that is hostile and the host; and the
reader of frames that all ends share.

Whatever the worker sends, init goes on: it passes on what may be said, or ends that worker. What
the host gets is frames of FROM_GUEST alone, and of a stream never more than its credit. However
bytes are cut, the frames in them are the same.

A case is one byte (which of the two), and steps: who sends, how many descriptors, and bytes.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import struct
import tempfile
from unittest import mock

import fuzz_frames
import fuzzing
from belljar.guest import cells, commands, file_requests, init, processes, worker_process
from belljar.protocol import wire

_STEP = struct.Struct("=BBI")
HOST, WORKER, NONCE, HANG_UP, PROGRAM, EXIT = range(6)
PROGRAM_PID = 2**22 + 2
OUTPUT = 10_000
KINDS = (wire.FROM_GUEST, wire.FROM_HOST, wire.FROM_WORKER, wire.FROM_INIT)


class Ended(Exception):
    """init has called _exit."""


class Wrong(Exception):
    pass


# --- init without processes ------------------------------------------------------------------


class Worker(worker_process.WorkerProcess):
    """Nobody is forked: the other end of the socket is ours."""

    theirs = None
    killed = False

    def start(self):
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.pid, self.killed = 2**22 + 1, False
        self._connect(ours)

    def signal(self, number):
        self.killed = self.killed or (bool(self.pid) and number == signal.SIGKILL)

    def close(self):
        super().close()
        if self.theirs is not None:
            self.theirs.close()
            self.theirs = None


class Tame(init.Init):
    def reap(self):
        if self.default.worker.killed:
            self.default.on_worker_gone(signal.SIGKILL)
        if not self.default.worker.pid:
            self.default.start_worker()


def _refuse(*args):
    raise AssertionError("nothing here may do that")


def _exit(status):
    raise Ended


@contextlib.contextmanager
def harmless():
    """No signal, no process, no file: what init does to others it would do to this machine."""
    with contextlib.ExitStack() as stack:
        for module, name, instead in (
            (os, "kill", _refuse),
            (os, "killpg", _refuse),
            (os, "fork", _refuse),
            (os, "_exit", _exit),
            (resource, "setrlimit", lambda *args: None),
            (processes, "start", _program),
            (processes.Process, "signal", lambda process, number: None),
            (commands, "descendants", lambda pid: []),
            (commands, "kill_leftovers", lambda init, others: None),
            (commands, "kill_since", lambda init, began, worker, others: None),
            (commands, "threads_since", lambda worker, began: False),
            (file_requests, "serve", lambda init, frame: frame.header["op"]),
            (init.Branches, "_new_worker", _worker),
            (cells, "WorkerProcess", Worker),
        ):
            stack.enter_context(mock.patch.object(module, name, instead))
        yield


def _program(init, asked):
    """Nobody is started: the other ends of the pipes are ours."""
    pid = PROGRAM_PID + len(getattr(init, "ends", ()))
    program = processes.Process(init, mock.Mock(pid=pid), asked)
    theirs, stdout = os.pipe()
    stdin, writing = os.pipe()
    for fd in (stdin, stdout):
        os.set_blocking(fd, False)
    init.ends = (*getattr(init, "ends", ()), stdin, stdout)
    program.use({theirs: "stdout"}, writing)
    return program


def _worker(branches):
    return Worker(branches._init, branches._setup, branches._init.default.on_frame)


class Play:
    def __init__(self, workspace):
        theirs, self.host = socket.socketpair()
        self.host.setblocking(False)
        theirs.setblocking(False)
        self.heard = wire.Reader(wire.FROM_GUEST)
        setup = {"workspace": workspace, "result": 1 << 20, "open_files": 64}
        self.init = Tame(theirs, setup)
        self.init.selector.register(theirs, select.POLLIN, self.init._on_channel)
        self.channel = theirs
        self.nonce = b""
        self.told = wire.Reader(wire.FROM_INIT)
        self.credit = {}  # of streams, by request
        self.init.default.worker.start()

    def act(self, who, data):
        """The program that was started last: it writes, reads and exits."""
        programs = [each for each in self.init.processes.values() if each.alive]
        if not programs:
            return
        program = programs[0]
        if who == EXIT:
            program.on_exit(0)
        else:
            first = program.pid - PROGRAM_PID
            stdin, stdout = self.init.ends[first : first + 2]
            with contextlib.suppress(BlockingIOError):
                os.write(stdout, data)
            with contextlib.suppress(BlockingIOError):
                os.read(stdin, len(data))
        self.turn()

    def note_credit(self, data):
        """Of what the host sends: it comes whole."""
        reader = wire.Reader(wire.FROM_HOST)
        reader.feed(data)
        for frame in reader.frames():
            if frame.kind in (wire.OPEN, wire.CREDIT):
                more = frame.header["credit" if frame.kind == wire.OPEN else "size"]
                self.credit[frame.request] = self.credit.get(frame.request, 0) + more

    def step(self, who, fds, data):
        worker = self.init.default.worker
        if who in (PROGRAM, EXIT):
            self.act(who, data)
            return
        sock = self.host if who == HOST else worker.theirs
        if sock is None:
            return
        if who == HOST and data.startswith(HONEST):
            self.note_credit(data)
        if who == HANG_UP:
            sock.shutdown(socket.SHUT_WR)
        if who == NONCE:
            data = wire.pack(wire.SYNCED, 1, None, self.nonce)
        opened = [fuzz_frames.SORTS[each % len(fuzz_frames.SORTS)](100) for each in fds]
        try:
            while data:
                try:
                    sent = socket.send_fds(sock, [data], opened)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    return  # it was hung up
                data = data[sent:]
                while opened and sent:
                    os.close(opened.pop())
                self.turn()
                if worker.theirs is None and who != HOST:
                    return
        finally:
            for fd in opened:
                os.close(fd)
        self.turn()

    def turn(self):
        for _ in range(3):
            self.init.selector.wait(0)
            self.init.reap()
            if self.init._quiet:
                self.init.end_quiet()
            self.init._flush()
            self._listen()

    def _listen(self):
        with contextlib.suppress(BlockingIOError):
            while data := self.host.recv(1 << 20):
                self.heard.feed(data)
                for frame in self.heard.frames():
                    if frame.request in self.credit and frame.kind == wire.STREAM:
                        self.credit[frame.request] -= len(frame.payload) + wire.STREAM_COST
                        if self.credit[frame.request] < 0:
                            raise Wrong("more than its credit was sent")
        worker = self.init.default.worker
        if worker.theirs is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                data, fds, _, _ = socket.recv_fds(worker.theirs, 1 << 20, 16)
                for fd in fds:
                    os.close(fd)
                if not data:
                    return
                self.told.feed(data)
                for frame in self.told.frames():
                    if frame.kind == wire.SYNC:
                        self.nonce = frame.payload

    def close(self):
        inner = self.init
        output = inner.default.cell.output if inner.default.cell else None
        for reader in [*inner.default._stale, *([output] if output else ())]:
            reader.close()
        for program in inner.processes.values():
            program.finish({})
        for fd in getattr(inner, "ends", ()):
            os.close(fd)
        if inner.default.cell is not None:
            for fd in inner.default.cell.shared:
                os.close(fd)
        inner.default.worker.close()
        inner._inbox.clear()
        inner._out.clear()
        self.host.close()
        self.channel.close()


def _play(data):
    with tempfile.TemporaryDirectory(prefix="fuzz-guest-") as workspace, harmless():
        before = set(os.listdir("/proc/self/fd"))
        play = Play(workspace)
        hostile = False  # the host, which an honest guest believes
        try:
            for who, fds, sent in steps(data):
                hostile = hostile or (who == HOST and not sent.startswith(HONEST))
                play.step(who, fds, sent)
        except Ended:
            pass
        except Exception:
            if not hostile:
                raise
        finally:
            with contextlib.suppress(Ended):
                play.close()
        if left := set(os.listdir("/proc/self/fd")) - before:
            if not hostile and (left := fuzzing.left_open(before)):
                raise Wrong(f"{len(left)} descriptors are left")
            for fd in left:
                with contextlib.suppress(OSError):
                    os.close(int(fd))


def steps(data):
    position = 1
    while position + _STEP.size <= len(data):
        who, count, length = _STEP.unpack_from(data, position)
        position += _STEP.size
        fds = data[position : position + count % 10]
        position += len(fds)
        yield who % 6, list(fds), data[position : position + length]
        position += length


def put_together(kind, made):
    raw = bytearray([kind])
    for who, fds, data in made:
        raw += _STEP.pack(who, len(fds), len(data)) + bytes(fds) + data
    return bytes(raw)


# --- the reader ------------------------------------------------------------------------------


def _frames(kinds, pieces):
    reader, found = wire.Reader(kinds), []
    try:
        for piece in pieces:
            reader.feed(piece)
            found += reader.frames()
    except wire.WireError as error:
        found.append(str(error))
    return found


def _read(data):
    pieces = [piece for _, _, piece in steps(data)]
    kinds = KINDS[data[0] // 2 % len(KINDS)]
    whole = _frames(kinds, [b"".join(pieces)])
    if _frames(kinds, pieces) != whole:
        raise Wrong("cut otherwise, it is read otherwise")


def attempt(data):
    if data:
        (_read if data[0] % 2 else _play)(data)


def allowance(data):
    return (24 << 20) + 40 * len(data)


# --- cases -----------------------------------------------------------------------------------

RUN = wire.pack(wire.RUN, 1, {"output": OUTPUT, "count": 1, "watch": True}, b"1")
ANSWER = wire.pack(wire.ANSWER, 1, {"call": 2**31 + 1, "ok": True}, b"x")
PING = wire.pack(wire.PING, 2)
RESTART = wire.pack(wire.RESTART, 3)
INTERRUPT = wire.pack(wire.INTERRUPT, 1, {"end": True})
PART = wire.pack(wire.PART, 1, {"key": 1, "size": 10}, b"12345")
KEEP = wire.pack(wire.KEEP, 4, {"number": 1, "branch": False})
OPEN = wire.pack(wire.OPEN, 5, {"credit": 5000}, b'{"argv": ["x"], "cwd": "/"}')
ONCE = wire.pack(wire.OPEN, 6, {"credit": wire.WINDOW}, b'{"argv": ["x"], "cwd": "/", "once": 1}')
CONNECT = wire.pack(wire.OPEN, 7, {"credit": 2000}, b'{"pid": %d}' % PROGRAM_PID)
STREAMS = (
    *(OPEN, ONCE, CONNECT, wire.pack(wire.CREDIT, 5, {"size": 3000})),
    *(wire.pack(wire.CREDIT, 7, {"size": 3}), wire.pack(wire.CREDIT, 7, {"size": 100_000})),
    *(wire.pack(wire.STREAM, 5, None, b"x" * 1000), wire.pack(wire.STREAM, 7, None, b"y" * 90_000)),
    *(wire.pack(wire.END, 5, {"input": True}), wire.pack(wire.END, 5), wire.pack(wire.END, 7)),
    *(wire.pack(wire.KILL, 5), wire.pack(wire.PROCESS, 8, {"op": "list"})),
)
OF_CELLS = (RUN, ANSWER, PING, RESTART, INTERRUPT, PART, KEEP)
HONEST = (*OF_CELLS, *STREAMS)
FROM_WORKER = [
    *([wire.CELL_DONE] * 5 + [wire.CALL] * 4 + [wire.PART] * 2 + [wire.CELL_RESULT] * 3),
    *(wire.SYNCED, wire.FORKED, wire.READY, wire.CELL, wire.HELLO, 0, 255),
]
FIELDS = [
    *("status", "exit_code", "value_error", "shown", "shared", "parts", "key", "size", "function"),
    *("main", "dropped", "missing", "error", "call", "text", "mime", "fds"),
]
ODD = [
    *(None, True, "", "x", "x" * 300, 0.5, 1e400, [], {}, [1], {"a": 1}, "\ud800", -1, 0, 1, 100),
    *(2**31, 2**32, 2**48, 2**64, 10**300, ["x"] * 100),
]


def header(random, kind):
    made = {}
    if kind == wire.CELL_DONE:
        made = {"status": random.choice(["ok", "ok", "error", "exit", "died"])}
    elif kind == wire.CALL:
        made = {"function": random.choice(["f", "x" * 101])}
    elif kind == wire.PART:
        made = {"key": 0, "size": random.choice([1, 100, 2**40])}
    elif kind == wire.CELL_RESULT:
        part = {"mime": "text/plain", "size": random.choice([0, 5, 2**40]), "text": True}
        made = {"parts": [part] * random.choice([1, 3, 33])}
    for _ in range(random.choice([0, 0, 1, 3])):
        made[random.choice(FIELDS)] = random.choice(ODD)
    return made


def from_worker(random):
    kind = random.choice(FROM_WORKER)
    request = random.choice([1, 1, 1, 0, 2**31 + 1, 2**31 + 2, 2**32 - 1])
    payload = random.choice([b"", b"x", b"{}", b"x" * 5000, b"x" * 300_000])
    made = header(random, kind)
    data = wire.pack(kind, request, made, payload)
    fds = [random.randrange(14)] if "shared" in made and random.random() < 0.9 else []
    if random.random() < 0.03:
        fds = [random.randrange(14) for _ in range(random.choice([1, 2, 9]))]
    if random.random() < 0.08:
        data = fuzz_frames.spoil(random, data)
    return WORKER, fds, data


def from_host(random):
    kind = random.choice([*wire.FROM_HOST, 0, 255])
    names = [*FIELDS, "output", "number", "branch", "op", "functions"]
    count = random.choice([0, 1, 3])
    made = {random.choice(names): random.choice(ODD) for _ in range(count)}
    data = wire.pack(kind, random.choice([0, 1, 2]), made, random.choice([b"", b"x", b"[]"]))
    return HOST, [], fuzz_frames.spoil(random, data) if random.random() < 0.2 else data


def cut(random, step):
    """Into two, now and then. What the host sends comes whole, or it would not be known as his."""
    who, fds, data = step
    if who != WORKER or len(data) < 2 or random.random() < 0.8:
        return [step]
    place = random.randrange(1, len(data))
    return [(who, fds, data[:place]), (who, [], data[place:])]


def talk(random):
    """What host and worker send."""
    trusted = random.random() < 0.8
    if random.random() < 0.3:
        yield from programs(random)
    if random.random() < 0.8:
        yield HOST, [], RUN
    for _ in range(random.choice([1, 2, 5, 12])):
        kind = random.random()
        if kind < 0.12:
            yield HOST, [], random.choice(OF_CELLS)
        elif kind < 0.2:
            yield NONCE, [], b""
        elif kind < 0.22:
            yield HANG_UP, [], b""
        elif kind < 0.3 and not trusted:
            yield from_host(random)
        else:
            yield from [from_worker(random)] * random.choice([1, 1, 1, 1, 3, 70])


def programs(random):
    """What the host and a program do with streams. Requests have numbers of their own."""
    opened = [data for data in (OPEN, ONCE, CONNECT) if random.random() < 0.8]
    for data in opened:
        yield HOST, [], data
    others = [data for data in STREAMS if data not in (OPEN, ONCE, CONNECT)]
    for _ in range(random.choice([3, 10, 30])):
        kind = random.random()
        if kind < 0.5:
            yield PROGRAM, [], b"o" * random.choice([1, 1, 100, 5000, 65_536])
        elif kind < 0.95:
            yield HOST, [], random.choice(others)
        else:
            yield EXIT, [], b""


def pieces(random):
    """Some frames, cut anyhow."""
    whole = b"".join(random.choice([from_worker, from_host])(random)[2] for _ in range(4))
    count = random.choice([1, 3, 20])
    places = sorted(random.randrange(len(whole) + 1) for _ in range(count))
    for start, end in zip([0, *places], [*places, len(whole)], strict=True):
        yield HOST, [], whole[start:end]


def cases(random):
    while True:
        if random.random() < 0.15:
            yield put_together(2 * random.randrange(len(KINDS)) + 1, pieces(random))
        else:
            made = (part for step in talk(random) for part in cut(random, step))
            yield put_together(0, made)


def main(seconds, seed):
    return fuzzing.run("guest", seconds, seed)
