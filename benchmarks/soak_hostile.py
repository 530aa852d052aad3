"""What a soak does, the hostile half: snippets, and how each must end."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from soak_kinds import LIMITS, Kind, Setting, Wrong, ended, gives, same

from belljar import Execution, Outcome
from belljar.errors import FileError

SHORT = 1.0  # seconds for what never ends

# The runner's own socket and the number of the cell, out of the frames above the snippet's.
WORKER = """
import json, os, struct, sys, time
frame, link, request = sys._getframe(), None, None
while frame is not None and request is None:
    names = frame.f_locals
    if link is None and hasattr(names.get("self"), "_channel"):
        link = names["self"]._channel._socket
    if link is not None and hasattr(names.get("frame"), "request"):
        request = names["frame"].request
    frame = frame.f_back
"""
BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        continue
"""
THREADS = """
import threading, time
count = 0
try:
    while count < 200:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
(NONCE, 0 < count < 24)
"""
FILL = """
import errno, os
found = []
for place in ("/workspace", "/tmp"):
    try:
        for number in range(64):
            with open(f"{place}/{number}", "wb", buffering=0) as file:
                file.write(b"x" * (1 << 20))
                file.write(b"x")  # the first may have been cut short
    except OSError as error:
        found.append(errno.errorcode[error.errno])
(NONCE, found)
"""
BLOCKED = """
import signal, time
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))
while True:
    time.sleep(60)
"""
FLOOD = """
import os, subprocess, sys
subprocess.Popen(["sh", "-c", "yes >&2"])
while True:
    print("x" * 8000)
    os.write(1, b"z" * 8000)
"""
GARBAGE = """
import os
for number in range(3, 64):
    try:
        os.set_blocking(number, False)
        os.write(number, os.urandom(4096))
    except OSError:
        continue
"""
FORGED = 'header = b\'{"status": "ok"}\'\nlink.sendall(struct.pack("!BIII", 66, request, 16, 0)'


@dataclass(frozen=True)
class Attack:
    """Code, and the outcomes of which it must have one."""

    name: str
    code: str
    outcomes: tuple[Outcome, ...]
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    value: object = None  # beside the nonce
    timeout: float | None = None
    survives: bool | None = False  # variables do; None: may or may not

    async def act(self, setting: Setting, nonce: int, rng: random.Random) -> str:
        code = f"print({nonce}, flush=True)\n" + self.code.replace("NONCE", str(nonce))
        if rng.random() < 0.5:
            execution = await setting.pool.run_code(code, timeout=self.timeout)
            return self.judge(execution, nonce)
        async with setting.acquire() as sandbox:
            gives(await sandbox.run_code(f"kept = {nonce}; kept"), nonce)
            execution = await sandbox.run_code(code, timeout=self.timeout)
            outcome = self.judge(execution, nonce)
            if self.survives is not None:
                same("state_preserved", execution.state_preserved, self.survives)
            # What it did to its interpreter is its own affair; a new one must be as good as new.
            if not execution.state_preserved:
                gives(await sandbox.run_code(f"({nonce}, 'kept' in globals())"), (nonce, False))
        return outcome

    def judge(self, execution: Execution, nonce: int) -> str:
        outcome = ended(execution, *self.outcomes)
        said = execution.stdout.partition("\n")[0]
        # On a busy machine the time may be over before the first word.
        if not (said == str(nonce) or (said == "" and execution.outcome is Outcome.timeout)):
            raise Wrong(f"its first line is {said[:50]!r}, not its nonce")
        if len(execution.stdout) + len(execution.stderr) > LIMITS.output:
            raise Wrong(f"{len(execution.stdout) + len(execution.stderr)} characters were kept")
        if len(execution.text or "") > LIMITS.output:
            raise Wrong(f"its text has {len(execution.text or '')} characters")
        if self.exit_code is not None:
            same("the exit code", execution.exit_code, self.exit_code)
        if self.signal is not None:
            same("the signal", execution.signal, self.signal)
        if self.error is not None:
            same("the error", execution.error and execution.error.name, self.error)
        if self.value is not None:
            same("the value", execution.value, (nonce, self.value))
        return outcome


