"""Workspaces kept in memory: what comes back, what it may take, and what happens when it fails."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import stat
import tempfile
import threading
import types
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.guest import archive_store, branches, tree_pack
from belljar.guest.archive_store import SEGMENTS, ArchiveStore, WorkspaceLost
from belljar.guest.workspace_store import CURRENT, Store
from belljar.protocol import removal, wire
from census import wait_until

pytestmark = pytest.mark.by_user_too
ROOM = 64 << 20


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def no_leak():
    before = descriptors()
    yield
    # Less, where an earlier test's was closed meanwhile; more for a moment, of another thread.
    wait_until(lambda: descriptors() <= before, 30, "that there are no more descriptors")


class Fork:
    """Forks, and does something in the children that are named, the first being 1."""

    def __init__(self, do=lambda: None, children=()):
        self.do, self.children, self.forked = do, children, 0

    def __call__(self):
        self.forked += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on
            pid = os.fork()
        if pid == 0 and self.forked in self.children:
            self.do()
        return pid


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def opened(workspace, size=ROOM, fork=None):
    made = ArchiveStore(str(workspace), size, fork or Fork())
    try:
        yield made
    finally:
        assert not made.children
        for archive in set(made._archives.values()):
            archive.close()
        os.close(made._directory)


@pytest.fixture
def workspace():
    """Not in `tmp_path`: pytest cannot remove what is locked."""
    path = tempfile.mkdtemp()
    yield path
    removal.remove(path, seconds=60)


def keep(made, source=CURRENT):
    """The name of a copy, and the error that it came to."""
    errors = []
    name = made.make()
    made.copy(source, name, errors.append)
    for pid in made.children:
        made.on_exit(pid, os.waitpid(pid, 0)[1])
    (error,) = errors
    return name, error


def kept(made, source=CURRENT):
    name, error = keep(made, source)
    assert not error, os.strerror(error)
    return name


def replace(made, name):
    """As going back does: what is there is not wanted any more."""
    made.remove(made.set_aside())
    made.bring(name)


def exchange(made, name):
    """As a change of branches does."""
    aside = made.set_aside()
    made.bring(name)
    return aside


def look(top):
    """All that can be seen of a tree. Directories that are closed are opened for the time."""
    found, groups = {}, {}
    top = os.fsencode(top)

    def visit(path, name):
        status = os.lstat(path)
        mode = stat.S_IMODE(status.st_mode)
        seen = [stat.S_IFMT(status.st_mode), mode, status.st_mtime_ns]
        if stat.S_ISREG(status.st_mode):
            os.chmod(path, mode | 0o400)
            with open(path, "rb") as file:
                seen += [status.st_size, file.read(1 << 20), status.st_blocks]
            os.chmod(path, mode)
            groups.setdefault(status.st_ino, set()).add(name)
        elif stat.S_ISLNK(status.st_mode):
            seen[1] = os.readlink(path)
        elif stat.S_ISDIR(status.st_mode):
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                visit(os.path.join(path, inner), os.path.join(name, inner))
            os.chmod(path, mode)
        found[name] = seen

    visit(top, b".")
    return found, sorted(map(sorted, groups.values()))


# --- what comes back ---------------------------------------------------------------------------

NAMES = st.binary(min_size=1, max_size=12).filter(lambda b: not set(b) & {0, 47}).filter(
    lambda b: b not in (b".", b"..")
) | st.sampled_from([b"x" * 255, b"\xff\xfe", b"new\nline", b" ", b"-rf", b"\xe2\x82\xac"])
MODES = st.integers(0, 0o7777)
TIMES = st.integers(-(10**18), 10**20)  # before 1970, and beyond what 64 bits of nanoseconds hold
FILES = st.tuples(
    st.just("file"),
    st.lists(st.tuples(st.integers(0, 1 << 21), st.binary(max_size=40)), max_size=3),
    st.integers(0, 1 << 22),
)
LEAVES = (
    FILES
    | st.tuples(st.just("link"), st.binary(min_size=1, max_size=50).filter(lambda b: 0 not in b))
    | st.just(("fifo",))
    | st.tuples(st.just("same"), st.integers(0, 9))
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.tuples(
        st.just("directory"),
        st.dictionaries(NAMES, st.tuples(inner, MODES, TIMES), max_size=5),
    ),
    max_leaves=15,
)
TOPS = st.tuples(st.dictionaries(NAMES, st.tuples(TREES, MODES, TIMES), max_size=6), MODES, TIMES)


def build(path, tree):
    """`tree` is what is in a directory, its mode and its time."""
    made, dress = [], []

    def make(path, thing, mode, time):
        kind = thing[0]
        if kind == "directory":
            os.mkdir(path)
            fill_directory(path, thing[1])
        elif kind == "file":
            with open(path, "wb") as file:
                for position, data in thing[1]:
                    file.seek(position)
                    file.write(data if data != "large" else os.urandom(3 << 20))
                file.truncate(max(thing[2], file.tell()))
            made.append(path)
        elif kind == "link":
            os.symlink(thing[1], path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif made:
            os.link(made[thing[1] % len(made)], path)
        dress.append((path, mode, time))

    def fill_directory(path, entries):
        for name, (thing, mode, time) in entries.items():
            make(os.path.join(path, name), thing, mode, time)

    entries, mode, time = tree
    top = os.fsencode(path)
    fill_directory(top, entries)
    dress.append((top, mode, time))
    for path, mode, time in dress:  # what is inside first, as long as one can go there
        if os.path.lexists(path):
            if not os.path.islink(path):
                os.chmod(path, mode)
            os.utime(path, ns=(time, time), follow_symlinks=False)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(first=TOPS, second=TOPS)
def test_any_tree_comes_back_as_it_was(first, second):
    workspace = tempfile.mkdtemp()
    try:
        with opened(workspace) as made:
            nothing = look(workspace)
            empty = kept(made)
            build(workspace, first)
            one = look(workspace)  # what the file system made of it: some know no times so far away
            first = exchange(made, kept(made, empty))
            assert look(workspace) == nothing
            build(workspace, second)
            two = look(workspace)
            second = kept(made)
            assert look(workspace) == two
            assert exchange(made, kept(made, first))
            assert look(workspace) == one
            replace(made, second)
            assert look(workspace) == two
            replace(made, first)
            assert look(workspace) == one
    finally:
        removal.remove(workspace, seconds=60)


def test_a_file_larger_than_any_memory_is_mostly_a_hole(workspace):
    path = os.path.join(workspace, "sparse")
    with open(path, "wb") as file:
        file.write(b"start")
        file.seek(1 << 38)
        file.write(b"middle")
        file.truncate(1 << 40)
    with opened(workspace) as made:
        name = kept(made)
        assert made._archives[name].size < 100_000
        replace(made, name)
    with open(path, "rb") as file:
        assert os.fstat(file.fileno()).st_size == 1 << 40
        assert os.fstat(file.fileno()).st_blocks < 1000
        assert file.read(10) == b"start".ljust(10, b"\0")
        file.seek(1 << 38)
        assert file.read(10) == b"middle".ljust(10, b"\0")


def no_holes_told(monkeypatch):
    seek = os.lseek

    def answer(fd, position, whence):
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, "as gVisor says")
        return seek(fd, position, whence)

    monkeypatch.setattr(os, "lseek", answer)


def test_holes_are_found_where_nobody_tells_of_them(workspace, monkeypatch):
    no_holes_told(monkeypatch)
    path, size = os.path.join(workspace, "sparse"), (64 << 20) + 5
    with open(path, "wb") as file:
        for position in range(0, size, 1 << 20):
            file.seek(position + 4096)
            file.write(b"x")
        file.truncate(size)
    with open(path, "rb") as file:
        before = file.read()
    with opened(workspace) as made:
        name = kept(made)
        assert made._archives[name].size < 1 << 20
        replace(made, name)
    with open(path, "rb") as file:
        assert file.read() == before


def test_what_would_take_for_ever_to_search_is_refused(workspace, monkeypatch):
    no_holes_told(monkeypatch)
    with open(os.path.join(workspace, "sparse"), "wb") as file:
        file.truncate(tree_pack.MAX_SEARCH + 1)
    with opened(workspace) as made:
        assert keep(made)[1] == errno.EFBIG


@given(st.lists(st.sampled_from([bytes(4096), b"x" * 4096, b"\0" * 4095 + b"x", b"", b"x", b"\0"])))
def test_every_page_that_is_not_zero_is_found(pages):
    data = b"".join(pages)
    rebuilt = bytearray(len(data))
    last = -1
    for start, end in tree_pack.find_data(data):
        assert start > last  # pages that are neighbours are one piece
        assert data[start : start + 4096].strip(b"\0")
        rebuilt[start:end] = data[start:end]
        last = end
    assert rebuilt == data


def test_depth_costs_no_descriptors(workspace):
    depth = 1000
    here = os.getcwd()
    os.chdir(workspace)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    with open("bottom", "w") as file:
        file.write("deep")
    os.chdir(here)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with opened(workspace) as made:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + tree_pack.MAX_OPEN + 20, most))
        try:
            replace(made, kept(made))
            exchange(made, kept(made))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    os.chdir(workspace)
    for _ in range(depth):
        os.chdir("d")
    with open("bottom") as file:
        assert file.read() == "deep"
    os.chdir(here)


def test_a_directory_that_was_moved_away_is_not_gone_back_from(workspace, monkeypatch):
    monkeypatch.setattr(tree_pack, "MAX_OPEN", 1)
    os.makedirs(os.path.join(workspace, "a/b"))
    os.mkdir(os.path.join(workspace, "elsewhere"))
    top = os.open(workspace, os.O_RDONLY)
    way = tree_pack.TreeWalk(top)
    way.enter("a")
    way.enter("b")
    os.rename(os.path.join(workspace, "a/b"), os.path.join(workspace, "elsewhere/b"))
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        way.leave()
    way.close()
    os.close(top)


def test_a_file_never_has_more_names_than_in_the_end(workspace, monkeypatch):
    """There may be no room for one more: a link takes an inode of a tmpfs."""
    os.mkdir(os.path.join(workspace, "d"))
    names = [os.path.join(workspace, name) for name in ("a", "b", "d/c", "d/e")]
    open(names[0], "w").close()
    for name in names[1:]:
        os.link(names[0], name)
    counts = []
    link, rename = os.link, os.rename

    def count(call, source, target, **options):
        call(source, target, **options)
        counts.append(os.stat(target, dir_fd=options["dst_dir_fd"]).st_nlink)

    with opened(workspace) as made:
        name = kept(made)
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", lambda *a, **o: count(link, *a, **o))
            patch.setattr(os, "rename", lambda *a, **o: count(rename, *a, **o))
            replace(made, name)
    assert counts == [2, 3, 4, 4]
    assert len({os.stat(name).st_ino for name in names}) == 1
    assert sorted(os.listdir(workspace)) == ["a", "b", "d"]


def test_names_that_vanish_while_a_file_is_packed_leave_nothing_behind(workspace, monkeypatch):
    for name in ("a", "b", "c"):
        path = os.path.join(workspace, name)
        open(path, "w").close() if name == "a" else os.link(os.path.join(workspace, "a"), path)
    with opened(workspace) as made:
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", lambda fd: ["a", "b"])
            name = kept(made)
        replace(made, name)
    assert sorted(os.listdir(workspace)) == ["a", "b"]


def test_files_that_come_and_go_do_not_stop_it(workspace):
    with open(os.path.join(workspace, "stays"), "w") as file:
        file.write("a")
    stop = threading.Event()

    def disturb():
        while not stop.is_set():
            for i in range(50):
                path = os.path.join(workspace, f"t{i}")
                os.makedirs(os.path.join(path, "in"))
                open(os.path.join(path, "file"), "w").close()
            for i in range(50):
                shutil.rmtree(os.path.join(workspace, f"t{i}"))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with opened(workspace) as made:
            names = [kept(made) for _ in range(10)]
            stop.set()
            thread.join()
            for name in names:
                replace(made, name)
                with open(os.path.join(workspace, "stays")) as file:
                    assert file.read() == "a"
    finally:
        stop.set()
        thread.join()


def test_a_socket_is_left_out(workspace):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(workspace, "s"))
        with opened(workspace) as made:
            replace(made, kept(made))
    assert os.listdir(workspace) == []


def test_the_directory_itself_may_be_somebody_elses(workspace, monkeypatch):
    """Some engines mount a tmpfs that is root's and open to all."""
    open(os.path.join(workspace, "f"), "w").close()
    os.chmod(workspace, 0o1777)
    with opened(workspace) as made:
        name = kept(made)
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: 12345)
            patch.setattr(os, "fchmod", _only_below(workspace, os.fchmod))
            patch.setattr(os, "chmod", _only_below(workspace, os.chmod))
            replace(made, name)
    assert os.listdir(workspace) == ["f"]


