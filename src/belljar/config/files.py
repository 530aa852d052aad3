"""Configuration files: where they are looked for, and what stands in them, with lines."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.config.errors import ConfigError
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
        """As an editor or a compiler says it: file, and line if that is known."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


# -- finding ------------------------------------------------------------------------------------


def find(
    named: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    *,
    project: bool = True,
    user: bool = True,
) -> Iterator[tuple[Path, bool]]:
    """The files that count, the weakest first: the user's, the project's, the one that is named.
    With each, whether it was only met: nobody has named it."""
    if user and (found := _user(environ)):
        yield found, False
    if project and (found := in_directory(Path.cwd())):
        yield found, True
    chosen = named if named is not None else environ.get("BELLJAR_CONFIG") or None
    if chosen is not None:
        path = Path(chosen).expanduser().absolute()
        if not path.is_file():
            who = "" if named is not None else "BELLJAR_CONFIG: "
            raise ConfigError(f"{who}there is no file {str(path)!r}")
        yield path, False


def in_directory(directory: Path) -> Path | None:
    """The project's file, if there is one."""
    return _only(directory / PROJECT)


def _user(environ: Mapping[str, str]) -> Path | None:
    home, chosen = environ.get("HOME", ""), environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(chosen):  # the specification has others ignored
        return _only(Path(chosen) / USER)
    return _only(Path(home) / ".config" / USER) if os.path.isabs(home) else None


def _only(stem: Path) -> Path | None:
    found = [path for suffix in SUFFIXES if (path := stem.with_name(stem.name + suffix)).is_file()]
    if len(found) > 1:
        raise ConfigError(
            f"there are {' and '.join(str(path) for path in found)}", hint="keep one of them"
        )
    return found[0] if found else None


def _check_trusted(path: Path, descriptor: int) -> None:
    """Nobody named this file: it was met in the current directory. One that somebody else can
    write could give the code our files (`mounts`) or the network."""
    status = os.fstat(descriptor)
    others = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid != os.getegid() else 0)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
        raise ConfigError(
            f"{path} belongs to, or can be written by, somebody else",
            hint=f"if that is as it should be, name it: BELLJAR_CONFIG={path}",
        )


# -- reading ------------------------------------------------------------------------------------


def read(path: Path, *, met: bool = False) -> Document:
    """`met`: nobody has named it, so it must be ours."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} is none of {', '.join(SUFFIXES)}")
    try:
        # Opened once, and looked at when it is open: by its name it may be another the next time.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if met else 0)
        with open(os.open(path, flags), "rb") as file:
            if met:
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
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one; a number of too many digits is another
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return data, _toml_lines(text)


def _toml_lines(text: str) -> dict[str, int]:
    """Where keys stand: the parser does not tell. For messages only, so that a guess will do."""
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
    what is no YAML, and for what would take a parser too long or too much."""
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
    """Where keys stand; and that none stands twice, of which the parser would keep the last."""
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
