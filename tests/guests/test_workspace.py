"""Workspaces kept on the host: the same files on both sides, and nothing of a guest's outside."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar import InvalidOption, Limits, ProtocolError, Sandbox
from belljar.backends.linux import cgroup, safe_dir
from belljar.backends.linux.safe_dir import PARTIAL, Beneath, Found, Incoming, stays_inside
from belljar.files import sessions, tree_protocol
from belljar.files.sync import PAGE, Known, Ledger, Save, plan_save
from belljar.protocol import removal

MB = 1 << 20


@pytest.fixture
def place(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("BELLJAR_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def below(directory):
    """Every path in it, with what files contain."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = path.read_text() if path.is_file() else None
    return found


def partials(directory):
    return [p for p in directory.rglob("*") if p.name.startswith(PARTIAL)]


# --- what is promised ------------------------------------------------------------------------


def test_the_directory_is_brought_in_and_changes_back(make_sandbox, place):
    (place / "data").mkdir(parents=True)
    (place / "data/in.txt").write_text("from the host")
    (place / "gone.txt").write_text("x")
    sandbox = make_sandbox(workspace=place)
    execution = sandbox.run_code(
        "import os\n"
        "text = open('data/in.txt').read()\n"
        "os.makedirs('out/deep'); open('out/deep/r.txt', 'w').write(text.upper())\n"
        "open('data/in.txt', 'a').write('!'); os.unlink('gone.txt')"
    )
    assert execution.ok, execution
    assert not execution.notes
    assert below(place) == {
        "data": None,
        "data/in.txt": "from the host!",
        "out": None,
        "out/deep": None,
        "out/deep/r.txt": "FROM THE HOST",
    }


def test_a_missing_directory_is_made_and_kept(make_sandbox, tmp_path):
    place = tmp_path / "not/there/yet"
    make_sandbox(workspace=str(place)).run_code("open('f', 'w').write('1')")
    assert make_sandbox(workspace=place).run_code("open('f').read()").value == "1"


