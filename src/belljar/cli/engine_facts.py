"""What a container engine offers, for `belljar doctor`: which one it is, what it can enforce, and
one guest measured on each of its runtimes."""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from belljar.cli.host_facts import Fact
from belljar.errors import SandboxError

if TYPE_CHECKING:
    from belljar.backends.docker.client.engine import Engine
    from belljar.backends.docker.settings import Docker
    from belljar.backends.isolation import Isolation
    from belljar.environment.environment import Environment

ROUND_TRIPS = 50
INFO_TIMEOUT = 10.0
# Docker lists the shim of runc as a runtime of its own, beside runc.
_SAME_AS_RUNC = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")

# Of each series the first that follows no link of an image's when it masks and mounts.
_RUNC_FIXED: dict[tuple[int, ...], tuple[int, ...]] = {(1, 2): (1, 2, 8), (1, 3): (1, 3, 3)}

# A field of /info that says whether a limit can be enforced, and what to do if not.
_LIMITS = (
    ("MemoryLimit", "memory limit", "boot the engine's host with cgroup_enable=memory"),
    ("SwapLimit", "swap accounting", "boot the engine's host with swapaccount=1, or turn swap off"),
    ("PidsLimit", "process limit", "the engine's host needs the pids control group"),
    ("CpuCfsQuota", "cpu limit", "the engine's host needs the cpu control group with its quota"),
)


@dataclass(frozen=True, kw_only=True)
class RuntimeMeasured:
    """One guest in a container of one runtime."""

    runtime: str
    default: bool
    isolation: Isolation | None = None
    first_result: float | None = None  # seconds, from nothing to the first result
    round_trip: float | None = None  # seconds, the median of run_code("1+1")
    problem: str | None = None  # why there is no guest
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class EngineFound:
    facts: list[Fact]
    runtimes: tuple[str, ...]  # the default one first


# -- the engine ---------------------------------------------------------------------------------


def find() -> EngineFound:
    """Ask the engine that the docker backend would use. Raises SandboxError if there is none."""
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, parsing_answer

    engine = Engine(endpoint.find_endpoint())
    with parsing_answer(engine, "about itself"):
        info, version = _ask(engine)
        return EngineFound(facts=list(facts(engine, info, version)), runtimes=runtimes(info))


def _ask(engine: Engine) -> tuple[dict[str, Any], dict[str, Any]]:
    import anyio

    async def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        return (
            await engine.request("GET", "/info", timeout=INFO_TIMEOUT),
            await engine.request("GET", "/version", timeout=INFO_TIMEOUT),
        )

    return anyio.run(ask)


