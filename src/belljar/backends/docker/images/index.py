"""Where a build gets its packages from: this host's index settings, as a container can use them.

The same settings as for native environments (see uv_tool.py): uv's variables and files, pip's where
uv has none, the proxy, the certificates. What names a place of this host (a directory of wheels, a
file: URL) means nothing in a container. It is left out and noted, and never replaced by the public
index: whoever named a mirror wants no other.

All of it is secret (indexes have passwords), so it is only ever written to a tmpfs.
"""

from __future__ import annotations

import json
import netrc
import os
import re
import tomllib
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
# Of uv's configuration files; everything else there is about this host or its projects.
_KEYS = (
    *("index", "index-url", "extra-index-url", "find-links", "no-index", "index-strategy"),
    *("allow-insecure-host", "exclude-newer", "prerelease", "resolution"),
)


@dataclass
class BuildSettings:
    """What the build container is given."""

    env: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)  # for uv
    files: dict[str, bytes] = field(default_factory=dict)  # name on the tmpfs -> content
    paths: dict[str, str] = field(default_factory=dict)  # variable -> the file it names
    notes: list[str] = field(default_factory=list)  # what was left out, for people
    secrets: frozenset[str] = frozenset()  # what nobody may be shown of it

    def put(self, variable: str, name: str, content: bytes) -> None:
        self.files[name] = content
        self.paths[variable] = name


def collect_settings(
    environ: Mapping[str, str], ca_bundle: str | os.PathLike[str] | None
) -> BuildSettings:
    """Read this host's settings. Blocks, for a moment."""
    env, arguments = uv_settings(environ, read_pip_files(environ))
    handed = select_settings(env, arguments, read_uv_files(environ))
    bundle = ca_bundle or environ.get("BELLJAR_CA_BUNDLE") or env.get("SSL_CERT_FILE")
    if bundle:
        handed.put("SSL_CERT_FILE", "ca.pem", _read_ca_bundle(bundle))
    known = netrc_entries(environ, _hosts(handed))
    if known:
        lines = [f"machine {host} login {user} password {word}\n" for host, user, word in known]
        handed.put("NETRC", "netrc", "".join(lines).encode())
        handed.secrets |= _drop_short(word for _, _, word in known)
    return handed


def select_settings(
    env: Mapping[str, str], arguments: Iterable[str], uv_file: Mapping[str, Any]
) -> BuildSettings:
    """What of the settings can be used in a container. Pure."""
    handed = BuildSettings(arguments=list(arguments))
    handed.env = {
        name: value for name, value in env.items() if name in _PLAIN or _CREDENTIALS.match(name)
    }
    handed.secrets = _secrets_of_variables(env) | find_secrets(_walk_texts(uv_file))
    dropped: list[str] = []
    for name, separator in _ADDRESSES.items():
        given = env.get(name, "").split(separator) if env.get(name) else []
        kept = [each.strip() for each in given if each.strip() and not _is_local(each)]
        dropped += [each.strip() for each in given if _is_local(each)]
        if kept:
            handed.env[name] = (separator or " ").join(kept)
    _replace_default_index(handed, env)
    if uv_file:
        handed.put("UV_CONFIG_FILE", "uv.toml", _configuration(uv_file, dropped).encode())
    else:
        handed.env["UV_NO_CONFIG"] = "1"
    if dropped:
        handed.notes.append(
            "not used in the build container, because they lie on this host: " + ", ".join(dropped)
        )
    return handed


def _replace_default_index(handed: BuildSettings, env: Mapping[str, str]) -> None:
    """A default index that had to be left out: the last of the others takes its place."""
    if not any(env.get(name) for name in _DEFAULTS) or any(map(handed.env.get, _DEFAULTS)):
        return
    for name in _EXTRAS:
        if name in handed.env:
            *others, last = handed.env[name].split()
            handed.env["UV_DEFAULT_INDEX"] = last
            handed.env[name] = " ".join(others)
            return
    handed.arguments.append("--no-index")
    handed.notes.append("the only package index lies on this host, so the build has none")


