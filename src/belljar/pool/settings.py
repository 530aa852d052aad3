"""What a pool is told, validated once; and which options of a sandbox make its guest.

Guests are of one kind if everything that makes them is the same: then either will do. The rest
(policy, functions, metadata, workspace, session, record) is the tenant's own.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any

from belljar.errors import InvalidOption, unknown_option
from belljar.limits import RULES, Limits
from belljar.pool.decide import Rules
from belljar.sandbox import options as sandbox_options
from belljar.sandbox.options import Options
from belljar.sandbox.sandbox import AsyncSandbox

READY = 2  # guests that wait for tenants, unless told


def make_rules(min_ready: int | None, max_total: int, max_age: float | None) -> Rules:
    if min_ready is None:
        check_count("max_total", max_total)
        min_ready = min(READY, max_total)
    if isinstance(min_ready, bool) or not isinstance(min_ready, int) or min_ready < 0:
        raise InvalidOption(f"min_ready is a whole number, 0 or more, not {min_ready!r}")
    check_count("max_total", max_total)
    if min_ready > max_total:
        raise InvalidOption(
            f"min_ready={min_ready} is more than max_total={max_total}",
            hint="max_total counts all guests: those that wait, and those in use",
        )
    if max_age is not None:
        check_seconds("max_age", max_age)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # A start keeps a core busy, but for a few waits.
    return Rules(
        min_ready=min_ready,
        max_total=max_total,
        max_age=max_age,
        starts=(cores or 1) + 2,
        refills=cores or 1,
    )


class Kinds:
    """From what callers ask for to Options, and to the kind of guest that these need."""

    def __init__(self, defaults: Mapping[str, Any], own: Iterable[str] = ()) -> None:
        check_known(defaults, own)
        self._defaults = dict(defaults)
        self.default = self._make(self._defaults)
        self.key = guest_key(self.default)

    def options(self, given: Mapping[str, Any], own: Iterable[str] = ()) -> Options:
        """Of one tenant. Limits are merged one by one, as a manager does. `own` are the names of
        the caller's function: a slip may be meant for one of these, too."""
        check_known(given, own)
        return self._make(merge_options(self._defaults, given)) if given else self.default

    @staticmethod
    def _make(given: Mapping[str, Any]) -> Options:
        return AsyncSandbox(**given)._options  # what is unknown or ill-formed is said there


def check_known(given: Mapping[str, Any], own: Iterable[str]) -> None:
    known = _sandbox_names()
    for name in given:
        if name not in known and name not in RULES:  # which the sandbox explains
            raise unknown_option("option", name, [*own, *known])


@functools.cache
def _sandbox_names() -> tuple[str, ...]:
    return keyword_names(AsyncSandbox.__init__)


@functools.cache
def keyword_names(function: Callable[..., object]) -> tuple[str, ...]:
    """The options that it has itself."""
    found = inspect.signature(function).parameters.values()
    return tuple(each.name for each in found if each.kind is each.KEYWORD_ONLY)


def guest_key(options: Options) -> Hashable:
    """Equal for options whose guests are of one kind."""
    return (
        *(options.backend, options.docker, options.environment, options.network),
        *(options.limits, options.limits.explicit, frozenset(options.env.items())),
        *(options.strict, options.mounts, options.noexec, options.workdir),
    )


def without_tenant(options: Options) -> Options:
    """Of a guest that has no tenant yet: a new one of the same kind."""
    return replace(
        options,
        id=sandbox_options._new_id(),
        policy=None,
        metadata={},
        functions={},
        workspace=None,
        session=None,
        record=None,
    )


def check_owner(given: object) -> Hashable:
    """Whose turn it is to be. None stands for all who do not say."""
    return None if given is None else check_name("owner", given)  # type: ignore[arg-type]


