"""`load` reads every source, the strongest first in this list; `Config` is what it found.

arguments in code               Config.sandbox_options(limits=...)
environment variables           BELLJAR_LIMITS_MEMORY=1g
the file that is named          load(path), or BELLJAR_CONFIG
the project's file              ./belljar.toml (.yaml)
the user's file                 $XDG_CONFIG_HOME/belljar/config.toml (.yaml)
defaults                        the schema
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from belljar.backends.docker.settings import Docker
from belljar.config import config_files
from belljar.config.config_files import ConfigError, Document, substitute
from belljar.config.schema import Setting, schema, sections
from belljar.errors import InvalidOption, SandboxError, nearest, unknown_option
from belljar.pool.settings import merge_options

if TYPE_CHECKING:
    from belljar.observe.setup import Observing


DEFAULT = "default"
# A Sandbox reads these variables itself: they do not choose the docker backend.
_LOOKED_UP = ("docker.runtime", "docker.base", "docker.ca_bundle", "docker.build_network")
_OF_SANDBOX = (
    *("environment", "packages", "network", "policy", "strict", "noexec", "workdir"),
    *("notebook", "record", "mounts", "env", "metadata"),
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
        options = {name: self.values[name] for name in _OF_SANDBOX if self._is_given(name)}
        if limits := self.given("limits"):
            options["limits"] = limits
        own = not {"image", "dockerfile"}.isdisjoint(arguments)
        if "backend" not in arguments and (backend := self._backend(own)) is not None:
            options["backend"] = backend
        elif arguments.get("backend") == "docker" and (docker := self._docker(own)):
            arguments = arguments | {"backend": Docker(**docker)}
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
            return Docker(**docker)
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
            Docker(**docker)
        except InvalidOption as error:
            places = sorted({self.sources[f"docker.{name}"] for name in docker})
            raise InvalidOption(
                f"{', '.join(places)}: docker: {error.message}", hint=error.hint
            ) from None


# -- loading ------------------------------------------------------------------------------------

# Variables that begin like these are certainly meant for Belljar; others may not be.
_OURS = ("BELLJAR_LIMITS_", "BELLJAR_DOCKER_", "BELLJAR_MANAGER_", "BELLJAR_OBSERVE_")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A value of a source, or the problem with it."""

    key: str
    where: str
    value: object = None
    problem: SandboxError | None = None


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    project: bool = True,
    user: bool = True,
) -> Config:
    """The configuration of this process. `path` is a file in place of that of BELLJAR_CONFIG,
    `environ` the environment variables (None: those of the process). Without `project` the file in
    the current directory is ignored, without `user` the file of the user.

    Raises ConfigError with all problems, and where they are.
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"the path of a configuration must be a path, not {path!r}")
    variables = os.environ if environ is None else environ
    values = {key: setting.default for key, setting in schema().items()}
    sources = dict.fromkeys(values, DEFAULT)
    problems = []
    for found in _find_all(
        config_files.find_files(path, variables, project=project, user=user), variables
    ):
        if found.problem is not None:
            key = f"{found.key}: " if found.key else ""
            problems.append(f"{found.where}: {key}{found.problem}")
        else:
            values[found.key], sources[found.key] = found.value, found.where
    config = Config(values=MappingProxyType(values), sources=MappingProxyType(sources))
    if not problems:
        try:
            config.check()
        except InvalidOption as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _find_all(paths: Iterable[tuple[Path, bool]], environ: Mapping[str, str]) -> Iterator[Found]:
    for path, found in paths:
        document = config_files.read_document(path, found=found)
        yield from _read_table(document, document.data, "", environ)
    yield from _read_variables(environ)


# -- files --------------------------------------------------------------------------------------


def _read_table(
    document: Document, table: Mapping[str, Any], above: str, environ: Mapping[str, str]
) -> Iterator[Found]:
    for name, value in table.items():
        key = f"{above}.{name}".lstrip(".")
        where = document.where(key)
        setting = schema().get(key)
        if setting is not None and setting.in_files:
            yield _check_value(setting, value, where, document.path.parent, environ)
        elif setting is not None:
            hint = f"set the variable {setting.variable}"
            problem = InvalidOption("cannot be set in a file", hint=hint)
            yield Found(key=key, where=where, problem=problem)
        elif key not in sections():
            yield Found(key=key, where=where, problem=_unknown_key(key))
        elif not isinstance(value, dict):
            problem = InvalidOption(f"is a table, not {_show_value(value)}")
            yield Found(key=key, where=where, problem=problem)
        else:
            yield from _read_table(document, value, key, environ)


def _check_value(
    setting: Setting,
    value: object,
    where: str,
    base: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Found:
    """For the value of a file, `base` is its directory, and `environ` replaces `${VAR}` in it."""
    try:
        put = value if environ is None else _substitute_all(value, environ)
        # The value of a variable is always a text; and TOML has no null.
        from_variable = environ is None or put != value
        if isinstance(put, str) and (from_variable or put.strip().lower() == "none"):
            put = setting.kind.parse(put)
        return Found(
            key=setting.key, where=where, value=setting.kind.check(put, base or Path.cwd())
        )
    except SandboxError as error:
        problem = error
    except (ValueError, OverflowError, OSError, RuntimeError) as error:
        # Errors of Python itself: huge numbers, impossible file names, users without a home.
        problem = InvalidOption(f"cannot be used: {str(error)[:200]}")
    return Found(key=setting.key, where=where, problem=problem)


def _show_value(value: object) -> str:
    """Python refuses to print very long integers."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:200]


