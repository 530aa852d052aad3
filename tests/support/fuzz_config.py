"""Hostile configurations: files of TOML and YAML, and variables.

Whatever stands there, loading gives a Config or a SandboxError that says where, in bounded time.

A case is one byte (the kind of file), the text of variables as lines, a NUL, the file.
"""

import contextlib
import functools
import tempfile
from pathlib import Path

import fuzzing
from belljar import config
from belljar.config.schema import schema
from belljar.errors import SandboxError

SUFFIXES = (".toml", ".yaml", ".yml", ".toml")


@functools.cache
def _directory():
    return tempfile.TemporaryDirectory(prefix="fuzz-config-")


def finish():
    _directory().cleanup()
    _directory.cache_clear()


def attempt(data):
    kind = data[:1]
    told, _, text = data[1:].partition(b"\0")
    environ = {"HOME": _directory().name, "NAME": "value", "EMPTY": ""}
    for line in told.decode("utf-8", "surrogateescape").splitlines():
        name, _, value = line.partition("=")
        if name and "\0" not in value:
            environ[name] = value
    path = Path(_directory().name, "case" + SUFFIXES[(kind or b"\0")[0] % len(SUFFIXES)])
    path.write_bytes(text)
    try:
        loaded = config.load(path, environ=environ, project=False, user=False)
    except SandboxError as error:
        if not str(error):
            raise AssertionError("an error that says nothing") from error
    else:
        with contextlib.suppress(SandboxError):
            loaded.sandbox_options()
            loaded.manager_options()


def allowance(data):
    return 200 * len(data) + (8 << 20)


# --- cases -----------------------------------------------------------------------------------

VALUES = [
    *("1", "-1", "0", "0.5", "1e400", "nan", "inf", "true", "false", "none", "null", "~", '""'),
    *('"512m"', '"512mb"', '"-1g"', '"1e5g"', '"9999999999999999g"', '"none"', "[]", "{}", "[1]"),
    *('["a", "b"]', "[{}]", "{a = 1}", "{a: 1}", "1979-05-27T07:32:00Z", "1979-05-27"),
    *("07:32:00", "2020-13-45", "2001-02-30", "0o17", "0xff", "1_000", "0b1", "12:30:45"),
    *("!!int x", "!!float x", "!!binary x", "!!timestamp 2020-99-99"),
    *("!!python/object:os.system x", "!!set {}", '"${NAME}"', '"${NOPE}"', '"${NOPE:1g}"'),
    *('"${EMPTY}"', '"${"', '"${}"', '"$${NAME}"', '"${NAME:${NAME}}"', '"${a:\\u0000}"'),
    *('"\\u0000"', '"\\ud800"', '"\\uD83D"', '"é\\u202e"', "'" + "a" * 300 + "'", '"""\nx\n"""'),
    *("'''\ny\n'''", "&a [*a]", "*a", "<<: *a", "|\n  x\n", '"/etc/passwd:/data"'),
    *('[{host = "/", guest = "/"}]', '["/:/x:rw"]', "9" * 5000, "-" + "9" * 400),
    *("0x" + "f" * 6000, "0x" + "f" * 300, "9" * 400, "9" * 4000),
]
KEYS = ["", "x", "limits", "a.b.c", '"a.b"', "'é'", "1", "true", "~", "[a]", "?", "<<", "limits.x"]
PIECES = [
    *("\0", "\ufeff", "\u2028", "\x85", "\r", "\t", " " * 3000, "\n" * 2000, "#", "[", "]", "="),
    *("{", "}", '"', "'", '"""', ":", "- ", "&a ", "*a", "!!", "%YAML 9.9\n", "---\n", "...\n"),
    *("a" * 3000, "[[x]]\n", "[x.y]\n", "${", "}", "\\", "a." * 500, "[" * 800, "{a: " * 300),
    *("- " * 400, "x = " + "[" * 900 + "]" * 900, "[ " + " " * 2000, "é", "\U0001f600"),
]


