"""Watching a directory: what happens to its files is said, once, and an idle watch is harmless."""

import json
import threading

import anyio
import pytest

from belljar import FileError, FileEvent, Limits
from belljar.errors import ProtocolError
from belljar.files import watch
from belljar.files.watch import Entry, compare_entries, parse_entries
from belljar.protocol import messages

CONTRACT = pytest.mark.contract("native", "docker", "gvisor")


# --- two lists ---------------------------------------------------------------------------------


def file(inode, **changed):
    return Entry("file", 1, 1, 1, inode, 0o100644)._replace(**changed)


def directory(inode, **changed):
    return Entry("dir", 1, 1, 1, inode, 0o40755)._replace(**changed)


def said(before, after):
    events = compare_entries("/w", before, after)
    return [(each.type, each.name, each.old_path) for each in events]


def test_the_same_list_is_no_event():
    tree = {"d": directory(1), "d/f": file(2)}
    assert said(tree, dict(tree)) == []


def test_what_came_and_went_is_said_directories_around_what_they_contain():
    tree = {"d/f": file(2), "d": directory(1)}
    assert said({}, tree) == [("created", "d", None), ("created", "d/f", None)]
    assert said(tree, {}) == [("removed", "d/f", None), ("removed", "d", None)]


def test_content_and_attributes_are_told_apart():
    before = {"f": file(1)}
    assert said(before, {"f": file(1, size=2, mtime=2, ctime=2)}) == [("written", "f", None)]
    assert said(before, {"f": file(1, mtime=2, ctime=2)}) == [("written", "f", None)]
    assert said(before, {"f": file(1, mode=0o100600, ctime=2)}) == [("chmod", "f", None)]
    assert said(before, {"f": file(1, ctime=2)}) == [("chmod", "f", None)]
    assert said(before, {"f": file(2)}) == [("written", "f", None)]  # replaced by another one


def test_a_directory_that_gets_entries_has_no_event_of_its_own():
    before = {"d": directory(1)}
    after = {"d": directory(1, size=2, mtime=2, ctime=2), "d/f": file(2)}
    assert said(before, after) == [("created", "d/f", None)]
    assert said(before, {"d": directory(1, mode=0o40700, ctime=2)}) == [("chmod", "d", None)]


def test_the_same_inode_under_another_name_was_renamed():
    assert said({"a": file(1)}, {"b": file(1, ctime=2)}) == [("renamed", "b", "/w/a")]
    assert said({"a": file(1), "b": file(2)}, {"b": file(1)}) == [("renamed", "b", "/w/a")]
    swapped = said({"a": file(1), "b": file(2)}, {"a": file(2), "b": file(1)})
    assert swapped == [("renamed", "a", "/w/b"), ("renamed", "b", "/w/a")]


def test_a_renamed_directory_is_one_event():
    before = {"a": directory(1), "a/f": file(2), "a/g": file(3)}
    after = {"b": directory(1, ctime=2), "b/f": file(2), "b/h": file(3, ctime=2)}
    assert said(before, after) == [("renamed", "b", "/w/a"), ("renamed", "b/h", "/w/a/g")]


def test_an_inode_that_is_used_again_is_not_a_renamed_file():
    after = {"b": file(1, mtime=9, ctime=9)}
    assert said({"a": file(1)}, after) == [("removed", "a", None), ("created", "b", None)]


def test_a_second_name_of_a_file_is_created():
    after = {"a": file(1, ctime=2), "b": file(1, ctime=2)}
    assert said({"a": file(1)}, after) == [("chmod", "a", None), ("created", "b", None)]
    both = {"b": file(1), "c": file(1)}
    assert sorted(type for type, *_ in said({"a": file(1)}, both)) == ["created", "renamed"]


def test_a_file_that_becomes_a_directory_is_removed_and_created():
    found = said({"a": file(1)}, {"a": directory(2)})
    assert found == [("removed", "a", None), ("created", "a", None)]


@pytest.mark.parametrize(
    "page",
    [
        7,
        {"a": 1},
        [["a"]],
        [["a", ["file", 1, 1, 1, 1]]],
        [["a", ["socket", 1, 1, 1, 1, 1]]],
        [["a", ["file", 1, 1, 1, 1, 1.5]]],
        [["a", ["file", 1, 1, 1, 1, 2**70]]],
        [["../a", ["file", 1, 1, 1, 1, 1]]],
        [["/a", ["file", 1, 1, 1, 1, 1]]],
        [[3, ["file", 1, 1, 1, 1, 1]]],
        [["a", ["file", 1, 1, 1, 1, 1]]] * (messages.MAX_WATCHED + 1),
    ],
    ids=lambda page: str(page)[:40],
)
def test_a_list_that_is_none_is_refused(page):
    with pytest.raises(ProtocolError):
        parse_entries(json.dumps(page).encode())


