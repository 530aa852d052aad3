"""Config: the values that hold, where each came from, and the options that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from belljar.config.schema import schema
from belljar.errors import InvalidOption, unknown_option

if TYPE_CHECKING:
    from belljar.observe.setup import Observing

DEFAULT = "default"
# A Sandbox reads these variables itself: they do not choose the docker backend.
_LOOKED_UP = ("docker.runtime", "docker.base", "docker.ca_bundle", "docker.build_network")
_OF_SANDBOX = (
    *("environment", "packages", "network", "policy", "strict", "noexec", "workdir"),
    *("record", "mounts", "env", "metadata"),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is configured: `config["limits.memory"]`, and `config.sources["limits.memory"]`."""

    values: Mapping[str, object]  # every key
    sources: Mapping[str, str]  # every key: "default", "variable NAME", "file:line"

    def __getitem__(self, key: str) -> object:
        if key not in self.values:
            raise unknown_option("key", key, self.values)
        return self.values[key]

    def given(self, section: str) -> dict[str, Any]:
        """The settings of a section that a source has set, by name."""
        return {
            key.removeprefix(f"{section}."): value
            for key, value in self.values.items()
            if schema()[key].section == section and self.sources[key] != DEFAULT
        }

    # -- options ----------------------------------------------------------------------------

    def sandbox_options(self, **arguments: Any) -> dict[str, Any]:
        """The options for `Sandbox(**config.sandbox_options())`: those that a source has set.

        `arguments` are the caller's own, and win; limits are merged one by one. The section
        `docker` counts if the backend is docker. If the backend is not set, it chooses docker, as
        it does for a Sandbox.
        """
        from belljar.pool.settings import merge_options

        options = {name: self.values[name] for name in _OF_SANDBOX if self._is_given(name)}
        if limits := self.given("limits"):
            options["limits"] = limits
        own = not {"image", "dockerfile"}.isdisjoint(arguments)
        if "backend" not in arguments and (backend := self._backend(own)) is not None:
            options["backend"] = backend
        elif arguments.get("backend") == "docker" and (docker := self._docker(own)):
            arguments = arguments | {"backend": _make(docker)}
        return merge_options(options, arguments)

    def manager_options(self, **arguments: Any) -> dict[str, Any]:
        """The options for `SandboxManager(**config.manager_options())`: those of the manager, and
        those of every sandbox."""
        return {**self.given("manager"), **self.sandbox_options(**arguments)}

    def observe(self) -> Observing:
        """Watch the sandboxes of this process as the section `observe` says, until the returned
        handle is closed: `with config.observe(): ...`."""
        from belljar.observe.alerts import Rules
        from belljar.observe.audit import Audit
        from belljar.observe.setup import enable

        given, alerts = self.given("observe"), self.given("observe.alerts")
        audit = {name[6:]: given.pop(name) for name in list(given) if name.startswith("audit_")}
        if alerts.pop("enabled", bool(alerts)):
            given["alerts"] = Rules(**alerts)
        if given.get("audit") is not None:
            given["audit"] = Audit(given["audit"], **audit)
        return enable(**given)

    def _is_given(self, key: str) -> bool:
        return self.sources[key] != DEFAULT

    def _backend(self, own: bool) -> object:
        name, docker = self.values["backend"], self._docker(own)
        chosen = [key for key in docker if self._chooses(f"docker.{key}")]
        if docker and (name == "docker" or (name == "auto" and chosen)):
            return _make(docker)
        return name if self._is_given("backend") else None

    def _docker(self, own: bool = False) -> dict[str, Any]:
        """`own`: the caller gives an image."""
        given = self.given("docker")
        if (own or {"image", "dockerfile"} & set(given)) and not self._chooses("docker.base"):
            given.pop("base", None)  # a variable of the machine; an image needs no base
        return given

    def _chooses(self, key: str) -> bool:
        return not (key in _LOOKED_UP and self.sources[key].startswith("variable "))

    # -- together ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvalidOption for values that exclude each other."""
        docker = self._docker()
        try:
            _make(docker)
        except InvalidOption as error:
            places = sorted({self.sources[f"docker.{name}"] for name in docker})
            raise InvalidOption(
                f"{', '.join(places)}: docker: {error.message}", hint=error.hint
            ) from None


def _make(docker: Mapping[str, Any]) -> object:
    from belljar.backends.docker.settings import Docker

    return Docker(**docker)
