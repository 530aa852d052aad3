"""The guard of queries, both halves: what is read and refused, and a DuckDB that reaches nothing.

The second half is tested without the first, since it must hold where the first is wrong.
"""

import duckdb
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.compat import sql

FRAME = pd.DataFrame({"city": ["Oslo", "Rome", None], "amount": [30, 25, 20]})

ALLOWED = [
    "SELECT 1",
    "SELECT city, sum(amount) AS total FROM sales GROUP BY city ORDER BY total DESC LIMIT 3;",
    "select upper(city), round(avg(amount), 2) from sales where city like '%read_csv%' group by 1",
    "WITH best AS (SELECT * FROM sales WHERE amount > 20) SELECT * FROM best",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
    "SELECT * FROM sales UNION ALL SELECT * FROM sales",
    "SELECT a.city FROM sales a JOIN sales b ON a.city = b.city",
    "SELECT * FROM (SELECT city FROM sales) AS inner_one",
    "SELECT city, row_number() OVER (PARTITION BY city ORDER BY amount) FROM sales",
    "SELECT * FROM range(3)",
    "SELECT x FROM unnest([1, 2]) AS t(x)",
    "SELECT CASE WHEN amount > 20 THEN 'much' ELSE 'little' END FROM sales",
    "SELECT EXTRACT(year FROM DATE '2024-01-01'), CAST(amount AS VARCHAR) FROM SALES",
    "SELECT 'DROP TABLE sales; COPY x TO y' AS text FROM \"sales\" -- DELETE",
    "SELECT * FROM sales WHERE amount IN (SELECT max(amount) FROM sales)",
    "SELECT count(*) FILTER (WHERE amount > 20) FROM sales",
]
REFUSED = [
    "",
    ";",
    "SELEKT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE sales",
    "DROP TABLE sales",
    "DELETE FROM sales",
    "UPDATE sales SET amount = 0",
    "INSERT INTO sales SELECT * FROM sales",
    "CREATE TABLE copy AS SELECT * FROM sales",
    "CREATE VIEW v AS SELECT * FROM sales",
    "ALTER TABLE sales ADD COLUMN x INT",
    "COPY sales TO '/tmp/out.csv'",
    "COPY (SELECT * FROM sales) TO '/tmp/out.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '/tmp/out'",
    "IMPORT DATABASE '/tmp/out'",
    "ATTACH '/tmp/other.db' AS other",
    "DETACH other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "RESET memory_limit",
    "CALL pragma_version()",
    "CHECKPOINT",
    "USE memory",
    "BEGIN",
    "PREPARE q AS SELECT 1",
    "EXECUTE q",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "DESCRIBE sales",
    "SHOW TABLES",
    "SELECT * INTO copy FROM sales",
    "SELECT * FROM sales FOR UPDATE",
    "WITH gone AS (DELETE FROM sales RETURNING *) SELECT * FROM gone",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM READ_PARQUET('x.parquet')",
    "SELECT * FROM parquet_scan('x.parquet')",
    "SELECT * FROM read_json('x.json')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT content FROM read_blob('/etc/hostname')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'data.csv'",
    'SELECT * FROM "data.csv"',
    "SELECT * FROM 'https://example.com/x.parquet'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM sales, 'data.csv'",
    "SELECT * FROM sales WHERE city IN (SELECT * FROM read_csv('/etc/passwd'))",
    "SELECT (SELECT content FROM read_text('/etc/hostname'))",
    "WITH x AS (SELECT * FROM glob('/*')) SELECT * FROM x",
    "SELECT * FROM query('SELECT * FROM sales')",
    "SELECT * FROM query_table('sales')",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT * FROM pandas_scan(1, 2, 3)",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_version()",
    "SELECT getenv('HOME')",
    "SELECT current_setting('home_directory')",
    "SELECT getvariable('x')",
    "SELECT write_log('x')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT load_file('/etc/passwd')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_sleep(1000)",
    "SELECT * FROM dblink('host=x', 'SELECT 1') AS t(a INT)",
    "SELECT xp_cmdshell('id')",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM other",
    "SELECT * FROM memory.main.other",
    "SELECT * FROM sqlite_master",
    "SELECT " + "1+" * 30_000 + "1",
]


