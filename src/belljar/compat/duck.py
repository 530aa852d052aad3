"""A DuckDB that can reach nothing but the frames it was given.

It is in memory, for one query, and closed by its own settings, which are then locked: no files, no
network, no extensions, no variables of this process. So a query that got past `belljar.compat.sql`
would find nothing.

Its own bounds of memory and time are kept only in part: texts and lists of a query are not counted,
and an interrupt waits for the function that is being computed. So it runs in a process that can be
ended (query_server.py), and not in that of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from belljar.compat import sql

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # FROM name: a variable of some Python frame
    "temp_directory": "",  # what does not fit into memory fails, and fills no disk
}
_MOST_THREADS = 4  # each takes address space, which is bounded


@dataclass(frozen=True, kw_only=True)
class Bounds:
    seconds: float = 60.0  # of one query
    reading: float = 2.0  # seconds of a processor for its text; milliseconds are usual
    memory: int = 2**30  # bytes that it may use, besides the frames
    result: int = 2**29  # bytes of the frame that comes out


def run(
    query: str,
    frames: Mapping[str, Any],
    memory: int = Bounds.memory,
    *,
    views: Mapping[str, str] | None = None,
    readable: Iterable[str] = (),
) -> pd.DataFrame:
    """The frame that a query over `frames` gives.

    `views` are further tables, by what they stand for, and `readable` the files that those need.
    Raises QueryRefused, and what DuckDB raises.
    """
    views = views or {}
    with duckdb.connect(":memory:", config=_CLOSED) as connection:
        for name, frame in frames.items():
            connection.register(name, frame)
        _close(connection, memory, list(readable))
        for name, expression in views.items():
            connection.execute(f'CREATE VIEW "{name}" AS {expression}')
        sql.check_duckdb(query, connection, tables=[*frames, *views])
        found = connection.execute(query).df()
    for name in found.select_dtypes("object").columns:
        if any(_is_of_objects(cell) for cell in found[name]):
            found[name] = pd.Series([_listed(cell) for cell in found[name]], dtype=object)
    return found


def _is_of_objects(cell: object) -> bool:
    return isinstance(cell, np.ndarray) and cell.dtype.kind == "O"


def _listed(cell: Any) -> Any:
    """Lists of texts and lists of lists as such: as arrays of objects they could not travel."""
    return [_listed(each) for each in cell] if _is_of_objects(cell) else cell


def _close(connection: Any, memory: int, readable: list[str]) -> None:
    connection.execute(f"SET memory_limit = '{memory // 1024}KiB'")
    (threads,) = connection.execute("SELECT current_setting('threads')").fetchone()
    connection.execute(f"SET threads = {min(threads, _MOST_THREADS)}")
    if readable:
        quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in readable)
        connection.execute(f"SET allowed_paths = [{quoted}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
