"""PandasAI's adapter where PandasAI is not installed; tests/compat/pandasai has the rest, for
`scripts/test --only pandasai`."""

import importlib
from importlib import metadata

import pytest

from belljar import InvalidOption
from belljar.compat import sql


def has(package):
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(has("pandasai"), reason="PandasAI is installed here")
def test_without_pandasai_the_import_says_what_to_install():
    with pytest.raises(ModuleNotFoundError, match="pip install 'pandasai") as raised:
        importlib.import_module("belljar.compat.pandasai")
    assert raised.value.name == "pandasai"


@pytest.mark.skipif(has("sqlglot"), reason="sqlglot is installed here")
def test_without_its_parser_the_guard_refuses_to_guess():
    with pytest.raises(InvalidOption, match="sqlglot"):
        sql.check("SELECT 1")
