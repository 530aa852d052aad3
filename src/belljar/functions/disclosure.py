"""What the guest is told of an error in the host: its name and its message, and no more.

Messages are made for people on the host: they name files, users, databases with their passwords,
and addresses in memory. The guest's code and whoever reads its output shall not learn the host's
layout from them. What is written like an absolute path is reduced to its last part, and of
`//user:password@host` only the host is left; this is by the look of the text, so a function that
must keep a secret should not put it into an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_MESSAGE = 4 * 1024  # characters
MAX_NAME = 100
CUT = "…"
NO_MESSAGE = "<no message>"

_END = r"\s'\"`<>|;,:()\[\]{}"  # what ends a path that stands bare in a text
_QUOTED = re.compile(
    r"""(?P<quote>['"`])
    (?P<path>(?:[A-Za-z]:[\\/]|\\\\|~[\w.-]*/|/|file:/)(?:(?!(?P=quote))[^\n])+)
    (?P=quote)""",
    re.VERBOSE,
)
_BARE = re.compile(
    rf"""
      \bfile:/+[^{_END}]+                        # file:///home/a
    | \b[A-Za-z][\w+.-]{{0,20}}:/{{3,}}[^{_END}]+   # sqlite:////home/a.db
    | (?<!\w)[A-Za-z]:[\\/](?!/)[^{_END}]*       # C:\Users\a
    | (?<![\w\\])\\{{2,4}}[\w.$-]+\\[^{_END}]*   # \\server\share
    | (?<![\w~/])~[\w.-]*/[^{_END}]*             # ~user/a
    | (?<=<)/[^{_END}/]+/[^{_END}]*              # </home/a>, but not </b>
    | (?<=:)/(?![/{_END}])[^{_END}]*             # key:/home/a, but not https://
    | (?<![\w/\\.…<:~])/+[^{_END}/][^{_END}]*    # /home/a
    """,
    re.VERBOSE,
)
# What stands before the "@" of an address. It may hold any character, also those that a proper
# address would escape: so all up to the last "@" of the word, unless a host follows the slashes.
_CREDENTIALS = re.compile(
    r"""//
    (?! (?: [\w.-]* | \[[0-9A-Fa-f:.]+\] ) (?: :\d+ )? (?: [/?#,;)\]}>'"`\s] | $ ) )
    \S{0,1000}@
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(r"\sat 0x[0-9a-fA-F]+|(?<=\b0x)[0-9a-fA-F]{9,}\b")


def describe(error: BaseException) -> tuple[str, str]:
    """Name and message for the guest: no traceback, cause, path, password of a URL or address.

    >>> describe(FileNotFoundError(2, "No such file or directory", "/home/me/a.db"))
    ('FileNotFoundError', 'No such file or directory')
    >>> describe(ValueError("no table in /home/me/a.db"))
    ('ValueError', 'no table in …/a.db')
    """
    name = type(error).__name__
    if not name.isidentifier() or len(name) > MAX_NAME:
        name = "HostError"
    try:
        text = _message(error)
    except Exception:  # its own __str__, which may raise anything
        return name, NO_MESSAGE
    return name, text


def _message(error: BaseException) -> str:
    text = str(error)
    # The names of files come after it; a class with words of its own is taken by them.
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__ and error.strerror:
        text = str(error.strerror)
    # Cut twice: searching takes time, and what is found may get longer by a character.
    return cut(scrub(text[: 4 * MAX_MESSAGE]), MAX_MESSAGE)


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + CUT


def scrub(text: str) -> str:
    """Reduce what looks like a path of the host to its last part; take out addresses in memory,
    and users and passwords of URLs.

    >>> scrub("<Job at 0x7f3a2b1c4d50> read '/srv/my data/x.csv' of https://a.org/b/c")
    "<Job> read '…/x.csv' of https://a.org/b/c"
    >>> scrub("cannot connect to postgresql://me:hunter2@db:5432/sales")
    'cannot connect to postgresql://…@db:5432/sales'
    """
    text = _CREDENTIALS.sub(f"//{CUT}@", text)
    text = _QUOTED.sub(lambda m: f"{m['quote']}{_last_part(m['path'])}{m['quote']}", text)
    text = _BARE.sub(lambda m: _last_part(m[0]), text)
    for root in _roots():  # glued to something else, as in -I/usr/local/include
        text = re.sub(rf"{re.escape(root)}(?![\w-])", CUT, text)
    return _ADDRESS.sub(lambda m: "" if "at" in m[0] else CUT, text)


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    return f"{CUT}/{parts[-1]}" if parts else path


def _roots() -> list[str]:
    """Directories that a message may well name, longest first; one part alone is too common."""
    found = {sys.prefix, sys.base_prefix}
    for directory in (Path.cwd, Path.home):
        try:
            found.add(str(directory()))
        except (OSError, RuntimeError):  # removed; or a user without a home
            continue
    return sorted((root for root in found if root.strip("/").count("/")), key=len, reverse=True)
