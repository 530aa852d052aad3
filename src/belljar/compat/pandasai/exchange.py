"""What goes into the sandbox besides the code (data, modules, `execute_sql_query`), and what is
fetched out of it afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import sqlglot
from pandasai.agent.base import Agent
from pandasai.constants import LOCAL_SOURCE_TYPES
from pandasai.exceptions import MaliciousQueryError
from pandasai.query_builders.sql_parser import SQLParser

from belljar.compat import get_plain, set_plain, sql
from belljar.compat.pandasai import answers
from belljar.compat.pandasai.answers import BadResult, NoResult
from belljar.compat.query_process import QueryProcess
from belljar.errors import CannotTravel, NameMissing
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox as Jar

logger = logging.getLogger("belljar")


def is_function(name: str, value: object) -> bool:
    # A class stays on the host: its instances could not travel.
    return callable(value) and not isinstance(value, type) and not name.startswith("__")


def put_data(jar: Jar, environment: Mapping[str, Any]) -> dict[str, str]:
    """Copy the data of `environment` into the sandbox; return what cannot travel, and why."""
    left_out = {}
    for name, value in environment.items():
        if isinstance(value, ModuleType) or is_function(name, value) or name.startswith("__"):
            continue
        try:
            set_plain(jar, name, value)
        except CannotTravel as error:
            logger.warning("%s of the environment cannot go into the sandbox: %s", name, error)
            left_out[name] = str(error)
    return left_out


def explain_missing_name(execution: Execution, left_out: Mapping[str, str]) -> str:
    if execution.error is None or execution.error.name != "NameError":
        return ""
    found = [why for name, why in left_out.items() if f"'{name}'" in execution.error.value]
    return "".join(f"\n({why})" for why in found)


def fetch_result(jar: Jar, execution: Execution) -> object:
    """The value of the variable `result`."""
    try:
        try:
            return jar.get("result")
        except CannotTravel:
            jar.run_code(FINISH).raise_for_outcome()
            return get_plain(jar, "result")
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


def fetch_picture(jar: Jar, path: str) -> bytes | None:
    """The bytes of a file that the code saved; None if there is no such file."""
    for each in (path, f"{CHARTS}/{os.path.basename(path)}"):
        if not each or "\0" in each or not jar.files.exists(each):
            continue
        info = jar.files.stat(each)
        if info.type != "file":
            raise ValueError("it is not a file")
        if info.size > answers.MAX_PNG_BYTES:
            raise ValueError(
                f"the picture has {info.size} bytes, more than {answers.MAX_PNG_BYTES}"
            )
        return jar.files.read(each, format="bytes")
    return None


# -- cells around generated code ------------------------------------------------------------
# They run in the guest, so the host does not trust their results. Generated code relies on names
# that PandasAI defines before it (pd, np, plt; and what the serializer of pandasai_docker imports),
# and on a directory for charts.

CHARTS = "exports/charts"  # PandasAI writes this directory into the code; below the workspace
FIGURE = f"{CHARTS}/figure.png"

_MODULES = {
    "pd": "pandas",
    "np": "numpy",
    "plt": "matplotlib.pyplot",
    **{name: name for name in ("base64", "datetime", "json", "os", "tarfile")},
}

# Between two executions: kills all processes (a signal to -1 spares init and its sender), removes
# files and shared memory. It fails if something stays.
SCRUB = """
kill -9 -1
chmod -R u+rwx /workspace /tmp /dev/shm /home/user /var/tmp 2>/dev/null
for place in /workspace /dev/shm /home/user /var/tmp /tmp; do
    cd "$place" || continue
    for found in ..?* .[!.]* *; do
        [ -e "$found" ] || [ -L "$found" ] || continue
        rm -rf -- "./$found" || exit 1
    done
done
ipcrm -a 2>/dev/null
for kind in shm msg sem; do
    [ ! -r /proc/sysvipc/$kind ] || [ "$(wc -l < /proc/sysvipc/$kind)" -le 1 ] || exit 1
