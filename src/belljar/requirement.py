"""The packages of an Environment: checked early, and written one way so that equal means equal.

Whether a version exists is uv's business; here is only what can be told from the text alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path

from belljar.errors import EnvironmentBuildError, InvalidOption

_SHAPE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\]\s*)?"
    r"(?:@\s*(?P<url>[^\s;]+)|(?P<versions>[^;@]*?))\s*"
    r"(?:;\s*(?P<marker>.+))?"
)
_CLAUSE = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([A-Za-z0-9.*+!_-]+)")


def check_package(package: str) -> str:
    """The package in its one spelling, or InvalidOption.

    >>> check_package("Scikit_Learn [b,a] >= 1.4, <2")
    'scikit-learn[a,b]<2,>=1.4'
    """
    if not isinstance(package, str) or not package.strip():
        raise InvalidOption(f"a package must be a non-empty string, not {package!r}")
    package = package.strip()
    if package.startswith("-"):
        raise InvalidOption(
            f"package {package!r} starts with '-', which the installer would take for an option",
            hint="give one requirement per item; settings of the index go into uv's variables",
        )
    if not package.isprintable():
        raise InvalidOption(f"package {package!r} contains control characters")
    if "${" in package:
        raise InvalidOption(
            f"package {package!r} names a variable of this host, which the installer would fill in",
            hint="write the address out; passwords belong into ~/.netrc or uv's settings",
        )
    if package.endswith(".whl") and "@" not in package:
        return os.path.abspath(os.path.expanduser(package))
    match = _SHAPE.fullmatch(package)
    if match is None:
        raise InvalidOption(
            f"package {package!r} is neither a requirement nor the path of a wheel",
            hint="write it as 'name', 'name==1.2', 'name[extra]>=1', 'name @ https://…' "
            "or 'path/to/file.whl'",
        )
    written = re.sub(r"[-_.]+", "-", match["name"]).lower()
    extras = sorted({extra.strip().lower() for extra in (match["extras"] or "").split(",")} - {""})
    if extras:
        written += f"[{','.join(extras)}]"
    written += f" @ {match['url']}" if match["url"] else _versions(package, match["versions"])
    if match["marker"]:
        written += f" ; {' '.join(match['marker'].split())}"
    return written


def _versions(package: str, text: str) -> str:
    text = text.strip().removeprefix("(").removesuffix(")")
    clauses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        clause = _CLAUSE.fullmatch(part)
        if clause is None:
            raise InvalidOption(
                f"package {package!r}: {part!r} is not a version condition",
                hint="conditions look like '==1.2', '>=1,<2' or '~=1.4'",
            )
        clauses.append(clause[1] + clause[2])
    return ",".join(sorted(clauses))


def fingerprint(package: str) -> str:
    """What a checked package contributes to the key: its text, or a local wheel's content."""
    if not package.startswith("/"):
        return package
    try:
        status = os.stat(package)
        return _wheel_digest(package, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise EnvironmentBuildError(f"cannot read wheel {package}: {error.strerror}") from error


def shown(package: str) -> str:
    """The package for the eyes of guests: a local wheel without its directory, an address without
    its password."""
    # Imported here, and of a backend: it is also sent into containers, by itself.
    from belljar.backends.docker.image_steps import bare_addresses

    if package.startswith("/"):
        return Path(package).name
    return bare_addresses(package, "***@", "?***")


@functools.lru_cache(maxsize=256)
def _wheel_digest(path: str, mtime_ns: int, size: int) -> str:
    with Path(path).open("rb") as wheel:
        return f"{Path(path).name} sha256:{hashlib.file_digest(wheel, 'sha256').hexdigest()}"
