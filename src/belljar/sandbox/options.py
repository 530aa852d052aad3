"""The options of a sandbox, validated once: what is unknown or ill-formed is said at once."""

from __future__ import annotations

import functools
import inspect
import keyword
import math
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from belljar import runtime
from belljar.backends import mounts as workdirs
from belljar.backends.docker import settings
from belljar.backends.docker.settings import Docker
from belljar.backends.mounts import Mount, Scratch, check_mounts
from belljar.environment.environment import BUILTIN, Environment, add_packages, resolve
from belljar.errors import InvalidOption, check_encodable, unknown_option
from belljar.files import sessions
from belljar.functions.registry import Functions, HostFunction, coerce_functions
from belljar.limits import RULES, Limits
from belljar.protocol import wire

if TYPE_CHECKING:
    from belljar.policy import Policy

    PolicyLike = str | os.PathLike[str] | Mapping[str, object] | Policy

NETWORKS = ("none", "open")
MAX_CODE = wire.MAX_PAYLOAD

DEFAULT = "data"  # the Environment of who names none
# And of who brings an image: nothing is known of what it has, and nothing imported in advance.
AS_IT_IS = replace(BUILTIN[DEFAULT], preload=(), warmup="")


@dataclass(frozen=True, kw_only=True)
class Options:
    id: str
    backend: str
    docker: Docker
    environment: Environment
    limits: Limits
    env: Mapping[str, str]
    network: str
    policy: Policy | None
    strict: bool | None
    metadata: Mapping[str, str]
    functions: Mapping[str, HostFunction]
    workspace: Path | None
    session: str | None
    workdir: str
    mounts: tuple[Mount, ...]
    noexec: bool
    record: Path | None


def make(
    *,
    backend: str | Docker,
    environment: str | Environment | None,
    packages: Sequence[str],
    limits: Limits | Mapping[str, object] | None,
    env: Mapping[str, str] | None,
    network: str,
    policy: PolicyLike | None,
    strict: bool | None,
    metadata: Mapping[str, str] | None,
    functions: Functions | None,
    workspace: str | os.PathLike[str] | None,
    session: str | None,
    workdir: str,
    mounts: Iterable[Mount],
    noexec: bool,
    record: str | os.PathLike[str] | None,
    image: str | None,
    dockerfile: str | os.PathLike[str] | None,
    runtime: str | None,
    platform: str | None,
    gpus: str | int | None,
    devices: Sequence[str],
) -> Options:
    chosen = None
    if environment is not None or packages:
        chosen = add_packages(resolve(environment or DEFAULT), packages)
    if not isinstance(network, str):
        raise InvalidOption(f"network is a str, not {network!r}", hint=", ".join(NETWORKS))
    if network not in NETWORKS:
        raise unknown_option("network", network, NETWORKS)
    backend, docker = _backend(
        backend,
        chosen,
        network,
        image=image,
        dockerfile=dockerfile,
        runtime=runtime,
        platform=platform,
        gpus=gpus,
        devices=devices,
    )
    if strict is not None and not isinstance(strict, bool):
        raise InvalidOption(f"strict is True, False or None, not {strict!r}")
    if not isinstance(noexec, bool):
        raise InvalidOption(f"noexec is True or False, not {noexec!r}")
    if workspace is not None and session is not None:
        raise InvalidOption(
            "workspace and session exclude each other",
            hint="a session is a workspace that Belljar keeps by its name",
        )
    recorded, kept = host_path("record", record), host_path("workspace", workspace)
    mounted = check_mounts(mounts)
    shared = [mount for mount in mounted if not isinstance(mount, Scratch)]
    for directory in (kept, *(Path(mount.host) for mount in shared)):
        if recorded and directory and recorded.resolve().is_relative_to(directory.resolve()):
            raise InvalidOption(
                f"the record {str(recorded)!r} would be within reach of the code",
                hint="keep it outside of workspace= and mounts=",
            )
    return Options(
        id=_new_id(),
        backend=backend,
        docker=docker,
        environment=chosen or (AS_IT_IS if docker.own else BUILTIN[DEFAULT]),
        limits=Limits.coerce(limits),
        env=MappingProxyType(texts("env", env)),
        network=network,
        policy=None if policy is None else _policy(policy),
        strict=strict,
        metadata=MappingProxyType(texts("metadata", metadata)),
        functions=MappingProxyType(coerce_functions(functions or {})),
        workspace=kept,
        session=None if session is None else sessions.check_session_name(session),
        workdir=workdirs.check_workdir(workdir, mounted),
        mounts=mounted,
        noexec=noexec or docker.noexec,
        record=recorded,
    )


