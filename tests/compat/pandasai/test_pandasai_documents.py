"""The code of the two documents about PandasAI, as they write it; only imports name Belljar."""

import base64
import importlib
import inspect
import io
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pandasai as pai
import pytest
from pandasai.sandbox import Sandbox
from PIL import Image

import setting
from belljar import InvalidOption
from belljar.compat.pandasai import CustomEncoder, DockerSandbox, ResponseSerializer
from project import DOCS

CODE = """
rows = execute_sql_query('SELECT name, salary FROM salaries JOIN employees USING (id)')
best = rows.sort_values('salary').iloc[-1]
result = {'type': 'string', 'value': f"{best['name']} earns {best['salary']}"}
"""


@pytest.fixture
def dataframes():
    return [
        pai.DataFrame({"id": [1, 2], "name": ["Ada", "Bob"]}, _table_name="employees"),
        pai.DataFrame({"id": [1, 2], "salary": [900, 800]}, _table_name="salaries"),
    ]


def test_basic_implementation(backend, answer_with, dataframes):
    answer_with(CODE)

    from pandasai import Agent, SmartDataframe  # noqa: F401  as the document has it

    from belljar.compat.pandasai import DockerSandbox

    # Initialize sandbox
    sandbox = DockerSandbox()

    # Create agent with sandbox
    agent = Agent(dataframes, sandbox=sandbox)

    # Execute queries safely
    result = agent.chat("Analyze the bond data and create a visualization")

    assert result.value == "Ada earns 900"
    sandbox.stop()


def test_the_sandbox_of_the_page_on_privacy_and_security(backend, answer_with, dataframes):
    answer_with(CODE)
    employees_df, salaries_df = dataframes

    from pandasai import Agent

    from belljar.compat.pandasai import DockerSandbox

    # Initialize the sandbox
    sandbox = DockerSandbox()
    sandbox.start()

    # Create an agent with the sandbox
    agent = Agent([employees_df, salaries_df], sandbox=sandbox)

    # Chat with the agent - code will run in the sandbox
    response = agent.chat("Who gets paid the most?")

    # Don't forget to stop the sandbox when you're done
    sandbox.stop()

    assert response.value == "Ada earns 900"


GUIDE = DOCS / "compat" / "pandasai.md"


