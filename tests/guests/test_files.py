"""Files of a sandbox: what is written is read, errors are errors, hostile trees do no harm."""

import contextlib
import errno
import json
import os
import stat
import time

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar import FileError, FileMissing, Limits, Outcome, Sandbox, SandboxError
from belljar.errors import ProtocolError
from belljar.files.api import AsyncFiles
from belljar.protocol import messages as guest_files
from outside import session_of

MB = 1 << 20


def test_text_and_bytes_are_read_as_written(sandbox):
    sandbox.files.write("a.txt", "héllo\n🎈\r\n")
    assert sandbox.files.read("a.txt") == "héllo\n🎈\r\n"
    assert sandbox.files.read("a.txt", format="bytes") == "héllo\n🎈\r\n".encode()
    sandbox.files.write("a.bin", bytes(range(256)))
    assert sandbox.files.read("a.bin", format="bytes") == bytes(range(256))


def test_code_and_files_see_the_same(sandbox):
    sandbox.files.write("in.txt", "from outside")
    assert sandbox.run_code("open('in.txt').read()").value == "from outside"
    sandbox.run_code("open('/workspace/out.txt', 'w').write('from inside')")
    assert sandbox.files.read("/workspace/out.txt") == "from inside"


def test_an_empty_file_is_empty(sandbox):
    assert sandbox.files.write("empty", "").size == 0
    assert sandbox.files.read("empty") == ""
    assert sandbox.files.read("empty", format="bytes") == b""


def test_writing_replaces_what_was_there(sandbox):
    sandbox.files.write("a", "a long text")
    sandbox.files.write("a", "short")
    assert sandbox.files.read("a") == "short"


def test_writing_makes_the_directories_above(sandbox):
    info = sandbox.files.write("a/b/c.txt", "x")
    assert info.path == "/workspace/a/b/c.txt"
    assert sandbox.files.stat("a/b").type == "dir"


def test_a_file_of_many_parts_is_whole(make_sandbox):
    sandbox = make_sandbox()
    data = os.urandom(9 * MB + 17)
    assert sandbox.files.write("big", data).size == len(data)
    assert sandbox.files.read("big", format="bytes") == data


def test_code_can_be_busy_while_files_are_used(sandbox):
    """The cell ends when it finds the file; the callback runs while it is busy."""
    code = """if True:
        import os
        print("ready")
        while not os.path.exists("stop"): pass
    """
    seen = []

    def on_stdout(text):
        if seen:
            return
        sandbox.files.write("other", "x" * MB)
        seen.append(len(sandbox.files.read("other")))
        sandbox.files.write("stop", "")

    assert sandbox.run_code(code, on_stdout=on_stdout, timeout=60).ok
    assert seen == [MB]


def test_a_description_says_what_a_file_is(sandbox):
    sandbox.run_code(
        "import os\n"
        "open('f', 'w').write('12345'); os.chmod('f', 0o640); os.utime('f', (1, 1234567.5))\n"
        "os.mkdir('d'); os.symlink('/nowhere', 'l'); os.mkfifo('p')"
    )
    info = sandbox.files.stat("f")
    assert (info.name, info.path, info.type) == ("f", "/workspace/f", "file")
    assert (info.size, info.mode, info.mtime) == (5, 0o640, 1234567.5)
    kinds = {entry.name: entry.type for entry in sandbox.files.list()}
    assert kinds == {"f": "file", "d": "dir", "l": "symlink", "p": "other"}
    assert sandbox.files.stat("l").type == "symlink"


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_link_says_where_it_leads_and_can_be_followed(sandbox):
    sandbox.run_code(
        "import os\nos.makedirs('d/e'); open('d/f', 'w').write('123')\n"
        "os.symlink('d/f', 'file'); os.symlink('d', 'dir'); os.symlink('nowhere', 'dangling')\n"
        "os.symlink('/dev/null', 'device'); os.symlink('self', 'self')"
    )
    found = {entry.name: entry for entry in sandbox.files.list()}
    said = {name: (each.target, each.target_type) for name, each in found.items()}
    assert said == {
        "d": (None, None),
        "file": ("d/f", "file"),
        "dir": ("d", "dir"),
        "dangling": ("nowhere", None),
        "device": ("/dev/null", "other"),
        "self": ("self", None),
    }
    assert [name for name, each in found.items() if each.is_dir] == ["d", "dir"]
    assert [name for name, each in found.items() if each.is_file] == ["file"]
    uid, gid = sandbox.run_code("os.getuid(), os.getgid()").value
    assert {(each.uid, each.gid) for each in found.values()} == {(uid, gid)}
    followed = sandbox.files.stat("file", follow=True)
    assert (followed.path, followed.type, followed.size) == ("/workspace/file", "file", 3)
    assert followed.target is None
    assert sandbox.files.stat("dir/f", follow=True).type == "file"
    for path, number in (("dangling", errno.ENOENT), ("self", errno.ELOOP)):
        with pytest.raises(FileError) as caught:
            sandbox.files.stat(path, follow=True)
        assert caught.value.errno == number


