"""Checks that PandasAI 3 is installed, before any other import: without it, the error is one
sentence with a remedy."""

from __future__ import annotations

from importlib import metadata

_HINT = "\n  hint: pip install 'pandasai>=3,<4' duckdb sqlglot h11, with Python 3.11"

try:
    VERSION = metadata.version("pandasai")
except metadata.PackageNotFoundError as error:
    raise ModuleNotFoundError(
        f"belljar.compat.pandasai needs PandasAI, which is not installed{_HINT}", name="pandasai"
    ) from error
if VERSION.partition(".")[0] != "3":
    raise ImportError(f"belljar.compat.pandasai is for PandasAI 3, and this is {VERSION}{_HINT}")
