"""The uv binary, and the settings with which Belljar starts it.

uv reads its own variables and configuration files. People behind a mirror often have only pip's, so
Belljar translates those: index-url, extra-index-url, find-links, no-index, cert, trusted-host,
proxy. If uv has any index setting, pip's indexes are ignored.

pip takes the highest version of any index, so an attacker who uploads the name of a private package
to the public index wins. uv stops at the first index that has the name, extra indexes before the
default one, and fails if that one has no version for this Python. Indexes from pip's settings get
the middle way: uv asks the next index only if no version in the earlier one fits. Those from uv's
settings keep uv's rule, and UV_INDEX_STRATEGY overrides both.
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
# Variables that would give uv another interpreter or project, or change the request.
_NOT_INHERITED = {
    "CONDA_PREFIX",
    "UV_BREAK_SYSTEM_PACKAGES",
    "UV_COMPILE_BYTECODE",
    "UV_LINK_MODE",
    "UV_NO_BINARY",
    "UV_NO_INDEX",  # uv has no such variable: it becomes --no-index
    "UV_NO_MANAGED_PYTHON",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_WORKING_DIRECTORY",
    "VIRTUAL_ENV",
}


# Variables of other programs that uv needs to run and to reach an index.
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
    """The path of uv: that of the PyPI package, else the one on PATH."""
    try:
        from uv import find_uv_bin

        return os.fspath(find_uv_bin())
    except (ImportError, FileNotFoundError):  # a distribution's uv package may lack the binary
        found = shutil.which("uv")
    if found is None:
        raise EnvironmentBuildError(
            "uv, which installs the packages of environments, was not found",
            hint="pip install uv, or put the uv binary on PATH",
        )
    return found


def uv_settings(
    environ: Mapping[str, str],
    pip_files: Mapping[str, str] | None = None,
    *,
    allow_builds: bool = False,
) -> tuple[dict[str, str], list[str]]:
    """The environment variables and the extra arguments for uv. Pure.

    `pip_files`: the settings of pip's configuration files (see `read_pip_files`). `allow_builds`:
    code of packages runs, which needs the variables for compilers and can read all others anyway.
    """
    # Only what uv needs: it expands variables in requirements (${...}), also in the metadata of any
    # wheel, and would send their values to the server named there.
    env = {name: value for name, value in environ.items() if _is_for_uv(name, allow_builds)}
    env["NO_COLOR"] = "1"
    pip = dict(pip_files or {})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            pip[name[4:].lower().replace("_", "-")] = value

    if not any(environ.get(name) for name in _INDEX_VARIABLES):
        _set_if(env, "UV_INDEX_URL", pip.get("index-url"))
        _set_if(env, "UV_EXTRA_INDEX_URL", pip.get("extra-index-url"))
        if pip.get("extra-index-url"):
            env.setdefault("UV_INDEX_STRATEGY", "unsafe-first-match")
    if not environ.get("UV_FIND_LINKS"):
        # uv separates by commas, pip by white space.
        _set_if(env, "UV_FIND_LINKS", ",".join(pip.get("find-links", "").split()))
    if not environ.get("SSL_CERT_FILE"):
        bundle = pip.get("cert") or environ.get("REQUESTS_CA_BUNDLE")
        _set_if(env, "SSL_CERT_FILE", bundle or environ.get("CURL_CA_BUNDLE"))
    if not environ.get("UV_INSECURE_HOST"):
        _set_if(env, "UV_INSECURE_HOST", pip.get("trusted-host"))
    if not any(environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        _set_if(env, "ALL_PROXY", pip.get("proxy"))
    no_index = environ.get("UV_NO_INDEX", pip.get("no-index", ""))
    return env, ["--no-index"] if _is_true(no_index) else []


def read_pip_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of pip's configuration files; later files win, as in pip.

    Empty if uv has a configuration file: then the user configured uv.
    """
    if any(path.is_file() for path in uv_files(environ)):
        return {}
    settings: dict[str, str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            # Without the text of the error: it quotes lines of the file, which may have passwords.
            raise EnvironmentBuildError(
                f"cannot read pip's configuration {path}: {_describe_error(error)}",
                hint="repair it, or set PIP_CONFIG_FILE=/dev/null to ignore it",
            ) from None
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update(
                    (name.replace("_", "-"), " ".join(value.split()))
                    for name, value in parser.items(section)
                    if value
                )
    return settings


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be opened"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    lines = [each[0] for each in getattr(error, "errors", ())]  # some errors have `lineno` instead
    return f"line {lines[0] if lines else getattr(error, 'lineno', '?')} cannot be parsed"


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
    """The paths of uv's configuration files, existing or not; the first wins."""
    if _is_true(environ.get("UV_NO_CONFIG", "")):
        return
    if environ.get("UV_CONFIG_FILE"):
        yield Path(environ["UV_CONFIG_FILE"])
    home = Path(environ.get("HOME") or Path.home())
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "uv", "uv.toml")
    yield Path("/etc/uv/uv.toml")


def _set_if(env: dict[str, str], name: str, value: str | None) -> None:
    if value:
        env[name] = value


def _is_true(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")
