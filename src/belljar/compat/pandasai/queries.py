"""What `execute_sql_query` of an environment becomes in the sandbox: a function of the host that
runs a query when the code calls it, and only if it reads nothing but the frames of the agent.

An Agent's own function opens a DuckDB that can read and write every file of this process. So it is
not called: the same frames are queried on one that cannot (compat/duck.py), in a process of its own
(compat/query_process.py). Any other function is the caller's, and is called with queries that
`belljar.compat.sql` has let pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlglot
from pandasai.agent.base import Agent
from pandasai.constants import LOCAL_SOURCE_TYPES
from pandasai.exceptions import MaliciousQueryError
from pandasai.query_builders.sql_parser import SQLParser

from belljar.compat import sql
from belljar.compat.query_process import QueryProcess

Query = Callable[[str], object]


def guarded(function: Callable[..., object], process: QueryProcess) -> Query:
    """The function that the sandbox gets in place of `function`."""
    agent = _agent_of(function)

    def execute_sql_query(sql_query: str) -> object:
        """This method connects to the database, executes the sql query and returns the dataframe"""
        try:
            if agent is None:
                process.check(sql_query)
                return function(sql_query)
            return _query(agent, sql_query, process)
        except sql.QueryRefused as error:
            # The name by which PandasAI, and the models that it prompts, know it.
            raise MaliciousQueryError(str(error)) from error

    return execute_sql_query


def _agent_of(function: Callable[..., object]) -> Agent | None:
    """The agent, if the function is the one that every Agent has; not if a subclass has its own."""
    owner = getattr(function, "__self__", None)
    ours = getattr(function, "__func__", None) is Agent._execute_sql_query
    return owner if ours and isinstance(owner, Agent) else None


def _query(agent: Agent, query: str, process: QueryProcess) -> object:
    frames = agent._state.dfs
    # Those with a query builder are datasets that are read when they are asked for.
    datasets = [frame for frame in frames if hasattr(frame, "query_builder")]
    meant = {each.schema.name: each.query_builder._get_table_expression() for each in datasets}
    if not all(_is_local(each) for each in datasets):
        process.check(query, tables=[frame.schema.name for frame in frames])
        return datasets[-1].execute_sql_query(
            SQLParser.replace_table_and_column_names(query, meant)
        )
    tables = {frame.schema.name: frame for frame in frames if not hasattr(frame, "query_builder")}
    files = [path for expression in meant.values() for path in _files(expression)]
    views = {name: sql.for_duckdb(f"SELECT * FROM {text}") for name, text in meant.items()}
    return process.run(query, tables, views=views, readable=files)


def _is_local(dataset: Any) -> bool:
    source = dataset.schema.source or dataset._loader.source
    return source.type in LOCAL_SOURCE_TYPES


def _files(expression: str) -> list[str]:
    """The files that the table expression of a local dataset reads; PandasAI wrote it."""
    exp = sqlglot.exp
    return [
        literal.this
        for function in sqlglot.parse_one(expression).find_all(exp.Func)
        if (function.name if isinstance(function, exp.Anonymous) else function.sql_name())
        .casefold()
        .startswith("read_")
        for literal in function.find_all(exp.Literal)
        if literal.is_string
    ]
