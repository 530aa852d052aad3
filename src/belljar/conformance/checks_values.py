"""Values and frames from a guest, and code for one: whatever they are, they are data."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import belljar
from belljar.backends import bundle
from belljar.conformance.checks import check, scratch
from belljar.conformance.guests import init_of
from belljar.conformance.processes import alive
from belljar.conformance.results import Look
from belljar.conformance.stage import Stage
from belljar.errors import InvalidOption
from belljar.results.execution import Execution

_ODD: tuple[tuple[str, Callable[[object], bool]], ...] = (
    ("float('nan')", lambda v: v != v),
    ("[1e400, -1e400]", lambda v: v == [float("inf"), float("-inf")]),
    ("10**5000", lambda v: v in (10**5000, None)),
    ("-(10**5000)", lambda v: v in (-(10**5000), None)),
    ("x = []\nfor _ in range(10**5): x = [x]\nx", lambda v: v is None),
    ("{'a': {'b': [None] * 10**5}}", lambda v: v == {"a": {"b": [None] * 10**5}}),
    ("{1: 2}", lambda v: v is None),
    ("'\\ud800'", lambda v: v in ("\ud800", None)),
    ("{'list': [1], 'int': 'zz'}", lambda v: v == {"list": [1], "int": "zz"}),
    ("b'\\xff' * 1000", lambda v: v == b"\xff" * 1000),
)
_FORGED = (
    b'{"dict":{"a":1,"a":2}}',
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
    what="values that JSON and parsers stumble over: NaN, infinities, huge numbers, great depth",
    expected="they arrive as they are, or are left out",
)
def odd_values(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    for code, fits in _ODD:
        execution = sandbox.run_code(code)
        if execution.outcome not in ("ok", "error") or not fits(execution.value):
            look.wrong(f"{code!r:.40}: {execution.outcome}, {execution.value!r:.80}")
        json.dumps(execution.to_dict())
    look.expect(sandbox.run_code("1 + 1").value == 2, f"{len(_ODD)} values arrived or were left")
    try:
        json.loads("[" * 100_000)
        look.control(False, "a plain parser takes great depth")
    except RecursionError:
        look.control(True, "a plain parser fails at the same depth")


@check(
    56,
    45,
    what="forged answers on the runner's own socket, whose value is no value",
    expected="a value or a refusal, never an error of the host's; the next cell answers",
)
def forged_values(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    outcomes = []
    for payload in _FORGED:
        execution = sandbox.run_code(_FORGE.format(payload=payload))
        repr(execution), execution.to_json()
        outcomes.append(execution.outcome.value)
        if sandbox.run_code("1 + 1").value != 2 and sandbox.run_code("1 + 1").value != 2:
            look.wrong(f"after {payload!r:.40} the next cell does not answer")
    known = {"ok", "killed", "error", "lost"}
    look.expect(set(outcomes) <= known, f"{len(outcomes)} forged answers: {', '.join(outcomes)}")
    honest = sandbox.run_code(_FORGE.format(payload=b'{"int":"2a"}'))
    look.control(honest.outcome.value in known, f"a well-formed one: {honest.outcome.value}")


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
    what="random and damaged frames from the runner's own socket",
    expected="an answer comes back every time, init lives, files stay",
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
    look.control(disturbed, f"{disturbed} of {seeds} seeds cost the guest its own answer")


@check(
    55,
    what="a result that runs code where it is unpickled",
    expected="no module of the host's side can unpickle",
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
    look.expect(read > 50, f"{read} modules were read, and none unpickles", read)
    with scratch() as here:
        mark = here / "mark"
        pickle.loads(pickle.dumps(_Bomb(mark)))  # noqa: S301
        look.control(mark.exists(), "unpickled on purpose, such a result does make a file")


class _Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self._path,)


def _unpickles(path: Path) -> str | None:
    # The one exception runs in the guest, and reads what the host has written.
    text = path.read_text().replace(bundle._FROM_INPUT, "").replace(bundle._FROM_FILE, "")
    if {"policy", "compat"} & set(path.parts):  # they speak of such functions: texts do not count
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
    what="code that is odd: NUL, ten megabytes, a byte-order mark, dashes, surrogates, no text",
    expected="it runs, or is an error of its own; what cannot be sent is refused",
)
def odd_code(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    for code, outcomes in _CODE:
        outcome = sandbox.run_code(code).outcome.value
        if outcome not in outcomes:
            look.wrong(f"{code!r:.30}: {outcome} and not {' or '.join(outcomes)}")
        if sandbox.run_code("1 + 1").value != 2:
            look.wrong(f"after {code!r:.30} the next cell does not answer")
    look.saw(f"{len(_CODE)} odd texts ran or were errors, and each next cell answered")
    refused: tuple[object, ...] = (b"1", None, "x" * (17 << 20))
    for code_ in refused:
        try:
            sandbox.run_code(code_)  # type: ignore[arg-type]
            look.wrong(f"{code_!r:.30} was taken")
        except InvalidOption as error:
            look.saw(f"{type(code_).__name__} refused: {error.message[:100]}")
    look.control(sandbox.run_code("print(1)").stdout == "1\n", "plain code runs")