def runtimes(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Names, the default one first. Of Podman only that: its list is of what it has heard of, and
    its API takes no other.

    >>> runtimes({"Runtimes": {"runsc": {}, "runc": {}}, "DefaultRuntime": "runc"})
    ('runc', 'runsc')
    """
    default = str(info.get("DefaultRuntime") or "")
    names = sorted(info.get("Runtimes") or ())
    others = [name for name in names if name != default and name not in _SAME_AS_RUNC]
    if "BuildahVersion" in info:
        others = []
    return (default, *others) if default else tuple(others)


def facts(engine: Engine, info: Mapping[str, Any], version: Mapping[str, Any]) -> Iterator[Fact]:
    where = engine.endpoint
    yield Fact(name="address", state="ok", detail=f"{where} ({where.source})")
    yield Fact(name="version", state="ok", detail=_version(info, version))
    yield from _runc(version)
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    yield Fact(name="user", state="ok", detail=_user(options))
    yield from _cgroups(info)
    yield _seccomp(options)


def _version(info: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    components = version.get("Components") or [{}]
    name = str(components[0].get("Name") or "Engine")
    name = "Docker Engine" if name == "Engine" else name
    place = f"{info.get('OperatingSystem')}, {info.get('Architecture')}"
    return f"{name} {version.get('Version')}, API {version.get('ApiVersion')}, on {place}"


def _runc(version: Mapping[str, Any]) -> Iterator[Fact]:
    """It makes an image's mounts inside the image's own tree of files, and had to learn to follow
    no link there."""
    for each in version.get("Components") or ():
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", str(each.get("Version")))
        if "runc" not in str(each.get("Name")) or found is None:
            continue
        numbers = tuple(map(int, found.groups()))
        fixed = _RUNC_FIXED.get(numbers[:2], _RUNC_FIXED[1, 2])
        if numbers >= fixed:
            yield Fact(name="runc", state="ok", detail=found[0])
            continue
        first = ".".join(map(str, fixed))
        yield Fact(
            name="runc",
            state="no",
            detail=f"{found[0]}: older than {first}, the first with the fixes of November 2025, "
            "unless your distribution has brought them in",
            remedy="upgrade it, or runtime='runsc' for images you do not trust",
        )


def _user(options: list[str]) -> str:
    if any("rootless" in option for option in options):
        return "rootless: the engine runs as an ordinary user"
    if any("userns" in option for option in options):
        return "root, with user namespaces: root in a container is nobody outside"
    return "root, without user namespaces"


def _cgroups(info: Mapping[str, Any]) -> Iterator[Fact]:
    version, driver = info.get("CgroupVersion") or "1", info.get("CgroupDriver") or "none"
    yield Fact(
        name="cgroups",
        state="no" if driver == "none" else "ok",
        detail=f"version {version}, driver {driver}",
        remedy="rootless engines need cgroup v2 with delegation" if driver == "none" else None,
    )
    for field, name, remedy in _LIMITS:
        # Some engines (Podman) do not speak of one that they have.
        if info.get(field) is False:
            yield Fact(name=name, state="no", detail="the engine cannot enforce it", remedy=remedy)
        else:
            yield Fact(name=name, state="ok", detail="enforced by the engine")


def _seccomp(options: list[str]) -> Fact:
    found = next((option for option in options if "seccomp" in option), None)
    if found is None:
        return Fact(
            name="seccomp",
            state="no",
            detail="the engine has none",
            remedy="a kernel with CONFIG_SECCOMP_FILTER, and an engine built with it",
        )
    return Fact(name="seccomp", state="ok", detail="filters can be set")


# -- its runtimes -------------------------------------------------------------------------------


def measure(environment: Environment, found: EngineFound) -> Iterator[RuntimeMeasured]:
    """One after the other, as they are done."""
    for index, name in enumerate(found.runtimes):
        try:
            yield _measure(environment, name, default=index == 0)
        except SandboxError as error:
            yield RuntimeMeasured(
                runtime=name, default=index == 0, problem=error.message, hint=error.hint
            )


def _measure(environment: Environment, runtime: str, *, default: bool) -> RuntimeMeasured:
    from belljar.backends.docker.settings import Docker
    from belljar.sandbox.blocking import Sandbox

    # A doctor looks; to fetch an image is for who wants to use it.
    docker = Docker(runtime=runtime, pull="never")
    _make_image(environment, docker)  # before the clock starts
    began = time.perf_counter()
    with Sandbox(backend=docker, environment=environment) as sandbox:
        sandbox.run_code("1+1").raise_for_outcome()
        first_result = time.perf_counter() - began
        trips = []
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            sandbox.run_code("1+1").raise_for_outcome()
            trips.append(time.perf_counter() - began)
        return RuntimeMeasured(
            runtime=runtime,
            default=default,
            isolation=sandbox.isolation,
            first_result=first_result,
            round_trip=statistics.median(trips),
        )


def _make_image(environment: Environment, docker: Docker) -> None:
    import anyio

    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, parsing_answer
    from belljar.backends.docker.images import resolve
    from belljar.backends.docker.isolation import EngineFacts

    engine = Engine(endpoint.find_endpoint())
    with parsing_answer(engine, "about itself"):
        facts = EngineFacts.parse(*_ask(engine))
    with parsing_answer(engine, "about an image"):
        anyio.run(functools.partial(resolve.ensure_image, engine, environment, docker, facts))