def test_the_example_of_the_guide(backend, answer_with, capsys):
    blocks = re.findall(r"^```\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    example = next(block for block in blocks if "pai.chat" in block)
    sums = "rows = execute_sql_query('SELECT * FROM sales').groupby('city').amount.sum()\n"
    words = sums + "print('so far')\nresult = {'type': 'string', 'value': rows.idxmax()}"
    plot = "import matplotlib.pyplot as plt\n" + sums + "rows.plot.bar()\nprint('drawn')\n"
    plot += "plt.savefig('x.png')\nresult = {'type': 'plot', 'value': 'x.png'}"
    named = example.replace("pai.DataFrame({", "pai.DataFrame(_table_name='sales', data={")
    named = named.replace("pai.config.set(", "pai.config.update(")  # no log file, which stays open
    namespace = {"llm": answer_with(words, plot)}
    exec(named, namespace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Rome"
    assert lines[1].startswith("charts/temp_chart_")
    assert lines[2] == "drawn"
    assert Path(lines[1]).exists()


def test_configuration_options(backend, tmp_path):
    dockerfile = tmp_path / "Dockerfile"
    if not setting.DOCKER:
        with pytest.raises(InvalidOption, match="needs an engine"):
            DockerSandbox(image_name="custom-pandasai-sandbox", dockerfile_path=dockerfile)
        return
    dockerfile.write_text(f"FROM {data_image()}\nENV WHERE=custom\n")

    name = f"custom-pandasai-sandbox-{os.getpid()}"
    code = "import os, pandas\nresult = {'type': 'string', 'value': os.environ['WHERE']}"
    try:
        # Custom Docker image
        sandbox = DockerSandbox(
            image_name=name,
            dockerfile_path=dockerfile,  # "/path/to/custom/Dockerfile"
        )
        assert sandbox.execute(code, {}) == {"type": "string", "value": "custom"}
        sandbox.stop()
        # The engine has it by that name now, for others and for the next time.
        again = DockerSandbox(image_name=name)
        assert again.execute(code, {}) == {"type": "string", "value": "custom"}
        again.stop()
    finally:
        subprocess.run(["docker", "rmi", name], capture_output=True, timeout=60)


@pytest.mark.docker
def test_an_image_that_the_engine_has_is_used(backend):
    sandbox = DockerSandbox(data_image())
    code = "import pandas\nresult = {'type': 'number', 'value': pandas.Series([1, 2]).sum()}"
    assert sandbox.execute(code, {})["value"] == 3
    sandbox.stop()


def data_image():
    """The image of Belljar's own environment `data`, which exists when this setting runs."""
    command = ["docker", "images", "belljar/data", "--format", "{{.Repository}}:{{.Tag}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return found[0]


def test_class_hierarchy_and_constructor():
    assert issubclass(DockerSandbox, Sandbox)
    parameters = list(inspect.signature(DockerSandbox).parameters.values())
    assert [(one.name, one.default) for one in parameters[:2]] == [
        ("image_name", "pandasai-sandbox"),
        ("dockerfile_path", None),
    ]
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters[2:])


def test_whatever_the_real_class_offers_is_there_with_the_same_signature():
    real = importlib.import_module("pandasai_docker").DockerSandbox
    its_own = {"_build_image", "_image_exists", "_read_start_code"}  # how it does it
    for name, method in inspect.getmembers(real, inspect.isfunction):
        if name in its_own or name in ("__init__", "__del__"):
            continue
        theirs, ours = inspect.signature(method), inspect.signature(getattr(DockerSandbox, name))
        assert [(one.name, one.default) for one in ours.parameters.values()] == [
            (one.name, one.default) for one in theirs.parameters.values()
        ], name


def test_whatever_the_real_serializer_offers_is_there():
    real = importlib.import_module("pandasai_docker.serializer")
    for kind, ours in (
        (real.ResponseSerializer, ResponseSerializer),
        (real.CustomEncoder, CustomEncoder),
    ):
        for name in {name for name in vars(kind) if not name.startswith("__")}:
            theirs = inspect.signature(getattr(kind, name)).parameters
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(theirs)


def test_result_serialization(tmp_path):
    frame = pd.DataFrame({"a": [1, 2]})
    text = ResponseSerializer.serialize({"type": "dataframe", "value": frame})
    assert json.loads(text)["value"] == {"columns": ["a"], "data": [[1], [2]], "index": [0, 1]}
    pd.testing.assert_frame_equal(ResponseSerializer.deserialize(text)["value"], frame)

    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    plot = {"type": "plot", "value": str(tmp_path / "a.png")}
    text = ResponseSerializer.serialize(plot)
    assert plot["value"] == str(tmp_path / "a.png"), "the caller's dictionary is left alone"
    back = ResponseSerializer.deserialize(text, str(tmp_path / "b.png"))
    assert back == {"type": "plot", "value": str(tmp_path / "b.png")}
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()
    assert base64.b64decode(ResponseSerializer.deserialize(text)["value"]).startswith(b"\x89PNG")


def test_a_plot_that_is_no_picture_is_not_written(tmp_path):
    text = json.dumps({"type": "plot", "value": base64.b64encode(b"#!/bin/sh").decode()})
    with pytest.raises(ValueError, match="not a PNG"):
        ResponseSerializer.deserialize(text, str(tmp_path / "b.png"))
    assert not (tmp_path / "b.png").exists()


def test_custom_encoder_writes_what_frames_hold():
    values = [np.int64(1), np.float32(0.5), np.bool_(True), np.arange(2), pd.Timestamp("2024")]
    values += [pd.Period("2024-03"), pd.NaT, pd.NA, pd.Timedelta(1, "h"), pd.DataFrame({"a": [1]})]
    values += [pd.Series([1], name="s"), np.datetime64("2024-01-01")]
    buffer = io.StringIO()
    json.dump(values, buffer, cls=CustomEncoder)
    assert json.loads(buffer.getvalue()) == [
        *(1, 0.5, True, [0, 1], "2024-01-01T00:00:00", "2024-03", None, None, "0 days 01:00:00"),
        {"columns": ["a"], "data": [[1]], "index": [0]},
        {"columns": ["s"], "data": [[1]], "index": [0]},
        "2024-01-01",
    ]
    with pytest.raises(TypeError):
        json.dumps({1, 2}, cls=CustomEncoder)
