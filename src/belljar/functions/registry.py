"""Host functions: callables that code in the sandbox may call by name.

    def execute_sql_query(query: str) -> pandas.DataFrame: ...

    with Sandbox(functions={"execute_sql_query": execute_sql_query}) as sandbox:
        sandbox.run_code("execute_sql_query('select 1').shape")

The guest sends a name and plain data; it can reach nothing else of the host.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import json
import keyword
import math
import re
import textwrap
import types
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from belljar.errors import InvalidOption
from belljar.functions import signature
from belljar.functions.signature import cut
from belljar.protocol import messages, wire

if TYPE_CHECKING:
    from belljar.functions.calling import Callee

MAX_FUNCTIONS = 200
# Compared by identity: 60.0 that a caller gives is another object.
DEFAULT_TIMEOUT = float("60")
CONCURRENCY = 8  # calls of one ordinary function at once
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

    A function that is `awaitable` is awaited in the guest, and several can be awaited at once.
    None: an async function gives a coroutine where an event loop runs, and its result elsewhere.
    """

    function: Callable[..., object]
    _: KW_ONLY
    name: str | None = None  # None: the function's own; the guest uses make_identifier() of it
    timeout: float | None = DEFAULT_TIMEOUT  # seconds of a call; None, or left out if async: any
    max_calls: int | None = None  # over the life of the sandbox; None: no limit
    concurrency: int | None = None  # calls at once; others wait. None: 8, or 64 if it is async
    counts_time: bool = False  # whether a call counts against the time-out of the cell
    ends_cell: bool = False  # its result ends the cell, and is `final` of the Execution
    awaitable: bool | None = None  # whether the guest awaits it; None: see above

    def __post_init__(self) -> None:
        _check_callable(self.function)
        if self.name is not None:
            make_identifier(self.name)
        if self.awaitable is not None and not isinstance(self.awaitable, bool):
            raise InvalidOption(f"awaitable must be True, False or None, not {self.awaitable!r}")
        if self.timeout is DEFAULT_TIMEOUT and signature.is_async(self.function):
            object.__setattr__(self, "timeout", None)
        if self.timeout is not None:
            if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
                raise InvalidOption(
                    f"timeout must be a number of seconds or None, not {self.timeout!r}"
                )
            if not math.isfinite(self.timeout) or self.timeout <= 0:
                raise InvalidOption(f"timeout must be above 0 and finite, not {self.timeout!r}")
        if self.concurrency is None:  # a waiting thread costs more than a waiting task
            many = wire.MAX_CALLS if signature.is_async(self.function) else CONCURRENCY
            object.__setattr__(self, "concurrency", many)
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


# Names of the cells' module and of builtins, which must keep their meaning.
_OF_MODULES = ("builtins", "file", "cached", "path", "all", "annotations", "annotate", "main")
_RESERVED = {*dir(builtins), *dir(types.ModuleType), *(f"__{name}__" for name in _OF_MODULES)}


def make_identifier(name: str) -> str:
    """The name by which the guest calls a function of this name.

    >>> make_identifier("get-weather"), make_identifier("2d plot"), make_identifier("import")
    ('get_weather', '_2d_plot', 'import_')
    """
    if not isinstance(name, str):
        raise InvalidOption(f"the name of a host function must be a str, not {name!r}")
    # As Python normalises identifiers: two spellings of one name are one name.
    made = re.sub(r"\W", "_", unicodedata.normalize("NFKC", name))
    if not made.isidentifier():
        made = f"_{made}"
    if keyword.iskeyword(made):
        made += "_"
    if not made.isidentifier() or not made.strip("_") or len(made) > MAX_NAME:
        raise InvalidOption(
            f"{cut(name, MAX_NAME)!r} cannot be the name of a function",
            hint=f"the guest calls it by that name: use letters and digits, {MAX_NAME} at most",
        )
    if made.startswith("__") and (made in _RESERVED or made.startswith("__belljar_")):
        raise InvalidOption(f"{made!r} is a name that Python reserves")
    return made


def _with_name(function: HostFunction) -> tuple[str, HostFunction]:
    """The function with a name, which is that of the callable unless it has one."""
    name = function.name
    if name is None:
        name = getattr(function.function, "__name__", None)
        if name is None or name == "<lambda>":
            what = "a lambda" if name else f"a {type(function.function).__name__}"
            raise InvalidOption(
                f"{what} has no name by which the guest could call it",
                hint='name it: {"name": function}, or HostFunction(function, name="name")',
            )
        function = dataclasses.replace(function, name=name)
    return name, function


def _as_host_function(given: Exposable) -> HostFunction:
    return given if isinstance(given, HostFunction) else HostFunction(given)


