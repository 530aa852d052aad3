"""Presence files: what is believed of them, and what becomes of those that were left."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import observe_events as made
import setting
from belljar import events
from belljar.observe import orphans, presence, presence_file
from belljar.observe.live_sandboxes import LiveSandboxes, is_there, kill
from belljar.observe.presence import Presence

ID = "bj-0123456789abcdef"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    path = tmp_path / "runtime"
    monkeypatch.setenv("BELLJAR_RUNTIME_DIR", str(path))
    return path


@pytest.fixture
def not_installed():
    """What the runtime has installed is there again afterwards."""
    before = presence._installed is not None
    presence.uninstall()
    yield
    presence.uninstall()
    if before:
        presence.install()


@pytest.fixture
def writer():
    made_here = Presence()
    yield made_here
    made_here.close()


@pytest.fixture
def file(writer, directory):
    """What a sandbox of this process would write; its guest is this very process."""
    writer.observe(made.started(of=made.subject(owner="ann"), pid=os.getpid()))
    return directory / ID


def rewrite(file, **changes):
    said = json.loads(file.read_bytes())
    file.write_bytes(json.dumps({**said, **changes}).encode())


def test_a_file_says_what_there_is_and_goes_at_the_end(writer, file, directory):
    (note,) = presence.read_notes()
    assert (note.id, note.backend, note.environment) == (ID, "native", "python")
    assert note.owner.pid == note.pid == os.getpid()
    assert note.metadata == {"owner": "ann"}
    assert note.stale is False
    assert file.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    writer.observe(events.Ended(subject=made.subject(), reason="is closed", seconds=1.0))
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"id": "bj-ffffffffffffffff"},
        {"pid": -1},
        {"pid": True},
        {"pid": "1"},
        {"container": "../../etc"},
        {"environment": "x" * 1000},
        {"created": "now"},
        {"created": float("inf")},
        {"limits": []},
        {"metadata": {"a": 1}},
        {"owner": {"pid": 0, "started": 1, "pid_namespace": 1, "host": "x"}},
    ],
    ids=str,
)
def test_a_file_that_we_would_not_have_written_is_not_believed(file, changes):
    assert len(presence.read_notes()) == 1
    rewrite(file, **changes)
    assert presence.read_notes() == []


@pytest.mark.parametrize("data", [b"", b"1", b"{}", b"[]", b"[" * 10_000, b"\xff" * 99])
def test_rubbish_is_not_believed(file, data):
    file.write_bytes(data)
    assert presence.read_notes() == []


def test_links_fifos_and_large_files_are_left_alone(file, directory):
    data = file.read_bytes()
    other = directory / "elsewhere"
    other.write_bytes(data)
    file.unlink()
    file.symlink_to(other)
    assert presence.read_notes() == []
    file.unlink()
    os.mkfifo(file)
    assert presence.read_notes() == []  # and comes to an end
    file.unlink()
    file.write_bytes(data + b" " * presence.MAX_FILE)
    assert presence.read_notes() == []


def test_a_directory_that_others_can_write_is_neither_read_nor_written(file, directory, writer):
    directory.chmod(0o777)
    assert presence.read_notes() == []
    with pytest.raises(Exception, match="BELLJAR_RUNTIME_DIR"):
        presence_file.prepare_directory()
    directory.chmod(0o700)


@pytest.mark.root_only
def test_another_users_file_in_a_directory_of_ours_is_not_believed(file):
    os.chown(file, 12345, 12345)
    assert presence.read_notes() == []


def test_a_process_that_is_no_guest_is_neither_read_nor_killed(file):
    """A file may name any process: here it names the test's own."""
    (note,) = presence.read_notes()
    assert presence_file.process_started(note.pid) == note.pid_started
    assert not is_there(note)
    kill(note)
    with LiveSandboxes() as sightings:
        (seen,) = sightings.look()
    assert (seen.state, seen.memory) == ("ended", None)


def test_a_child_that_is_not_the_first_of_a_namespace_is_not_killed(file):
    with subprocess.Popen(["sleep", "60"]) as child:
        rewrite(file, pid=child.pid, pid_started=presence_file.process_started(child.pid))
        (note,) = presence.read_notes()
        kill(note)
        assert child.poll() is None
        child.kill()


