"""What a guest writes, and who it pretends to be while it does."""

from __future__ import annotations

import json
import re
import time

from belljar.conformance.checks import check
from belljar.conformance.programs import named
from belljar.conformance.results import Look
from belljar.conformance.stage import Stage
from belljar.errors import ExecutionError, FileError
from belljar.text import printable

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@check(
    43,
    what="output that is no text: broken UTF-8, NUL, lone surrogates",
    expected="it arrives around what it breaks, and can be stored as JSON",
)
def output_that_is_no_text(stage: Stage, look: Look) -> None:
    execution, _ = stage.release(named("r43_bytes"), stage.start())
    out = execution.stdout
    look.expect(out.startswith("begin") and out.endswith("end"), "both ends arrived", out)
    look.expect("é" in out, "a character that came in two pieces is whole")
    json.dumps(execution.to_dict()).encode()
    look.expect(out.encode(), "it can be encoded and stored")
    try:
        b"begin\xff".decode()
        look.control(False, "the bytes are text")
    except UnicodeDecodeError:
        look.control(True, "the same bytes are an error for a plain decoder")


@check(
    44,
    what="control sequences for terminals in output, in the name and text of an error, in a name",
    expected="nothing that is meant for people carries them",
)
def control_sequences(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    execution, _ = stage.release(named("r44_terminal"), sandbox)
    look.control("\x1b" in execution.stdout, "the raw text has them")
    shown = [repr(execution), str(execution), printable(execution.stdout)]
    shown += [repr(execution.error), str(sandbox)]
    try:
        execution.raise_for_outcome()
        look.wrong("the outcome is no error")
    except ExecutionError as error:
        shown.append(str(error))
    sandbox.run_code("import os; os.mkdir('\\x1b[31mdir')")
    try:
        sandbox.files.read("\x1b[31mdir")
        look.wrong("a directory was read")
    except FileError as error:
        shown.append(str(error))
    found = [text for text in shown if _CONTROL.search(text)]
    look.expect(not found, f"{len(shown)} texts for people have none", found)


@check(
    53,
    what="a thread and a child of an earlier cell print while a later one runs",
    expected="the later cell's output is its own; theirs is set apart and said to be",
)
def late_output(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    late = """
import subprocess, threading
go = threading.Event()
def late():
    go.wait(60); print('LATE THREAD')
thread = threading.Thread(target=late); thread.start()
wait = 'until [ -e go ]; do sleep 0.05; done; echo LATE CHILD'
child = subprocess.Popen(['sh', '-c', wait])
"""
    release = "go.set(); open('go', 'w').close(); thread.join(); child.wait(); print('mine')"
    look.expect(sandbox.run_code(late).ok, "the first cell ended")
    second = sandbox.run_code(release)
    look.expect(second.stdout == "mine\n", "the second has its own output only", second.stdout)
    background = "".join(second.logs.background)
    look.control("LATE THREAD" in background, "the thread did print, and is set apart")
    look.control("LATE CHILD" in background, "the child did print, and is set apart")
    look.expect(second.notes, "a note says so")


@check(
    52,
    what="an interpreter that hangs at its end: atexit, a finaliser, a thread that is waited for",
    expected="restart and close are bounded",
)
def stubborn_interpreter(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    program = named("r52_never_ends")
    stage.release(program, sandbox)
    look.control(sandbox.run_code("'stubborn' in globals()").value is True, "it is stubborn")
    began = time.monotonic()
    sandbox.restart()
    gone = sandbox.run_code("'stubborn' in globals()").value is False
    look.expect(gone, "a restart gives a new interpreter")
    stage.release(program, sandbox)
    sandbox.close()
    look.in_time(time.monotonic() - began, 90)
