"""`belljar` as a command, in a directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.environment import store
from command_line import Cli


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def belljar(tmp_path: Path, cache: Path, backend: str) -> Cli:
    return Cli(tmp_path, cache)


@pytest.fixture
def alone(tmp_path: Path, cache: Path) -> Cli:
    """For what starts no guest."""
    return Cli(tmp_path, cache)


@pytest.fixture
def data_belljar(tmp_path: Path, backend: str) -> Cli:
    """With the cache that all tests share: the environment "data" is built once only."""
    return Cli(tmp_path, store.cache_root())
