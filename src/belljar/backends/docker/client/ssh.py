"""An engine on another machine, through ssh: `docker system dial-stdio` there, a socket here.

ssh is the program of the user, with his configuration, keys and agent. It never asks: nobody may
be there to answer.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import threading

import anyio.to_thread

from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.client.endpoint import ssh_parts

MAX_COMPLAINT = 4000
ALIVE = "ServerAliveInterval=20"  # seconds; three unanswered questions end the connection


def command(address: str) -> list[str]:
    """What is run for `address`; the other machine's shell sees only what is quoted here."""
    user, host, port, path = ssh_parts(address)
    options = ["-T", "-o", "BatchMode=yes", "-o", ALIVE]
    options += ["-l", user] if user is not None else []
    options += ["-p", str(port)] if port else []
    there = ["docker", *(["--host", f"unix://{path}"] if path else []), "system", "dial-stdio"]
    return ["ssh", *options, "--", host, shlex.join(there)]


class Child:
    """The ssh of one connection."""

    def __init__(self, address: str, theirs: socket.socket) -> None:
        # A pipe that nobody empties could block it.
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command(address),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._words,
                # Ctrl-C is for us: ssh is still needed to remove what runs there.
                start_new_session=True,
            )
        except BaseException:
            self._words.close()
            raise

    def complaint(self) -> str:
        said = os.pread(self._words.fileno(), MAX_COMPLAINT, 0)
        return said.replace(b"\r\n", b"\n").decode("utf-8", "replace")

    def end(self) -> None:
        """Kill it; a thread of its own takes its last state, which may take a moment."""
        self._words.close()
        self._process.kill()
        if self._process.poll() is None:
            threading.Thread(target=self._process.wait, name="belljar-ssh", daemon=True).start()


async def dial_ssh(address: str) -> Connection:
    """Raises OSError if ssh cannot be run; whether it gets through is seen by reading."""
    ours, theirs = socket.socketpair()
    try:
        child = await anyio.to_thread.run_sync(Child, address, theirs)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Connection(ours, on_close=child.end, complaint=child.complaint)
