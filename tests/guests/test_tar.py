"""Trees as tar archives: what went in comes out, and no archive does harm here or there."""

import contextlib
import errno
import gzip
import io
import json
import os
import subprocess
import tarfile
import time
import tracemalloc

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar import FileError, GuestLost, InvalidOption, Limits, SandboxError
from belljar.files import tar_export, tar_import
from belljar.files.tar_import import Input, MemberReader
from outside import guest_of

CONTRACT = pytest.mark.contract("native", "docker", "gvisor")
MB = 1 << 20

MAKE = """
import os
os.makedirs('t/a/b/empty'); os.chdir('t')
open('run.sh', 'w').write('#!/bin/sh'); os.chmod('run.sh', 0o755); os.utime('run.sh', (1, 1234567))
for i in range(300): open(f'a/{i}', 'w').write(str(i))
open('a/b/big', 'wb').write(bytes(range(256)) * 20_000)
open('long' + 'x' * 200 + 'é', 'w').close(); open(b'\\xff', 'w').close()
os.symlink('../run.sh', 'a/inside'); os.symlink('/etc/passwd', 'out'); os.mkfifo('pipe')
os.chdir('..')
"""


def make_tar(*members, mode="w"):
    """An archive of (name, content or a type with a link's target)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                archive.addfile(member)
    return file.getvalue()


def names(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def read_all(source, most=MB):
    reader = MemberReader(Input(source), "/w", most)
    while reader.next():
        continue


# --- out -----------------------------------------------------------------------------------------


@CONTRACT
def test_an_archive_has_the_whole_tree(sandbox, tmp_path):
    assert sandbox.run_code(MAKE).ok
    exported = sandbox.files.export_tar("t")
    assert len(exported.left_out) == 2
    with (tmp_path / "t.tar").open("wb") as file:
        file.writelines(exported)
    with tarfile.open(tmp_path / "t.tar") as archive:
        members = {member.name: member for member in archive}
        assert archive.extractfile("a/b/big").read() == bytes(range(256)) * 20_000
        assert archive.extractfile("a/299").read() == b"299"
    assert len(members) == 308
    assert members["a/b/empty"].isdir()
    assert (members["run.sh"].mode, members["run.sh"].mtime) == (0o755, 1234567)
    assert members["a/inside"].linkname == "../run.sh"
    assert "long" + "x" * 200 + "é" in members
    assert "\udcff" in members
    assert not {"out", "pipe"} & set(members)


@CONTRACT
def test_what_comes_out_goes_in_again(sandbox):
    assert sandbox.run_code(MAKE).ok
    moved = sandbox.files.import_tar(sandbox.files.export_tar("t"), "copies/u")
    assert (moved.files, moved.left_out) == (304, ())
    same = sandbox.commands.run("rm t/out t/pipe; diff -r --no-dereference t copies/u")
    assert (same.stdout, same.exit_code) == ("", 0)
    assert sandbox.files.stat("copies/u/run.sh").mode == 0o755
    assert sandbox.files.stat("copies/u/run.sh").mtime == 1234567


def test_programs_of_the_host_read_the_archive(sandbox, tmp_path):
    assert sandbox.run_code(MAKE).ok
    data = b"".join(sandbox.files.export_tar("t"))
    subprocess.run(["tar", "x"], input=data, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "a/inside").read_text() == "#!/bin/sh"


def test_an_empty_directory_is_an_empty_archive(sandbox):
    data = b"".join(sandbox.files.export_tar())
    assert names(data) == []
    assert sandbox.files.import_tar(data, "new").files == 0
    assert sandbox.files.stat("new").type == "dir"


def test_what_is_no_directory_cannot_be_exported(sandbox):
    sandbox.files.write("f", "x")
    for path, kind in (("f", NotADirectoryError), ("missing", FileNotFoundError)):
        with pytest.raises(kind):
            sandbox.files.export_tar(path)


def test_a_tree_larger_than_allowed_is_refused_before_it_is_read(make_sandbox):
    sandbox = make_sandbox(limits=Limits(workspace="64m", tmp="64m"))
    sandbox.files.write("f", bytes(2 * MB))
    with pytest.raises(FileError) as caught:
        sandbox.files.export_tar(max_size="1m")
    assert caught.value.errno == errno.EFBIG
    sandbox.run_code("for i in range(3): open(f'hole-{i}', 'w').truncate(60 << 20)")
    with pytest.raises(FileError, match="182m"):
        sandbox.files.export_tar()


def test_a_file_that_is_removed_or_changed_meanwhile_breaks_no_archive(sandbox):
    for name in ("gone", "grown"):
        sandbox.files.write(name, "x")
    exported = sandbox.files.export_tar()
    sandbox.run_code("import os; os.remove('gone'); open('grown', 'w').write('y' * 1000)")
    data = b"".join(exported)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["grown"]
        assert archive.extractfile("grown").read() == b"y" * 1000


def test_a_large_file_that_changes_while_it_is_read_is_an_error(sandbox):
    sandbox.files.write("big", bytes(9 * MB))
    exported = sandbox.files.export_tar()
    next(exported)
    sandbox.run_code("open('big', 'r+b').write(b'x')")
    with pytest.raises(FileError) as caught:
        list(exported)
    assert caught.value.errno == errno.EBUSY


def test_a_closed_archive_gives_nothing_more(sandbox):
    sandbox.run_code(MAKE)
    with sandbox.files.export_tar("t") as exported:
        assert next(exported)
    assert list(exported) == []


def test_a_large_tree_passes_in_small_parts(make_sandbox):
    """In both directions at once: no whole file is in memory at any time."""
    limits = Limits(workspace="512m", memory="1g")
    source, target = make_sandbox(limits=limits), make_sandbox(limits=limits)
    source.run_code("open('big', 'wb').write(bytes(200 << 20))")
    tracemalloc.start()
    try:
        assert target.files.import_tar(source.files.export_tar()).size == 200 * MB
        assert tracemalloc.get_traced_memory()[1] < 60 * MB
    finally:
        tracemalloc.stop()
    assert target.files.stat("big").size == 200 * MB


# --- in ------------------------------------------------------------------------------------------


@CONTRACT
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_unpacked_over_what_is_there(sandbox, mode):
    sandbox.files.write("d/kept", "1")
    sandbox.files.write("d/f", "a long text")
    sandbox.run_code("import os; os.symlink('/tmp/elsewhere', 'd/l')")
    data = make_tar(
        ("./", (tarfile.DIRTYPE, "")),
        ("./d", (tarfile.DIRTYPE, "")),
        ("./d/f", b"new"),
        ("d/l", b"no link any more"),
        ("d/hard", (tarfile.LNKTYPE, "./d/f")),
        ("e//link", (tarfile.SYMTYPE, "../d/f")),
        mode=mode,
    )
    moved = sandbox.files.import_tar(data)
    assert (moved.files, moved.size, moved.left_out) == (2, 19, ())
    assert sandbox.files.read("d/kept") == "1"
    assert sandbox.files.read("d/f") == sandbox.files.read("e/link") == "new"
    assert sandbox.files.read("d/l") == "no link any more"
    assert not sandbox.files.exists("/tmp/elsewhere")
    assert sandbox.run_code("os.path.samefile('d/f', 'd/hard')").value is True


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "a/..", "..", "//x", "./../x", "a/b/../c"]
)
@pytest.mark.parametrize("kind", ["file", "dir", "link to"])
def test_a_name_that_leads_out_is_refused(name, kind):
    content = {"file": b"x", "dir": (tarfile.DIRTYPE, ""), "link to": (tarfile.LNKTYPE, name)}
    archive = make_tar(("ok" if kind == "link to" else name, content[kind]))
    with pytest.raises(InvalidOption, match="leads out"):
        MemberReader(Input(archive), "/w", MB).next()


def test_links_that_lead_out_and_devices_are_left_out(sandbox):
    moved = sandbox.files.import_tar(
        make_tar(
            ("out", (tarfile.SYMTYPE, "/etc/passwd")),
            ("up", (tarfile.SYMTYPE, "../x")),
            ("null", (tarfile.CHRTYPE, "")),
            ("disk", (tarfile.BLKTYPE, "")),
            ("pipe", (tarfile.FIFOTYPE, "")),
            ("f", b"x"),
        )
    )
    assert moved.files == 1
    assert [entry.name for entry in sandbox.files.list()] == ["f"]
    said = "\n".join(moved.left_out)
    assert all(name in said for name in ("out", "up", "null", "disk", "pipe"))


def test_a_link_that_the_archive_made_does_not_lead_further_than_the_sandbox(sandbox, tmp_path):
    """Through a link that stays inside: the second member replaces it."""
    archive = make_tar(("l", (tarfile.SYMTYPE, "d/x")), ("d", (tarfile.DIRTYPE, "")), ("l", b"1"))
    sandbox.files.import_tar(archive)
    assert sandbox.files.stat("l").type == "file"
    assert not sandbox.files.exists("d/x")


@pytest.mark.parametrize("limit", ["max_size", "workspace"])
def test_an_archive_that_does_not_fit_is_refused_and_leaves_no_half_of_a_file(make_sandbox, limit):
    sandbox = make_sandbox(limits=Limits(workspace="6m"))
    archive = make_tar(("small", b"x"), ("big", bytes(9 * MB)))
    with pytest.raises(FileError) as caught:
        sandbox.files.import_tar(archive, max_size="1m" if limit == "max_size" else "1g")
    assert caught.value.errno == {"max_size": errno.EFBIG, "workspace": errno.ENOSPC}[limit]
    assert "big" not in {entry.name for entry in sandbox.files.list()}


def test_a_bomb_is_refused_by_the_size_that_it_claims(sandbox):
    member = tarfile.TarInfo("bomb")
    member.size = 1 << 50
    with pytest.raises(FileError) as caught:
        sandbox.files.import_tar(member.tobuf() + bytes(10 * 1024))
    assert caught.value.errno == errno.EFBIG


def test_an_archive_that_is_cut_off_anywhere_is_an_error():
    whole = make_tar(("a", b"x" * 600), ("b", b"y" * 600))
    end = len(whole.rstrip(b"\0"))
    for cut in (0, 100, 512, 900, 1536, 1600, 2048, 2500, end):
        with pytest.raises(InvalidOption, match="archive"):
            read_all(whole[:cut])
    assert MemberReader(Input(whole), "/w", MB).next()


def test_a_cut_archive_leaves_no_half_of_a_file(sandbox):
    whole = make_tar(("a", b"1"), ("b", os.urandom(5 * MB)))
    with pytest.raises(InvalidOption, match="archive"):
        sandbox.files.import_tar(whole[: 3 * MB])
    assert "b" not in {entry.name for entry in sandbox.files.list()}


def extended(name, content, type=tarfile.XHDTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.size = type, len(content)
    return member.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def endless(block):
    while True:
        yield block


def header_of_size(size):
    member = tarfile.TarInfo("x")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


HOSTILE = {
    "a header without end": lambda: [
        extended("x", b"")[:124] + b"77777777777\0" + bytes(376),
        *[bytes(MB)] * 100,
    ],
    "headers of headers": lambda: endless(extended("x", b"27 comment=" + b"x" * 15 + b"\n")),
    "global headers": lambda: (
        extended("x", b"%d k%06d=%s\n" % (100_010, number, b"x" * 99_995), tarfile.XGLTYPE)
        for number in range(100_000)
    ),
    "sparse": lambda: endless(extended("x", b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n")),
    "sparse 0.0": lambda: [extended("x", b"21 GNU.sparse.size=1\n")],
    "old sparse": lambda: [extended("x", b"", tarfile.GNUTYPE_SPARSE)],
    "nothing": lambda: [],
    "empty pieces": lambda: [b""] * 1000,
    "text": lambda: [b"this is not an archive" * 100],
    "another compression": lambda: [make_tar(("a", b"x"), mode="w:xz")],
    "broken gzip": lambda: [make_tar(("a", b"x" * 10_000), mode="w:gz")[:60]],
    "gzip with a wrong checksum": lambda: [make_tar(("a", b"x"), mode="w:gz")[:-8] + bytes(8)],
    "gzip of nothing": lambda: endless(gzip.compress(b"")),
    "a hole": lambda: [extended("a", b"", tarfile.REGTYPE) + bytes(512) + make_tar(("b", b""))],
    "a negative size": lambda: [header_of_size(-512)],
    "a file without a name": lambda: [make_tar((".", b"x"))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_ends_and_takes_little_memory(name):
    source = HOSTILE[name]()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidOption):
            read_all(source, most=1 << 40)
        assert tracemalloc.get_traced_memory()[1] < 80 * MB
    finally:
        tracemalloc.stop()


BROKEN = "a record of an extended header is broken"
RECORDS = {  # tarfile of CPython 3.11 takes half a minute for the first
    "digits": (b"1" * tar_import.MAX_EXTENDED, BROKEN),
    "a long length": (b"9" * 5000 + b" path=x\n", BROKEN),
    "a length beyond the end": (b"99 path=x\n", BROKEN),
    "a length of nothing": (b"0 path=x\n", BROKEN),
    "no newline": (b"9 path=x", BROKEN),
    "no value": (b"7 path\n", BROKEN),
    "spaces": (b" " * 9000, BROKEN),
    "many": (b"5 a=\n" * 20_000, "more than 100 records"),
    "a size of many digits": (b"61 size=" + b"9" * 52 + b"\n", "a size of"),
    "a negative size": (b"11 size=-1\n", "a size of"),
    "a time that is none": (b"11 mtime=x\n", "a time of"),
    "a name with NUL": (b"14 linkpath=\0\n", "NUL"),
    "sparse": (b"22 GNU.sparse.major=1\n", "sparse"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_an_extended_header_is_refused_with_the_reason(name):
    content, reason = RECORDS[name]
    with pytest.raises(InvalidOption, match=reason):
        read_all(extended("x", content) + make_tar(("a", b"x")))


def test_a_name_for_all_members_is_refused():
    for content in (b"12 path=a/b\n", b"10 size=1\n"):
        with pytest.raises(InvalidOption, match="for all"):
            read_all(extended("x", content, tarfile.XGLTYPE) + make_tar(("a", b"x")))


def test_extended_headers_say_name_time_and_size():
    records = b"12 path=a/b\n" + b"13 mtime=1.5\n" + b"10 size=3\n"
    source = extended("g", b"17 comment=hello\n11 mtime=9\n", tarfile.XGLTYPE)
    source += extended("x", records) + extended("cut", b"", tarfile.REGTYPE)
    source += b"xyz" + bytes(509) + make_tar(("b", b""))
    first, second = MemberReader(Input(source), "/w", MB).next()
    assert (first.path, first.data, first.arguments[3]) == ("a/b", b"xyz", 1_500_000_000)
    assert (second.path, second.arguments[3]) == ("b", 9 * tar_export.SECOND)


def test_gzip_may_have_several_members():
    whole = make_tar(("a", b"x" * 3000))
    packed = b"".join(gzip.compress(whole[start : start + 700]) for start in range(0, 6000, 700))
    (order,) = MemberReader(Input(packed), "/w", MB).next()
    assert order.data == b"x" * 3000


def test_links_without_end_are_left_out(sandbox):
    target = (tarfile.SYMTYPE, "x" * 100_000)
    moved = sandbox.files.import_tar(make_tar(*((str(number), target) for number in range(250))))
    assert "247 more" in moved.left_out[0]


@CONTRACT
def test_a_link_that_cannot_be_made_leaves_the_old_file(sandbox):
    sandbox.files.write("f", "old")
    with pytest.raises(FileNotFoundError):
        sandbox.files.import_tar(make_tar(("f", (tarfile.LNKTYPE, "missing"))))
    sandbox.files.import_tar(make_tar(("f", (tarfile.LNKTYPE, "f"))))
    assert sandbox.files.read("f") == "old"
    assert [entry.name for entry in sandbox.files.list()] == ["f"]


def test_an_import_does_not_go_on_in_another_guest(sandbox):
    whole = make_tar(*((str(number), b"x") for number in range(400)), ("big", bytes(MB)))

    def source():
        yield whole[: 300 * 1024]
        guest_of(sandbox).kill()
        while sandbox.alive:
            time.sleep(0.01)
        yield whole[300 * 1024 :]

    with pytest.raises(GuestLost, match="during the transfer"):
        sandbox.files.import_tar(source())


def test_members_are_counted(monkeypatch):
    monkeypatch.setattr(tar_import, "MAX_MEMBERS", 3)
    archive = make_tar(*[(str(number), b"x") for number in range(4)])
    with pytest.raises(FileError) as caught:
        MemberReader(Input(archive), "/w", MB).next()
    assert caught.value.errno == errno.E2BIG


def test_exported_files_are_counted(sandbox, monkeypatch):
    monkeypatch.setattr(tar_export, "MAX_MEMBERS", 3)
    sandbox.run_code("for i in range(4): open(str(i), 'w').close()")
    with pytest.raises(FileError) as caught:
        sandbox.files.export_tar()
    assert caught.value.errno == errno.E2BIG


@given(st.binary(max_size=3000), st.integers(0, 3000), st.booleans())
@settings(max_examples=200)
def test_any_bytes_are_orders_or_an_error(noise, at, packed):
    archive = bytearray(make_tar(("a/b", b"x" * 700), ("l", (tarfile.SYMTYPE, "a"))))
    archive[at : at + len(noise)] = noise
    data = bytes(archive)
    if packed:
        data = make_tar(("a", b"x" * 700), mode="w:gz")[:at] + noise
    with contextlib.suppress(SandboxError):
        reader = MemberReader(Input([data]), "/w", MB)
        while orders := reader.next():
            json.dumps([[each.verb, each.path, *each.arguments] for each in orders])


@pytest.mark.parametrize("source", ["a path", None, 3, [3], ["text"], object()])
def test_a_source_that_is_none_is_refused(sandbox, source):
    with pytest.raises(InvalidOption, match="archive"):
        sandbox.files.import_tar(source)


def test_files_and_iterables_are_sources(sandbox, tmp_path):
    data = make_tar(("f", b"x" * 3000))
    (tmp_path / "t.tar").write_bytes(data)
    pieces = (data[start : start + 7] for start in range(0, len(data), 7))
    for number, source in enumerate(((tmp_path / "t.tar").open("rb"), pieces, [b"", data])):
        sandbox.files.import_tar(source, str(number))
        assert sandbox.files.stat(f"{number}/f").size == 3000
        if hasattr(source, "close"):
            source.close()


def test_an_error_of_the_source_is_the_callers(sandbox):
    def broken():
        yield make_tar(("f", b"x" * 3000))[:1000]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.files.import_tar(broken())
    assert sandbox.run_code("1 + 1").value == 2


def test_both_event_loops_stream(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as one, open_sandbox() as other:
            await one.files.write("d/f", b"x" * 5 * MB)
            moved = await other.files.import_tar(await one.files.export_tar())
            assert moved.size == 5 * MB
            exported = await one.files.export_tar()
            first = await anext(exported)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(exported)
            assert scope.cancelled_caught
            rest = [chunk async for chunk in exported]  # a cancelled read loses nothing
            assert names(first + b"".join(rest)) == ["d", "d/f"]

    run_async(main)
