"""Values, frames and output from a guest, and code for it: the host treats all of it as data."""

from __future__ import annotations

import ast
import json
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path

import belljar
from belljar.backends import bundle
from belljar.conformance.processes import alive, init_of
from belljar.conformance.programs import find_program
from belljar.conformance.report_data import Look
from belljar.conformance.stage import Stage, check, scratch
from belljar.errors import ExecutionError, FileError, InvalidOption
from belljar.protocol.values import Encoded
from belljar.results.execution import Execution
from belljar.text import printable

_ODD: tuple[tuple[str, Callable[[object], bool]], ...] = (
    ("float('nan')", lambda v: v != v),
    ("[1e400, -1e400]", lambda v: v == [float("inf"), float("-inf")]),
    ("10**5000", lambda v: v in (10**5000, None)),
    ("-(10**5000)", lambda v: v in (-(10**5000), None)),
    ("x = []\nfor _ in range(10**5): x = [x]\nx", lambda v: v is None),
    ("{'a': {'b': [None] * 10**5}}", lambda v: v == {"a": {"b": [None] * 10**5}}),
    ("{1: 2}", lambda v: v == {1: 2}),
    ("{n * (2**61 - 1) for n in range(5000)}", lambda v: v is None or len(str(v)) > 5000),
    ("range(10**100)", lambda v: v == range(10**100)),
    ("class A: pass\n{'a': [A()]}", lambda v: "A object" in str(v)),
    ("'\\ud800'", lambda v: v in ("\ud800", None)),
    ("{'list': [1], 'int': 'zz'}", lambda v: v == {"list": [1], "int": "zz"}),
    ("b'\\xff' * 1000", lambda v: v == b"\xff" * 1000),
)
_FORGED = (
    b'{"dict":{"a":1,"a":2}}',
    b'{"map":[[1,1.0],[2,3]]}',
    b'{"set":[[1]]}',
    b'{"object":["dataclass","subprocess:Popen",null,{"dict":{"args":"id"}}]}',
    b'{"noted":["\\u001b[31m","x"]}',
    b'{"image":{"mode":"RGB","size":[99999,99999],"pixels":0}}',
    b"NaN",
    b'{"float":"1e400"}',
    b'{"int":"' + b"f" * 5000 + b'"}',
    b"9" * 5000,
    b"[" * 100_000,
    b'{"list":' * 5000,
    b"\xff\xfe",
    b'{"bytes":"*"}',
    b'{"list":[],"dict":{}}',
    b"{}",
)
_FORGE = """
from hostile import DONE, SYNCED, forge, worker
runner, request = worker()
frames = forge(DONE, request, {{'status': 'ok'}}, {payload!r})
runner._control.sendall(frames + forge(SYNCED, request))
"""


