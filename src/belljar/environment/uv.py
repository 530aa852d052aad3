"""The uv binary, and the settings it is started with.

uv reads its own variables and its own configuration files. People behind a mirror often have only
pip's, so those are translated: index-url, extra-index-url, find-links, no-index, cert,
trusted-host, proxy. Where packages come from is decided by one tool's settings, never by a mixture:
if any of uv's index settings is present, pip's indexes are left out.

pip treats all indexes as equal and takes the highest version anywhere, so a stranger who uploads a
private package's name to the public index wins. uv stops at the first index that knows the name,
extra indexes before the default one; a mirror that has a package, but not for this Python, then
fails where pip would not. For indexes out of pip's settings we take the middle way: the next index
is asked only when no version in the earlier one fits. Indexes in uv's own settings keep uv's own
rule, and UV_INDEX_STRATEGY overrides both.
"""

from __future__ import annotations

import configparser
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from belljar.errors import EnvironmentBuildError

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")
# Variables that would point uv at another interpreter or project, or change what we ask for.
_NOT_INHERITED = {
    "CONDA_PREFIX",
    "UV_BREAK_SYSTEM_PACKAGES",
    "UV_COMPILE_BYTECODE",
    "UV_LINK_MODE",
    "UV_NO_BINARY",
    "UV_NO_INDEX",  # not a variable of uv's: becomes --no-index
    "UV_NO_MANAGED_PYTHON",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_WORKING_DIRECTORY",
    "VIRTUAL_ENV",
}


# And these are not even uv's own, but needed to run, and to reach an index.
_FOR_UV = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
    *("DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "SYSTEMROOT"),
}


def _is_for_uv(name: str, allow_builds: bool) -> bool:
    if name in _NOT_INHERITED or name.startswith("PYTHON"):
        return False
    known = name in _FOR_UV or name.lower().endswith("_proxy")
    return allow_builds or known or name.startswith(("UV_", "LC_", "GIT_"))


def find_uv() -> str:
    """The uv of the PyPI package, else the one on PATH."""
    try:
        from uv import find_uv_bin
    except ImportError:
        found = shutil.which("uv")
    else:
        try:
            return os.fspath(find_uv_bin())
        except FileNotFoundError:  # a distribution's uv package may come without its binary
            found = shutil.which("uv")
    if found is None:
        raise EnvironmentBuildError(
            "uv, which installs packages into environments, was not found",
            hint="pip install uv, or put the uv binary on PATH",
        )
    return found


def uv_settings(
    environ: Mapping[str, str],
    pip_files: Mapping[str, str] | None = None,
    *,
    allow_builds: bool = False,
) -> tuple[dict[str, str], list[str]]:
    """The environment and the extra arguments for uv. Pure.

    `pip_files`: what pip's configuration files say (see `read_pip_files`). `allow_builds`: code of
    packages is run, which needs to know of compilers, and can read any variable anyway.
    """
    # No more than it needs: uv fills in variables that a requirement names (${...}), also one that
    # stands in the metadata of somebody's wheel, and sends them where that says.
    env = {name: value for name, value in environ.items() if _is_for_uv(name, allow_builds)}
    env["NO_COLOR"] = "1"
    pip = dict(pip_files or {})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            pip[name[4:].lower().replace("_", "-")] = value

    if not any(environ.get(name) for name in _INDEX_VARIABLES):
        _put(env, "UV_INDEX_URL", pip.get("index-url"))
        _put(env, "UV_EXTRA_INDEX_URL", pip.get("extra-index-url"))
        if pip.get("extra-index-url"):
            env.setdefault("UV_INDEX_STRATEGY", "unsafe-first-match")
    if not environ.get("UV_FIND_LINKS"):
        # uv separates by commas, pip by white space.
        _put(env, "UV_FIND_LINKS", ",".join(pip.get("find-links", "").split()))
    if not environ.get("SSL_CERT_FILE"):
        bundle = pip.get("cert") or environ.get("REQUESTS_CA_BUNDLE")
        _put(env, "SSL_CERT_FILE", bundle or environ.get("CURL_CA_BUNDLE"))
    if not environ.get("UV_INSECURE_HOST"):
        _put(env, "UV_INSECURE_HOST", pip.get("trusted-host"))
    if not any(environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        _put(env, "ALL_PROXY", pip.get("proxy"))
    no_index = environ.get("UV_NO_INDEX", pip.get("no-index", ""))
    return env, ["--no-index"] if _is_true(no_index) else []


def read_pip_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of pip's configuration files, later ones winning as in pip.

    None when uv has a configuration file of its own: then uv is what the user configured.
    """
    if any(path.is_file() for path in uv_files(environ)):
        return {}
    settings: dict[str, str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            # Without what the error itself says: lines of the file, which has passwords.
            raise EnvironmentBuildError(
                f"cannot read pip's configuration {path}: {_why(error)}",
                hint="repair it, or set PIP_CONFIG_FILE=/dev/null to do without",
            ) from None
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update(
                    (name.replace("_", "-"), " ".join(value.split()))
                    for name, value in parser.items(section)
                    if value
                )
    return settings


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be opened"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    lines = [each[0] for each in getattr(error, "errors", ())]  # else it has one number
    return f"line {lines[0] if lines else getattr(error, 'lineno', '?')} cannot be understood"


def _pip_files(environ: Mapping[str, str]) -> Iterable[Path]:
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    if chosen:
        yield Path(chosen)
    for directory in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"):
        yield Path(directory, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    if not chosen:
        home = Path(environ.get("HOME") or Path.home())
        yield home / ".pip" / "pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    yield Path(sys.prefix, "pip.conf")


def uv_files(environ: Mapping[str, str]) -> Iterable[Path]:
    """uv's own configuration files, the one that wins first; whether there or not."""
    if _is_true(environ.get("UV_NO_CONFIG", "")):
        return
    if environ.get("UV_CONFIG_FILE"):
        yield Path(environ["UV_CONFIG_FILE"])
    home = Path(environ.get("HOME") or Path.home())
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "uv", "uv.toml")
    yield Path("/etc/uv/uv.toml")


def _put(env: dict[str, str], name: str, value: str | None) -> None:
    if value:
        env[name] = value


def _is_true(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")
