"""Hostile names and paths, wherever this host takes one: from callers, guests, archives, records.

Whatever it is, it is refused as an error of that place, or what it names is inside: the tree
outside is as it was, and nothing of it was read.

A case is JSON: {"place": which, "names": [...], "data": text of an archive or record}.
"""

import contextlib
import functools
import io
import json
import os
import struct
import tempfile
from pathlib import Path

import fuzzing
from belljar import record
from belljar.backends import mounts
from belljar.backends.linux import safe_dir
from belljar.backends.linux.safe_dir import Beneath, Incoming
from belljar.errors import SandboxError
from belljar.files import api, sessions, transfer
from belljar.guest import archive_store, tree_pack
from belljar.protocol import removal
from fuzzing_guest import SECRET, Field

# What the kernel says of a name, and Python of one that it cannot hand to the kernel.
REFUSALS = (OSError, ValueError)


class Escaped(Exception):
    pass


# --- places ----------------------------------------------------------------------------------


def _absolute(field, names, data):
    for name in names:
        with contextlib.suppress(SandboxError):
            path = api.absolute_path(name, "/workspace")
            if not path.startswith("/") or "\0" in path or "/./" in f"{path}/":
                raise Escaped(path)
        with contextlib.suppress(SandboxError):
            transfer.check_local_path(name)


def _session(field, names, data):
    for name in names:
        with contextlib.suppress(SandboxError):
            held = sessions.Session(name)
            held.close()
            if held.path.parent != Path(field.inner, "state", "sessions"):
                raise Escaped(str(held.path))
        with contextlib.suppress(SandboxError):
            sessions.find(name)
        with contextlib.suppress(SandboxError):
            sessions.remove(name)
    sessions.listing()


def _mounts(field, names, data):
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        with contextlib.suppress(SandboxError):
            made = mounts.Mount(f"{field.inner}/{name}", other)
            mounts.check_mounts([made])
        with contextlib.suppress(SandboxError):
            mounts.check_workdir(name)


def _beneath(field, names, data):
    """What comes out of a guest, under names that nobody has looked at before."""
    with Beneath(field.inner) as sink:
        for number, name in enumerate(names):
            with contextlib.suppress(*REFUSALS):
                [sink.look, sink.make_dir, sink.remove, _write, _read, _link][number % 6](
                    *((sink, name) if number % 6 > 2 else (name,))
                )
        with contextlib.suppress(OverflowError):
            found, _ = sink.scan(1000)
            if any(SECRET in _bytes(sink, path) for path in found):
                raise Escaped("something outside was read")


def _bytes(sink, path):
    try:
        fd = sink.open(path)
    except OSError:
        return b""
    try:
        return os.read(fd, 1000)
    finally:
        os.close(fd)


def _write(sink, name):
    incoming = Incoming(sink, name)
    try:
        incoming.write(b"written")
        incoming.commit(executable=True, mtime=-(2**70))
    finally:
        incoming.close()


def _read(sink, name):
    if SECRET in _bytes(sink, name):
        raise Escaped(name)


def _link(sink, name):
    sink.make_symlink(name, "../outer/secret")


def _write_file(field, names, data):
    for name in names:
        path = Path(field.inner, name.replace("/", "_").replace("..", "_") or "_")
        with contextlib.suppress(*REFUSALS):
            safe_dir.write_file(path, b"written")


def _links(field, names, data):
    """`stays_inside` by what the file system makes of a link."""
    os.makedirs(f"{field.inner}/d/e", exist_ok=True)
    for name in names:
        for path in ("one", "d/one", "d/e/one"):
            if "\0" in name or not safe_dir.stays_inside(path, name):
                continue
            with contextlib.suppress(*REFUSALS):
                os.symlink(name, f"{field.inner}/{path}")
                leads = os.path.realpath(f"{field.inner}/{path}")
                os.unlink(f"{field.inner}/{path}")
                planted = ("link", "file", "up")  # they lead out themselves, and were not carried
                if any(part in planted for part in name.split("/")):
                    continue
                if not f"{leads}/".startswith(os.path.realpath(field.inner) + "/"):
                    raise Escaped(f"{path} -> {name}: {leads}")


def _archive(field, names, data):
    """Of a tree that has these names, and then spoiled."""
    source, target = f"{field.inner}/source", f"{field.inner}/target"
    os.mkdir(source)
    os.mkdir(target)
    for number, name in enumerate(names):
        with contextlib.suppress(*REFUSALS):
            path = os.path.join(source, name.replace("/", "|"))
            if number % 3 == 0:
                os.mkdir(path)
            elif number % 3 == 1:
                os.symlink("../../outer/secret", path)
            else:
                with open(path, "xb") as file:
                    file.write(b"x" * number)
    records = io.BytesIO()
    contents = [tree_pack.create_memfd("contents") for _ in range(3)]
    try:
        writer = tree_pack.SegmentWriter(contents, 1 << 20, None)
        top = os.open(source, os.O_RDONLY)
        tree_pack.Packer(records, writer, 1 << 20).pack(top, os.fstat(top))
        writer.close()
        os.close(top)
        _unpack(target, _spoiled(records.getvalue(), data), contents)
    finally:
        for fd in contents:
            os.close(fd)
    for path in Path(os.fsdecode(target)).rglob("*"):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                if SECRET in file.read(1000):  # it may be a hole of any size
                    raise Escaped(str(path))


