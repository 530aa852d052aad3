"""One native guest, from the host's side: its channel, its pidfd, its cgroup."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread

from belljar.backends import event_loop
from belljar.backends.base import Location, UsageSample
from belljar.backends.event_loop import Lock
from belljar.backends.isolation import Isolation
from belljar.backends.linux import posture
from belljar.backends.linux.cgroup import Cgroup
from belljar.backends.native import watchdog
from belljar.errors import ProtocolError, SandboxError, StartError
from belljar.protocol import wire
from belljar.protocol.buffers import Inbox, Outbox
from belljar.protocol.messages import MAX_MAPS, find_shared

PATIENCE = 0.5  # seconds for a killed guest to end by itself
DEATH_TIMEOUT = 20.0
MAX_UNPAUSED = 512 * 1024
CROWD = 16  # workers


class Stillborn(StartError):
    """The guest said nothing at all."""


class SocketStream:
    """The guest's channel: one end of a socket pair."""

    shares = True

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._inbox = Inbox()
        self._out = Outbox()
        self._waiting = Lock()
        self._unpaused = 0  # bytes taken without letting others run
        sock.setblocking(False)

    async def receive(self) -> bytes:
        # A guest that always has more must not keep the event loop, and its time-outs, waiting.
        if self._unpaused > MAX_UNPAUSED:
            self._unpaused = 0
            await event_loop.let_others_run()
        while True:
            try:
                data = self._inbox.receive(self.socket)
            except BlockingIOError:
                self._unpaused = 0
                await event_loop.wait_readable(self.socket)
            except OSError:
                return b""  # it is gone, or can be read no more (no memory): of no use then
            else:
                self._unpaused += len(data) + 4096
                return data

    def send_now(self, data: bytes) -> bool:
        """Whether all of it is gone; what is not goes before what is sent next."""
        self._out.put(data)
        try:
            self._out.flush(self.socket)
        except BlockingIOError:
            return False
        return True

    async def send(self, data: bytes, fd: int = -1) -> None:
        self._out.put(data, (fd,) if fd >= 0 else ())
        while self._out:
            try:
                self._out.flush(self.socket)
            except BlockingIOError:
                async with self._waiting:  # one at a time may
                    await anyio.wait_writable(self.socket)

    def take_fd(self) -> int:
        return self._inbox.take()

    def close(self) -> None:
        self._inbox.clear()
        self._out.clear()
        self.socket.close()

    def ended(self) -> bool:
        return event_loop.has_hung_up(self.socket)


