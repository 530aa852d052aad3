"""`undo_on_error`: a cell that fails leaves nothing."""

import anyio
import pytest

import census
from belljar import (
    Outcome,
)
from checkpoints import PARKED, ok, value

UNDONE = {
    "error": "1 / 0",
    "timeout": "while True: pass",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "import sys; sys.exit(3)",
    "output_limit": "while True: print('x' * 10000)",
    "out_of_memory": "raise MemoryError",
}


@pytest.mark.parametrize("outcome", UNDONE)
def test_what_a_cell_did_is_undone_after(sandbox, outcome, outside):
    ok(sandbox, "x = 1; open('f', 'w').write('a'); import os")
    guest = outside(sandbox)
    before = len(guest.processes())
    code = f"x = 2; y = 3; open('f', 'w').write('b'); open('g', 'w').close()\n{UNDONE[outcome]}"
    seconds = 2 if outcome == "timeout" else 60
    execution = sandbox.run_code(code, undo_on_error=True, timeout=seconds)
    assert execution.outcome.value == outcome
    assert execution.state_preserved
    assert any("undone" in note for note in execution.notes)
    assert not any("lost" in note for note in execution.notes)
    assert value(sandbox, "x, 'y' in globals(), open('f').read(), os.listdir()") == (
        1,
        False,
        "a",
        ["f"],
    )
    census.wait_until(lambda: len(guest.processes()) == before)


def test_what_went_well_stays(sandbox, outside):
    ok(sandbox, "1")
    guest = outside(sandbox)
    before = len(guest.processes())
    for i in range(10):
        execution = sandbox.run_code(f"x = {i}; open('f', 'w').write('{i}')", undo_on_error=True)
        assert execution.ok
        assert not execution.notes
    assert value(sandbox, "x, open('f').read()") == (9, "9")
    census.wait_until(lambda: len(guest.processes()) == before)


def test_what_a_cancelled_cell_did_is_undone_too(run_async, open_sandbox):
    """And no copy of the interpreter is left behind."""
    code = "x = 2; open('f', 'w').close(); print('begun'); time.sleep(100)"

    async def run_until_it_prints(sandbox):
        with anyio.CancelScope() as scope:
            await sandbox.run_code(code, undo_on_error=True, on_stdout=lambda text: scope.cancel())
        assert scope.cancelled_caught

    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1; import os, time")
            before = (await sandbox.usage()).processes
            for _ in range(3):
                await run_until_it_prints(sandbox)
            execution = await sandbox.run_code("x, os.listdir()")
            assert execution.value == (1, [])
            assert execution.state_preserved
            with anyio.fail_after(60):
                while before is not None and (await sandbox.usage()).processes > before:
                    await anyio.sleep(0.05)

    run_async(main)


def test_undoing_what_killed_the_parked_one_is_said(sandbox):
    ok(sandbox, "x = 1")
    execution = sandbox.run_code(PARKED + "\nos.kill(parked[0], 9); 1 / 0", undo_on_error=True)
    assert execution.outcome is Outcome.error
    assert any("could not be undone" in note for note in execution.notes)
    assert value(sandbox, "x") == 1
