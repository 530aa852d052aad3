"""Large values between two processes: sealed memory, parts, and descriptors that are neither."""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import resource
import socket
import struct
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.protocol import buffers, wire
from census import wait_until

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def no_leak():
    before = descriptors()
    yield
    # Other threads of this process have one for a moment.
    wait_until(lambda: descriptors() == before, 30, "that there are as many descriptors")


def memfd(data=b"x" * 100, seals=SEALS, size=None):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if size is not None:
        os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


# --- sealed memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 1 << 20])
def test_what_is_sealed_comes_out_again(size):
    data = random.Random(size).randbytes(size)
    with buffers.map_shared(buffers.share_memory([data[:7], memoryview(data)[7:]]), size) as memory:
        assert memory[:] == data


def test_sealed_memory_is_never_written_again_not_even_by_its_maker():
    fd = buffers.share_memory([b"abc"])
    try:
        for change in (
            lambda: os.write(fd, b"x"),
            lambda: os.ftruncate(fd, 1),
            lambda: os.ftruncate(fd, 100),
            lambda: mmap.mmap(fd, 3),
            lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(fd)


def test_two_who_map_it_do_not_see_what_the_other_writes():
    fd = buffers.share_memory([b"abc"])
    with buffers.map_shared(os.dup(fd), 3) as one, buffers.map_shared(fd, 3) as other:
        one[0] = ord("X")
        assert (one[:], other[:]) == (b"Xbc", b"abc")


def test_items_wider_than_a_byte_are_sealed_whole():
    numbers = memoryview(struct.pack("4d", 1, 2, 3, 4)).cast("d")
    with buffers.map_shared(buffers.share_memory([numbers]), 32) as memory:
        assert memory[:] == bytes(numbers)


@pytest.mark.parametrize("missing", [0, *(SEALS & ~(1 << n) for n in range(5) if SEALS & 1 << n)])
def test_memory_that_could_change_under_the_mapping_is_refused(missing):
    with pytest.raises(wire.WireError, match="not sealed"):
        buffers.map_shared(memfd(seals=missing), 100)


@pytest.mark.parametrize("size", [-1, 0, 1, 99, 101, 4096, 2**31, 2**47, 2**63, 2**70])
def test_memory_of_another_size_is_refused(size):
    with pytest.raises(wire.WireError):
        buffers.map_shared(memfd(), size)


def test_memory_with_holes_is_refused_because_its_reader_would_pay_for_it():
    with pytest.raises(wire.WireError, match="holes"):
        buffers.map_shared(memfd(size=1 << 30), 1 << 30)
    with buffers.map_shared(memfd(size=4096), 4096) as memory:  # the rest of a page is no hole
        assert len(memory) == 4096


def _pipe():
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _socket():
    one, other = socket.socketpair()
    other.close()
    return one.detach()


def _file():
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 100)
        file.flush()
        return os.dup(file.fileno())


OTHERS = {
    "pipe": _pipe,
    "socket": _socket,
    "file": _file,
    "directory": lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY),
    "path": lambda: os.open("/", os.O_PATH),
    "device": lambda: os.open("/dev/zero", os.O_RDWR),
    "process": lambda: os.pidfd_open(os.getpid()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_memory_at_all_is_refused(kind):
    with pytest.raises(wire.WireError):
        buffers.map_shared(OTHERS[kind](), 100)


def test_a_want_of_descriptors_or_memory_is_not_blamed_on_the_other_side(monkeypatch):
    def fail(number):
        def refuse(*args, **kwargs):
            raise OSError(number, os.strerror(number))

        return refuse

    for number in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        monkeypatch.setattr(mmap, "mmap", fail(number))
        with pytest.raises(MemoryError, match="100 bytes"):
            buffers.map_shared(memfd(), 100)
    monkeypatch.setattr(mmap, "mmap", fail(errno.EACCES))  # theirs
    with pytest.raises(wire.WireError):
        buffers.map_shared(memfd(), 100)


def test_nothing_is_left_open_when_sealing_fails():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            buffers.share_memory([bytes(8192)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- parts -----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 2 * wire.CHUNK), max_size=4),
    st.integers(0, 2**32),
)
def test_parts_are_the_whole_again_and_none_is_larger_than_a_frame(sizes, seed):
    source = random.Random(seed)
    pieces = [source.randbytes(size) for size in sizes]
    whole = b"".join(pieces)
    parts = list(buffers.cut_parts(pieces))
    assert b"".join(parts) == whole
    assert all(len(part) == wire.CHUNK for part in parts[:-1])
    if whole:
        collected = buffers.Parts(len(whole))
        for part in parts:
            collected.add(3, len(whole), part)
        assert collected.take(3, len(whole))[:] == whole


