"""Checkpoints when something goes wrong: deaths, hostile code, cancellation; and a model."""

import asyncio
import contextlib
import gc
import os
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

import census
import gvisor
from belljar import (
    CheckpointLost,
    Limits,
    Outcome,
    Sandbox,
    SandboxError,
)
from checkpoints import PARKED, WORST, ok, some, value

# --- after the worst -------------------------------------------------------------------------


@pytest.mark.contract("docker")
@pytest.mark.parametrize("worst", some(*WORST))
def test_one_can_go_back_from(sandbox, worst):
    ok(sandbox, "x = 1; open('f', 'w').write('a' * 1000)")
    checkpoint = sandbox.checkpoint()
    for _ in range(2):
        sandbox.run_code(WORST[worst], timeout=2)
        sandbox.rollback(checkpoint)
        execution = sandbox.run_code("import os; x, os.listdir(), len(open('f').read())")
        assert execution.value == (1, ["f"], 1000), execution
        assert execution.state_preserved


@pytest.mark.contract("docker")
@pytest.mark.needs_cgroup
@gvisor.MEMORY
def test_one_can_go_back_from_out_of_memory(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="256m"), strict=False)
    ok(sandbox, "x = bytearray(b'1') * (100 << 20)")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "del x")
    for _ in range(2):
        execution = sandbox.run_code(
            "y = 1; z = [bytearray(b'1') * (1 << 20) for i in range(1000)]"
        )
        assert execution.outcome is Outcome.out_of_memory
        sandbox.rollback(checkpoint)
        assert value(sandbox, "len(x), x[-1], 'y' in globals()") == (100 << 20, 49, False)