@pytest.mark.contract("native", "docker", "gvisor")
def test_realpath_is_the_path_without_links(sandbox):
    sandbox.run_code(
        "import os\nos.makedirs('d/e'); open('d/f', 'w').close()\n"
        "os.symlink('d', 'l'); os.symlink('/workspace/l/f', 'm'); os.symlink('n', 'n')\n"
        "open('odd (deleted)', 'w').close()"
    )
    real = sandbox.files.realpath
    assert real(".") == "/workspace"
    assert real("m") == real("l/e/../f") == "/workspace/d/f"
    assert real("odd (deleted)") == "/workspace/odd (deleted)"
    with pytest.raises(FileError) as caught:
        real("n")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.contract("native", "docker", "gvisor")
def test_realpath_of_what_may_be_missing_follows_links_as_the_kernel_does(sandbox):
    sandbox.run_code(
        "import os\nos.makedirs('d/e'); open('d/f', 'w').close()\n"
        "for i in range(42): os.symlink(f'c{i - 1}' if i else 'd', f'c{i}')\n"
        "os.symlink('d/e', 'l'); os.symlink('../gone', 'd/up'); os.symlink('/tmp/.', 'abs')\n"
        "os.symlink('n/x', 'n')"
    )

    def real(path):
        return sandbox.files.realpath(path, strict=False)

    assert real(".") == "/workspace"
    assert real("/") == real("/..") == "/"
    assert real("missing/x") == "/workspace/missing/x"
    assert real("l/../f") == "/workspace/d/f"
    assert real("l/missing/../../g") == "/workspace/d/g"
    assert real("d/up/x") == "/workspace/gone/x"
    assert real("d/up/..") == "/workspace"
    assert real("abs/x") == "/tmp/x"
    assert real("d/f/x") == "/workspace/d/f/x"
    assert real("c39/x") == "/workspace/d/x"
    for path, number in (
        ("n/q", errno.ELOOP),
        ("c40", errno.ELOOP),
        ("x" * 256, errno.ENAMETOOLONG),
    ):
        with pytest.raises(FileError) as caught:
            real(path)
        assert caught.value.errno == number


def test_long_targets_of_many_links_are_listed(sandbox):
    made = sandbox.run_code(
        "import os\nfor i in range(500): os.symlink(b'\\xff' * 4000 + b'%d' % i, str(i))"
    )
    assert made.ok
    assert {len(entry.target) for entry in sandbox.files.list()} == {4001, 4002, 4003}


def test_a_listing_is_sorted_and_whole(sandbox):
    sandbox.run_code("for i in range(1234): open(f'{i:04}', 'w').close()")
    assert [entry.name for entry in sandbox.files.list()] == [f"{i:04}" for i in range(1234)]
    assert len(sandbox.files.list(".")) == 1234


def test_exists_tells_true_from_false_and_does_not_follow_links(sandbox):
    sandbox.run_code("import os; os.symlink('/nowhere', 'dangling'); open('f', 'w').close()")
    assert sandbox.files.exists("f")
    assert sandbox.files.exists("dangling")
    assert not sandbox.files.exists("missing")
    assert not sandbox.files.exists("f/below")


def test_make_dir_may_be_repeated(sandbox):
    assert sandbox.files.make_dir("a/b").type == "dir"
    assert sandbox.files.make_dir("a/b").type == "dir"


def test_rename_moves_files_and_directories(sandbox):
    sandbox.files.write("d/f", "x")
    assert sandbox.files.rename("d", "e").path == "/workspace/e"
    assert sandbox.files.rename("e/f", "g").path == "/workspace/g"
    assert sandbox.files.read("g") == "x"
    assert not sandbox.files.exists("d")
    with pytest.raises(FileError) as caught:  # /tmp is another file system
        sandbox.files.rename("g", "/tmp/g")
    assert caught.value.errno == errno.EXDEV


def test_remove_takes_files_links_and_whole_trees(sandbox):
    sandbox.run_code(
        "import os\nos.makedirs('t/a/b'); open('t/a/f', 'w').close()\n"
        "os.symlink('/workspace/kept', 't/link'); os.mkfifo('t/p'); open('kept', 'w').close()"
    )
    sandbox.files.remove("t")
    assert [entry.name for entry in sandbox.files.list()] == ["kept"]
    sandbox.files.remove("kept")
    assert sandbox.files.list() == []


@pytest.mark.contract("native", "docker", "gvisor")
@pytest.mark.parametrize("path", ["/workspace", ".", "d/..", "/tmp", "/home/user", "/dev/shm"])
def test_a_mount_point_is_not_removed_nor_emptied(sandbox, path):
    sandbox.files.make_dir("d")
    sandbox.files.write(f"{path}/kept/f", "x")
    with pytest.raises(FileError, match="is a mount point") as caught:
        sandbox.files.remove(path)
    assert caught.value.errno == errno.EBUSY
    assert sandbox.files.read(f"{path}/kept/f") == "x"
    sandbox.run_code(f"import os; os.symlink({path!r}, '/workspace/link')")
    with pytest.raises(FileError, match="is a mount point"):
        sandbox.files.remove("link/kept/..")
    sandbox.files.remove("link")  # the link itself is none
    sandbox.files.remove(f"{path}/kept")
    assert not sandbox.files.exists(f"{path}/kept")


# --- errors ----------------------------------------------------------------------------------


