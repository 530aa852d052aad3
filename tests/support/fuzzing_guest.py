"""What fuzz_answers.py plays with: a guest whose answers are wrong where the case says so, and the
directories of this host that must stay as they are."""

import json
import os
import socket
import stat

import anyio

import fuzz_frames
from belljar.protocol import messages, wire

REQUESTS = 400  # then the guest hangs up
MOST = 100_000  # bytes of a file
EXITED = {"exit_code": 0, "signal": None}
PROGRAM = {"pid": 7, "name": None, "cmd": ["x"], "cwd": "/", "pty": True, "stdin": True}
SECRET = b"what-nobody-may-carry"


class Wrong(Exception):
    pass


class Field:
    """Directories of this host: what the caller gives, and what is outside of it.

    The caller's has links that an earlier sandbox may have left there.
    """

    def __init__(self, base):
        self.base, self.inner, self.outer = base, f"{base}/inner", f"{base}/outer"
        for directory in (self.inner, f"{self.inner}/a", self.outer, f"{self.outer}/a"):
            os.mkdir(directory)
        for name in ("secret", "a/x"):
            with open(f"{self.outer}/{name}", "wb") as file:
                file.write(SECRET)
        for name, target in (("link", "../outer"), ("file", "../outer/secret"), ("up", "..")):
            os.symlink(target, f"{self.inner}/{name}")
        with open(f"{self.inner}/a/plain", "w") as file:
            file.write("plain")
        self.before = self.seen()

    def seen(self):
        """All that is outside: names, modes, contents."""
        found, pending = {}, [os.fsencode(self.base)]
        while pending:
            directory = pending.pop()
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                if path == os.fsencode(self.inner):
                    continue
                mode, content = os.lstat(path).st_mode, b""
                if stat.S_ISDIR(mode):
                    pending.append(path)
                elif stat.S_ISREG(mode):
                    with open(path, "rb") as file:
                        content = file.read()
                found[path] = (mode, content)
        return found


