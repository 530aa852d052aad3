"""The options of a sandbox, checked once, when it is made.

`SandboxOptions` is the one list of them: Sandbox, AsyncSandbox, their `create` and `run` take it as
keyword arguments. `make_options` turns it into `Options`.
"""

from __future__ import annotations

import inspect
import keyword
import math
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

from belljar.backends import auto
from belljar.backends.docker import settings
from belljar.backends.docker.settings import FLAT, Docker
from belljar.backends.mounts import WORKSPACE, Mount, Scratch, check_mounts, check_workdir
from belljar.environment.environment import BUILTIN, Environment, add_packages, resolve
from belljar.errors import InvalidOption, check_encodable, unknown_option
from belljar.files import sessions
from belljar.functions.registry import Functions, HostFunction, coerce_functions
from belljar.limits import RULES, Limits

if TYPE_CHECKING:
    from belljar.policy import Policy

    PolicyLike = str | os.PathLike[str] | Mapping[str, object] | Policy

NETWORKS = ("none", "open")

# What a sandbox has for which nothing is given.
ENVIRONMENT = BUILTIN["data"]
LIMITS = Limits()

# The Environment of a caller's own image: its packages are not known, so none is imported early.
AS_IT_IS = ENVIRONMENT.without_preload()


class SandboxOptions(TypedDict, total=False):
    backend: str | Docker
    environment: str | Environment | None
    packages: Sequence[str]
    limits: Limits | Mapping[str, object] | None
    env: Mapping[str, str] | None
    network: str
    policy: PolicyLike | None
    strict: bool | Iterable[str] | None
    metadata: Mapping[str, str] | None
    functions: Functions | None
    notebook: bool | None
    workspace: str | os.PathLike[str] | None
    session: str | None
    workdir: str
    mounts: Iterable[Mount]
    noexec: bool
    record: str | os.PathLike[str] | None
    image: str | None
    dockerfile: str | os.PathLike[str] | None
    runtime: str | None
    platform: str | None
    gpus: str | int | None
    devices: Sequence[str]


_NOT_NONE: dict[str, object] = {
    "backend": "auto",
    "packages": (),
    "network": "none",
    "workdir": WORKSPACE,
    "mounts": (),
    "noexec": False,
    "devices": (),
}
DEFAULTS: Mapping[str, Any] = {name: _NOT_NONE.get(name) for name in SandboxOptions.__annotations__}
PARAMETERS = [
    inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=DEFAULTS[name],
        annotation=annotation.__forward_arg__,
    )
    for name, annotation in SandboxOptions.__annotations__.items()
]