def _rename(given: Exposable, name: str) -> HostFunction:
    make_identifier(name)  # None would be the function's own name
    return dataclasses.replace(_as_host_function(given), name=name)


def coerce_functions(functions: Functions | None) -> dict[str, HostFunction]:
    """The functions given to `Sandbox(functions=...)`, by their names.

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
        given = [_rename(function, name) for name, function in functions.items()]
    else:
        given = list(map(_as_host_function, functions))
    found: dict[str, HostFunction] = {}
    for name, function in map(_with_name, given):
        if name in found:
            raise InvalidOption(f"two host functions are named {name!r}")
        found[name] = function
    _check_names(found)
    return found


def _check_names(names: Iterable[str]) -> None:
    """Check all names of one guest together."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(make_identifier(name), name)
        if other != name:
            raise InvalidOption(
                f"the guest would call two host functions {make_identifier(name)}: "
                f"{other!r} and {name!r}",
                hint="give one of them another name",
            )
    _check_number(len(found))


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
        kind["ends_cell"], returns = True, "NoReturn"
    elif function.awaitable is None and signature.is_async(function.function):
        kind["awaitable"] = "auto"
    if function.awaitable:
        kind["awaitable"] = "always"
    identifier = make_identifier(name)
    if identifier != name:
        kind["given"] = name
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
        found = {"name": identifier, "doc": doc and cut(doc, room), "parameters": list(parameters)}
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
    define = "async def" if "awaitable" in told else "def"
    lines = [f"{define} {told['name']}{messages.build_signature(told)}:"]
    if "given" in told:
        lines.insert(0, f"# {told['given']!a} has this name here:")
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


class Registry(MutableMapping[str, Exposable]):
    """The functions of one sandbox by their names. Code can call those that are in it; a function
    that is added or removed is so from the next cell on.

    The guest sends make_identifier() of a name, which is looked up only here.
    """

    def __init__(self, functions: Iterable[HostFunction] = ()) -> None:
        self._functions: dict[str, HostFunction] = {}
        self._callees: dict[str, tuple[HostFunction, Callee]] = {}  # by the name in the guest
        self.version = 0  # grows with each change; the guest is then told
        for function in functions:
            self.add(function)

    def copy(self) -> Registry:
        """A second table for a fork of the sandbox. Both share the limits of each function."""
        twin = Registry()
        twin._functions = dict(self._functions)
        twin._callees = dict(self._callees)
        twin.version = self.version
        return twin

    def add(self, function: HostFunction) -> str:
        """Let the guest call it from now on; it replaces a function of the same name. Returns its
        name in the guest."""
        from belljar.functions.calling import Callee  # here: options are checked without a loop

        name, function = _with_name(function)
        _check_names({**self._functions, name: function})
        identifier = make_identifier(name)
        self._callees[identifier] = (function, Callee(function, identifier))
        self._functions[name] = function
        self.version += 1
        return identifier

    def add_all(self, functions: Functions) -> dict[str, str]:
        """Add all of them, or none. Returns their names in the guest by the names given."""
        found = coerce_functions(functions)
        _check_names({**self._functions, **found})
        return {name: self.add(function) for name, function in found.items()}

    def __getitem__(self, name: str) -> HostFunction:
        return self._functions[name]

    def __setitem__(self, name: str, function: Exposable) -> None:
        self.add(_rename(function, name))

    def __delitem__(self, name: str) -> None:
        del self._functions[name]
        del self._callees[make_identifier(name)]
        self.version += 1

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._functions))

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"<functions: {', '.join(self) or 'none'}>"

    def counts_time(self, name: str) -> bool:
        """Whether a call counts against the time-out of the cell; an unknown name does."""
        found = self._callees.get(name)
        return found is None or found[0].counts_time

    def ends_cell(self, name: str) -> bool:
        found = self._callees.get(name)
        return found is not None and found[0].ends_cell

    def class_finder(self, name: str) -> Callable[[str], type | None]:
        """Gives the class that an argument names, if the annotations of the function have it."""

        def find(named: str) -> type | None:
            function = self._callees[name][0].function if name in self._callees else None
            classes = signature.find_classes(*signature.read_annotations(function))
            return classes.get(signature.class_name(named))

        return find

    def specs(self) -> list[dict[str, object]]:
        functions = tuple(self._functions.values())
        limit = min(MAX_SPEC, MAX_SPECS // max(len(functions), 1))
        return [describe_function(function, limit) for function in functions]

    async def call(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call a function for the guest, which chose `name` and the arguments.

        Raises what the function raises: only Exceptions, apart from cancellation. The guest gets
        what `describe_error()` makes of it.
        """
        found = self._callees.get(name)
        if found is None:
            raise NameError(f"there is no host function named {cut(name, MAX_NAME)!r}")
        return await found[1].call(args, kwargs)
