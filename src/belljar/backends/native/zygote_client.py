"""The host's handle of a zygote: started once for each Environment, asked for guests.

Started by the runtime's own thread, because the kernel ties a child's death signal to the
thread that made it: a thread of the caller's may end any time.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import errno
import functools
import json
import os
import platform
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from belljar.backends import bundle
from belljar.backends.linux import cgroup, guest_view, identity, seccomp
from belljar.backends.linux.cgroup import Cgroups, scope
from belljar.backends.mounts import WORKSPACE, Mount
from belljar.backends.native import layers, plan, spawn
from belljar.environment.environment import Built, Environment, build, is_built
from belljar.environment.interpreter import Interpreter, find_interpreter
from belljar.errors import BackendUnavailable, InvalidOption, SandboxError, StartError

CLOSE_TIMEOUT = 10.0
DEATH_TIMEOUT = 30.0  # for the parent of one that has ended to notice
MAX_REQUEST = 65536
START_TIMEOUT = 120.0  # imports of large packages on a cold disk


class ZygoteGone(StartError):
    """It was killed: nothing is wrong with the guest that was asked for. Try with a new one."""


class Zygote:
    def __init__(
        self,
        built: Built,
        hold: int,
        cgroups: Cgroups,
        mounts: tuple[Mount, ...] = (),
        directories: tuple[str, ...] = (WORKSPACE,),
    ) -> None:
        """`hold`: the descriptor that keeps the Environment's files, even if it is removed.
        `cgroups`: what this process may make; if that is not enough, wait_ready() asks for more."""
        self.users = 0  # guests of one with mounts, which ends with the last of them
        self.cgroups = self._shared_cgroups = cgroups
        self._wants_scope = "memory" not in cgroups.controllers and scope.is_available()
        self._mounts, self._directories = mounts, directories
        self.root = identity.has_uid_for_each()
        self.baseline = 0
        self._name = built.environment.name
        self._hold = hold
        launcher = None
        try:
            launcher = spawn.take()
            self._process, self._control = launcher.process, launcher.control
            # Its interpreter starts while the rest is prepared here.
            config = self._config(built, launcher.their_control)
            entry = f"{bundle.PACKAGE}.backends.native.launcher"
            launcher.run(bundle.BOOTSTRAP, entry, _make_bundle(config, built.interpreter))
        except BaseException as error:
            if launcher is not None:
                launcher.close()
            self._let_go()
            if isinstance(error, OSError):
                raise StartError(f"the zygote did not start: {error}") from error
            raise

    def _config(self, built: Built, control: int) -> dict[str, object]:
        profile = seccomp.load_profile()
        deny = () if all(mount.read_only for mount in self._mounts) else seccomp.SET_ID
        machine = platform.machine()
        unused = [identity.UID_FIRST, identity.UID_COUNT]
        return {
            "parent": os.getpid(),
            "scope": self._wants_scope,
            "root": self.root,
            "control": control,
            "uids": unused if self.root else [os.geteuid(), 1],
            "gids": unused if self.root else [os.getegid(), 1],
            "steps": plan.root_steps(
                built.path, built.interpreter, self._mounts, self._directories
            ),
            "python": f"{guest_view.GUEST_ENV}/bin/python",
            "bootstrap": bundle.BOOTSTRAP,
            "entry": f"{bundle.PACKAGE}.backends.native.zygote",
            "env": plan.environment_variables(built.interpreter),
            "preload": list(built.environment.preload),
            "site": not built.environment.confines_site,
            "warmup": built.environment.warmup,
            "seccomp": _b64(seccomp.compile_profile(profile, machine, deny=deny)),
            "seccomp_stricter": _b64(
                seccomp.compile_profile(profile, machine, deny=(*deny, *seccomp.HIDDEN_MEMORY))
            ),
        }

    def wait_ready(self) -> None:
        """Blocks until its imports are done. Called once, by the runtime, in a worker thread."""
        self._control.settimeout(START_TIMEOUT)
        try:
            why = dict(self.cgroups.why)
            if self._wants_scope:
                why |= self._enter_scope()
            # Asked twice for each guest, and mostly for the same limits.
            self.kept = functools.lru_cache(maxsize=64)(
                functools.partial(layers.kept, kind=self.cgroups.kind, why=why)
            )
            data = self._control.recv(65536)
            if not data:
                raise StartError(
                    f"the zygote of environment {self._name!r} ended with status "
                    f"{self._process.wait()}",
                    hint="`belljar doctor` tells what this host allows",
                )
            answer = json.loads(data)
            if "failed" in answer:
                raise failure(answer, self._name)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                most = f"{START_TIMEOUT:.0f} s"
                raise StartError(
                    f"the imports of environment {self._name!r} took more than {most}"
                ) from None
            raise
        self.baseline = int(answer["data"])
        self._control.setblocking(False)

    def _enter_scope(self) -> dict[str, str]:
        """Get control groups from the user's systemd; the result says what is missing, and why."""
        pid = self._process.pid
        try:
            scope.enter(pid)
        except scope.ScopeRefused as error:
            reason = f"the user's systemd gave no control group: {error}"
            missing = dict.fromkeys(self.cgroups.why, reason)
        else:
            self.cgroups = cgroup.detect(pid, "cgroup in a scope of the user's systemd")
            missing = dict(self.cgroups.why)
        with contextlib.suppress(OSError):  # it is gone: recv() says so
            self._control.send(b"1")
        return missing

    def spawn(
        self,
        request: Mapping[str, object],
        env: Mapping[str, str],
        channel: int,
        births: int,
        join: Sequence[int],
    ) -> bool:
        """Ask for a guest; it answers on its own channel, its workers on `births`. What it alone
        may know, its environment variables, it reads by itself. False: the zygote is behind with
        its work, ask again."""
        message = json.dumps({**request, "descriptors": 3 + len(join)}).encode()
        secret = json.dumps(dict(env)).encode()
        if len(secret) > MAX_REQUEST:
            raise InvalidOption(
                f"the variables of the sandbox take {len(secret)} bytes, more than {MAX_REQUEST}",
                hint="`env` is not for data: write a file instead",
            )
        with _memfd(secret) as variables:
            try:
                socket.send_fds(self._control, [message], [channel, births, variables, *join])
            except BlockingIOError:
                return False
            except OSError as error:
                raise ZygoteGone(f"the zygote is gone: {error}") from error
        return True

    def died(self) -> bool:
        """Whether it has ended, or is about to: its parent needs a moment to notice."""
        try:
            from belljar.backends.event_loop import has_hung_up  # not before `start_ahead`

            # Its end of the socket is its alone; the kernel closes it when it ends.
            self._process.wait(DEATH_TIMEOUT if has_hung_up(self._control) else 0.2)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it and, by the kernel's rule, every guest of its; returns when they are gone."""
        # It leaves when it reads the end, and its parent when it is gone. A fork of this process in
        # the middle of the start still has a copy of the socket: so closing ours is not enough.
        with contextlib.suppress(OSError):  # closed already, or the other end is gone
            self._control.shutdown(socket.SHUT_RDWR)
        self._let_go()
        try:
            self._process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.cgroups is not self._shared_cgroups:
            self.cgroups.close()

    def kill(self) -> None:
        """End it while it starts: wait_ready() raises. Called from any thread, never waits."""
        self._process.kill()  # its parent, with which it ends

    def abandon(self) -> None:
        """In a fork of the host process: close our copies; the zygote belongs to the parent."""
        self._let_go()
        self._process.returncode = 0  # so that Popen does not wait for another's child

    def _let_go(self) -> None:
        if hasattr(self, "_control"):
            self._control.close()
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


