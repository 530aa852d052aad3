"""The file API against a guest that prepares traps for it."""

from __future__ import annotations

import errno
import hashlib
import time

from belljar.conformance.checks import check, scratch
from belljar.conformance.counters import own_memory
from belljar.conformance.looks import GROWTH, MIB
from belljar.conformance.results import Look
from belljar.conformance.stage import Stage
from belljar.errors import FileError
from belljar.sandbox.blocking import Sandbox

_TRAPS = """
import os, socket
for name, to in {{'a': {secret!r}, 'c': '/proc/self/mem', 'd': '/proc/self/fd/0', 'e': 'e',
                  'f': '/dev/zero', 'g': '/proc/1/root/etc/shadow'}}.items():
    os.symlink(to, name)
os.mkfifo('fifo'); os.mkfifo('fifo2'); socket.socket(socket.AF_UNIX).bind('sock')
os.symlink('fifo', 'tofifo'); open('plain', 'w').write('plain')
"""


def _refused(sandbox: Sandbox, name: str, data: str | None = None) -> bool:
    try:
        if data is None:
            sandbox.files.read(name, format="bytes")
        else:
            sandbox.files.write(name, data)
    except FileError:
        return True
    return False


@check(
    3,
    59,
    what="links to the host's files, FIFOs, sockets and devices where the caller reads and writes",
    expected="every one is refused, without waiting; a canary is neither read nor written",
)
def links_and_pipes(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    secret = stage.canaries.secret_file
    made = sandbox.run_code(_TRAPS.format(secret=str(secret)))
    look.expect(made.ok, "the traps were laid", made.error)
    began = time.monotonic()
    names = ["a", "c", "d", "e", "f", "g", "fifo", "tofifo", "sock"]
    read = [name for name in names if not _refused(sandbox, name)]
    look.expect(not read, f"{len(names)} traps cannot be read", read)
    names = ["c", "d", "e", "f", "fifo", "tofifo", "sock"]
    written = [name for name in names if not _refused(sandbox, name, "x" * 100)]
    look.expect(not written, f"{len(names)} traps cannot be written", written)
    _refused(sandbox, "a", "inside")  # the link leads to a path of the guest's own, if any
    kinds = {info.name: info.type for info in sandbox.files.list()}
    look.expect(kinds["fifo"] == "other", "a listing says that a FIFO is no file", kinds)
    for name in ("a", "fifo", "sock", "tofifo"):
        sandbox.files.remove(name)
    look.in_time(time.monotonic() - began, 60)
    for text in stage.canaries.wrongs().values():
        look.wrong(text)
    look.control(sandbox.files.read("plain") == "plain", "a plain file beside them is read")
    look.control(secret.read_text() == stage.canaries.secret, "the path is real on the host")


_SWAP = """
import os, threading
os.makedirs('t/real'); os.symlink({canary!r}, 't/link')
for i in range(20): open(f't/real/{{i}}', 'w').write('from the guest')
swaps = [0]
def swap():
    while True:
        os.rename('t/real', 't/aside'); os.rename('t/link', 't/real')
        os.rename('t/real', 't/link'); os.rename('t/aside', 't/real')
        swaps[0] += 1
threading.Thread(target=swap, daemon=True).start()
"""


@check(
    58,
    what="a directory that is a link to the host half of the time, while the caller reads it, "
    "writes to it and downloads it",
    expected="no path of the host is reached, and no link arrives there",
)
def swapped_directories(stage: Stage, look: Look) -> None:
    with scratch() as here:
        canary = here / "canary"
        canary.mkdir()
        secret = stage.canaries.secret
        (canary / "0").write_text(secret)
        sandbox = stage.start()
        look.expect(sandbox.run_code(_SWAP.format(canary=str(canary))).ok, "the swaps began")
        leaked, rounds = 0, 0
        deadline = time.monotonic() + 4.0
        while time.monotonic() < deadline:
            rounds += 1
            for act in (_read, _write, lambda s: s.files.download("t", here / "out")):
                try:
                    leaked += act(sandbox) == secret
                except FileError:
                    continue
        swaps = sandbox.run_code("swaps[0]").value
        look.control(isinstance(swaps, int) and swaps > 50, f"{swaps} swaps during {rounds} rounds")
        look.expect(not leaked, f"the host's file was read in none of {rounds} rounds", leaked)
        found = sorted(path.name for path in canary.iterdir())
        look.expect(found == ["0"], "nothing was written to the host's directory", found)
        look.expect((canary / "0").read_text() == secret, "its file is what it was")
        links = [str(path) for path in (here / "out").rglob("*") if path.is_symlink()]
        look.expect(not links, "no link arrived on the host", links)


def _read(sandbox: Sandbox) -> object:
    return sandbox.files.read("t/real/0")


def _write(sandbox: Sandbox) -> object:
    return sandbox.files.write("t/real/0", "from the host")


@check(
    60,
    what="a file of a tebibyte that takes no room, read and downloaded",
    expected="refused at once by its size; the host's memory does not grow",
)
def sparse_giant(stage: Stage, look: Look) -> None:
    with scratch() as here:
        sandbox = stage.open(limits={"workspace": "1t", "tmp": "1t"}, strict=False)
        made = sandbox.run_code("import os; open('f', 'w').truncate(1 << 40); os.stat('f').st_size")
        look.control(made.value == 1 << 40, f"the guest made a file of {made.value} bytes")
        before, began = own_memory(), time.monotonic()
        for act in (
            lambda: sandbox.files.read("f", format="bytes"),
            lambda: sandbox.files.download("f", here / "f", max_size="1g"),
        ):
            try:
                act()
                look.wrong("it was taken")
            except FileError as error:
                look.expect(error.errno == errno.EFBIG, "refused: it is too large", error)
        look.in_time(time.monotonic() - began, 60)
        grown = own_memory() - before
        look.expect(grown < GROWTH, f"the host grew by {max(grown, 0) / MIB:.1f} MiB")
        look.expect(not (here / "f").exists(), "nothing is left on the host")


_CHANGING = """
import threading
writes = [0]
def write():
    while True:
        writes[0] += 1
        with open('f', 'r+b') as file: file.write(bytes([writes[0] % 256]) * (9 << 20))
open('f', 'wb').write(bytes(9 << 20))
threading.Thread(target=write, daemon=True).start()
"""


@check(
    61,
    what="a file that is rewritten and one that grows, while they are read and downloaded",
    expected="whole, or an error; never torn, never without end",
)
def changing_files(stage: Stage, look: Look) -> None:
    with scratch() as here:
        sandbox = stage.open(strict=False)
        look.expect(sandbox.run_code(_CHANGING).ok, "the file is being rewritten")
        refused, taken, torn = 0, set(), 0
        before, deadline = _writes(sandbox), time.monotonic() + 30
        rounds = 0
        # Until the writer has had its turn beside them.
        while rounds < 4 or (_writes(sandbox) < before + 2 and time.monotonic() < deadline):
            rounds += 1
            try:
                sandbox.files.download("f", here / "f")
            except FileError as error:
                look.expect(error.errno == errno.EBUSY, "refused: it changes", error)
                refused += 1
                continue
            content = (here / "f").read_bytes()
            taken.add(hashlib.sha256(content).hexdigest()[:12])
            # What one system call is just writing may be half there, and no more than that.
            torn += len(set(content)) > 2 or len(content) != 9 * MIB
        look.expect(not torn, f"{refused} refused, {len(taken)} whole, 0 torn", torn)
        look.expect(not list(here.glob(".belljar*")), "nothing half-made is left on the host")
        writes = _writes(sandbox) - before
        look.control(writes > 1, f"it was rewritten {writes} times meanwhile")
    _growing(stage, look)


def _writes(sandbox: Sandbox) -> int:
    return int(str(sandbox.run_code("writes[0]").value))


def _growing(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    sandbox.run_code(
        "import threading\n"
        "def grow():\n"
        "    with open('g', 'ab') as file:\n"
        "        for _ in range(100): file.write(bytes(1 << 20)); file.flush()\n"
        "open('g', 'w').close(); threading.Thread(target=grow, daemon=True).start()"
    )
    try:
        size = len(sandbox.files.read("g", format="bytes"))
        look.expect(size <= 100 * MIB, f"of the growing file {size} bytes were read")
    except FileError as error:
        look.saw(f"the growing file was refused: {error}")
