"""The rules: what each finds, its message, and the remedy. Ids never change meaning.

A policy decides by `action` what a rule's finding means; the action here is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Severity = Literal["error", "warning", "note"]
Action = Literal["deny", "unknown", "note", "off"]
ACTIONS: tuple[Action, ...] = get_args(Action)
SEVERITIES: dict[Action, Severity] = {"deny": "error", "unknown": "warning", "note": "note"}


@dataclass(frozen=True)
class Rule:
    id: str
    name: str
    message: str  # {name} is what was found
    remedy: str
    action: Action = "deny"  # unless the policy names another
    fixed: bool = False  # it denies in every policy: the code could not be checked


# id: name, message, remedy
_TABLE = {
    # -- the source itself
    "BJ001": (
        "syntax-error",
        "this is not Python {name}",
        "correct it; it would fail when run, too",
    ),
    "BJ002": (
        "too-large",
        "the code is too large to be judged: {name}",
        "pass data as files, not in the code, or raise [limits] in the policy",
    ),
    "BJ003": (
        "too-deep",
        "the code is nested too deeply to be judged: {name}",
        "split the expression, and name its parts",
    ),
    "BJ004": (
        "too-many-nodes",
        "the code has too many parts to be judged: {name}",
        "pass data as files, not in the code, or raise [limits] in the policy",
    ),
    "BJ005": (
        "out-of-time",
        "the check took too long: {name}",
        "make the code shorter, or raise [limits] seconds in the policy",
    ),
    "BJ006": (
        "check-failed",
        "the check itself failed: {name}",
        "report this as a bug of belljar, with the code",
    ),
    "BJ007": (
        "not-text",
        "the code has characters that no source may have: {name}",
        "remove them; write them as escapes such as \\x00 in a string",
    ),
    "BJ008": (
        "disguised-identifier",
        "an identifier is not what it looks like: it is read as {name}",
        "write it in plain letters",
    ),
    "BJ009": (
        "reordering-controls",
        "an invisible character changes the order in which the code is shown: {name}",
        "remove it; write it as an escape such as \\u202e in a string",
    ),
    # -- imports
    "BJ101": (
        "import-denied",
        "the import of {name} is denied",
        "do without the module, or add it to [imports] extend_allow in the policy",
    ),
    "BJ102": (
        "import-unlisted",
        "the import of {name} is not on the list of what is allowed",
        "use an allowed module, or add this one to [imports] extend_allow in the policy",
    ),
    "BJ103": (
        "star-import",
        "from {name} import * brings names that cannot be told by reading",
        "import the names you need",
    ),
    "BJ104": (
        "relative-import",
        "the relative import of {name} has no package to start from",
        "import by the full name",
    ),
    "BJ105": ("import-by-call", "{name} imports a module by a call", "write an import statement"),
    "BJ106": (
        "import-unknown",
        "{name} imports a module whose name cannot be told by reading",
        "write an import statement",
    ),
    "BJ107": (
        "module-through-module",
        "{name} is reached through another module",
        "import the module itself, if it is allowed",
    ),
    "BJ108": (
        "import-machinery",
        "{name} reaches into the machinery of imports",
        "import modules by import statements",
    ),
    # -- code from data
    "BJ201": (
        "eval-exec",
        "{name} runs code made from a string",
        "write the code itself; for literals use ast.literal_eval or json.loads",
    ),
    "BJ202": ("compile", "{name} makes code at run time", "write the code itself"),
    "BJ203": (
        "decoded-code",
        "{name} runs code that was decoded, received or put together",
        "write the code itself",
    ),
    "BJ204": (
        "frame-expression",
        "an expression of {name} reaches Python's variables or attributes",
        "filter with frame[frame.column > value]",
    ),
    "BJ205": (
        "hidden-eval",
        "{name} runs a string as code",
        "call a function instead of passing a string",
    ),
    "BJ206": (
        "frame-expression-unknown",
        "an expression of {name} cannot be told by reading",
        "write the expression as a literal, or filter with frame[frame.column > value]",
    ),
    # -- reflection
    "BJ301": (
        "object-walk",
        "{name} walks from an object to what is behind it",
        "use the object itself; nothing ordinary needs this",
    ),
    "BJ302": (
        "inner-attribute",
        "{name} is an inner attribute",
        "use the public way: type(), vars(), isinstance(), functools",
    ),
    "BJ303": (
        "format-walk",
        "a format string reaches into an object: {name}",
        "format the values themselves, in an f-string",
    ),
    "BJ304": (
        "format-unknown",
        "the format string of {name} cannot be told by reading",
        "use an f-string",
    ),
    "BJ305": (
        "attribute-unknown",
        "{name} uses an attribute whose name cannot be told by reading",
        "write the attribute, or choose from a dict of functions",
    ),
    "BJ306": (
        "module-attribute-unknown",
        "{name} takes something from a module by a name that cannot be told by reading",
        "write the attribute, or choose from a dict of functions",
    ),
    "BJ307": (
        "frames",
        "{name} reaches the frames of the interpreter",
        "pass values as arguments; for errors use traceback.format_exc()",
    ),
    "BJ308": (
        "namespace",
        "{name} gives all names at once",
        "use a dict of your own, or ask for one name: 'x' in locals(), locals()['x']",
    ),
    "BJ309": (
        "object-graph",
        "{name} reaches objects that were not passed to the code",
        "keep the objects you need in variables",
    ),
    "BJ310": (
        "tampering",
        "{name} changes the interpreter for all code",
        "change your own objects only",
    ),
    # -- files
    "BJ401": (
        "file-open",
        "{name} opens a file",
        "work with values in memory, or list the path in [paths] extend_allow in the policy",
    ),
    "BJ402": (
        "file-manage",
        "{name} reads, changes or lists files",
        "work with values in memory, or list the path in [paths] extend_allow in the policy",
    ),
    "BJ403": (
        "table-read",
        "{name} reads a file",
        "take the data as variables, or list the path in [paths] extend_allow in the policy",
    ),
    "BJ404": (
        "table-write",
        "{name} writes a file",
        "return the value, or list the path in [paths] extend_allow in the policy",
    ),
    "BJ405": (
        "store-open",
        "{name} opens an archive or a database",
        "take the data as variables, or list the path in [paths] extend_allow in the policy",
    ),
    "BJ406": (
        "path-outside",
        "{name} is outside the paths that are allowed",
        "use a path below one of [paths] allow in the policy",
    ),
    "BJ407": (
        "path-unknown",
        "the path of {name} cannot be told by reading",
        "write the path as a literal",
    ),
    # -- network
    "BJ501": ("network", "{name} uses the network", "take the data as variables or files"),
    "BJ502": (
        "url-read",
        "{name} would be fetched from the network",
        "take the data as variables or files",
    ),
    # -- processes and the machine
    "BJ601": (
        "process",
        "{name} starts a program or a process",
        "do it in Python, in this process",
    ),
    "BJ602": (
        "native-code",
        "{name} reaches memory or native code",
        "use numpy, or a library that does this",
    ),
    "BJ603": (
        "process-control",
        "{name} controls processes, signals or limits",
        "let the code end by itself",
    ),
    "BJ604": (
        "machine-facts",
        "{name} reads the environment, users or the machine",
        "take what you need as variables",
    ),
    "BJ605": (
        "interactive",
        "{name} waits for input at a terminal",
        "take what you need as variables",
    ),
    # -- objects from data
    "BJ701": (
        "unpickle",
        "{name} makes objects, and runs code, out of data",
        "use JSON, CSV or Parquet",
    ),
    "BJ702": (
        "yaml-objects",
        "{name} makes objects, and runs code, out of data",
        "use yaml.safe_load",
    ),
    # -- by the policy's own lists
    "BJ901": (
        "name-denied",
        "the use of {name} is denied",
        "do without it, or remove it from [names] deny in the policy",
    ),
}
_UNKNOWN = {"BJ103", "BJ106", "BJ206", "BJ304", "BJ305", "BJ308", "BJ407"}
_FIXED = {"BJ001", "BJ002", "BJ003", "BJ004", "BJ005", "BJ006", "BJ007"}
RULES: dict[str, Rule] = {
    id: Rule(id, *texts, "unknown" if id in _UNKNOWN else "deny", fixed=id in _FIXED)
    for id, texts in _TABLE.items()
}
BY_NAME: dict[str, str] = {rule.name: rule.id for rule in RULES.values()}
