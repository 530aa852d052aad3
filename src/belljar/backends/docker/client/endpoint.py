"""Which engine to use: from the caller's option, environment variables, `docker context`, or the
sockets of this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from belljar.errors import BackendUnavailable, InvalidOption

SYSTEM_SOCKET = "/var/run/docker.sock"
SYSTEM_PODMAN = "/run/podman/podman.sock"
PORT, TLS_PORT = 2375, 2376
MAX_FILE = 1024 * 1024

# A host or user never begins with "-": ssh would take it for an option.
_AUTHORITY = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.+@-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[\x20-\x7e]*)?"
)
_FORMS = "unix:///path/of.sock, tcp://host:port, ssh://user@host"


@dataclass(frozen=True, kw_only=True)
class Tls:
    """How a TCP connection is secured, by files in PEM form."""

    ca: str | None = None  # authorities for the engine's certificate; None: the system's
    cert: str | None = None  # the client's, with its key
    key: str | None = None
    verify: bool = True  # False: the engine's certificate is not checked


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    kind: Literal["unix", "tcp", "ssh"]
    address: str  # a path, "host:port", or "[user@]host[:port][/path]"
    tls: Tls | None = None
    source: str = ""  # which setting named it, for messages

    def __str__(self) -> str:
        return f"{self.kind}://{self.address}"

    @property
    def authority(self) -> str:
        """The value of HTTP's Host header; a local engine ignores it."""
        return self.address if self.kind == "tcp" else "docker"


