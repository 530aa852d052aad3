"""Any text as Python source for the policies: real sources taken apart, a grammar, odd shapes.

Whatever it is, each policy gives a report with a verdict, soon, and never by its own failure
(BJ006). A case is one byte (the policy) and the text.
"""

import functools
import sysconfig
from pathlib import Path

import fuzzing
from belljar.policy import PRESETS, RULES, Policy, Verdict

NAMES = [
    *("a", "b", "os", "sys", "open", "eval", "exec", "getattr", "subprocess"),
    *("pickle", "x1", "é", "ℯval", "__class__", "self", "_"),
]
OPERATORS = [
    *("+", "-", "*", "/", "%", "**", "//", "<<", ">>", "&", "|", "^", "@"),
    *("and", "or", "in", "is not", "<", "=="),
]
MODULES = [
    *("os", "sys", "subprocess", "socket", "ctypes", "pickle", "os.path"),
    *("importlib", "a.b.c", ".", "..", ".x"),
]
CONSTANTS = [
    *("0", "1", "-1", "1.5", "1e400", "1j", "10**9", "'a'", "b'a'", "'%s'", "'{0.__class__}'"),
    *("'os'", "'eval'", "'im' 'port'", "'/etc/passwd'", "'\\x00'", "'\\ud800'", "None", "True"),
    *("...", "'" + "a" * 500 + "'", "9" * 300, "0x" + "f" * 300, "'import os'", "r'\\'", "'é'"),
]


@functools.cache
def policies():
    return [Policy.preset(name) for name in sorted(PRESETS)]


class Failed(Exception):
    pass


def attempt(data):
    policy = policies()[(data[:1] or b"\0")[0] % len(policies())]
    text = data[1:].decode("utf-8", "surrogatepass") if _is_text(data[1:]) else _latin(data[1:])
    report = policy.check(text)
    if not isinstance(report.verdict, Verdict):
        raise Failed("no verdict")
    for found in report.findings:
        if found.rule == "BJ006":
            raise Failed(found.message)
        if found.rule not in RULES or found.line < 1 or found.column < 0:
            raise Failed(f"a finding that is none: {found}")
    if report.verdict is Verdict.allow and report.allowed is not True:
        raise Failed("allowed, and not allowed")


def _is_text(data):
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _latin(data):
    return data.decode("latin-1")


def allowance(data):
    return 3000 * len(data) + (32 << 20)  # a syntax tree is a hundred times its text, or more


# --- a grammar -------------------------------------------------------------------------------


