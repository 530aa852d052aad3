"""Host functions: what may be exposed, what the guest is told, and how its stubs behave."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import datetime
import functools
import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
import time
import types
import typing
from pathlib import Path

import pytest

import belljar
from belljar.errors import InvalidOption
from belljar.functions import signature
from belljar.functions.registry import (
    MAX_SPEC,
    MAX_SPECS,
    HostFunction,
    Registry,
    coerce_functions,
    describe_function,
    make_identifier,
    stubs,
)
from belljar.functions.signature import MAX_MESSAGE, describe_error, remove_host_details
from belljar.guest import functions
from belljar.protocol import messages
from interpreters import interpreters

if typing.TYPE_CHECKING:
    from decimal import Decimal

SOURCE = Path(belljar.__file__).parent


def plain(a, b=2, *rest, c, d="x", **more):
    """Do it."""


def only_positional(a, b, /, c=None): ...


def only_keywords(*, a: int, b: list[str] | None = None) -> dict[str, float]: ...


async def awaited(query: str, most: int = 10) -> list[dict[str, typing.Any]]:
    """Search.

    Twice.
    """


def for_checkers(amount: Decimal, at: datetime.datetime | None = None) -> Decimal | None: ...


def nothing(): ...


def odd_defaults(a=os.environ, b=float("nan"), c=(1, [2, {"k": None}]), d=b"\0", e=-1.5): ...


def path_defaults(a="/home/me/data.db", b="/", c="a/b", d=("~/x",)): ...


class Thing:
    def __init__(self, size: int, *, name: str = "thing"): ...

    def method(self, a: int) -> str: ...

    @classmethod
    def made(cls, a: int) -> Thing: ...

    @staticmethod
    def loose(a: int): ...

    def __call__(self, x, y=1): ...


SHAPES = [
    *(plain, only_positional, only_keywords, awaited, for_checkers, nothing, odd_defaults),
    *(
        path_defaults,
        Thing,
        Thing(1).method,
        Thing.made,
        Thing.loose,
        len,
        sorted,
        dict,
        max,
        print,
    ),
    HostFunction(functools.partial(plain, 1, c=3), name="partial"),
    HostFunction(Thing(1), name="thing"),
    HostFunction(lambda x, *, größe=1: x, name="größer"),
]


# --- what may be exposed ---------------------------------------------------------------------


def test_functions_are_named_by_the_mapping_or_by_themselves():
    own = HostFunction(len, name="size", max_calls=3)
    found = coerce_functions([plain, own, Thing(1).method])
    assert list(found) == ["plain", "size", "method"]
    assert found["size"] == own
    assert coerce_functions({"length": own})["length"] == HostFunction(
        len, name="length", max_calls=3
    )
    assert list(coerce_functions({"f": lambda: 1})) == ["f"]
    assert coerce_functions(iter([nothing]))["nothing"].function is nothing
    assert coerce_functions(None) == coerce_functions({}) == coerce_functions([]) == {}


def test_one_name_has_one_spelling():
    assert make_identifier("ﬁnd") == "find"
    with pytest.raises(InvalidOption, match="would call two host functions find: 'ﬁnd' and 'find'"):
        coerce_functions({"ﬁnd": nothing, "find": plain})


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("get-weather", "get_weather"),
        ("a b", "a_b"),
        ("server.tool/2", "server_tool_2"),
        ("class", "class_"),
        ("None", "None_"),
        ("2d", "_2d"),
        ("größe", "größe"),
        ("__dspy_call__", "__dspy_call__"),
        ("print", "print"),
        ("line\nimport os", "line_import_os"),
    ],
)
def test_a_name_that_is_no_identifier_becomes_one(name, identifier):
    assert make_identifier(name) == identifier
    made = describe_function(coerce_functions({name: plain})[name])
    assert made["name"] == identifier
    assert made.get("given") == (None if name == identifier else name)
    exec(stubs({name: nothing}), found := {})
    assert identifier in found


def test_stubs_say_which_name_became_which():
    text = stubs({"get-weather": nothing, "plain": nothing})
    assert text.startswith("# 'get-weather' has this name here:\ndef get_weather()")
    assert text.count("#") == 1


@pytest.mark.parametrize("names", [("a-b", "a_b"), ("a b", "a-b"), ("class", "class_")])
def test_two_names_that_become_one_are_refused(names):
    with pytest.raises(InvalidOption, match="would call two host functions"):
        coerce_functions(dict.fromkeys(names, nothing))
    registry = Registry([HostFunction(nothing, name=names[0])])
    with pytest.raises(InvalidOption, match="would call two host functions"):
        registry[names[1]] = nothing
    assert list(registry) == [names[0]]


@pytest.mark.parametrize(
    "name",
    [
        *("__name__", "__builtins__", "__import__", "__file__", "__doc__", "__spec__", "__class__"),
        *("__build_class__", "__debug__", "__annotations__", "__dict__", "__belljar_value__"),
    ],
)
def test_names_that_python_or_belljar_need_are_refused(name):
    with pytest.raises(InvalidOption, match="Python reserves"):
        HostFunction(nothing, name=name)


def test_a_registry_is_a_mapping():
    registry = Registry([HostFunction(plain, name="a-b")])
    registry["length"] = len
    registry.update({"nothing": HostFunction(nothing, max_calls=3)})
    assert list(registry) == ["a-b", "length", "nothing"]
    assert (registry["length"].name, registry["length"].function) == ("length", len)
    assert registry["nothing"].max_calls == 3
    before = registry.version
    assert registry.pop("a-b").function is plain
    assert ("a-b" in registry, len(registry), registry.version) == (False, 2, before + 1)
    assert [spec["name"] for spec in registry.specs()] == ["length", "nothing"]
    with pytest.raises(KeyError):
        del registry["a-b"]
    with pytest.raises(InvalidOption):
        registry[None] = plain
    assert repr(registry) == "<functions: length, nothing>"


def test_all_functions_are_added_or_none():
    registry = Registry([HostFunction(plain, name="a_b")])
    with pytest.raises(InvalidOption):
        registry.add_all({"new": nothing, "a-b": nothing})
    with pytest.raises(InvalidOption):
        registry.add_all({"new": nothing, "other": 3})
    assert list(registry) == ["a_b"]
    assert registry.add_all({"x y": nothing, "a_b": len}) == {"x y": "x_y", "a_b": "a_b"}
    assert registry["a_b"].function is len


def test_async_functions_have_no_timeout_unless_it_is_given():
    assert HostFunction(plain).timeout == 60
    assert HostFunction(awaited).timeout is None
    assert HostFunction(awaited, timeout=60.0).timeout == 60
    assert HostFunction(plain, timeout=None).timeout is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("len", "a mapping or a list"),
        (3, "a mapping or a list"),
        (len, "a mapping or a list"),
        ([lambda: 1], "a lambda has no name"),
        ([Thing(1)], "a Thing has no name"),
        ([functools.partial(plain)], "a partial has no name"),
        ([plain, plain], "two host functions"),
        ({"f": 3}, "callable, not int"),
        ({"f": None}, "callable, not NoneType"),
        ({"-": plain}, "cannot be the name"),
        ({"__": plain}, "cannot be the name"),
        ({"": plain}, "cannot be the name"),
        ({"x" * 65: plain}, "cannot be the name"),
        ({"__import__": plain}, "Python reserves"),
        ({3: plain}, "must be a str, not 3"),
        ({None: plain}, "must be a str, not None"),
        ({f"f{i}": plain for i in range(201)}, "201 host functions are more than 200"),
    ],
)
def test_what_cannot_be_exposed_is_said_at_once(given, words):
    with pytest.raises(InvalidOption, match=re.escape(words)):
        coerce_functions(given)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"timeout": True},
        {"timeout": "60"},
        {"max_calls": 0},
        {"max_calls": 1.0},
        {"concurrency": 0},
        {"concurrency": "8"},
        {"concurrency": True},
        {"counts_time": 1},
        {"name": "--"},
        {"awaitable": 1},
        {"ends_cell": None},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidOption):
        HostFunction(nothing, **options)


def test_more_calls_of_an_async_function_run_at_once_unless_the_caller_says_how_many():
    async def ask(): ...

    assert [HostFunction(each).concurrency for each in (nothing, ask)] == [8, 64]
    assert [HostFunction(each, concurrency=3).concurrency for each in (nothing, ask)] == [3, 3]
    assert Registry([HostFunction(ask)])["ask"].concurrency == 64


def test_generators_and_coroutines_are_no_host_functions():
    def generator():
        yield 1

    async def generator_too():
        yield 1

    for function in (generator, generator_too):
        with pytest.raises(InvalidOption, match="return a list"):
            HostFunction(function)
    with pytest.raises(InvalidOption, match="leave out"):
        HostFunction(awaited("x"))


# --- what the guest is told ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (None, "None"),
        (type(None), "None"),
        ("list[ int ]  # of them", "list[int]"),
        ("Decimal | None", "Decimal | None"),
        ("the query, in SQL", "'the query, in SQL'"),
        ("int = 3", "'int = 3'"),
        ("a, b", "'a, b'"),
        ("int): ...\ndef g(x", "'int): ... def g(x'"),
        ("", "''"),
        (list[int], "list[int]"),
        (dict[str, list["Thing"]], "dict[str, list[Thing]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[()], "tuple[()]"),
        (typing.List[int], "list[int]"),  # noqa: UP006
        (typing.Optional[int], "int | None"),  # noqa: UP045
        (int | str, "int | str"),
        (typing.Any, "Any"),
        (typing.Literal["a", 1, None], "Literal['a', 1, None]"),
        (typing.Annotated[int, object()], "int"),
        (typing.Callable[[int, str], bool], "Callable[[int, str], bool]"),
        (collections.abc.Callable[..., int], "Callable[..., int]"),
        (collections.abc.Sequence[str], "Sequence[str]"),
        (collections.abc.Iterable, "Iterable"),
        (typing.TypeVar("T"), "T"),
        (typing.NewType("UserId", int), f"{__name__}.UserId"),
        (datetime.datetime, "datetime.datetime"),
        (Path, "pathlib.Path"),
        (Thing, f"{__name__}.Thing"),
        (type[Thing], f"type[{__name__}.Thing]"),
        (object(), None),
        (list[typing.Literal], "list[Literal]"),
        (inspect.Signature.empty, None),
        ("x" * 501, None),
        ("[" * 400, repr("[" * 400)),
    ],
)
def test_annotations_are_short_texts(annotation, text):
    assert signature.format_annotation(annotation) == text


def test_classes_are_named_by_their_public_module(monkeypatch):
    inner = types.ModuleType("outermost.core.frame")
    outer = types.ModuleType("outermost")
    outer.Frame = inner.Frame = type("Frame", (), {"__module__": inner.__name__})
    inner.Local = type("Local", (), {"__module__": inner.__name__})
    monkeypatch.setitem(sys.modules, "outermost", outer)
    assert signature.format_annotation(inner.Frame) == "outermost.Frame"
    assert signature.format_annotation(inner.Local) == "outermost.core.frame.Local"


def test_a_class_made_in_a_function_is_named_without_it():
    class Inner: ...

    assert signature.format_annotation(Inner) == f"{__name__}.Inner"


def test_defaults_are_literals_or_dots():
    told = {
        p["name"]: p["default"] for p in describe_function(HostFunction(odd_defaults))["parameters"]
    }
    assert told == {
        "a": "...",
        "b": "...",
        "c": "(1, [2, {'k': None}])",
        "d": "b'\\x00'",
        "e": "-1.5",
    }


def test_defaults_do_not_tell_paths_of_the_host():
    told = {
        p["name"]: p["default"]
        for p in describe_function(HostFunction(path_defaults))["parameters"]
    }
    assert told == {"a": "...", "b": "'/'", "c": "'a/b'", "d": "..."}


def test_a_default_that_contains_itself_is_dots():
    loop: list[object] = []
    loop.append(loop)
    assert signature.format_default(loop) == "..."
    assert signature.format_default("x" * 1000) == "..."


def test_a_signature_that_cannot_be_read_takes_anything():
    assert (
        str(messages.build_signature(describe_function(HostFunction(max)))) == "(*args, **kwargs)"
    )


def test_nothing_that_is_told_has_an_address():
    text = json.dumps(
        [describe_function(function) for function in coerce_functions(SHAPES).values()]
    )
    assert "0x" not in text
    assert str(Path.home()) not in text


def test_a_spec_is_bounded():
    def long():
        pass

    long.__doc__ = "ü" * 100_000
    told = describe_function(HostFunction(long))
    assert len(json.dumps(told)) <= MAX_SPEC
    assert told["doc"].endswith("…")
    names = ", ".join(f"a{i}: 'list[{'x' * 100}]' = {'y' * 50!r}" for i in range(100))
    made: dict[str, typing.Any] = {}
    exec(f"def wide({names}): 'doc'", made)
    told = describe_function(HostFunction(made["wide"]))
    assert len(json.dumps(told)) <= MAX_SPEC
    assert len(told["parameters"]) == 100
    assert told["parameters"][0] == {
        "name": "a0",
        "kind": "POSITIONAL_OR_KEYWORD",
        "annotation": None,
        "default": "...",
    }
    exec(f"def wider({', '.join(f'a{i}' * 20 for i in range(1000))}): 'doc'", made)
    assert (
        str(messages.build_signature(describe_function(HostFunction(made["wider"]))))
        == "(*args, **kwargs)"
    )


def test_the_specs_of_all_fit_one_header():
    def long():
        pass

    long.__doc__ = "\U0001f40d" * 10_000
    # Letters that take twelve bytes of JSON each.
    names = (f"{chr(0x20000 + i)}{chr(0x20000) * 63}" for i in range(200))
    registry = Registry(coerce_functions(dict.fromkeys(names, long)).values())
    assert len(json.dumps({"functions": registry.specs()})) <= MAX_SPECS


# --- stubs for a prompt ----------------------------------------------------------------------


@pytest.mark.parametrize("function", SHAPES, ids=lambda f: getattr(f, "name", None) or f.__name__)
def test_stubs_are_python_of_the_same_signature(function):
    ((name, exposed),) = coerce_functions([function]).items()
    text = stubs([function])
    tree = ast.parse(text)
    kind = ast.AsyncFunctionDef if function is awaited else ast.FunctionDef
    assert [type(node) for node in tree.body] == [kind]
    made: dict[str, typing.Any] = {}
    exec("from __future__ import annotations\n" + text, made)
    again, told = (
        inspect.signature(made[name]),
        messages.build_signature(describe_function(exposed)),
    )
    assert [(p.name, p.kind) for p in again.parameters.values()] == [
        (p.name, p.kind) for p in told.parameters.values()
    ]
    original = signature.read_signature(exposed.function)
    if original is not None:
        assert str(again.replace(return_annotation=again.empty)).count("=") == (
            str(told.replace(return_annotation=told.empty)).count("=")
        )
        assert list(again.parameters) == list(original.parameters)
    assert inspect.getdoc(made[name]) == inspect.getdoc(exposed.function)


READABLE = '''\
async def search(query: str, most: int = 10) -> list[dict[str, typing.Any]]:
    """Search.

    Twice."""
    ...


def f(*, a: int, b: list[str] | None = None) -> dict[str, float]:
    ...
'''


def test_stubs_read_well():
    assert stubs({"search": awaited, "f": only_keywords}) == READABLE


@pytest.mark.parametrize(
    "doc",
    [
        *('He said "so"', 'a """quoted""" text', "back\\slash \\", "tab\tnul\0 bell\a"),
        *('"', '"""', '\\"', "two\n\n  indented\nlines", "line\u2028separator", "größe 🐍", ""),
    ],
)
def test_docstrings_survive_in_stubs(doc):
    def function(): ...

    function.__doc__ = doc
    made: dict[str, typing.Any] = {}
    exec(stubs([function]), made)
    assert (inspect.getdoc(made["function"]) or "") == inspect.cleandoc(doc)


