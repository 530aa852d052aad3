"""The native backend: guests are forks of a zygote, confined by the kernel. Linux, no daemon."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import platform
import signal
import socket
import struct
import threading
from collections.abc import Mapping

import anyio
import anyio.to_thread

from belljar.backends.base import Guest, GuestSpec, Host, Reading
from belljar.backends.native import cgroup, plan, posture
from belljar.backends.native.cgroup import Cgroup
from belljar.backends.native.watchdog import Watchdog
from belljar.backends.native.zygotes import Zygote, failure
from belljar.environment import Environment, build
from belljar.errors import BackendUnavailable, LimitNotEnforceable, ProtocolError, StartError
from belljar.guest import wire
from belljar.isolation import Isolation, Layer, State
from belljar.limits import Limits, format_size

HELLO_TIMEOUT = 30.0
DEATH_TIMEOUT = 5.0

_DELEGATE = (
    "run as root, or in a delegated cgroup "
    "(systemd-run --user --scope -p Delegate=yes ...); strict=False accepts best effort"
)


class SocketStream:
    """The guest's channel: one end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)

    async def receive(self) -> bytes:
        while True:
            try:
                return self.socket.recv(wire.CHUNK)
            except BlockingIOError:
                await anyio.wait_readable(self.socket)
            except ConnectionError:
                return b""

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self.socket)


class NativeGuest:
    def __init__(
        self, stream: SocketStream, pid: int, pidfd: int, group: Cgroup | None, memory: int
    ) -> None:
        self.stream = stream
        self.pid = pid
        self._pidfd = pidfd
        self._cgroup = group
        self._closed = False
        self.isolation = Isolation(backend="native", layers=(), limits=())
        self.watchdog = Watchdog(pid, memory)

    def reading(self, *, from_now: bool = False) -> Reading:
        if self._cgroup is None:
            return self.watchdog.reading(from_now=from_now)
        if from_now:
            self._cgroup.reset_peak()
        cpu, peak = self._cgroup.cpu_seconds(), self._cgroup.memory_peak()
        fallback = self.watchdog.reading(from_now=from_now) if None in (cpu, peak) else None
        return Reading(
            cpu=cpu if fallback is None or cpu is not None else fallback.cpu,
            peak_memory=peak if fallback is None or peak is not None else fallback.peak_memory,
            memory_kills=(self._cgroup.oom_kills() or 0) + self.watchdog.kills,
        )

    def kill(self) -> None:
        if self._closed:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has ended already

    async def close(self) -> None:
        if self._closed:
            return
        with anyio.CancelScope(shield=True):
            self.kill()
            self._closed = True
            self.watchdog.stop()
            try:
                # Readable when PID 1 has ended, which is after everything in its namespace has.
                with anyio.fail_after(DEATH_TIMEOUT):
                    await anyio.wait_readable(self._pidfd)
                if self._cgroup is not None and not self._cgroup.remove():
                    await anyio.to_thread.run_sync(_remove_slowly, self._cgroup)
            finally:
                os.close(self._pidfd)
                self.stream.socket.close()

    def discard(self) -> None:
        if not self._closed:
            self.kill()
            self._closed = True
            self.watchdog.stop()
            os.close(self._pidfd)
            self.stream.socket.close()
            # Its cgroup is removed with those of the process: tasks may still be leaving it.


def _remove_slowly(group: Cgroup) -> None:
    group.kill()
    group.remove()


