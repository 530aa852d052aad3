"""Names that a guest gives to files, and programs it leaves for the host to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from belljar.conformance.checks import check, scratch
from belljar.conformance.results import Look
from belljar.conformance.stage import Stage
from belljar.errors import SandboxError

_NAMES = [
    *(b"\xff\xfe", b"new\nline", b"\x1b[31m", b" ", b"-rf", b"\\", b"*", b"con", b"a\xe2\x80\xaeb"),
    b"x" * 255,
]


@check(
    62,
    what="file names of every kind: no text, line ends, dashes, 255 bytes, right-to-left, NUL",
    expected="each is listed, read, downloaded and removed as it is; NUL is refused",
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
            look.wrong(f"{name!r} is not read as it was written")
    with scratch() as here:
        sandbox.files.download("d", here / "d")
        arrived = {os.fsencode(path.name) for path in (here / "d").iterdir()}
        look.expect(arrived == set(_NAMES), "all arrived on the host by their names", arrived)
    for name in _NAMES:
        sandbox.files.remove("d/" + os.fsdecode(name))
    look.expect(sandbox.files.list("d") == [], "all were removed by their names")
    try:
        sandbox.files.read("a\0b")
        look.wrong("a path with NUL was taken")
    except SandboxError as error:
        look.saw(f"NUL is refused: {str(error).splitlines()[0]}")
    look.control(len(listed) == len(_NAMES), "the guest did make them")


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
    what="programs, modules and dotfiles in the workspace, which the host gets back and works in",
    expected="belljar runs none of them, also when it is started in that directory",
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
        look.expect(made.ok, "the files were made", made.error)
        arrived = {path.name for path in place.iterdir()}
        look.control(set(files) <= arrived, f"{len(arrived)} of them are on the host now")
        program = _HOST.format(path=[path for path in sys.path if path])
        told = _run_in(place, [sys.executable, "-I", "-c", program])
        look.expect(told.returncode == 0, "belljar works in that directory", told.stdout)
        look.expect(not mark.exists(), "none of them was run", _content(mark))
        _run_in(place, [sys.executable, "-c", "import json"])
        look.control(mark.exists(), f"a careless program there runs {_content(mark)!r}")


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


def _content(mark: Path) -> str:
    return mark.read_text() if mark.exists() else ""
