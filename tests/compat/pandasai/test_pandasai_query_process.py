"""Queries that would take all memory or all time do so in a process that is ended, and the next one
is answered. Looked at from outside: processes, their limits, what the host has used."""

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from pandasai import Agent

import census
from belljar.compat import query_process, sql
from belljar.compat.pandasai import BelljarSandbox
from belljar.compat.pandasai.exchange import guard_queries
from belljar.compat.query_process import Bounds, QueryProcess
from belljar.errors import CannotTravel, StartError
from belljar.protocol import values

MANY = pd.DataFrame({"a": range(50_000)})
SMALL = Bounds(seconds=60, memory=300 * 2**20, result=2**25)
LONG = 60.0  # seconds: on a busy machine
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


@pytest.fixture(scope="module")
def queries():
    process = QueryProcess(SMALL)
    yield process
    process.stop()


@pytest.fixture
def bounded():
    """Makes a process with bounds of its own; gone after the test."""
    with contextlib.ExitStack() as stack:

        def make(**bounds):
            process = QueryProcess(Bounds(**bounds))
            stack.callback(process.stop)
            return process

        yield make


def number_of(process):
    return process._server._process.pid


def answers(process):
    return process.run("SELECT count(*) AS n FROM t", {"t": MANY}).n[0] == len(MANY)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# -- results ----------------------------------------------------------------------------------


def test_results_are_the_frames_that_duckdb_makes(queries):
    many = pd.DataFrame(
        {
            "number": range(100_000),
            "text": [str(n) if n % 3 else None for n in range(100_000)],
            "when": pd.date_range("2024", periods=100_000, freq="s"),
            "kind": pd.Categorical(["a", "b"] * 50_000),
        },
        index=pd.Index(range(100_000), name="own").astype(str),
    )
    query = "SELECT *, number / 2 AS half, number > 5 AS truth FROM many ORDER BY number"
    with duckdb.connect() as connection:
        connection.register("many", many)
        expected = connection.execute(query).df()
    pd.testing.assert_frame_equal(queries.run(query, {"many": many}), expected)
    empty = queries.run("SELECT number, text FROM many WHERE false", {"many": many})
    assert list(empty.columns) == ["number", "text"]
    assert len(empty) == 0
    assert many.index.name == "own"


def test_lists_of_texts_and_of_lists_arrive_as_lists(queries):
    frame = pd.DataFrame({"city": ["Oslo", "Rome", None]})
    found = queries.run("SELECT list(city) AS a, [[1], [2, 3]] AS b FROM t", {"t": frame})
    assert found.a[0] == ["Oslo", "Rome", None]
    assert [list(each) for each in found.b[0]] == [[1], [2, 3]]


def test_a_frame_that_was_changed_is_queried_as_it_is_now(queries):
    frame = pd.DataFrame({"a": [1, 2]})
    assert queries.run("SELECT sum(a) AS s FROM t", {"t": frame}).s[0] == 3
    frame.loc[0, "a"] = 10
    assert queries.run("SELECT sum(a) AS s FROM t", {"t": frame}).s[0] == 12


def test_a_frame_with_what_is_no_data_cannot_be_queried(queries):
    with pytest.raises(CannotTravel, match="column 'a'"):
        queries.run("SELECT 1", {"t": pd.DataFrame({"a": [object()]})})


@pytest.mark.parametrize(
    ("query", "kind", "said"),
    [
        ("SELECT nope FROM t", duckdb.BinderException, "nope"),
        ("SELECT * FROM other", sql.QueryRefused, "not one of the tables: t"),
        ("SELECT * FROM '/etc/passwd'", sql.QueryRefused, "hint: only SELECT"),
        ("COPY t TO '/tmp/x'", sql.QueryRefused, "hint: only SELECT"),
        ("SELECT 'x'::INT FROM t", duckdb.ConversionException, "Could not convert"),
        (7, sql.QueryRefused, "a str, not int"),
        ("SELECT 1 --" + "x" * 60_000, sql.QueryRefused, "more than 50000"),
    ],
)
def test_errors_are_those_of_duckdb_and_of_the_guard(queries, query, kind, said):
    with pytest.raises(kind, match=said):
        queries.run(query, {"t": MANY})