class Answers:
    def __init__(self, case):
        self._tree = case.get("tree") or {}
        self._wrong = case.get("wrong") or {}
        self._again = bool(case.get("again"))
        self._work = case.get("work")
        self.count = 0

    def to(self, frame):
        """Frames, each with the sort of descriptor that comes with it, or None: to hang up."""
        if self.count >= REQUESTS:
            return None
        last = max((int(number) for number in self._wrong), default=0) + 1
        number = self.count % last if self._again else self.count
        self.count += 1
        kind, header, data = self._right(frame)
        wrong = self._wrong.get(str(number))
        if wrong is None:
            return [*self._frames(frame.request, kind, header, data), *self._goes_on(frame)]
        if wrong.get("gone"):
            return None
        if "header" in wrong:
            header = wrong["header"]
        for name in ("result", "error"):
            if name in wrong:
                inner = header.get(name) if isinstance(header.get(name), dict) else {}
                given = wrong[name]
                header[name] = {**inner, **given} if isinstance(given, dict) else given
        data = wrong["data"].encode("latin-1") if "data" in wrong else data
        request = (frame.request + wrong.get("shift", 0)) % 2**32
        sent = [*self._frames(request, wrong.get("kind", kind), header, data, wrong.get("fd"))]
        sent += self._more(frame.request, wrong.get("more", ()))
        return sent * min(wrong.get("times", 1), 500) + [*self._goes_on(frame)]

    def _goes_on(self, frame):
        """What a stream sends by itself: some output, and its end when its input ends."""
        if frame.kind == wire.OPEN:
            yield wire.pack(wire.STREAM, frame.request, {"name": "stdout"}, b"x" * 5000), None
            yield wire.pack(wire.STREAM, frame.request, {"name": "stderr"}, b"\xc3"), None
            if not json.loads(frame.payload).get("stdin"):
                yield wire.pack(wire.DONE, frame.request, EXITED), None

    def _more(self, request, frames):
        """What the case adds: a kind, a header, how many bytes, and how often."""
        for kind, header, size, times in frames:
            yield from [(wire.pack(kind, request, header, bytes(size)), None)] * times

    def _frames(self, request, kind, header, data, fd=None):
        if data:
            yield wire.pack(wire.DATA, request, None, data), None
        if fd is not None:
            header = {**header, "shared": 100}
        yield wire.pack(kind, request, header), fd

    def _right(self, frame):
        if frame.kind == wire.FILE:
            make = getattr(self, "_" + str(frame.header.get("op")), None)
            result, data = make(frame) if make else ({}, b"")
            return wire.REPLY, {"result": result}, data
        if frame.kind in (wire.END, wire.KILL):
            return wire.DONE, EXITED, b""
        if frame.kind == wire.STREAM:
            return wire.CREDIT, {"size": len(frame.payload) + wire.STREAM_COST}, b""
        if frame.kind == wire.PROCESS and frame.header.get("op") == "list":
            return wire.REPLY, {}, json.dumps([PROGRAM]).encode("ascii")
        return wire.REPLY, dict(PROGRAM) if frame.kind == wire.OPEN else {}, b""

    def _rows(self, directory):
        return self._tree.get(directory, self._tree.get("*", []))

    def _find(self, path):
        parent, _, name = path.rpartition("/")
        for row in self._rows(parent):
            if row and row[0] == name:
                return row
        return [name, "file", 420, 3, 0, 0, 1]

    def _stat(self, frame):
        kind = "dir" if self._work in ("tree", "over") else "file"
        return {"type": kind, "size": 3, "mode": 420, "mtime": 0.0}, b""

    _write = _make_dir = _rename = _stat

    def _read(self, frame):
        return {"size": 3}, b"abc" if frame.header.get("offset") == 0 else b""

    def _list(self, frame):
        rows = [{"name": row[0], **self._stat(frame)[0]} for row in self._rows("") if row]
        return {"total": len(rows)}, json.dumps(rows).encode("ascii")

    def _scan(self, frame):
        asked = json.loads(frame.payload)
        rows = [[number, *row] for number, each in enumerate(asked) for row in self._rows(each)]
        page = {"entries": rows[: messages.SCAN_PAGE], "failed": []}
        return {"done": len(asked), "after": ""}, json.dumps(page).encode("ascii")

    def _mapped(self, frame):
        return {"inodes": [1]}, b""

    def _gather(self, frame):
        rows, data = [], b""
        for path, offset, size in json.loads(frame.payload):
            numbers = [n if type(n) is int else 0 for n in (*self._find(path)[2:7], *[0] * 5)][:5]
            part = b"x" * max(0, min(size, numbers[1] - offset, MOST))
            rows.append([0, len(part), True, True, *numbers])
            data += part
        return {"rows": rows}, data

    def _scatter(self, frame):
        (length,) = messages.LENGTH.unpack_from(frame.payload)
        orders = json.loads(frame.payload[messages.LENGTH.size : messages.LENGTH.size + length])
        rows = [[0, True, 420, 3, 0, 0, 1] if each[0] == "file" else [0] for each in orders]
        return {"rows": rows}, b""


async def serve(sock, answers):
    reader = wire.Reader(wire.FROM_HOST)
    waiting = []  # frames to send
    told = bytearray()
    while True:
        try:
            data = sock.recv(1 << 20)
        except BlockingIOError:
            await anyio.wait_readable(sock)
            continue
        except ConnectionError:
            return
        if not data:
            return
        told = told[-100:] + data
        if SECRET in told:
            raise Wrong("the guest was sent what is outside")
        reader.feed(data)
        for frame in reader.frames():
            made = answers.to(frame)
            if made is None:
                sock.shutdown(socket.SHUT_RDWR)
                return
            waiting += made
        while waiting:
            await _send(sock, *waiting.pop(0))


async def _send(sock, data, sort):
    fds = [] if sort is None else [fuzz_frames.SORTS[sort % len(fuzz_frames.SORTS)](100)]
    try:
        while data:
            try:
                data = data[socket.send_fds(sock, [data], fds) :]
            except BlockingIOError:
                await anyio.wait_writable(sock)
                continue
            except OSError:
                return
            while fds:
                os.close(fds.pop())
    finally:
        for fd in fds:
            os.close(fd)
