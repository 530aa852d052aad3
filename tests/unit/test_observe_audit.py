"""The audit log: what it says, that nothing can be changed unseen, and that it can be relied on."""

import fcntl
import json
import multiprocessing
import os
import stat
import threading

import pytest

import observe_events as made
from belljar import InvalidOption, events
from belljar.errors import SandboxError
from belljar.observe import audit as audit_module
from belljar.observe.audit import Audit, AuditFailed, verify
from belljar.results.execution import ErrorInfo, Outcome
from census import wait_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def fill(path, number=5, **options):
    audit = Audit(path, **options)
    for n in range(number):
        audit.observe(made.cell(f"x = {n}"))
    audit.close()
    return audit


def test_a_line_says_who_ran_what_and_what_came_of_it(path):
    with Audit(path):
        events.tell(
            made.cell(
                "open('a')",
                of=made.subject(owner="ann"),
                outcome=Outcome.error,
                error=ErrorInfo(name="OSError", value="v", traceback="t"),
                calls=(made.call("query"), made.call("query", ok=False)),
                files=made.changed("a.txt"),
            )
        )
    (line,) = lines(path)
    assert line["v"] == 1
    assert line["event"] == "cell.ended"
    assert line["who"]["uid"] == os.getuid()
    assert line["who"]["pid"] == os.getpid()
    assert line["who"]["owner"] == "ann"
    assert line["who"]["host"]
    assert line["who"]["user"]
    assert line["sandbox"] == "bj-0123456789abcdef"
    assert (line["outcome"], line["error"]) == ("error", "OSError")
    assert line["usage"]["output_bytes"] == 10
    assert [(call["name"], call["ok"]) for call in line["calls"]] == [
        ("query", True),
        ("query", False),
    ]
    assert line["files"] == {"created": ["a.txt"]}
    assert len(line["code_sha256"]) == 64
    assert "code" not in line


def test_the_code_is_kept_when_that_is_wanted(path):
    fill(path, 1, code="full")
    assert lines(path)[0]["code"] == "x = 0"


def test_every_event_has_its_line(path):
    subject = made.subject()
    with Audit(path):
        events.tell(events.Starting(subject=subject))
        events.tell(made.started())
        events.tell(events.StartFailed(subject=subject, seconds=1.0, error=SandboxError("no")))
        events.tell(events.CellStarting(subject=subject, code="1"))
        events.tell(made.cell())
        events.tell(
            events.CellFailed(
                subject=subject, code="1", error=KeyboardInterrupt(), began=1.0, seconds=1.0
            )
        )
        events.tell(made.command(["ls", "-l"]))
        written = {"path": "a", "content": memoryview(b"secret"), "mode": None}
        events.tell(events.FilesChanged(subject=subject, operation="write", fields=written))
        events.tell(events.Ended(subject=subject, reason="is closed", seconds=1.0))
    found = lines(path)
    assert [line["event"] for line in found] == [
        *("sandbox.starting", "sandbox.started", "sandbox.start_failed", "cell.starting"),
        *("cell.ended", "cell.failed", "command.ended", "files.changed", "sandbox.ended"),
    ]
    assert found[6]["command"] == ["ls", "-l"]
    assert found[7]["fields"]["content"]["bytes"] == 6
    assert "secret" not in path.read_text()
    assert verify(path).ok


def test_a_guests_text_cannot_forge_a_line(path):
    evil = 'x\n{"v":1,"event":"cell.ended"}\n\x1b[2J\u2028"\ud800'
    with Audit(path, code="full"):
        events.tell(made.cell(evil, files=made.changed(evil), calls=(made.call(evil),)))
    data = path.read_bytes()
    assert data.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in data[:-1])
    assert lines(path)[0]["code"] == evil


def test_a_line_has_a_largest_size_and_says_what_was_left_out(path):
    calls = tuple(made.call("f" * 900) for _ in range(1000))
    with Audit(path, code="full", max_line=4096):
        events.tell(made.cell("#" * 10_000))
        events.tell(made.cell("#" * 10_000, calls=calls, files=made.changed(*["n" * 900] * 500)))
    first, second = lines(path)
    assert first["left_out"] == ["code"]
    assert first["code_bytes"] == 10_000
    assert {"code", "calls", "files"} <= set(second["left_out"])
    assert second["calls_made"] == 1000
    assert max(map(len, path.read_bytes().splitlines())) <= 4096
    assert verify(path).ok


def test_the_file_is_its_owners_alone_and_no_link_is_followed(path, tmp_path):
    fill(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(AuditFailed):
        Audit(link)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(AuditFailed, match="not a regular file"):
        Audit(tmp_path / "fifo")
    path.chmod(0o666)
    with pytest.raises(AuditFailed, match="other users can write it"):
        Audit(path)


def test_it_is_appended_to_never_begun_anew(path):
    fill(path, 3)
    fill(path, 2)
    assert [line["seq"] for line in lines(path)] == [1, 2, 3, 4, 5]
    checked = verify(path)
    assert checked.ok
    assert checked.lines == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:2] + lines[3:],
        lambda lines: [lines[0], lines[1].replace(b"cell", b"sell"), *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: lines[1:],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: [*lines[:2], b"not json\n", *lines[2:]],
    ],
    ids=["removed", "changed", "swapped", "first removed", "doubled", "inserted"],
)
def test_a_line_that_is_changed_removed_or_inserted_is_found(path, change):
    fill(path, 5)
    assert verify(path).ok
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    checked = verify(path)
    assert not checked.ok
    assert checked.damage[0].line in (1, 2, 3)


