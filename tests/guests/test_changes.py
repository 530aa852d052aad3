"""The census around a cell: what was created, changed, removed; cheap, whatever the tree is."""

import os
import time

import pytest

from belljar.guest import file_requests
from belljar.protocol import removal


def differ(root, act):
    before = file_requests.take_census(str(root))
    act()
    return file_requests.compare_census(before, file_requests.take_census(str(root)))


def test_nothing_happened(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("x")
    found = differ(tmp_path, lambda: (tmp_path / "d/f").read_text())
    assert found == {"created": [], "changed": [], "removed": []}


def test_files_directories_and_links_come_and_go(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/f").write_text("x")

    def act():
        (tmp_path / "old/f").unlink()
        (tmp_path / "old").rmdir()
        (tmp_path / "new").mkdir()
        (tmp_path / "new/f").write_text("x")
        (tmp_path / "link").symlink_to("nowhere")
        os.mkfifo(tmp_path / "pipe")

    assert differ(tmp_path, act) == {
        "created": ["link", "new", "new/f", "pipe"],
        "changed": [],
        "removed": ["old", "old/f"],
    }


def test_a_change_of_content_mode_or_kind_is_a_change(tmp_path):
    for name in ("content", "mode", "kind", "replaced", "kept"):
        (tmp_path / name).write_text("same")
    (tmp_path / "kept directory").mkdir()

    def act():
        (tmp_path / "content").write_text("SAME")
        (tmp_path / "mode").chmod(0o755)
        (tmp_path / "kind").unlink()
        (tmp_path / "kind").mkdir()
        (tmp_path / "other").write_text("same")
        (tmp_path / "other").rename(tmp_path / "replaced")
        (tmp_path / "kept directory/f").write_text("")

    found = differ(tmp_path, act)
    assert found["changed"] == ["content", "kind", "mode", "replaced"]
    assert found["created"] == ["kept directory/f"]


def test_a_rename_is_a_removal_and_a_creation(tmp_path):
    (tmp_path / "a").write_text("x")
    found = differ(tmp_path, lambda: (tmp_path / "a").rename(tmp_path / "b"))
    assert (found["created"], found["removed"]) == (["b"], ["a"])


def test_links_are_not_followed(tmp_path):
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "out").symlink_to("/etc")
    assert set(file_requests.take_census(str(tmp_path))) == {"loop", "out"}


def test_names_that_are_no_text_are_counted(tmp_path):
    for name in (b"\xff", b"new\nline", "‮rtl".encode(), b"x" * 255):
        with open(os.path.join(os.fsencode(tmp_path), name), "w"):
            pass
    assert len(file_requests.take_census(str(tmp_path))) == 4


def test_too_many_files_are_not_counted(tmp_path):
    for number in range(101):
        (tmp_path / str(number)).touch()
    assert file_requests.take_census(str(tmp_path), most=100) is None
    assert len(file_requests.take_census(str(tmp_path), most=101, seconds=10)) == 101


def test_a_missing_directory_has_no_census(tmp_path):
    assert file_requests.take_census(str(tmp_path / "missing")) is None


@pytest.mark.user_only
def test_a_directory_that_cannot_be_read_has_no_content(tmp_path):
    (tmp_path / "d").mkdir(mode=0)
    assert set(file_requests.take_census(str(tmp_path))) == {"d"}


def test_three_thousand_levels_end_the_census_and_cost_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(3000):
        os.mkdir("d" * 20)
        os.chdir("d" * 20)
    os.chdir(tmp_path)
    descriptors = len(os.listdir("/proc/self/fd"))
    before = time.process_time()
    assert file_requests.take_census(str(tmp_path)) is None
    assert time.process_time() - before < 1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    removal.remove(str(tmp_path / ("d" * 20)), seconds=60)  # pytest's own removal would recurse


def test_its_time_is_bounded(tmp_path):
    for number in range(200):
        (tmp_path / str(number)).touch()
    assert file_requests.take_census(str(tmp_path), seconds=0) is None


def test_an_empty_directory_costs_microseconds(tmp_path):
    best = min(_timed(lambda: file_requests.take_census(str(tmp_path))) for _ in range(200))
    assert best < 100e-6


def _timed(act):
    before = time.perf_counter()
    act()
    return time.perf_counter() - before


# --- removal ---------------------------------------------------------------------------------


def test_removal_does_not_follow_links_and_takes_what_looks_like_its_own(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "a/.belljar-removing-1/deep").mkdir(parents=True)
    (tree / ".belljar-removing-1/x").mkdir(parents=True)
    (tree / "a/link").symlink_to(outside)
    os.mkfifo(tree / "a/pipe")
    removal.remove(str(tree))
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_removal_gives_up_on_what_is_filled_all_the_time(tmp_path):
    (tmp_path / "tree/d").mkdir(parents=True)
    with pytest.raises(OSError, match="filled"):
        removal.remove(str(tmp_path / "tree"), seconds=0)
