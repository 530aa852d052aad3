"""A host process that the machine is broken under: it uses a sandbox, and writes down what it saw.

    python faults_driver.py SOCKET      a nursery: forks such a process for each job it is told

Each step is a claim about the sandbox that is either true, or denied by an error or an outcome.
The journal has a line for each: `right`, `refused` (with the reason), or `LIE`.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio._backends._asyncio

import belljar.observe.presence
from belljar import AsyncSandbox, SandboxError, runtime
from belljar.backends.native import spawn
from outside import session_of

OUTPUT = """
import os
with open("out.part", "w") as file:
    file.write("{token}" * 5000)
os.rename("out.part", "out.txt")
print("{token}")
x
"""


class Journal:
    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(self, step, how, why="", **more):
        line = json.dumps({"step": step, "how": how, "why": why, **more}).encode() + b"\n"
        for _ in range(3):  # the fault may be in this very call
            try:
                os.write(self._file, line)
            except OSError:
                continue
            return


class Story:
    """The steps, one after the other; each goes on whatever became of those before."""

    def __init__(self, job, journal):
        self.token = job["token"]
        self.pause_at = job["pause"]
        self.directory = Path(job["directory"])
        self.journal = journal
        self.sandbox = None
        self.told_of_loss = False  # that variables and files may be gone
        self.written = False  # the file that the command looks at

    async def step(self, name, action):
        """`action` gives None if all is right, else what it was given instead."""
        try:
            wrong = await action()
        except Exception as error:
            self.told_of_loss = True
            # The last are Python's own words for a machine that is full; no border holds them all.
            full = isinstance(error, MemoryError) or "can't start new thread" in str(error)
            ours = isinstance(error, SandboxError) or full
            text = f"{type(error).__name__}: {error}"[:300]
            where = "" if ours else "".join(traceback.format_exception(error))[-900:]
            self.journal.note(name, "refused" if ours else "raw", why=text, where=where)
        else:
            self.journal.note(name, *(("right",) if wrong is None else wrong))

    def seen(self, execution, expected):
        """None if it is right; a wrong value with `ok` is a lie, a lost state must be said."""
        if not execution.state_preserved or not execution.ok:
            named = execution.error.name if execution.error else ""
            if named == "NameError" and execution.state_preserved and not self.told_of_loss:
                return "LIE", f"variables are gone, and nobody said so: {execution.notes}"
        self.told_of_loss = self.told_of_loss or not execution.state_preserved
        if not execution.ok:
            error = execution.error.name if execution.error else ""
            return "refused", f"{execution.outcome.value} {error}"
        if execution.value != expected:
            return "LIE", f"{execution.value!r:.100} is not {expected!r:.100}"
        return None

    def pause(self, where):
        """Let whoever breaks things get hold of us."""
        if where == self.pause_at:
            self.journal.note("pause", "right", guest=self._guest())
            with open(self.directory / "go"):  # comes back when somebody else opens it too
                pass

    def _guest(self):
        place = session_of(self.sandbox) if self.sandbox is not None else None
        return place.guest.pid if place is not None else 0

    # -- the steps --------------------------------------------------------------------------

    async def run(self):
        self.pause("start")
        if self.pause_at == "guest":
            await self.again()
            self.pause("guest")
        await self.step("create", self.create)
        if self.sandbox is not None:
            self.pause("inside")
            for name in ("cell", "put", "file", "command", "output", "call", "rollback"):
                await self.step(name, getattr(self, name))
            await self.step("close", self.close)
        await self.step("again", self.again)
        await self.step("last", self.again)

    async def create(self):
        self.sandbox = AsyncSandbox(
            environment="python",
            limits={"timeout": 15},
            workspace=self.directory / "kept",
            functions=[double],
        )
        try:
            await self.sandbox.start()
        except BaseException:
            await self.sandbox.kill()
            self.sandbox = None
            raise

    async def cell(self):
        return self.seen(await self.sandbox.run_code(f"x = {self.token!r}\nx"), self.token)

    async def put(self):
        value = self.token.encode() * 40000  # large enough to be shared, not copied
        await self.sandbox.put(y=value)
        if await self.sandbox.get("y") != value:
            return "LIE", "another value came back"
        return None

    async def file(self):
        data = self.token.encode() * 1000
        await self.sandbox.files.write("a.bin", data)
        if await self.sandbox.files.read("a.bin", format="bytes") != data:
            return "LIE", "another content came back"
        self.written = True
        return None

    async def command(self):
        result = await self.sandbox.commands.run("cat a.bin")
        if result.exit_code != 0 or not self.written:
            return "refused", f"{result.exit_code} {result.stderr}"[:200]
        if result.stdout != self.token * 1000:
            return "LIE", f"{result.stdout:.100} {result.stderr:.100}"
        return None

    async def output(self):
        code = OUTPUT.format(token=self.token)
        execution = await self.sandbox.run_code(code)
        wrong = self.seen(execution, self.token)
        if wrong is None and execution.stdout != self.token + "\n":
            wrong = "LIE", f"the output is {execution.stdout!r:.100}"
        if wrong is None and not execution.notes:
            kept = self.directory / "kept" / "out.txt"
            if not kept.exists() or kept.read_text() != self.token * 5000:
                wrong = "LIE", "the file was not kept, and nobody said so"
        return wrong

    async def call(self):
        return self.seen(await self.sandbox.run_code("double(x)"), self.token * 2)

    async def rollback(self):
        kept = await self.sandbox.checkpoint()
        wrong = self.seen(await self.sandbox.run_code("x = 'something else'"), None)
        await self.sandbox.rollback(kept)
        return self.seen(await self.sandbox.run_code("x"), self.token) or wrong

    async def close(self):
        await self.sandbox.close()

    async def again(self):
        """Another sandbox of the same process: one fault is not the end."""
        sandbox = AsyncSandbox(environment="python")
        try:
            return self.seen(await sandbox.run_code(f"{self.token!r}[::-1]"), self.token[::-1])
        finally:
            await sandbox.close()


def double(text: str) -> str:
    return text * 2


# -- one job --------------------------------------------------------------------------------


def descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # that of the listing itself
    return sorted(link.partition("[")[0] if ":[" in link else link for link in found)


def new_descriptors(before):
    """Those that stay: a thread that ends has the C library look into /proc on its way."""
    gc.collect()  # tracebacks may hold some
    for _ in range(3000):
        extra = descriptors()
        for link in before:
            if link in extra:
                extra.remove(link)
        if not extra:
            break
        time.sleep(0.01)
    return extra


def settle():
    """Threads that were told to end do so soon; the names of those that have not."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    return sorted(t.name for t in threading.enumerate() if t is not threading.main_thread())


