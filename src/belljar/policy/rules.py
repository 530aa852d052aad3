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


_TABLE = (
    # -- the source itself
    Rule(
        "BJ001",
        "syntax-error",
        "this is not Python {name}",
        "correct it; it would fail when run, too",
        fixed=True,
    ),
    Rule(
        "BJ002",
        "too-large",
        "the code is too large to be judged: {name}",
        "pass data as files, not in the code, or raise [limits] in the policy",
        fixed=True,
    ),
    Rule(
        "BJ003",
        "too-deep",
        "the code is nested too deeply to be judged: {name}",
        "split the expression, and name its parts",
        fixed=True,
    ),
    Rule(
        "BJ004",
        "too-many-nodes",
        "the code has too many parts to be judged: {name}",
        "pass data as files, not in the code, or raise [limits] in the policy",
        fixed=True,
    ),
    Rule(
        "BJ005",
        "out-of-time",
        "the check took too long: {name}",
        "make the code shorter, or raise [limits] seconds in the policy",
        fixed=True,
    ),
    Rule(
        "BJ006",
        "check-failed",
        "the check itself failed: {name}",
        "report this as a bug of belljar, with the code",
        fixed=True,
    ),
    Rule(
        "BJ007",
        "not-text",
        "the code has characters that no source may have: {name}",
        "remove them; write them as escapes such as \\x00 in a string",
        fixed=True,
    ),
    Rule(
        "BJ008",
        "disguised-identifier",
        "an identifier is not what it looks like: it is read as {name}",
        "write it in plain letters",
    ),
    Rule(
        "BJ009",
        "reordering-controls",
        "an invisible character changes the order in which the code is shown: {name}",
        "remove it; write it as an escape such as \\u202e in a string",
    ),
    # -- imports
    Rule(
        "BJ101",
        "import-denied",
        "the import of {name} is denied",
        "do without the module, or add it to [imports] extend_allow in the policy",
    ),
    Rule(
        "BJ102",
        "import-unlisted",
        "the import of {name} is not on the list of what is allowed",
        "use an allowed module, or add this one to [imports] extend_allow in the policy",
    ),
    Rule(
        "BJ103",
        "star-import",
        "from {name} import * brings names that cannot be told by reading",
        "import the names you need",
        action="unknown",
    ),
    Rule(
        "BJ104",
        "relative-import",
        "the relative import of {name} has no package to start from",
        "import by the full name",
    ),
    Rule(
        "BJ105", "import-by-call", "{name} imports a module by a call", "write an import statement"
    ),
    Rule(
        "BJ106",
        "import-unknown",
        "{name} imports a module whose name cannot be told by reading",
        "write an import statement",
        action="unknown",
    ),
    Rule(
        "BJ107",
        "module-through-module",
        "{name} is reached through another module",
        "import the module itself, if it is allowed",
    ),
    Rule(
        "BJ108",
        "import-machinery",
        "{name} reaches into the machinery of imports",
        "import modules by import statements",
    ),
    # -- code from data
    Rule(
        "BJ201",
        "eval-exec",
        "{name} runs code made from a string",
        "write the code itself; for literals use ast.literal_eval or json.loads",
    ),
    Rule("BJ202", "compile", "{name} makes code at run time", "write the code itself"),
    Rule(
        "BJ203",
        "decoded-code",
        "{name} runs code that was decoded, received or put together",
        "write the code itself",
    ),
    Rule(
        "BJ204",
        "frame-expression",
        "an expression of {name} reaches Python's variables or attributes",
        "filter with frame[frame.column > value]",
    ),
    Rule(
        "BJ205",
        "hidden-eval",
        "{name} runs a string as code",
        "call a function instead of passing a string",
    ),
    Rule(
        "BJ206",
        "frame-expression-unknown",
        "an expression of {name} cannot be told by reading",
        "write the expression as a literal, or filter with frame[frame.column > value]",
        action="unknown",
    ),
    # -- reflection
    Rule(
        "BJ301",
        "object-walk",
        "{name} walks from an object to what is behind it",
        "use the object itself; nothing ordinary needs this",
    ),
    Rule(
        "BJ302",
        "inner-attribute",
        "{name} is an inner attribute",
        "use the public way: type(), vars(), isinstance(), functools",
    ),
    Rule(
        "BJ303",
        "format-walk",
        "a format string reaches into an object: {name}",
        "format the values themselves, in an f-string",
    ),
    Rule(
        "BJ304",
        "format-unknown",
        "the format string of {name} cannot be told by reading",
        "use an f-string",
        action="unknown",
    ),
    Rule(
        "BJ305",
        "attribute-unknown",
        "{name} uses an attribute whose name cannot be told by reading",
        "write the attribute, or choose from a dict of functions",
        action="unknown",
    ),
    Rule(
        "BJ306",
        "module-attribute-unknown",
        "{name} takes something from a module by a name that cannot be told by reading",
        "write the attribute, or choose from a dict of functions",
    ),
    Rule(
        "BJ307",
        "frames",
        "{name} reaches the frames of the interpreter",
        "pass values as arguments; for errors use traceback.format_exc()",
    ),
    Rule(
        "BJ308",
        "namespace",
        "{name} gives all names at once",
        "use a dict of your own, or ask for one name: 'x' in locals(), locals()['x']",
        action="unknown",
    ),
    Rule(
        "BJ309",
        "object-graph",
        "{name} reaches objects that were not passed to the code",
        "keep the objects you need in variables",
    ),
    Rule(
        "BJ310",
        "tampering",
        "{name} changes the interpreter for all code",
        "change your own objects only",
    ),
    # -- files
    Rule(
        "BJ401",
        "file-open",
        "{name} opens a file",
        "work with values in memory, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ402",
        "file-manage",
        "{name} reads, changes or lists files",
        "work with values in memory, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ403",
        "table-read",
        "{name} reads a file",
        "take the data as variables, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ404",
        "table-write",
        "{name} writes a file",
        "return the value, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ405",
        "store-open",
        "{name} opens an archive or a database",
        "take the data as variables, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ406",
        "path-outside",
        "{name} is outside the paths that are allowed",
        "use a path below one of [paths] allow in the policy",
    ),
    Rule(
        "BJ407",
        "path-unknown",
        "the path of {name} cannot be told by reading",
        "write the path as a literal",
        action="unknown",
    ),
    # -- network
    Rule("BJ501", "network", "{name} uses the network", "take the data as variables or files"),
    Rule(
        "BJ502",
        "url-read",
        "{name} would be fetched from the network",
        "take the data as variables or files",
    ),
    # -- processes and the machine
    Rule(
        "BJ601",
        "process",
        "{name} starts a program or a process",
        "do it in Python, in this process",
    ),
    Rule(
        "BJ602",
        "native-code",
        "{name} reaches memory or native code",
        "use numpy, or a library that does this",
    ),
    Rule(
        "BJ603",
        "process-control",
        "{name} controls processes, signals or limits",
        "let the code end by itself",
    ),
    Rule(
        "BJ604",
        "machine-facts",
        "{name} reads the environment, users or the machine",
        "take what you need as variables",
    ),
    Rule(
        "BJ605",
        "interactive",
        "{name} waits for input at a terminal",
        "take what you need as variables",
    ),
    # -- objects from data
    Rule(
        "BJ701",
        "unpickle",
        "{name} makes objects, and runs code, out of data",
        "use JSON, CSV or Parquet",
    ),
    Rule(
        "BJ702",
        "yaml-objects",
        "{name} makes objects, and runs code, out of data",
        "use yaml.safe_load",
    ),
    # -- by the policy's own lists
    Rule(
        "BJ901",
        "name-denied",
        "the use of {name} is denied",
        "do without it, or remove it from [names] deny in the policy",
    ),
)
RULES: dict[str, Rule] = {rule.id: rule for rule in _TABLE}
BY_NAME: dict[str, str] = {rule.name: rule.id for rule in RULES.values()}