def _spoiled(records, data):
    """`data`: pairs of a place and what is put there."""
    raw = bytearray(records)
    for place, text in data if isinstance(data, list) else ():
        put = str(text).encode("latin-1", "replace")
        place = int(place) % (len(raw) + 1)
        raw[place : place + len(put)] = put
    return bytes(raw)


def _unpack(target, records, contents):
    fd = tree_pack.create_memfd("records")
    os.write(fd, records)
    top = os.open(target, os.O_RDONLY)
    try:
        archive_store.Unpacker(fd, tree_pack.SegmentReader(contents, False)).unpack(top)
    except (OSError, ValueError, OverflowError, struct.error):
        pass
    finally:
        os.close(fd)
        os.close(top)


def _record(field, names, data):
    path = Path(field.inner, "record.jsonl")
    path.write_text(str(data), "utf-8", "surrogatepass")
    with contextlib.suppress(SandboxError):
        record.read(path)


PLACES = {
    "absolute": _absolute,
    "session": _session,
    "mounts": _mounts,
    "beneath": _beneath,
    "write_file": _write_file,
    "links": _links,
    "archive": _archive,
    "record": _record,
}


# --- one case --------------------------------------------------------------------------------


def attempt(data):
    try:
        case = json.loads(data)
        names = [name for name in case["names"] if isinstance(name, str)]
        place = PLACES[case["place"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        return
    base = tempfile.mkdtemp(dir=_place().name)
    os.environ["BELLJAR_STATE"] = f"{base}/inner/state"
    try:
        field = Field(base)
        before = set(os.listdir("/proc/self/fd"))
        place(field, names, case.get("data"))
        if field.seen() != field.before:
            raise Escaped("something outside has changed")
        if fuzzing.left_open(before):
            raise Escaped("a descriptor is left")
        if before - set(os.listdir("/proc/self/fd")):
            raise Escaped("a descriptor was closed that was none of its own")
    finally:
        del os.environ["BELLJAR_STATE"]
        with contextlib.suppress(OSError):
            removal.remove(base)


@functools.cache
def _place():
    return tempfile.TemporaryDirectory(prefix="fuzz-paths-", ignore_cleanup_errors=True)


def finish():
    _place().cleanup()
    _place.cache_clear()


def allowance(data):
    return 16 << 20


# --- cases -----------------------------------------------------------------------------------

PARTS = [
    *("a", "b", "link", "file", "up", "plain", "..", ".", "", "state", "sessions", ".locks", "~"),
    *("x" * 255, "x" * 256, "é" * 127, "\udcff", "\ud800", "\u202e", "\n", "\0", "\t", " ", "-"),
    *("%2e%2e", "..\\", "\u2024\u2024", "\uff0e\uff0e", "con", "*", "$HOME", "outer", "secret"),
    *(".belljar-part-1", "\x7f", "proc", "self", "root", "workspace", "tmp", "a:b", ":ro", ":rw"),
]
LINES = [
    '{"format": "belljar-record", "version": 1}',
    '{"format": "belljar-record", "version": 99}',
    '{"kind": "session"}',
    '{"kind": "cell", "code": "1", "execution": {}}',
    "[" * 3000,
    "9" * 5000,
    "{}",
    "null",
    "\ud800",
    "",
]


def name(random):
    kind = random.random()
    parts = [random.choice(PARTS) for _ in range(random.choice([1, 1, 2, 3, 5]))]
    if kind < 0.05:
        parts = ["a"] * random.choice([150, 250, 600])
    made = "/".join(parts)
    if random.random() < 0.2:
        made = "/" + made
    if random.random() < 0.1:
        made += "/"
    if random.random() < 0.1:
        place = random.randrange(len(made) + 1)
        made = made[:place] + chr(random.choice([0, 10, 47, 46, 92, 0x202E, 0xD800, 0x1F600]))
    return made


@functools.cache
def _real_record():
    """One that was written by a recorder, as lines."""
    from belljar.record.format import FORMAT, VERSION

    return [json.dumps({"format": FORMAT, "version": VERSION, "kind": "session"}), *LINES]


def data(random, place):
    if place == "archive":
        pool = ["/", "..", "\0", "\xff" * 4, "d", "f", "l", "s", "p", "b", "\x01", "x" * 40, "\xff"]
        count = random.choice([0, 1, 1, 2, 5])
        return [[random.randrange(5000), random.choice(pool)] for _ in range(count)]
    if place == "record":
        return "\n".join(random.choice(_real_record()) for _ in range(random.choice([1, 2, 5])))
    return None


def cases(random):
    while True:
        place = random.choice(list(PLACES))
        names = [name(random) for _ in range(random.choice([1, 4, 12]))]
        yield json.dumps({"place": place, "names": names, "data": data(random, place)}).encode()


def main(seconds, seed):
    return fuzzing.run("paths", seconds, seed)