def _make_bundle(config: dict[str, object], interpreter: Interpreter) -> bytes:
    """The launcher runs on our own Python, the zygote on the Environment's."""
    if interpreter == find_interpreter():
        return bundle.make(config, bundle.MAGIC)
    return bundle.make(config, other=bundle.compile_with(interpreter.executable))


@contextlib.contextmanager
def _memfd(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("belljar", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)  # to memory: all of it at once
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# What says that this machine is full just now, not what it allows.
_NO_FILTERS = 524  # the kernel's own number: no more memory for filters on the whole machine
PASSING = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EIO, _NO_FILTERS)
EXHAUSTED = "out of memory, descriptors (ulimit -n) or processes (ulimit -u) on this host?"

_REMEDIES = {
    "user namespace": "user namespaces are forbidden for this user: allow them (sysctl "
    "kernel.unprivileged_userns_clone=1, user.max_user_namespaces>0, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0), or use another backend",
    "root file system": "a container without CAP_SYS_ADMIN, or a kernel before 5.12?",
    "pivot": "a masked /proc (inside a container?) keeps a new one from being mounted",
    "execute the Environment's Python": "its files must be readable by every user",
    "fork": "too many processes, or pid namespaces (user.max_pid_namespaces), on this host",
    "preload": "fix the Environment's `preload` and `warmup`",
    "threads": "a module of the Environment's `preload` starts threads: leave it out of `preload`",
}


def failure(answer: Mapping[str, object], environment: str) -> SandboxError:
    """Make the exception for a failure that a zygote or a guest reported."""
    step = str(answer["failed"])
    if step == "preload":
        return StartError(
            f"the preload or warmup of environment {environment!r} failed: {answer['message']}",
            hint=_REMEDIES[step],
        )
    passing = answer.get("errno") in PASSING
    kind = StartError if step in ("threads", "fork") or passing else BackendUnavailable
    hint = _REMEDIES.get(step, "`belljar doctor` tells what this host allows")
    return kind(
        f"could not confine a guest of environment {environment!r} ({step}): {answer['message']}",
        hint=EXHAUSTED if passing else hint,
    )


# -- ahead of everything else -------------------------------------------------------------------


class Ahead(NamedTuple):
    """A zygote that was started before there was a backend for it."""

    environment: Environment
    workdir: str
    cgroups: Cgroups
    zygote: Zygote


_ahead: Ahead | None = None


def start_ahead(environment: Environment, workdir: str) -> None:
    """Start a zygote while this process imports the modules of its event loop, which takes as long.
    The native backend takes it over when it is made.

    For a command: called once, by the main thread, which lives as long as the process. Does nothing
    if the Environment must be built. If it fails, the start of the sandbox meets the same error.
    """
    global _ahead
    try:
        check_host()
        if not is_built(environment):
            return
        built = build(environment)
        groups = cgroup.detect()
        _ahead = Ahead(
            environment, workdir, groups, Zygote(built, built.hold(), groups, (), (workdir,))
        )
    except (SandboxError, OSError):
        return
    atexit.register(_close_ahead)


def take_ahead() -> Ahead | None:
    """Called by the backend, which closes it."""
    global _ahead
    ahead, _ahead = _ahead, None
    return ahead


def _close_ahead() -> None:
    """There was an error, or a signal, before a backend was made."""
    ahead = take_ahead()
    if ahead is not None:
        ahead.zygote.kill()
        ahead.zygote.close()
        ahead.cgroups.close()


def check_host() -> None:
    """Raise if the native backend cannot be had at all here, before anything is started."""
    if platform.system() != "Linux":
        raise BackendUnavailable(
            f"the native backend needs Linux, this is {platform.system()}",
            hint="use the docker backend",
        )
    if platform.machine() not in ("x86_64", "aarch64"):
        raise BackendUnavailable(f"the native backend does not know {platform.machine()}")
    identity.check_proc()
