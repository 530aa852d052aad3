"""These tests need PandasAI, which has a virtual environment of its own: `scripts/test --only
pandasai` makes it and sets BELLJAR_TEST_PANDASAI. Without that they are not collected; with it,
nothing here is skipped for a lack of PandasAI."""

import os
import warnings

import pytest

ASKED = bool(os.environ.get("BELLJAR_TEST_PANDASAI"))
collect_ignore_glob = [] if ASKED else ["test_*.py"]
if ASKED:
    os.environ["SCARF_NO_ANALYTICS"] = "true"  # it calls home when it is imported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those that compiling its source gives
        import pandasai as pai
        from pandasai.helpers.filemanager import DefaultFileManager
        from pandasai.llm.base import LLM


def pytest_itemcollected(item):
    # Of the old libraries that PandasAI is bound to: matplotlib 3.7, numpy 1, scipy 1.10.
    item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


def scripted(*codes):
    """A model that answers with prepared code, one after the other, and keeps its prompts."""

    class Scripted(LLM):
        type = "scripted"

        def __init__(self):
            super().__init__()
            self.left = list(codes)
            self.prompts = []

        def call(self, instruction, context=None):
            self.prompts.append(instruction.to_string())
            return f"```python\n{self.left.pop(0)}\n```"

    return Scripted()


@pytest.fixture(autouse=True)
def in_a_project_of_its_own(tmp_path, monkeypatch):
    # PandasAI makes exports/charts in the project that it finds from here upwards, and its file
    # manager the datasets in the one in which it was made.
    (tmp_path / "requirements.txt").touch()
    monkeypatch.chdir(tmp_path)
    pai.config.set({"save_logs": False, "file_manager": DefaultFileManager()})


@pytest.fixture
def answer_with(in_a_project_of_its_own):
    """Let PandasAI's model answer with these codes; gives the model."""

    def use(*codes, max_retries=3):
        llm = scripted(*codes)
        pai.config.update({"llm": llm, "max_retries": max_retries})
        return llm

    return use


@pytest.fixture(scope="module")
def jar(backend):
    """One sandbox for all tests of a module: executions do not see each other."""
    from belljar.compat.pandasai import BelljarSandbox

    with BelljarSandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sales():
    data = {"city": ["Oslo", "Rome", "Rome"], "amount": [30, 25, 20]}
    return pai.DataFrame(data, _table_name="sales")


@pytest.fixture
def people():
    data = {"city": ["Oslo", "Rome"], "name": ["Ada", "Bob"]}
    return pai.DataFrame(data, _table_name="people")
