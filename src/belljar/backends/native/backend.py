"""The native backend: guests are forks of a zygote, confined by the kernel. Linux, no daemon."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import socket
import threading
from collections.abc import Mapping
from typing import NamedTuple

import anyio
import anyio.to_thread

from belljar.backends import base, isolation
from belljar.backends.base import Guest, GuestSpec, Host
from belljar.backends.isolation import Isolation
from belljar.backends.linux import cgroup, guest_view, posture
from belljar.backends.linux.cgroup import Cgroup
from belljar.backends.mounts import Mount
from belljar.backends.native import layers, plan, zygote_client
from belljar.backends.native.guest import (
    NativeGuest,
    SocketStream,
    Stillborn,
    hello,
    remove_cgroup,
)
from belljar.backends.native.zygote_client import (
    EXHAUSTED,
    Zygote,
    ZygoteGone,
    check_host,
    failure,
)
from belljar.backends.single_flight import wait_until_done
from belljar.environment.environment import Environment, build
from belljar.errors import StartError

HELLO_TIMEOUT = 30.0


class Key(NamedTuple):
    """What guests of one zygote have in common."""

    environment: Environment
    mounts: tuple[Mount, ...]
    directories: tuple[str, ...]  # of their own


class NativeBackend:
    name = "native"

    def __init__(self, host: Host) -> None:
        check_host()
        self._host = host
        self._lock = threading.Lock()
        self._zygotes: dict[Key, concurrent.futures.Future[Zygote]] = {}
        self._starting: set[Zygote] = set()
        cgroup.sweep()  # what earlier processes left when they were killed
        ahead = zygote_client.take_ahead()
        self._cgroups = cgroup.detect() if ahead is None else ahead.cgroups
        if ahead is not None:
            self._begin(Key(ahead.environment, (), (ahead.workdir,)), ahead.zygote)

    async def start(self, spec: GuestSpec) -> Guest:
        try:
            return await self._start_twice(spec)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "start new thread" not in str(error):
                raise
            raise StartError(f"no guest could be started: {error}", hint=EXHAUSTED) from error

    async def _start_twice(self, spec: GuestSpec) -> Guest:
        key = self._choose_key(spec)
        zygote = await self._zygote(key)
        try:
            return await self._start(spec, key, zygote)
        except (ZygoteGone, Stillborn):
            # The zygote may have been killed, for example out of memory: try once with a new one.
            if not await anyio.to_thread.run_sync(zygote.died):
                raise
        return await self._start(spec, key, await self._zygote(key))

    async def _start(self, spec: GuestSpec, key: Key, zygote: Zygote) -> Guest:
        left = functools.partial(self._let_go, key, zygote) if _is_rare(spec) else None
        group: Cgroup | None = None
        try:
            group = self._make_cgroup(spec, zygote)
            guest = await self._confine(spec, zygote, group)
        except BaseException:
            with anyio.CancelScope(shield=True):
                if group is not None:
                    await anyio.to_thread.run_sync(remove_cgroup, group)
                if left is not None:
                    await anyio.to_thread.run_sync(left)
            raise
        guest.left = left
        return guest

    # -- zygotes ----------------------------------------------------------------------------

    def _choose_key(self, spec: GuestSpec) -> Key:
        """The key of the zygote for a guest.

        Preloading takes longer than starting a guest and importing in it what its code needs. It
        pays only if many guests are forked. So the first guest for one piece of code comes from a
        zygote that preloads nothing; with the second one, a zygote that preloads starts in the
        background, for those that follow."""
        preloaded = Key(spec.environment, spec.mounts, (spec.workdir, *spec.scratch))
        if not (spec.once and spec.environment.preload):
            return preloaded
        bare = preloaded._replace(environment=spec.environment.without_preload())
        with self._lock:
            found = _started_zygote(self._zygotes.get(preloaded))
            if found is not None and found.alive:
                return preloaded
            first = _started_zygote(self._zygotes.get(bare))
            if first is not None and first.users and preloaded not in self._zygotes:
                self._begin(preloaded)
        return bare

    async def _zygote(self, key: Key) -> Zygote:
        """The zygote of a key; the first caller starts it, others wait for it."""
        while True:
            with self._lock:
                started = self._zygotes.get(key)
                zygote = _started_zygote(started)
                if zygote is not None and zygote.alive:
                    zygote.users += 1
                    return zygote
                if zygote is not None:
                    zygote.close()  # it was killed
                if started is None or started.done():
                    started = self._begin(key)
            await wait_until_done(started)
            started.result()  # raises what went wrong

    def _begin(self, key: Key, zygote: Zygote | None = None) -> concurrent.futures.Future[Zygote]:
        """Start a zygote in the background, or wait there for this one, which has been started. The
        caller holds the lock."""
        started = self._zygotes[key] = concurrent.futures.Future()
        self._host.submit(functools.partial(self._start_zygote, key, started, zygote))
        return started

    async def _start_zygote(
        self, key: Key, started: concurrent.futures.Future[Zygote], zygote: Zygote | None
    ) -> None:
        environment, mounts, directories = key
        try:
            if zygote is None:
                built = await anyio.to_thread.run_sync(build, environment)
                hold = await anyio.to_thread.run_sync(built.hold)
                # In this thread: the kernel binds its life to it.
                zygote = Zygote(built, hold, self._cgroups, mounts, directories)
            self._starting.add(zygote)
            await anyio.to_thread.run_sync(zygote.wait_ready)
        except BaseException as error:
            started.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            started.set_result(zygote)
        finally:
            if zygote is not None:
                self._starting.discard(zygote)

    def _let_go(self, key: Key, zygote: Zygote) -> None:
        """Release a guest with mounts. Other sandboxes hardly have the same mounts, so the zygote
        is closed with its last guest. Blocks until it has ended."""
        with self._lock:
            zygote.users -= 1
            if zygote.users or _started_zygote(self._zygotes.get(key)) is not zygote:
                return
            del self._zygotes[key]
        zygote.close()

    def close(self) -> None:
        for zygote in list(self._starting):
            zygote.kill()  # the end of the process does not wait for imports
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
        return [zygote for zygote in map(_started_zygote, futures) if zygote is not None]

    # -- guests -----------------------------------------------------------------------------

    def _make_cgroup(self, spec: GuestSpec, zygote: Zygote) -> Cgroup | None:
        limits = spec.limits
        if not zygote.cgroups.controllers:
            base.check_limits(spec, zygote.kept(limits, frozenset()), "this host")
            return None
        try:
            # One more process for init.
            group = zygote.cgroups.create(
                spec.id, memory=limits.memory, processes=limits.processes + 1, cpus=limits.cpus
            )
        except StartError as error:
            if zygote.alive or zygote.cgroups is self._cgroups:
                raise
            raise ZygoteGone("the zygote is gone, and its scope with it") from error
        try:
            base.check_limits(spec, zygote.kept(limits, group.enforced), "this host")
        except BaseException:
            group.remove()
            raise
        return group

    async def _confine(self, spec: GuestSpec, zygote: Zygote, group: Cgroup | None) -> NativeGuest:
        in_cgroup = group.enforced if group is not None else frozenset[str]()
        ours, theirs = socket.socketpair()
        born, births = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for mine in (ours, born):
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            mine.setblocking(False)
        try:
            with theirs, births:
                join = group.join_fds() if group is not None else []
                request = _request(spec, zygote, in_cgroup)
                descriptors = theirs.fileno(), births.fileno(), join
                with anyio.fail_after(HELLO_TIMEOUT):
                    while not zygote.spawn(request, spec.env, *descriptors):
                        await anyio.sleep(0.005)
            if group is not None:
                group.close_join_fds()
            with anyio.fail_after(HELLO_TIMEOUT):
                pid, said = await hello(ours)
                if "failed" in said:
                    raise failure(said, spec.environment.name)
                pidfd = os.pidfd_open(pid)
        except BaseException as error:
            ours.close()
            born.close()
            raise _start_error(error) from None
        memory, root = spec.limits.memory, zygote.root
        guest = NativeGuest(SocketStream(ours), pid, pidfd, group, memory, born, root=root)
        try:
            seen = posture.read(pid)
            posture.check(seen, root=zygote.root)
            kept = zygote.kept(spec.limits, in_cgroup)
            limits = base.limit_open_files(spec, kept, posture.most_files(pid))
            measured = layers.measured(seen, said)
            if spec.mounts:
                measured += isolation.describe_mounts(spec.mounts)
            guest.isolation = Isolation(backend=self.name, layers=measured, limits=limits)
            with anyio.fail_after(HELLO_TIMEOUT):
                said = await guest.first_worker()
            if "failed" in said:
                raise failure(said, spec.environment.name)
            if "memory" not in in_cgroup:  # it looks for new workers too: not before the first
                self._host.mind(guest.watch())
        except BaseException as error:
            await guest.close()
            raise _start_error(error) from None
        return guest


def _start_error(error: BaseException) -> BaseException:
    if isinstance(error, TimeoutError):
        return StartError(f"the guest did not come up in {HELLO_TIMEOUT:.0f} s")
    if isinstance(error, ProcessLookupError):
        return StartError("the guest died as soon as it was confined")
    return error


def _started_zygote(started: concurrent.futures.Future[Zygote] | None) -> Zygote | None:
    if started is None or not started.done() or started.exception():
        return None
    return started.result()


def _request(spec: GuestSpec, zygote: Zygote, in_cgroup: frozenset[str]) -> dict[str, object]:
    limits = spec.limits
    return {
        "uid": plan.pick_uid(zygote.root),
        "workdir": spec.workdir,
        "scratch": spec.scratch,
        "noexec": spec.noexec,
        "workspace": limits.workspace,
        "tmp": limits.tmp,
        "setup": {
            # Memory that a guest shares with the host is counted only by a memory cgroup.
            **base.init_settings(limits, share="memory" in in_cgroup),
            "workspace": spec.workdir,
            "data": None if "memory" in in_cgroup else zygote.baseline + limits.memory,
        },
        "meminfo": plan.meminfo(limits.memory),
        "rlimits": guest_view.rlimits(limits),
        "affinity": []
        if "cpus" in in_cgroup
        else plan.affinity(limits.cpus, os.sched_getaffinity(0)),
        # Without a cgroup nothing counts pages that are in no process's memory.
        "deny_hidden_memory": "memory" not in in_cgroup,
        "named": _name_user(spec.env),
        **plan.places(spec.mounts, (spec.workdir, *spec.scratch)),
        **plan.writable(spec.mounts),
    }


def _name_user(env: Mapping[str, str]) -> dict[str, str]:
    """Files that differ from those of other guests, if the user is called otherwise."""
    name = guest_view.user_name(env)
    if name == guest_view.USER:
        return {}
    return {
        "/etc/passwd": guest_view.passwd(1000, name=name),
        "/etc/group": guest_view.group(name=name),
    }


def _is_rare(spec: GuestSpec) -> bool:
    """True if no other sandbox is likely to have guests of the same zygote."""
    return bool(spec.mounts or spec.scratch)