@pytest.mark.parametrize("query", ALLOWED)
def test_queries_that_only_read_are_run(query):
    sql.check(query)
    sql.check(query, tables=["sales"])
    assert isinstance(sql.run_query(query, {"sales": FRAME}), pd.DataFrame)


ELSEWHERE_NAMED = [
    "SELECT * FROM users WHERE 1 IN (WITH users AS (SELECT 1 AS a) SELECT a FROM users)",
    "SELECT * FROM users, (WITH users AS (SELECT 1) SELECT 1) AS z",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
    "WITH users AS (SELECT * FROM users) SELECT * FROM users",
    "SELECT * FROM sales UNION (WITH users AS (SELECT 1) SELECT 1) UNION SELECT * FROM users",
]
NO_TABLES = [
    "SELECT * FROM private.sales",
    "SELECT * FROM other.private.sales",
    "WITH sales AS (SELECT 1) SELECT * FROM private.sales",
    "SELECT * FROM @stage",
    "SELECT * FROM ?",
    "SELECT * FROM :users",
    "SELECT schema_to_xml('public', true, false, '')",
    "SELECT query_to_xml_and_xmlschema('select 1', true, true, '')",
    "SELECT query_to_xmlschema('select 1', true, true, '')",
    "SELECT cursor_to_xml('c', 1, true, true, '')",
    "SELECT table_to_xml_and_xmlschema('users', true, true, '')",
    "SELECT ts_stat('select to_tsvector(s) from users') FROM sales",
    "SELECT ts_rewrite('a'::tsquery, 'select 1')",
    "SELECT crosstab('select 1') FROM sales",
    "SELECT connectby('users', 'a', 'b', 'c', 0) FROM sales",
    "SELECT sleep_ms(100000)",
]


@pytest.mark.parametrize("query", [*ELSEWHERE_NAMED, *NO_TABLES])
def test_a_name_of_with_counts_only_where_it_is_known_and_no_schema_is_a_table(query):
    with pytest.raises(sql.QueryRefused):
        sql.check(query, tables=["sales"])


@pytest.mark.parametrize(
    "query", [*ELSEWHERE_NAMED, "WITH users AS MATERIALIZED (SELECT * FROM users) FROM users"]
)
def test_duckdb_reads_names_of_with_by_where_they_are_known_too(query):
    with (
        duckdb.connect() as connection,
        pytest.raises(sql.QueryRefused, match="the tables: sales"),
    ):
        sql.check_duckdb(query, connection, tables=["sales"])


@pytest.mark.parametrize(
    "query",
    [
        "WITH a AS MATERIALIZED (SELECT 1 AS x), b AS (SELECT * FROM a) SELECT * FROM b",
        "WITH a AS (SELECT 1 AS x), b AS (SELECT * FROM a) SELECT * FROM a, b",
        "SELECT * FROM sales WHERE amount IN (WITH a AS (SELECT 30 AS x) SELECT x FROM a)",
        "WITH a AS (WITH b AS (SELECT 1 AS x) SELECT * FROM b) SELECT * FROM a",
        "WITH a AS (SELECT 1 AS x) SELECT * FROM (SELECT * FROM a) AS z UNION SELECT * FROM a",
    ],
)
def test_names_of_with_are_known_below_it(query):
    sql.check(query, tables=["sales"])
    assert len(sql.run_query(query, {"sales": FRAME})) > 0


def test_a_file_named_by_with_elsewhere_is_still_a_file():
    query = "SELECT * FROM '/etc/x.csv', (WITH \"/etc/x.csv\" AS (SELECT 1) SELECT 1) AS z"
    with pytest.raises(sql.QueryRefused, match="not the name of a table"):
        sql.check(query)
    with pytest.raises((sql.QueryRefused, duckdb.Error)):
        sql.run_query(query, {"sales": FRAME})


TOO_DEEP = "(" * 5000 + "SELECT 1" + ")" * 5000