def show_options(function: Callable[..., Any], *more: inspect.Parameter) -> None:
    """Let help() and inspect.signature() show each option of a function in place of `**given`."""
    shown = inspect.signature(function)
    kept = [
        each
        for each in shown.parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    signature = shown.replace(parameters=[*kept, *PARAMETERS, *more])
    function.__signature__ = signature  # type: ignore[attr-defined]


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
    strict: bool | frozenset[str] | None
    metadata: Mapping[str, str]
    functions: Mapping[str, HostFunction]
    notebook: bool
    workspace: Path | None
    session: str | None
    workdir: str
    mounts: tuple[Mount, ...]
    noexec: bool
    record: Path | None
    # As in GuestSpec. No options of callers.
    once: bool = False
    ahead: bool = False


def make_options(
    given: SandboxOptions, unnamed: Sequence[object] = (), own: Iterable[str] = ()
) -> Options:
    """Check what a caller gave. `unnamed`: positional arguments, which are an error. `own`: other
    options of what was called, for the hint about an unknown one."""
    _check_known(given, unnamed, own)
    asked = {**DEFAULTS, **given}
    chosen = None
    if asked["environment"] is not None or asked["packages"]:
        chosen = add_packages(resolve(asked["environment"] or ENVIRONMENT), asked["packages"])
    network, strict, noexec = asked["network"], asked["strict"], asked["noexec"]
    if not isinstance(network, str):
        raise InvalidOption(f"network is a str, not {network!r}", hint=", ".join(NETWORKS))
    if network not in NETWORKS:
        raise unknown_option("network", network, NETWORKS)
    flat = {name: given[name] for name in FLAT if name in given}  # type: ignore[literal-required]
    backend, docker = _choose_backend(asked["backend"], chosen, network, flat)
    if not isinstance(noexec, bool):
        raise InvalidOption(f"noexec is True or False, not {noexec!r}")
    functions = coerce_functions(asked["functions"]) if asked["functions"] else {}
    workspace, session = asked["workspace"], asked["session"]
    if workspace is not None and session is not None:
        raise InvalidOption(
            "workspace and session exclude each other",
            hint="a session is a workspace that Belljar keeps by its name",
        )
    recorded, kept = host_path("record", asked["record"]), host_path("workspace", workspace)
    mounted: tuple[Mount, ...] = ()
    workdir = asked["workdir"]
    if asked["mounts"] != () or workdir != WORKSPACE:
        mounted = check_mounts(asked["mounts"])
        workdir = check_workdir(workdir, mounted)
    shared = [mount for mount in mounted if not isinstance(mount, Scratch)]
    for directory in (kept, *(Path(mount.host) for mount in shared)):
        if recorded and directory and recorded.resolve().is_relative_to(directory.resolve()):
            raise InvalidOption(
                f"the record {str(recorded)!r} would be within reach of the code",
                hint="keep it outside of workspace= and mounts=",
            )
    environment = chosen or (
        AS_IT_IS if docker is not settings.DEFAULT and docker.own else ENVIRONMENT
    )
    if (notebook := asked["notebook"]) is None:
        notebook = bool(environment.notebook)
    elif not isinstance(notebook, bool):
        raise InvalidOption(f"notebook is True, False or None, not {notebook!r}")
    return Options(
        id=new_id(),
        backend=backend,
        docker=docker,
        environment=environment,
        limits=LIMITS if asked["limits"] is None else Limits.coerce(asked["limits"]),
        env=MappingProxyType(check_texts("env", asked["env"])),
        network=network,
        policy=None if asked["policy"] is None else _make_policy(asked["policy"]),
        strict=_check_strict(strict),
        metadata=MappingProxyType(check_texts("metadata", asked["metadata"])),
        functions=MappingProxyType(functions),
        notebook=notebook,
        workspace=kept,
        session=None if session is None else sessions.check_session_name(session),
        workdir=workdir,
        mounts=mounted,
        noexec=noexec or docker.noexec,
        record=recorded,
    )


def _check_strict(given: object) -> bool | frozenset[str] | None:
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidOption(
            f"strict is True, False, None or names of limits, not {given!r}",
            hint='strict={"memory"} refuses to start if that limit cannot be enforced',
        )
    names = frozenset(map(str, given))
    for name in sorted(names - RULES.keys()):
        raise unknown_option("limit", name, RULES)
    return names


def _check_known(given: Iterable[str], unnamed: Sequence[object], own: Iterable[str]) -> None:
    if unnamed:
        first = unnamed[0] if isinstance(unnamed[0], str) else "..."
        raise InvalidOption(
            "options are given by their names", hint=f"Sandbox(environment={first!r})?"
        )
    for name in given:
        if name in DEFAULTS:
            continue
        if name in RULES:
            raise InvalidOption(
                f"unknown option {name!r}", hint=f"it is a limit: limits=Limits({name}=...)"
            )
        raise unknown_option("option", name, [*own, *DEFAULTS])


def _choose_backend(
    backend: str | Docker,
    environment: Environment | None,
    network: str,
    flat: Mapping[str, object],
) -> tuple[str, Docker]:
    """The backend's name, and the settings of the docker backend. A caller that asks for what only
    docker has, and names no backend, gets docker."""
    if not isinstance(backend, (str, Docker)):
        raise InvalidOption(
            f"backend is a str or Docker(...), not {backend!r}",
            hint=f"one of {', '.join(auto.BACKENDS)}",
        )
    docker = settings.DEFAULT
    named: tuple[str, ...] = ()
    if flat or isinstance(backend, Docker):
        docker = settings.merge_settings(
            backend if isinstance(backend, Docker) else settings.DEFAULT, flat
        )
        named = docker.given
    name = "docker" if isinstance(backend, Docker) else backend
    if name == "auto" and (named or network != "none"):
        name = "docker"
    name = auto.resolve_backend(name)
    if name == "native":
        if named:
            raise InvalidOption(
                f"{named[0]} is an option of the docker backend, not of native",
                hint='backend="docker", or leave backend out',
            )
        if network != "none":
            raise InvalidOption(
                f"network={network!r} is an option of the docker backend: native has no network",
                hint='backend="docker"; or expose a host function that fetches what it may have',
            )
        return name, docker
    if name == "auto":
        return name, docker  # the choice is made at the start
    # Here, in the caller's thread: a fork of the process while another thread imports would
    # leave the child waiting for ever for the import to end.
    auto.docker_backend()
    if environment is not None:
        settings.check_environment(docker, environment)
    return name, settings.fill_from_environment(docker)


def _make_policy(given: PolicyLike) -> Policy:
    from belljar.policy import Policy  # late: the analyser takes long to import

    return Policy.coerce(given)


def make_fork_options(options: Options) -> Options:
    """The options of a fork: those of the original, except what cannot be shared."""
    return replace(options, id=new_id(), functions=MappingProxyType({}), record=None)


def new_id() -> str:
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


def check_texts(option: str, given: Mapping[str, str] | None) -> dict[str, str]:
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


def check_timeout(given: float | None, default: float | None) -> float | None:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InvalidOption(f"timeout is a number of seconds, not {given!r}")
    if not math.isfinite(given) or given <= 0:
        raise InvalidOption(f"timeout must be above 0 and finite, not {given!r}")
    return float(given)


def check_choice(option: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        known = " or ".join(repr(each) for each in choices)
        raise InvalidOption(f"{option} is {known}, not {given!r}")