def _is_local(address: str) -> bool:
    """Whether a container cannot see it: a file: URL, or a path.

    >>> _is_local("file:///srv/wheels"), _is_local("mirror=https://pypi.example/simple")
    (True, False)
    """
    address = re.sub(r"^[\w-]+=", "", address.strip())  # uv's "name=url"
    return bool(address) and not re.match(r"https?://", address, re.IGNORECASE)


def _hosts(handed: BuildSettings) -> set[str]:
    text = " ".join(handed.env.get(name, "") for name in _ADDRESSES)
    text += " " + handed.files.get("uv.toml", b"").decode()
    found = re.findall(r"https?://[^\s\"',]+", text)
    return {host for url in found if (host := _host(url))}


def _host(url: str) -> str | None:
    try:
        return urllib.parse.urlsplit(url).hostname
    except ValueError:  # uv will say what is wrong with it
        return None


def netrc_entries(environ: Mapping[str, str], hosts: Iterable[str]) -> list[tuple[str, str, str]]:
    """Machine, name and password in the user's .netrc, but only for the machines of the indexes."""
    path = Path(environ.get("NETRC") or Path(environ.get("HOME") or Path.home(), ".netrc"))
    if not path.is_file():
        return []
    try:
        entries = netrc.netrc(str(path)).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        why = "it is no text"
        if isinstance(error, OSError):
            why = error.strerror or "it cannot be opened"
        elif isinstance(error, netrc.NetrcParseError):
            # Python counts the end of a line to the next one.
            why = f"line {error.lineno}, or the one above, cannot be understood"
        # Without what the error itself says: that has a piece of the file in it.
        raise EnvironmentBuildError(
            f"cannot read {path}: {why}", hint="repair it, or name another one in NETRC"
        ) from None
    return [
        (host, entries[host][0], entries[host][2] or "")
        for host in sorted(hosts)
        if host in entries
    ]


# -- what may be shown --------------------------------------------------------------------------

_SHORTEST = 4  # characters; to hide less would riddle every text with holes


def find_secrets(texts: Iterable[str]) -> frozenset[str]:
    """What is secret in addresses: who asks, with the password, and what is asked with.

    >>> sorted(find_secrets(["https://me:p%40ssword@example.org/?token=abcdefgh"]))
    ['abcdefgh', 'me:p%40ssword', 'me:p@ssword', 'p%40ssword', 'p@ssword', 'token=abcdefgh']
    """
    found: set[str] = set()
    for text in texts:
        match = re.search(r"(\S*):/+(.*)", text) or re.fullmatch(r"([\w-]+=)?(\S*)", text)
        scheme, address = (match[1] or "", match[2]) if match else ("", "")
        who = address.rpartition("@")[0]
        if "+" in scheme:  # git+https://...@revision: only what stands in front of the machine
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
        # Whole too: a password may have in it what separates addresses.
        for each in (value, *re.split(r"[\s,]+", value))
    )
    words = [
        value
        for name, value in env.items()
        if (match := _CREDENTIALS.fullmatch(name))
        # A name without a password is a token.
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
            for key in where.keys() & set(_KEYS):
                if not _FORMS.get(key, _any)(where[key]):
                    raise _config_error(path, key)
            settings |= {key: where[key] for key in _KEYS if key in where}
    return settings


def _any(value: object) -> bool:
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("url"), str) for each in value
    )


_FORMS: dict[str, Callable[[object], bool]] = {
    "index": _is_tables,
    "index-url": _is_text,
    "extra-index-url": _is_texts,
    "find-links": _is_texts,
}


def _config_error(path: Path, key: str) -> EnvironmentBuildError:
    # Not left out: it may name the mirror that is to be used in place of the public index.
    return EnvironmentBuildError(
        f"uv's configuration {path} has a {key!r} that uv does not understand",
        hint="repair it, or set UV_NO_CONFIG=1 to do without",
    )


def _configuration(settings: Mapping[str, Any], dropped: list[str]) -> str:
    """The settings as a file of uv's again, without what lies on this host."""
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
    kept = [dict(each) for each in given if not _is_local(str(each.get("url", "")))]
    gone = [each for each in given if _is_local(str(each.get("url", "")))]
    dropped += [str(each.get("url", "")) for each in gone]
    if kept and any(each.get("default") for each in gone):
        kept[-1]["default"] = True
    return kept


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, (str, bool, int)):
        return json.dumps(value)
    return json.dumps(str(value))
