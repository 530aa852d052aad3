"""Trees that somebody hostile has made, and may still be changing, are removed; nothing else is."""

import os
import stat

import pytest

from belljar.protocol import removal


def test_closed_directories_are_opened_and_removed(tmp_path):
    deep = tmp_path / "tree" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    for directory in (deep, deep.parent, tmp_path / "tree"):
        directory.chmod(0)
    removal.remove(str(tmp_path / "tree"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "stat"])
def test_a_link_in_the_place_of_a_directory_changes_nobodys_mode(tmp_path, monkeypatch, call):
    """Put there in the moment after it was looked at."""
    victim, tree = tmp_path / "victim", tmp_path / "tree"
    victim.write_text("x")
    victim.chmod(0o644)
    (tree / "inner").mkdir(parents=True)
    (tree / "inner").chmod(0)
    real = getattr(os, call)

    def then_exchange(path, *args, **options):
        done = real(path, *args, **options)
        if path == "inner":
            monkeypatch.undo()
            os.rename(tree / "inner", tree / "moved")
            os.symlink(victim, tree / "inner")
        return done

    monkeypatch.setattr(os, call, then_exchange)
    parent = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        removal._make_accessible("inner", parent)
    finally:
        os.close(parent)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644


def test_a_link_at_the_top_is_removed_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    removal.remove(str(tmp_path / "link"))
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
