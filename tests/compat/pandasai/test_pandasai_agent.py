"""The real PandasAI, with a scripted model, gets its answers out of a sandbox."""

import pandas as pd
import pandasai as pai
import pytest
from pandasai import Agent
from pandasai.core.response import (
    ChartResponse,
    DataFrameResponse,
    ErrorResponse,
    NumberResponse,
    StringResponse,
)
from PIL import Image

from belljar.compat.pandasai import BelljarSandbox, CodeTimedOut

TOTALS = """
totals = execute_sql_query('SELECT city, SUM(amount) AS total FROM sales GROUP BY city')
totals = totals.sort_values('total', ascending=False, ignore_index=True)
"""
NUMBER = TOTALS + "result = {'type': 'number', 'value': totals['total'].iloc[0]}"
STRING = TOTALS + "result = {'type': 'string', 'value': f'most in {totals.city[0]}'}"
FRAME = TOTALS + "result = {'type': 'dataframe', 'value': totals}"
PLOT = (
    "import matplotlib.pyplot as plt\n"
    + TOTALS
    + """
plt.bar(totals['city'], totals['total'])
plt.savefig('temp_chart.png')
plt.show()
result = {'type': 'plot', 'value': 'temp_chart.png'}
"""
)
BROKEN = TOTALS + "totals['nothing']"


def test_an_agent_gets_a_number(answer_with, jar, sales):
    answer_with(NUMBER)
    answer = Agent([sales], sandbox=jar).chat("How much was sold in the best city?")
    assert isinstance(answer, NumberResponse)
    assert answer.value == 45


def test_chat_of_a_frame_gets_a_string(answer_with, jar, sales):
    answer_with(STRING)
    answer = sales.chat("Where was most sold?", sandbox=jar)
    assert isinstance(answer, StringResponse)
    assert answer.value == "most in Rome"


def test_chat_of_the_module_gets_a_frame(answer_with, jar, sales):
    answer_with(FRAME)
    answer = pai.chat("How much was sold?", sales, sandbox=jar)
    assert isinstance(answer, DataFrameResponse)
    assert answer.value.to_dict("list") == {"city": ["Rome", "Oslo"], "total": [45.0, 30.0]}


def test_a_plot_is_a_picture_on_the_host_where_pandasai_has_its_charts(
    answer_with, jar, sales, tmp_path
):
    answer_with(PLOT)
    answer = Agent([sales], sandbox=jar).chat("Draw it.")
    assert isinstance(answer, ChartResponse)
    assert answer.value.startswith("exports/charts/temp_chart_")
    with Image.open(tmp_path / answer.value) as picture:
        assert picture.format == "PNG"
    answer.save("copy.png")
    assert len(answer.get_base64_image()) > 1000


def test_a_plot_goes_to_the_directory_that_the_caller_chose(answer_with, backend, sales, tmp_path):
    answer_with(PLOT)
    with BelljarSandbox(charts=tmp_path / "mine") as sandbox:
        answer = Agent([sales], sandbox=sandbox).chat("Draw it.")
    assert [answer.value] == [str(path) for path in (tmp_path / "mine").iterdir()]
    assert not list(tmp_path.glob("exports/charts/*"))


def test_several_frames_are_joined(answer_with, jar, sales, people):
    answer_with(
        "joined = execute_sql_query('SELECT name, amount FROM sales JOIN people USING (city)')\n"
        "result = {'type': 'number', 'value': joined[joined.name == 'Bob'].amount.sum()}"
    )
    assert Agent([sales, people], sandbox=jar).chat("How much did Bob sell?").value == 45


def test_plain_pandas_frames_will_do(answer_with, jar):
    frame = pd.DataFrame({"a": [1, 2]})
    agent = Agent(frame, sandbox=jar)
    table = agent._state.dfs[0].schema.name
    answer_with(
        f"result = {{'type': 'number', 'value': "
        f"execute_sql_query('SELECT max(a) AS m FROM {table}').m[0]}}"
    )
    agent = Agent(frame, sandbox=jar)
    assert agent.chat("The largest?").value == 2


def test_queries_may_be_made_while_the_code_runs(answer_with, jar, sales):
    answer_with("""
found = {}
for city in ['Oslo', 'Rome']:
    rows = execute_sql_query(f"SELECT amount FROM sales WHERE city = '{city}'")
    found[city] = int(rows['amount'].sum())
like = execute_sql_query("SELECT count(*) AS n FROM sales WHERE city NOT LIKE '%some%'")
result = {'type': 'string', 'value': f"{found} {like.n[0]}"}
""")
    answer = Agent([sales], sandbox=jar).chat("How much in each?")
    assert answer.value == "{'Oslo': 30, 'Rome': 45} 3"


def test_prints_are_kept_and_break_nothing(answer_with, jar, sales):
    answer_with('print(\'{"type": "number", "value": 1}\')\n' + NUMBER + "\nprint('done')")
    assert Agent([sales], sandbox=jar).chat("How much?").value == 45
    assert jar.last_execution.stdout == '{"type": "number", "value": 1}\ndone\n'


def test_a_follow_up_has_its_own_variables(answer_with, jar, sales):
    answer_with(
        NUMBER, TOTALS + "result = {'type': 'string', 'value': str('leftover' in globals())}"
    )
    agent = Agent([sales], sandbox=jar)
    agent.chat("How much?")
    jar.execute("leftover = 1\nresult = {'type': 'number', 'value': 1}", {})
    assert agent.follow_up("And now?").value == "False"


@pytest.fixture
def skills():
    yield
    pai.skills.clear_skills()