@functools.cache
def keys():
    return [*schema(), *{key.rpartition(".")[0] for key in schema()}]


@functools.cache
def variables():
    return [each.variable for each in schema().values() if each.variable]


def cases(random):
    while True:
        if random.random() < 0.01:
            yield random.choice(list(seeds()))
        kind = random.randrange(4)
        write = _yaml if SUFFIXES[kind] != ".toml" else _toml
        text = write(random)
        for _ in range(random.choice([0, 0, 1, 1, 2, 5])):
            text = mutate(random, text)
        raw = text.encode("utf-8", "surrogatepass")
        if random.random() < 0.1 and raw:
            place = random.randrange(len(raw))
            raw = raw[:place] + bytes([random.randrange(256)]) + raw[place + 1 :]
        told = "\n".join(_variable(random) for _ in range(random.choice([0, 0, 1, 3])))
        yield bytes([kind]) + told.encode("utf-8", "surrogateescape") + b"\0" + raw


def seeds():
    """What is told of in no grammar: loops and bombs of YAML, deep TOML."""
    levels = [f"k{n}: &k{n} {{a: *k{n - 1}, b: *k{n - 1}}}" for n in range(1, 40)]
    texts = [
        (1, "limits: &a\n  x: *a\n"),
        (1, "k0: &k0 {a: 1}\n" + "\n".join(levels)),
        (1, "{" * 3000),
        (1, "a: 2020-13-45\n"),
        (1, "a: " + "9" * 5000),
        (0, "x = " + "[" * 5000 + "]" * 5000),
        (0, "x = " + "{a=" * 5000),
        (0, " " * 20_000 + "\n"),
        (0, "a" * 20_000 + " " * 20_000 + "= 1\n"),
        (0, "x = " + "9" * 5000),
        (0, ".".join(["a"] * 3000) + " = 1"),
        (0, "[" + ".".join(["a"] * 3000) + "]"),
    ]
    yield from (bytes([kind]) + b"\0" + text.encode() for kind, text in texts)


def _name(random):
    name = random.choice(keys() if random.random() < 0.8 else KEYS)
    if random.random() < 0.1 and name:
        place = random.randrange(len(name))
        name = name[:place] + random.choice("xé_. -") + name[place + 1 :]
    return name


def _toml(random):
    lines = []
    for _ in range(random.choice([1, 3, 8, 20])):
        name = _name(random)
        if random.random() < 0.2:
            lines.append(f"[{name}]" if random.random() < 0.8 else f"[[{name}]]")
        else:
            lines.append(f"{name} = {random.choice(VALUES)}")
    return "\n".join(lines) + "\n"


def _yaml(random):
    if random.random() < 0.1:
        return random.choice(VALUES)
    lines = []
    for _ in range(random.choice([1, 3, 8])):
        *above, last = _name(random).split(".")
        for depth, name in enumerate(above):
            lines.append("  " * depth + f"{name}:" + random.choice(["", "", "", " &a"]))
        lines.append("  " * len(above) + f"{last}: {random.choice(VALUES)}")
    return "\n".join(lines) + "\n"


def _variable(random):
    name = random.choice([*variables(), "BELLJAR_X", "BELLJAR_LIMITS_MEMORRY", "BELLJAR_", "NOPE"])
    value = random.choice([*VALUES, "", "a" * 5000, "\udcff", "[" * 2000, "1" * 6000])
    return f"{name}={value}".replace("\n", " ")


def mutate(random, text):
    place = random.randrange(len(text) + 1)
    kind = random.random()
    if kind < 0.5:
        return text[:place] + random.choice(PIECES) + text[place:]
    if kind < 0.7:
        return text[:place] + text[place + random.choice([1, 1, 5, 50]) :]
    other = random.randrange(len(text) + 1)
    low, high = sorted((place, other))
    return text[:high] + text[low:high][:2000] * random.choice([1, 2]) + text[high:]


def main(seconds, seed):
    return fuzzing.run("config", seconds, seed)
