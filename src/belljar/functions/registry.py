"""Host functions: callables that code in the sandbox may call by name.

    def execute_sql_query(query: str) -> pandas.DataFrame: ...

    with Sandbox(functions={"execute_sql_query": execute_sql_query}) as sandbox:
        sandbox.run_code("execute_sql_query('select 1').shape")

The guest sends a name and plain data; it can reach nothing else of the host.
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
from typing import TYPE_CHECKING

from belljar.errors import InvalidOption
from belljar.functions import signature
from belljar.functions.signature import cut
from belljar.protocol import messages, wire

if TYPE_CHECKING:
    from belljar.functions.calling import Callee

MAX_FUNCTIONS = 200
MAX_NAME = 64
MAX_DOC = 8 * 1024  # characters
MAX_SPEC = 16 * 1024  # bytes of JSON that describe one function to the guest
MAX_SPECS = wire.MAX_HEADER - 32 * 1024  # of all functions: they travel in one header


@dataclass(frozen=True)
class HostFunction:
    """A host function, and how often, how long and how many times at once it may be called.

    Ordinary functions run in threads, async ones on the sandbox's event loop. A call that takes too
    long raises TimeoutError in the guest; its thread runs on until it returns, and counts against
    `concurrency` until then.
    """

    function: Callable[..., object]
    _: KW_ONLY
    name: str | None = None  # in the guest; None: the function's own
    timeout: float | None = 60.0  # seconds a call may take; None: no limit
    max_calls: int | None = None  # over the life of the sandbox; None: no limit
    concurrency: int = 8  # calls at once; others wait
    counts_time: bool = False  # whether a call counts against the time-out of the cell
    ends_cell: bool = False  # its result ends the cell, and is `final` of the Execution

    def __post_init__(self) -> None:
        _check_callable(self.function)
        if self.name is not None:
            object.__setattr__(self, "name", _checked_name(self.name))
        if self.timeout is not None:
            if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
                raise InvalidOption(
                    f"timeout must be a number of seconds or None, not {self.timeout!r}"
                )
            if not math.isfinite(self.timeout) or self.timeout <= 0:
                raise InvalidOption(f"timeout must be above 0 and finite, not {self.timeout!r}")
        _check_count("concurrency", self.concurrency)
        if self.max_calls is not None:
            _check_count("max_calls", self.max_calls)
        for option in ("counts_time", "ends_cell"):
            if not isinstance(given := getattr(self, option), bool):
                raise InvalidOption(f"{option} must be True or False, not {given!r}")


Exposable = Callable[..., object] | HostFunction
Functions = Mapping[str, Exposable] | Iterable[Exposable]


def _check_callable(function: object) -> None:
    if inspect.iscoroutine(function):
        function.close()
        raise InvalidOption(
            "a host function must be a function, not a coroutine", hint="leave out the `()`"
        )
    if not callable(function):
        raise InvalidOption(f"a host function must be callable, not {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            "a host function must not be a generator function: generators cannot be sent",
            hint="return a list",
        )


def _check_count(what: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise InvalidOption(f"{what} must be a whole number of at least 1, not {number!r}")


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidOption(f"the name of a host function must be a str, not {name!r}")
    # As Python normalises identifiers: two spellings of one name are one name.
    name = unicodedata.normalize("NFKC", name)
    if not name.isidentifier() or keyword.iskeyword(name) or len(name) > MAX_NAME:
        raise InvalidOption(
            f"{cut(name, MAX_NAME)!r} cannot be the name of a function",
            hint="the guest calls it by that name: use letters, digits and _, and no keyword",
        )
    if name.startswith("__") and name.endswith("__"):
        raise InvalidOption(f"{name!r} is a name that Python reserves")
    return name


def _with_name(function: HostFunction) -> tuple[str, HostFunction]:
    """The function with its name in the guest, which is that of the callable unless it has one."""
    name = function.name
    if name is None:
        name = getattr(function.function, "__name__", None)
        if name is None or name == "<lambda>":
            what = "a lambda" if name else f"a {type(function.function).__name__}"
            raise InvalidOption(
                f"{what} has no name by which the guest could call it",
                hint='name it: {"name": function}, or HostFunction(function, name="name")',
            )
        name = _checked_name(name)
        function = dataclasses.replace(function, name=name)
    return name, function


def _as_host_function(given: Exposable) -> HostFunction:
    return given if isinstance(given, HostFunction) else HostFunction(given)


def coerce_functions(functions: Functions | None) -> dict[str, HostFunction]:
    """The functions given to `Sandbox(functions=...)`, by their names in the guest.

    >>> list(coerce_functions([len, HostFunction(max, name="largest")]))
    ['len', 'largest']
    >>> list(coerce_functions({"size": len}))
    ['size']
    """
    if functions is None:
        return {}
    if isinstance(functions, (str, bytes)) or not isinstance(functions, Iterable):
        raise InvalidOption(
            f"functions must be a mapping or a list of callables, not {type(functions).__name__}",
            hint="functions={'name': function}, or functions=[function]",
        )
    if isinstance(functions, Mapping):
        given = [
            dataclasses.replace(_as_host_function(function), name=_checked_name(name))
            for name, function in functions.items()
        ]
    else:
        given = list(map(_as_host_function, functions))
    found: dict[str, HostFunction] = {}
    for name, function in map(_with_name, given):
        if name in found:
            raise InvalidOption(f"two host functions are named {name!r}")
        found[name] = function
    _check_number(len(found))
    return found


def _check_number(number: int) -> None:
    if number > MAX_FUNCTIONS:
        raise InvalidOption(
            f"{number} host functions are more than {MAX_FUNCTIONS}",
            hint="expose one function that takes the name of an operation",
        )


# -- descriptions -----------------------------------------------------------------------------


def describe_function(function: HostFunction, limit: int = MAX_SPEC) -> dict[str, object]:
    """The description for the guest: name, signature and docstring, as texts.

    To stay below `limit`, first the docstring is cut, then types and defaults, then the signature.
    """
    name, function = _with_name(function)
    # Python does not compile a docstring with lone surrogates.
    doc = (inspect.getdoc(function.function) or "").encode("utf-8", "replace").decode() or None
    shape = signature.read_signature(function.function)
    told = signature.describe_parameters(shape)
    returns = None if shape is None else signature.format_annotation(shape.return_annotation)
    kind: dict[str, object] = {}
    if function.ends_cell:
        kind, returns = {"ends_cell": True}, "NoReturn"
    bare = [
        {**one, "annotation": None, "default": one["default"] and signature.UNKNOWN} for one in told
    ]
    unknown = signature.describe_parameters(None)
    attempts: list[tuple[int, Sequence[Mapping[str, str | None]], str | None]] = [
        *((MAX_DOC // part, told, returns) for part in (1, 4, 16, 64)),
        *((MAX_DOC // part, bare, None) for part in (64, MAX_DOC)),
        (MAX_DOC // 64, unknown, None),
    ]
    found: dict[str, object] = {}
    for room, parameters, result in attempts:
        found = {"name": name, "doc": doc and cut(doc, room), "parameters": list(parameters)}
        found |= {"returns": result, **kind}
        if len(json.dumps(found)) <= limit:
            return found
    return found | {"doc": None}


def stubs(functions: Functions | Registry) -> str:
    """Typed stubs of the functions, to paste into a prompt.

    >>> def search(query: str, *, most: int = 10) -> list[str]:
    ...     "Search the archive."
    >>> print(stubs([search]))
    def search(query: str, *, most: int = 10) -> list[str]:
        \"\"\"Search the archive.\"\"\"
        ...
    <BLANKLINE>
    """
    if isinstance(functions, Registry):
        specs = functions.specs()
    else:
        specs = [*map(describe_function, coerce_functions(functions).values())]
    return "\n\n".join(map(_render_stub, specs))


def _render_stub(told: dict[str, object]) -> str:
    lines = [f"def {told['name']}{messages.build_signature(told)}:"]
    if isinstance(told["doc"], str):
        lines.append(textwrap.indent(_render_docstring(told["doc"]), "    "))
    return "\n".join([*lines, "    ...", ""])


def _render_docstring(doc: str) -> str:
    """The text as a readable literal: escaped only where necessary."""
    escaped = doc.replace("\\", "\\\\")
    # Two quotes together, or one at the end, could end the literal.
    escaped = re.sub(r'""+|"\Z', lambda quotes: '\\"' * len(quotes[0]), escaped)
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in escaped
    )
    return f'"""{"".join(shown)}"""'


# -- the functions of a sandbox ---------------------------------------------------------------


class Registry:
    """The functions of one sandbox. A name that the guest sends is looked up only here."""

    def __init__(self, functions: Iterable[HostFunction] = ()) -> None:
        self._functions: dict[str, tuple[HostFunction, Callee]] = {}
        self.version = 0  # grows with each change; the guest is then told
        for function in functions:
            self.add(function)

    def copy(self) -> Registry:
        """A second table for a fork of the sandbox. Both share the limits of each function."""
        twin = Registry()
        twin._functions = dict(self._functions)
        twin.version = self.version
        return twin

    def add(self, function: HostFunction) -> None:
        """Let the guest call it from now on; it replaces a function of the same name."""
        from belljar.functions.calling import Callee  # here: options are checked without a loop

        name, function = _with_name(function)
        _check_number(len({*self._functions, name}))
        self._functions[name] = (function, Callee(function, name))
        self.version += 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def counts_time(self, name: str) -> bool:
        """Whether a call counts against the time-out of the cell; an unknown name does."""
        found = self._functions.get(name)
        return found is None or found[0].counts_time

    def ends_cell(self, name: str) -> bool:
        found = self._functions.get(name)
        return found is not None and found[0].ends_cell

    def specs(self) -> list[dict[str, object]]:
        limit = min(MAX_SPEC, MAX_SPECS // max(len(self._functions), 1))
        return [describe_function(function, limit) for function, _ in self._functions.values()]

    async def call(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call a function for the guest, which chose `name` and the arguments.

        Raises what the function raises: only Exceptions, apart from cancellation. The guest gets
        what `describe_error()` makes of it.
        """
        found = self._functions.get(name)
        if found is None:
            raise NameError(f"there is no host function named {cut(name, MAX_NAME)!r}")
        return await found[1].call(args, kwargs)
