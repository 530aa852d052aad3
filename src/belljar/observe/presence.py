"""Presence: a small file for each live sandbox, so that other processes can see it.

    <directory>/<sandbox id>      mode 0600, in a directory of mode 0700

It is JSON, and is removed when the sandbox ends. If the process was killed, the file stays; pid,
start time and boot of the owner show that it is stale.

Readers trust it little: a file counts only if it lies in a directory that no user but its owner can
write to, is small, and each field has the form that we write. No path in it is ever opened, and the
kernel is asked whether its process is that sandbox (see `live_sandboxes`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping

from belljar import events
from belljar.backends.base import Location
from belljar.backends.docker.owner import Owner
from belljar.errors import SandboxError
from belljar.observe import presence_file
from belljar.observe.presence_file import (
    LIMITS,
    MAX_METADATA,
    MAX_TEXT,
    SCHEMA,
    Note,
    parse_note,
    process_started,
)

log = logging.getLogger("belljar.observe")

MAX_FILE = 16 * 1024
MAX_FILES = 10_000  # in one directory
MAX_FOREIGN = 1000  # in one of another user's

_ID = re.compile(r"bj-[0-9a-f]{16}")


# -- writing ------------------------------------------------------------------------------------


class Presence:
    """Writes the files of this process's sandboxes. Subscribed to their starts and ends."""

    def __init__(self) -> None:
        us = Owner.current()
        self.pid = us.pid
        self._owner = {
            "pid": us.pid,
            "started": us.started,
            "pid_namespace": us.pid_namespace,
            "host": f"{us.machine}.{us.boot}",
        }
        self._lock = threading.Lock()
        self._files: dict[str, str] = {}  # id → path
        self._swept: set[str] = set()  # backends whose stale notes were removed

    def observe(self, event: events.Event) -> None:
        match event:
            case events.Started():
                try:
                    self._write(event)
                except (OSError, SandboxError) as error:
                    # A read-only home, a full disk. Only `belljar ps` misses the sandbox then.
                    log.info("writing the presence file of %s failed: %s", event.subject.id, error)
            case events.Ended():
                self._remove(event.subject.id)

    def _write(self, event: events.Started) -> None:
        self.remove_dead()
        id = event.subject.id
        data = _encode(event.subject, event.whereabouts, self._owner)
        directory = presence_file.prepare_directory()
        # Written aside and renamed: readers see all of it, or nothing. It replaces the file of a
        # guest that was lost.
        aside = f"{directory}/.{id}-{self.pid}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(aside, flags, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        with self._lock:
            self._files[id] = f"{directory}/{id}"
            os.rename(aside, self._files[id])
        self._sweep(event.subject.backend)

    def _remove(self, id: str) -> None:
        with self._lock:
            path = self._files.pop(id, None)
            if path is not None and os.getpid() == self.pid:
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    os.unlink(path)

    def remove_dead(self, at_least: int = 8) -> None:
        """Remove the files of sandboxes that were dropped without a close: these send no event.
        Does nothing while there are few files."""
        if len(self._files) >= at_least:
            live = {sandbox.id for sandbox in events.live()}
            for id in self._files.keys() - live:
                self._remove(id)

    def _sweep(self, backend: str) -> None:
        """Remove the files of killed processes, once for each backend. Called after the first start
        of a guest, before which the backend has removed the orphans themselves: a container that
        still runs must stay visible."""
        if backend in self._swept:
            return
        self._swept.add(backend)
        for note in read_notes(everybody=False):
            if note.backend == backend and note.stale:
                remove_stale(note)

    def close(self) -> None:
        for id in list(self._files):
            self._remove(id)


_installed: tuple[Presence, events.Subscription] | None = None
_installing = threading.Lock()


def install() -> None:
    """Let other processes see the sandboxes of this one. Called before the first one starts, also
    twice. Nothing is written before a sandbox starts."""
    global _installed
    with _installing:
        if _installed is None or _installed[0].pid != os.getpid():
            try:
                made = Presence()
            except (OSError, SandboxError) as error:
                log.info("presence files of this process are off: %s", error)
                return
            _installed = made, events.subscribe(made.observe, cells=False)


def uninstall() -> None:
    """Stop writing presence files, and remove those of this process."""
    global _installed
    with _installing:
        installed, _installed = _installed, None
    if installed is not None:
        installed[1].cancel()
        installed[0].close()


def _after_fork() -> None:
    """The files belong to the parent."""
    global _installed, _installing
    _installing, _installed = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(uninstall)


def _encode(subject: events.Subject, seen: Location, owned: Mapping[str, object]) -> bytes:
    metadata = {
        key[:MAX_TEXT]: value[:MAX_TEXT]
        for key, value in list(subject.metadata.items())[:MAX_METADATA]
    }
    said = {
        "schema": SCHEMA,
        "id": subject.id,
        "backend": subject.backend,
        "environment": subject.environment[:MAX_TEXT],
        "created": time.time(),
        "owner": dict(owned),
        "pid": seen.pid,
        "pid_started": None if seen.pid is None else process_started(seen.pid),
        "container": seen.container,
        "engine": None if seen.engine is None else seen.engine[:MAX_TEXT],
        "limits": {name: getattr(subject.limits, name) for name in LIMITS},
        "metadata": metadata,
    }
    return json.dumps(said, separators=(",", ":")).encode()


# -- reading ------------------------------------------------------------------------------------


def read_notes(*, everybody: bool | None = None) -> list[Note]:
    """The sandboxes that have presence files: of this user; as root, of all users."""
    wide = os.geteuid() == 0 if everybody is None else everybody
    found: dict[str, Note] = {}
    for directory in presence_file.candidate_directories(everybody=wide):
        for note in _notes_in(directory):
            found.setdefault(note.id, note)
    return sorted(found.values(), key=lambda note: note.created)


def remove_stale(note: Note) -> bool:
    """Remove a stale file, if it still is the one that was read."""
    with presence_file.open_directory(os.path.dirname(note.path)) as directory:
        if directory is None:
            return False
        again = _read(directory, note.id)
        if again is None or not again.stale or again.owner != note.owner:
            return again is None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(note.id, dir_fd=directory.fd)
        return True


def _notes_in(path: str) -> Iterator[Note]:
    with presence_file.open_directory(path) as directory:
        if directory is None:
            return
        most = MAX_FILES if directory.uid == os.geteuid() else MAX_FOREIGN
        for name in sorted(os.listdir(directory.fd))[:most]:
            if _ID.fullmatch(name) and (note := _read(directory, name)):
                yield note


def _read(directory: presence_file.OpenDirectory, name: str) -> Note | None:
    try:
        # O_NONBLOCK: opening a FIFO of that name would block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=directory.fd)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != directory.uid:
                return None
            data = os.read(descriptor, MAX_FILE + 1)
        finally:
            os.close(descriptor)
    except OSError:
        return None  # gone, or not a presence file
    if len(data) > MAX_FILE:
        return None
    return parse_note(data, name=name, uid=directory.uid, path=f"{directory.path}/{name}")