class Writer:
    """Random Python: expressions and statements down to a depth."""

    def __init__(self, random):
        self.random = random

    def name(self):
        return self.random.choice(NAMES)

    def several(self, make, depth, most=3):
        return ", ".join(make(depth) for _ in range(self.random.randrange(most + 1)))

    def expression(self, depth):
        if depth <= 0:
            return self.name() if self.random.random() < 0.5 else self.random.choice(CONSTANTS)
        one, two, three = (lambda: self.expression(depth - 1),) * 3
        make = self.random.choice(
            [
                lambda: f"({one()} {self.random.choice(OPERATORS)} {two()})",
                lambda: f"{one()}({self.several(self.expression, depth - 1)})",
                lambda: f"{self.name()}(*{one()}, **{two()})",
                lambda: f"({one()}).{self.name()}",
                lambda: f"{self.name()}.{self.name()}.{self.name()}",
                lambda: f"({one()})[{two()}:{three()}]",
                lambda: f"({one()})[{two()}]",
                lambda: f"[{self.several(self.expression, depth - 1)}]",
                lambda: f"{{{one()}: {two()}, **{three()}}}",
                lambda: f"[{one()} for {self.name()} in {two()} if {three()}]",
                lambda: f"{{{one()}: {two()} for {self.name()} in {three()}}}",
                lambda: f"({one()} async for {self.name()} in {two()})",
                lambda: f"(lambda {self.name()}, *, k={one()}: {two()})",
                lambda: f"({self.name()} := {one()})",
                lambda: f"({one()} if {two()} else {three()})",
                lambda: f"f'{{{self.name()}!r:>{{{self.name()}}}}} {{{self.name()}.x}}'",
                lambda: f"getattr({one()}, {two()})",
                lambda: f"__import__({one()})",
                lambda: f"eval({one()} + {two()})",
                lambda: f"(yield {one()})",
                lambda: f"(await {one()})",
                lambda: f"not -~+({one()})",
                lambda: f"open({one()}, {two()})",
                lambda: f"({one()}).format({two()})",
                lambda: f"{one()} % ({two()},)",
            ]
        )
        return make()

    def pattern(self, depth):
        if depth <= 0:
            return self.random.choice(["_", "1", "'a'", "None", "-1+2j", "os.sep", "x"])
        inner = lambda: self.pattern(depth - 1)  # noqa: E731
        return self.random.choice(
            [
                f"[{inner()}, *_]",
                f"{{'k': {inner()}, **rest}}",
                f"{self.name()}({inner()}, a={inner()})",
                f"({inner()}) as y",
                f"{inner()} | {inner()}",
            ]
        )

    def block(self, depth, indent):
        count = self.random.choice([1, 1, 2, 3])
        return "".join(self.statement(depth, indent + 1) for _ in range(count))

    def statement(self, depth, indent):
        pad, e = " " * indent, lambda: self.expression(min(depth, 3))
        name, name2 = self.name(), self.name()
        simple = [
            lambda: e(),
            lambda: f"{name} = {e()}",
            lambda: f"{name}.{name2} = {name2}[{e()}] = {e()}",
            lambda: f"{name}, *{name2} = {e()}",
            lambda: f"{name}: {e()} = {e()}",
            lambda: f"{name} += {e()}",
            lambda: f"import {self.random.choice(MODULES)} as {name}, os",
            lambda: f"from {self.random.choice(MODULES)} import {self.random.choice(['*', name])}",
            lambda: f"del {name}, {name2}.{name}",
            lambda: f"global {name}",
            lambda: f"nonlocal {name}",
            lambda: f"raise {e()} from {e()}",
            lambda: f"assert {e()}, {e()}",
            lambda: f"return {e()}",
            lambda: self.random.choice(["pass", "break", "continue", "yield", "%time x", "!ls"]),
            lambda: f"type {name}[T: int, *U, **P] = {e()}",
        ]
        if depth <= 0 or self.random.random() < 0.6:
            return f"{pad}{self.random.choice(simple)()}\n"
        inner = lambda: self.block(depth - 1, indent)  # noqa: E731
        compound = [
            lambda: f"{pad}if {e()}:\n{inner()}{pad}elif {e()}:\n{inner()}{pad}else:\n{inner()}",
            lambda: f"{pad}while {e()}:\n{inner()}",
            lambda: f"{pad}async for {name} in {e()}:\n{inner()}",
            lambda: f"{pad}try:\n{inner()}{pad}except {e()} as {name}:\n{inner()}",
            lambda: f"{pad}try:\n{inner()}{pad}finally:\n{inner()}",
            lambda: f"{pad}try:\n{inner()}{pad}except* {e()}:\n{inner()}",
            lambda: f"{pad}with {e()} as {name}, {e()}:\n{inner()}",
            lambda: f"{pad}def {name}[T](a, /, b: {e()} = {e()}, *c, **d) -> {e()}:\n{inner()}",
            lambda: f"{pad}@{e()}\n{pad}async def {name}({name2}={e()}):\n{inner()}",
            lambda: f"{pad}class {name}({e()}, metaclass={e()}):\n{inner()}",
            lambda: (
                f"{pad}match {e()}:\n{pad} case {self.pattern(depth)} if {e()}:\n"
                + self.block(depth - 1, indent + 1)
            ),
        ]
        return self.random.choice(compound)()


# --- cases -----------------------------------------------------------------------------------


@functools.cache
def sources():
    """Some of the standard library, of all sizes but the largest."""
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted(path for path in root.glob("*.py") if 500 < path.stat().st_size < 60_000)
    return [path.read_text("utf-8", "surrogateescape") for path in found[::3]]