def _only_below(workspace, call):
    top = os.stat(workspace).st_ino

    def act(path, mode, **options):
        if not options and os.stat(path).st_ino == top:
            raise PermissionError(errno.EPERM, "not yours")
        call(path, mode, **options)

    return act


# --- room --------------------------------------------------------------------------------------


def fill(workspace, name, size):
    with open(os.path.join(workspace, name), "wb") as file:
        file.write(os.urandom(size))


def test_archives_and_what_is_there_share_the_room(workspace):
    fill(workspace, "f", 10 << 20)
    os.mkdir(os.path.join(workspace, "locked"), 0)
    before = look(workspace)
    with opened(workspace, 32 << 20) as made:
        first, second = kept(made), kept(made)
        refused, error = keep(made)
        assert error == errno.ENOSPC
        assert look(workspace) == before
        made.remove(refused)
        made.remove(first)
        assert kept(made)
        made.remove(second)


def test_a_copy_of_an_archive_is_the_same_one_but_there_must_be_room_for_its_files(workspace):
    fill(workspace, "f", 10 << 20)
    with opened(workspace, 32 << 20) as made:
        first = kept(made)
        copies = [kept(made, first) for _ in range(20)]
        assert len(set(made._archives.values())) == 2  # and the spare one
        made.remove(first)
        replace(made, copies.pop())
        assert os.path.getsize(os.path.join(workspace, "f")) == 10 << 20
        second = kept(made)
        fill(workspace, "f", 1 << 20)
        assert kept(made)
        assert keep(made, second)[1] == 0
        fill(workspace, "f", 4 << 20)
        assert kept(made)
        assert keep(made, second)[1] == errno.ENOSPC