def test_commands_and_file_operations_are_carried_too(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    sandbox.files.write("a", "1")
    assert below(place) == {"a": "1"}
    sandbox.commands.run("echo 2 > b; rm a")
    assert below(place) == {"b": "2\n"}
    sandbox.files.rename("b", "c")
    assert below(place) == {"c": "2\n"}
    sandbox.files.remove("c")
    assert below(place) == {}


def test_what_a_thread_wrote_later_is_there_after_close(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code(
        "import threading, os\n"
        "def late():\n"
        "    while not os.path.exists('/tmp/go'): pass\n"
        "    open('late', 'w').write('x'); open('/tmp/done', 'w').close()\n"
        "threading.Thread(target=late).start()"
    )
    sandbox.files.write("/tmp/go", "")
    while not sandbox.files.exists("/tmp/done"):
        continue
    sandbox.close()
    assert below(place) == {"late": "x"}


def test_a_small_file_rewritten_at_once_with_the_same_size_is_carried(make_sandbox, place):
    """Time stamps may be the same; nobody may rely on them alone."""
    sandbox = make_sandbox(workspace=place)
    for number in range(30):
        sandbox.run_code(f"open('f', 'w').write('{number:04}')")
        assert (place / "f").read_text() == f"{number:04}"


def test_what_is_written_through_a_mapping_of_an_earlier_cell_is_carried(make_sandbox, place):
    """The kernel stamps a file of a tmpfs for the first such write only."""
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code(
        "import mmap; f = open('m', 'w+b'); f.truncate(4); m = mmap.mmap(f.fileno(), 4); m[0] = 65"
    )
    for number in range(1, 4):
        sandbox.run_code(f"m[{number}] = {65 + number}")
        assert (place / "m").read_bytes()[number] == 65 + number
    sandbox.run_code("m[0] = 90; m.close(); f.close()")
    assert (place / "m").read_bytes() == b"ZBCD"


def test_modes_are_ours_but_for_the_right_to_run_and_times_are_kept(make_sandbox, place):
    make_sandbox(workspace=place).run_code(
        "import os\n"
        "for name, mode in (('s', 0o6755), ('p', 0o600), ('w', 0o777)):\n"
        "    open(name, 'w').close(); os.chmod(name, mode); os.utime(name, (1, 1234567))\n"
        "os.mkdir('d', 0o700); os.chmod('d', 0o1777)"
    )
    found = {name: stat.S_IMODE((place / name).stat().st_mode) for name in "spwd"}
    assert found == {"s": 0o755, "p": 0o644, "w": 0o755, "d": 0o755}
    assert (place / "s").stat().st_mtime == 1234567
    again = make_sandbox(workspace=place)
    assert again.files.stat("s").mode == 0o755
    assert again.files.stat("s").mtime == 1234567


def test_a_file_may_become_a_directory_and_a_directory_a_file(make_sandbox, place):
    (place / "d/x").mkdir(parents=True)
    (place / "d/x/f").write_text("1")
    (place / "f").write_text("2")
    make_sandbox(workspace=place).run_code(
        "import os, shutil\nshutil.rmtree('d'); open('d', 'w').write('now a file')\n"
        "os.unlink('f'); os.makedirs('f/g')"
    )
    assert below(place) == {"d": "now a file", "f": None, "f/g": None}


def test_links_that_stay_inside_are_carried_both_ways_and_others_are_told_of(make_sandbox, place):
    (place / "d").mkdir(parents=True)
    (place / "d/in").symlink_to("../d")
    (place / "out").symlink_to("/etc/passwd")
    sandbox = make_sandbox(workspace=place)
    execution = sandbox.run_code(
        "import os\n"
        "before = sorted(os.listdir('.')), os.readlink('d/in')\n"
        "os.symlink('d/in', 'mine'); os.symlink('../../etc', 'climbs'); os.symlink('/', 'root')\n"
        "os.symlink('d/../../x', 'sly'); before"
    )
    assert execution.value == (["d"], "../d")
    assert below(place) == {
        "d": None,
        "d/in": "-> ../d",
        "mine": "-> d/in",
        "out": "-> /etc/passwd",  # the caller's own, which was not carried
    }
    (note,) = [note for note in execution.notes if "climbs" in note]
    assert "'root'" in note
    assert "'sly'" in note


def test_what_is_no_file_is_told_of_once(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    execution = sandbox.run_code(
        "import os, socket\nos.mkfifo('pipe'); s = socket.socket(socket.AF_UNIX); s.bind('sock')\n"
        "open('f', 'w').close()"
    )
    assert below(place) == {"f": ""}
    (note,) = execution.notes
    assert "neither a file nor a directory" in note
    assert sandbox.run_code("1").notes == ()


def test_names_of_every_kind_travel_both_ways(make_sandbox, place):
    names = [b"\xff\xfe", b"new\nline", "‮rtl".encode(), b"x" * 255, b"-rf", b"con", b" ", b"*"]
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code(f"for name in {names}: open(name, 'wb').write(name)")
    assert {name: _read(place, name) for name in os.listdir(os.fsencode(place))} == {
        name: name for name in names
    }
    again = make_sandbox(workspace=place)
    found = again.run_code("import os; sorted((n, open(n, 'rb').read()) for n in os.listdir(b'.'))")
    assert found.value == sorted((name, name) for name in names)


def _read(place, name):
    with open(os.path.join(os.fsencode(place), name), "rb") as file:
        return file.read()


def test_a_large_file_comes_back_whole(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code(
        "import os, hashlib\ndata = os.urandom(21_000_001); open('big', 'wb').write(data)\n"
    )
    assert (place / "big").stat().st_size == 21_000_001
    again = make_sandbox(workspace=place)
    digest = "import hashlib; hashlib.sha256(open('big', 'rb').read()).hexdigest()"
    assert again.run_code(digest).value == sandbox.run_code(digest).value


# --- both sides change something -------------------------------------------------------------


def test_what_the_caller_changes_is_there_in_the_next_cell(make_sandbox, place):
    (place / "d").mkdir(parents=True)
    (place / "d/gone").write_text("x")
    (place / "kind").write_text("x")
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code("open('mine', 'w').write('1')")
    (place / "mine").write_text("22")
    (place / "new").mkdir()
    (place / "new/f").write_text("3")
    shutil.rmtree(place / "d")
    (place / "kind").unlink()
    (place / "kind").mkdir()
    seen = sandbox.run_code(
        "import os; open('mine').read(), open('new/f').read(), os.path.exists('d'), "
        "os.path.isdir('kind')"
    )
    assert seen.value == ("22", "3", False, True)
    assert below(place) == {"mine": "22", "new": None, "new/f": "3", "kind": None}


def test_of_a_file_that_both_changed_the_sandboxs_is_kept_and_said(make_sandbox, place):
    place.mkdir()
    (place / "f").write_text("0")
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code(
        "import threading, os\n"
        "def later():\n"
        "    while not os.path.exists('/tmp/go'): pass\n"
        "    open('f', 'w').write('guest'); open('/tmp/done', 'w').close()\n"
        "threading.Thread(target=later).start()"
    )
    (place / "f").write_text("the host's")
    notes = sandbox.run_code(
        "open('/tmp/go', 'w').close()\nwhile not os.path.exists('/tmp/done'): pass"
    ).notes
    # The caller's came in before the cell, or the guest's was first: never a mixture.
    assert (place / "f").read_text() in ("guest", "the host's")
    sandbox.run_code("open('f', 'w').write('again')")
    assert (place / "f").read_text() == "again"
    assert all("both sides" in note for note in notes)


def test_a_file_the_caller_changed_survives_its_removal_in_the_sandbox(make_sandbox, place):
    place.mkdir()
    (place / "f").write_text("0")
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code("import os", on_stdout=None)
    seen = []

    def edit(text):
        (place / "f").write_text("edited meanwhile")
        sandbox.files.write("/tmp/go", "")
        seen.append(text)

    sandbox.run_code(
        "print('now', flush=True)\nwhile not os.path.exists('/tmp/go'): pass\nos.unlink('f')",
        on_stdout=edit,
    )
    assert seen
    assert (place / "f").read_text() == "edited meanwhile"
    assert sandbox.run_code("open('f').read()").value == "edited meanwhile"


@pytest.mark.user_only
def test_files_the_caller_himself_cannot_read_are_told_of_and_stay(make_sandbox, place):
    (place / "closed").mkdir(parents=True)
    (place / "closed/f").write_text("x")
    (place / "f").write_text("x")
    (place / "f").chmod(0)
    (place / "closed").chmod(0)
    try:
        sandbox = make_sandbox(workspace=place)
        execution = sandbox.run_code("import os; open('g', 'w').close(); os.listdir('.')")
        assert "f" not in execution.value
        assert any("cannot be read" in note for note in execution.notes)
        assert sandbox.run_code("1 + 1").notes == ()
        sandbox.close()
    finally:
        (place / "closed").chmod(0o755)
    assert (place / "closed/f").read_text() == "x"
    assert (place / "f").exists()


def test_a_guest_that_died_starts_again_with_what_was_saved(make_sandbox, place, outside):
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code("open('f', 'w').write('kept')")
    os.kill(outside(sandbox).pid, signal.SIGKILL)
    sandbox.run_code("1")  # lost, or started anew
    assert sandbox.run_code("open('f').read()").value == "kept"


# --- limits ----------------------------------------------------------------------------------


def test_a_directory_larger_than_the_limit_is_refused_with_sizes(backend, place):
    place.mkdir()
    (place / "big").write_bytes(bytes(3 * MB))
    with (
        pytest.raises(InvalidOption, match=r"take 3m.*has 1m") as caught,
        Sandbox(environment="python", workspace=place, limits=Limits(workspace="1m")),
    ):
        pass
    assert "Limits(workspace=" in caught.value.hint


def test_the_limit_holds_inside_exactly(make_sandbox, place):
    sandbox = make_sandbox(workspace=place, limits=Limits(workspace="1m"))
    full = sandbox.run_code("open('f', 'wb').write(bytes(2 << 20))")
    assert full.error.name == "OSError"
    assert sum(path.stat().st_size for path in place.iterdir()) <= MB


@pytest.mark.parametrize(
    "code",
    [
        "for i in range(60): open(f's{i}', 'w').truncate(900_000)",
        "open('f', 'wb').write(bytes(500_000))\nfor i in range(60): os.link('f', f'h{i}')",
    ],
    ids=["sparse files", "hard links"],
)
def test_what_is_larger_on_paper_than_the_limit_does_not_fill_the_host(make_sandbox, place, code):
    sandbox = make_sandbox(workspace=place, limits=Limits(workspace="1m"))
    execution = sandbox.run_code("import os\n" + code)
    assert execution.ok, execution
    assert "would exceed the limit of 1m" in execution.notes[0]
    assert 0 < sum(path.stat().st_size for path in place.iterdir()) <= MB


def test_files_are_carried_up_to_a_number(make_sandbox, place, monkeypatch):
    monkeypatch.setattr("belljar.files.workspace.MAX_FILES", 2_000)
    sandbox = make_sandbox(workspace=place)
    (place / "mine").write_text("x")
    made = sandbox.run_code(
        "import os\nos.mkdir('many')\nfor i in range(6_500): os.close(os.open(f'many/{i}', 64))",
        timeout=60,
    )
    assert made.ok, made
    (note,) = made.notes
    assert "more than 2000 files" in note
    assert note.endswith("and others, which were not counted"), "not all were looked at"
    assert len(os.listdir(place / "many")) < 2_000
    assert (place / "mine").exists()
    assert sandbox.run_code("1 + 1").value == 2
    removal.remove(str(place / "many"))


FILLING = {
    "closed directories": (
        "os.mkdir('d{0}'); open('d{0}/f', 'wb').write(bytes(600_000))",
        "os.unlink('d{0}/f'); os.chmod('d{0}', 0)",
    ),
    "closed directories in closed directories": (
        "os.makedirs('d{0}/e'); open('d{0}/e/f', 'wb').write(bytes(600_000))",
        "os.unlink('d{0}/e/f'); os.chmod('d{0}/e', 0o400); os.chmod('d{0}', 0o200)",
    ),
    "files that are holes now": (
        "open('f{1}', 'wb').close()",
        "open('f{1}', 'wb').write(bytes(600_000))",
        "with open('f{1}', 'wb') as f: f.truncate(600_000)",
    ),
    "closed files": (
        "open('f{0}', 'wb').write(bytes(600_000))",
        "open('f{0}', 'wb').close(); os.chmod('f{0}', 0)",
    ),
    "pages on paper": (
        "for n in range(100):\n  with open(f'{0}-{{n}}', 'wb') as f: f.truncate(1)",
    ),
    "files out of sight": (
        "os.mkdir('d{1}')\nfor n in range(160): open(f'd{1}/{{n}}', 'wb').close()",
    ),
    "files in closed directories": (
        "os.mkdir('d{0}')\nfor n in range(160): open(f'd{0}/{{n}}', 'wb').close()",
        "for n in range(160): os.unlink(f'd{0}/{{n}}')\nos.chmod('d{0}', 0)",
    ),
}


@pytest.mark.parametrize("cells", FILLING.values(), ids=FILLING.keys())
def test_a_guest_never_fills_the_host_round_after_round(make_sandbox, place, monkeypatch, cells):
    """What is kept there though the guest has made the room of it free again counts as well."""
    monkeypatch.setattr("belljar.files.workspace.MAX_FILES", 300)
    monkeypatch.setattr("belljar.files.workspace.MAX_HOST_FILES", 350)
    sandbox = make_sandbox(workspace=place, limits=Limits(workspace="1m"))
    for number in range(4):
        for cell in cells:
            ran = sandbox.run_code("import os\n" + cell.format(number, 9 - number))
            assert ran.ok, ran
            found = list(place.rglob("*"))
            sizes = [path.stat().st_size for path in found if path.is_file()]
            assert sum(-(-size // PAGE) * PAGE for size in sizes) <= MB
            assert len(found) <= 300
    sandbox.close()
    again = make_sandbox(workspace=place, limits=Limits(workspace="1m"))
    assert again.run_code("1 + 1").value == 2


def test_what_is_in_a_closed_directory_is_carried_and_it_stays_closed(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    execution = sandbox.run_code(
        "import os\nos.makedirs('d/e'); open('d/e/f', 'w').write('1'); open('d/g', 'w').close()\n"
        "os.chmod('d/e', 0o100); os.chmod('d', 0)"
    )
    assert execution.ok, execution
    assert not execution.notes
    assert below(place) == {"d": None, "d/e": None, "d/e/f": "1", "d/g": ""}
    sandbox.run_code("before = os.stat('d').st_mode & 0o777; os.chmod('d', 0o700)")
    sandbox.run_code("os.unlink('d/g'); inner = os.stat('d/e').st_mode & 0o777; os.chmod('d', 0)")
    assert sandbox.run_code("before, inner").value == (0, 0o100)
    assert below(place) == {"d": None, "d/e": None, "d/e/f": "1"}


def test_files_that_change_places_in_size_are_carried(make_sandbox, place):
    """There is never room for both when they are large."""
    sandbox = make_sandbox(workspace=place, limits=Limits(workspace="1m"))
    sandbox.run_code("open('a', 'wb').write(bytes(100_000)); open('b', 'wb').write(bytes(800_000))")
    execution = sandbox.run_code(
        "open('b', 'wb').write(bytes(100_000)); open('a', 'wb').write(bytes(800_000))"
    )
    assert not execution.notes
    assert [(place / name).stat().st_size for name in "ab"] == [800_000, 100_000]


def test_three_thousand_levels_are_carried_up_to_a_depth(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    made = sandbox.run_code(
        "import os\nopen('f', 'w').close()\n"
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chdir('/workspace')",
        timeout=60,
    )
    assert made.ok, made
    assert any("too deep" in note for note in made.notes)
    assert (place / "f").exists()
    deepest = max(len(path.parts) for path in place.rglob("*")) - len(place.parts)
    assert deepest == safe_dir.MAX_DEPTH
    assert sandbox.run_code("1 + 1").value == 2
    sandbox.run_code("import shutil; os.rename('d', '/workspace/e')")
    assert not (place / "d").exists()


def test_a_file_that_never_stands_still_does_not_keep_the_sandbox(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    began = time.monotonic()
    sandbox.run_code(
        "import threading\n"
        "def grow():\n"
        "    while True:\n"
        "        with open('log', 'wb') as file:\n"
        "            for _ in range(60): file.write(bytes(1 << 20)); file.flush()\n"
        "threading.Thread(target=grow, daemon=True).start()"
    )
    for _ in range(5):
        assert sandbox.run_code("1 + 1").value == 2
    assert time.monotonic() - began < 60
    assert not partials(place)


def test_a_guest_that_answers_too_slowly_is_given_up(make_sandbox, place, monkeypatch):
    sandbox = make_sandbox(workspace=place)
    monkeypatch.setattr("belljar.files.workspace.SAVE_TIMEOUT", 0.0)
    execution = sandbox.run_code("open('f', 'w').close()")
    assert any("took longer than" in note for note in execution.notes)


def test_a_workspace_that_cannot_be_read_is_a_note_and_no_error(make_sandbox, place):
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code("import os; open('f', 'w').write('1')")
    execution = sandbox.run_code("os.chmod('/workspace', 0)")
    assert execution.ok, execution
    assert any("copied back" in note for note in execution.notes)
    assert below(place) == {"f": "1"}
    sandbox.run_code("os.chmod('/workspace', 0o700); open('f', 'w').write('2')")
    assert below(place) == {"f": "2"}


# --- hostile ---------------------------------------------------------------------------------


def test_a_directory_swapped_with_a_link_leads_nothing_out(make_sandbox, place, tmp_path):
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "f").write_text("untouched")
    sandbox = make_sandbox(workspace=place)
    sandbox.run_code(f"""if True:
        import os, threading
        os.makedirs('real'); os.symlink({str(canary)!r}, 'link')
        for name in ('f', 'g'): open('real/' + name, 'w').write('from the guest')
        def swap():
            number = 0
            while True:
                number += 1
                os.rename('real', 'aside'); os.rename('link', 'real')
                os.rename('real', 'link'); os.rename('aside', 'real')
                open('real/f', 'w').write(str(number))
        threading.Thread(target=swap, daemon=True).start()
    """)
    for _ in range(60):
        sandbox.files.make_dir("tick")
        sandbox.files.remove("tick")
    sandbox.close()
    assert below(canary) == {"f": "untouched"}
    assert not any(path.is_symlink() for path in place.iterdir())
    assert not partials(place)


def test_no_component_is_ever_a_link_on_the_host_either(tmp_path):
    """Should somebody have put one there: nothing goes through it, however it is timed."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    outside.mkdir()
    stop = threading.Event()

    def swap():
        for number in itertools.count():
            if stop.is_set():
                return
            with contextlib.suppress(OSError):  # the other side makes directories meanwhile
                os.rename(root / "d", root / f"was {number}")
                os.symlink(outside, root / "d")
                os.unlink(root / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    written = 0
    try:
        with Beneath(root) as directory:
            for _ in range(3000):
                try:
                    incoming = Incoming(directory, "d/f")
                except OSError:
                    continue
                try:
                    incoming.write(b"x")
                    incoming.commit(executable=False, mtime=0)
                    written += 1
                finally:
                    incoming.close()
    finally:
        stop.set()
        thread.join()
    assert written
    assert list(outside.iterdir()) == []


@pytest.mark.root_only
def test_a_full_disk_of_the_host_is_told_and_leaves_nothing_half_written(make_sandbox, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        sandbox = make_sandbox(workspace=small)
        execution = sandbox.run_code(
            "open('a', 'w').write('fits'); open('big', 'wb').write(bytes(10 << 20))"
        )
        assert execution.ok, execution
        assert any("No space left" in note for note in execution.notes)
        assert below(small) == {"a": "fits"}
        assert sandbox.run_code("1 + 1").value == 2
        sandbox.close()
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_host_that_is_killed_leaves_whole_files_and_the_rest_is_swept(make_sandbox, place):
    program = textwrap.dedent(f"""
        from belljar import Sandbox
        with Sandbox(environment="python", workspace={str(place)!r}) as sandbox:
            sandbox.run_code("open('big', 'wb').write(b'0' * 30_000_000)")
            print("ready", flush=True)
            for number in range(1, 100_000):
                sandbox.run_code(f"open('big', 'wb').write(b'{{number % 10}}' * 30_000_000)")
    """)
    for _ in range(3):
        host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        try:
            assert host.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 20
            while not partials(place) and time.monotonic() < deadline:
                continue
        finally:
            host.kill()
            host.wait()
            host.stdout.close()
        content = (place / "big").read_bytes()
        assert len(content) == 30_000_000
        assert len(set(content)) == 1
    cgroup.sweep()  # of those that were killed
    sandbox = make_sandbox(workspace=place)
    assert not partials(place)
    assert sandbox.files.stat("big").size == 30_000_000


# --- sessions --------------------------------------------------------------------------------


def test_a_session_is_there_again_by_its_name(make_sandbox, state):
    first = make_sandbox(session="thesis")
    first.run_code("open('f', 'w').write('1')")
    first.close()
    assert make_sandbox(session="thesis").run_code("open('f').read()").value == "1"
    assert make_sandbox(session="other").files.list() == []
    assert stat.S_IMODE((state / "sessions/thesis").stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_directories_above_the_sessions_are_private_under_any_umask(tmp_path, monkeypatch, umask):
    monkeypatch.setenv("BELLJAR_STATE", str(tmp_path / "a/b"))
    before = os.umask(umask)
    try:
        sessions.Session("thesis").close()
    finally:
        os.umask(before)
    for path in ("a", "a/b", "a/b/sessions", "a/b/sessions/.locks", "a/b/sessions/thesis"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700, path


def test_two_sandboxes_cannot_use_one_session(make_sandbox, state):
    first = make_sandbox(session="one")
    with pytest.raises(InvalidOption, match="in use by a sandbox of this process"):
        make_sandbox(session="one")
    holder = "from belljar.files.sessions import Session; Session('one')"
    done = subprocess.run([sys.executable, "-c", holder], capture_output=True, text=True)
    assert f"process {os.getpid()}" in done.stderr
    with pytest.raises(InvalidOption, match="in use"):
        sessions.remove("one")
    first.close()
    make_sandbox(session="one").close()


def test_a_session_whose_holder_was_killed_is_free(make_sandbox, state):
    program = (
        "from belljar.sessions import Session; s = Session('x'); print('held', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InvalidOption, match=f"process {holder.pid}"):
            make_sandbox(session="x")
    finally:
        holder.kill()
        holder.communicate()
    make_sandbox(session="x").close()


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "a/b", "a b", "x" * 65, "é", "a\n", 3, "a\0"]
)
def test_a_name_that_is_none_is_refused(name, state):
    with pytest.raises(InvalidOption, match="session"):
        Sandbox(environment="python", session=name)
    assert not state.exists()


def test_workspace_and_session_exclude_each_other(tmp_path):
    with pytest.raises(InvalidOption, match="exclude"):
        Sandbox(environment="python", session="x", workspace=tmp_path)


@pytest.mark.parametrize("workspace", ["", 3, b"x", "/dev/null", "/proc/nothing/there"])
def test_a_workspace_that_is_no_directory_is_refused(backend, workspace):
    with (
        pytest.raises(InvalidOption, match="workspace"),
        Sandbox(environment="python", workspace=workspace),
    ):
        pass


def test_sessions_are_listed_found_and_removed_whatever_is_in_them(make_sandbox, state):
    assert sessions.listing() == []
    sandbox = make_sandbox(session="full")
    sandbox.run_code(
        "import os\nfor _ in range(190): os.mkdir('d'); os.chdir('d')\nos.chdir('/workspace')\n"
        "open('f', 'wb').write(bytes(1000)); os.symlink('d', 'l')"
    )
    (found,) = sessions.listing()
    assert (found.name, found.size, found.files, found.in_use) == ("full", 1000, 1, True)
    sandbox.close()
    assert sessions.find("full") == state / "sessions/full"
    sessions.remove("full")
    assert sessions.listing() == []
    with pytest.raises(InvalidOption, match="no session"):
        sessions.find("full")


def test_sessions_on_the_command_line(make_sandbox, state):
    make_sandbox(session="cli").run_code("open('f', 'w').write('12')")

    def belljar(*words):
        command = [sys.executable, "-m", "belljar", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    (listed,) = json.loads(belljar("session", "list", "--json").stdout)
    assert (listed["name"], listed["size"], listed["files"]) == ("cli", 2, 1)
    assert belljar("session", "path", "cli").stdout == f"{state}/sessions/cli\n"
    assert "cli" in belljar("session", "list").stdout
    assert belljar("session", "remove", "cli").returncode == 2  # in use by this process
    assert belljar("session", "path", "none").returncode == 2


# --- the parts -------------------------------------------------------------------------------


def census(**entries):
    return tree_protocol.Census(entries=entries)


FILE = Found("file", 5, False, 1, 1, 1)


def file(size):
    return Found("file", size, False, 1, 1, 1)


def both(found):
    return Known(found.kind, found.signature, found.signature)


def ledger(known, limit=MB, most=100):
    return Ledger([(path, each.host) for path, each in known.items()], limit, most)


def planned(known, seen, **limits):
    return plan_save(known, seen, ledger(known, **limits))


def fetched(plan):
    return [path for path, _ in plan.fetch]


def test_the_plan_takes_what_changed_and_leaves_what_did_not():
    known = {
        "same": both(FILE),
        "unsure": Known("file", FILE.signature, FILE.signature, sure=False),
        "gone": both(FILE),
        "other": both(Found("dir")),
    }
    plan = planned(known, census(same=FILE, unsure=FILE, other=FILE, new=FILE))
    assert plan.remove == ["gone", "other"] or plan.remove == ["other", "gone"]
    assert [path for path, _ in plan.fetch] == ["unsure", "other", "new"]


def test_what_was_not_looked_at_is_not_removed():
    known = {path: both(FILE) for path in ("a/f", "b/f", "f")}
    seen = tree_protocol.Census(entries={"a": Found("dir"), "b": Found("dir")}, unseen={"a"})
    assert planned(known, seen).remove == ["b/f", "f"]


def test_what_was_not_looked_at_counts_against_the_limit():
    known = {"a": both(Found("dir")), "a/f": both(file(600_000))}
    seen = tree_protocol.Census(entries={"a": Found("dir"), "g": file(600_000)}, unseen={"a"})
    assert fetched(planned(known, seen)) == []
    assert "'g'" in seen.left_out.sentences()[0]
    assert fetched(planned(known, census(a=Found("dir"), g=file(600_000)))) == ["g"]


def test_what_was_not_looked_at_counts_against_the_number_of_files():
    known = {f"a/{n}": both(file(0)) for n in range(8)}
    new = {f"new{n}": file(0) for n in range(5)}
    seen = tree_protocol.Census(entries=new, unseen={"a"})
    assert fetched(planned(known, seen, most=10)) == ["new0", "new1"]
    assert "more than 10 files" in seen.left_out.sentences()[0]
    assert fetched(planned(known, tree_protocol.Census(entries=new), most=10)) == list(new)


def test_the_old_copy_of_what_is_too_large_now_counts():
    known = {"f": both(file(600_000))}
    plan = planned(known, census(f=file(2 * MB), g=file(600_000)))
    assert (plan.fetch, plan.remove) == ([], [])


def test_what_is_here_counts_by_its_size_here_whatever_the_guest_says_of_it():
    said, here = file(0), file(900_000)
    known = {"f": Known("file", said.signature, here.signature)}
    assert fetched(planned(known, census(f=said, g=file(600_000)))) == []


def test_what_becomes_smaller_is_taken_first_and_always():
    known = {"a": both(file(100_000)), "b": both(file(800_000)), "c": both(file(300_000))}
    plan = planned(known, census(n=FILE, a=file(800_000), b=file(10_000), c=file(200_000)))
    assert fetched(plan) == ["b", "c", "a", "n"]
    assert fetched(planned({"b": both(file(3 * MB))}, census(b=file(2 * MB)))) == ["b"]


def test_what_lies_in_something_that_is_no_directory_is_not_taken():
    said = {"a": FILE, "a/b": FILE, "c/d": FILE, "e": Found("dir"), "e/f": FILE}
    assert fetched(planned({}, tree_protocol.Census(entries=said))) == ["a", "e/f"]


def test_a_long_link_counts_as_the_page_it_takes():
    links = {f"l{n}": Found("symlink", target="x" * 200) for n in range(5)}
    plan = planned({}, tree_protocol.Census(entries=links), limit=3 * PAGE)
    assert len(plan.make) == 3


def part(path, data=b"", size=None, **more):
    return tree_protocol.FilePart(
        path, data=data, found=file(len(data) if size is None else size), **more
    )


@pytest.fixture
def saving(place):
    """Of nothing yet, with room for two pages."""
    with Beneath(place, make=True) as host:
        known = {}
        save = Save(host, known, census(), ledger(known, limit=2 * PAGE))
        yield save, known
        save.close()


def test_a_file_that_is_larger_than_it_was_said_to_be_is_not_kept(saving, place):
    save, known = saving
    save.take([part("a", bytes(PAGE), last=True), part("b", b"x", size=3 * PAGE)])
    assert len(partials(place)) == 0
    save.take([tree_protocol.FilePart("b", 1, bytes(3 * PAGE), file(3 * PAGE), True)])
    save.take([part("c", bytes(PAGE), last=True), part("d", b"x", last=True)])
    assert sorted(known) == sorted(os.listdir(place)) == ["a", "c"]


def test_the_room_of_a_file_is_free_only_when_another_has_its_place(saving, place):
    save, known = saving
    save.take([part("a", bytes(2 * PAGE), last=True)])
    save.take(
        [part("a", b"", size=1), tree_protocol.FilePart("a", error=5), part("b", b"x", last=True)]
    )
    assert sorted(known) == os.listdir(place) == ["a"]
    save.take([part("a", b"1", last=True), part("b", b"2", last=True)])
    assert below(place) == {"a": "1", "b": "2"}


def test_what_follows_a_file_that_could_not_be_read_is_not_taken_for_it(saving, place):
    save, known = saving
    save.take(
        [part("a", b"x", size=9), tree_protocol.FilePart("a", error=5), part("b", b"y", last=True)]
    )
    assert below(place) == {"b": "y"}
    assert list(known) == ["b"]


def test_children_are_removed_before_their_parents():
    known = {path: both(Found("dir")) for path in ("a", "a/b", "a/b/c")}
    assert planned(known, census()).remove == ["a/b/c", "a/b", "a"]


PARTS = st.lists(st.sampled_from(["..", "a", "b", "link1", "link2", "."]), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["", "a/", "a/b/"]), PARTS), min_size=1, max_size=4))
@settings(max_examples=150)
def test_links_that_may_stay_never_lead_out_whatever_the_others_are(tmp_path_factory, links):
    root = tmp_path_factory.mktemp("top") / "root"
    (root / "a/b/a/b").mkdir(parents=True)
    made = []
    for number, (directory, parts) in enumerate(links, 1):
        path, target = f"{directory}link{number}", "/".join(parts)
        if stays_inside(path, target):
            (root / path).symlink_to(target)
            made.append(root / path)
    for link in made:
        try:
            real = os.path.realpath(link, strict=True)
        except OSError:
            continue  # dangling, or a loop
        assert os.path.commonpath((real, root)) == str(root), (link, real)


@pytest.mark.parametrize(
    "row",
    [
        [0, "../x", "file", 0o644, 1, 1, 1, 1],
        [0, "a/b", "file", 0o644, 1, 1, 1, 1],
        [0, "..", "dir", 0o755, 1, 1, 1, 1],
        [0, "", "file", 0o644, 1, 1, 1, 1],
        [0, "a\0b", "file", 0o644, 1, 1, 1, 1],
        [0, "a", "file", 0o644, -1, 1, 1, 1],
        [0, "a", "file", 0o644, 1.5, 1, 1, 1],
        [0, "a", "file", 0o644, 2**70, 1, 1, 1],
        [0, "a", "file", True, 1, 1, 1, 1],
        [0, "a", "block", 0o644, 1, 1, 1, 1],
        [0, "a", "symlink", 0o777, 1, 1, 1, 1],
        [0, "a", "symlink", 0o777, 1, 1, 1, 1, 7],
        [0, "a", "file", 0o644, 1, 1, 1, 1, "extra"],
        [7, "a", "file", 0o644, 1, 1, 1, 1],
        [-1, "a", "file", 0o644, 1, 1, 1, 1],
        [0, None, "file", 0o644, 1, 1, 1, 1],
        [0],
        "row",
        None,
    ],
)
def test_a_listing_no_honest_guest_sends_is_refused(run_async, row):
    class Liar:
        async def call(self, path, header, payload=b""):
            page = {"entries": [row], "failed": []}
            return {"done": 1, "after": ""}, json.dumps(page).encode()

    async def ask():
        with pytest.raises(ProtocolError):
            await tree_protocol.scan_tree(Liar(), "/workspace", most=10)

    run_async(ask)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["entries", "failed", "done", "after", "rows"]), x)
        ),
        max_leaves=12,
    ),
    st.binary(max_size=40),
)
@settings(max_examples=200)
def test_whatever_a_guest_answers_is_taken_or_refused(answer, data):
    import anyio

    class Liar:
        async def call(self, path, header, payload=b""):
            body = answer if isinstance(answer, dict) else {"done": 1, "after": "", "rows": answer}
            return body, data if header["op"] != "scan" else json.dumps(answer).encode()

    async def sink(parts):
        for part in parts:
            assert part.error or len(part.data) <= 40

    async def ask():
        for act in (
            lambda: tree_protocol.scan_tree(Liar(), "/", most=10),
            lambda: tree_protocol.FileReader(Liar(), "/", 100, sink).fetch([("f", 10)]),
            lambda: tree_protocol.push_orders(Liar(), "/", [tree_protocol.Order("dir", "d")]),
        ):
            try:
                await act()
            except ProtocolError:
                continue

    anyio.run(ask)