def shapes():
    """What grows without end in one way."""
    for size in (90, 900, 20_000):
        yield "(" * size + ")" * size
        yield "[" * size
        yield "-" * size + "1"
        yield "not " * size + "x"
        yield "a" + ".b" * size
        yield "a" + "[0]" * size
        yield "a" + "()" * size
        yield "f(" * size + ")" * size
        yield "+".join(["'a'"] * size)
        yield "+".join(["a"] * size)
        yield "a=" * size + "1"
        yield "lambda:" * size + "1"
        yield "x if y else " * size + "z"
        yield "".join(" " * depth + "if a:\n" for depth in range(min(size, 99))) + " " * 99 + "b"
        yield "if a: pass\n" + "elif a: pass\n" * size
        yield "x = " + "{" * size + "}" * size
        yield "f'" + "{" * size + "x" + "}" * size + "'"
        yield "'a' * " * min(size, 900) + "9999999"
        yield "x = 'os'\n" + "x = x + x\n" * min(size, 900) + "__import__(x)"
        yield "x = " + "9" * size
        yield "x = 1" + "0" * size + " ** 9999"
        yield "x = '" + "\\N{DIGIT ONE}" * min(size, 900) + "'"
        yield "match x:\n case " + "[" * size + "]" * size + ": pass"
        yield "match x:\n case " + "|".join(["1"] * size) + ": pass"
        yield "import " + ".".join(["a"] * size)
        yield "from " + "." * size + " import x"
        yield "def f(" + ", ".join(f"a{n}" for n in range(min(size, 5000))) + "): pass"
        yield "@a\n" * size + "def f(): pass"
        yield "\n" * size + "x"
        yield ";".join(["x"] * size)
        yield "x\\\n" * size
        yield "#" * size
        yield 'exec("' * 1 + "exec(" * size + "1" + ")" * size + '")'
        yield "eval('" + "1+" * size + "1')"
        yield "\u202e" * size + "x"
        yield "ﬁ" * size + " = 1"
        yield "ﬁ = 1\n" * size
        yield "%" + "x" * size
        yield "%time " * size
        yield "".join(" " * depth + "class A:\n" for depth in range(min(size, 95))) + " " * 96 + "x"
        yield "[" + "x for x in y " * size + "]"
        yield "async def f():\n return " + "await " * size + "x"
    yield from ("", "\0", "a\0b", "\ud800", "\ufeffx", "# coding: utf-7\n+AGE-", "\x0c", "\r")
    yield from ("# coding: latin-1\né", "# coding: nope\nx", "\x1a", "x\\", "'''", "'\n")


PIECES = [
    *("\0", "\ud800", "\u202e", "\ufeff", "\r", "\x0c", "\\\n", "'''", '"""', "(", ")", "[", "]"),
    *("{", "}", ":", ":=", "->", "**", "@", "`", "$", "?", "!", "f'{", "lambda:", "yield "),
    *("await ", "async ", "\n", "\n\n    ", "\t", "é", "ℯ", "ª", "import os\n", "eval("),
    *("exec('x')\n", "# type: x", "%time ", "%%bash\n", "!ls\n", "?x\n", "type X = ", "except*"),
    *("0x", "1_", "1e", "'\\N{", "__"),
]


def cases(random):
    for number, text in enumerate(shapes()):
        yield bytes([number % 256]) + text.encode("utf-8", "surrogatepass")
    while True:
        kind = random.random()
        if kind < 0.45:
            writer = Writer(random)
            depth = random.choice([1, 2, 3, 4])
            text = "".join(writer.statement(depth, 0) for _ in range(random.choice([1, 3, 8])))
        elif kind < 0.9:
            text = piece(random)
        else:
            text = random.choice(list(shapes()))[: random.choice([50, 500, 5000])]
        for _ in range(random.choice([0, 1, 1, 2, 8])):
            text = mutate(random, text)
        yield bytes([random.randrange(256)]) + text.encode("utf-8", "surrogatepass")


def piece(random):
    """Some lines of a real file."""
    lines = random.choice(sources()).splitlines(keepends=True)
    start = random.randrange(len(lines))
    return "".join(lines[start : start + random.choice([3, 30, 200])])


def mutate(random, text):
    place, other = sorted(random.randrange(len(text) + 1) for _ in range(2))
    kind = random.random()
    if kind < 0.4:
        return text[:place] + random.choice(PIECES) + text[place:]
    if kind < 0.6:
        return text[:place] + text[place + random.choice([1, 1, 4, 40]) :]
    if kind < 0.75:
        return text[:place] + random.choice(NAMES + CONSTANTS) + text[place:]
    if kind < 0.9:
        return text[:other] + text[place:other][:500] * random.choice([1, 2, 9]) + text[other:]
    return text[:place] + piece(random)[:300] + text[place:]


def main(seconds, seed):
    return fuzzing.run("policy", seconds, seed)
