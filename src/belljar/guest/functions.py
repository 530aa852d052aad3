"""Host functions in the guest: stubs with their signatures, and the errors they raise.

A stub looks like the host's function and checks its arguments; WorkerChannel makes the call.
"""

import builtins
import functools
import inspect
import sys
import threading
from typing import Any, Callable, Dict, Tuple, Type

from ..protocol import messages

KEPT_CLASSES = 256  # exception classes that are not builtins, for reuse

Call = Callable[[str, Tuple[Any, ...], Dict[str, Any]], Any]

# Raised inside a generator, these two would end it instead of failing.
_CONTROL_FLOW = (StopIteration, StopAsyncIteration)

_UNKNOWN = messages.SourceText("...")


class HostError(Exception):
    """A host function failed with an error that is not a builtin."""


class CellEnded(BaseException):
    """Ends a cell with a result. `except Exception` does not catch it."""


class CellReturn(CellEnded):
    """A `return` at the top level of a cell."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


def ends_cell(error: BaseException) -> bool:
    """True for CellEnded, and for a group that has nothing else: a TaskGroup makes one."""
    group = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11
    if group is not None and isinstance(error, group):
        return all(map(ends_cell, error.exceptions))
    return isinstance(error, CellEnded)


def check_thread(name: str) -> None:
    """An exception ends its own thread only: what ends a cell must be called in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"{name}() ends the cell, which another thread cannot do: let the thread return, and "
            "call it where the cell itself runs"
        )


def make_stub(spec: Dict[str, Any], call: Call, call_async: Call) -> Callable[..., Any]:
    """A function that passes its arguments to `call(name, args, kwargs)`, or to `call_async` if it
    is to be awaited.

    The host fills in defaults, which may not be data.
    """
    name = spec["name"]
    shape = messages.build_signature(spec)
    check = _make_checker(name, shape)
    ends, awaitable = bool(spec.get("ends_cell")), spec.get("awaitable")

    def stub(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        if ends:
            check_thread(name)
        if awaitable == "always" or (awaitable and find_loop() is not None):
            coroutine = call_async(name, args, kwargs)
            coroutine.__name__ = coroutine.__qualname__ = name  # for "... was never awaited"
            return coroutine
        return call(name, args, kwargs)

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = spec["doc"]
    stub.__module__ = "__main__"
    stub.__annotations__ = {
        parameter["name"]: parameter["annotation"]
        for parameter in [*spec["parameters"], {"name": "return", "annotation": spec["returns"]}]
        if parameter["annotation"] is not None
    }
    stub.__signature__ = shape  # type: ignore[attr-defined]
    return stub


def find_loop() -> Any:
    """The event loop of asyncio that runs in this thread; None if there is no such loop."""
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        return None


def _make_checker(name: str, shape: inspect.Signature) -> Callable[..., None]:
    """A function with that signature that does nothing, so that Python words the TypeError."""
    bare = [
        parameter.replace(
            annotation=parameter.empty,
            default=parameter.empty if parameter.default is parameter.empty else _UNKNOWN,
        )
        for parameter in shape.parameters.values()
    ]
    made: Dict[str, Any] = {}
    source = f"def {name}{inspect.Signature(bare)}: pass"
    exec(compile(source, f"<belljar>/{name}", "exec", dont_inherit=True), made)
    check: Callable[..., None] = made[name]
    return check


def make_exception(name: str, message: str) -> BaseException:
    """The error that the host function raised: a builtin class is caught as on the host.

    `str()` of it is the message, whatever that class makes of its arguments. What would end the
    interpreter or a generator (SystemExit, StopIteration ...) is only an error of that name here.
    """
    if not name.isidentifier() or len(name) > messages.MAX_NAME or name == HostError.__name__:
        return HostError(message)
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in _CONTROL_FLOW:
        return _make_builtin(kind, message)
    return _named_class(name)(message)


def _make_builtin(kind: Any, message: str) -> Exception:
    try:
        made: Exception = kind(message)
        if str(made) == message:
            return made
    except TypeError:
        pass  # UnicodeDecodeError, ExceptionGroup ...: they need more than a message
    return _reworded_class(kind)(message)


@functools.lru_cache(maxsize=None)  # there are few builtins
def _reworded_class(kind: Any) -> Type[Exception]:
    """A subclass of the same name, whose only argument and text is the message."""

    def new(cls: Any, message: str) -> Any:
        group = getattr(builtins, "ExceptionGroup", None)
        if group is not None and issubclass(cls, group):
            return kind.__new__(cls, message, [HostError(message)])
        return kind.__new__(cls, message)

    def init(self: Any, message: str) -> None:
        self.args = (message,)
        self._text = message

    members = {"__new__": new, "__init__": init, "__str__": lambda self: self._text}
    return type(kind.__name__, (kind,), {"__module__": "builtins", **members})


@functools.lru_cache(maxsize=KEPT_CLASSES)
def _named_class(name: str) -> Type[HostError]:
    # In __main__, so that a traceback shows the name alone.
    return type(name, (HostError,), {"__module__": "__main__"})