def test_what_is_put_aside_need_not_fit(workspace):
    """What the code writes while others are kept cannot be refused: only its own room bounds it."""
    fill(workspace, "f", 10 << 20)
    with opened(workspace, 24 << 20) as made:
        name = kept(made)
        fill(workspace, "g", 20 << 20)
        aside = exchange(made, name)
        assert os.listdir(workspace) == ["f"]
        exchange(made, aside)
        assert sorted(os.listdir(workspace)) == ["f", "g"]


def test_a_full_workspace_fits_whatever_limit_there_is_to_files(workspace):
    size = 2 << 20
    fill(workspace, "f", size)
    before = look(workspace)
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(workspace) as made:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
        try:
            replace(made, kept(made))
            exchange(made, kept(made))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        assert look(workspace) == before


def test_an_exchange_takes_little_more_room_than_there_was(workspace, monkeypatch):
    """Memory is limited as well, and a workspace may have half of it."""
    fill(workspace, "f", 50 << 20)
    with opened(workspace, 256 << 20) as made:
        name = kept(made)
        fill(workspace, "f", 90 << 20)
        for i in range(30):
            fill(workspace, str(i), 500_000)

        def used():
            files = sum(status.st_blocks for status in map(os.stat, os.scandir(workspace)))
            return 512 * files + sum(archive.size for archive in set(made._archives.values()))

        seen = [used()]

        def watch(owner, method):
            call = getattr(owner, method)

            def watching(*arguments):
                seen.append(used())
                return call(*arguments)

            monkeypatch.setattr(owner, method, watching)

        watch(tree_pack.SegmentWriter, "write")
        watch(tree_pack.SegmentReader, "take")
        aside = exchange(made, name)
        exchange(made, aside)
        assert len(seen) > 200
        assert max(seen) < seen[0] + made._size // SEGMENTS + (3 << 20)