@pytest.mark.contract("docker")
def test_one_can_go_back_after_a_restart(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    sandbox.restart()
    assert sandbox.run_code("x").error.name == "NameError"
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


@gvisor.PROCESSES
def test_going_back_from_a_bomb_that_still_goes_off(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    ok(
        sandbox,
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            while True:
                try: os.fork()
                except OSError: pass
        while True:
            try:
                if os.fork() == 0: os._exit(0)
            except OSError: break
        """,
    )
    sandbox.rollback(checkpoint)
    assert value(sandbox, "import os; x") == 1
    # Those killed are gone when the kernel is done with them.
    left = "len([n for n in os.listdir('/proc') if n.isdigit()])"
    census.wait_until(lambda: value(sandbox, left) <= 4, 30.0, "the end of the bomb")


def test_a_checkpoint_while_files_come_and_go(sandbox):
    ok(
        sandbox,
        """
        import subprocess
        code = 'import os\\nwhile True:\\n for i in range(100): open(f"t{i}", "w").close()'
        code += '\\n for i in range(100): os.remove(f"t{i}")'
        p = subprocess.Popen(['python3', '-c', code]); x = 1; open('stays', 'w').write('a')
        """,
    )
    for _ in range(10):
        checkpoint = sandbox.checkpoint()
        sandbox.rollback(checkpoint)
        assert value(sandbox, "x, open('stays').read()") == (1, "a")
        sandbox.release(checkpoint)


@pytest.mark.contract("docker")
def test_rollback_waits_for_commands_and_restarts(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    begun = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        command = "echo begun; sleep 0.3; echo late > late"
        ran = pool.submit(sandbox.commands.run, command, on_stdout=lambda text: begun.set())
        assert begun.wait(60)
        restarts = pool.submit(lambda: [sandbox.restart() for _ in range(5)])
        for _ in range(5):
            sandbox.rollback(checkpoint)
        restarts.result(60)
        assert ran.result(60).exit_code == 0
        sandbox.rollback(checkpoint)
    assert value(sandbox, "import os; x, os.listdir()") == (1, [])


# --- hostile code ----------------------------------------------------------------------------


def test_a_parked_interpreter_that_the_code_kills_is_a_lost_checkpoint(sandbox):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, PARKED + "\nassert len(parked) == 1; os.kill(parked[0], 9)")
    with pytest.raises(CheckpointLost):
        sandbox.rollback(checkpoint)
    assert value(sandbox, "x, open('f').read()") == (1, "a")


def test_a_parked_interpreter_that_the_code_stops_does_not_hang_a_rollback(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, PARKED + "\nimport signal; os.kill(parked[0], signal.SIGSTOP); x = 2")
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


@pytest.mark.contract("docker")
def test_a_fork_that_the_code_kills_is_told(sandbox):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    with sandbox.fork() as fork:
        # Init has noticed once the process is reaped. A cell that comes earlier may meet it dying.
        kill = "for pid in parked: os.kill(pid, 9)"
        wait = "while any(os.path.exists(f'/proc/{pid}') for pid in parked): pass"
        ok(sandbox, "\n".join([PARKED, kill, wait]), timeout=30)
        execution = fork.run_code("'x' in globals(), open('f').read()")
        assert execution.value == (False, "a")
        assert not execution.state_preserved
    assert value(sandbox, "x") == 1


HOOKS = {
    "raises": "import os; os.register_at_fork(before=lambda: 1/0, after_in_child=lambda: 1/0)",
    "sleeps": "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(0.2))",
    "lingers": "import os, time; os.register_at_fork(after_in_parent=lambda: time.sleep(2.2))",
    "reaps": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "undumpable": "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)",
    "forks": "import os; os.register_at_fork(after_in_parent=lambda: None, before=lambda: None)",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_the_code_do_no_harm(sandbox, hook):
    ok(sandbox, "x = 1")
    ok(sandbox, HOOKS[hook])
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2")
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


REFUSED = {
    "exits": "import os; os.register_at_fork(after_in_child=lambda: os._exit(0))",
    "becomes a reaper": "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)",
}


@pytest.mark.parametrize(
    "hook",
    [
        pytest.param(
            hook,
            marks=pytest.mark.not_gvisor("there are no reapers but PID 1")
            if hook == "becomes a reaper"
            else (),
        )
        for hook in REFUSED
    ],
)
def test_code_that_spoils_its_own_copies_loses_nothing_else(sandbox, hook):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    ok(sandbox, REFUSED[hook])
    with pytest.raises(SandboxError, match="could not keep"):
        sandbox.checkpoint()
    assert value(sandbox, "x, open('f').read()") == (1, "a")


def test_a_hook_that_hangs_costs_the_interpreter_but_not_the_files(sandbox, monkeypatch):
    ok(sandbox, "open('f', 'w').write('a'); x = 1")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "import os, time; os.register_at_fork(before=lambda: time.sleep(1000))")
    with monkeypatch.context() as patch:
        patch.setattr("belljar.sandbox.guest_session.KEEP_TIMEOUT", 4.0)
        with pytest.raises(SandboxError, match="took too long"):
            sandbox.checkpoint()
    execution = sandbox.run_code("open('f').read()")
    assert execution.value == "a"
    assert not execution.state_preserved
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


@pytest.mark.parametrize("way", ["checkpoint", "fork", "undo"])
def test_a_hook_that_hangs_is_ended_by_the_time_out(make_sandbox, monkeypatch, way):
    monkeypatch.setattr(
        "belljar.sandbox.guest_session.KEEP_TIMEOUT", 1000.0
    )  # longer than a test may take
    sandbox = make_sandbox(limits={"timeout": 3})
    ok(sandbox, "import os, time; os.register_at_fork(before=lambda: time.sleep(1000))")
    ways = {
        "checkpoint": sandbox.checkpoint,
        "fork": sandbox.fork,
        "undo": lambda: sandbox.run_code("1", undo_on_error=True),
    }
    with pytest.raises(SandboxError, match="took too long"):
        ways[way]()
    assert value(sandbox, "1 + 1") == 2


FORGED = """
import socket, struct, os, time
s = socket.socket(fileno=os.dup(3))
def frame(kind, body=b''): return struct.pack('!BIII', kind, 0, len(body), 0) + body
"""


@pytest.mark.parametrize(
    "frames",
    [
        "frame(72)",
        "frame(71)",
        'frame(71, b\'{"missing": 5, "error": 7}\')',
        "frame(72) + frame(71)",
    ],
)
def test_forged_words_of_a_worker_do_no_harm(sandbox, frames):
    ok(sandbox, "x = 1")
    ok(sandbox, FORGED + f"\ns.sendall({frames})")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2")
    ok(
        sandbox,
        f"import threading; t = threading.Timer(0.02, lambda: s.sendall({frames})); t.start()",
    )
    with contextlib.suppress(SandboxError):  # it may spoil its own
        sandbox.checkpoint()
    ok(sandbox, "t.join()")
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


def test_a_copy_that_is_somebody_else_is_not_taken(sandbox):
    """Code that answers for its own copy, from a process that is a checkpoint already."""
    ok(sandbox, "x = 1")
    ok(
        sandbox,
        """
        import os
        seen = []
        def child():
            for name in os.listdir('/proc/self/fd'):
                try: path = os.readlink('/proc/self/fd/' + name)
                except OSError: continue
                if path.startswith('socket:') and int(name) > 3:
                    import socket, struct
                    s = socket.socket(fileno=os.dup(int(name)))
                    s.sendall(struct.pack('!BIII', 72, 0, 0, 0))
        os.register_at_fork(after_in_child=child)
        """,
    )
    with pytest.raises(SandboxError):
        sandbox.checkpoint()
    assert value(sandbox, "x") == 1


# --- against a model -------------------------------------------------------------------------


STEPS = ["change", "keep", "back", "fork", "close", "release", "crash", "undo", "command", "look"]


class Model:
    """What a branch should hold: a number, and the same number in a file."""

    def __init__(self, sandbox, held):
        self.sandbox = sandbox
        self.held = held

    def change(self, number):
        ok(self.sandbox, f"x = {number}; open('x', 'w').write('{number}')")
        self.held = (number, str(number))

    def check(self):
        assert value(self.sandbox, "x, open('/workspace/x').read()") == self.held


def test_any_order_of_steps_gives_what_the_model_says(make_sandbox):
    seed = int(os.environ.get("BELLJAR_TEST_SEED", "7"))
    steps = int(os.environ.get("BELLJAR_TEST_STEPS", "80"))
    chance = random.Random(seed)
    live, kept = [Model(make_sandbox(), None)], []
    live[0].change(0)
    for step in range(1, steps):
        one = chance.choice(live)
        what = chance.choice(STEPS)
        if what == "change":
            one.change(step)
        elif what == "keep" and len(kept) < 6:
            kept.append((one.sandbox.checkpoint(), one.held))
        elif what == "back" and kept:
            checkpoint, held = chance.choice(kept)
            one.sandbox.rollback(checkpoint)
            one.held = held
        elif what == "fork" and len(live) < 5:
            live.append(Model(one.sandbox.fork(), one.held))
        elif what == "close" and len(live) > 1:
            live.remove(one)
            one.sandbox.close()
            continue
        elif what == "release" and kept:
            one.sandbox.release(kept.pop(chance.randrange(len(kept)))[0])
        elif what == "crash":
            one.sandbox.run_code("import os; os.abort()")
            assert one.sandbox.files.read("x") == one.held[1]
            one.change(step)
        elif what == "undo":
            one.sandbox.run_code("x = 1; open('x', 'w').close(); 1 / 0", undo_on_error=True)
        elif what == "command":
            assert one.sandbox.commands.run("cat x").stdout == one.held[1]
        one.check()
    for one in live:
        one.check()
        one.sandbox.close()


# --- cancellation and leaks ------------------------------------------------------------------


def test_a_cancelled_checkpoint_or_rollback_leaves_a_sandbox_that_works(open_sandbox, backend):
    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1; open('f', 'wb').write(bytes(20 << 20))")
            kept = await sandbox.checkpoint()
            for delay in (0.0, 0.001, 0.004, 0.01):
                for call in (sandbox.checkpoint, lambda: sandbox.rollback(kept)):
                    task = asyncio.create_task(call())
                    await asyncio.sleep(delay)
                    task.cancel()
                    (made,) = await asyncio.gather(task, return_exceptions=True)
                    if made is not None and not isinstance(made, BaseException):
                        await sandbox.release(made)
                    assert (await sandbox.run_code("x, open('f', 'rb').seek(0, 2)")).value == (
                        1,
                        20 << 20,
                    )
            pids = "import os; len([n for n in os.listdir('/proc') if n.isdigit()])"
            with anyio.fail_after(60):
                while (await sandbox.run_code(pids)).value > 3:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.contract("docker")
def test_nothing_is_left_behind(backend):
    def use():
        with Sandbox(environment="python") as sandbox:
            ok(sandbox, "open('f', 'w').write('a')")
            checkpoint = sandbox.checkpoint()
            with sandbox.fork() as fork:
                fork.run_code("1 / 0", undo_on_error=True)
                sandbox.rollback(checkpoint)
            sandbox.fork().close()

    use()
    before = census.take()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            use()
        gc.collect()
    assert census.settle(before, timeout=30.0, ignore=["thread AnyIO"]) == []