def work(job):
    journal = Journal(f"{job['directory']}/journal")
    if job["executable"]:
        spawn.sys = SimpleNamespace(executable=job["executable"])
    for name, limits in job["rlimits"].items():
        resource.setrlimit(getattr(resource, name), tuple(limits))
    before = descriptors()
    try:
        anyio.run(Story(job, journal).run)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))[-900:]
        journal.note("story", "raw", why=f"{type(error).__name__}: {error}"[:300], where=text)
    for _ in range(2):  # the fault may be here
        try:
            runtime.shutdown()
        except OSError as error:
            text = "".join(traceback.format_exception(error))[-900:]
            journal.note("shutdown", "raw", why=str(error), where=text)
    left = settle() + new_descriptors(before)
    journal.note("end", "LEAK" if left else "right", left=left)


def nursery(address):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of our children come to us
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(address)
    while data := line.recv(65536):
        job = json.loads(data)
        if "wait" in job:
            _, status = os.waitpid(job["wait"], 0)
            line.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            os.setsid()
            os.environ.update(job["env"])
            status = 1
            try:
                work(job)
                status = 0
            finally:
                os._exit(status)
        line.send(json.dumps(pid).encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert stat.S_ISSOCK(os.stat(sys.argv[1]).st_mode)
    assert belljar.observe.presence  # imported before the forks, which then need not
    nursery(sys.argv[1])