def test_skills_run_on_the_host_when_the_code_calls_them(answer_with, jar, sales, skills):
    called = []

    @pai.skill
    def with_tax(frame: pd.DataFrame, rate: float = 0.2) -> pd.DataFrame:
        """Adds a column with the tax."""
        called.append((type(frame), rate))
        return frame.assign(tax=frame["total"] * rate)

    @pai.skill
    def never() -> None:
        """Is not called."""
        called.append("never")

    llm = answer_with(
        TOTALS + "taxed = with_tax(totals, rate=0.5)\n"
        "result = {'type': 'number', 'value': taxed.tax.sum()}"
    )
    assert Agent([sales], sandbox=jar).chat("How much tax?").value == 37.5
    assert called == [(pd.DataFrame, 0.5)]
    assert "def with_tax" in llm.prompts[0]
    assert [call.name for call in jar.last_execution.calls] == ["execute_sql_query", "with_tax"]


def test_an_error_of_the_code_reaches_the_loop_that_asks_the_model_again(answer_with, jar, sales):
    llm = answer_with(BROKEN, NUMBER)
    assert Agent([sales], sandbox=jar).chat("How much?").value == 45
    assert len(llm.prompts) == 2
    assert "KeyError: 'nothing'" in llm.prompts[1]
    assert "totals['nothing']" in llm.prompts[1]


def test_an_error_of_a_query_reaches_the_loop(answer_with, jar, sales):
    wrong = (
        "column = 'price'\nrows = execute_sql_query(f'SELECT {column} FROM sales')\n"
        "result = {'type': 'dataframe', 'value': rows}"
    )
    llm = answer_with(wrong, NUMBER)
    assert Agent([sales], sandbox=jar).chat("How much?").value == 45
    assert '"price" not found' in llm.prompts[1]


def test_a_refused_query_reaches_the_loop_and_says_why(answer_with, jar, sales):
    sly = "path = '/etc/passwd'\nexecute_sql_query(f\"SELECT * FROM read_csv('{path}')\")"
    llm = answer_with(sly, NUMBER)
    assert Agent([sales], sandbox=jar).chat("How much?").value == 45
    assert "MaliciousQueryError: the query uses the function read_csv" in llm.prompts[1]
    assert "root:" not in llm.prompts[1]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (BROKEN, "KeyError"),
        (TOTALS, "No result was returned"),
        (TOTALS + "result = 5", "not a dictionary"),
        (TOTALS + "result = {'type': 'number', 'value': 'five'}", "'number'"),
        (TOTALS + "result = {'type': 'plot', 'value': 'none.png'}", "no such file"),
        (TOTALS + "result = {'type': 'dataframe', 'value': {1, 2}}", "set"),
        (TOTALS + "import os; os._exit(3)", "exit code 3"),
        (TOTALS + "import sys; sys.exit()", "exit code"),
    ],
)
def test_what_is_never_put_right_is_an_error_response(answer_with, jar, sales, code, said):
    llm = answer_with(code, code, max_retries=1)
    answer = Agent([sales], sandbox=jar).chat("How much?")
    assert isinstance(answer, ErrorResponse)
    assert said in answer.error
    assert said in llm.prompts[1]


def test_code_that_takes_too_long_is_ended_and_the_model_is_told(answer_with, backend, sales):
    llm = answer_with(TOTALS + "print('so far')\nwhile True: pass", NUMBER)
    with BelljarSandbox(timeout=5) as sandbox:
        assert Agent([sales], sandbox=sandbox).chat("How much?").value == 45
        assert "ran out of time" in llm.prompts[1]
        with pytest.raises(CodeTimedOut) as raised:
            sandbox.execute("print('so far')\nwhile True: pass", {})
    assert isinstance(raised.value, (TimeoutError, RuntimeError))
    assert raised.value.execution.stdout == "so far\n"


def test_datasets_that_are_kept_on_disk_are_queried(answer_with, jar, sales, people):
    pai.create("shop/sales", df=sales)
    pai.create("shop/people", df=people)
    view = pai.create(
        "shop/sold-by",
        view=True,
        columns=[
            {"name": "sales.amount"},
            {"name": "sales.city"},
            {"name": "people.name"},
            {"name": "people.city"},
        ],
        relations=[{"from": "sales.city", "to": "people.city"}],
    )
    answer_with(
        "rows = execute_sql_query('SELECT people_name, sum(sales_amount) AS n FROM sold_by "
        "GROUP BY people_name ORDER BY n')\nresult = {'type': 'dataframe', 'value': rows}"
    )
    answer = Agent([view], sandbox=jar).chat("Who sold how much?")
    assert answer.value.to_dict("list") == {"people_name": ["Ada", "Bob"], "n": [30.0, 45.0]}
    loaded = pai.load("shop/sales")
    answer_with(NUMBER)
    assert Agent([loaded], sandbox=jar).chat("How much?").value == 45


def test_a_dataset_opens_no_other_file(answer_with, jar, sales, people):
    pai.create("shop/sales", df=sales)
    pai.create("shop/people", df=people)
    view = pai.create("shop/sold", view=True, columns=[{"name": "sales.amount"}])
    code = "path = 'datasets/shop/people/data.parquet'\n"
    code += "execute_sql_query(f\"SELECT * FROM read_parquet('{path}')\")"
    llm = answer_with(code, code, max_retries=1)
    assert isinstance(Agent([view], sandbox=jar).chat("Who?"), ErrorResponse)
    assert "read_parquet" in llm.prompts[1]
