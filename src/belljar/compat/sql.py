"""The guard of untrusted SQL: one SELECT, over the given tables, with no function that reaches
files, the network, or the settings of the database.

`check` parses any dialect with sqlglot. `check_duckdb` asks DuckDB's own parser about text that
DuckDB will run: it cannot read the text in another way. Parsing is the weaker half of the guard:
`run_query` uses a DuckDB that can reach nothing in the first place.

The time to parse is exponential in the depth of some texts (INT(INT(INT(...). So untrusted queries
are parsed in a process that can be killed: belljar.compat.query_process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from belljar.errors import InvalidOption, SandboxError

if TYPE_CHECKING:
    import pandas as pd

MAX_LENGTH = 50_000  # characters of a query
# The functions allowed in place of a table. All others are refused: DuckDB alone has a hundred, and
# they read files, run SQL out of texts, or follow pointers.
TABLE_FUNCTIONS = frozenset(
    ("generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest")
)
# Functions of one value that reach files, the network or settings, in any database.
_REACHING = frozenset(
    (
        *("benchmark", "copy_database", "current_setting", "database_to_xml", "dblink", "getenv"),
        *("getvariable", "glob", "json_execute_serialized_sql", "load_extension", "load_file"),
        *("connectby", "cursor_to_xml", "sleep_ms", "ts_rewrite", "ts_stat", "waitfor"),
        *("nextval", "opendatasource", "openquery", "openrowset", "query", "query_table"),
        *("query_to_xml", "readfile", "set_config", "setval", "shell", "sleep", "sniff_csv"),
        *("sys_eval", "sys_exec", "table_to_xml", "which_secret", "write_log", "writefile"),
    )
)
_REACHING_PREFIXES = (
    *("crosstab", "cursor_to_xml", "database_to_xml", "query_to_xml", "schema_to_xml"),
    "table_to_xml",
    *("aws_", "dblink_", "dbms_", "delta_", "duckdb_", "http_", "iceberg_", "lo_", "mysql_"),
    *("parquet_", "pg_", "postgres_", "pragma_", "read_", "sp_", "sqlite_", "st_read", "utl_"),
    "xp_",
)
_HARMLESS = frozenset(("pg_typeof",))
# Databases disagree on where such a text ends: code for one is a comment, or part of a string, for
# another (MySQL's \' and /*! */, the $tag$ of PostgreSQL).
_AMBIGUOUS = re.compile(r"\\['\"`]|/\*[!M+]|\$\w*\$|\0")
_SUFFIXES = ("arrow", "csv", "db", "gz", "json", "jsonl", "ndjson", "parquet", "tsv", "xlsx", "zst")
_TABLE_NAME = re.compile(r"[^\W\d][\w$ -]*")
# All other kinds of statements, also inside of a query (WITH x AS (DELETE ...), SELECT INTO).
_OTHER_STATEMENTS = (
    *("DML", "DDL", "Alter", "AlterTable", "Analyze", "Attach", "Cache", "Command", "Copy"),
    *("Delete", "Describe", "Detach", "Drop", "Export", "Grant", "Insert", "Into", "Kill"),
    *("LoadData", "Lock", "Merge", "Pragma", "Put", "Refresh", "Set", "Show", "Summarize"),
    *("Transaction", "TruncateTable", "Uncache", "Update", "Use"),
)


class QueryRefused(SandboxError, PermissionError):
    """The query would do more than read the tables it was given."""


def check(query: str, *, tables: Iterable[str] | None = None) -> None:
    """Raise QueryRefused unless the query only reads.

    `tables`: the names it may read; None: any name that cannot be a file or an address.

    >>> check("SELECT city, sum(amount) FROM orders GROUP BY city", tables=["orders"])
    >>> check("SELECT * FROM read_csv('/etc/passwd')")
    Traceback (most recent call last):
    belljar.compat.sql.QueryRefused: the query uses the function read_csv
      hint: only SELECT over tables is run, without functions that reach files, network or settings
    """
    exp = _sqlglot().exp
    statement = _only_statement(query)
    if not isinstance(statement, exp.Query):
        raise refused(f"the query is a statement of the kind {type(statement).__name__.upper()}")
    others = tuple(getattr(exp, name) for name in _OTHER_STATEMENTS if hasattr(exp, name))
    known = None if tables is None else {name.casefold() for name in tables}
    for node in statement.walk():
        if isinstance(node, others):
            raise refused(f"the query contains {type(node).__name__.upper()}")
        if isinstance(node, exp.Table) and not isinstance(node.this, exp.Func):
            if not isinstance(node.this, exp.Identifier):
                raise refused("the query reads something that is not a table")
            qualified = ".".join(part.name for part in node.parts)
            _check_table(qualified, known, set() if node.db else _named_by_query(node))
        if isinstance(node, exp.Func):
            name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            _check_function(name, as_table=isinstance(node.parent, (exp.Table, exp.Lateral)))


def check_duckdb(query: str, connection: Any, *, tables: Iterable[str]) -> None:
    """Raise QueryRefused unless DuckDB itself reads the text as one SELECT over `tables`.

    `connection`: any of DuckDB; only its parser runs.
    """
    import duckdb

    try:
        found = connection.extract_statements(query)
        tree = json.loads(
            connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()[0]
        )
    except (duckdb.Error, RecursionError) as error:
        raise refused(f"the query cannot be parsed: {error}") from error
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT or tree.get("error"):
        raise refused("the query is not one SELECT")
    known = {name.casefold() for name in tables}
    for node, defined in _nodes(tree):
        if node.get("type") == "BASE_TABLE":
            _check_table(str(node["table_name"]), known, defined)
            if node.get("schema_name") or node.get("catalog_name"):
                raise refused("the query names a schema")
        elif node.get("type") == "TABLE_FUNCTION":
            _check_function(str(node["function"]["function_name"]), as_table=True)
        elif node.get("type") == "SHOW_REF":
            raise refused("the query contains SHOW or DESCRIBE")
        elif node.get("class") == "FUNCTION":
            _check_function(str(node["function_name"]), as_table=False)


def for_duckdb(query: str) -> str:
    """Translate to DuckDB as PandasAI does, but keep "%s" (LIKE '%sales%')."""
    from sqlglot.optimizer.qualify_columns import quote_identifiers

    sqlglot = _sqlglot()
    quoted = sqlglot.parse_one(query).transform(quote_identifiers).sql(pretty=True)
    return str(sqlglot.parse_one(quoted).sql(dialect="duckdb", pretty=True))


def refused(why: str) -> QueryRefused:
    return QueryRefused(
        why,
        hint="only SELECT over tables is run, "
        "without functions that reach files, network or settings",
    )


def check_length(query: object) -> str:
    if not isinstance(query, str):
        raise refused(f"a query is a str, not {type(query).__name__}")
    if len(query) > MAX_LENGTH:
        raise refused(f"the query has {len(query)} characters, more than {MAX_LENGTH}")
    return query


def _only_statement(query: object) -> Any:
    sqlglot = _sqlglot()
    query = check_length(query)
    if _AMBIGUOUS.search(query):
        raise refused("the query has quotes or comments that databases read in different ways")
    try:
        found = [each for each in sqlglot.parse(query) if each is not None]
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise refused(f"the query cannot be parsed: {error or 'it is too deep'}") from error
    if len(found) != 1:
        raise refused(f"there are {len(found)} statements, not one")
    return found[0]


def _named_by_query(node: Any) -> set[str]:
    """The names that WITH defines where this table is read: those of the queries around it. Inside
    of a query that WITH names, only the earlier names, and its own if it is RECURSIVE."""
    exp = _sqlglot().exp
    found: set[str] = set()
    below, above = node, node.parent
    while above is not None:
        # The name of the argument differs between versions of sqlglot.
        named_with = above.args.get("with") or above.args.get("with_")
        with_ = above if isinstance(above, exp.With) else named_with
        if with_ is not None:
            named = with_.expressions
            if above is with_ and below in named:
                before = [id(each) for each in named].index(id(below))
                named = named[: before + bool(with_.args.get("recursive"))]
            if above is with_ or below is not with_:
                found |= {each.alias_or_name.casefold() for each in named}
        below, above = above, above.parent
    return found


def _check_table(name: str, known: set[str] | None, defined: Collection[str]) -> None:
    if name.casefold() in defined:
        return
    if known is not None and name.casefold() not in known:
        tables = ", ".join(sorted(known))
        raise refused(f"the query reads {name[:200]!r}, which is not one of the tables: {tables}")
    # DuckDB and others open a file or an address in place of a table.
    parts = name.split(".")
    is_name = all(_TABLE_NAME.fullmatch(part) for part in parts)
    if known is None and (not is_name or (parts[1:] and parts[-1].casefold() in _SUFFIXES)):
        raise refused(f"the query reads {name[:200]!r}, which is not the name of a table")


def _check_function(name: str, *, as_table: bool) -> None:
    name = name.casefold()
    reaching = name in _REACHING or name.startswith(_REACHING_PREFIXES)
    if (as_table and name not in TABLE_FUNCTIONS) or (reaching and name not in _HARMLESS):
        raise refused(f"the query uses the function {name[:200]}")


def _nodes(tree: object) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Every object of DuckDB's tree, and the names that WITH defines where it stands. Without
    recursion: the query chooses the depth."""
    todo: list[tuple[object, frozenset[str]]] = [(tree, frozenset())]
    while todo:
        node, outside = todo.pop()
        if isinstance(node, list):
            todo += [(each, outside) for each in node]
        if not isinstance(node, dict):
            continue
        defined = outside
        for entry in (node.get("cte_map") or {}).get("map", ()):
            todo.append((entry["value"], defined))  # it sees the earlier names
            defined |= {str(entry["key"]).casefold()}
        if node.get("cte_name"):
            defined |= {str(node["cte_name"]).casefold()}
        yield node, defined
        for key, each in node.items():
            # A MATERIALIZED query does not see its own name; a recursive one does.
            before = node.get("type") == "CTE_NODE" and key == "query"
            if key != "cte_map":
                todo.append((each, outside if before else defined))


