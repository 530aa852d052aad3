"""Objects of classes: paths, and members of an Enum, named tuples, dataclasses, pydantic models.

A path is itself on both sides. The others travel as plain data (value, items, fields) with the name
of their class. The reader builds the object again only if it has a class for that name: the guest
imports it, the host has those that the caller gave, and never looks for one. Without the class the
plain data are the value, which a reader that is not lenient refuses.

With a lenient sender other objects travel too: a matplotlib figure as PNG, a view or deque as a
list, and the rest as a text that describes it.
"""

import collections
import enum
import io
import sys
from typing import Any, Callable, Dict, Optional

from .parcel import MAX_NOTE, Note, Packer, Unpacker, check_type

_MAX_NAME = 200
# What a subclass of these is otherwise.
_PLAIN = (int, float, str, bytes, list, dict, tuple, set, frozenset, complex)
_EMPTY: Dict[str, Any] = {}
_VIEWS = (collections.deque, type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_PURE_PATHS = ("PurePosixPath", "PureWindowsPath")


def encode_object(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    kind = type(value)
    form = _find_form(kind)
    if form is None:
        return _encode_path(packer, value)
    name = f"{kind.__module__}:{kind.__qualname__}"[:_MAX_NAME]
    packer.spend(len(name))
    member = None
    if form in ("enum", "member"):
        plain, member = value._value_, value._name_
    elif form == "namedtuple":
        plain = tuple(tuple.__iter__(value))
    elif form == "model":
        plain = value.model_dump(warnings=False)
    else:
        names = [field.name for field in sys.modules["dataclasses"].fields(value)]
        plain = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {"object": [form, name, member, packer.encode(plain)]}


def _find_form(kind: Any) -> Optional[str]:
    """As what objects of this class travel; None if they are no such objects."""
    if issubclass(kind, enum.Enum):
        return "member" if issubclass(kind, _PLAIN) else "enum"
    if issubclass(kind, tuple) and type(getattr(kind, "_fields", None)) is tuple:
        return "namedtuple"
    if issubclass(kind, _PLAIN):
        return None
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    if base is not None and issubclass(kind, base):
        return "model"
    return "dataclass" if type(getattr(kind, "__dataclass_fields__", None)) is dict else None


def _encode_path(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    pathlib: Any = sys.modules.get("pathlib")
    if pathlib is None or not issubclass(type(value), pathlib.PurePath):
        return None
    text = packer.encode(pathlib.PurePath.__str__(value))
    if issubclass(type(value), pathlib.Path):
        return {"path": ["Path", text]}
    return {"path": [_PURE_PATHS[issubclass(type(value), pathlib.PureWindowsPath)], text]}


def soften(packer: Packer, value: Any, reason: str) -> Optional[Dict[str, Any]]:
    """What a lenient sender sends in place of an object; None if that must be refused."""
    if not packer.lenient:
        return None
    plain: Any
    module = type(value).__module__
    if isinstance(module, str) and module.startswith("matplotlib."):
        figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if figure is None or not issubclass(type(value), figure):
            return None  # a part of a figure
        file = io.BytesIO()
        value.savefig(file, format="png")
        plain, reason = file.getvalue(), f"{reason}, drawn as PNG"
    elif issubclass(type(value), _VIEWS):
        plain = list(value)
    else:
        plain = packer.describe(value)
        if plain is None:
            return None
    return {"noted": [reason[:MAX_NOTE], packer.encode(plain)]}


# --- decode ---------------------------------------------------------------------------------------


def _decode_object(unpacker: Unpacker, body: Any) -> Any:
    form, name, member, plain = check_type(list, body)
    build = _BUILDERS[form]
    if len(check_type(str, name)) > _MAX_NAME:
        raise ValueError("not a name")
    unpacker.enter(Note(""))  # counts, so that there is an end
    plain = unpacker.decode(plain)
    unpacker.leave()
    kind = unpacker.reception.find_class(name)
    shown = name.replace("__main__:", "").replace(":", ".")
    reason = f"is a {shown}, which only its sender knows"
    if isinstance(kind, type):
        if _BUILDERS.get(_find_form(kind) or "") is not build:
            reason = f"is a {shown}, which is another kind of class to its sender"
        else:
            try:
                return build(kind, member, plain)
            except Exception as error:
                text = str(error).split("\n")[0][:100]
                reason = f"does not fit the class {shown} ({type(error).__name__}: {text})"
    return unpacker.soften(reason, plain)


def _build_member(kind: Any, member: Any, plain: Any) -> Any:
    if type(member) is str and member in kind.__members__:
        return kind.__members__[member]
    return kind(plain)  # a combination of flags


def _build_dataclass(kind: Any, member: Any, plain: Any) -> Any:
    fields = {field.name: field.init for field in sys.modules["dataclasses"].fields(kind)}
    given = check_type(dict, plain)
    return kind(**{name: item for name, item in given.items() if fields[name]})


def _build_model(kind: Any, member: Any, plain: Any) -> Any:
    """By validation. Fields have their own names, also where the model has aliases."""
    try:
        return kind.model_validate(plain, by_name=True)
    except TypeError:  # before pydantic 2.11
        return kind.model_validate(plain)


_BUILDERS: Dict[str, Callable[[Any, Any, Any], Any]] = {
    "enum": _build_member,
    "member": _build_member,
    "namedtuple": lambda kind, member, plain: kind(*check_type(tuple, plain)),
    "dataclass": _build_dataclass,
    "model": _build_model,
}


def _decode_path(unpacker: Unpacker, body: Any) -> Any:
    kind, text = check_type(list, body)
    if kind != "Path" and kind not in _PURE_PATHS:
        raise ValueError("not a path")
    pathlib: Any = unpacker.imported("pathlib", "path")
    return getattr(pathlib, kind)(check_type(str, unpacker.decode(text)))


def _decode_noted(unpacker: Unpacker, body: Any) -> Any:
    reason, plain = check_type(list, body)
    if len(check_type(str, reason)) > MAX_NOTE:
        raise ValueError("not a note")
    unpacker.enter(Note(""))
    plain = unpacker.decode(plain)
    unpacker.leave()
    return unpacker.soften(reason, plain)


DECODERS: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "object": _decode_object,
    "path": _decode_path,
    "noted": _decode_noted,
}
