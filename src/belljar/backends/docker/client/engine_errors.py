"""Errors of an engine.

EngineError                     it refused, broke off, or did not answer (a SandboxError)
└── EngineUnavailable           it could not be reached (also a BackendUnavailable)
"""

from __future__ import annotations

import json
import socket
from typing import Any

from belljar.backends.docker.client.endpoint import Endpoint, ssh_parts
from belljar.errors import BackendUnavailable, SandboxError
from belljar.text import printable

MAX_WORDS = 2000  # characters of what an engine says about a failure
START = "start it: `systemctl start docker`, rootless `systemctl --user start docker`"
_CERTIFICATE = "does it want a certificate? DOCKER_CERT_PATH, with cert.pem and key.pem it accepts"

# Part of an engine's message -> the hint.
_HINTS = {
    "HTTP request to an HTTPS server": "it wants TLS: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH",
    "Minimum supported API version": "this engine is too new: try a newer belljar",
}


class BrokenAnswer(Exception):
    """The answer is malformed or incomplete; `nothing`: no byte came. Becomes an EngineError."""

    def __init__(self, why: str, *, nothing: bool = False) -> None:
        super().__init__(why)
        self.nothing = nothing


class EngineError(SandboxError):
    """`status` is that of HTTP, or 0 without an answer; `message` is the engine's."""

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"status": self.status}


class EngineUnavailable(EngineError, BackendUnavailable):
    """There is no connection to the engine; it got no request."""


def refusal_error(status: int, body: bytes) -> EngineError:
    """The error for an answer with an error status."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    words = said.get("message") if isinstance(said, dict) else body.decode("utf-8", "replace")
    text = clean_text(words) if isinstance(words, str) else ""
    hint = next((remedy for phrase, remedy in _HINTS.items() if phrase in text), None)
    return EngineError(
        text or f"the engine answered with status {status}", status=status, hint=hint
    )


def clean_text(words: str) -> str:
    text = printable(words[:MAX_WORDS]).strip()
    return text if len(words) <= MAX_WORDS else f"{text} …"


def unreachable_error(endpoint: Endpoint, error: OSError) -> EngineUnavailable:
    """The error for a failed connection."""
    why = clean_text(error.strerror or str(error))
    source = f", from {endpoint.source}" if endpoint.source else ""
    return EngineUnavailable(
        f"no connection to the engine at {endpoint}{source}: {why}", hint=_remedy(endpoint, error)
    )


def _remedy(endpoint: Endpoint, error: OSError) -> str:
    import ssl  # late: only a failure pays for it

    match error:
        case ssl.SSLCertVerificationError():
            return "set DOCKER_CERT_PATH to a directory with the ca.pem that signed its certificate"
        case ssl.SSLError() if "ALERT" in str(error):
            return _CERTIFICATE
        case ssl.SSLError():
            return "does this port speak TLS? without it: unset DOCKER_TLS_VERIFY, DOCKER_CERT_PATH"
        case socket.gaierror():
            return "check the name of the host"
        case FileNotFoundError() if endpoint.kind == "ssh":
            return "install the OpenSSH client"
        case FileNotFoundError() | NotADirectoryError():
            return f"{START}; if it listens elsewhere, set DOCKER_HOST"
        case PermissionError():
            return (
                "become a member of the group that owns the socket (`sudo usermod -aG docker "
                "$USER`, then log in again; its members are as good as root), or run a rootless "
                "engine and set DOCKER_HOST"
            )
        case ConnectionRefusedError():
            return f"nothing listens there; {START}"
    return "is the address right, and the machine up? does `docker info` answer?"


def broken_error(endpoint: Endpoint, what: str, error: BrokenAnswer, said: str) -> EngineError:
    """The error for a broken answer. `said`: what ssh said about its end, if it is in between."""
    if said and error.nothing:
        user, host, port, _ = ssh_parts(endpoint.address)
        by_hand = f"ssh {f'-p {port} ' if port else ''}{f'{user}@' if user else ''}{host}"
        return EngineUnavailable(
            f"no connection to the engine at {endpoint}: {clean_text(said)}",
            hint=f"does `{by_hand} docker version` work without a password?",
        )
    # With TLS 1.3 the client's certificate is refused only after the handshake: by an alert, by the
    # end of the stream, or by a reset if the engine does not read the request.
    cause = error.__cause__ if error.nothing else None
    cut = isinstance(cause, (ConnectionResetError, BrokenPipeError))
    if endpoint.tls is not None and error.nothing and (cause is None or cut):
        return EngineUnavailable(
            f"the engine at {endpoint} closed the TLS connection without an answer",
            hint=_CERTIFICATE,
        )
    if isinstance(cause, OSError):
        return unreachable_error(endpoint, cause)
    return EngineError(
        f"the engine at {endpoint} gave an unexpected answer to {what}: {clean_text(str(error))}",
        hint="did it end meanwhile? is it a container engine? see its log",
    )