class NativeGuest:
    def __init__(
        self,
        stream: SocketStream,
        pid: int,
        pidfd: int,
        group: Cgroup | None,
        memory: int,
        births: socket.socket,
        *,
        root: bool,
    ) -> None:
        """`births`: where every new worker tells that it is confined. `root`: as posture.check."""
        self.stream = stream
        self._births = births
        self._root = root
        self._workers: list[int] = []  # pids, also of those that have ended
        self._crowd = CROWD  # look for these when there are so many
        self.pid = pid
        self._pidfd = pidfd
        self._cgroup = group
        self._closed = self._killed = False
        # The number of the descriptor is another's soon after it was closed.
        self._signalling = threading.RLock()  # a handler of signals may interrupt kill()
        self.isolation = Isolation(backend="native", layers=(), limits=())
        self.left: Callable[[], None] | None = None  # called when it has gone; may block
        self._memory = memory
        self._watchdog: watchdog.Watchdog | None = None  # for what the cgroup does not do
        self._stopped: watchdog.Stopped | None = None  # while it is frozen by signals

    def watch(self) -> watchdog.Watchdog:
        """The watchdog of this guest. Called by the backend where no cgroup limits memory."""
        if self._watchdog is None:
            self._watchdog = watchdog.Watchdog(self.pid, self._memory, self._find_workers)
        return self._watchdog

    async def first_worker(self) -> Mapping[str, object]:
        """What the first worker says when it is confined."""
        while True:
            try:
                return self._take_birth()
            except BlockingIOError:
                await anyio.wait_readable(self._births)

    def _take_birth(self) -> Mapping[str, object]:
        """What a new worker says. Its posture is read from outside, as that of init."""
        pid, data = receive_with_pid(self._births)
        if not data:
            raise Stillborn("the guest ended before its interpreter was confined")
        said: Mapping[str, object] = json.loads(data)
        if "failed" not in said:
            self._workers.append(pid)
            if len(self._workers) >= self._crowd:  # most have ended, or there are many contexts
                self._crowd = 2 * len(self._find_living()) + CROWD
            try:
                posture.check(posture.read(pid), root=self._root)
            except StartError:
                if posture.same_guest(pid, self.pid):  # else it has ended, and is of no concern
                    raise
        return said

    def _check_births(self) -> None:
        """Called before and after each cell: the interpreter may be a new one. A guest with one
        that lacks a layer is killed, and the result of the cell is not given."""
        with self._signalling:
            while not self._closed:
                try:
                    self._take_birth()
                except (OSError, Stillborn):
                    return  # there are no more
                except StartError:
                    self.kill()
                    raise

    def _find_workers(self) -> list[int]:
        """The living ones."""
        with contextlib.suppress(StartError):  # the guest was killed
            self._check_births()
        return self._find_living()

    def _find_living(self) -> list[int]:
        with self._signalling:
            self._workers = [pid for pid in self._workers if posture.same_guest(pid, self.pid)]
            return self._workers

    @property
    def location(self) -> Location:
        return Location(pid=self.pid, cgroups=self._cgroup.paths if self._cgroup else ())

    async def read_usage(self, *, from_now: bool = False, now: bool = False) -> UsageSample:
        self._check_births()
        if self._cgroup is None:
            return self.watch().read_usage(from_now=from_now, now=now)
        if from_now:
            self._cgroup.reset_peak()
        wanted = ("cpu", "peak", "oom_kills", *(("current", "tasks") if now else ()))
        cpu, peak, kills, *current = self._cgroup.read(*wanted)
        memory, tasks = current or (None, None)
        seen = UsageSample(
            cpu=None if cpu is None else cpu / 1e9,
            peak_memory=peak,
            memory_kills=(kills or 0) + (0 if self._watchdog is None else self._watchdog.kills),
            memory=memory,
            processes=tasks,
        )
        if None in (cpu, peak, *current):
            return seen.completed_by(self.watch().read_usage(from_now=from_now, now=now))
        return seen

    def find_mapped(self) -> set[int]:
        """Landlock keeps init from looking into the worker, which is no fork of it."""
        found: set[int] = set()
        room = MAX_MAPS
        for pid in posture.find_same_guest(self.pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
                text = file.read(room)
                room -= len(text)
                found |= find_shared(text)
        return found

    async def freeze(self) -> watchdog.Stopped | None:
        return await anyio.to_thread.run_sync(self._freeze)

    def _freeze(self) -> watchdog.Stopped | None:
        if self._cgroup is None or not self._cgroup.freeze():
            self._stopped = self.watch().stop_all()
            if self._closed:  # meanwhile: its numbers may be others'
                self._stopped.stopped = True
        return self._stopped

    async def thaw(self) -> None:
        if self._stopped is None:
            assert self._cgroup is not None
            self._cgroup.thaw()
        else:
            stopped, self._stopped = self._stopped, None
            await anyio.to_thread.run_sync(stopped.go_on)

    def kill(self) -> None:
        with self._signalling:
            if self._closed:
                return
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            # The kernel kills the others when PID 1 has given its memory back. Killed now, they
            # give back theirs at the same time.
            if self._cgroup is not None and not self._killed:
                self._killed = True
                self._cgroup.hasten()

    def _kill_last(self) -> bool:
        """Whether it was not closed yet. From here on only the caller uses the descriptor."""
        with self._signalling:
            self.kill()
            first, self._closed = not self._closed, True
        for each in (self._watchdog, self._stopped):
            if each is not None:
                each.stopped = True
        return first

    async def close(self) -> None:
        if not self._kill_last():
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._ended()
                if self._cgroup is not None and not self._cgroup.remove():
                    await anyio.to_thread.run_sync(remove_cgroup, self._cgroup)
            except anyio.get_cancelled_exc_class():
                # By asyncio itself, which goes through shields: it is ended without us.
                self._tidy_up_later()
                raise
            finally:
                self._close_descriptors()
            if self.left is not None:
                await anyio.to_thread.run_sync(self.left)

    async def _ended(self) -> None:
        """PID 1 has ended, which is after everything in its namespace has."""
        for seconds in (PATIENCE, DEATH_TIMEOUT):
            with anyio.move_on_after(seconds):
                await anyio.wait_readable(self._pidfd)
                return
            # To end takes processor time, which its share may not have; and one that waits in the
            # kernel for another of them cannot end before that one.
            await anyio.to_thread.run_sync(self._kill_each)
        self._tidy_up_later()  # it may still end
        raise SandboxError(
            f"a killed guest (pid {self.pid}) has not ended in {DEATH_TIMEOUT:.0f} s",
            hint="a machine with far too much to do, or a system call that hangs: see dmesg",
        )

    def _kill_each(self) -> None:
        if self._cgroup is not None:
            self._cgroup.kill()
        else:
            self.watch().kill_all()

    def discard(self) -> None:
        if self._kill_last():
            self._close_descriptors()
            self._tidy_up_later()

    def _close_descriptors(self) -> None:
        os.close(self._pidfd)
        self._births.close()
        self.stream.close()

    def _tidy_up_later(self) -> None:
        if sys.is_finalizing():
            return  # no thread starts any more; the end of the runtime has removed all groups
        if self._cgroup is not None or self.left is not None:
            threading.Thread(target=self._tidy_up, name="belljar-left", daemon=True).start()

    def _tidy_up(self) -> None:
        if self._cgroup is not None:
            remove_cgroup(self._cgroup)
        if self.left is not None:
            self.left()


def remove_cgroup(group: Cgroup) -> None:
    group.kill()
    group.remove()


async def hello(sock: socket.socket) -> tuple[int, Mapping[str, object]]:
    """The guest's first frame, and its pid as the kernel (not the guest) gives it to us."""
    reader = wire.Reader(frozenset((wire.HELLO,)))
    while True:
        try:
            pid, data = receive_with_pid(sock)
        except BlockingIOError:
            await anyio.wait_readable(sock)
            continue
        if not data:
            raise Stillborn(
                "the guest ended before it was confined",
                hint="out of processes or memory? `belljar doctor` tells what this host allows",
            )
        reader.feed(data)
        try:
            for frame in reader.frames():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                return pid, frame.header
        except wire.WireError as error:
            raise ProtocolError(f"the guest broke the protocol: {error}") from error


def receive_with_pid(sock: socket.socket) -> tuple[int, bytes]:
    """The sender's pid, and what it sent."""
    data, ancillary, _, _ = sock.recvmsg(wire.CHUNK, socket.CMSG_SPACE(12))
    pids = [
        struct.unpack("iII", body[:12])[0]
        for level, kind, body in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
    ]
    return (pids or [0])[0], data
