"""The options of pools and managers, checked once; and the kind of guest that a sandbox needs.

Guests are of one kind if all options that make a guest are the same. The other options (policy,
functions, metadata, workspace, session, record) belong to the sandbox, and go with any guest.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable, Mapping, Sized
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from belljar.errors import InvalidOption
from belljar.limits import RULES, Limits

if TYPE_CHECKING:
    # Imported where they are used: a configuration is loaded without the engine.
    from belljar.pool.decide import Rules
    from belljar.sandbox.options import Options
    from belljar.sandbox.sandbox import AsyncSandbox

READY = 2  # idle guests, by default


def make_rules(min_ready: int | None, max_total: int, max_age: float | None) -> Rules:
    from belljar.pool.decide import Rules

    check_count("max_total", max_total)
    if min_ready is None:
        min_ready = min(READY, max_total)
    check_count("min_ready", min_ready, least=0)
    if min_ready > max_total:
        raise InvalidOption(
            f"min_ready={min_ready} is more than max_total={max_total}",
            hint="max_total counts all guests: idle ones, and those in use",
        )
    if max_age is not None:
        check_seconds("max_age", max_age)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # A start keeps a core busy most of the time.
    return Rules(
        min_ready=min_ready,
        max_total=max_total,
        max_age=max_age,
        starts=(cores or 1) + 2,
        refills=cores or 1,
    )


class Kinds:
    """Makes the Options of a sandbox from those of the pool and those of the caller."""

    def __init__(self, defaults: Mapping[str, Any], own: Iterable[str] = ()) -> None:
        self._defaults = dict(defaults)
        self.default = make_options(self._defaults, own)
        self.key = guest_key(self.default)

    def options(self, given: Mapping[str, Any], own: Iterable[str] = ()) -> Options:
        """The options of one sandbox. `own` are the keywords of the method that was called, for the
        hint of the error about an unknown option."""
        return make_options(merge_options(self._defaults, given), own) if given else self.default


def make_options(given: Mapping[str, Any], own: Iterable[str]) -> Options:
    """Raises what is wrong with the options of a sandbox."""
    from belljar.sandbox import options

    return options.make_options(given, own=own)  # type: ignore[arg-type]


@functools.cache
def keyword_names(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of its keyword-only parameters."""
    found = inspect.signature(function).parameters.values()
    return tuple(each.name for each in found if each.kind is each.KEYWORD_ONLY)


def guest_key(options: Options) -> Hashable:
    """Equal for options that need the same kind of guest."""
    return (
        *(options.backend, options.docker, options.environment, options.network),
        *(options.limits, options.limits.explicit, frozenset(options.env.items())),
        *(options.strict, options.mounts, options.noexec, options.workdir),
    )


def without_tenant(options: Options) -> Options:
    """The options of a guest of the same kind that has no sandbox yet, with a new id."""
    from belljar.sandbox.options import new_id

    return replace(
        options,
        id=new_id(),
        policy=None,
        metadata={},
        functions={},
        workspace=None,
        session=None,
        record=None,
    )


def describe_differences(options: Options, usual: Options) -> dict[str, str]:
    """How its guests differ from those of the pool itself, for people to read."""
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


Factory = Callable[..., Awaitable["AsyncSandbox"]]

MAX_NAME = 200


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """The options of a manager. Times are in seconds; None: no limit."""

    max_sandboxes: int = 100
    idle_timeout: float | None = 3600.0
    cleanup_interval: float = 300.0
    lifetime: float | None = None
    max_per_owner: int | None = None
    factory: Factory | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the options of every sandbox

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
            return  # the factory knows which options there are
        # Raises now, not at the first create().
        make_options(self.defaults, [each.name for each in fields(self)][:-1])


def merge_options(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one sandbox. Limits are merged one by one: a caller that gives a longer
    timeout keeps the default limit of memory."""
    merged = {**defaults, **given}
    if defaults.get("limits") is not None and given.get("limits") is not None:
        usual, wanted = Limits.coerce(defaults["limits"]), Limits.coerce(given["limits"])
        merged["limits"] = usual.replace(
            **{name: getattr(wanted, name) for name in wanted.explicit}
        )
    return merged


def check_name(what: str, given: object) -> str:
    """Check the name of a sandbox, or of an owner."""
    if not isinstance(given, str) or not given or not given.isprintable():
        raise InvalidOption(f"{what} is a printable text, not {given!r}")
    if len(given) > MAX_NAME:
        raise InvalidOption(f"{what} has {len(given)} characters, more than {MAX_NAME}")
    return given


def check_count(name: str, value: object, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name} is a whole number, {least} or more, not {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """`inf` is allowed."""
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
    if total is not None:
        check_count("total", total, least=0)
    return len(codes) if total is None and isinstance(codes, Sized) else total