def _sqlglot() -> Any:
    try:
        import sqlglot
        import sqlglot.errors
    except ImportError as error:
        raise InvalidOption(
            "queries are parsed with sqlglot, which is not installed",
            hint="pip install sqlglot",
        ) from error
    return sqlglot


# -- DuckDB over frames ---------------------------------------------------------------------

_LOCKED_DOWN = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # else FROM reads Python variables
    "temp_directory": "",  # a query that does not fit into memory fails
}
_MOST_THREADS = 4  # each takes address space, which is bounded


def run_query(
    query: str,
    frames: Mapping[str, Any],
    memory: int = 2**30,
    *,
    views: Mapping[str, str] | None = None,
    readable: Iterable[str] = (),
) -> pd.DataFrame:
    """Run a query over `frames` in a DuckDB that can reach nothing else, and return its frame.

    The DuckDB lives in memory, for one query. Its settings allow no files, network, extensions or
    variables of this process, and are locked: a query that passed `check` by mistake finds nothing.
    Its bounds of memory and time hold only in part: it does not count texts and lists, and an
    interrupt waits for the function that is being computed. So it runs in a process that can be
    killed (belljar.compat.query_process).

    `views`: further tables, name to expression; `readable`: the files that these read. Raises
    QueryRefused, and DuckDB's errors.
    """
    import duckdb
    import pandas as pd

    views = views or {}
    with duckdb.connect(":memory:", config=_LOCKED_DOWN) as connection:
        for name, frame in frames.items():
            connection.register(name, frame)
        _lock_settings(connection, memory, list(readable))
        for name, expression in views.items():
            connection.execute(f'CREATE VIEW "{name}" AS {expression}')
        check_duckdb(query, connection, tables=[*frames, *views])
        found = connection.execute(query).df()
    for name in found.select_dtypes("object").columns:
        if any(_is_object_array(cell) for cell in found[name]):
            found[name] = pd.Series([_make_list(cell) for cell in found[name]], dtype=object)
    return found


def _is_object_array(cell: object) -> bool:
    dtype = getattr(cell, "dtype", None)
    return type(cell).__name__ == "ndarray" and dtype is not None and dtype.kind == "O"


def _make_list(cell: Any) -> Any:
    """Arrays of objects, which cannot travel, as lists."""
    return [_make_list(each) for each in cell] if _is_object_array(cell) else cell


def _lock_settings(connection: Any, memory: int, readable: list[str]) -> None:
    connection.execute(f"SET memory_limit = '{memory // 1024}KiB'")
    (threads,) = connection.execute("SELECT current_setting('threads')").fetchone()
    connection.execute(f"SET threads = {min(threads, _MOST_THREADS)}")
    if readable:
        quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in readable)
        connection.execute(f"SET allowed_paths = [{quoted}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
