"""What a pool is told, validated once; and which options of a sandbox make its guest.

Guests are of one kind if everything that makes them is the same: then either will do. The rest
(policy, functions, metadata, workspace, session, record) is the tenant's own.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from belljar import options as sandbox_options
from belljar.errors import InvalidOption
from belljar.managing import settings as checks
from belljar.options import Options
from belljar.pooling.decide import Rules
from belljar.sandbox import AsyncSandbox


def rules(min_ready: int, max_total: int, max_age: float | None) -> Rules:
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

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = dict(defaults)
        self.default = self._make(self._defaults)
        self.key = key(self.default)

    def options(self, given: Mapping[str, Any]) -> Options:
        """Of one tenant. Limits are merged one by one, as a manager does."""
        return self._make(checks.merge(self._defaults, given)) if given else self.default

    @staticmethod
    def _make(given: Mapping[str, Any]) -> Options:
        return AsyncSandbox(**given)._options  # what is unknown or ill-formed is said there


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
        id=sandbox_options._new_id(),
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