def describe_differences(options: Options, usual: Options) -> dict[str, str]:
    """In what its guests are not like those of the pool itself, for people to read."""
    names = ("backend", "docker", "network", "strict", "mounts", "noexec", "workdir")
    found = {
        name: str(getattr(options, name))
        for name in names
        if getattr(options, name) != getattr(usual, name)
    }
    if options.environment != usual.environment:
        found["environment"] = options.environment.name
    if dict(options.env) != dict(usual.env):
        found["env"] = ", ".join(sorted(options.env))  # values may be secret
    for name in RULES:
        if getattr(options.limits, name) != getattr(usual.limits, name):
            found[name] = str(getattr(options.limits, name))
    return found


Factory = Callable[..., Awaitable[AsyncSandbox]]

OWN = ("max_sandboxes", "idle_timeout", "cleanup_interval", "lifetime", "max_per_owner", "factory")
MAX_NAME = 200


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    max_sandboxes: int
    idle_timeout: float | None
    cleanup_interval: float
    lifetime: float | None
    max_per_owner: int | None
    factory: Factory | None
    defaults: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_count("max_sandboxes", self.max_sandboxes)
        if self.max_per_owner is not None:
            check_count("max_per_owner", self.max_per_owner)
        check_seconds("cleanup_interval", self.cleanup_interval)
        for name in ("idle_timeout", "lifetime"):
            if (value := getattr(self, name)) is not None:
                check_seconds(name, value)
        if self.factory is not None:
            if not callable(self.factory):
                raise InvalidOption(f"factory must be callable, not {self.factory!r}")
            return  # which options there are is the factory's to say
        known = inspect.signature(AsyncSandbox.__init__).parameters
        for name in self.defaults:
            if name not in known and name not in RULES:
                raise unknown_option("option", name, [*OWN, *list(known)[1:]])
        AsyncSandbox(**self.defaults)  # ill-formed ones are said now, not at the first create()


def merge_options(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one sandbox. Limits are merged one by one: who asks for more time does not
    thereby lift the limit of memory that every sandbox has."""
    merged = {**defaults, **given}
    if defaults.get("limits") is not None and given.get("limits") is not None:
        usual, wanted = Limits.coerce(defaults["limits"]), Limits.coerce(given["limits"])
        merged["limits"] = usual.replace(
            **{name: getattr(wanted, name) for name in wanted.explicit}
        )
    return merged


def new_name() -> str:
    return f"sandbox-{uuid.uuid4().hex[:16]}"


def check_name(what: str, given: str) -> str:
    """A name of a sandbox, or of an owner."""
    if not isinstance(given, str) or not given or not given.isprintable():
        raise InvalidOption(f"{what} is a text that can be printed, not {given!r}")
    if len(given) > MAX_NAME:
        raise InvalidOption(f"{what} has {len(given)} characters, more than {MAX_NAME}")
    return given


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(f"{name} is a whole number, 1 or more, not {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """`inf` is allowed: there are such intervals, and such patience."""
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or math.isnan(value) or value < 0 or (value == 0 and not zero):  # type: ignore[arg-type,operator]
        least = "0 or more" if zero else "above 0"
        raise InvalidOption(f"{name} is a number of seconds, {least}, not {value!r}")


def check_map_arguments(
    codes: object, on_progress: object, total: int | None, *, blocking: bool = False
) -> int | None:
    """Raise what is wrong with the arguments of map(). Returns the total, if it is known."""
    if isinstance(codes, (str, bytes)) or not isinstance(codes, (Iterable, AsyncIterable)):
        raise InvalidOption(
            f"codes is an iterable of snippets, not {type(codes).__name__}",
            hint="one snippet is run by run_code()",
        )
    if blocking and not isinstance(codes, Iterable):
        raise InvalidOption("codes is an async iterable", hint="use AsyncPool")
    if on_progress is not None and not callable(on_progress):
        raise InvalidOption(f"on_progress must be callable, not {on_progress!r}")
    if blocking and inspect.iscoroutinefunction(on_progress):
        raise InvalidOption(
            "on_progress is a coroutine function, which Pool.map cannot await",
            hint="use AsyncPool, or an ordinary function",
        )
    if total not in (None, 0):
        check_count("total", total)
    return len(codes) if total is None and isinstance(codes, Sized) else total