def test_memory_is_given_back_and_closed_in_programs(workspace):
    fill(workspace, "f", 1 << 20)
    with opened(workspace) as made:
        before = descriptors()
        names = [kept(made) for _ in range(5)]
        shared = [kept(made, names[0]) for _ in range(5)]
        wait_until(lambda: descriptors() == before + 10, 30, "a record and a content for each")
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if "memfd:" in os.readlink(f"/proc/self/fd/{fd}"):
                    assert not os.get_inheritable(fd)
        for name in names + shared:
            made.remove(name)
        wait_until(lambda: descriptors() == before, 30, "that they are closed")


# --- failures ----------------------------------------------------------------------------------


def test_a_copy_whose_process_is_killed_has_failed_and_changed_nothing(workspace):
    fill(workspace, "f", 1000)
    before = look(workspace)
    with opened(workspace, fork=Fork(die, {1})) as made:
        name, error = keep(made)
        assert error == errno.EIO
        assert look(workspace) == before
        made.remove(name)


def test_a_copy_can_be_cancelled(workspace):
    fill(workspace, "f", 1000)
    errors = []
    with opened(workspace, fork=Fork(signal.pause, {1})) as made:
        made.copy(CURRENT, made.make(), errors.append)
        made.cancel()
        (pid,) = made.children
        made.on_exit(pid, os.waitpid(pid, 0)[1])
    assert errors == [errno.EIO]


