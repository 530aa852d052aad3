"""`${VAR}` and `${VAR:default}` in the texts of a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping

from belljar.config.errors import ConfigError

# In this order: an escape, a variable, and what looks like one and is none.
_PATTERN = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>[^{}]*))?\}"
    r"|(?P<bad>\$\{[^}]{0,40}\}?)",
    re.ASCII,
)


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Put the values of environment variables in their places. `$${` stands for `${` itself.

    A variable that is set counts, even if it is empty; one that is not, and has no default, is an
    error. What comes from a variable is not looked at again.

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
