"""What a manager is told when it is made, validated once."""

from __future__ import annotations

import inspect
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from belljar.errors import InvalidOption, unknown_option
from belljar.limits import RULES, Limits
from belljar.sandbox.sandbox import AsyncSandbox

Factory = Callable[..., Awaitable[AsyncSandbox]]

OWN = ("max_sandboxes", "idle_timeout", "cleanup_interval", "lifetime", "max_per_owner", "factory")
MAX_NAME = 200


@dataclass(frozen=True, kw_only=True)
class Settings:
    max_sandboxes: int
    idle_timeout: float | None
    cleanup_interval: float
    lifetime: float | None
    max_per_owner: int | None
    factory: Factory | None
    defaults: Mapping[str, Any]

    def __post_init__(self) -> None:
        count("max_sandboxes", self.max_sandboxes)
        if self.max_per_owner is not None:
            count("max_per_owner", self.max_per_owner)
        seconds("cleanup_interval", self.cleanup_interval)
        for name in ("idle_timeout", "lifetime"):
            if (value := getattr(self, name)) is not None:
                seconds(name, value)
        if self.factory is not None:
            if not callable(self.factory):
                raise InvalidOption(f"factory must be callable, not {self.factory!r}")
            return  # which options there are is the factory's to say
        known = inspect.signature(AsyncSandbox.__init__).parameters
        for name in self.defaults:
            if name not in known and name not in RULES:
                raise unknown_option("option", name, [*OWN, *list(known)[1:]])
        AsyncSandbox(**self.defaults)  # ill-formed ones are said now, not at the first create()


def merge(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
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


def count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(f"{name} is a whole number, 1 or more, not {value!r}")


def seconds(name: str, value: object, *, zero: bool = False) -> None:
    """`inf` is allowed: there are such intervals, and such patience."""
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or math.isnan(value) or value < 0 or (value == 0 and not zero):  # type: ignore[arg-type,operator]
        least = "0 or more" if zero else "above 0"
        raise InvalidOption(f"{name} is a number of seconds, {least}, not {value!r}")
