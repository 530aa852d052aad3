"""Servers that tests of the docker backend's client meet: one that misbehaves, and relays."""

import asyncio
import contextlib
import os
import queue
import socket
import threading

PONG = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK"


def answer(body=b"", *, status="200 OK", kind="application/json", extra=""):
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


def chunked(*chunks, end=True):
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + body + (b"0\r\n\r\n" if end else b"")


class FakeEngine:
    """Answers /_ping, and gives every other request to `behave(sock)`, which may do anything.

    At the end, the client must have closed each of its connections.
    """

    def __init__(self, path, behave, *, pong=PONG):
        self.path = str(path)
        self.requests = queue.Queue()  # the heads
        self.ends = queue.Queue()  # what the client sent after the answer, up to its end
        self._behave = behave if callable(behave) else lambda sock: sock.sendall(behave)
        self._pong = pong
        self._listener = socket.socket(socket.AF_UNIX)
        self._sockets, self._threads = [], []

    def __enter__(self):
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for thread in self._threads:
            thread.join(30)
        left = [thread for thread in self._threads if thread.is_alive()]
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in left:
            thread.join()
        assert not left, f"{len(left)} connections were left open by the client"

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._threads.append(threading.Thread(target=self._serve, args=(sock,)))
            self._threads[-1].start()

    def _serve(self, sock):
        with sock, contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (byte := sock.recv(1)):
                    return
                head += byte
            if head.startswith(b"GET /_ping "):
                sock.sendall(self._pong)
                return
            self.requests.put(head.decode())
            self._behave(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            self.ends.put(read_all(sock))


def read_all(sock):
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


def until_end(sock):
    """For `behave`: say nothing, until the client goes."""
    read_all(sock)


class Relay:
    """A TCP port that leads to a unix socket; with TLS if it is given an ssl.SSLContext."""

    def __init__(self, path, context=None):
        self._path, self._context = path, context
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _main(self):
        self._loop, self._stop, self._tasks = asyncio.get_running_loop(), asyncio.Event(), set()
        self._loop.set_exception_handler(lambda *_: None)  # handshakes that fail on purpose
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            engine_reader, engine_writer = await asyncio.open_unix_connection(self._path)
            try:
                ways = [copy(reader, engine_writer), copy(engine_reader, writer)]
                tasks = [asyncio.ensure_future(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await close(engine_writer)
        finally:
            await close(writer)
            self._tasks.discard(asyncio.current_task())


async def close(writer):
    """And wait for it: a transport whose loop ends before is collected as unclosed, any time."""
    writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 1)
    finally:
        # What is left to be sent is not taken any more, or the relay stops, which cancels this.
        writer.transport.abort()
        await asyncio.sleep(0)


async def copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


# `docker system dial-stdio` as ssh would run it, with what it was called with kept in a file.
SSH = """\
#!{python}
import os, socket, sys, threading
open({log!r}, "a").write(repr(sys.argv[1:]) + "\\n")
engine = socket.socket(socket.AF_UNIX)
engine.connect({path!r})
def upwards():
    while data := os.read(0, 65536):
        engine.sendall(data)
    engine.shutdown(socket.SHUT_WR)
threading.Thread(target=upwards, daemon=True).start()
while data := engine.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""


def write_program(directory, name, text):
    path = os.path.join(directory, name)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)
    return path
