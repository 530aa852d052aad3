"""What pandasai_docker 0.1.4 did and this does not; one test or more for each."""

import gc
import sys
import weakref

import numpy as np
import pandas as pd
import pytest

from belljar.compat.pandasai import BelljarSandbox, CodeFailed, CodeOutOfMemory, DockerSandbox

PICTURE = """
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.savefig({path!r})
result = {{'type': 'plot', 'value': {path!r}}}
"""


def value(jar, code, environment=None):
    return jar.execute(code, {} if environment is None else environment)["value"]


def test_backslashes_and_quotes_of_the_code_stay_what_they_are(jar):
    text = "a\\b \"double\" 'single' $HOME `id` \\n \t %s {x} \\\\"
    assert value(jar, f"result = {{'type': 'string', 'value': {text!r}}}") == text
    assert value(jar, 'result = {"type": "string", "value": """\\"x\\" \\\'y\\\'\n"""}') == (
        "\"x\" 'y'\n"
    )


def test_code_may_be_longer_than_an_argument_of_a_program(jar):
    code = f"text = {'x' * 500_000!r}\nresult = {{'type': 'number', 'value': len(text)}}"
    assert value(jar, code) == 500_000


def test_printing_breaks_no_result(jar):
    code = "print('noise')\nresult = {'type': 'number', 'value': 7}\nprint('more')"
    assert value(jar, code) == 7
    assert jar.last_execution.stdout == "noise\nmore\n"


def test_a_text_that_looks_like_sql_is_not_sent_to_the_host(jar):
    asked = []
    code = """
note = "SELECT the best, WITH care"
print("SELECT * FROM nothing")
if False:
    execute_sql_query("SELECT 1 AS never")
result = {'type': 'number', 'value': execute_sql_query("SELECT 2 AS two").two[0]}
"""

    def execute_sql_query(query):
        asked.append(query)
        return pd.DataFrame({"two": [2]})

    assert value(jar, code, {"execute_sql_query": execute_sql_query}) == 2
    assert asked == ["SELECT 2 AS two"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        'SELECT * FROM "{secret}"',
        "SELECT * FROM glob('/etc/*')",
        "COPY sales TO '{stolen}'",
        "COPY (SELECT * FROM sales) TO '{stolen}' (FORMAT csv)",
        "ATTACH '{stolen}' AS other",
        "SELECT * FROM sales; COPY sales TO '{stolen}'",
        "SELECT * FROM query('SELECT 1')",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "PRAGMA database_list",
    ],
)
def test_sql_reaches_no_file_of_the_host(jar, sales, tmp_path, query):
    from pandasai import Agent

    secret, stolen = tmp_path / "secret.csv", tmp_path / "stolen.csv"
    secret.write_text("word\nsesame\n")
    agent = Agent([sales])
    text = query.format(secret=secret, stolen=stolen)
    code = f"rows = execute_sql_query({text!r})\nresult = {{'type': 'dataframe', 'value': rows}}"
    with pytest.raises(CodeFailed, match="MaliciousQueryError") as raised:
        jar.execute(code, {"execute_sql_query": agent._execute_sql_query})
    assert "sesame" not in str(raised.value)
    assert not stolen.exists()


@pytest.mark.parametrize(
    "named", ["{there}/out.png", "../../../out.png", "exports/charts/../../out.png"]
)
def test_the_guest_names_no_path_of_the_host(jar, tmp_path, named):
    there = tmp_path / "there"
    there.mkdir()
    path = named.format(there=there)
    found = value(jar, PICTURE.format(path=path))
    assert found == "exports/charts/out.png"
    assert (tmp_path / found).read_bytes().startswith(b"\x89PNG")
    assert not list(there.iterdir())


def test_a_chart_replaces_no_file_and_follows_no_link(jar, tmp_path):
    charts = tmp_path / "exports/charts"
    charts.mkdir(parents=True)
    (charts / "out.png").write_text("mine")
    (charts / "out-2.png").symlink_to(tmp_path / "elsewhere")
    assert value(jar, PICTURE.format(path="out.png")) == "exports/charts/out-3.png"
    assert (charts / "out.png").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("making", "said"),
    [
        ("open('a.png', 'w').write('#!/bin/sh')", "not a PNG"),
        ("open('a.png', 'wb').truncate(17 * 2**20)", "more than"),
        ("import os; os.mkdir('a.png')", "not a file"),
        ("import os; os.symlink('/etc/passwd', 'a.png')", "not a file"),
        ("import os; os.mkfifo('a.png')", "not a file"),
    ],
)
def test_what_is_no_picture_does_not_become_a_file_of_the_host(jar, tmp_path, making, said):
    with pytest.raises(CodeFailed, match=said):
        jar.execute(f"{making}\nresult = {{'type': 'plot', 'value': 'a.png'}}", {})
    assert not list(tmp_path.glob("exports/charts/*"))


def test_queries_of_f_strings_work(jar, sales):
    from pandasai import Agent

    code = """
least = 22
rows = execute_sql_query(f"SELECT count(*) AS n FROM sales WHERE amount > {least}")
result = {'type': 'number', 'value': rows.n[0]}
"""
    assert value(jar, code, {"execute_sql_query": Agent([sales])._execute_sql_query}) == 2


def test_code_has_limits_and_is_not_root(backend):
    with BelljarSandbox(timeout=20, memory="200m") as sandbox:
        with pytest.raises(CodeOutOfMemory):
            sandbox.execute("x = bytearray(2**30)\nresult = {'type': 'number', 'value': 1}", {})
        code = "import os\nresult = {'type': 'number', 'value': os.getuid()}"
        assert value(sandbox, code) != 0


