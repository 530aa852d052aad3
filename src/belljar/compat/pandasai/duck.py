"""A DuckDB that can reach nothing but the frames it was given.

It is in memory, for one query, and closed by its own settings, which are then locked: no files, no
network, no extensions, no variables of this process. So a query that got past `belljar.compat.sql`
would find nothing. Time, memory and the size of what comes out are bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd

from belljar.compat import sql

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # FROM name: a variable of some Python frame
    "temp_directory": "",  # what does not fit into memory fails, and fills no disk
}
_VECTORS = 50  # 2,048 rows each, for one look at the size


@dataclass(frozen=True, kw_only=True)
class Bounds:
    seconds: float = 60.0  # of one query
    memory: int = 2**30  # bytes that DuckDB may use for it
    result: int = 2**29  # bytes of the frame that comes out


def run(
    query: str,
    frames: Mapping[str, Any],
    bounds: Bounds,
    *,
    views: Mapping[str, str] | None = None,
    readable: Iterable[str] = (),
) -> pd.DataFrame:
    """The frame that a query over `frames` gives.

    `views` are further tables, by what they stand for, and `readable` the files that those need.
    Raises QueryRefused, what DuckDB raises, and TimeoutError or MemoryError at the bounds.
    """
    views = views or {}
    with duckdb.connect(":memory:", config=_CLOSED) as connection:
        for name, frame in frames.items():
            connection.register(name, frame)
        _close(connection, bounds, list(readable))
        for name, expression in views.items():
            connection.execute(f'CREATE VIEW "{name}" AS {expression}')
        sql.check_duckdb(query, connection, tables=[*frames, *views])
        late = threading.Event()

        def stop() -> None:
            late.set()
            connection.interrupt()

        timer = threading.Timer(bounds.seconds, stop)
        timer.start()
        try:
            return _fetched(connection.execute(query), bounds)
        except duckdb.InterruptException:
            if not late.is_set():
                raise
            raise TimeoutError(f"the query took longer than {bounds.seconds:g} s") from None
        finally:
            timer.cancel()
            timer.join()


def _close(connection: Any, bounds: Bounds, readable: list[str]) -> None:
    connection.execute(f"SET memory_limit = '{bounds.memory // 1024}KiB'")
    if readable:
        quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in readable)
        connection.execute(f"SET allowed_paths = [{quoted}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _fetched(connection: Any, bounds: Bounds) -> pd.DataFrame:
    """All rows, as DuckDB makes frames of them; looked at while they come."""
    chunks: list[pd.DataFrame] = []
    size = 0
    while True:
        chunk = connection.fetch_df_chunk(_VECTORS)
        if len(chunk) == 0 and chunks:
            break
        size += int(chunk.memory_usage(index=False, deep=True).sum())
        if size > bounds.result:
            raise MemoryError(f"the query gives more than {bounds.result} bytes")
        chunks.append(chunk)
        if len(chunk) == 0:
            break
    return chunks[0] if len(chunks) == 1 else pd.concat(chunks, ignore_index=True)