READ_IN_TWO_WAYS = [
    "SELECT 'a\\'' , load_file('/etc/passwd') -- '",
    "SELECT 1 /*! INTO OUTFILE '/tmp/x' */",
    "SELECT $$ ' $$, 1",
    "SELECT $x$ ' $x$, 1",
]


@pytest.mark.parametrize("query", READ_IN_TWO_WAYS)
def test_queries_that_databases_read_in_different_ways_are_refused(query):
    with pytest.raises(sql.QueryRefused, match="different ways"):
        sql.check(query)


@pytest.mark.parametrize("query", [*REFUSED, TOO_DEEP], ids=lambda query: query[:40])
def test_queries_that_do_more_are_refused_by_the_reader(query):
    with pytest.raises(sql.QueryRefused, match="hint: only SELECT"):
        sql.check(query, tables=["sales"])


@pytest.mark.parametrize("query", REFUSED, ids=lambda query: query[:40])
def test_queries_that_do_more_are_refused_by_the_parser_of_duckdb(query):
    with pytest.raises(sql.QueryRefused):
        sql.run_query(query, {"sales": FRAME})


def test_without_names_any_table_may_be_read_but_no_file():
    sql.check('SELECT * FROM shop.orders JOIN "order lines" USING (id)')
    for query in ("SELECT * FROM 'a/b.csv'", 'SELECT * FROM "x.csv"', "SELECT * FROM 'http://x'"):
        with pytest.raises(sql.QueryRefused, match="not the name of a table"):
            sql.check(query)


@given(st.text(max_size=60))
def test_no_text_gets_anything_but_a_refusal_or_leave(text):
    try:
        sql.check(text, tables=["sales"])
    except sql.QueryRefused:
        return


@settings(max_examples=50)
@given(st.sampled_from(ALLOWED), st.text(alphabet=" ;'\"()-/*\0\\%$", max_size=5), st.data())
def test_what_the_reader_lets_pass_only_reads_for_duckdb_too(query, noise, data):
    at = data.draw(st.integers(0, len(query)))
    text = query[:at] + noise + query[at:]
    try:
        sql.run_query(text, {"sales": FRAME.head(1)})
    except (sql.QueryRefused, duckdb.Error, ValueError):
        return


# -- the connection alone ---------------------------------------------------------------------


@pytest.fixture
def unguarded(monkeypatch):
    """A run() whose reader lets everything pass."""
    monkeypatch.setattr(sql, "check_duckdb", lambda *args, **options: None)
    return lambda query, **options: sql.run_query(query, {"sales": FRAME}, **options)


REACHING = [
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM sniff_csv('{secret}')",
    "COPY sales TO '{made}'",
    "EXPORT DATABASE '{made}'",
    "ATTACH '{made}' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET allowed_directories = ['/']",
    "RESET enable_external_access",
    "SELECT * FROM 'https://127.0.0.1:1/x.parquet'",
    "SELECT * FROM FRAME",
    "SELECT * FROM hidden_frame",
    "SELECT getenv('HOME')",
    "SELECT * FROM pandas_scan(1, 2, 3)",
]


@pytest.mark.parametrize("query", REACHING)
def test_the_connection_reaches_nothing_by_itself(unguarded, tmp_path, query):
    hidden_frame = pd.DataFrame({"word": ["sesame"]})
    secret, made = tmp_path / "secret.csv", tmp_path / "made"
    secret.write_text("word\nsesame\n")
    with pytest.raises(duckdb.Error):
        unguarded(query.format(secret=secret, made=made, folder=tmp_path))
    assert not made.exists()
    assert len(hidden_frame) == 1


def test_files_of_a_dataset_are_readable_and_no_others(unguarded, tmp_path):
    mine, other = tmp_path / "it's mine.parquet", tmp_path / "other.parquet"
    FRAME.to_parquet(mine)
    FRAME.to_parquet(other)
    views = {"kept": "SELECT * FROM read_parquet('{}')".format(str(mine).replace("'", "''"))}
    found = unguarded("SELECT count(*) AS n FROM kept", views=views, readable=[str(mine)])
    assert found.n[0] == 3
    with pytest.raises(duckdb.Error, match="disabled by configuration"):
        unguarded(f"SELECT * FROM read_parquet('{other}')", readable=[str(mine)])