killed, memory = Outcome.killed, Outcome.out_of_memory
ATTACKS = [
    # Its interpreter may hear the interrupt in time, between two forks; mostly it is killed.
    Attack("fork bomb", BOMB, (Outcome.timeout,), timeout=SHORT, survives=None),
    Attack("thread bomb", THREADS, (Outcome.ok,), value=True, survives=True),
    Attack("memory bomb", "held = []\nwhile True: held.append(bytearray(8 << 20))", (memory,)),
    Attack(
        "shared memory filler",
        "for n in range(999): open(f'/dev/shm/{n}', 'wb').write(b'x' * (1 << 20))",
        (Outcome.error,),
        error="OSError",
        survives=True,
    ),
    Attack("output flood", FLOOD, (Outcome.output_limit,), survives=None),
    Attack("disk filler", FILL, (Outcome.ok,), value=["ENOSPC", "ENOSPC"], survives=True),
    Attack("os._exit", "import os; os._exit(7)", (killed,), exit_code=7),
    Attack("os._exit(0)", "import os; os._exit(0)", (killed,), exit_code=0),
    Attack("segmentation fault", "import ctypes; ctypes.string_at(0)", (killed,), signal=11),
    Attack("kill -9 itself", "import os; os.kill(os.getpid(), 9)", (killed,), signal=9),
    Attack(
        "forged end, then exit",
        f"{WORKER}{FORGED} + header)\nos._exit(1)",
        (killed,),
        exit_code=1,
    ),
    Attack(
        "frame of 4 GB",
        f"{WORKER}link.sendall(struct.pack('!BIII', 65, request, 2**32 - 1, 2**32 - 1) + b'x')\n"
        "time.sleep(60)",
        (killed,),
    ),
    Attack(
        "garbage on descriptors",
        GARBAGE,
        (killed, Outcome.ok, Outcome.output_limit),
        survives=None,
    ),
    Attack("descriptors closed", "import os; os.closerange(0, 1000)", (killed,)),
    Attack(
        "deep recursion",
        "def deeper(): deeper()\ndeeper()",
        (Outcome.error,),
        error="RecursionError",
        survives=True,
    ),
    Attack("signals blocked", BLOCKED, (Outcome.timeout,), timeout=SHORT),
    Attack(
        "daemon left behind",
        "import subprocess\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n(NONCE, 1)",
        (Outcome.ok,),
        value=1,
        survives=True,
    ),
    Attack(
        "huge repr",
        "class Huge:\n    def __repr__(self): return 'x' * (16 << 20)\nHuge()",
        (Outcome.ok,),
        survives=True,
    ),
]

NAMES = """
import os
os.mkdir("odd")
names = [b"a\\nb", b"\\xff\\xfe", b"-rf", b"x" * 255, b"\\x1b[31m", b" ", b"'$(id)", b"..."]
for name in names:
    with open(os.path.join(b"odd", name), "w") as file:
        file.write("NONCE")
os.symlink("/etc/shadow", "odd/link")
os.symlink("../" * 20 + "etc", "odd/up")
os.makedirs("odd/" + "d/" * 60)
(NONCE, len(os.listdir("odd")))
"""


async def odd_names(setting: Setting, nonce: int, rng: random.Random) -> str:
    """Names and links that no program likes, listed, read and brought to the host."""
    async with setting.acquire() as sandbox:
        gives(await sandbox.run_code(NAMES.replace("NONCE", str(nonce))), (nonce, 11))
        same("the number of names", len(await sandbox.files.list("odd")), 11)
        for link in ("odd/link", "odd/up/shadow"):
            try:
                await sandbox.files.read(link)
            except FileError:
                continue
            raise Wrong(f"{link} could be read")
        target = Path(tempfile.mkdtemp(prefix="odd-"))
        try:
            await sandbox.files.download("odd", target / "odd")
            _check_download(target, nonce)
        finally:
            shutil.rmtree(target)
    return "ok"


def _check_download(target: Path, nonce: int) -> None:
    found = 0
    for path, directories, files in os.walk(os.fsencode(target)):
        for name in (*directories, *files):
            whole = os.path.join(path, name)
            if os.path.islink(whole):
                raise Wrong(f"the link {name!r} was made on the host")
        for name in files:
            with open(os.path.join(path, name)) as file:
                same("a file that came out", file.read(), str(nonce))
            found += 1
    same("the number of files that came out", found, 8)


HOSTILE = [Kind(one.name, one.act, hostile=True, weight=1) for one in ATTACKS]
HOSTILE.append(Kind("file name horrors", odd_names, hostile=True, weight=1))