class NativeBackend:
    name = "native"

    def __init__(self, host: Host) -> None:
        check_host()
        self._host = host
        self._lock = threading.Lock()
        self._zygotes: dict[Environment, concurrent.futures.Future[Zygote]] = {}
        cgroup.sweep()  # what earlier processes left when they were killed
        self._cgroups = cgroup.detect()

    async def start(self, spec: GuestSpec) -> Guest:
        zygote = await self._zygote(spec.environment)
        group = self._make_cgroup(spec)
        try:
            return await self._start(spec, zygote, group)
        except BaseException:
            if group is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_remove_slowly, group)
            raise

    # -- zygotes ----------------------------------------------------------------------------

    async def _zygote(self, environment: Environment) -> Zygote:
        """The warm zygote of an Environment; the first caller starts it, others wait for it."""
        with self._lock:
            started = self._zygotes.get(environment)
            if started is not None and started.done():
                if not started.exception() and started.result().alive:
                    return started.result()
                started = None  # it failed, or was killed: a new one
            if started is None:
                started = self._zygotes[environment] = concurrent.futures.Future()
                self._host.submit(functools.partial(self._start_zygote, environment, started))
        return await anyio.to_thread.run_sync(started.result, abandon_on_cancel=True)

    async def _start_zygote(
        self, environment: Environment, started: concurrent.futures.Future[Zygote]
    ) -> None:
        try:
            built = await anyio.to_thread.run_sync(build, environment)
            zygote = Zygote(built)  # in this thread: the kernel binds its life to it
            await anyio.to_thread.run_sync(zygote.wait_ready)
        except BaseException as error:
            started.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            started.set_result(zygote)

    def close(self) -> None:
        for zygote in self._take_zygotes():
            zygote.close()
        self._cgroups.close()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        for zygote in self._take_zygotes():
            zygote.abandon()

    def _take_zygotes(self) -> list[Zygote]:
        with self._lock:
            futures = list(self._zygotes.values())
            self._zygotes.clear()
        return [f.result() for f in futures if f.done() and f.exception() is None]

    # -- guests -----------------------------------------------------------------------------

    def _make_cgroup(self, spec: GuestSpec) -> Cgroup | None:
        if not self._cgroups.controllers:
            self._insist(spec, frozenset())
            return None
        limits = spec.limits
        # One more process for init.
        group = self._cgroups.create(
            spec.id, memory=limits.memory, processes=limits.processes + 1, cpus=limits.cpus
        )
        try:
            self._insist(spec, group.enforced)
        except LimitNotEnforceable:
            group.remove()
            raise
        return group

    def _insist(self, spec: GuestSpec, in_cgroup: frozenset[str]) -> None:
        for layer in limit_layers(spec.limits, in_cgroup, self._cgroups.why):
            if layer.state != "enforced" and spec.insists_on(layer.name):
                raise LimitNotEnforceable(
                    f"this host cannot enforce the limit {layer.name}: {layer.detail}",
                    hint=layer.remedy,
                )

    async def _start(self, spec: GuestSpec, zygote: Zygote, group: Cgroup | None) -> NativeGuest:
        in_cgroup = group.enforced if group is not None else frozenset[str]()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            join = group.join_fds() if group is not None else []
            zygote.spawn(_request(spec, zygote, in_cgroup), [theirs.fileno(), *join])
        if group is not None:
            group.close_join_fds()
        stream = SocketStream(ours)
        try:
            with anyio.fail_after(HELLO_TIMEOUT):
                pid, hello = await _hello(stream)
            pidfd = os.pidfd_open(pid)
        except TimeoutError:
            ours.close()
            raise StartError(f"the guest did not come up in {HELLO_TIMEOUT:.0f} s") from None
        except BaseException:
            ours.close()
            raise
        guest = NativeGuest(stream, pid, pidfd, group, spec.limits.memory)
        try:
            if "failed" in hello:
                raise failure(hello, spec.environment.name)
            seen = posture.read(pid)
            posture.check(seen, root=zygote.root)
            limits = limit_layers(spec.limits, in_cgroup, self._cgroups.why)
            layers = _layers(seen, hello)
            guest.isolation = Isolation(backend=self.name, layers=layers, limits=limits)
            if "memory" not in in_cgroup:
                self._host.mind(guest.watchdog)
        except BaseException:
            await guest.close()
            raise
        return guest


def _request(spec: GuestSpec, zygote: Zygote, in_cgroup: frozenset[str]) -> dict[str, object]:
    limits = spec.limits
    return {
        "uid": plan.pick_uid(zygote.root),
        "workspace": limits.workspace,
        "tmp": limits.tmp,
        "output": limits.output,
        "open_files": limits.open_files,
        "meminfo": plan.meminfo(limits.memory),
        "rlimits": plan.rlimits(
            limits, memory_in_cgroup="memory" in in_cgroup, baseline=zygote.baseline
        ),
        "affinity": []
        if "cpus" in in_cgroup
        else plan.affinity(limits.cpus, os.sched_getaffinity(0)),
        # Without a cgroup nothing counts pages that are in no process's memory.
        "deny_hidden_memory": "memory" not in in_cgroup,
        "env": {**zygote.variables, **spec.env},
    }