class FailingReads:
    """One of the next reads of a file fails."""

    def __init__(self, monkeypatch, workspace):
        self.left, self._read = -1, os.pread
        self._device = os.stat(workspace).st_dev
        monkeypatch.setattr(os, "pread", self)

    def __call__(self, fd, size, position):
        if os.fstat(fd).st_dev == self._device:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, "a broken disk")
        return self._read(fd, size, position)


LARGE = st.tuples(st.just("file"), st.just([(0, "large")]), st.just(5 << 20))
LARGE_TOPS = st.tuples(
    st.dictionaries(NAMES, st.tuples(TREES | LARGE, MODES, TIMES), max_size=6), MODES, TIMES
)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(tree=LARGE_TOPS, reads=st.integers(1, 10))
def test_what_cannot_be_packed_is_as_it_was(tree, reads):
    workspace = tempfile.mkdtemp()
    try:
        with opened(workspace) as made, pytest.MonkeyPatch.context() as monkeypatch:
            empty = kept(made)
            build(workspace, tree)
            before, _ = look(workspace)
            shelved = set(made._archives)
            failing = FailingReads(monkeypatch, workspace)
            failing.left = reads
            try:
                aside = exchange(made, empty)
            except OSError:
                assert look(workspace)[0] == before  # but names of one file may be two now
                assert set(made._archives) < shelved
                aside = exchange(made, empty)
            assert look(workspace)[0].keys() == {b"."}
            failing.left = -1
            exchange(made, aside)
            assert look(workspace)[0] == before
    finally:
        removal.remove(workspace, seconds=60)


