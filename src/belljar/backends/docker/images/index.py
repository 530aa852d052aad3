"""This host's package index settings, in a form that a build container can use.

They are the same as for native environments (environment/uv.py): uv's variables and files, pip's
where uv has none, the proxy, the certificates. A path of this host (a directory of wheels, a file:
URL) means nothing in a container. It is left out with a note, and never replaced by the public
index: a user who named a mirror does not want another index.

The settings are secret (indexes have passwords), so they are written only to a tmpfs.
"""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import re
import tomllib
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.backends.docker.images.build_script import SECRETS
from belljar.environment.uv import read_pip_files, uv_files, uv_settings
from belljar.errors import EnvironmentBuildError

_PLAIN = {
    *("UV_INDEX_STRATEGY", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES"),
    *("UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION", "UV_CONCURRENT_DOWNLOADS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
}
_CREDENTIALS = re.compile(r"UV_INDEX_\w+_(USERNAME|PASSWORD)")
# Variables with addresses -> what separates them.
_ADDRESSES = {
    "UV_DEFAULT_INDEX": None,
    "UV_INDEX_URL": None,
    "UV_INDEX": " ",
    "UV_EXTRA_INDEX_URL": " ",
    "UV_FIND_LINKS": ",",
}
_DEFAULTS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_EXTRAS = ("UV_INDEX", "UV_EXTRA_INDEX_URL")
# Keys of uv's configuration files; other keys are about this host or its projects.
_KEYS = (
    *("index", "index-url", "extra-index-url", "find-links", "no-index", "index-strategy"),
    *("allow-insecure-host", "exclude-newer", "prerelease", "resolution"),
)


@dataclass
class BuildSettings:
    """The settings that a build container gets."""

    env: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)  # for uv
    files: dict[str, bytes | Path] = field(default_factory=dict)  # path there -> content
    notes: list[str] = field(default_factory=list)  # what was left out, to be shown
    secrets: frozenset[str] = frozenset()  # texts in it that must not be shown

    def put(self, variable: str, name: str, content: bytes) -> None:
        """Put a file on the tmpfs, and its path into a variable."""
        self.env[variable] = f"{SECRETS}/{name}"
        self.files[self.env[variable]] = content


def collect_settings(
    environ: Mapping[str, str], ca_bundle: str | os.PathLike[str] | None
) -> BuildSettings:
    """Read this host's settings. Blocks for a moment."""
    env, arguments = uv_settings(environ, read_pip_files(environ))
    uv_file = read_uv_files(environ)
    settings = select_settings(env, arguments, uv_file)
    bundle = ca_bundle or environ.get("BELLJAR_CA_BUNDLE") or env.get("SSL_CERT_FILE")
    if bundle:
        settings.put("SSL_CERT_FILE", "ca.pem", _read_ca_bundle(bundle))
    addresses = [*map(settings.env.get, _ADDRESSES), *_walk_texts(uv_file)]
    known = netrc_entries(environ, _find_hosts(filter(None, addresses)))
    if known:
        lines = [f"machine {host} login {user} password {word}\n" for host, user, word in known]
        settings.put("NETRC", "netrc", "".join(lines).encode())
        settings.secrets |= _drop_short(word for _, _, word in known)
    return settings


def select_settings(
    env: Mapping[str, str], arguments: Iterable[str], uv_file: Mapping[str, Any]
) -> BuildSettings:
    """The part of the settings that a container can use. Pure."""
    settings = BuildSettings(arguments=list(arguments))
    settings.env = {
        name: value for name, value in env.items() if name in _PLAIN or _CREDENTIALS.match(name)
    }
    settings.secrets = _secrets_of_variables(env) | find_secrets(_walk_texts(uv_file))
    dropped: list[str] = []
    for name, separator in _ADDRESSES.items():
        given = env.get(name, "").split(separator) if env.get(name) else []
        kept = [each.strip() for each in given if each.strip() and not _is_local(each)]
        dropped += [each.strip() for each in given if _is_local(each)]
        if kept:
            settings.env[name] = (separator or " ").join(kept)
    _replace_default_index(settings, env)
    if uv_file:
        settings.put("UV_CONFIG_FILE", "uv.toml", _configuration(uv_file, dropped).encode())
    else:
        settings.env["UV_NO_CONFIG"] = "1"
    if dropped:
        settings.notes.append(
            "not used in the build container, because they are on this host: " + ", ".join(dropped)
        )
    return settings


def _replace_default_index(settings: BuildSettings, env: Mapping[str, str]) -> None:
    """If the default index was left out, make the last of the others the default."""
    if not any(env.get(name) for name in _DEFAULTS) or any(map(settings.env.get, _DEFAULTS)):
        return
    for name in _EXTRAS:
        if name in settings.env:
            *others, last = settings.env[name].split()
            settings.env["UV_DEFAULT_INDEX"] = last
            settings.env[name] = " ".join(others)
            return
    settings.arguments.append("--no-index")
    settings.notes.append("the only package index is on this host, so the build has no index")


def _is_local(address: str) -> bool:
    """True if a container cannot see it: a file: URL, or a path.

    >>> _is_local("file:///srv/wheels"), _is_local("mirror=https://pypi.example/simple")
    (True, False)
    """
    address = re.sub(r"^[\w-]+=", "", address.strip())  # uv's "name=url"
    return bool(address) and not re.match(r"https?://", address, re.IGNORECASE)


def _find_hosts(texts: Iterable[str]) -> set[str]:
    hosts = set()
    for url in re.findall(r"https?://[^\s\"',]+", " ".join(texts)):
        with contextlib.suppress(ValueError):  # uv will say what is wrong with it
            hosts.add(urllib.parse.urlsplit(url).hostname or "")
    return hosts


def netrc_entries(environ: Mapping[str, str], hosts: Iterable[str]) -> list[tuple[str, str, str]]:
    """Host, name and password in the user's .netrc, for hosts of the indexes only."""
    path = Path(environ.get("NETRC") or Path(environ.get("HOME") or Path.home(), ".netrc"))
    if not path.is_file():
        return []
    try:
        entries = netrc.netrc(str(path)).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        why = "it is not text"
        if isinstance(error, OSError):
            why = error.strerror or "it cannot be opened"
        elif isinstance(error, netrc.NetrcParseError):
            # Python counts the end of a line to the next one.
            why = f"line {error.lineno}, or the one above, is malformed"
        # Without Python's own message: it quotes the file.
        raise EnvironmentBuildError(
            f"cannot read {path}: {why}", hint="repair it, or name another one in NETRC"
        ) from None
    return [
        (host, entries[host][0], entries[host][2] or "")
        for host in sorted(hosts)
        if host in entries
    ]


# -- secrets ------------------------------------------------------------------------------------

_SHORTEST = 4  # characters; shorter ones would match parts of ordinary text


def find_secrets(texts: Iterable[str]) -> frozenset[str]:
    """The secret parts of addresses: the user with the password, and the query.

    >>> sorted(find_secrets(["https://me:p%40ssword@example.org/?token=abcdefgh"]))
    ['abcdefgh', 'me:p%40ssword', 'me:p@ssword', 'p%40ssword', 'p@ssword', 'token=abcdefgh']
    """
    found: set[str] = set()
    for text in texts:
        match = re.search(r"(\S*):/+(.*)", text) or re.fullmatch(r"([\w-]+=)?(\S*)", text)
        scheme, address = (match[1] or "", match[2]) if match else ("", "")
        who = address.rpartition("@")[0]
        if "+" in scheme:  # git+https://...@revision: only the part before the host
            who = address.partition("/")[0].rpartition("@")[0]
        asked = address.partition("?")[2].partition("#")[0]
        found |= {who, who.partition(":")[2], who.rpartition(":")[2], asked}
        found |= {each for _, each in urllib.parse.parse_qsl(asked) if len(each) >= 2 * _SHORTEST}
    return _drop_short(found | {urllib.parse.unquote(each) for each in found})


def _drop_short(found: Iterable[str]) -> frozenset[str]:
    return frozenset(each for each in found if len(each) >= _SHORTEST)


def _secrets_of_variables(env: Mapping[str, str]) -> frozenset[str]:
    found = find_secrets(
        each
        for name, value in env.items()
        if name in _ADDRESSES or name in _PLAIN
        # The whole value too: a password may contain a separator.
        for each in (value, *re.split(r"[\s,]+", value))
    )
    words = [
        value
        for name, value in env.items()
        if (match := _CREDENTIALS.fullmatch(name))
        # A user name without a password is a token.
        and (match[1] == "PASSWORD" or not env.get(name.removesuffix("USERNAME") + "PASSWORD"))
    ]
    return found | _drop_short(words)


def _walk_texts(value: object) -> Iterable[str]:
    """All texts in a setting."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _walk_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _walk_texts(each)


def _read_ca_bundle(path: str | os.PathLike[str]) -> bytes:
    try:
        text = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot read the certificates in {os.fspath(path)}: {error.strerror}",
            hint="ca_bundle=, BELLJAR_CA_BUNDLE or SSL_CERT_FILE names a file in PEM form",
        ) from error
    if b"-----BEGIN" not in text:
        raise EnvironmentBuildError(
            f"there is no certificate in {os.fspath(path)}", hint="it must be in PEM form"
        )
    return text


# -- uv's own files -----------------------------------------------------------------------------


def read_uv_files(environ: Mapping[str, str]) -> dict[str, Any]:
    """The index settings of uv's configuration files; the user's win over the system's."""
    settings: dict[str, Any] = {}
    for path in reversed([path for path in uv_files(environ) if path.is_file()]):
        try:
            said = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise EnvironmentBuildError(
                f"cannot read uv's configuration {path}: {error}",
                hint="repair it, or set UV_NO_CONFIG=1 to do without",
            ) from error
        for where in (said, said.get("pip", {})):
            if not isinstance(where, dict):
                raise _config_error(path, "pip")
            for key in (key for key in _KEYS if key in where):
                if not _is_understood(key, where[key]):
                    raise _config_error(path, key)
                settings[key] = where[key]
    return settings


def _is_understood(key: str, value: Any) -> bool:
    match key:
        case "index-url":
            return isinstance(value, str)
        case "extra-index-url" | "find-links":
            return isinstance(value, list) and all(isinstance(each, str) for each in value)
        case "index":
            return isinstance(value, list) and all(
                isinstance(each, dict) and isinstance(each.get("url"), str) for each in value
            )
    return True


def _config_error(path: Path, key: str) -> EnvironmentBuildError:
    # An error, not left out: it may name the mirror that replaces the public index.
    return EnvironmentBuildError(
        f"uv's configuration {path} has a {key!r} that uv does not understand",
        hint="repair it, or set UV_NO_CONFIG=1 to do without",
    )


def _configuration(settings: Mapping[str, Any], dropped: list[str]) -> str:
    """The settings as a configuration file for uv, without paths of this host."""
    lines = []
    for key, value in settings.items():
        if key == "index":
            value = _indexes(value, dropped)
            if not value:
                key, value = "no-index", True
        elif key in ("extra-index-url", "find-links"):
            dropped += [each for each in value if _is_local(each)]
            value = [each for each in value if not _is_local(each)]
        elif key == "index-url" and _is_local(value):
            dropped.append(value)
            key, value = "no-index", True
        lines.append(f"{key} = {_toml(value)}\n")
    return "".join(lines)


def _indexes(given: list[dict[str, Any]], dropped: list[str]) -> list[dict[str, Any]]:
    kept = [dict(each) for each in given if not _is_local(each["url"])]
    gone = [each for each in given if _is_local(each["url"])]
    dropped += [each["url"] for each in gone]
    if kept and any(each.get("default") for each in gone):
        kept[-1]["default"] = True
    return kept


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value if isinstance(value, (str, bool, int)) else str(value))