def test_errors_of_files_are_ours_and_the_builtin_ones(sandbox):
    sandbox.files.write("f", "x")
    sandbox.files.make_dir("d")
    cases = [
        (lambda: sandbox.files.read("missing"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.stat("missing"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.list("missing"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.remove("missing"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.rename("missing", "x"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.read("d"), IsADirectoryError, errno.EISDIR),
        (lambda: sandbox.files.write("d", "x"), IsADirectoryError, errno.EISDIR),
        (lambda: sandbox.files.read("f/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.list("f"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.write("f/x", "x"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.write("f/x/y", "x"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.upload(__file__, "f/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.realpath("missing"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.realpath("f/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.stat("missing", follow=True), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.watch("missing"), FileNotFoundError, errno.ENOENT),
        (lambda: sandbox.files.watch("f"), NotADirectoryError, errno.ENOTDIR),
        (lambda: sandbox.files.make_dir("f"), FileExistsError, errno.EEXIST),
        (lambda: sandbox.files.write("/etc/passwd", "x"), OSError, None),
        (lambda: sandbox.files.write("/new", "x"), OSError, None),
        (lambda: sandbox.files.remove("/usr"), OSError, None),
        (lambda: sandbox.files.remove("/"), OSError, None),
        (lambda: sandbox.files.read("x" * 5000), OSError, errno.ENAMETOOLONG),
    ]
    for act, kind, number in cases:
        with pytest.raises(kind) as caught:
            act()
        assert isinstance(caught.value, FileError)
        assert isinstance(caught.value, SandboxError)
        assert number in (None, caught.value.errno)
        assert caught.value.path.startswith("/")
    assert sandbox.run_code("1 + 1").value == 2


def test_a_missing_file_is_file_missing_and_names_the_path(sandbox):
    with pytest.raises(FileMissing, match=r"nothing\.txt"):
        sandbox.files.read("nothing.txt")


def test_bytes_that_are_no_text_are_said_to_be_none(sandbox):
    sandbox.files.write("f", b"a\xff")
    with pytest.raises(SandboxError, match="UTF-8") as caught:
        sandbox.files.read("f")
    assert 'format="bytes"' in caught.value.hint


@pytest.mark.parametrize("path", ["", "a\0b", None, b"x", 3])
def test_a_path_that_is_none_is_refused(sandbox, path):
    for act in (sandbox.files.read, sandbox.files.stat, sandbox.files.list, sandbox.files.remove):
        with pytest.raises(ValueError, match="path"):
            act(path)


@pytest.mark.parametrize("data", [None, 3, ["x"]])
def test_data_that_is_neither_text_nor_bytes_is_refused(sandbox, data):
    with pytest.raises(ValueError, match="data"):
        sandbox.files.write("f", data)
    assert not sandbox.files.exists("f")


def test_an_unknown_format_is_refused(sandbox):
    with pytest.raises(ValueError, match="format"):
        sandbox.files.read("f", format="json")


# --- what only a hostile guest makes ---------------------------------------------------------


def test_a_fifo_is_refused_at_once(sandbox):
    sandbox.run_code("import os; os.mkfifo('p')")
    before = time.monotonic()
    for act in (lambda: sandbox.files.read("p"), lambda: sandbox.files.write("p", "x")):
        with pytest.raises(FileError):
            act()
    assert time.monotonic() - before < 30
    assert sandbox.run_code("1 + 1").value == 2


def test_a_fifo_somebody_reads_is_refused_too(sandbox):
    sandbox.run_code(
        "import os, subprocess\nos.mkfifo('p')\nchild = subprocess.Popen(['cat', 'p'])"
    )
    with pytest.raises(FileError):
        sandbox.files.write("p", "x")
    sandbox.run_code("child.kill(); child.wait()")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/full", "/dev/urandom"])
def test_devices_are_no_files(sandbox, path):
    with pytest.raises(FileError):
        sandbox.files.read(path)


def test_files_that_lie_about_their_size_end(sandbox):
    for path in ("/proc/self/status", "/proc/meminfo", "/proc/self/pagemap"):
        try:
            assert len(sandbox.files.read(path, format="bytes")) < 16 * MB
        except FileError:
            continue


def test_a_socket_and_a_loop_of_links_are_refused(sandbox):
    sandbox.run_code(
        "import os, socket\ns = socket.socket(socket.AF_UNIX); s.bind('s')\n"
        "os.symlink('l2', 'l1'); os.symlink('l1', 'l2')"
    )
    for path, number in (("s", errno.ENXIO), ("l1", errno.ELOOP)):
        with pytest.raises(FileError) as caught:
            sandbox.files.read(path)
        assert caught.value.errno == number


def test_a_link_out_of_the_workspace_leads_nowhere_but_into_the_sandbox(sandbox, tmp_path):
    """The host's file of the same path is not what is read or written."""
    canary = tmp_path / "canary"
    canary.write_text("secret")
    os.chmod(canary, 0o666)
    sandbox.run_code(f"import os; os.symlink({str(canary)!r}, 'link')")
    with pytest.raises(FileError):
        sandbox.files.read("link")
    with pytest.raises(FileError):
        sandbox.files.write("link", "overwritten")
    with pytest.raises(FileError):
        sandbox.files.read("../../../.." + str(canary))
    assert canary.read_text() == "secret"


def test_a_file_that_grows_while_it_is_read_ends(sandbox):
    sandbox.run_code(
        "import threading\n"
        "open('f', 'wb').close()\n"
        "def grow():\n"
        "    with open('f', 'ab') as file:\n"
        "        for _ in range(100): file.write(bytes(1 << 20)); file.flush()\n"
        "t = threading.Thread(target=grow); t.start()"
    )
    assert len(sandbox.files.read("f", format="bytes")) <= 100 * MB


def test_a_sparse_giant_is_refused_before_it_is_read(make_sandbox):
    sandbox = make_sandbox(limits=Limits(workspace="4g"))
    assert sandbox.run_code("open('f', 'w').truncate(3 << 30)").ok
    before = time.monotonic()
    with pytest.raises(FileError) as caught:
        sandbox.files.read("f", format="bytes")
    assert caught.value.errno == errno.EFBIG
    assert time.monotonic() - before < 30
    assert sandbox.run_code("1 + 1").value == 2


def test_a_tree_thousands_deep_is_removed(sandbox):
    made = sandbox.run_code(
        "import os\nfor _ in range(3000): os.mkdir('d' * 20); os.chdir('d' * 20)\n"
        "open('leaf', 'w').close(); os.chdir('/workspace')",
        timeout=60,
    )
    assert made.ok
    sandbox.files.remove("d" * 20)
    assert sandbox.files.list() == []


def test_a_tree_thousands_wide_is_removed(sandbox):
    made = sandbox.run_code(
        "import os\nos.mkdir('w')\n"
        "for i in range(3000): os.mkdir(f'w/{i}'); open(f'w/{i}/f', 'w').close()",
        timeout=60,
    )
    assert made.ok
    sandbox.files.remove("w")
    assert sandbox.files.list() == []


def test_a_directory_too_large_to_list_is_refused_and_the_sandbox_goes_on(sandbox):
    sandbox.run_code("for i in range(10_001): open(str(i), 'w').close()", timeout=60)
    with pytest.raises(FileError, match="entries"):
        sandbox.files.list()
    assert sandbox.run_code("1 + 1").value == 2


def test_names_that_are_no_text_are_listed_read_and_removed(sandbox):
    sandbox.run_code(
        "import os\n"
        "for name in (b'\\xff\\xfe', b'new\\nline', b'\\x1b[31m', b' ', b'-rf', b'\\\\', b'*'):\n"
        "    with open(name, 'w') as file: file.write('x')"
    )
    names = [entry.name for entry in sandbox.files.list()]
    assert len(names) == 7
    for name in names:
        assert sandbox.files.read(name) == "x"
        sandbox.files.remove(name)
    assert sandbox.files.list() == []


def test_names_of_the_greatest_length_are_listed(sandbox):
    sandbox.run_code("for i in range(600): open(f'{i:04}' + 'é' * 125, 'w').close()")
    assert len(sandbox.files.list()) == 600


def test_a_deep_path_is_refused_clearly(sandbox):
    with pytest.raises(FileError):
        sandbox.files.write("d/" * 3000 + "f", "x")
    assert sandbox.run_code("1 + 1").value == 2


def test_the_workspace_limit_holds_for_writes_from_outside_too(make_sandbox):
    sandbox = make_sandbox(limits=Limits(workspace="1m"))
    with pytest.raises(FileError) as caught:
        sandbox.files.write("f", bytes(2 * MB))
    assert caught.value.errno == errno.ENOSPC
    assert "Limits(workspace=...)" in caught.value.hint
    assert sandbox.files.list() == []
    assert sandbox.files.write("f", bytes(MB // 2)).size == MB // 2
    full = sandbox.run_code("open('g', 'wb').write(bytes(1 << 20))")
    assert full.outcome is Outcome.error
    assert full.error.name == "OSError"


@pytest.mark.contract("native", "docker", "gvisor")
@pytest.mark.parametrize("place", ["/workspace", "/tmp"])
def test_a_file_that_does_not_fit_leaves_the_old_one_whole(make_sandbox, tmp_path, place):
    """Both in parts and in one request."""
    sandbox = make_sandbox(limits=Limits(workspace="12m", tmp="12m"))
    old, new = b"old" * MB, os.urandom(10 * MB)
    sandbox.files.write(f"{place}/d/f", old)
    sandbox.run_code(f"import os; os.symlink('{place}/d/f', '{place}/link')")
    (tmp_path / "new").write_bytes(new)
    limit = {"/workspace": "workspace", "/tmp": "tmp"}[place]
    for act in (
        lambda: sandbox.files.write(f"{place}/d/f", new),
        lambda: sandbox.files.write(f"{place}/link", new),
        lambda: sandbox.files.upload(tmp_path / "new", f"{place}/d/f"),
    ):
        with pytest.raises(FileError) as caught:
            act()
        assert caught.value.errno == errno.ENOSPC
        assert f"Limits({limit}=...)" in caught.value.hint
        assert sandbox.files.read(f"{place}/d/f", format="bytes") == old
        assert sandbox.run_code(f"import os; os.listdir('{place}/d')").value == ["f"]
    sandbox.files.write(f"{place}/filler", bytes(8 * MB))
    (tmp_path / "new").write_bytes(new[: 2 * MB])
    for act in (
        lambda: sandbox.files.write(f"{place}/d/f", new[: 2 * MB]),
        lambda: sandbox.files.upload(tmp_path / "new", f"{place}/d/f"),
    ):
        with pytest.raises(FileError, match="space"):
            act()
        assert sandbox.files.read(f"{place}/d/f", format="bytes") == old
        assert sandbox.run_code(f"os.listdir('{place}/d')").value == ["f"]
    sandbox.files.remove(f"{place}/filler")
    assert sandbox.files.write(f"{place}/d/f", new[: 8 * MB]).size == 8 * MB


@pytest.mark.contract("native", "docker", "gvisor")
def test_an_upload_that_is_broken_off_leaves_the_old_file_whole(run_async, open_sandbox, tmp_path):
    (tmp_path / "f").write_bytes(os.urandom(9 * MB))

    async def enough(done, total):
        raise KeyError("enough")

    async def upload():
        async with open_sandbox() as sandbox:
            await sandbox.files.write("f", "old")
            with pytest.raises(KeyError):
                await sandbox.files.upload(tmp_path / "f", on_progress=enough)
            assert await sandbox.files.read("f") == "old"
            assert (await sandbox.run_code("import os; os.listdir()")).value == ["f"]

    run_async(upload)


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_write_that_is_cancelled_leaves_the_old_file_whole(run_async, open_sandbox):
    async def write():
        async with open_sandbox() as sandbox:
            await sandbox.files.write("f", "old")
            ask = sandbox.files.call
            with anyio.CancelScope() as scope:

                async def cancel(path, header, *rest, **options):
                    if header.get("offset"):
                        scope.cancel()
                        await anyio.sleep(0)  # else it may be done before it hears of it
                    return await ask(path, header, *rest, **options)

                sandbox.files.call = cancel
                await sandbox.files.write("f", bytes(9 * MB))
            assert scope.cancelled_caught
            sandbox.files.call = ask
            assert await sandbox.files.read("f") == "old"
            assert (await sandbox.run_code("import os; os.listdir()")).value == ["f"]

    run_async(write)


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_file_that_is_half_there_is_in_no_listing(run_async, open_sandbox, tmp_path):
    (tmp_path / "f").write_bytes(bytes(9 * MB))

    async def upload():
        seen = []

        async def look(done, total):  # awaited: the upload goes on after it
            if seen:
                return
            seen.extend((await sandbox.run_code("import os; os.listdir()")).value)
            assert [entry.name for entry in await sandbox.files.list()] == ["old"]
            cell = await sandbox.run_code("open('other', 'w').close()")
            assert (cell.files.created, cell.files.changed) == (("other",), ())
            assert (await anext(events)).name == "other"

        async with open_sandbox() as sandbox:
            await sandbox.files.write("old", "x")
            events = await sandbox.files.watch()
            await sandbox.files.upload(tmp_path / "f", on_progress=look)
            assert sorted(seen)[1:] == ["old"]
            assert min(seen).startswith(".belljar-part-")
            created = await anext(events)
            await sandbox.files.write("old", bytes(9 * MB))
            written = await anext(events)
        assert (created.type, created.name) == ("created", "f")
        assert (written.type, written.name) == ("written", "old")

    run_async(upload)


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_file_that_is_replaced_keeps_its_mode_and_the_links_to_it(sandbox):
    sandbox.run_code(
        "import os\nos.mkdir('d'); open('d/f', 'w').write('old'); os.chmod('d/f', 0o751)\n"
        "os.link('d/f', 'second'); os.symlink('d/f', 'link'); os.symlink('d/g', 'dangling')"
    )
    assert sandbox.files.write("link", "new").type == "symlink"
    assert sandbox.files.write("dangling", "made").type == "symlink"
    info = sandbox.files.stat("d/f")
    assert (info.type, info.mode, info.size) == ("file", 0o751, 3)
    assert sandbox.files.read("d/f") == "new"
    assert sandbox.files.read("d/g") == "made"
    assert sandbox.files.read("second") == "old"  # the other names stay with the old file


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_file_is_written_in_place_where_no_other_can_be_made(sandbox, tmp_path):
    sandbox.run_code(
        "import os\nos.mkdir('d'); open('d/f', 'w').write('a long text'); os.chmod('d', 0o555)\n"
        "os.mkdir('locked'); open('locked/f', 'w').write('old'); os.chmod('locked/f', 0o444)"
    )
    inode = sandbox.run_code("os.stat('d/f').st_ino").value
    assert sandbox.files.write("d/f", bytes(5 * MB)).size == 5 * MB
    (tmp_path / "f").write_text("uploaded")
    sandbox.files.upload(tmp_path / "f", "d/f")
    assert sandbox.files.read("d/f") == "uploaded"
    assert sandbox.run_code("os.stat('d/f').st_ino").value == inode
    with pytest.raises(PermissionError):
        sandbox.files.write("d/new", "x")
    with pytest.raises(PermissionError):
        sandbox.files.write("locked/f", "x")  # only its directory is writable
    assert sandbox.files.read("locked/f") == "old"


def test_files_stay_when_the_interpreter_dies_and_are_gone_with_the_sandbox(make_sandbox):
    sandbox = make_sandbox()
    sandbox.files.write("f", "x")
    sandbox.run_code("import os; os._exit(1)")
    assert sandbox.files.read("f") == "x"
    assert not make_sandbox().files.exists("f")


def test_modes_of_new_files_are_usual(sandbox):
    assert sandbox.files.write("f", "x").mode == 0o644
    assert sandbox.files.make_dir("d").mode == 0o755
    sandbox.run_code("open('g', 'w').close()")
    assert stat.filemode(sandbox.files.stat("g").mode)[1:] == "rw-r--r--"


@pytest.fixture(scope="module")
def one_sandbox(backend):
    with Sandbox(environment="python") as sandbox:
        yield sandbox


@given(st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=60), st.binary())
@settings(max_examples=60)
def test_any_name_and_any_content_travel(one_sandbox, name, data):
    if name in (".", "..") or len(name.encode("utf-8", "surrogatepass")) > 255:
        return
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        with pytest.raises(SandboxError):
            one_sandbox.files.write(name, data)
        return
    info = one_sandbox.files.write(f"/tmp/{name}", data)
    assert info.name == name
    assert one_sandbox.files.read(f"/tmp/{name}", format="bytes") == data
    assert name in [entry.name for entry in one_sandbox.files.list("/tmp")]
    one_sandbox.files.remove(f"/tmp/{name}")


# --- whole files and trees, in and out -------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """Nested, with every kind of file."""
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a/b/deep.bin").write_bytes(os.urandom(5 * MB + 3))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "a/inside").symlink_to("b/deep.bin")
    for number in range(600):
        (root / f"a/{number}").write_text(str(number))
    os.utime(root / "run.sh", (1, 1234567))
    return root


def content(root):
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def test_a_tree_goes_in_and_comes_out_as_it_was(sandbox, tree, tmp_path):
    sent = sandbox.files.upload(tree)
    assert (sent.files, sent.left_out) == (602, ())
    assert sandbox.run_code("int(open('tree/a/599').read())").value == 599
    got = sandbox.files.download("tree", tmp_path / "back")
    assert (got.files, got.size) == (sent.files, sent.size)
    assert content(tmp_path / "back") == content(tree)
    assert stat.S_IMODE((tmp_path / "back/run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "back/run.sh").stat().st_mtime == 1234567


def test_a_file_goes_where_it_is_told(sandbox, tmp_path):
    (tmp_path / "f.txt").write_text("x")
    for target, place in ((None, "f.txt"), ("sub/", "sub/f.txt"), ("/tmp/g", "/tmp/g")):
        sandbox.files.upload(str(tmp_path / "f.txt"), target)
        assert sandbox.files.read(place) == "x"
    sandbox.files.download("f.txt", tmp_path / "new/dir/h")
    assert (tmp_path / "new/dir/h").read_text() == "x"
    sandbox.files.download("/tmp/g", tmp_path / "new")
    assert (tmp_path / "new/g").read_text() == "x"


def test_what_is_there_is_replaced_and_directories_are_merged(sandbox, tmp_path):
    here = tmp_path / "d"
    (here / "sub").mkdir(parents=True)
    (here / "sub/f").write_text("old")
    (here / "kept").write_text("kept")
    sandbox.run_code("import os; os.makedirs('d/sub'); open('d/sub/f', 'w').write('new')")
    sandbox.files.download("d", here)
    assert content(here) == {"sub": None, "sub/f": b"new", "kept": b"kept"}
    (here / "sub/f").write_text("newest")
    sandbox.run_code("open('d/other', 'w').close()")
    sandbox.files.upload(here)
    assert sandbox.files.read("d/sub/f") == "newest"
    assert sandbox.files.exists("d/other")


def test_progress_is_told_in_bytes(sandbox, tree, tmp_path):
    for act in (
        lambda told: sandbox.files.upload(tree, on_progress=told),
        lambda told: sandbox.files.download("tree", tmp_path / "b", on_progress=told),
    ):
        seen = []
        moved = act(lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1] == (moved.size, moved.size)
        assert seen == sorted(seen)
        assert len(seen) > 1


def test_an_error_of_the_progress_callback_ends_it_and_leaves_nothing_half(sandbox, tree, tmp_path):
    sandbox.files.upload(tree)

    def enough(done, total):
        raise KeyError("enough")

    for act in (
        lambda: sandbox.files.upload(tree, on_progress=enough),
        lambda: sandbox.files.download("tree", tmp_path / "b", on_progress=enough),
    ):
        with pytest.raises(KeyError):
            act()
    assert not list((tmp_path / "b").rglob(".belljar*"))
    assert sandbox.run_code("1 + 1").value == 2


def test_transfers_are_awaited_too(run_async, open_sandbox, tree, tmp_path):
    async def carry():
        seen = []

        async def told(done, total):
            seen.append(done)

        async with open_sandbox() as sandbox:
            await sandbox.files.upload(tree, on_progress=told)
            await sandbox.files.download("tree", tmp_path / "back", on_progress=told)
        assert seen

    run_async(carry)
    assert content(tmp_path / "back") == content(tree)


def test_what_cannot_be_carried_is_told(sandbox, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/out").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "t/pipe")
    told = " ".join(sandbox.files.upload(tmp_path / "t").left_out)
    assert "'out'" in told
    assert "'pipe'" in told
    sandbox.run_code("import os; os.symlink('/', 't/root'); os.mkfifo('t/p2'); os.mkdir('t/d')")
    told = " ".join(sandbox.files.download("t", tmp_path / "b").left_out)
    assert "'root'" in told
    assert "'p2'" in told
    assert content(tmp_path / "b") == {"d": None}


def test_a_download_is_bounded_by_bytes_and_files(sandbox, tmp_path):
    sandbox.run_code(
        "import os\nos.mkdir('s'); os.mkdir('m')\n"
        "for i in range(8): open(f's/{i}', 'w').truncate(100 << 20)\n"
        "for i in range(10_001): os.close(os.open(f'm/{i}', 64))\n"
    )
    before = time.monotonic()
    for path, number in (("s", errno.EFBIG), ("m", errno.E2BIG)):
        with pytest.raises(FileError) as caught:
            sandbox.files.download(path, tmp_path / path)
        assert caught.value.errno == number
    with pytest.raises(FileError, match="max_size"):
        sandbox.files.download("s/0", tmp_path, max_size="1m")
    assert time.monotonic() - before < 60
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) == 0


def test_a_petabyte_that_is_not_there_is_refused_at_once(make_sandbox, tmp_path):
    sandbox = make_sandbox(limits=Limits(workspace="1t", tmp="1t"))
    made = sandbox.run_code("open('f', 'w').truncate(1 << 40)")
    assert made.ok, made
    with pytest.raises(FileError) as caught:
        sandbox.files.download("f", tmp_path / "f", max_size="1g")
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "f").exists()


def test_a_download_of_a_file_that_changes_is_whole_or_an_error(sandbox, tmp_path):
    sandbox.run_code(
        "import threading\n"
        "def write():\n"
        "    n = 0\n"
        "    while True:\n"
        "        n += 1\n"
        "        with open('f', 'r+b') as file: file.write(bytes([n % 256]) * (9 << 20))\n"
        "open('f', 'wb').write(bytes(9 << 20))\n"
        "threading.Thread(target=write, daemon=True).start()"
    )
    refused = []
    for _ in range(5):
        try:
            sandbox.files.download("f", tmp_path / "f")
        except FileError as error:
            refused.append(error.errno)
            continue
        # What one system call is just writing may be half there, and no more than that.
        assert len(set((tmp_path / "f").read_bytes())) <= 2
    assert set(refused) <= {errno.EBUSY}
    assert not list(tmp_path.glob(".belljar*"))


def test_a_download_never_writes_through_a_link_of_the_hosts_either(sandbox, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    here = tmp_path / "here"
    here.mkdir()
    (here / "d").symlink_to(outside)
    sandbox.run_code("import os; os.makedirs('t/d'); open('t/d/f', 'w').close()")
    with pytest.raises(FileError):
        sandbox.files.download("t", here)
    assert list(outside.iterdir()) == []


def test_a_swap_of_directory_and_link_while_downloading_leads_nothing_out(sandbox, tmp_path):
    canary = tmp_path / "canary"
    canary.mkdir()
    sandbox.run_code(f"""if True:
        import os, threading
        os.makedirs('t/real'); os.symlink({str(canary)!r}, 't/link')
        for i in range(20): open(f't/real/{{i}}', 'w').write('x')
        def swap():
            while True:
                os.rename('t/real', 't/aside'); os.rename('t/link', 't/real')
                os.rename('t/real', 't/link'); os.rename('t/aside', 't/real')
        threading.Thread(target=swap, daemon=True).start()
    """)
    for _ in range(80):
        try:
            sandbox.files.download("t", tmp_path / "out")
        except FileError:
            continue
    assert list(canary.iterdir()) == []
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_symlink()]


def test_missing_and_wrong_paths_are_clear_errors(sandbox, tmp_path):
    (tmp_path / "f").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    sandbox.files.write("g", "x")
    sandbox.run_code("import os; os.mkfifo('p')")
    cases = [
        (lambda: sandbox.files.upload(tmp_path / "missing"), errno.ENOENT),
        (lambda: sandbox.files.upload(tmp_path / "pipe"), errno.EINVAL),
        (lambda: sandbox.files.upload(tmp_path / "f", "/etc/x"), None),
        (lambda: sandbox.files.upload(tmp_path / "f", "g/x"), None),
        (lambda: sandbox.files.download("missing", tmp_path), errno.ENOENT),
        (lambda: sandbox.files.download("p", tmp_path), errno.EINVAL),
        (lambda: sandbox.files.download("g", tmp_path / "f/x"), None),
        (lambda: sandbox.files.download("g", "/proc/x"), None),
    ]
    for act, number in cases:
        with pytest.raises(FileError) as caught:
            act()
        assert number in (None, caught.value.errno)
    for local in ("", 3, None, b"x", "a\0b"):
        for act in (
            lambda local=local: sandbox.files.upload(local),
            lambda local=local: sandbox.files.download("g", local),
        ):
            with pytest.raises(ValueError, match="local"):
                act()
    with pytest.raises(ValueError, match="on_progress"):
        sandbox.files.upload(tmp_path / "f", on_progress=3)
    with pytest.raises(ValueError, match="max_size"):
        sandbox.files.download("g", tmp_path, max_size="much")


def test_a_download_through_a_link_the_caller_named_is_what_it_points_to(sandbox, tmp_path):
    sandbox.run_code(
        "import os; os.mkdir('d'); open('d/f', 'w').write('x')\n"
        "os.symlink('d', 'dl'); os.symlink('d/f', 'fl')"
    )
    sandbox.files.download("dl", tmp_path / "d")
    sandbox.files.download("fl", tmp_path / "f")
    assert content(tmp_path / "d") == {"f": b"x"}
    assert (tmp_path / "f").read_text() == "x"


def test_a_tree_thousands_deep_is_downloaded_up_to_a_depth(sandbox, tmp_path):
    sandbox.run_code(
        "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chdir('/workspace')",
        timeout=60,
    )
    moved = sandbox.files.download(".", tmp_path / "t")
    assert "too deep" in moved.left_out[0]
    assert sandbox.run_code("1 + 1").value == 2


# --- a guest whose init lies -------------------------------------------------------------------


@pytest.mark.fresh
def test_a_guest_that_breaks_the_protocol_in_an_answer_is_asked_no_more(make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code("x = 1")
    place = session_of(sandbox)

    async def lie(*args, **options):
        raise ProtocolError("a lie")

    place.channel.call = lie
    with pytest.raises(ProtocolError):
        sandbox.files.read("a")
    assert not place.alive
    execution = sandbox.run_code("1 + 1")
    assert execution.value == 2
    assert not execution.state_preserved


class Liar:
    """A guest that answers every request as it is told to: with a header, and data."""

    limits, workdir = Limits(), "/workspace"

    def __init__(self, answer):
        self._answer = answer
        self.asked = 0

    @contextlib.asynccontextmanager
    async def using(self, *, watching=False):
        yield self, self

    def find_mapped(self):
        return None

    async def call(self, kind, header, payload=b""):
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        return self._answer(header, self.asked)


def told(operation, answer):
    """What comes of it; the error, if it is one of ours."""
    liar = Liar(answer)

    async def main():
        with anyio.fail_after(90):
            try:
                return await operation(AsyncFiles(liar))
            except SandboxError as error:
                return error

    return anyio.run(main), liar.asked


ENTRY = {"name": "a", "type": "file", "size": 1, "mode": 1, "mtime": 1.0, "uid": 1, "gid": 1}


@pytest.mark.parametrize(
    "page",
    [
        [ENTRY] * (guest_files.LIST_PAGE + 1),
        [ENTRY | {"name": "x" * 5_000_000}],
        [ENTRY | {"name": ".."}],
        [ENTRY | {"name": "../../etc/passwd"}],
        [ENTRY | {"name": ""}],
        [ENTRY | {"name": "a\0b"}],
        [ENTRY | {"name": None}],
        {"a": 1},
        7,
    ],
    ids=lambda page: str(page)[:40],
)
def test_a_listing_that_is_none_is_refused(page):
    data = json.dumps(page).encode()
    made, _ = told(lambda files: files.list("."), lambda *_: ({"result": {"total": 1}}, data))
    assert isinstance(made, ProtocolError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "symlink"},
        {"type": "symlink", "target": 3},
        {"type": "symlink", "target": "a", "target_type": "link"},
        {"target": "a"},
        {"target_type": "dir"},
        {"uid": -1},
        {"gid": None},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_refused(wrong):
    made, _ = told(lambda files: files.stat("a"), lambda *_: ({"result": ENTRY | wrong}, b""))
    assert isinstance(made, ProtocolError)


@pytest.mark.parametrize("path", [None, 7, "", "relative", "/a\0b"])
def test_a_real_path_that_is_none_is_refused(path):
    answer = {"result": {"path": path}}
    made, _ = told(lambda files: files.realpath("a"), lambda *_: (answer, b""))
    assert isinstance(made, ProtocolError)


@pytest.mark.parametrize("code", [10**400, -1, 0, 4096, True, "2", None])
def test_an_error_that_no_system_knows_is_refused(code):
    error = {"error": {"errno": code, "message": "x"}}
    made, _ = told(lambda files: files.read("a"), lambda *_: (error, b""))
    assert isinstance(made, ProtocolError)


def test_the_words_of_an_error_are_cut_and_have_nothing_that_a_terminal_obeys():
    error = {"error": {"errno": errno.ENOENT, "message": "\x1b[31m" + "x" * 100_000}}
    made, _ = told(lambda files: files.read("a"), lambda *_: (error, b""))
    assert isinstance(made, FileMissing)
    assert len(str(made)) < 1000
    assert "\x1b" not in str(made)


def test_a_size_below_zero_is_refused():
    made, _ = told(lambda files: files.read("a"), lambda *_: ({"result": {"size": -5}}, b""))
    assert isinstance(made, ProtocolError)


SAME = [0, "same", "dir", 0o755, 0, 0, 0, 1]


@pytest.mark.parametrize("entries", [[], [SAME] * 8, [[0, ".belljar-part-x", *SAME[2:]]] * 500])
def test_a_tree_that_never_ends_is_given_up(entries, tmp_path):
    """Each page says that there is more, and nothing of it counts as a file."""

    def answer(header, asked):
        if header["op"] == "stat":
            return {"result": ENTRY | {"type": "dir"}}, b""
        page = json.dumps({"entries": entries, "failed": []}).encode()
        return {"result": {"done": 0, "after": f"{asked:09}", "rows": [], "inodes": []}}, page

    made, asked = told(lambda files: files.download("a", tmp_path / "a"), answer)
    assert made is not None
    assert asked < 5_000


@pytest.mark.parametrize("row", [[0, 1], [0, 1, 2, 3, 4, 5], [0, None, 1, 1, 1, 1, 1, 1]])
def test_a_description_of_another_length_is_refused(row, tmp_path):
    (tmp_path / "a").write_text("x")
    made, _ = told(
        lambda files: files.upload(tmp_path / "a", "a"),
        lambda *_: ({"result": {"rows": [row], "type": "dir"}}, b""),
    )
    assert isinstance(made, SandboxError)