def left_by_a_dead_process(directory):
    program = (
        "import os, observe_events as made\n"
        "from belljar.observe.presence import Presence\n"
        "Presence().observe(made.started(pid=os.getpid()))\n"
        "os._exit(0)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ, timeout=30)
    return directory / ID


def test_files_of_dead_processes_are_told_and_swept(directory):
    file = left_by_a_dead_process(directory)
    (note,) = presence.read_notes()
    assert note.stale
    assert note.path == str(file)
    found = [each for each in orphans.find_orphans("native").leftovers if each.kind == "presence"]
    assert [(each.name, each.owner, each.removed) for each in found] == [
        (str(file), note.owner.pid, False)
    ]
    assert file.exists()
    assert found[0].kind not in orphans.RUNNING  # a note alone is no sandbox that runs
    orphans.collect_orphans("native")
    assert not file.exists()


def test_the_first_sandbox_of_a_process_sweeps_the_files_of_its_own_backend(directory, writer):
    file = left_by_a_dead_process(directory)
    rewrite(file, backend="docker")  # its container may run: it stays in sight
    other = made.subject(id="bj-00000000000000aa")
    writer.observe(made.started(of=other, pid=os.getpid()))
    assert file.exists()
    rewrite(file, backend="native")
    writer.observe(made.started(of=made.subject(id="bj-00000000000000bb"), pid=os.getpid()))
    assert file.exists()  # once a process is enough
    again = Presence()
    again.observe(made.started(of=made.subject(id="bj-00000000000000cc"), pid=os.getpid()))
    assert not file.exists()
    again.close()


def test_a_file_that_a_living_process_has_written_meanwhile_is_not_swept(directory, writer):
    left_by_a_dead_process(directory)
    (note,) = presence.read_notes()
    assert note.stale
    writer.observe(made.started(pid=os.getpid()))
    assert not presence.remove_stale(note)
    assert len(presence.read_notes()) == 1


def test_thousands_of_files_are_looked_at_a_few_at_a_time(file, directory, monkeypatch):
    """Each may ask for a connection to an engine, and descriptors are few."""
    said = json.loads(file.read_bytes())
    for number in range(100):
        id = f"bj-{number:016x}"
        (directory / id).write_text(json.dumps({**said, "id": id}))
    now, most = 0, 0

    async def read(self, note):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.lowlevel.checkpoint()
        now -= 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(LiveSandboxes, "_read", read)
    with LiveSandboxes() as sightings:
        states = {each.state for each in sightings.look()}
    assert states == {"unknown"}
    assert 1 < most <= 16


def test_what_there_is_no_time_to_look_at_is_unknown(file, monkeypatch):
    async def read(self, note):
        await anyio.sleep_forever()

    monkeypatch.setattr(LiveSandboxes, "_read", read)
    monkeypatch.setattr("belljar.observe.live_sandboxes.LOOK_TIMEOUT", 0.01)
    with LiveSandboxes() as sightings:
        assert [each.state for each in sightings.look()] == ["unknown"]


def test_files_from_before_a_reboot_are_stale(file):
    said = json.loads(file.read_bytes())
    machine = said["owner"]["host"].partition(".")[0]
    earlier = {**said["owner"], "host": f"{machine}.{'0' * 16}"}
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    rewrite(file, owner=earlier, created=time.time() - uptime - 3600)
    (note,) = presence.read_notes()
    assert note.stale is (True if machine != "unknown" else None)


def test_in_a_fork_the_files_stay_the_parents(directory, not_installed):
    presence.install()
    events.tell(made.started(pid=os.getpid()))
    pid = os.fork()
    if pid == 0:
        presence.uninstall()
        os._exit(0 if presence._installed is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [path.name for path in directory.iterdir()] == [ID]
    presence.uninstall()
    assert list(directory.iterdir()) == []


def test_installed_twice_is_installed_once(directory, not_installed):
    presence.install()
    first = presence._installed
    presence.install()
    assert presence._installed is first


def test_without_a_runtime_directory_the_cache_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv("BELLJAR_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "not-there"))
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(presence_file, "USER_DIRECTORIES", str(tmp_path / "nobody"))
    monkeypatch.setattr(presence_file, "SYSTEM_DIRECTORY", str(tmp_path / "no" / "run"))
    assert presence_file.prepare_directory() == str(tmp_path / "cache" / "live")
    (tmp_path / "not-there").mkdir(mode=0o700)
    assert presence_file.prepare_directory() == str(tmp_path / "not-there" / "belljar")
    # Both are looked at: who wrote to one may have had another environment.
    assert {str(tmp_path / "cache" / "live"), str(tmp_path / "not-there" / "belljar")} <= set(
        presence_file.candidate_directories()
    )


def test_where_no_file_can_be_written_the_sandbox_is_only_not_seen(writer, directory, caplog):
    directory.write_text("in its place")
    with caplog.at_level("INFO", logger="belljar.observe"):
        writer.observe(made.started(pid=os.getpid()))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert presence.read_notes() == []


@pytest.mark.root_only
def test_root_looks_at_the_directories_of_all_users(monkeypatch, tmp_path):
    monkeypatch.delenv("BELLJAR_RUNTIME_DIR")
    monkeypatch.setattr(presence_file, "USER_DIRECTORIES", str(tmp_path))
    (tmp_path / "1234").mkdir()
    found = presence_file.candidate_directories(everybody=True)
    assert f"{tmp_path}/1234/belljar" in found
    assert len(found) > 3
    assert setting.ROOT