def test_a_list_too_long_or_too_deep_is_refused():
    for data in (b"[" * 100_000, b" " * (messages.MAX_PART + 1), b"\xff"):
        with pytest.raises(ProtocolError):
            parse_entries(data)


# --- guests ------------------------------------------------------------------------------------


def take(events, count):
    return [next(events) for _ in range(count)]


@CONTRACT
def test_what_the_code_does_to_files_is_seen(sandbox):
    sandbox.run_code("import os; os.mkdir('d'); open('d/old', 'w').close()")
    with sandbox.files.watch() as events:
        assert sandbox.run_code("open('new', 'w').write('1')").ok
        assert next(events) == FileEvent(
            type="created", path="/workspace/new", name="new", is_dir=False
        )
        sandbox.run_code("open('new', 'w').write('12')")
        assert next(events).type == "written"
        sandbox.run_code("os.chmod('new', 0o600)")
        assert next(events).type == "chmod"
        sandbox.run_code("os.rename('new', 'newer')")
        assert [(each.type, each.old_path) for each in take(events, 1)] == [
            ("renamed", "/workspace/new")
        ]
        sandbox.run_code("open('d/inner', 'w').close(); os.remove('newer')")
        assert [(each.type, each.name) for each in take(events, 1)] == [("removed", "newer")]


@CONTRACT
def test_a_recursive_watch_sees_what_is_below(sandbox):
    sandbox.run_code("import os; os.makedirs('top/a/b')")
    with sandbox.files.watch("top", recursive=True) as events:
        sandbox.run_code("open('top/a/b/f', 'w').close()")
        event = next(events)
        assert (event.type, event.name) == ("created", "a/b/f")
        assert event.path == "/workspace/top/a/b/f"
        sandbox.run_code("os.rename('top/a', 'top/c')")
        event = next(events)
        assert (event.type, event.name, event.is_dir) == ("renamed", "c", True)


def test_changes_count_from_the_call_on(sandbox):
    events = sandbox.files.watch()
    sandbox.files.write("f", "x")
    assert next(events).name == "f"


def test_two_thousand_entries_can_be_watched_and_no_more(sandbox):
    sandbox.run_code("import os; os.mkdir('d')\nfor i in range(1999): open(f'd/{i}', 'w').close()")
    events = sandbox.files.watch(".", recursive=True)
    sandbox.run_code("open('d/one-more', 'w').close()")
    with pytest.raises(FileError, match="2000 entries"):
        next(events)
    with pytest.raises(FileError, match="2000 entries"):
        sandbox.files.watch("d/..", recursive=True)
    sandbox.run_code("os.remove('d/one-more')")
    sandbox.files.watch(".", recursive=False)


def test_a_directory_that_is_gone_is_an_error(sandbox):
    sandbox.files.make_dir("d")
    events = sandbox.files.watch("d")
    sandbox.files.remove("d")
    with pytest.raises(FileNotFoundError):
        next(events)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_the_end_of_the_sandbox_ends_its_watches(make_sandbox, end):
    sandbox = make_sandbox()
    events = sandbox.files.watch()
    getattr(sandbox, end)()
    assert list(events) == []


def test_a_closed_watch_ends_also_for_a_thread_that_waits(sandbox):
    events, seen = sandbox.files.watch(), []
    thread = threading.Thread(target=lambda: seen.extend(events))
    thread.start()
    events.close()
    thread.join(60)
    assert not thread.is_alive()
    assert seen == []
    assert list(events) == []
    events.close()


def test_a_watch_neither_keeps_an_idle_sandbox_nor_starts_another_guest(make_sandbox):
    sandbox = make_sandbox(limits=Limits(idle=1))
    assert list(sandbox.files.watch()) == []  # until the sandbox has ended, being idle
    assert not sandbox.alive


def test_cells_and_files_go_on_beside_watches(sandbox):
    watches = [sandbox.files.watch(recursive=True) for _ in range(3)]
    sandbox.files.write("f", "x")
    for events in watches:
        assert sandbox.run_code("1 + 1").value == 2
        assert next(events).name == "f"


def test_both_event_loops_iterate(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox, await sandbox.files.watch() as events:
            await sandbox.files.write("f", "x")
            async for event in events:
                assert event.name == "f"
                break
            with anyio.move_on_after(3 * watch.INTERVAL):
                await anext(events)
                raise AssertionError("nothing happened")
            await sandbox.files.write("g", "x")  # a cancelled wait loses nothing
            assert (await anext(events)).name == "g"
            await events.aclose()
            assert [event async for event in events] == []

    run_async(main)