MANY_KINDS = """
frame = pd.DataFrame({
    'small': np.array([1, 2], dtype='int8'),
    'maybe': pd.array([1, None], dtype='Int64'),
    'when': pd.date_range('2024-03-31', periods=2, tz='Europe/Oslo').as_unit('ns'),
    'kind': pd.Categorical(['b', 'a'], categories=['b', 'a'], ordered=True),
    'month': pd.period_range('2024-01', periods=2, freq='M'),
    'truth': np.array([True, False]),
    'vector': [np.arange(2), np.arange(3)],
}, index=pd.Index(['x', 'y'], name='key', dtype=object))
result = {'type': 'dataframe', 'value': frame}
"""


def test_dtypes_of_a_frame_are_kept(jar):
    frame = value(jar, MANY_KINDS)
    assert [str(kind) for kind in frame.dtypes] == [
        *("int8", "Int64", "datetime64[ns, Europe/Oslo]", "category", "period[M]", "bool"),
        "object",
    ]
    assert frame.index.name == "key"
    assert frame["vector"].iloc[1].tolist() == [0, 1, 2]
    assert frame["kind"].cat.ordered


def test_times_in_a_named_zone_come_back_equal(jar):
    """PandasAI's own pandas is 2, with zones of pytz; that of the sandbox is 3, with zoneinfo."""
    times = pd.date_range("2024-03-30", periods=3, tz="Europe/Berlin")
    frame = pd.DataFrame({"when": times, "cell": list(times)}, index=times)
    code = "result = {'type': 'dataframe', 'value': frame, 'first': frame['when'].iloc[0]}"
    found = jar.execute(code, {"frame": frame})
    pd.testing.assert_frame_equal(found["value"], frame, check_freq=False)
    assert type(found["value"]["when"].dtype.tz) is type(frame["when"].dtype.tz)
    assert type(found["first"].tzinfo) is type(frame["when"].iloc[0].tzinfo)
    merged = found["value"].merge(frame, on="when")
    assert len(merged) == len(frame)


def test_an_empty_frame_keeps_its_columns(jar):
    code = "result = {'type': 'dataframe', 'value': pd.DataFrame({'a': [1], 'b': [2.0]}).head(0)}"
    frame = value(jar, code)
    assert [str(kind) for kind in frame.dtypes] == ["int64", "float64"]
    assert len(frame) == 0


@pytest.mark.parametrize(
    ("kind", "expression", "expected"),
    [
        ("number", "np.bool_(True)", True),
        ("number", "np.int32(5)", 5),
        ("number", "np.float32(0.5)", 0.5),
        ("number", "np.array(7).max()", 7),
        ("number", "__import__('decimal').Decimal('2.50')", 2.5),
        ("string", "np.str_('x')", "x"),
    ],
)
def test_values_of_numpy_are_answers(jar, kind, expression, expected):
    found = value(jar, f"result = {{'type': {kind!r}, 'value': {expression}}}")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "expression",
    ["np.array([[1, 2], [3, 4]])", "pd.Series([1, 3], name='a')", "[{'a': 1}, {'a': 3}]"],
)
def test_what_is_like_a_frame_is_an_answer(jar, expression):
    frame = value(jar, f"result = {{'type': 'dataframe', 'value': {expression}}}")
    assert isinstance(frame, pd.DataFrame)
    assert frame.iloc[:, 0].tolist() == [1, 3]


def test_frames_of_a_query_arrive_with_their_dtypes(jar):
    frame = pd.DataFrame(
        {
            "when": pd.date_range("2024", periods=2, tz="UTC"),
            "code": ["007", "042"],
            "part": np.array([0.1, np.nan]),
            "flag": [True, False],
        }
    )
    code = "rows = execute_sql_query('SELECT 1')\nresult = {'type': 'dataframe', 'value': rows}"
    found = value(jar, code, {"execute_sql_query": lambda query: frame})
    pd.testing.assert_frame_equal(found, frame)


def test_a_figure_itself_is_a_plot_too(jar, tmp_path):
    code = "figure, axes = plt.subplots()\nresult = {'type': 'plot', 'value': axes}"
    assert (tmp_path / value(jar, code)).read_bytes().startswith(b"\x89PNG")
    shown = "plt.plot([1])\nresult = {'type': 'plot', 'value': 'never_saved.png'}"
    assert value(jar, shown) == "exports/charts/never_saved.png"


def test_stop_does_not_wait_for_the_code_to_agree(backend):
    sandbox = DockerSandbox()
    code = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '1000'], start_new_session=True)
result = {'type': 'number', 'value': 1}
"""
    sandbox.execute(code, {})
    sandbox.stop()
    assert sandbox._container is None
    sandbox.stop()  # twice is fine
    assert value(sandbox, "result = {'type': 'number', 'value': 2}") == 2, "it starts again"
    sandbox.stop()


def test_a_sandbox_that_is_dropped_is_ended_without_a_word(backend, monkeypatch):
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    sandbox = DockerSandbox()
    sandbox.execute("result = {'type': 'number', 'value': 1}", {})
    inner = weakref.ref(sandbox._container._sandbox)
    del sandbox
    gc.collect()
    with pytest.raises(TypeError):
        DockerSandbox(no_such_option=1)
    DockerSandbox.__new__(DockerSandbox).__del__()
    gc.collect()
    assert not complaints
    left = inner()
    assert left is None or left._lifecycle.ended or wait_for_end(left)


def wait_for_end(sandbox):
    import census

    census.wait_until(lambda: sandbox._session is None, 60, "the end of the sandbox")
    return True