def _substitute_all(value: object, environ: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return substitute(value, environ)
    if isinstance(value, dict):
        return {name: _substitute_all(each, environ) for name, each in value.items()}
    if isinstance(value, list):
        return [_substitute_all(each, environ) for each in value]
    return value


def _unknown_key(key: str) -> InvalidOption:
    """Suggests the nearest name in the same section, or the same name in another one."""
    above, _, name = key.rpartition(".")
    prefix = f"{above}." if above else ""
    beside = {
        other.removeprefix(prefix).partition(".")[0]
        for other in schema()
        if other.startswith(prefix)
    }
    by_name = {other.rpartition(".")[2]: other for other in reversed(list(schema()))}
    guess, far = nearest(name, sorted(beside)), nearest(name, by_name)
    if name in by_name or (guess is None and far is not None):
        meant: str | None = by_name[name if name in by_name else str(far)]
    else:
        meant = None if guess is None else f"{prefix}{guess}"
    if meant is None:
        return InvalidOption("unknown key", hint=f"keys here: {', '.join(sorted(beside))}")
    return InvalidOption("unknown key", hint=f"did you mean {meant!r}?")


# -- environment variables ----------------------------------------------------------------------


def _read_variables(environ: Mapping[str, str]) -> Iterator[Found]:
    known = {setting.variable: setting for setting in schema().values() if setting.variable}
    for name, text in environ.items():
        if not name.startswith("BELLJAR_") or name == "BELLJAR_CONFIG":
            continue
        if name in known and text:  # an empty one counts as unset
            yield _check_value(known[name], text, f"variable {name}")
            continue
        guess = nearest(name, known) if name.startswith(_OURS) else _find_similar(name, known)
        if name not in known and (guess or name.startswith(_OURS)):
            hint = f"did you mean {guess}?" if guess else "`belljar config show` lists them"
            problem = InvalidOption("unknown variable", hint=hint)
            yield Found(key="", where=f"variable {name}", problem=problem)


def _find_similar(name: str, known: Iterable[str]) -> str | None:
    """The variable that is probably meant. Other variables may belong to other programs."""
    close = difflib.get_close_matches(name[8:], [each[8:] for each in known], n=1, cutoff=0.85)
    return f"BELLJAR_{close[0]}" if close else None