def find_endpoint(host: str | None = None, environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The engine to use, found in the same order as by the docker command.

    Raises BackendUnavailable if no engine is found, InvalidOption for a malformed address.

    >>> str(find_endpoint("tcp://build-server:2375", {}))
    'tcp://build-server:2375'
    """
    if host:
        return parse_endpoint(host, "the option host", environ)
    if named := environ.get("DOCKER_HOST"):
        return parse_endpoint(named, "DOCKER_HOST", environ)
    if of_context := _from_context(environ):
        return of_context
    if named := environ.get("CONTAINER_HOST"):
        return parse_endpoint(named, "CONTAINER_HOST", environ)
    return _from_sockets(environ)


def parse_endpoint(
    text: str, source: str, environ: Mapping[str, str] | None = None, *, tls: Tls | None = None
) -> Endpoint:
    """Parse an address in Docker's form; for TCP, `environ` may ask for TLS."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator and text.startswith("/"):
        scheme, rest = "unix", text.strip()
    match scheme.lower():
        case "unix" if rest.startswith("/") and "\0" not in rest:
            return Endpoint(kind="unix", address=rest, source=source)
        case "tcp" | "http" | "https" if found := _AUTHORITY.fullmatch(rest):
            tls = tls or _tls_of(environ or {}, wanted=scheme.lower() == "https")
            port = int(found["port"] or 0) or (PORT if tls is None else TLS_PORT)
            if found["user"] is None and found["path"] in (None, "/") and port <= 0xFFFF:
                address = f"{found['host']}:{port}"
                return Endpoint(kind="tcp", address=address, tls=tls, source=source)
        case "ssh" if (found := _AUTHORITY.fullmatch(rest)) and int(found["port"] or 0) <= 0xFFFF:
            return Endpoint(kind="ssh", address=rest.removesuffix("/"), source=source)
    raise InvalidOption(
        f"{source}: {text[:200]!r} is not the address of an engine", hint=f"one of {_FORMS}"
    )


def ssh_parts(address: str) -> tuple[str | None, str, int, str]:
    """User, host, port (0: ssh's own choice), and path ("": the engine's default socket)."""
    found = _AUTHORITY.fullmatch(address)
    if found is None:  # not made by parse_endpoint()
        raise InvalidOption(
            f"{address[:200]!r} is not an address for ssh", hint="[user@]host[:port]"
        )
    return found["user"], found["host"].strip("[]"), int(found["port"] or 0), found["path"] or ""


# --- TLS -------------------------------------------------------------------------------------


def _tls_of(environ: Mapping[str, str], *, wanted: bool) -> Tls | None:
    """TLS as Docker's variables ask for it. By default the engine's certificate is checked."""
    verify, plain = environ.get("DOCKER_TLS_VERIFY"), environ.get("DOCKER_TLS")
    named = environ.get("DOCKER_CERT_PATH")
    if not (wanted or verify or plain or named):
        return None
    checked = bool(verify or named or wanted)
    tls = tls_files(named or config_directory(environ), verify=checked)
    if named and not (tls.ca or tls.cert):
        raise InvalidOption(
            f"DOCKER_CERT_PATH: {named!r} has none of ca.pem, cert.pem, key.pem",
            hint="it is a directory with files from the engine's administrator",
        )
    return tls


def tls_files(directory: str, *, verify: bool) -> Tls:
    """The files that the docker command would use, if they exist."""
    ca, cert, key = (
        path if os.path.exists(path := os.path.join(directory, name)) else None
        for name in ("ca.pem", "cert.pem", "key.pem")
    )
    if bool(cert) != bool(key):
        raise InvalidOption(
            f"{directory!r} has only one of cert.pem and key.pem", hint="TLS needs both or neither"
        )
    return Tls(ca=ca, cert=cert, key=key, verify=verify)


# --- contexts and sockets --------------------------------------------------------------------


def config_directory(environ: Mapping[str, str]) -> str:
    return environ.get("DOCKER_CONFIG") or os.path.join(_home(environ), ".docker")


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _from_context(environ: Mapping[str, str]) -> Endpoint | None:
    """The engine of the chosen `docker context`, if there is one."""
    directory = config_directory(environ)
    name, source = environ.get("DOCKER_CONTEXT"), "DOCKER_CONTEXT"
    if not name:
        name, source = _current_context(directory), f"currentContext of {directory}/config.json"
    if not name or name == "default":  # "default" means: ignore contexts
        return None
    identity = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    path = os.path.join(directory, "contexts", "meta", identity, "meta.json")
    hint = f"`docker context ls` lists the contexts; {source} chose this one"
    try:
        endpoints = _read_json(path).get("Endpoints")
    except OSError as error:
        raise BackendUnavailable(
            f"there is no Docker context {name!r}: {error.strerror}", hint=hint
        ) from error
    docker = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = docker.get("Host") if isinstance(docker, dict) else None
    if not isinstance(docker, dict) or not isinstance(host, str) or not host:
        raise BackendUnavailable(f"the Docker context {name!r} names no engine", hint=hint)
    files = os.path.join(directory, "contexts", "tls", identity, "docker")
    verify = docker.get("SkipTLSVerify") is not True
    tls = tls_files(files, verify=verify) if os.path.isdir(files) else None
    return parse_endpoint(host, f"context {name!r}", {}, tls=tls)


def _current_context(directory: str) -> str | None:
    """The name of the context chosen by `docker context use`, if any."""
    try:
        name = _read_json(os.path.join(directory, "config.json")).get("currentContext")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # not permitted: another user's home, as after `sudo`
    return name if isinstance(name, str) else None


def _read_json(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        text = file.read(MAX_FILE)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BackendUnavailable(
            f"{path} is not valid JSON: {error}", hint="repair it, or set DOCKER_HOST"
        ) from error
    return found if isinstance(found, dict) else {}


def _from_sockets(environ: Mapping[str, str]) -> Endpoint:
    """The first socket that this user may use; else the first, and connecting says why not."""
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = [
        SYSTEM_SOCKET,
        os.path.join(runtime, "docker.sock"),
        os.path.join(_home(environ), ".docker/run/docker.sock"),
        os.path.join(runtime, "podman/podman.sock"),
        SYSTEM_PODMAN,
    ]
    there = [path for path in paths if os.path.exists(path)]
    usable = [path for path in there if os.access(path, os.R_OK | os.W_OK)]
    for path in usable or there:
        return Endpoint(kind="unix", address=path, source="default socket")
    raise BackendUnavailable(
        f"no container engine was found (no socket at {', '.join(paths)})",
        hint="install and start Docker or Podman (`systemctl --user start podman.socket`), "
        f"or set DOCKER_HOST to one of {_FORMS}",
    )