def test_a_dataset_reads_its_own_file_and_no_other(queries, tmp_path, monkeypatch):
    MANY.to_parquet(tmp_path / "mine.parquet")
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "mine.parquet"), "mine.parquet"):
        views = {"kept": f"SELECT * FROM read_parquet('{path}')"}
        found = queries.run("SELECT count(*) AS n FROM kept", {}, views=views, readable=[path])
        assert found.n[0] == len(MANY)
    with pytest.raises(duckdb.Error, match="disabled by configuration"):
        queries.run("SELECT * FROM kept", {}, views=views, readable=["other.parquet"])


# -- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(length(repeat('x', 2000000 + CAST(a AS INT)))) FROM t",
        "SELECT len(range(400000000)) FROM t LIMIT 1",
        "SELECT repeat('x', 40000 + CAST(a AS INT)) AS z FROM t",
        "SELECT [range(3000)] AS z FROM t",
        "SELECT list(range) FROM range(100000000)",
    ],
)
def test_a_query_gets_no_more_memory_than_it_may(queries, query):
    before = peak()
    with pytest.raises((duckdb.OutOfMemoryException, MemoryError)):
        queries.run(query, {"t": MANY})
    assert peak() - before < 2**26
    most = SMALL.memory + 2 * SMALL.result + 300 * 2**20  # and the interpreter
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < most
    assert answers(queries)


def test_a_result_is_not_larger_than_it_may(bounded):
    process = bounded(result=1_000_000)
    with pytest.raises(MemoryError, match="more than 1000000 bytes"):
        process.run("SELECT range, repeat('x', 100) AS text FROM range(1000000)", {})
    assert process.run("SELECT 1 AS one", {}).one[0] == 1


def test_a_query_without_end_is_ended(bounded):
    process = bounded(seconds=0.3)
    with pytest.raises(TimeoutError, match=r"longer than 0\.3 s"):
        process.run(ENDLESS, {})
    assert process._server is None


def test_a_query_that_cannot_be_read_in_time_is_refused(bounded):
    queries = bounded(reading=0.2)
    query = f"SELECT {'INT(' * 40}1{')' * 40} FROM t"
    with pytest.raises(sql.QueryRefused, match="too long to parse"):
        queries.run(query, {"t": MANY})
    with pytest.raises(sql.QueryRefused, match="too long to parse"):
        queries.check(query, ["t"])
    called = []
    with pytest.raises(Exception, match="too long to parse"):
        guard_queries(called.append, queries)(query)
    assert not called
    assert answers(queries)


def test_the_process_has_nothing_of_the_host_but_its_pipes(queries, monkeypatch):
    queries.stop()
    monkeypatch.setenv("SECRET_TOKEN", "sesame")
    with open(os.devnull) as held:
        os.set_inheritable(held.fileno(), True)
        assert answers(queries)
    there = Path(f"/proc/{number_of(queries)}")
    assert b"sesame" not in (there / "environ").read_bytes()
    assert os.readlink(there / "cwd") == "/"

    def kinds():
        found = set()
        for each in (there / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(each).partition(":")[0])
        return found

    census.wait_until(lambda: kinds() == {"pipe", os.devnull}, LONG, "that it has nothing else")
    limits = (there / "limits").read_text()
    for name in ("Max core file size", "Max file size"):
        (line,) = (line for line in limits.splitlines() if line.startswith(name))
        assert line.split()[-3:-1] == ["0", "0"]


# -- a process that is not what it should be ----------------------------------------------------


def lies(monkeypatch, folder, said):
    """Let the process say this in place of its answers."""
    (folder / "said").write_bytes(said)
    program = (
        "import os, time; os.write(1, b'!'); os.read(0, 9); "
        f"file = open({str(folder / 'said')!r}, 'rb'); "
        "any(not os.write(1, part) for part in iter(lambda: file.read(4096), b'')); "
        "time.sleep(100)"
    )
    monkeypatch.setattr(query_process, "_MAIN", program)