@check(
    56,
    what="values that break JSON and parsers: NaN, infinities, huge numbers, deep nesting",
    expected="they arrive unchanged, or are left out",
)
def odd_values(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    for code, fits in _ODD:
        execution = sandbox.run_code(code)
        if execution.outcome not in ("ok", "error") or not fits(execution.value):
            look.wrong(f"{code!r:.40}: {execution.outcome}, {execution.value!r:.80}")
        json.dumps(execution.to_dict())
    look.expect(
        sandbox.run_code("1 + 1").value == 2, f"{len(_ODD)} values arrived or were left out"
    )
    try:
        json.loads("[" * 100_000)
        look.control(False, "a plain parser accepts this depth")
    except RecursionError:
        look.control(True, "a plain parser fails at the same depth")


@check(
    56,
    45,
    what="forged answers on the worker's socket, with an invalid value",
    expected="a value or a refusal, never an error in the host; the next cell answers",
)
def forged_values(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    outcomes = []
    for payload in (*_FORGED, *map(_as_parcel, _FORGED)):
        execution = sandbox.run_code(_FORGE.format(payload=payload))
        repr(execution), execution.to_json()
        outcomes.append(execution.outcome.value)
        if sandbox.run_code("1 + 1").value != 2 and sandbox.run_code("1 + 1").value != 2:
            look.wrong(f"after {payload!r:.40} the next cell does not answer")
    known = {"ok", "killed", "error", "lost"}
    look.expect(set(outcomes) <= known, f"{len(outcomes)} forged answers: {', '.join(outcomes)}")
    honest = sandbox.run_code(_FORGE.format(payload=_as_parcel(b'{"int":"2a"}')))
    look.control(honest.value == 42, f"a well-formed one arrives: {honest.value}")


def _as_parcel(text: bytes) -> bytes:
    return Encoded(text, []).join()


_FUZZ = """
import json, os, random, time
from hostile import forge, worker
runner, request = worker()
chance = random.Random({seed})
values = [None, True, -1, 10**30, 1e308, "x", "\\ud800", [], {{}}, [[]] * 50, {{"a": 1}}]
values += ["ok", "died", "error", "exit"]
names = ["status", "parts", "main", "dropped", "exit_code", "signal", "lost", "nonce", "x"]
def header():
    body = {{chance.choice(names): chance.choice(values) for _ in range(chance.randrange(6))}}
    text = json.dumps(body).encode()
    return chance.choice([text, text, text, text[:-1], b"[]", b"\\xff", b"null", b""])
for _ in range(60):
    kind = chance.choice([64, 65, 65, 65, 66, 66, 67, 68, 68, chance.randrange(256)])
    number = chance.choice([request, request, request, 0, request + 1, 2**32 - 1])
    frame = bytearray(forge(kind, number, header(), os.urandom(chance.choice([0, 0, 3, 5000]))))
    if chance.random() < 0.1: frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
    try: runner._control.sendall(frame)
    except OSError: break
    if chance.random() < 0.1: time.sleep(0.002)
"""


@check(
    45,
    what="random and damaged frames on the worker's socket",
    expected="every run returns a result, init lives, files stay",
)
def random_frames(stage: Stage, look: Look, seeds: int = 20) -> None:
    sandbox = stage.start()
    sandbox.files.write("kept.txt", "kept")
    init = init_of(sandbox)
    outcomes: dict[str, int] = {}
    for seed in range(seeds):
        execution = sandbox.run_code(_FUZZ.format(seed=seed), timeout=3)
        if not isinstance(execution, Execution):
            look.wrong(f"seed {seed}: {execution!r}")
        repr(execution), execution.to_json()
        outcomes[execution.outcome.value] = outcomes.get(execution.outcome.value, 0) + 1
        if init and not alive(init):
            look.wrong(f"seed {seed} ended init")
    look.expect(sandbox.files.read("kept.txt") == "kept", f"outcomes: {outcomes}; the file stays")
    sandbox.run_code("1", timeout=3)
    look.expect(sandbox.run_code("1 + 1").value == 2, "the next cell but one answers")
    disturbed = sum(count for outcome, count in outcomes.items() if outcome != "ok")
    look.control(disturbed, f"{disturbed} of {seeds} seeds spoilt the guest's own answer")


@check(
    55,
    what="a result that runs code when it is unpickled",
    expected="no module of the host unpickles",
)
def unpickled(stage: Stage, look: Look) -> None:
    source = Path(belljar.__file__).parent
    read = 0
    for path in source.rglob("*.py"):
        if "escapes" in path.parts or path.name == Path(__file__).name:
            continue
        read += 1
        if found := _unpickles(path):
            look.wrong(f"{path.relative_to(source)}: {found}")
    look.expect(read > 50, f"{read} modules were read; none unpickles", read)
    with scratch() as here:
        mark = here / "mark"
        pickle.loads(pickle.dumps(_Bomb(mark)))  # noqa: S301
        look.control(mark.exists(), "unpickled on purpose, such a result creates a file")


class _Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self._path,)


def _unpickles(path: Path) -> str | None:
    # The one exception runs in the guest, and reads what the host wrote.
    text = path.read_text().replace(bundle._READ, "")
    if {"policy", "compat"} & set(path.parts):  # their strings name such functions
        code = ast.parse(text)
        for node in ast.walk(code):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = ""
        text = ast.unparse(code)
    pattern = r"pickle\.load|Unpickler|marshal\.load|\bshelve\b|dill|yaml\.load\b"
    found = re.search(pattern, text)
    return found[0] if found else None


_CODE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("\0", ("error",)),
    ("print(1)\0", ("error",)),
    ("\ufeffprint(1)", ("ok",)),
    ("print(1)\r\nprint(2)\r\n", ("ok",)),
    ("-c", ("error",)),
    ("--help", ("error",)),
    ("'\ud800'", ("ok", "error")),
    ("#" + "x" * 10_000_000, ("ok",)),
    ("", ("ok",)),
    ("# coding: latin-1\n'é'", ("ok",)),
    ("# coding: nonsense\n1", ("ok", "error")),
    ("\t if", ("error",)),
)


