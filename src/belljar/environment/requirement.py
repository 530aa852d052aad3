"""The packages of an Environment: checked early and normalised, so that equal ones compare equal.

These functions look only at the text; uv finds out whether a version exists.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from belljar.environment.addresses import hide_credentials
from belljar.errors import EnvironmentBuildError, InvalidOption

_SHAPE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\]\s*)?"
    r"(?:@\s*(?P<url>[^\s;]+)|(?P<versions>[^;@]*?))\s*"
    r"(?:;\s*(?P<marker>.+))?"
)
SHOWN_LINES = 12  # of an installer's complaint, from its start and again from its end
_CLAUSE = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([A-Za-z0-9.*+!_-]+)")


def check_package(package: str) -> str:
    """The package in its normal form; raises InvalidOption if it is not valid.

    >>> check_package("Scikit_Learn [b,a] >= 1.4, <2")
    'scikit-learn[a,b]<2,>=1.4'
    """
    if not isinstance(package, str) or not package.strip():
        raise InvalidOption(f"a package must be a non-empty string, not {package!r}")
    package = package.strip()
    if package.startswith("-"):
        raise InvalidOption(
            f"package {package!r} starts with '-', so the installer would read it as an option",
            hint="give one requirement per item; set the index by uv's variables",
        )
    if not package.isprintable():
        raise InvalidOption(f"package {package!r} contains control characters")
    if "${" in package:
        raise InvalidOption(
            f"package {package!r} names a variable of this host, which the installer would expand",
            hint="write the address out; put passwords into ~/.netrc or uv's settings",
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
    written = canonical_name(match["name"])
    extras = sorted({extra.strip().lower() for extra in (match["extras"] or "").split(",")} - {""})
    if extras:
        written += f"[{','.join(extras)}]"
    written += f" @ {match['url']}" if match["url"] else _versions(package, match["versions"])
    if match["marker"]:
        written += f" ; {' '.join(match['marker'].split())}"
    return written


def canonical_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project_name(package: str) -> str:
    """The name of a checked package.

    >>> project_name("scikit-learn[a]>=1.4 ; python_version > '3'"), project_name("/a/My_x-1.0.whl")
    ('scikit-learn', 'my-x')
    """
    if package.startswith("/"):
        package = canonical_name(Path(package).name.partition("-")[0])
    return re.match(r"[a-z0-9-]*", package)[0]  # type: ignore[index]


def split_packages(text: str) -> list[str]:
    """Split a list at its commas, but not at those of version conditions.

    >>> split_packages("pandas>=2,<3, scikit-learn[a,b],shapely")
    ['pandas>=2,<3', 'scikit-learn[a,b]', 'shapely']
    """
    parts = re.split(r",(?!\s*[<>=!~])(?![^\[]*\])", text)
    return [part.strip() for part in parts if part.strip()]


def python_fits(version: tuple[int, ...], conditions: str) -> bool:
    """True if a Python of this version (three numbers) meets `requires-python`.

    >>> python_fits((3, 11, 7), ">=3.9,<4"), python_fits((3, 11, 7), "==3.12.*")
    (True, False)
    """
    return all(_clause_fits(version, part.strip()) for part in conditions.split(","))


def _clause_fits(version: tuple[int, ...], text: str) -> bool:
    match = re.fullmatch(r"(===|==|~=|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?", text)
    if match is None or (match[3] and match[1] not in ("==", "!=")):
        raise InvalidOption(
            f"{text!r} is not a condition on the version of Python",
            hint="write it as '>=3.11' or '>=3.9,<3.13'",
        )
    numbers = tuple(map(int, match[2].split(".")))
    wanted = (*numbers, 0, 0, 0)[: len(version)]
    same = version[: len(numbers)] == numbers if match[3] else version == wanted
    return {
        "==": same,
        "===": same,
        "!=": not same,
        "<": version < wanted,
        "<=": version <= wanted,
        ">": version > wanted,
        ">=": version >= wanted,
        "~=": version >= wanted and version[: len(numbers) - 1] == numbers[:-1],
    }[match[1]]


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


def join_packages(packages: Sequence[str], most: int = 8) -> str:
    """The packages for a message, or their number if they would make it hard to read."""
    return ", ".join(packages) if len(packages) <= most else f"{len(packages)} packages"


# Pattern in uv's messages when no set of versions fits -> the hint.
UNSOLVABLE = (
    (
        r"not found in the package registry|not found in the provided|there is no version",
        "check the spelling and version; with several indexes uv uses the first that has the "
        "name (UV_INDEX_STRATEGY changes that)",
    ),
    (
        r"unsatisfiable|No solution",
        "the lines above say which packages conflict: ask for another version of one, or leave it "
        "out; choose another environment (environment=, --env) to leave out its packages",
    ),
)


def explain_conflict(said: str) -> str | None:
    """Why uv found no solution, in a few words; None if its messages do not say.

    >>> explain_conflict("Because nope was not found in the package registry and you require nope")
    "there is no package 'nope' in the package index"
    """
    missing = re.search(r"(\S+) was not found in the (?:package registry|provided)", said)
    if missing:
        return f"there is no package {missing[1]!r} in the package index"
    version = re.search(r"there (?:is no version|are no versions) of (\S+)", said)
    if version:
        return f"there is no version {version[1]!r} in the package index"
    if re.search(r"no usable wheels|no wheels with|has no wheels", said):
        return "a package has no wheel that fits"
    return "the packages conflict with each other" if "unsatisfiable" in said else None


def install_error(
    message: str,
    lines: Sequence[str],
    *,
    remedies: Iterable[tuple[str, str]] = (),
    hint: str | None = None,
) -> EnvironmentBuildError:
    """Make the error for a failed installation: the message, and what the installer complained of.

    `remedies`: a pattern in what it said, and the hint; the first that matches is used.
    """
    said = "\n".join(lines)
    hint = hint or next((text for pattern, text in remedies if re.search(pattern, said)), None)
    if (why := explain_conflict(said)) is not None:
        message = f"{why}; {message}"
    starts = (i for i, line in enumerate(lines) if re.match(r"\s*(error\b|×|ERROR)", line))
    complaint = lines[next(starts, 0) :]
    if len(complaint) > 2 * SHOWN_LINES:
        complaint = [*complaint[:SHOWN_LINES], "…", *complaint[-SHOWN_LINES:]]
    return EnvironmentBuildError("\n".join([message, *complaint]), hint=hint)


def fingerprint_package(package: str) -> str:
    """The part of a checked package in the key: its text, or the hash of a local wheel."""
    if not package.startswith("/"):
        return package
    try:
        status = os.stat(package)
        return _wheel_digest(package, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise EnvironmentBuildError(f"cannot read wheel {package}: {error.strerror}") from error


def hide_secrets(package: str) -> str:
    """The package as guests may see it: a wheel without its directory, an address without its
    password."""
    return Path(package).name if package.startswith("/") else hide_credentials(package)


@functools.lru_cache(maxsize=256)
def _wheel_digest(path: str, mtime_ns: int, size: int) -> str:
    with Path(path).open("rb") as wheel:
        return f"{Path(path).name} sha256:{hashlib.file_digest(wheel, 'sha256').hexdigest()}"