done
"""

# savefig("/home/me/chart.png") cannot work in a sandbox. pandasai_docker replaces the path in the
# text of the code. Here the text stays; a picture whose directory cannot be made goes to CHARTS.
_SAVING = f"""
def __belljar_saving():
    import functools, os
    from matplotlib.figure import Figure
    plain = Figure.savefig

    @functools.wraps(plain)
    def savefig(self, fname, *args, **kwargs):
        if isinstance(fname, (str, os.PathLike)):
            folder = os.path.dirname(os.fspath(fname))
            try:
                os.makedirs(folder or ".", exist_ok=True)
                writable = os.access(folder or ".", os.W_OK)
            except OSError:
                writable = False
            if not writable:
                fname = os.path.join({CHARTS!r}, os.path.basename(os.fspath(fname)))
        return plain(self, fname, *args, **kwargs)

    Figure.savefig = savefig

__belljar_saving()
del __belljar_saving
"""

# For a result that cannot travel: saves a figure, and puts the path into the result.
FINISH = f"""
if isinstance(result, dict) and result.get("type") == "plot":
    __belljar_figure = getattr(result.get("value"), "figure", result.get("value"))
    if hasattr(__belljar_figure, "savefig"):
        __belljar_figure.savefig({FIGURE!r})
        result = dict(result, value={FIGURE!r})
    elif hasattr(result.get("value"), "__fspath__"):
        result = dict(result, value=str(result["value"]))
"""


def preparation_code(code: str, environment: Mapping[str, object]) -> str:
    """The cell that runs before `code`: imports, and the directory for charts."""
    modules = dict(_MODULES)
    for name, value in environment.items():
        if isinstance(value, ModuleType) and name.isidentifier():
            modules[name] = value.__name__
    lines = [f"import os as __belljar_os\n__belljar_os.makedirs({CHARTS!r}, exist_ok=True)"]
    # Only modules that the code mentions: in the caller's image an import may be slow or fail.
    lines += [
        f"try:\n    import {module} as {name}\nexcept ImportError:\n    pass"
        for name, module in modules.items()
        if name in code and all(part.isidentifier() for part in module.split("."))
    ]
    if "savefig" in code or "plot" in code:
        saving = _SAVING.strip().replace("\n", "\n    ")
        lines.append(f"try:\n    {saving}\nexcept ImportError:\n    pass")
    return "\n".join([*lines, "del __belljar_os"])


# -- execute_sql_query ----------------------------------------------------------------------


def guard_queries(
    function: Callable[..., object], process: QueryProcess
) -> Callable[[str], object]:
    """The function that the sandbox gets in place of `function`.

    An Agent's own function opens a DuckDB that can read and write every file of this process. So it
    is not called: the query process runs the query over the same frames. Any other function is the
    caller's, and gets only queries that pass `sql.check`.
    """
    agent = _agent_of(function)

    def execute_sql_query(sql_query: str) -> object:
        """This method connects to the database, executes the sql query and returns the dataframe"""
        try:
            if agent is None:
                process.check(sql_query)
                return function(sql_query)
            return _query_frames(agent, sql_query, process)
        except sql.QueryRefused as error:
            # The exception that PandasAI and its prompts know.
            raise MaliciousQueryError(str(error)) from error

    return execute_sql_query


def _agent_of(function: Callable[..., object]) -> Agent | None:
    """The agent, if the function is Agent's own method; None if a subclass overrides it."""
    owner = getattr(function, "__self__", None)
    ours = getattr(function, "__func__", None) is Agent._execute_sql_query
    return owner if ours and isinstance(owner, Agent) else None


def _query_frames(agent: Agent, query: str, process: QueryProcess) -> object:
    frames = agent._state.dfs
    # Frames with a query builder are datasets, which are read on demand.
    datasets = [frame for frame in frames if hasattr(frame, "query_builder")]
    meant = {each.schema.name: each.query_builder._get_table_expression() for each in datasets}
    if not all(_is_local(each) for each in datasets):
        process.check(query, tables=[frame.schema.name for frame in frames])
        return datasets[-1].execute_sql_query(
            SQLParser.replace_table_and_column_names(query, meant)
        )
    tables = {frame.schema.name: frame for frame in frames if not hasattr(frame, "query_builder")}
    files = [path for expression in meant.values() for path in _read_files(expression)]
    views = {name: sql.for_duckdb(f"SELECT * FROM {text}") for name, text in meant.items()}
    return process.run(query, tables, views=views, readable=files)


def _is_local(dataset: Any) -> bool:
    source = dataset.schema.source or dataset._loader.source
    return source.type in LOCAL_SOURCE_TYPES


def _read_files(expression: str) -> list[str]:
    """The files that the table expression of a local dataset reads, in PandasAI's own text."""
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
