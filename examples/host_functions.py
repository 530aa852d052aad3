"""Host functions: generated code asks the caller's database, and sees nothing else of it.

The code gets `execute_sql_query`, with its signature and docstring; the database, its password and
its file stay in this process.
"""

import sqlite3
import tempfile
from pathlib import Path

from belljar import Sandbox
from belljar.functions.registry import HostFunction, stubs

# What a model might write, given the question and the stubs.
CODE = """\
import pandas as pd
try:
    execute_sql_query("drop table orders")
except Exception as error:
    print(f"refused: {type(error).__name__}: {error}")
orders = pd.DataFrame(execute_sql_query("select * from orders where amount >= ?", [20]))
print(orders)
orders.groupby("city").amount.sum().idxmax()
"""


def make_database(path: Path) -> None:
    rows = [("Oslo", 30), ("Rome", 25), ("Oslo", 10), ("Rome", 45)]
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (city text, amount integer)")
        connection.executemany("insert into orders values (?, ?)", rows)
    connection.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "orders.db")
        make_database(database)

        def execute_sql_query(
            query: str, parameters: list[object] | None = None
        ) -> list[dict[str, object]]:
            """Run one SELECT against the table orders(city, amount)."""
            # The query comes from untrusted code: let the database decide what it may do.
            # Calls come from several threads, so each opens a connection of its own.
            connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
            connection.row_factory = sqlite3.Row
            try:
                return [dict(row) for row in connection.execute(query, parameters or [])]
            finally:
                connection.close()

        function = HostFunction(execute_sql_query, timeout=10, max_calls=100)
        print(stubs([function]))
        with Sandbox(functions=[function]) as sandbox:
            execution = sandbox.run_code(CODE).raise_for_outcome()
        print(execution.stdout, end="")
        print("most was sold in", execution.value)
        for call in execution.calls:
            print(f"{call.name}: {'ok' if call.ok else call.error}")


if __name__ == "__main__":
    main()