def _backend(
    backend: str | Docker, environment: Environment | None, network: str, **flat: object
) -> tuple[str, Docker]:
    """The backend's name, and the settings of the docker backend. Who asks for something that
    only docker has, and names no backend, means docker."""
    if not isinstance(backend, (str, Docker)):
        raise InvalidOption(
            f"backend is a str or Docker(...), not {backend!r}",
            hint=f"one of {', '.join(runtime.BACKENDS)}",
        )
    docker = settings.merge_settings(
        backend if isinstance(backend, Docker) else settings.DEFAULT, flat
    )
    name = "docker" if isinstance(backend, Docker) else backend
    if name == "auto" and (docker.given or network != "none"):
        name = "docker"
    name = runtime.meant(name)
    if name == "native":
        if docker.given:
            raise InvalidOption(
                f"{docker.given[0]} is an option of the docker backend, not of native",
                hint='backend="docker", or leave backend out',
            )
        if network != "none":
            raise InvalidOption(
                f"network={network!r} is an option of the docker backend: native has no network",
                hint='backend="docker"; or expose a host function that fetches what it may have',
            )
        return name, docker
    if name == "auto":
        return name, docker  # whether it will be used is not known yet
    # Here, in the caller's thread: a fork of the process while another thread imports would
    # leave the child waiting for ever for the import to end.
    runtime.docker_backend()
    if environment is not None:
        settings.check_environment(docker, environment)
    return name, settings.fill_from_environment(docker)


def _policy(given: PolicyLike) -> Policy:
    from belljar.policy import Policy  # by who has one: the analyser takes its time to import

    return Policy.coerce(given)


def twin(options: Options) -> Options:
    """The options of a fork: those of the original, but for what cannot be shared."""
    return replace(options, id=_new_id(), functions=MappingProxyType({}), record=None)


def _new_id() -> str:
    return f"bj-{uuid.uuid4().hex[:16]}"


def host_path(option: str, given: str | os.PathLike[str] | None) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, (str, os.PathLike)) or not str(given):
        raise InvalidOption(f"{option} is a path, not {given!r}")
    return Path(given).expanduser().absolute()


def check_name(name: str) -> str:
    """The name of a variable."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidOption(f"{name!r} cannot be the name of a variable")
    return name


def texts(option: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """A mapping of texts, such as environment variables."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        hint = "the Environment is `environment=`" if option == "env" else None
        raise InvalidOption(f"{option} is a mapping of texts, not {given!r}", hint=hint)
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"{option} holds texts only, not {name!r}: {value!r}")
        if option == "env" and (not name or "=" in name or "\0" in name + value):
            raise InvalidOption(f"{name!r} cannot be an environment variable")
        check_encodable(option, name + value)
    return dict(given)


def check_known(
    function: Callable[..., object], given: Mapping[str, object], unnamed: Sequence[object] = ()
) -> None:
    """An option nobody knows is an error that names the nearest one."""
    if unnamed:
        first = unnamed[0] if isinstance(unnamed[0], str) else "..."
        raise InvalidOption(
            "options are given by their names", hint=f"Sandbox(environment={first!r})?"
        )
    known = _names_of(function)
    for name in given:
        if name in known:
            continue
        if name in RULES:
            raise InvalidOption(
                f"unknown option {name!r}", hint=f"it is a limit: limits=Limits({name}=...)"
            )
        raise unknown_option("option", name, known)


@functools.cache
def _names_of(function: Callable[..., object]) -> tuple[str, ...]:
    """Its options."""
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


def encode_code(code: str) -> bytes:
    if not isinstance(code, str):  # of a Snippet
        raise InvalidOption(
            f"code is a str, not {type(code).__name__}", hint="decode bytes before running them"
        )
    payload = code.removeprefix("\ufeff").encode("utf-8", "surrogatepass")
    if len(payload) > MAX_CODE:
        raise InvalidOption(
            f"the code has {len(payload)} bytes, more than {MAX_CODE}",
            hint="write large data to a file with files.write()",
        )
    return payload


def check_timeout(given: float | None, default: float | None) -> float | None:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InvalidOption(f"timeout is a number of seconds, not {given!r}")
    if not math.isfinite(given) or given <= 0:
        raise InvalidOption(f"timeout must be above 0 and finite, not {given!r}")
    return float(given)
