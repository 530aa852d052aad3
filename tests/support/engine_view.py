"""The engine as anybody sees it: asked over its socket, without Belljar's own code."""

import http.client
import json
import os
import socket
import subprocess
from urllib.parse import quote

import setting


class _Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(_socket())


def _socket():
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        raise RuntimeError(f"these tests look at an engine of this machine, not at {host}")
    return host.removeprefix("unix://")


def is_there():
    """Whether this run has to do with one, and it answers."""
    return setting.DOCKER and os.path.exists(_socket())


def ask(path, method="GET"):
    """What the engine answers; None when there is no such thing."""
    connection = _Connection("engine")
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status == 404:
        return None
    if answer.status >= 400:
        raise RuntimeError(f"{method} {path}: {answer.status} {text!r:.500}")
    return json.loads(text) if text else {}


def inspect(container):
    return ask(f"/containers/{quote(container)}/json")


def containers():
    """All that carry a label of ours, running or not: those of everybody on this machine."""
    everyone = ask("/containers/json?all=1")
    ours = [c for c in everyone if any(label.startswith("belljar.") for label in c["Labels"])]
    # Docker 20.10 may go on listing one, without a name, that ended while it was removed.
    return [c for c in ours if c["State"] != "removing" or inspect(c["Id"]) is not None]


def guests_of(owner):
    """The host's numbers of the first processes of containers that a process has made."""
    mine = [c for c in containers() if c["Labels"].get("belljar.owner.pid") == str(owner)]
    states = [seen["State"] for c in mine if (seen := inspect(c["Id"]))]
    return [state["Pid"] for state in states if state["Running"]]


def networks():
    return {network["Name"] for network in ask("/networks")}


def volumes():
    return {volume["Name"] for volume in ask("/volumes")["Volumes"] or ()}


# --- gVisor ----------------------------------------------------------------------------------


# Where runsc keeps what it knows: the engine passes it the same place as to runc.
_RUNSC_STATE = "/var/run/docker/runtime-runc/moby"


def _runsc(*words):
    command = ["runsc", "--root", _RUNSC_STATE, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def gvisor_signal(container, pid, number):
    _runsc("kill", "--pid", str(pid), container, str(int(number)))


def gvisor_processes(container):
    """(pid, parent, name) of each process, as gVisor's kernel knows them; numbers are inside's."""
    rows = [line.split() for line in _runsc("ps", container).stdout.splitlines()]
    return [(int(r[1]), int(r[2]), r[-1]) for r in rows if len(r) > 6 and r[1].isdigit()]
