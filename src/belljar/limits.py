"""Limits: how much of the machine one sandbox may use. Sizes: "512m" and back.

A field's default, range, unit and meaning stand in one line, as data, so that the check, the error
message and the reference table cannot disagree.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from belljar.errors import InvalidOption, unknown_option

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# ASCII, because ignoring case in Unicode would let the Kelvin sign be a "k". The number of digits
# is bounded, because Python refuses to convert very long ones with an error that is not ours.
_SIZE = re.compile(
    r"\s*(\d{1,20})(?:\.(\d{1,20}))?\s*(?:([kmgt])i?)?b?\s*", re.ASCII | re.IGNORECASE
)


def parse_size(value: int | str, *, field: str) -> int:
    """Give the bytes that a size means; units are multiples of 1024, in either case.

    >>> parse_size("1.5g", field="memory")
    1610612736
    >>> parse_size("64KiB", field="tmp") == parse_size(65536, field="tmp")
    True
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    # A fraction of a byte is a forgotten unit ("1.5"), so it is refused rather than rounded.
    if match is None or (match[2] and not match[3]):
        raise InvalidOption(
            f"{field}={_shown(value)} is not a size",
            hint='give bytes as a whole number, or with a unit: 1048576, "64k", "512m", "1.5g"',
        )
    whole, fraction, unit = match[1], match[2] or "", match[3] or ""
    # In integers, because a float would be off by some bytes for large sizes.
    return int(whole + fraction) * _UNITS[unit.lower()] // int(10 ** len(fraction))


def format_size(n: int) -> str:
    """Write `n` bytes in the largest unit that is exact, so that `parse_size` gives `n` back.

    >>> format_size(536870912), format_size(1000)
    ('512m', '1000b')
    """
    for unit, size in reversed(_UNITS.items()):
        if unit and n and n % size == 0:
            return f"{n // size}{unit}"
    return f"{n}b"


def _shown(value: object) -> str:
    """Give a short repr that cannot fail; Python refuses to print very long integers."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"<an integer of {value.bit_length()} bits>"
    if value is None or isinstance(value, (int, float, str)):
        return reprlib.repr(value)
    return f"<{type(value).__name__}>"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What one field of Limits may be, and what it means."""

    kind: Literal["size", "count", "number"]
    default: int | float | None
    low: int | float
    high: int | float
    unit: str
    meaning: str
    optional: bool = False  # None is allowed, and means: no such limit

    @property
    def range(self) -> str:
        """The allowed range, in words."""
        if self.kind == "size":
            low, high = format_size(int(self.low)), format_size(int(self.high))
        else:
            low, high = f"{self.low:,}", f"{self.high:,}"
        unit = "" if self.kind == "size" else f" {self.unit}"
        return f"{low} to {high}{unit}" + (", or None for no limit" if self.optional else "")

    def check(self, name: str, value: object) -> int | float | None:
        """Give the value as it is stored, or raise InvalidOption."""
        if value is None and self.optional:
            return None
        number: object = value
        if self.kind == "size":
            number = parse_size(cast("int | str", value), field=name)
        kinds = (int, float) if self.kind == "number" else (int,)
        if isinstance(number, bool) or not isinstance(number, kinds):
            raise InvalidOption(
                f"{name}={_shown(value)} is not a {'whole ' * (self.kind == 'count')}number",
                hint=f"{name} is {self.meaning}: {self.range}",
            )
        # Written so that nan, for which every comparison is false, is refused as well.
        if not self.low <= number <= self.high:
            raise InvalidOption(
                f"{name}={_shown(value)} is out of range: allowed is {self.range}",
                hint=f"{name} is {self.meaning}",
            )
        return float(number) if self.kind == "number" else number


def _limit(
    kind: Literal["size", "count", "number"],
    default: int | float | str | None,
    low: int | float | str,
    high: int | float | str,
    unit: str,
    meaning: str,
) -> Any:  # as dataclasses.field() is, so that the annotation of the field decides
    rule = Rule(
        kind=kind,
        default=None if default is None else _number(default),
        low=_number(low),
        high=_number(high),
        unit=unit,
        meaning=meaning,
        optional=unit == "seconds",
    )
    return field(default=rule.default, metadata={"rule": rule})


def _number(value: int | float | str) -> int | float:
    return parse_size(value, field="size") if isinstance(value, str) else value


_DAY = 24 * 60 * 60


