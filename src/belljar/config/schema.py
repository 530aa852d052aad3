"""Every setting of a host process: key, default, meaning, kind, variable.

The loader, `belljar config` and the documentation read this table. Defaults come from the classes
that take the values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from belljar.backends.docker.settings import Docker
from belljar.backends.mounts import check_workdir
from belljar.config import kinds
from belljar.config.kinds import FLAG, MAYBE_FLAG, PATH, Kind
from belljar.environment.requirement import split_packages
from belljar.limits import RULES, format_size
from belljar.observe.alerts import Rules
from belljar.pool.settings import ManagerSettings


@dataclass(frozen=True, kw_only=True)
class Setting:
    key: str  # with dots: limits.memory is `memory` in the table `limits`
    default: object
    meaning: str
    kind: Kind
    variable: str | None  # the environment variable that sets it
    in_files: bool = True  # False: only the variable, which is read before any file
    secret: bool = False  # not to be shown

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def shown_default(self) -> str:
        return format_value(self.key, self.default)


def format_value(key: str, value: object) -> str:
    """A value, nearly as a configuration file writes it."""
    section, _, name = key.rpartition(".")
    if section == "limits" and isinstance(value, int) and RULES[name].kind == "size":
        return format_size(value)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "{}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "[]"
    named = getattr(value, "name", None)  # of an Environment, a Policy
    if isinstance(named, str) and not isinstance(value, str) and not hasattr(value, "suffix"):
        return named
    return str(value)


# Variables that are older than the schema.
_VARIABLES = {
    "docker.ca_bundle": "BELLJAR_CA_BUNDLE",
    "docker.build_network": "BELLJAR_BUILD_NETWORK",
}

_DOCKER = {
    "image": ("an image to run in, as it is; it needs a python3 of 3.9 or later", "name"),
    "dockerfile": ("a Dockerfile, or the directory with it, to build the image from", "path"),
    "tag": ("a name that the image of the Dockerfile gets besides Belljar's own", "name"),
    "runtime": ("the engine's runtime: runc, runsc (gVisor), kata-...", "name"),
    "platform": ("such as linux/arm64", "text"),
    "gpus": ('"all", how many, or "device=0,1"', "text or number"),
    "devices": ("devices of the engine's host that the code may use", "list"),
    "host": ("the engine's address; none: as the docker command finds it", "text"),
    "base": ("the image that environments are built on", "name"),
    "ca_bundle": ("certificates that a build trusts", "path"),
    "build_network": ("the network of builds: host, none, ...", "name"),
    "pull": ("when an image is fetched: missing, always, never", "text"),
    "seccomp": ("a seccomp profile in place of Belljar's own", "path"),
    "project": ("a label of the containers, to tell them apart", "text"),
    "named_user": ("whether the user has a name in /etc/passwd, `user`", "true or false"),
}
_MANAGER = {
    "max_sandboxes": ("sandboxes at once", "count"),
    "idle_timeout": ("seconds without use after which one is swept", "seconds or none"),
    "cleanup_interval": ("seconds between two sweeps", "seconds"),
    "lifetime": ("seconds after which one that is not busy is swept", "seconds or none"),
    "max_per_owner": ("sandboxes at once of one owner", "count or none"),
}
_ALERTS = {
    "memory": "tell when a sandbox uses more than this share of its memory",
    "cpu": "tell when a sandbox uses more than this share of its processors",
    "samples": "so many readings in a row",
    "margin": "an alert ends so far below its threshold",
    "orphans": "tell when there are more orphans than this",
}


@functools.cache
def schema() -> Mapping[str, Setting]:
    """The settings by key, in the order of the reference."""
    return MappingProxyType({setting.key: setting for setting in _settings()})


def sections() -> frozenset[str]:
    """The keys of tables: limits, docker, observe, observe.alerts, ..."""
    found = set()
    for key in schema():
        while key := key.rpartition(".")[0]:
            found.add(key)
    return frozenset(found)


def _settings() -> Iterator[Setting]:
    yield from _sandbox()
    for name, rule in RULES.items():
        kind = Kind(
            words=rule.kind + " or none" * rule.optional,
            check=kinds.check_limit(name),
            parse=kinds.parse_text_or_none if rule.kind == "size" else kinds.parse_number,
        )
        yield _make(f"limits.{name}", rule.default, f"{rule.meaning} ({rule.unit})", kind)
    yield from _docker()
    for name, (meaning, words) in _MANAGER.items():
        kind = Kind(words=words, check=kinds.check_number(name, words), parse=kinds.parse_number)
        yield _make(f"manager.{name}", getattr(ManagerSettings, name), meaning, kind)
    yield from _observe()
    for name, meaning in (
        ("cache", "where built environments are kept"),
        ("state", "where sessions are kept"),
        ("runtime_dir", "where processes list their sandboxes, for `belljar ps`"),
    ):
        kind = Kind(words="path", check=lambda value, base: value)
        yield _make(name, None, meaning, kind, in_files=False)


def _sandbox() -> Iterator[Setting]:
    backend = Kind(words="auto, native, docker", check=kinds.check_choice(_backends))
    yield _make("backend", "auto", "where guests live", backend)
    environment = Kind(words="name or table", check=kinds.check_environment)
    yield _make("environment", "data", "the Python and the packages of the code", environment)
    packages = Kind(words="list", check=kinds.check_packages, parse=split_packages)
    yield _make("packages", (), "packages added to those of the environment", packages)
    network = Kind(words="none, open", check=kinds.check_choice(_networks))
    yield _make("network", "none", "what the code can reach", network)
    policy = Kind(
        words="preset, path or table", check=kinds.check_policy, parse=kinds.parse_text_or_none
    )
    yield _make("policy", None, "rules that code must keep to run at all", policy)
    meaning = "refuse to start if a limit cannot be enforced; none: warn of those given"
    yield _make("strict", None, meaning, MAYBE_FLAG)
    meaning = "cells may be written as for a notebook; none: as the environment says"
    yield _make("notebook", None, meaning, MAYBE_FLAG)
    yield _make("noexec", False, "nothing in the workspace and /tmp can be executed", FLAG)
    workdir = Kind(words="path in the sandbox", check=lambda value, base: check_workdir(value))
    yield _make("workdir", "/workspace", "where the workspace is, in the sandbox", workdir)
    yield _make("record", None, "a file that what is run is appended to", PATH)
    mounts = Kind(words="list of tables", check=kinds.check_mounts, in_variable=False)
    yield _make("mounts", (), "files of the host that the code sees", mounts)
    env = Kind(words="table of texts", check=kinds.check_texts("env"), in_variable=False)
    yield _make("env", MappingProxyType({}), "environment variables of the code", env, secret=True)
    metadata = Kind(words="table of texts", check=kinds.check_texts("metadata"), in_variable=False)
    yield _make("metadata", MappingProxyType({}), "what to remember of a sandbox", metadata)


def _docker() -> Iterator[Setting]:
    for name, (meaning, words) in _DOCKER.items():
        parsers = {
            "devices": kinds.parse_items,
            "gpus": kinds.parse_number,
            "named_user": kinds.parse_flag,
        }
        parse = parsers.get(name, kinds.parse_text_or_none)
        check = kinds.check_field(Docker, name, is_path=words == "path")
        kind = Kind(words=words, check=check, parse=parse)
        yield _make(f"docker.{name}", getattr(Docker, name), meaning, kind)


def _observe() -> Iterator[Setting]:
    code = Kind(words="hash, full", check=kinds.check_choice(lambda: ("hash", "full")))
    size = Kind(words="size or none", check=kinds.check_size, parse=kinds.parse_text_or_none)
    port = Kind(words="port or none", check=kinds.check_port, parse=kinds.parse_number)
    seconds, seconds_or_none = (
        Kind(words=words, check=kinds.check_number("it", words), parse=kinds.parse_number)
        for words in ("seconds", "seconds or none")
    )
    text = Kind(words="text", check=kinds.check_text)
    table: list[tuple[str, object, str, Kind]] = [
        ("audit", None, "a file that the audit log is appended to", PATH),
        ("audit_code", "hash", "keep of the code in it: its hash, or all of it", code),
        ("audit_required", False, "refuse to run what cannot be written to it", FLAG),
        ("audit_fsync", False, "wait until each line is on the disk", FLAG),
        ("audit_max_bytes", None, "begin a new file at this size", size),
        ("metrics_port", None, "serve Prometheus metrics on this port (0: a free one)", port),
        ("metrics_addr", "127.0.0.1", "the address to serve them on", text),
        ("tracing", False, "make OpenTelemetry spans", FLAG),
        ("interval", 1.0, "seconds between two readings of a sandbox", seconds),
        ("orphans_interval", 60.0, "seconds between two looks for orphans", seconds_or_none),
        (
            "alerts.enabled",
            None,
            "whether to tell; none: if one of those below is set",
            MAYBE_FLAG,
        ),
    ]
    for name, initial, meaning, kind in table:
        yield _make(f"observe.{name}", initial, meaning, kind)
    for name, meaning in _ALERTS.items():
        words = "number or none" if name in ("memory", "cpu", "orphans") else "number"
        kind = Kind(words=words, check=kinds.check_field(Rules, name), parse=kinds.parse_number)
        yield _make(f"observe.alerts.{name}", getattr(Rules, name), meaning, kind)


def _make(key: str, default: object, meaning: str, kind: Kind, **flags: bool) -> Setting:
    variable = _VARIABLES.get(key, f"BELLJAR_{key.replace('.', '_').upper()}")
    return Setting(
        key=key,
        default=default,
        meaning=meaning,
        kind=kind,
        variable=variable if kind.in_variable else None,
        **flags,
    )


def _backends() -> tuple[str, ...]:
    from belljar.backends.auto import BACKENDS

    return BACKENDS


def _networks() -> tuple[str, ...]:
    from belljar.sandbox.options import NETWORKS

    return NETWORKS
