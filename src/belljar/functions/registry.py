"""Host functions: callables of the caller that code in the sandbox may call, by name.

    def execute_sql_query(query: str) -> pandas.DataFrame: ...

    with Sandbox(functions={"execute_sql_query": execute_sql_query}) as sandbox:
        sandbox.run_code("execute_sql_query('select 1').shape")

The guest names a function and sends plain data; nothing else of the host is within its reach.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import keyword
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from belljar.errors import InvalidOption
from belljar.functions import signature
from belljar.functions.calling import Callee
from belljar.functions.disclosure import cut, describe
from belljar.protocol import messages, wire

__all__ = ["Functions", "HostFunction", "Registry", "coerce", "describe", "spec", "stubs"]

MAX_FUNCTIONS = 200
MAX_NAME = 64
MAX_DOC = 8 * 1024  # characters
MAX_SPEC = 16 * 1024  # bytes of JSON that tell the guest of one function
MAX_SPECS = wire.MAX_HEADER - 32 * 1024  # of all: they travel in one header


@dataclass(frozen=True)
class HostFunction:
    """A function of the host, and how often, how long and how many at once it may be called.

    Ordinary functions run in threads, async ones on the sandbox's event loop. One that takes too
    long raises TimeoutError in the guest; its thread goes on until it returns, and counts among
    those at once until then.
    """

    function: Callable[..., object]
    _: KW_ONLY
    name: str | None = None  # in the guest; None: the function's own
    timeout: float | None = 60.0  # seconds a call may take; None: no limit
    max_calls: int | None = None  # over the life of the sandbox; None: no limit
    concurrency: int = 8  # calls at once; others wait
    counts_time: bool = False  # whether a call's time counts as the cell's own

    def __post_init__(self) -> None:
        _check_callable(self.function)
        if self.name is not None:
            object.__setattr__(self, "name", _checked_name(self.name))
        if self.timeout is not None:
            if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
                raise InvalidOption(f"timeout is a number of seconds or None, not {self.timeout!r}")
            if not math.isfinite(self.timeout) or self.timeout <= 0:
                raise InvalidOption(f"timeout must be above 0 and finite, not {self.timeout!r}")
        _check_count("concurrency", self.concurrency)
        if self.max_calls is not None:
            _check_count("max_calls", self.max_calls)
        if not isinstance(self.counts_time, bool):
            raise InvalidOption(f"counts_time is True or False, not {self.counts_time!r}")


Exposable = Callable[..., object] | HostFunction
Functions = Mapping[str, Exposable] | Iterable[Exposable]


def _check_callable(function: object) -> None:
    if inspect.iscoroutine(function):
        function.close()
        raise InvalidOption("a coroutine was given as host function", hint="leave out the `()`")
    if not callable(function):
        raise InvalidOption(f"a host function is a callable, not {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            "a generator function has no result that could travel", hint="return a list"
        )


def _check_count(what: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise InvalidOption(f"{what} is a whole number of at least 1, not {number!r}")


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidOption(f"the name of a host function is a str, not {name!r}")
    # As the guest's parser reads identifiers: two spellings of one name are one name.
    name = unicodedata.normalize("NFKC", name)
    if not name.isidentifier() or keyword.iskeyword(name) or len(name) > MAX_NAME:
        raise InvalidOption(
            f"{cut(name, MAX_NAME)!r} cannot be the name of a function",
            hint="the guest calls it by that name: letters, digits and _, and no keyword",
        )
    if name.startswith("__") and name.endswith("__"):
        raise InvalidOption(f"{name!r} is a name that Python keeps for itself")
    return name


def _named(function: HostFunction, name: str | None = None) -> tuple[str, HostFunction]:
    """Its name in the guest: that of the mapping, its own, or that of the callable."""
    own = name if name is not None else function.name
    if own is None:
        own = getattr(function.function, "__name__", None)
        if own is None or own == "<lambda>":
            what = "a lambda" if own else f"a {type(function.function).__name__}"
            raise InvalidOption(
                f"{what} has no name to be called by",
                hint='give one: {"name": function}, or HostFunction(function, name="name")',
            )
    checked = _checked_name(own)
    return checked, dataclasses.replace(function, name=checked)


def coerce(functions: Functions | None) -> dict[str, HostFunction]:
    """What `Sandbox(functions=...)` takes, by the names under which the guest will know them.

    >>> list(coerce([len, HostFunction(max, name="largest")])), list(coerce({"size": len}))
    (['len', 'largest'], ['size'])
    """
    if functions is None:
        return {}
    if isinstance(functions, (str, bytes)) or not isinstance(functions, Iterable):
        raise InvalidOption(
            f"functions are a mapping or a list of callables, not {type(functions).__name__}",
            hint="functions={'name': function}, or functions=[function]",
        )
    given: list[tuple[str | None, Exposable]] = (
        list(functions.items())
        if isinstance(functions, Mapping)
        else [(None, function) for function in functions]
    )
    found: dict[str, HostFunction] = {}
    for key, value in given:
        if key is None and isinstance(functions, Mapping):
            raise InvalidOption("the name of a host function is a str, not None")
        function = value if isinstance(value, HostFunction) else HostFunction(value)
        name, function = _named(function, key)
        if name in found:
            raise InvalidOption(f"two host functions are called {name!r}")
        found[name] = function
    _check_number(len(found))
    return found


def _check_number(number: int) -> None:
    if number > MAX_FUNCTIONS:
        raise InvalidOption(
            f"{number} host functions are more than {MAX_FUNCTIONS}",
            hint="expose one that takes the name of what to do",
        )


# -- what is told of them ---------------------------------------------------------------------


def spec(function: HostFunction, limit: int = MAX_SPEC) -> dict[str, object]:
    """What the guest is told of a function: its name, signature and docstring, as texts.

    Too much for `limit` is cut: first the docstring, then types and defaults, then the signature.
    """
    name, function = _named(function)
    # Lone surrogates are no text, and compilers refuse them in a docstring.
    doc = (inspect.getdoc(function.function) or "").encode("utf-8", "replace").decode() or None
    shape = signature.read(function.function)
    told = signature.parameters(shape)
    returns = None if shape is None else signature.annotation(shape.return_annotation)
    bare = [
        {**one, "annotation": None, "default": one["default"] and signature.UNKNOWN} for one in told
    ]
    unknown = signature.parameters(None)
    attempts: list[tuple[int, Sequence[Mapping[str, str | None]], str | None]] = [
        *((MAX_DOC // part, told, returns) for part in (1, 4, 16, 64)),
        *((MAX_DOC // part, bare, None) for part in (64, MAX_DOC)),
        (MAX_DOC // 64, unknown, None),
    ]
    for room, parameters, result in attempts:
        found = _spec(name, doc and cut(doc, room), parameters, result)
        if len(json.dumps(found)) <= limit:
            return found
    return _spec(name, None, unknown, None)


def _spec(
    name: str,
    doc: str | None,
    parameters: Sequence[Mapping[str, str | None]],
    returns: str | None,
) -> dict[str, object]:
    return {"name": name, "doc": doc, "parameters": list(parameters), "returns": returns}


def stubs(functions: Functions | Registry) -> str:
    """Typed stubs of what the guest may call, to paste into a prompt.

    >>> def search(query: str, *, most: int = 10) -> list[str]:
    ...     "Search the archive."
    >>> print(stubs([search]))
    def search(query: str, *, most: int = 10) -> list[str]:
        \"\"\"Search the archive.\"\"\"
        ...
    <BLANKLINE>
    """
    if isinstance(functions, Registry):
        return "\n\n".join(map(_stub, functions.specs()))
    return "\n\n".join(_stub(spec(function)) for function in coerce(functions).values())


def _stub(told: dict[str, object]) -> str:
    lines = [f"def {told['name']}{messages.build_signature(told)}:"]
    if isinstance(told["doc"], str):
        lines.append(textwrap.indent(_docstring(told["doc"]), "    "))
    return "\n".join([*lines, "    ...", ""])


def _docstring(doc: str) -> str:
    """The text as a literal that people can read: only what must be is escaped."""
    escaped = doc.replace("\\", "\\\\")
    # Quotes side by side, or before the closing ones, would end the literal.
    escaped = re.sub(r'""+|"\Z', lambda quotes: '\\"' * len(quotes[0]), escaped)
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in escaped
    )
    return f'"""{"".join(shown)}"""'


# -- in use -----------------------------------------------------------------------------------


class Registry:
    """The functions of one sandbox: the only table in which a name from the guest is looked up."""

    def __init__(self, functions: Iterable[HostFunction] = ()) -> None:
        self._functions: dict[str, tuple[HostFunction, Callee]] = {}
        self.version = 0  # grows with each change, so that the guest is told when it must be
        for function in functions:
            self.add(function)

    def copy(self) -> Registry:
        """A table of its own for a fork of the sandbox. Calls of one function count together."""
        twin = Registry()
        twin._functions = dict(self._functions)
        twin.version = self.version
        return twin

    def add(self, function: HostFunction) -> None:
        """Let the guest call it from now on, in place of one that had its name before."""
        name, function = _named(function)
        _check_number(len({*self._functions, name}))
        callee = Callee(
            function.function,
            name=name,
            timeout=function.timeout,
            max_calls=function.max_calls,
            concurrency=function.concurrency,
        )
        self._functions[name] = (function, callee)
        self.version += 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def counts_time(self, name: str) -> bool:
        """Whether a call of it is on the cell's time; there is no excuse for one that is not."""
        found = self._functions.get(name)
        return found is None or found[0].counts_time

    def specs(self) -> list[dict[str, object]]:
        limit = min(MAX_SPEC, MAX_SPECS // max(len(self._functions), 1))
        return [spec(function, limit) for function, _ in self._functions.values()]

    async def call(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call a function for the guest, whose word `name` and the arguments are.

        Raises what the function raises, and nothing that is not an Exception but cancellation:
        `describe()` makes of it what the guest may know.
        """
        found = self._functions.get(name)
        if found is None:
            raise NameError(f"no function of the host is called {cut(name, MAX_NAME)!r}")
        return await found[1].call(args, kwargs)