@dataclass(frozen=True, kw_only=True, init=False)
class Limits:
    """How much of the machine one sandbox may use.

    Sizes are given in bytes or as text, and read in bytes. What the caller passed is remembered in
    `explicit`: a limit that was asked for and cannot be enforced on this host gets a warning,
    unless it is above the default (`raised`).

    >>> limits = Limits(memory="1g", timeout=5)
    >>> limits.memory, sorted(limits.explicit)
    (1073741824, ['memory', 'timeout'])
    """

    # fmt: off
    memory: int = _limit("size", "512m", "16m", "1t", "bytes", "memory of all processes together")
    cpus: float = _limit("number", 1.0, 0.01, 1024, "processors", "processor time, 1.0 is one core")
    processes: int = _limit("count", 64, 2, 32768, "tasks", "processes and threads alive at once")
    open_files: int = _limit("count", 256, 32, 1048576, "files", "open files of one process")
    workspace: int = _limit("size", "256m", "64k", "1t", "bytes", "what fits into /workspace")
    tmp: int = _limit("size", "100m", "64k", "1t", "bytes", "what fits into /tmp and the home")
    output: int = _limit("size", "1m", "1k", "1g", "bytes", "output of one run that is kept")
    timeout: float | None = _limit("number", 30.0, 0.01, _DAY, "seconds", "wall time of one run")
    host_time: float | None = _limit(
        "number", 60.0, 0.01, _DAY, "seconds", "time in host functions that timeout does not count"
    )
    lifetime: float | None = _limit("number", None, 0.1, 30 * _DAY, "seconds", "from start to end")
    idle: float | None = _limit("number", None, 0.1, 30 * _DAY, "seconds", "time without a call")
    # fmt: on

    explicit: frozenset[str] = field(init=False, repr=False, compare=False)

    __signature__: ClassVar[inspect.Signature]

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            memory: int | str = ...,
            cpus: float = ...,
            processes: int = ...,
            open_files: int = ...,
            workspace: int | str = ...,
            tmp: int | str = ...,
            output: int | str = ...,
            timeout: float | None = ...,
            host_time: float | None = ...,
            lifetime: float | None = ...,
            idle: float | None = ...,
        ) -> None: ...

    else:
        # Only **given can tell a value that was passed from the same value as a default.
        def __init__(self, /, **given: object) -> None:
            for name in given:
                if name not in RULES:
                    raise unknown_option("limit", name, RULES)
            for name, rule in RULES.items():
                value = rule.check(name, given[name]) if name in given else rule.default
                object.__setattr__(self, name, value)
            object.__setattr__(self, "explicit", frozenset(given))

    @classmethod
    def coerce(cls, value: Limits | Mapping[str, object] | None) -> Limits:
        """Give Limits for what a caller may write: nothing, Limits, or a mapping.

        >>> Limits.coerce({"memory": "64m"}).memory
        67108864
        """
        if isinstance(value, Limits):
            return value
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise InvalidOption(
                f"limits={_shown(value)} is not a set of limits",
                hint='give Limits(memory="1g") or {"memory": "1g"}',
            )
        return cls().replace(**{str(name): setting for name, setting in value.items()})

    def replace(self, /, **changes: object) -> Limits:
        """Give the same limits with some changed; the changed ones become explicit.

        >>> Limits(memory="1g").replace(cpus=2).to_dict()["cpus"]
        2.0
        """
        kept = {name: getattr(self, name) for name in self.explicit}
        return Limits(**{**kept, **changes})

    __replace__ = replace  # copy.replace() of Python 3.13

    @property
    def raised(self) -> frozenset[str]:
        """Those that allow more than their default.

        >>> sorted(Limits(memory="2g", processes=8).raised)
        ['memory']
        """
        return frozenset(
            name
            for name, rule in RULES.items()
            if (value := getattr(self, name)) != rule.default
            and rule.default is not None
            and (value is None or value > rule.default)
        )

    def to_dict(self) -> dict[str, int | float | None]:
        """Give the limits as plain data, sizes in bytes, times in seconds."""
        return {name: getattr(self, name) for name in RULES}


RULES: Mapping[str, Rule] = {
    f.name: f.metadata["rule"] for f in fields(Limits) if "rule" in f.metadata
}

# What help() and notebooks show, in place of **given.
Limits.__signature__ = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=rule.default)
        for name, rule in RULES.items()
    ]
)
