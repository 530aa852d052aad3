"""Which libraries code may import, and the check of it: a courtesy, not the boundary."""

from __future__ import annotations

import functools

from belljar.policy import RULES, Policy

# A set, so that a program can add to it. Packages are there by the name they are imported by, and
# by the name they are installed by, as messages may quote either.
ALLOWED_LIBRARIES: set[str] = {
    # the language and its types
    *("__future__", "abc", "ast", "builtins", "collections", "contextlib", "copy", "dataclasses"),
    *("enum", "functools", "inspect", "itertools", "numbers", "operator", "types", "typing"),
    # numbers, dates, text
    *("array", "bisect", "calendar", "cmath", "datetime", "decimal", "fractions", "heapq", "math"),
    *("random", "statistics", "time", "zoneinfo", "difflib", "locale", "pprint", "re", "string"),
    *("textwrap", "unicodedata", "html", "xml", "email"),
    # data and files
    *("base64", "binascii", "bz2", "codecs", "configparser", "csv", "fnmatch", "glob", "gzip"),
    *("hashlib", "hmac", "io", "json", "lzma", "pathlib", "pickle", "secrets", "shelve", "shutil"),
    *("sqlite3", "struct", "tarfile", "tempfile", "uuid", "zipfile", "zlib"),
    # the process, which is the sandbox's
    *("argparse", "asyncio", "concurrent", "gc", "http", "logging", "multiprocessing", "os"),
    *("platform", "queue", "socket", "ssl", "subprocess", "sys", "threading", "timeit"),
    *("traceback", "urllib", "warnings", "weakref", "webbrowser"),
    # for data
    *("numpy", "np", "pandas", "pd", "matplotlib", "plt", "scipy", "sklearn", "scikit-learn"),
    *("pyarrow", "pdfplumber", "fitz", "pymupdf", "docx", "python-docx", "pptx", "python-pptx"),
    *("openpyxl", "chardet", "magic", "python-magic"),
}

_STANDARD = "Standard Python library modules (most of them)"
# Environment "data" has these.
_PACKAGES = (
    *("numpy", "pandas", "matplotlib", "scipy", "scikit-learn (import as sklearn)", "openpyxl"),
)
# These are allowed, but no environment that comes with Belljar has them.
_MAYBE = (
    *("pdfplumber", "pymupdf (import as fitz)", "python-docx (import as docx)"),
    *("python-pptx (import as pptx)", "chardet", "python-magic (import as magic)"),
)
_IMPORTS = ("BJ101", "BJ102")


def validate_imports(code: str) -> tuple[bool, str]:
    """Whether the code imports allowed libraries only, and if not, what to say.

    >>> validate_imports("import numpy as np")
    (True, '')
    >>> validate_imports("import requests")[0]
    False
    """
    if not isinstance(code, str):
        return False, f"The code is a str of Python, not {type(code).__name__}"
    report = _policy(frozenset(ALLOWED_LIBRARIES)).check(code)
    if report.allowed:
        return True, ""
    refused = sorted({each.message for each in report.findings if each.rule in _IMPORTS})
    if not refused:
        first = report.findings[0]
        return False, f"Syntax error in code: line {first.line}: {first.message}"
    allowed = "\n".join(f"- {name}" for name in (_STANDARD, *_PACKAGES))
    maybe = "\n".join(f"- {name}" for name in _MAYBE)
    return False, (
        "Import restriction violation: The following imports are not allowed: "
        f"{', '.join(refused)}\n\nAllowed libraries:\n{allowed}"
        f"\n\nAllowed if they are installed in the sandbox:\n{maybe}"
    )


@functools.lru_cache(maxsize=8)
def _policy(allowed: frozenset[str]) -> Policy:
    """Imports alone are judged; everything else is the sandbox's to decide."""
    others = {id: "off" for id, rule in RULES.items() if not rule.fixed and id not in _IMPORTS}
    return Policy.from_dict(
        {
            "name": "dolphin",
            "version": "1",
            "unknown": "allow",
            "imports": {"allow": sorted(name for name in allowed if name.isidentifier())},
            "rules": {**others, **dict.fromkeys(_IMPORTS, "deny")},
            "messages": dict.fromkeys(_IMPORTS, "{name}"),
        }
    )