@check(
    88,
    what="odd code: NUL, ten megabytes, a byte-order mark, dashes, surrogates, not text",
    expected="it runs or raises in the guest; what cannot be sent is refused",
)
def odd_code(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    for code, outcomes in _CODE:
        outcome = sandbox.run_code(code).outcome.value
        if outcome not in outcomes:
            look.wrong(f"{code!r:.30}: {outcome}, not {' or '.join(outcomes)}")
        if sandbox.run_code("1 + 1").value != 2:
            look.wrong(f"after {code!r:.30} the next cell does not answer")
    look.saw(f"{len(_CODE)} odd texts ran or were errors, and each next cell answered")
    refused: tuple[object, ...] = (b"1", None, "x" * (17 << 20))
    for code_ in refused:
        with look.refused(type(code_).__name__, InvalidOption):
            sandbox.run_code(code_)  # type: ignore[arg-type]
    look.control(sandbox.run_code("print(1)").stdout == "1\n", "plain code runs")


_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@check(
    43,
    what="output that is not text: broken UTF-8, NUL, lone surrogates",
    expected="the text around it arrives, and the result can be stored as JSON",
)
def output_that_is_no_text(stage: Stage, look: Look) -> None:
    execution, _ = stage.run_program(find_program("r43_bytes"), stage.start())
    out = execution.stdout
    look.expect(out.startswith("begin") and out.endswith("end"), "both ends arrived", out)
    look.expect("é" in out, "a character that was written in two pieces is whole")
    json.dumps(execution.to_dict()).encode()
    look.expect(out.encode(), "it can be encoded and stored")
    try:
        b"begin\xff".decode()
        look.control(False, "the bytes are text")
    except UnicodeDecodeError:
        look.control(True, "the same bytes are an error for a plain decoder")


@check(
    44,
    what="terminal control sequences in output, in the name and text of an error, in a file name",
    expected="no text for people contains them",
)
def control_sequences(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    execution, _ = stage.run_program(find_program("r44_terminal"), sandbox)
    look.control("\x1b" in execution.stdout, "the raw output contains them")
    shown = [repr(execution), str(execution), printable(execution.stdout)]
    shown += [repr(execution.error), str(sandbox)]
    try:
        execution.raise_for_outcome()
        look.wrong("the program did not fail")
    except ExecutionError as error:
        shown.append(str(error))
    sandbox.run_code("import os; os.mkdir('\\x1b[31mdir')")
    try:
        sandbox.files.read("\x1b[31mdir")
        look.wrong("a directory was read")
    except FileError as error:
        shown.append(str(error))
    found = [text for text in shown if _CONTROL_CHARACTERS.search(text)]
    look.expect(not found, f"{len(shown)} texts for people contain none", found)


@check(
    53,
    what="a thread and a child of an earlier cell print while a later cell runs",
    expected="the later cell gets only its own output; the rest is kept apart, and a note says so",
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
    look.expect(second.stdout == "mine\n", "the second has only its own output", second.stdout)
    background = "".join(second.logs.background)
    look.control("LATE THREAD" in background, "the thread's output is kept apart")
    look.control("LATE CHILD" in background, "the child's output is kept apart")
    look.expect(second.notes, "a note says so")


@check(
    52,
    what="an interpreter that hangs at exit: atexit, a finaliser, a thread that is waited for",
    expected="restart and close take a limited time",
)
def stubborn_interpreter(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    program = find_program("r52_never_ends")
    stage.run_program(program, sandbox)
    look.control(sandbox.run_code("'stubborn' in globals()").value is True, "it has begun to hang")
    began = time.monotonic()
    sandbox.restart()
    gone = sandbox.run_code("'stubborn' in globals()").value is False
    look.expect(gone, "a restart gives a new interpreter")
    stage.run_program(program, sandbox)
    sandbox.close()
    look.in_time(time.monotonic() - began, 90)