def test_lines_cut_off_at_the_end_are_found_by_a_head_that_was_kept(path):
    audit = fill(path, 5)
    assert verify(path, head=audit.head).ok
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert verify(path).ok  # as the docs say: the chain alone does not show it
    assert not verify(path, head=audit.head).ok


def test_who_has_no_key_cannot_write_the_chain_anew(path):
    fill(path, 3, key=b"secret")
    assert verify(path, key=b"secret").ok
    path.unlink()
    fill(path, 3)  # by somebody else, who may write the file
    assert not verify(path, key=b"secret").ok


def test_by_size_it_is_moved_aside_and_the_chain_goes_on(path, tmp_path):
    fill(path, 40, max_bytes=4096, max_line=4096)
    fill(path, 10, max_bytes=4096, max_line=4096)
    older = sorted(tmp_path.glob("audit.jsonl.0*"))
    assert len(older) > 2
    assert all(each.stat().st_size < 8192 for each in older)
    assert stat.S_IMODE(older[0].stat().st_mode) == 0o600
    checked = verify(path)
    assert checked.ok, checked.damage
    assert checked.lines == 50
    older[1].unlink()
    assert not verify(path).ok
    older[0].unlink()  # from the beginning on: kept are the last ones
    assert verify(path).ok


def test_a_line_torn_by_a_crash_is_told_and_spoils_no_other(path):
    fill(path, 3)
    with open(path, "ab") as file:
        file.write(b'{"v":1,"seq":4,"ti')
    fill(path, 2)
    checked = verify(path)
    assert checked.lines == 6
    assert [(each.line, "cut off by a crash" in each.problem) for each in checked.damage] == [
        (4, True)
    ]
    assert json.loads(path.read_bytes().splitlines()[-1])["seq"] == 6


def write_some(path, number):
    audit = Audit(path, max_bytes=8192, max_line=4096)
    for _ in range(number):
        audit.observe(made.cell())
    audit.close()


def test_processes_and_threads_that_write_at_once_make_one_chain(path):
    context = multiprocessing.get_context("fork")
    audit = Audit(path, max_bytes=8192, max_line=4096)
    audit.observe(made.cell())
    workers = [context.Process(target=write_some, args=(path, 30)) for _ in range(3)]
    threads = [
        threading.Thread(target=lambda: [audit.observe(made.cell()) for _ in range(20)])
        for _ in range(2)
    ]
    for worker in (*workers, *threads):
        worker.start()
    for worker in (*workers, *threads):
        worker.join(100)
    audit.close()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    checked = verify(path)
    assert checked.ok, checked.damage
    assert checked.lines == 1 + 3 * 30 + 2 * 20


def test_a_fork_goes_on_with_the_same_log(path):
    audit = Audit(path)
    audit.observe(made.cell())
    pid = os.fork()
    if pid == 0:
        audit.observe(made.cell())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    audit.observe(made.cell())
    audit.close()
    assert verify(path).ok
    assert len({line["who"]["pid"] for line in lines(path)}) == 2


def test_a_log_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(AuditFailed, match="No such file"):
        Audit(tmp_path / "missing" / "audit.jsonl")


def test_a_full_disk_leaves_no_half_line(path, monkeypatch):
    audit = Audit(path)
    audit.observe(made.cell())
    before = path.read_bytes()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        with pytest.raises(AuditFailed, match="disk is full"):
            audit.observe(made.cell())
    assert path.read_bytes() == before
    audit.observe(made.cell())
    audit.close()
    assert verify(path).ok


def test_options_that_make_no_sense_are_refused(path):
    for wrong in ({"code": "half"}, {"max_bytes": 10}, {"max_line": 5}):
        with pytest.raises(InvalidOption):
            Audit(path, **wrong)
    with pytest.raises(InvalidOption, match="no audit log"):
        verify(path)


def test_a_log_that_somebody_keeps_locked_is_given_up(path, monkeypatch):
    monkeypatch.setattr(audit_module, "LOCK_TIMEOUT", 0.05)
    audit = Audit(path)
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(AuditFailed, match="keeps it locked"):
            audit.observe(made.cell())
    wait_until(lambda: "belljar-audit" not in {t.name for t in threading.enumerate()}, 30)
    audit.observe(made.cell())
    audit.close()
    assert verify(path).lines == 1


def test_what_is_no_path_is_no_audit_log():
    with pytest.raises(InvalidOption, match="an audit log is a path, not None"):
        verify(None)
