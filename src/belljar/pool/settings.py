"""What a pool is told, validated once; and which options of a sandbox make its guest.

Guests are of one kind if everything that makes them is the same: then either will do. The rest
(policy, functions, metadata, workspace, session, record) is the tenant's own.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from belljar.errors import InvalidOption, unknown_option
from belljar.limits import RULES
from belljar.pool import manager_settings as checks
from belljar.pool.decide import Rules
from belljar.sandbox import options as sandbox_options
from belljar.sandbox.options import Options
from belljar.sandbox.sandbox import AsyncSandbox

READY = 2  # guests that wait for tenants, unless told


def rules(min_ready: int | None, max_total: int, max_age: float | None) -> Rules:
    if min_ready is None:
        checks.count("max_total", max_total)
        min_ready = min(READY, max_total)
    if isinstance(min_ready, bool) or not isinstance(min_ready, int) or min_ready < 0:
        raise InvalidOption(f"min_ready is a whole number, 0 or more, not {min_ready!r}")
    checks.count("max_total", max_total)
    if min_ready > max_total:
        raise InvalidOption(
            f"min_ready={min_ready} is more than max_total={max_total}",
            hint="max_total counts all guests: those that wait, and those in use",
        )
    if max_age is not None:
        checks.seconds("max_age", max_age)
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
        self.key = key(self.default)

    def options(self, given: Mapping[str, Any], own: Iterable[str] = ()) -> Options:
        """Of one tenant. Limits are merged one by one, as a manager does. `own` are the names of
        the caller's function: a slip may be meant for one of these, too."""
        check_known(given, own)
        return self._make(checks.merge(self._defaults, given)) if given else self.default

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
    return own_names(AsyncSandbox.__init__)


@functools.cache
def own_names(function: Callable[..., object]) -> tuple[str, ...]:
    """The options that it has itself."""
    found = inspect.signature(function).parameters.values()
    return tuple(each.name for each in found if each.kind is each.KEYWORD_ONLY)


def key(options: Options) -> Hashable:
    """Equal for options whose guests are of one kind."""
    return (
        *(options.backend, options.docker, options.environment, options.network),
        *(options.limits, options.limits.explicit, frozenset(options.env.items())),
        *(options.strict, options.mounts, options.noexec, options.workdir),
    )


def blank(options: Options) -> Options:
    """Of a guest that has no tenant yet: a new one of the same kind."""
    return replace(
        options,
        id=sandbox_options.new_id(),
        policy=None,
        metadata={},
        functions={},
        workspace=None,
        session=None,
        record=None,
    )


def owner(given: object) -> Hashable:
    """Whose turn it is to be. None stands for all who do not say."""
    return None if given is None else checks.check_name("owner", given)  # type: ignore[arg-type]


def differing(options: Options, usual: Options) -> dict[str, str]:
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