def parcel(value):
    blob = values.encode(value).join()
    return query_process.SIZE.pack(len(blob)) + blob


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (query_process.SIZE.pack(2**62), MemoryError),
        (query_process.SIZE.pack(2**20) + b"short", TimeoutError),
        (query_process.SIZE.pack(5) + b"noise", CannotTravel),
        (parcel([1, 2]), CannotTravel),
        (parcel({}), CannotTravel),
        (parcel({"frame": "no frame"}), CannotTravel),
        (parcel({"error": 7}), CannotTravel),
        (parcel({"error": "connect", "words": "x"}), RuntimeError),
        (parcel({"error": "__class__", "words": "x"}), RuntimeError),
        (parcel({"error": "MemoryError", "words": 1 << 1_000_000}), CannotTravel),
        (parcel({"error": "x" * 100_000, "words": "y" * 100_000}), RuntimeError),
    ],
    ids=range(11),
)
def test_what_it_says_is_believed_nothing(bounded, monkeypatch, tmp_path, said, kind):
    lies(monkeypatch, tmp_path, said)
    monkeypatch.setattr(query_process, "_GRACE", 0.1)
    process = bounded(seconds=0.5 if kind is TimeoutError else LONG)
    with pytest.raises(kind) as raised:
        process.run("SELECT 1", {})
    assert len(str(raised.value)) < 5000


def test_one_that_does_not_start_says_so(bounded, monkeypatch):
    monkeypatch.setattr(query_process, "_MAIN", "import sys; sys.exit(3)")
    with pytest.raises(StartError, match=r"did not start \(status 3\)"):
        bounded().run("SELECT 1", {})


def test_one_that_has_died_is_replaced(queries):
    assert answers(queries)
    before = number_of(queries)
    os.kill(before, signal.SIGKILL)
    census.wait_until(lambda: not queries._server.is_ready(), LONG, "its death")
    assert answers(queries)
    assert number_of(queries) != before


# -- its life ---------------------------------------------------------------------------------


def test_one_process_serves_all_queries_and_ends_with_its_owner(bounded):
    process = bounded()
    assert process._server is None
    assert answers(process)
    first = number_of(process)
    assert answers(process)
    assert number_of(process) == first
    process.stop()
    assert census.process(first) is None
    process.stop()
    assert answers(process)
    second = number_of(process)
    dropped = QueryProcess(Bounds())
    assert answers(dropped)
    third = number_of(dropped)
    del dropped
    gc.collect()
    assert census.process(third) is None
    assert census.alive(second)


def test_stop_ends_a_query_that_runs(bounded):
    process = bounded()
    found = []

    def ask():
        try:
            process.run(ENDLESS, {})
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    census.wait_until(
        lambda: process._server is not None and below(process), LONG, what="the query"
    )
    mine = [number_of(process), *below(process)]
    process.stop()
    thread.join()
    assert found == ["the query process was killed"]
    census.wait_until(lambda: not any(census.alive(pid) for pid in mine), LONG, "their end")


def below(process):
    return [each.pid for each in census.descendants(number_of(process))]


def test_queries_of_many_threads_all_get_their_own_answer(queries):
    found = {}

    def ask(number):
        found[number] = int(queries.run(f"SELECT {number} AS n", {}).n[0])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(8)}


def test_a_fork_of_the_host_has_a_process_of_its_own(queries):
    assert answers(queries)
    before = number_of(queries)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            fresh = queries._server is None
            right = answers(queries) and number_of(queries) != before
            queries.stop()
            status = 0 if fresh and right else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert census.alive(before)
    assert answers(queries)
    assert number_of(queries) == before


def test_it_ends_with_a_host_that_was_killed():
    program = (
        "import os, signal, sys\n"
        "from belljar.compat.query_process import QueryProcess\n"
        "from belljar.compat.query_process import Bounds\n"
        "process = QueryProcess(Bounds())\n"
        "process.run('SELECT 1', {})\n"
        "print(process._server._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(ran.stdout)
    census.wait_until(lambda: not census.alive(pid), LONG, "its end")


ASKING = """
rows = execute_sql_query("SELECT sum(amount) AS total FROM sales")
result = {'type': 'number', 'value': rows.total[0]}
"""


def test_a_sandbox_that_is_stopped_ends_its_process(backend, sales):
    with BelljarSandbox() as sandbox:
        environment = {"execute_sql_query": Agent([sales])._execute_sql_query}
        assert sandbox.execute(ASKING, environment)["value"] == 75
        pid = number_of(sandbox._queries)
    assert census.process(pid) is None


def test_a_sandbox_that_is_dropped_ends_its_process(backend, sales):
    sandbox = BelljarSandbox()
    sandbox.execute(ASKING, {"execute_sql_query": Agent([sales])._execute_sql_query})
    pid = number_of(sandbox._queries)
    del sandbox
    # The thread of its last call may still hold it for a moment.
    census.wait_until(lambda: gc.collect() >= 0 and census.process(pid) is None, LONG, "its end")
