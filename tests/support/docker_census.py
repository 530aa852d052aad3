"""A census of what the docker backend may leave in an engine, as census.py is for processes.

Nothing here asks belljar: it speaks to the engine's socket by itself. `take()` before, `take()`
after, and `leaks()` says what is new; `ours()` is what carries belljar's labels or name.
"""

import dataclasses
import http.client
import json
import os
import socket
import tempfile
import time
import urllib.parse
from pathlib import Path

import census

DEFAULT = "unix:///var/run/docker.sock"


class Refused(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(method, path, host=None, **options):
    """One call to the engine: the parsed answer. Raises Refused, or OSError without an answer."""
    text = raw(method, path, host, **options)
    return json.loads(text) if text.strip().startswith((b"{", b"[")) else None


def raw(method, path, host=None, body=None, timeout=30.0, **query):
    """The answer as it came."""
    connection = connect(host, timeout)
    asked = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in query.items()
    }
    try:
        connection.request(
            method,
            f"{path}?{urllib.parse.urlencode(asked)}",
            body=None if body is None else json.dumps(body),
            headers={} if body is None else {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 400:
        raise Refused(answer.status, text.decode(errors="replace"))
    return text


def connect(host=None, timeout=60.0):
    url = urllib.parse.urlsplit(host or os.environ.get("DOCKER_HOST") or DEFAULT)
    if url.scheme != "unix":
        raise RuntimeError(f"these tests look at an engine of this machine, not at {url.geturl()}")
    return _UnixConnection(url.path, timeout)


# --- the census ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Census:
    containers: dict  # by id: how to call it
    networks: frozenset
    volumes: frozenset
    untagged: frozenset  # images that nothing names
    temporary: frozenset  # of this host, not the engine's


def take(host=None):
    return Census(
        containers={
            each["Id"]: _described(each) for each in containers(host) if not _of_another(each)
        },
        networks=frozenset(each["Name"] for each in ask("GET", "/networks", host)),
        volumes=frozenset(each["Name"] for each in ask("GET", "/volumes", host)["Volumes"] or ()),
        untagged=frozenset(_untagged(host)),
        temporary=frozenset(_temporary()),
    )


def containers(host=None):
    everyone = ask("GET", "/containers/json", host, all="1")
    return [each for each in everyone if not (each["State"] == "removing" and _gone(each, host))]


def _gone(container, host):
    """Docker 20.10 may go on listing one, without a name, that ended while it was removed."""
    try:
        ask("GET", f"/containers/{container['Id']}/json", host)
    except Refused as error:
        return error.status == 404
    return False


def ours(host=None):
    """The containers of belljar's, whoever's labels they carry."""
    return [
        _described(each)
        for each in containers(host)
        if any(name.startswith("belljar.") for name in each["Labels"] or ())
        or any(name.startswith("/belljar-") for name in each["Names"] or ())
    ]


def leaks(before, after):
    """What is there after that was not there before, as sentences."""
    # By their ids: what they are called says for how long they have been up.
    new = [name for key, name in after.containers.items() if key not in before.containers]
    found = [f"container {name}" for name in sorted(new)]
    found += [f"network {name}" for name in sorted(after.networks - before.networks)]
    found += [f"volume {name}" for name in sorted(after.volumes - before.volumes)]
    found += [f"untagged image {name}" for name in sorted(after.untagged - before.untagged)]
    found += [f"temporary {path}" for path in sorted(after.temporary - before.temporary)]
    return found


def settle(before, host=None, timeout=10.0):
    """The leaks that stay: what is just ending gets a moment."""
    deadline = time.monotonic() + timeout
    while True:
        found = leaks(before, take(host))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _of_another(container):
    """Whether it is a sandbox of another process that is alive on this machine."""
    labels = container["Labels"] or {}
    try:
        pid, started = int(labels["belljar.owner.pid"]), int(labels["belljar.owner.started"])
    except (KeyError, ValueError):
        return False
    return pid != os.getpid() and census.alive(pid, started)


def _described(container):
    names = ", ".join(name.removeprefix("/") for name in container["Names"] or ())
    return f"{names or container['Id'][:12]} ({container['Image']}, {container['Status']})"


def _untagged(host):
    for image in ask("GET", "/images/json", host, filters={"dangling": ["true"]}):
        yield image["Id"]


def _temporary():
    for path in Path(tempfile.gettempdir()).iterdir():
        if not path.name.startswith("pytest-of-"):  # pytest keeps those of its last runs
            yield str(path)
