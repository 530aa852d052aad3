"""The guest's program, as a Python of this host compiles it, is kept in the cache."""

from __future__ import annotations

import importlib.util
import marshal
import subprocess
import sys
import types

import pytest

from belljar.backends import bundle

MAGIC = importlib.util.MAGIC_NUMBER


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path))
    return tmp_path / "bundles"


def refuse(*args: object, **options: object) -> None:
    raise OSError("it is not run")


def test_another_python_compiles_every_module_once(cache, monkeypatch):
    made = bundle.compile_with(sys.executable)
    assert made.startswith(MAGIC)
    modules = marshal.loads(made[len(MAGIC) :])
    assert modules.keys() == bundle.sources().keys()
    code = modules["_belljar.guest.init"]
    assert isinstance(code, types.CodeType)
    assert code.co_filename == "<belljar>/_belljar/guest/init.py"
    monkeypatch.setattr(subprocess, "run", refuse)
    assert bundle.compile_with(sys.executable) == made


def test_what_was_compiled_of_other_sources_is_replaced(cache, monkeypatch):
    made = bundle.compile_with(sys.executable)
    monkeypatch.setattr(bundle, "sources", lambda: {"_belljar": None, "_belljar.a": "a = 1"})
    other = bundle.compile_with(sys.executable)
    assert marshal.loads(other[len(MAGIC) :]).keys() == {"_belljar", "_belljar.a"}
    assert made != other
    assert len(list(cache.iterdir())) == 1


def test_what_our_own_python_has_compiled_is_kept_until_a_file_changes(cache, monkeypatch):
    compiled = bundle._compiled.__wrapped__
    made = compiled()
    assert marshal.loads(made).keys() == bundle.sources().keys()
    monkeypatch.setattr(bundle, "_compile", lambda: b"compiled anew")
    assert compiled() == made
    modules = {**bundle._modules(), "_belljar.more": "guest/init.py"}
    monkeypatch.setattr(bundle, "_modules", lambda: modules)
    assert compiled() == b"compiled anew"


def test_what_another_user_may_have_written_is_not_used(cache):
    made = bundle.compile_with(sys.executable)
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[: -len(made)] + b"something else")
    assert bundle.compile_with(sys.executable) == b"something else"
    kept.chmod(0o666)
    assert bundle.compile_with(sys.executable) == made


def test_without_a_cache_or_a_compiler_the_sources_are_sent(tmp_path, monkeypatch):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    monkeypatch.setenv("BELLJAR_CACHE", str(occupied))
    assert bundle.compile_with(sys.executable).startswith(MAGIC)
    assert bundle.compile_with("/nowhere/python") == bundle.compile_with("/bin/false") == b""
    sent = bundle.make({}, other=b"")
    assert b"from .streams import SourceCache" in sent
    assert b"from .streams import SourceCache" not in bundle.make({}, other=MAGIC + b"code")
