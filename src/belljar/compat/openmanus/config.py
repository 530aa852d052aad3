"""SandboxSettings: how OpenManus' sandboxes are configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from belljar.errors import InvalidOption, unknown_option
from belljar.limits import Limits, parse_size

DEFAULT_IMAGE = "python:3.12-slim"
OUTPUT = "16m"  # bytes of output that one command may write

MEANINGS: Mapping[str, str] = {
    "use_sandbox": "whether an agent uses the sandbox; read by agents only",
    "image": "the image; the default stands for Belljar's own environment",
    "work_dir": "where files are, and commands start",
    "memory_limit": "memory of all processes together",
    "cpu_limit": "processor time, 1.0 is one core",
    "timeout": "seconds for one command",
    "network_enabled": "whether the sandbox has a network",
}


class SettingsLike(Protocol):
    """An object with the seven settings as attributes, such as OpenManus' own `SandboxSettings`."""

    use_sandbox: bool
    image: str
    work_dir: str
    memory_limit: str
    cpu_limit: float
    timeout: int
    network_enabled: bool


@dataclass(kw_only=True)
class SandboxSettings:
    """The settings of a sandbox, checked when they are given or changed.

    >>> SandboxSettings(memory_limit="1g").model_dump()["memory_limit"]
    '1g'
    """

    use_sandbox: bool = False
    image: str = DEFAULT_IMAGE
    work_dir: str = "/workspace"
    memory_limit: str = "512m"
    cpu_limit: float = 1.0
    timeout: int = 300
    network_enabled: bool = False

    # Those that were given explicitly.
    model_fields_set: set[str] = field(init=False, repr=False, compare=False)

    if not TYPE_CHECKING:
        # Only **given distinguishes an explicit value from an equal default.
        def __init__(self, **given: object) -> None:
            defaults = {name: getattr(type(self), name) for name in MEANINGS}
            self.__dict__.update(defaults, model_fields_set=set())
            for name, value in given.items():
                setattr(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in MEANINGS:
            raise unknown_option("setting", name, MEANINGS)
        super().__setattr__(name, _check(name, value))
        self.model_fields_set.add(name)

    def model_dump(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {name: getattr(self, name) for name in MEANINGS}

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """The same settings, some of them changed."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **(update or {})})

    @classmethod
    def model_validate(cls, given: Mapping[str, Any]) -> Self:
        """Settings from plain data, such as a section of a configuration file."""
        return cls(**given)

    @classmethod
    def coerce(cls, given: SettingsLike | None) -> SandboxSettings:
        """The settings of an object of any class. Raises TypeError if it lacks one.

        If the object does not know which settings were given explicitly (pydantic's do), those
        that differ from the default count as given.
        """
        if given is None or isinstance(given, SandboxSettings):
            return given or cls()
        missing = [name for name in MEANINGS if not hasattr(given, name)]
        if missing:
            raise TypeError(
                f"config must have the attributes of SandboxSettings, and {type(given).__name__} "
                f"has no {', '.join(missing)}: DockerSandbox(SandboxSettings(memory_limit='1g')); "
                "SandboxSettings.model_validate() takes a dict"
            )
        values = {name: getattr(given, name) for name in MEANINGS}
        known = getattr(given, "model_fields_set", None)
        if known is None:
            known = [name for name, value in values.items() if value != getattr(cls, name)]
        return cls(**{name: value for name, value in values.items() if name in known})

    def limits(self, more: Limits | Mapping[str, object] | None = None) -> Limits:
        """These settings as Belljar's Limits; `more` overrides them."""
        asked: dict[str, Any] = {"timeout": self.timeout, "output": OUTPUT}
        # Explicit limits only: Belljar warns if it cannot enforce one of these.
        if "memory_limit" in self.model_fields_set:
            asked["memory"] = self.memory_limit
        if "cpu_limit" in self.model_fields_set:
            asked["cpus"] = self.cpu_limit
        wanted = Limits.coerce(more)
        return Limits(**{**asked, **{name: getattr(wanted, name) for name in wanted.explicit}})


def _check(name: str, value: object) -> object:
    kind = type(getattr(SandboxSettings, name))
    made: object = value
    if kind is not bool and isinstance(value, bool):
        made = None
    elif kind in (int, float) and isinstance(value, (int, float, str)):
        made = _number(kind, value)
    if not isinstance(made, kind):
        raise InvalidOption(f"{name} is a {kind.__name__}, not {value!r}", hint=MEANINGS[name])
    if name == "memory_limit":
        Limits(memory=parse_size(str(made), field=name))
    elif name == "cpu_limit":
        Limits(cpus=float(str(made)))
    elif name == "timeout":
        Limits(timeout=float(str(made)))
    return made


def _number(kind: type, value: float | str) -> object:
    """Accepts 300.0 for a whole number, and text for both kinds."""
    try:
        number = float(value)
        return number if kind is float else int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None
