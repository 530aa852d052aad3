"""Trees that come from a guest: what would leave the directory, and what would fill the disk."""

from __future__ import annotations

import errno
import io
import tarfile
import time

from belljar.conformance.checks import check, scratch
from belljar.conformance.results import Look
from belljar.conformance.stage import Stage
from belljar.errors import FileError

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
    what="a tree with links out of it, pipes and sockets; gigabytes without content; thousands of "
    "files: all downloaded",
    expected="what would lead out is left out and named; the rest is cut off by bytes and by files",
)
def hostile_tree(stage: Stage, look: Look) -> None:
    with scratch() as here:
        canary = here / "canary"
        canary.mkdir()
        sandbox = stage.open(strict=False)
        made = sandbox.run_code(_TREE.format(canary=str(canary)), timeout=60)
        look.expect(made.ok, "the tree was made", made.error)
        told = " ".join(sandbox.files.download("t", here / "t").left_out)
        for name in ("root", "up", "link", "pipe", "sock"):
            if f"'{name}'" not in told:
                look.wrong(f"{name} is not said to be left out: {told}")
        found = sorted(str(path.relative_to(here / "t")) for path in (here / "t").rglob("*"))
        look.expect(found == ["d", "d/plain"], "only the plain file arrived", found)
        began = time.monotonic()
        for path, number in (("s", errno.EFBIG), ("m", errno.E2BIG)):
            try:
                sandbox.files.download(path, here / path)
                look.wrong(f"{path} was taken")
            except FileError as error:
                look.expect(error.errno == number, f"refused: {error.strerror}", error)
        look.in_time(time.monotonic() - began, 90)
        files = [path for path in here.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        look.expect(size == 5, "5 bytes are on the host, those of the plain file", size)
        look.expect(not list(canary.iterdir()), "nothing was written where a link led")
        _slip(look)


def _slip(look: Look) -> None:
    """What an unpacker that follows links would have done with the same members."""
    with scratch() as here:
        out = here / "out"
        out.mkdir()
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(here)
            tar.addfile(link)
            member = tarfile.TarInfo("link/slipped")
            tar.addfile(member, io.BytesIO(b""))
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            for each in tar:
                if each.issym():
                    (out / each.name).symlink_to(each.linkname)
                else:
                    (out / each.name).write_bytes(b"")
        look.control((here / "slipped").exists(), "a careless unpacker writes through the link")
