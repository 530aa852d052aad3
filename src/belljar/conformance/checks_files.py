"""The host's file API against a guest that prepares traps: links, trees, names, changing files."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from belljar.conformance.attempts import GROWTH, MIB
from belljar.conformance.processes import own_memory
from belljar.conformance.report_data import Look
from belljar.conformance.stage import Stage, check, scratch
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
    look.expect(made.ok, "the guest prepared the traps", made.error)
    began = time.monotonic()
    names = ["a", "c", "d", "e", "f", "g", "fifo", "tofifo", "sock"]
    read = [name for name in names if not _refused(sandbox, name)]
    look.expect(not read, f"{len(names)} traps cannot be read", read)
    names = ["c", "d", "e", "f", "fifo", "tofifo", "sock"]
    written = [name for name in names if not _refused(sandbox, name, "x" * 100)]
    look.expect(not written, f"{len(names)} traps cannot be written", written)
    _refused(sandbox, "a", "inside")  # inside the guest, the link may lead to a file of its own
    kinds = {info.name: info.type for info in sandbox.files.list()}
    look.expect(kinds["fifo"] == "other", "a listing does not show a FIFO as a file", kinds)
    for name in ("a", "fifo", "sock", "tofifo"):
        sandbox.files.remove(name)
    look.in_time(time.monotonic() - began, 60)
    stage.check_canaries(look)
    look.control(sandbox.files.read("plain") == "plain", "a plain file beside them is read")
    look.control(secret.read_text() == stage.canaries.secret, "the path is real on the host")


# A write of the caller may make t/real while it is away: then the swap fails, and is undone.
_SWAP = """
import os, shutil, threading
os.makedirs('t/real'); os.symlink({canary!r}, 't/link')
for i in range(20): open(f't/real/{{i}}', 'w').write('from the guest')
swaps = [0]
def undo():
    if os.path.islink('t/real'): os.rename('t/real', 't/link')
    elif os.path.isdir('t/aside'): shutil.rmtree('t/real', True)
    if os.path.isdir('t/aside'): os.rename('t/aside', 't/real')
def swap():
    while True:
        try:
            os.rename('t/real', 't/aside'); os.rename('t/link', 't/real')
            os.rename('t/real', 't/link'); os.rename('t/aside', 't/real')
            swaps[0] += 1
        except OSError:
            try: undo()
            except OSError: pass