def test_a_docstring_is_text():
    def function(): ...

    function.__doc__ = "a\ud800b"
    assert describe_function(HostFunction(function))["doc"] == "a?b"


def test_stubs_of_a_registry_are_those_of_its_functions():
    assert stubs(Registry(map(HostFunction, [plain, awaited]))) == stubs([plain, awaited])


# --- errors, as the guest may know them ------------------------------------------------------


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no")


def caught(action):
    with pytest.raises(Exception) as info:  # noqa: PT011
        action()
    return info.value


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("no"), "ValueError", "no"),
        (ValueError(), "ValueError", ""),
        (KeyError("a"), "KeyError", "'a'"),
        (BadText(), "BadText", "<no message>"),
        (
            caught(lambda: os.stat("/nowhere/a.db")),
            "FileNotFoundError",
            "No such file or directory",
        ),
        (OSError(5, "I/O error", "/a", None, "/b"), "OSError", "I/O error"),
        (OSError("cannot read /srv/x/y.bin"), "OSError", "cannot read …/y.bin"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError", None),
        (
            subprocess.CalledProcessError(2, ["/usr/local/bin/git", "-C", "/srv/repo"]),
            "CalledProcessError",
            "Command '['…/git', '-C', '…/repo']' returned non-zero exit status 2.",
        ),
        (
            ImportError("cannot import name 'x' from 'y' (/usr/lib/python3/y.py)"),
            "ImportError",
            "cannot import name 'x' from 'y' (…/y.py)",
        ),
        (
            caught(lambda: b"\xff".decode()),
            "UnicodeDecodeError",
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        (TypeError(f"{object()} is odd"), "TypeError", "<object object> is odd"),
        (type("not a name", (Exception,), {})("x"), "HostError", "x"),
        (type("x" * 101, (Exception,), {})("x"), "HostError", "x"),
        (ExceptionGroup("some", [ValueError()]), "ExceptionGroup", "some (1 sub-exception)"),
        (SystemExit(3), "SystemExit", "3"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_told_by_name_and_message(error, name, message):
    told = describe_error(error)
    assert told[0] == name
    assert message is None or told[1] == message


def test_causes_and_notes_are_not_told():
    def fail():
        try:
            raise KeyError("/home/me/secret")
        except KeyError as error:
            raise ValueError("bad") from error

    error = caught(fail)
    error.add_note("see /home/me/secret")
    assert describe_error(error) == ("ValueError", "bad")


def test_a_long_message_is_cut_without_much_work():
    for text in (
        "x" * 10**7,
        "/a" * 10**6,
        "a+" * 10**6,
        "'/" * 10**6,
        "\\" * 10**6,
        "//:" * 10**6,
    ):
        assert len(describe_error(ValueError(text))[1]) <= MAX_MESSAGE


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("in /home/me/a.db, or /srv/b", "in …/a.db, or …/b"),
        ("'/srv/my data/x.csv'", "'…/x.csv'"),
        ("directory /home/me/", "directory …/me"),
        ("PATH=/opt/x/bin:/home/me/bin", "PATH=…/bin:…/bin"),
        ("me@host:/srv/data", "me@host:…/data"),
        ("//srv/data/x", "…/x"),
        ("file:///etc/passwd", "…/passwd"),
        ("sqlite:////home/me/x.db", "…/x.db"),
        (r"C:\Users\me\x.txt", "…/x.txt"),
        (r"'C:\\Users\\me\\a b.txt'", "'…/a b.txt'"),
        (r"\\server\share\x.txt", "…/x.txt"),
        ("~/keys/id", "…/id"),
        ("~root/keys", "…/keys"),
        ("</srv/a/b>", "<…/b>"),
        ("line 3 of /a/b.py:12", "line 3 of …/b.py:12"),
        ("<Job at 0x7f3a2b1c4d50>", "<Job>"),
        ("0xff is 255, 0x7f3a2b1c4d50 is not", "0xff is 255, 0x… is not"),
        (f"-I{Path.cwd()}/include", "-I…/include"),
        ("postgresql://me:secret@db:5432/sales", "postgresql://…@db:5432/sales"),
        ("https://token@example.org/a", "https://…@example.org/a"),
        ("(Engine(mysql+x://me:***@db/s))", "(Engine(mysql+x://…@db/s))"),
        ("'redis://:sec'ret@[::1]:6379/0'", "'redis://…@[::1]:6379/0'"),
        ("//me:secret@db/sales", "…/sales"),
        ("//me:secret@db", "…/…@db"),
        ("a://me:p@ss/wo:rd?x#y@db/s", "a://…@db/s"),
        ("b://me:pass/word@db/s", "b://…@db/s"),
        ("http://a.org/b,http://me:secret@c.org", "http://a.org/b,http://…@c.org"),
    ],
)
def test_paths_and_addresses_are_taken_out(text, left):
    assert remove_host_details(text) == left
    assert remove_host_details(left) == left


@pytest.mark.parametrize(
    "text",
    [
        *("and/or", "3 km/h, n/a", "a / b", "</div>", "<br/>", r"\d+\.\w", "'SELECT a/b'"),
        *("https://example.org/a/b?c=d", "s3://bucket/key", "10:30", "x:y", "a~b", "~ 3", "/"),
        *("https://a.org/@me", "https://a.org:80/?to=me@b.org", "http://[::1]:80/a@b", "me@b.org"),
    ],
)
def test_other_texts_are_left_alone(text):
    assert remove_host_details(text) == text


# --- in the guest ----------------------------------------------------------------------------


def stub(function, sent=None):
    ((_, exposed),) = coerce_functions([function]).items()
    sent = [] if sent is None else sent
    return functions.make_stub(
        json.loads(json.dumps(describe_function(exposed))),
        lambda *call: sent.append(call) or len(sent),
        lambda *call: sent.append(call),
    )


def test_a_stub_sends_what_it_was_given_and_no_defaults():
    sent = []
    made = stub(plain, sent)
    assert made(1, c=[2], extra=None) == 1
    assert made(1, 2, 3, 4, c=5) == 2
    assert sent == [
        ("plain", (1,), {"c": [2], "extra": None}),
        ("plain", (1, 2, 3, 4), {"c": 5}),
    ]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, 2, 3), {"b": 1, "c": 2}),
        ((), {"a": 1, "c": 3, "self": 4}),
        ((1, 2, 3, 4, 5), {}),
        ((1,), {"nope": 2}),
    ],
)
@pytest.mark.parametrize("function", [plain, only_positional, only_keywords, nothing])
def test_a_stub_complains_in_pythons_words(function, args, kwargs):
    def outcome(callee):
        try:
            callee(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return None

    sent = []
    assert outcome(stub(function, sent)) == outcome(function)
    assert len(sent) == (outcome(function) is None)


def test_a_stub_looks_like_the_hosts_function():
    made = stub(awaited)
    assert (made.__name__, made.__qualname__, made.__module__) == ("awaited", "awaited", "__main__")
    assert made.__doc__ == "Search.\n\nTwice."
    assert inspect.isfunction(made)
    assert not inspect.iscoroutinefunction(made)
    shown = "(query: str, most: int = 10) -> list[dict[str, typing.Any]]"
    assert str(inspect.signature(made)) == shown
    assert f"awaited{shown}" in pydoc.plain(pydoc.render_doc(made))
    assert made.__annotations__["query"] == "str"


def test_every_builtin_exception_is_caught_as_itself():
    message = "what the host said"
    for name, kind in vars(builtins).items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            continue
        made = functions.make_exception(name, message)
        assert isinstance(made, Exception), name
        assert str(made) == message, name
        assert type(made).__name__ in (name, kind.__name__), name
        if issubclass(kind, Exception) and name not in ("StopIteration", "StopAsyncIteration"):
            assert isinstance(made, kind), name
            assert type(made).__module__ == "builtins"
        else:
            assert isinstance(made, functions.HostError), name
            assert kind in (BaseException, BaseExceptionGroup) or not isinstance(made, kind), name


def test_an_error_python_does_not_know_keeps_its_name():
    made = functions.make_exception("OperationalError", "no such table: t")
    assert isinstance(made, functions.HostError)
    assert type(made) is type(functions.make_exception("OperationalError", "again"))
    assert repr(made) == "OperationalError('no such table: t')"
    for name in ("print", "not a name", "", "x" * 101, "HostError"):
        other = functions.make_exception(name, "m")
        assert isinstance(other, functions.HostError)
        assert str(other) == "m"
        assert type(other).__name__ in (name, "HostError")


OLDEST = """
import inspect, json, pydoc, sys, traceback, types
sys.modules["sent"] = types.ModuleType("sent")
sys.modules["sent"].__path__ = [sys.argv[1]]
import sent.guest.functions as guest
for spec in json.loads(sys.argv[2]):
    sent = []
    made = guest.make_stub(spec, lambda *call: sent.append(call), None)
    pydoc.render_doc(made)
    print(made.__name__ + str(inspect.signature(made)))
    try:
        made(1, 2, c=3)
    except TypeError as error:
        print("refused", error)
for name in ("KeyError", "UnicodeDecodeError", "OSError", "ExceptionGroup", "Odd"):
    error = guest.make_exception(name, "text")
    print("".join(traceback.format_exception(type(error), error, None)).strip())
"""


@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_stubs_work_on_every_python(python):
    told = json.dumps(
        [describe_function(function) for function in coerce_functions(SHAPES).values()]
    )
    command = [
        python or sys.executable,
        "-W",
        "error",
        "-c",
        OLDEST,
        str(SOURCE),
        told,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "plain(a, b=2, *rest, c, d='x', **more)" in lines
    assert "only_positional(a, b, /, c=None)" in lines
    assert "refused nothing() got an unexpected keyword argument 'c'" in lines
    assert "KeyError: text" in lines
    assert "Odd: text" in lines


def test_an_error_full_of_blanks_takes_no_time():
    """It is scrubbed on the event loop, which others need too: a second run must not take long."""
    began = time.process_time()
    describe_error(TypeError("unexpected argument '" + " " * 200_000 + "'"))
    assert time.process_time() - began < 1.0
