"""Configuration files: where they are, their content with line numbers, and `${VAR}` in it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.errors import InvalidOption
from belljar.text import UnsafeYAML, check_yaml

SUFFIXES = (".toml", ".yaml", ".yml")
PROJECT = "belljar"  # .toml, .yaml, .yml in the current directory
USER = "belljar/config"
MAX_SIZE = 1024 * 1024
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*([A-Za-z0-9_."'-][A-Za-z0-9_."'\s-]*)=""")


@dataclass(frozen=True, kw_only=True)
class Document:
    path: Path
    data: Mapping[str, Any]
    lines: Mapping[str, int]  # of keys with dots

    def where(self, key: str) -> str:
        """file:line, as editors and compilers write it; the file alone if the line is unknown."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


# -- finding ------------------------------------------------------------------------------------


def find_files(
    named: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    *,
    project: bool = True,
    user: bool = True,
) -> Iterator[tuple[Path, bool]]:
    """The files that count, the weakest first: of the user, of the project, the named one. With
    each, whether it was found in the current directory, and not named."""
    if user and (found := _user(environ)):
        yield found, False
    if project and (found := find_file(Path.cwd() / PROJECT)):
        yield found, True
    chosen = named if named is not None else environ.get("BELLJAR_CONFIG") or None
    if chosen is not None:
        path = Path(chosen).expanduser().absolute()
        if not path.is_file():
            who = "" if named is not None else "BELLJAR_CONFIG: "
            raise ConfigError(f"{who}there is no file {str(path)!r}")
        yield path, False


def _user(environ: Mapping[str, str]) -> Path | None:
    home, chosen = environ.get("HOME", ""), environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(chosen):  # the specification says to ignore a relative one
        return find_file(Path(chosen) / USER)
    return find_file(Path(home) / ".config" / USER) if os.path.isabs(home) else None


def find_file(stem: Path) -> Path | None:
    """The file with this name and one of the suffixes, or None."""
    found = [path for suffix in SUFFIXES if (path := stem.with_name(stem.name + suffix)).is_file()]
    if len(found) > 1:
        raise ConfigError(
            f"there are two files: {' and '.join(map(str, found))}", hint="keep one of them"
        )
    return found[0] if found else None


def _check_trusted(path: Path, descriptor: int) -> None:
    """For a file that was found in the current directory: if another user can write it, it could
    give the code our files (`mounts`) or the network."""
    status = os.fstat(descriptor)
    others = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid != os.getegid() else 0)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
        raise ConfigError(
            f"{path} belongs to another user, or another user can write it",
            hint=f"if you trust it, name it: BELLJAR_CONFIG={path}",
        )


# -- reading ------------------------------------------------------------------------------------


def read_document(path: Path, *, found: bool = False) -> Document:
    """`found`: in the current directory, and not named: no other user may write it."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} does not end in {', '.join(SUFFIXES)}")
    try:
        # Opened once, and checked after that: by name it could be another file the next time.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if found else 0)
        with open(os.open(path, flags), "rb") as file:
            if found:
                _check_trusted(path, file.fileno())
            raw = file.read(MAX_SIZE + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: byte {error.start}") from None
    if len(raw) > MAX_SIZE:
        raise ConfigError(f"{path} has more than {MAX_SIZE} bytes")
    data, lines = _toml(path, text) if path.suffix == ".toml" else parse_yaml(path, text)
    return Document(path=path, data=data, lines=lines)


def _toml(path: Path, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    import tomllib  # here: most users have no file

    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with too many digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return data, _toml_lines(text)


def _toml_lines(text: str) -> dict[str, int]:
    """The lines of keys, which the parser does not give. Only for messages: a guess is enough."""
    found: dict[str, int] = {}
    table, quoted = "", False
    for number, line in enumerate(text.splitlines(), 1):
        if quoted or line.lstrip().startswith("#"):
            pass
        elif header := _HEADER.fullmatch(line):
            table = _bare(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault(f"{table}.{_bare(key[1])}".lstrip("."), number)
        if (line.count('"""') + line.count("'''")) % 2:
            quoted = not quoted
    return found


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def parse_yaml(path: Path, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The keys and values, and the lines of keys; `path` is for messages. Raises ConfigError for
    text that is not YAML, or that would take the parser too much time or memory."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            f"{path} is YAML, which needs a library", hint="pip install pyyaml, or write TOML"
        ) from None
    try:
        check_yaml(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(
            f"{where}: is not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    except UnsafeYAML as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None
    except (ValueError, AttributeError, LookupError, TypeError) as error:  # tags that do not fit
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}, not keys and values")
    lines: dict[str, int] = {}
    _yaml_lines(path, node, "", lines)
    return data, lines


def _yaml_lines(path: Path, node: Any, above: str, lines: dict[str, int]) -> None:
    """The lines of keys. Raises if a key is there twice: the parser would keep the last one."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return
    here = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{path}:{line}: a key is a text, not {key.value!r}")
        if key.value in here:
            raise ConfigError(f"{path}:{line}: {key.value!r} is there twice")
        here.add(key.value)
        dotted = f"{above}.{key.value}".lstrip(".")
        lines.setdefault(dotted, line)
        _yaml_lines(path, value, dotted, lines)


class ConfigError(InvalidOption):
    """A configuration that cannot be used; the message names the file and key, or the variable."""


# In this order: an escape, a variable, and text that only looks like a variable.
_PATTERN = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>[^{}]*))?\}"
    r"|(?P<bad>\$\{[^}]{0,40}\}?)",
    re.ASCII,
)


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:default}` by environment variables. `$${` stands for `${`.

    A variable that is set counts, even if it is empty. A variable that is not set, and has no
    default, is an error. Values are not substituted again.

    >>> substitute("${HOME}/jail-${N:0}", {"HOME": "/root"})
    '/root/jail-0'
    >>> substitute("$${HOME}", {})
    '${HOME}'
    """

    def value(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["bad"]:
            raise ConfigError(
                f"{match['bad']!r} is not a variable",
                hint="write ${NAME} or ${NAME:default}; $${ stands for ${ itself",
            )
        name, default = match["name"], match["default"]
        if name in environ:
            return environ[name]
        if default is None:
            raise ConfigError(
                f"the environment variable {name} is not set",
                hint=f"set it, or give a default: ${{{name}:...}}",
            )
        return default

    return _PATTERN.sub(value, text)