threading.Thread(target=swap, daemon=True).start()
"""


@check(
    58,
    what="swap a directory with a link to the host while the caller reads it, writes to it and "
    "downloads it",
    expected="no path of the host is reached, and no link arrives on the host",
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
        acts: tuple[Callable[[], object], ...] = (
            lambda: sandbox.files.read("t/real/0"),
            lambda: sandbox.files.write("t/real/0", "from the host"),
            lambda: sandbox.files.download("t", here / "out"),
        )
        deadline = time.monotonic() + 4.0
        while time.monotonic() < deadline:
            rounds += 1
            for act in acts:
                try:
                    leaked += act() == secret
                except FileError:
                    continue
        swaps = sandbox.run_code("swaps[0]").value
        look.control(isinstance(swaps, int) and swaps > 50, f"{swaps} swaps during {rounds} rounds")
        look.expect(not leaked, f"the host's file was read in none of {rounds} rounds", leaked)
        found = sorted(path.name for path in canary.iterdir())
        look.expect(found == ["0"], "nothing was written to the host's directory", found)
        look.expect((canary / "0").read_text() == secret, "the host's file is unchanged")
        links = [str(path) for path in (here / "out").rglob("*") if path.is_symlink()]
        look.expect(not links, "no link arrived on the host", links)


@check(
    60,
    what="a sparse file of one tebibyte, read and downloaded",
    expected="refused at once because of its size; the host's memory does not grow",
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
            with look.refused("the large file", FileError, errno.EFBIG):
                act()
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
    what="rewrite one file and grow another while the caller reads and downloads them",
    expected="the whole file or an error; never a mixture, never an endless read",
)
def changing_files(stage: Stage, look: Look) -> None:
    with scratch() as here:
        sandbox = stage.open(strict=False)
        look.expect(sandbox.run_code(_CHANGING).ok, "the file is being rewritten")
        refused, taken, torn = 0, set(), 0
        before, deadline = _writes(sandbox), time.monotonic() + 30
        rounds = 0
        # Until the writer has run at the same time.
        while rounds < 4 or (_writes(sandbox) < before + 2 and time.monotonic() < deadline):
            rounds += 1
            try:
                sandbox.files.download("f", here / "f")
            except FileError as error:
                look.expect(error.errno == errno.EBUSY, "refused: the file changes", error)
                refused += 1
                continue
            content = (here / "f").read_bytes()
            taken.add(hashlib.sha256(content).hexdigest()[:12])
            # A system call that is still writing may be half done, but only one.
            torn += len(set(content)) > 2 or len(content) != 9 * MIB
        look.expect(not torn, f"{refused} refused, {len(taken)} whole, 0 torn", torn)
        look.expect(not list(here.glob(".belljar*")), "no partial file is left on the host")
        writes = _writes(sandbox) - before
        look.control(writes > 1, f"the guest rewrote it {writes} times meanwhile")
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
        look.expect(size <= 100 * MIB, f"{size} bytes of the growing file were read")
    except FileError as error:
        look.saw(f"the growing file was refused: {error}")


_TREE = """
import os, socket
os.makedirs('t/d')
os.symlink('/', 't/root'); os.symlink('../../../../etc/passwd', 't/up')
os.symlink({canary!r}, 't/link'); os.mkfifo('t/pipe')
socket.socket(socket.AF_UNIX).bind('t/sock')
open('t/d/plain', 'w').write('plain')
os.mkdir('s'); os.mkdir('m')
for i in range(8): open(f's/{{i}}', 'w').truncate(100 << 20)
for i in range(10_001): os.close(os.open(f'm/{{i}}', 64))
"""


@check(
    57,
    what="download a tree with links out of it, pipes and sockets; sparse gigabytes; thousands of "
    "files",
    expected="links, pipes and sockets are left out and named; too many bytes or files are refused",
)
def hostile_tree(stage: Stage, look: Look) -> None:
    with scratch() as here:
        canary = here / "canary"
        canary.mkdir()
        sandbox = stage.open(strict=False)
        made = sandbox.run_code(_TREE.format(canary=str(canary)), timeout=60)
        look.expect(made.ok, "the guest made the tree", made.error)
        told = " ".join(sandbox.files.download("t", here / "t").left_out)
        for name in ("root", "up", "link", "pipe", "sock"):
            if f"'{name}'" not in told:
                look.wrong(f"{name} is not reported as left out: {told}")
        found = sorted(str(path.relative_to(here / "t")) for path in (here / "t").rglob("*"))
        look.expect(found == ["d", "d/plain"], "only the plain file arrived", found)
        began = time.monotonic()
        for path, number in (("s", errno.EFBIG), ("m", errno.E2BIG)):
            with look.refused(path, FileError, number):
                sandbox.files.download(path, here / path)
        look.in_time(time.monotonic() - began, 90)
        files = [path for path in here.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        look.expect(size == 5, "the host has only the 5 bytes of the plain file", size)
        look.expect(not list(canary.iterdir()), "nothing was written through a link")
        _slip(look)


def _slip(look: Look) -> None:
    """Unpack the same members with an unpacker that follows links."""
    with scratch() as here:
        out = here / "out"
        out.mkdir()
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(here)
            tar.addfile(link)
            tar.addfile(tarfile.TarInfo("link/slipped"))
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            tar.extraction_filter = lambda member, path: member
            tar.extractall(out)
        look.control((here / "slipped").exists(), "a careless unpacker writes through the link")


_NAMES = [
    *(b"\xff\xfe", b"new\nline", b"\x1b[31m", b" ", b"-rf", b"\\", b"*", b"con", b"a\xe2\x80\xaeb"),
    b"x" * 255,
]


@check(
    62,
    what="file names of every kind: not text, newlines, dashes, 255 bytes, right-to-left, NUL",
    expected="each name is listed, read, downloaded and removed unchanged; NUL is refused",
)
def odd_names(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    sandbox.run_code(
        f"import os\nos.mkdir('d')\nfor name in {_NAMES!r}:\n"
        "    with open(b'd/' + name, 'wb') as file: file.write(name)"
    )
    listed = {os.fsencode(info.name) for info in sandbox.files.list("d")}
    look.expect(listed == set(_NAMES), f"{len(_NAMES)} names were listed", listed)
    for name in _NAMES:
        path = "d/" + os.fsdecode(name)
        if sandbox.files.read(path, format="bytes") != name:
            look.wrong(f"{name!r} does not read as it was written")
    with scratch() as here:
        sandbox.files.download("d", here / "d")
        arrived = {os.fsencode(path.name) for path in (here / "d").iterdir()}
        look.expect(arrived == set(_NAMES), "all arrived on the host with their names", arrived)
    for name in _NAMES:
        sandbox.files.remove("d/" + os.fsdecode(name))
    look.expect(sandbox.files.list("d") == [], "all were removed by their names")
    with look.refused("a path with NUL"):
        sandbox.files.read("a\0b")
    look.control(len(listed) == len(_NAMES), "the guest made them all")


_PLANTED = {
    **dict.fromkeys(("sitecustomize.py", "json.py"), "open({mark!r}, 'a').write({name!r})\n"),
    **dict.fromkeys(("conftest.py", "anyio.py"), "open({mark!r}, 'a').write({name!r})\n"),
    **dict.fromkeys(("uv", "python3", "docker", "sh"), "#!/bin/sh\necho {name} >> {mark}\n"),
    **dict.fromkeys((".bashrc", ".profile", ".envrc"), "echo {name} >> {mark}\n"),
    "belljar.toml": "[broken",
}
_HOST = """
import sys
sys.path[:0] = {path!r}
from belljar.cli import main
sys.exit(main(["--version"]) or main(["gc", "--dry-run"]))
"""


@check(
    63,
    what="plant programs, modules and dotfiles in a workspace that the host then works in",
    expected="belljar runs none of them, also when it starts in that directory",
)
def planted_for_the_host(stage: Stage, look: Look) -> None:
    with scratch() as here:
        mark = here / "ran"
        place = here / "workspace"
        files = {name: text.format(mark=str(mark), name=name) for name, text in _PLANTED.items()}
        sandbox = stage.open(strict=False, workspace=place)
        made = sandbox.run_code(
            f"import os\nfor name, text in {files!r}.items():\n"
            "    open(name, 'w').write(text); os.chmod(name, 0o755)"
        )
        sandbox.close()
        look.expect(made.ok, "the guest made the files", made.error)
        arrived = {path.name for path in place.iterdir()}
        look.control(set(files) <= arrived, f"{len(arrived)} of them are on the host now")
        program = _HOST.format(path=[path for path in sys.path if path])
        mark.touch()
        told = _run_in(place, [sys.executable, "-I", "-c", program])
        look.expect(told.returncode == 0, "belljar works in that directory", told.stdout)
        look.expect(not mark.read_text(), "belljar ran none of them", mark.read_text())
        _run_in(place, [sys.executable, "-c", "import json"])
        ran = mark.read_text()
        look.control(ran, f"a careless program there runs {ran!r}")


def _run_in(place: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=place,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
