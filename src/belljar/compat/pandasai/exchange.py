"""What goes into the sandbox besides the code, and what is fetched out of it afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from belljar.compat.pandasai import charts
from belljar.compat.pandasai.errors import BadResult, NoResult
from belljar.compat.pandasai.preparation import CHARTS, FINISH
from belljar.errors import CannotTravel, NameMissing
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox as Jar

logger = logging.getLogger("belljar")


def is_function(name: str, value: object) -> bool:
    # A class stays here: what it makes could not travel.
    return callable(value) and not isinstance(value, type) and not name.startswith("__")


def put(jar: Jar, environment: Mapping[str, Any]) -> dict[str, str]:
    """Copy the data of `environment` into the sandbox; gives what cannot travel, and why."""
    left_out = {}
    for name, value in environment.items():
        if isinstance(value, ModuleType) or is_function(name, value) or name.startswith("__"):
            continue
        try:
            jar.set(name, value)
        except CannotTravel as error:
            logger.warning("%s of the environment stays outside of the sandbox: %s", name, error)
            left_out[name] = str(error)
    return left_out


def about_missing(execution: Execution, left_out: Mapping[str, str]) -> str:
    if execution.error is None or execution.error.name != "NameError":
        return ""
    found = [why for name, why in left_out.items() if f"'{name}'" in execution.error.value]
    return "".join(f"\n({why})" for why in found)


def result_of(jar: Jar, execution: Execution) -> object:
    """The value of the variable `result`."""
    try:
        try:
            return jar.get("result")
        except CannotTravel:
            jar.run_code(FINISH).raise_for_outcome()
            return jar.get("result")
    except NameMissing as error:
        missing = NoResult(
            "No result was returned from the code execution. "
            "Please return the result in dictionary format, "
            "for example: result = {'type': ..., 'value': ...}"
        )
        missing.execution = execution
        raise missing from error
    except CannotTravel as error:
        raise BadResult(f"{error}") from error


def picture(jar: Jar, path: str) -> bytes | None:
    """The bytes of a file that the code saved; None if there is none of the name."""
    for each in (path, f"{CHARTS}/{os.path.basename(path)}"):
        if not each or "\0" in each or not jar.files.exists(each):
            continue
        info = jar.files.stat(each)
        if info.type != "file":
            raise ValueError("it is not a file")
        if info.size > charts.MAX_BYTES:
            raise ValueError(f"the picture has {info.size} bytes, more than {charts.MAX_BYTES}")
        return jar.files.read(each, format="bytes")
    return None