def test_parts_of_several_values_may_be_mixed():
    parts = buffers.Parts(100)
    for key in (1, 2, 3):
        parts.add(key, 6, b"abc")
    for key in (3, 1, 2):
        parts.add(key, 6, b"%03d" % key)
    assert [parts.take(key, 6)[:] for key in (1, 2, 3)] == [b"abc001", b"abc002", b"abc003"]


@pytest.mark.parametrize(
    ("key", "size"),
    [
        *((key, 10) for key in (None, "1", 1.0, True, [], {})),
        *((1, size) for size in (None, "1", 1.0, True, 0, -1, [])),
        *((1, size) for size in (101, 2**31, 2**47, 2**64, 10**30)),
    ],
)
def test_parts_that_are_malformed_or_too_large_take_no_memory(key, size):
    parts = buffers.Parts(100)
    with pytest.raises(wire.WireError):
        parts.add(key, size, b"x")


def test_all_values_together_stay_within_the_limit():
    parts = buffers.Parts(100)
    parts.add(1, 60, b"x")
    with pytest.raises(wire.WireError):
        parts.add(2, 41, b"x")
    parts.remove(1)
    parts.add(2, 41, b"x")


def test_values_that_are_put_together_at_once_are_counted():
    parts = buffers.Parts(10**9)
    for key in range(buffers.MAX_OPEN):
        parts.add(key, 10, b"")
    with pytest.raises(wire.WireError):
        parts.add(buffers.MAX_OPEN, 10, b"")


def test_parts_cannot_be_more_than_the_whole_nor_change_their_word():
    parts = buffers.Parts(100)
    parts.add(1, 10, b"123456")
    with pytest.raises(wire.WireError):
        parts.add(1, 10, b"78901")
    with pytest.raises(wire.WireError):
        parts.add(1, 11, b"7")


@pytest.mark.parametrize("size", [9, 11, None, "10", 10**30])
def test_a_value_is_given_only_when_it_is_whole(size):
    parts = buffers.Parts(100)
    parts.add(1, 10, b"1234567890")
    with pytest.raises(buffers.IncompleteValue):
        parts.take(1, size)
    parts.add(1, 10, b"123")
    with pytest.raises(buffers.IncompleteValue):
        parts.take(1, 10)
    with pytest.raises(buffers.IncompleteValue):
        parts.take(2, 10)


def test_what_was_begun_and_is_not_kept_makes_room():
    parts = buffers.Parts(100)
    parts.add(1, 50, b"x")
    parts.add(2, 50, bytes(50))
    parts.keep_only({2})
    parts.add(3, 50, b"x")
    assert parts.take(2, 50)[:] == bytes(50)


def test_without_memory_the_parts_pass_by_and_the_taking_says_so(monkeypatch):
    parts = buffers.Parts(1 << 62)
    parts.add(1, 1 << 60, b"x")  # more than any address space
    parts.add(1, 1 << 60, b"y")
    with pytest.raises(MemoryError):
        parts.take(1, 1 << 60)


# --- descriptors on their way ----------------------------------------------------------------


def test_descriptors_arrive_with_the_frames_they_were_put_with():
    def size(number):
        return 1 + number * 30_000 % 100_000

    left, right = socket.socketpair()
    left.setblocking(False)
    out, inbox = buffers.Outbox(), buffers.Inbox()
    expected = []
    for number in range(20):
        fds = [memfd(b"%d" % number) for _ in range(number % 3)]
        expected += [number] * len(fds)
        out.put(b"x" * size(number), tuple(fds))
    received, got = 0, []
    while out or received < sum(map(size, range(20))):
        try:
            out.flush(left)
        except BlockingIOError:
            pass
        received += len(inbox.receive(right))
        got += inbox.take_some(8)
    assert [int(os.pread(fd, 10, 0)) for fd in got] == expected
    buffers.close_all(got)
    left.close()
    right.close()


def test_more_descriptors_than_anybody_asked_for_are_all_closed():
    left, right = socket.socketpair()
    inbox = buffers.Inbox()
    socket.send_fds(left, [b"x"], [0] * 100)
    with left, right:
        try:
            inbox.receive(right)
            socket.send_fds(left, [b"x"], [0] * 5)
            with pytest.raises(wire.WireError):
                inbox.receive(right)
        finally:
            inbox.clear()


def test_a_frame_that_speaks_of_a_descriptor_and_has_none_is_refused():
    with pytest.raises(wire.WireError):
        buffers.Inbox().take()


def test_an_outbox_that_is_given_up_closes_what_it_was_given():
    out = buffers.Outbox()
    out.put(b"x", (memfd(), memfd()))
    out.clear()
    assert not out


def test_a_socket_that_lingers_is_closed_without_waiting():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        sock = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
        with peer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.send(bytes(65536))
            began = time.perf_counter()
            with pytest.raises(wire.WireError):
                buffers.map_shared(sock.detach(), 100)
            assert time.perf_counter() - began < 20
