"""Kinds of values: how a value is read from text, and how it is checked.

The checks are those of Sandbox, Limits, Docker, the manager and the observers. Modules that load
the engine are imported when a check runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from belljar.backends import mounts
from belljar.errors import InvalidOption, unknown_option
from belljar.limits import RULES, parse_size
from belljar.pool.settings import check_count, check_seconds

# Checks take the value and the directory that relative paths in it start from.
Check = Callable[[object, Path], object]

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, kw_only=True)
class Kind:
    words: str  # for the reference
    check: Check
    parse: Callable[[str], object] = str  # of an environment variable's text
    in_variable: bool = True  # whether a text can express it


# -- from text ----------------------------------------------------------------------------------


def parse_number(text: str) -> object:
    """A number, or None for "none"; the check refuses everything else."""
    if text.strip().lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_text_or_none(text: str) -> object:
    return None if text.strip().lower() == "none" else text


def parse_flag(text: str) -> object:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    return parse_text_or_none(text)


def parse_items(text: str) -> object:
    return [item.strip() for item in text.split(",") if item.strip()]


# -- checks -------------------------------------------------------------------------------------


def check_choice(known: Callable[[], Sequence[str]]) -> Check:
    def check(value: object, base: Path) -> object:
        if not isinstance(value, str):
            raise InvalidOption(f"is a text, not {value!r}", hint=f"one of {', '.join(known())}")
        if value not in known():
            raise unknown_option("value", value, known())
        return value

    return check


def check_boolean(optional: bool) -> Check:
    def check(value: object, base: Path) -> object:
        if isinstance(value, bool) or (optional and value is None):
            return value
        raise InvalidOption(f"is true or false{', or none' * optional}, not {value!r}")

    return check


def check_path(value: object, base: Path) -> object:
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidOption(f"is a path, not {value!r}")
    return base / Path(value).expanduser()


def check_texts(option: str) -> Check:
    def check(value: object, base: Path) -> object:
        from belljar.sandbox import options

        if not isinstance(value, Mapping):
            raise InvalidOption(f"is a table of texts, not {value!r}")
        return options.check_texts(option, value)

    return check


def check_limit(name: str) -> Check:
    return lambda value, base: RULES[name].check(name, value)


def check_field(owner: Callable[..., object], name: str, *, is_path: bool = False) -> Check:
    """As `owner` checks it, the class that takes the value."""

    def check(value: object, base: Path) -> object:
        given = check_path(value, base) if is_path else value
        return getattr(owner(**{name: given}), name)

    return check


def check_environment(value: object, base: Path) -> object:
    """A name, or a description: a table with name, extends, packages, python, preload, ..."""
    from dataclasses import fields

    from belljar.environment.environment import Environment, resolve

    if not isinstance(value, Mapping):
        resolve(value)  # type: ignore[arg-type]
        return value
    known = [*(field.name for field in fields(Environment)), "extends"]
    for name in value:
        if name not in known:
            raise unknown_option("key of an environment", str(name), known)
    try:
        return Environment(**value)
    except TypeError as error:  # a number where a list should be
        raise InvalidOption(f"is not an environment: {error}") from None


def check_packages(value: object, base: Path) -> object:
    from belljar.environment.requirement import check_package

    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidOption(f"packages is a list of texts, not {value!r}")
    return tuple(check_package(package) for package in value)


def check_policy(value: object, base: Path) -> object:
    """The name of a preset, a path, or the rules themselves."""
    if value is None:
        return None
    from belljar.policy import Policy

    if not isinstance(value, (str, Mapping)):
        raise InvalidOption(f"is a preset, a path or a table, not {value!r}")
    if isinstance(value, str) and ("/" in value or Path(value).suffix):
        where = check_path(value, base)
        assert isinstance(where, Path)
        return Policy.load(where)
    return Policy.coerce(value)


def check_mounts(value: object, base: Path) -> object:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise InvalidOption("is a list of tables", hint='{ host = "data", guest = "/data" }')
    made = []
    for each in value:
        for name in each:
            if name not in ("host", "guest", "read_only"):
                raise unknown_option("key of a mount", str(name), ("host", "guest", "read_only"))
        if not {"host", "guest"} <= set(each):
            raise InvalidOption("a mount has host and guest")
        made.append(mounts.Mount(**{**each, "host": str(check_path(each["host"], base))}))
    return mounts.check_mounts(made)


def check_number(name: str, words: str) -> Check:
    """`words`: "count" or "seconds"; with "or none" after it, None is allowed."""

    def check(value: object, base: Path) -> object:
        if value is not None or not words.endswith("or none"):
            (check_count if words.startswith("count") else check_seconds)(name, value)
        return value

    return check


def check_port(value: object, base: Path) -> object:
    if value is None or (type(value) is int and 0 <= value <= 0xFFFF):
        return value
    raise InvalidOption(f"{value!r} is not a port", hint="give 0 to 65535; 0: a free one")


def check_size(value: object, base: Path) -> object:
    return None if value is None else parse_size(value, field="size")  # type: ignore[arg-type]


def check_text(value: object, base: Path) -> object:
    if isinstance(value, str) and value:
        return value
    raise InvalidOption(f"is a text, not {value!r}")


FLAG = Kind(words="true or false", check=check_boolean(False), parse=parse_flag)
MAYBE_FLAG = Kind(words="true, false or none", check=check_boolean(True), parse=parse_flag)
PATH = Kind(words="path", check=check_path, parse=parse_text_or_none)
