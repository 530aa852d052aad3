"""Addresses of packages and indexes, without the credentials in them.

This file is also sent into build containers, where no other part of Belljar is: it needs nothing
but the standard library of Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN_HOST = re.compile(r"([\w.-]*|\[[\da-fA-F:.]+\])(:\d*)?(/|$)")


def strip_credentials(text: str, user: str = "", query: str = "") -> str:
    """The text, with the credentials of each address replaced by `user` and `query`.

    A credential is all that stands before an "@" or behind a "?", even if the address is
    malformed: error messages are about malformed ones.

    >>> strip_credentials("a @ https://me:p@ss/word@example.org/a.whl?token=secret#sha256=00")
    'a @ https://example.org/a.whl#sha256=00'
    >>> strip_credentials("(git+ssh://me@example.org/a@v1) `https://example.org/?key=1`", "***@")
    '(git+ssh://***@example.org/a@v1) `https://example.org/`'
    """
    return re.sub(r"\S+", lambda word: _strip_word(word[0], user, query), text)


def _strip_word(word: str, user: str, query: str) -> str:
    scheme = re.search(r":/+", word)
    if scheme is None:
        return word
    head, rest = word[: scheme.end()], word[scheme.end() :]
    fragment = re.search(r"#[^@?:#]*$", rest)
    if fragment:
        rest = rest[: fragment.start()]
    rest, asked, after = rest.partition("?")
    if "@" in after and ("@" in rest or not _PLAIN_HOST.match(rest)):
        return head + user + query  # where the password ends is unknown
    end = rest.rfind("@") + 1
    if "+" in head:  # git+https://...@revision
        end_of_host = rest.rfind("@", 0, (rest + "/").index("/")) + 1
        if _PLAIN_HOST.match(rest, end_of_host):
            end = end_of_host
    if end:
        head, rest = head + user, rest[end:]
    if fragment:
        return head + rest + (query if asked else "") + fragment[0]
    # What closes a sentence or a bracket around the address is not part of the query.
    closing = after[len(after.rstrip("'\"`)]}>,.;:\\")) :]
    return head + rest + (query + closing if asked else "")


def hide_credentials(text: str, secrets: Iterable[str] = ()) -> str:
    """The text as it may be shown: `***` in place of `secrets` and of credentials in addresses.

    >>> hide_credentials("a @ https://me:secret@example.org/a.whl?token=secret")
    'a @ https://***@example.org/a.whl?***'
    """
    text = strip_credentials(text, "***@", "?***")
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