def no_room(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_finds_no_room_when_it_is_brought_is_not_lost(workspace, monkeypatch):
    fill(workspace, "f", 1 << 20)
    before = look(workspace)
    with opened(workspace) as made:
        name = kept(made)
        fill(workspace, "f", 1000)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", no_room)
            with pytest.raises(OSError, match="No space"):
                replace(made, name)
        replace(made, name)
        assert look(workspace) == before


def test_if_neither_workspace_can_be_there_nothing_goes_on(workspace, monkeypatch):
    """The end of init is the end of the guest: everybody is told."""
    fill(workspace, "f", 1 << 20)
    with opened(workspace) as made:
        name = kept(made)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", no_room)
            with pytest.raises(WorkspaceLost, match="No space"):
                exchange(made, name)


def test_an_exchange_takes_no_processes(workspace):
    fill(workspace, "f", 1000)
    before = look(workspace)
    with opened(workspace) as made:
        name = kept(made)

        def no_process():
            raise BlockingIOError(errno.EAGAIN, "out of processes")

        made._fork = no_process
        assert keep(made)[1] == errno.EAGAIN
        fill(workspace, "f", 10)
        exchange(made, name)
        assert look(workspace) == before


def test_an_archive_cannot_be_changed_by_whoever_can_open_it(workspace):
    fill(workspace, "f", 40 << 20)
    with opened(workspace, 256 << 20) as made:
        copied = made._archives[kept(made)]
        name = kept(made)
        moved = made._archives[exchange(made, name)]
        for archive in (copied, moved):
            assert len(archive._contents) == 3
            for fd in (archive._records, *archive._contents):
                for change in (
                    lambda fd=fd: os.pwrite(fd, b"x", 0),
                    lambda fd=fd: os.truncate(fd, 0),
                    lambda fd=fd: os.truncate(fd, 1 << 30),
                ):
                    with pytest.raises(PermissionError):
                        change()


@pytest.mark.parametrize("name", [b"..", b".", b"../escaped", b"/tmp/escaped"])
def test_a_name_that_leads_elsewhere_is_not_unpacked(workspace, name, monkeypatch):
    monkeypatch.setattr(tree_pack, "seal_memfd", lambda fd: None)
    fill(workspace, "\x7f" * len(name), 1000)
    with opened(workspace) as made:
        archive = made._archives[kept(made)]
        records = os.pread(archive._records, 1 << 16, 0)
        found = b"\x7f" * len(name) + tree_pack.FILE  # the rest is times: any bytes
        assert records.count(found) == 1
        os.pwrite(archive._records, records.replace(found, name + tree_pack.FILE), 0)
        with pytest.raises(OSError, match="a slash or dots"):
            archive.unpack(made._directory)


@pytest.mark.parametrize("part", ["records", "contents"])
def test_an_archive_that_is_not_whole_is_never_taken_for_one(workspace, monkeypatch, part):
    monkeypatch.setattr(tree_pack, "seal_memfd", lambda fd: None)
    fill(workspace, "f", 1000)
    with opened(workspace) as made:
        name = kept(made)
        archive = made._archives[name]
        fd = archive._records if part == "records" else archive._contents[0]
        size = os.fstat(fd).st_size
        cut = tree_pack.RECORD.size if part == "records" else 1
        for length in (size - cut, 1, 0):
            os.truncate(fd, length)
            with pytest.raises(OSError, match="incomplete"):
                replace(made, name)


# --- who keeps workspaces where ----------------------------------------------------------------


class Init:
    """What Branches needs of it, to answer that it cannot."""

    def __init__(self):
        self.sent = []
        worker = types.SimpleNamespace(pid=0)
        branch = types.SimpleNamespace(worker=worker)
        self.default = types.SimpleNamespace(branch=branch)

    def send(self, kind, request, header=None):
        self.sent.append(header)


def setup_of(workspace, **options):
    return {"workspace": str(workspace), "result": 1000, **options}


def why_not(made, init):
    made.keep(wire.Frame(wire.KEEP, 1, {"number": 1, "branch": False}, b""))
    return init.sent[0]["error"]


def test_workspaces_are_kept_where_the_setup_says(workspace):
    directory = os.open(workspace, os.O_RDONLY)
    store, _ = archive_store.choose_store(setup_of(workspace, store=directory))
    assert type(store) is Store
    os.close(directory)
    store, _ = archive_store.choose_store(setup_of(workspace, archive_size=1000))
    assert type(store) is ArchiveStore
    for archive in store._archives.values():
        archive.close()
    os.close(store._directory)
    init = Init()
    made = branches.Branches(init, setup_of(workspace))
    assert "no place" in why_not(made, init)


@pytest.mark.parametrize("how", ["missing", "denied"])
def test_without_memory_that_has_no_name_there_are_no_checkpoints(workspace, monkeypatch, how):
    if how == "missing":
        monkeypatch.delattr(os, "memfd_create")
    else:

        def denied(name, flags):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "memfd_create", denied)
    init = Init()
    made = branches.Branches(init, setup_of(workspace, archive_size=1000))
    assert made.store is None
    expected = {"missing": "no memfd_create", "denied": "not permitted"}[how]
    assert expected in why_not(made, init)


def test_what_the_records_say_is_little(workspace):
    for i in range(1000):
        open(os.path.join(workspace, f"file{i}"), "w").close()
    with opened(workspace) as made:
        assert made._archives[kept(made)].size < 1000 * (tree_pack.RECORD.size + 30)