async def _hello(stream: SocketStream) -> tuple[int, Mapping[str, object]]:
    """The guest's first frame, and its pid as the kernel (not the guest) gives it to us."""
    pid = 0
    reader = wire.Reader(frozenset((wire.HELLO,)))
    while True:
        try:
            data, ancillary, _, _ = stream.socket.recvmsg(wire.CHUNK, socket.CMSG_SPACE(12))
        except BlockingIOError:
            await anyio.wait_readable(stream.socket)
            continue
        if not data:
            raise StartError(
                "the guest ended before it was confined",
                hint="out of processes or memory? `belljar doctor` tells what this host allows",
            )
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = struct.unpack("iII", body[:12])[0]
        reader.feed(data)
        try:
            for frame in reader.frames():
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                return pid, frame.header
        except wire.WireError as error:
            raise ProtocolError(f"the guest broke the protocol: {error}") from error


def _layers(seen: posture.Posture, hello: Mapping[str, object]) -> tuple[Layer, ...]:
    landlock = int(str(hello.get("landlock") or 0))
    return (
        *(
            Layer(name=f"{kind} namespace", state="enforced", detail="its own")
            for kind in posture.NAMESPACES
        ),
        Layer(name="seccomp", state="enforced", detail="allow-list filter"),
        Layer(name="capabilities", state="enforced", detail="none, not even in the bounding set"),
        Layer(name="no_new_privs", state="enforced", detail="set"),
        Layer(name="uid", state="enforced", detail=f"host uid {seen.uid}, 1000 inside"),
        Layer(
            name="landlock",
            state="enforced" if landlock else "absent",
            detail=f"version {landlock}" if landlock else "not in this kernel",
            remedy=None if landlock else "a kernel of 5.13 or later with Landlock enabled",
        ),
    )


def limit_layers(
    limits: Limits, in_cgroup: frozenset[str], why: Mapping[str, str]
) -> tuple[Layer, ...]:
    """How each limit is kept on this host."""

    def row(name: str, ok: bool, detail: str, remedy: str | None = None) -> Layer:
        state: State = "enforced" if ok else "best-effort"
        return Layer(name=name, state=state, detail=detail, remedy=None if ok else remedy)

    memory = "memory" in in_cgroup
    cpus = "cpus" in in_cgroup
    whole = limits.cpus == int(limits.cpus) or limits.cpus >= (os.cpu_count() or 1)
    counted = "processes" in in_cgroup
    per_namespace = _kernel() >= (5, 14)
    return (
        row(
            "memory",
            memory,
            f"cgroup, {format_size(limits.memory)}"
            if memory
            else "a limit on the writable memory of each process, and a watchdog over all; "
            + why.get("memory", "no memory cgroup"),
            _DELEGATE,
        ),
        row(
            "cpus",
            cpus or whole,
            f"cgroup quota, {limits.cpus:g}"
            if cpus
            else f"pinned to {max(1, -int(-limits.cpus // 1))} processor(s)",
            _DELEGATE,
        ),
        row(
            "processes",
            counted or per_namespace,
            f"{'cgroup' if counted else 'RLIMIT_NPROC in its user namespace'}, {limits.processes}",
            "Linux 5.14 counts processes for each user namespace",
        ),
        row("open_files", True, f"RLIMIT_NOFILE for each process, {limits.open_files}"),
        row("workspace", True, f"tmpfs, {format_size(limits.workspace)}"),
        row("tmp", True, f"tmpfs, {format_size(limits.tmp)}"),
        row("output", True, f"counted by the host, {format_size(limits.output)}"),
        *(
            row(name, True, "not set" if value is None else f"the host's clock, {value:g} s")
            for name, value in (
                ("timeout", limits.timeout),
                ("lifetime", limits.lifetime),
                ("idle", limits.idle),
            )
        ),
    )


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def check_host() -> None:
    """Raise if the native backend cannot be had at all here, before anything is started."""
    if platform.system() != "Linux":
        raise BackendUnavailable(
            f"the native backend needs Linux, this is {platform.system()}",
            hint="use the docker backend",
        )
    if platform.machine() not in ("x86_64", "aarch64"):
        raise BackendUnavailable(f"the native backend does not know {platform.machine()}")
