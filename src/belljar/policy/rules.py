"""The rules: what each looks for, what it says, and what to do about it. Ids never change meaning.

A table, and longer than other files for that. The policy decides by `action` what a rule's finding
means; the one here holds where it is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from belljar.policy.report import Severity

Action = Literal["deny", "unknown", "note", "off"]
ACTIONS: tuple[Action, ...] = get_args(Action)
SEVERITIES: dict[Action, Severity] = {"deny": "error", "unknown": "warning", "note": "note"}


@dataclass(frozen=True)
class Rule:
    id: str
    name: str
    action: Action  # if the policy says nothing
    message: str  # {name} is what was found
    remedy: str
    fixed: bool = False  # it denies in every policy: there was nothing to be judged


def _table(*rules: Rule) -> dict[str, Rule]:
    return {rule.id: rule for rule in rules}


RULES: dict[str, Rule] = _table(
    # -- the source itself
    Rule(
        "BJ001",
        "syntax-error",
        "deny",
        "this is not Python {name}",
        "correct it; it would fail when run, too",
        fixed=True,
    ),
    Rule(
        "BJ002",
        "too-large",
        "deny",
        "the code is too large to be judged: {name}",
        "pass data as files, not in the code, or raise [limits] in the policy",
        fixed=True,
    ),
    Rule(
        "BJ003",
        "too-deep",
        "deny",
        "the code is nested too deeply to be judged: {name}",
        "give the parts names of their own",
        fixed=True,
    ),
    Rule(
        "BJ004",
        "too-many-nodes",
        "deny",
        "the code has too many parts to be judged: {name}",
        "pass data as files, not in the code, or raise [limits] in the policy",
        fixed=True,
    ),
    Rule(
        "BJ005",
        "out-of-time",
        "deny",
        "the check took too long: {name}",
        "make the code shorter, or raise [limits] seconds in the policy",
        fixed=True,
    ),
    Rule(
        "BJ006",
        "check-failed",
        "deny",
        "the check itself failed: {name}",
        "report this as a bug of belljar, with the code",
        fixed=True,
    ),
    Rule(
        "BJ007",
        "not-text",
        "deny",
        "the code has characters that no source may have: {name}",
        "remove them; write them as escapes such as \\x00 in a string",
        fixed=True,
    ),
    Rule(
        "BJ008",
        "disguised-identifier",
        "deny",
        "an identifier is not what it looks like: it is read as {name}",
        "write it in plain letters",
    ),
    Rule(
        "BJ009",
        "reordering-controls",
        "deny",
        "an invisible character changes the order in which the code is shown: {name}",
        "remove it; write it as an escape such as \\u202e in a string",
    ),
    # -- imports
    Rule(
        "BJ101",
        "import-denied",
        "deny",
        "the import of {name} is denied",
        "do without the module, or add it to [imports] extend_allow in the policy",
    ),
    Rule(
        "BJ102",
        "import-unlisted",
        "deny",
        "the import of {name} is not on the list of what is allowed",
        "use an allowed module, or add this one to [imports] extend_allow in the policy",
    ),
    Rule(
        "BJ103",
        "star-import",
        "unknown",
        "from {name} import * brings names that cannot be told by reading",
        "import the names you need",
    ),
    Rule(
        "BJ104",
        "relative-import",
        "deny",
        "the relative import of {name} has no package to start from",
        "import by the full name",
    ),
    Rule(
        "BJ105",
        "import-by-call",
        "deny",
        "{name} imports a module by a call",
        "write an import statement",
    ),
    Rule(
        "BJ106",
        "import-unknown",
        "unknown",
        "{name} imports a module whose name cannot be told by reading",
        "write an import statement",
    ),
    Rule(
        "BJ107",
        "module-through-module",
        "deny",
        "{name} is reached through another module",
        "import the module itself, if it is allowed",
    ),
    Rule(
        "BJ108",
        "import-machinery",
        "deny",
        "{name} reaches into the machinery of imports",
        "import modules by import statements",
    ),
    # -- code from data
    Rule(
        "BJ201",
        "eval-exec",
        "deny",
        "{name} runs code made from a string",
        "write the code itself; for literals use ast.literal_eval or json.loads",
    ),
    Rule(
        "BJ202",
        "compile",
        "deny",
        "{name} makes code at run time",
        "write the code itself",
    ),
    Rule(
        "BJ203",
        "decoded-code",
        "deny",
        "{name} runs code that was decoded, received or put together",
        "write the code itself",
    ),
    Rule(
        "BJ204",
        "frame-expression",
        "deny",
        "an expression of {name} reaches Python's variables or attributes",
        "filter with frame[frame.column > value]",
    ),
    Rule(
        "BJ205",
        "hidden-eval",
        "deny",
        "{name} runs a string as code",
        "call a function instead of passing a string",
    ),
    Rule(
        "BJ206",
        "frame-expression-unknown",
        "unknown",
        "an expression of {name} cannot be told by reading",
        "write the expression as a literal, or filter with frame[frame.column > value]",
    ),
    # -- reflection
    Rule(
        "BJ301",
        "object-walk",
        "deny",
        "{name} walks from an object to what is behind it",
        "use the object itself; nothing ordinary needs this",
    ),
    Rule(
        "BJ302",
        "inner-attribute",
        "deny",
        "{name} is an inner attribute",
        "use the public way: type(), vars(), isinstance(), functools",
    ),
    Rule(
        "BJ303",
        "format-walk",
        "deny",
        "a format string reaches into an object: {name}",
        "format the values themselves, in an f-string",
    ),
    Rule(
        "BJ304",
        "format-unknown",
        "unknown",
        "the format string of {name} cannot be told by reading",
        "use an f-string",
    ),
    Rule(
        "BJ305",
        "attribute-unknown",
        "unknown",
        "{name} uses an attribute whose name cannot be told by reading",
        "write the attribute, or choose from a dict of functions",
    ),
    Rule(
        "BJ306",
        "module-attribute-unknown",
        "deny",
        "{name} takes something from a module by a name that cannot be told by reading",
        "write the attribute, or choose from a dict of functions",
    ),
    Rule(
        "BJ307",
        "frames",
        "deny",
        "{name} reaches the frames of the interpreter",
        "pass values as arguments; for errors use traceback.format_exc()",
    ),
    Rule(
        "BJ308",
        "namespace",
        "unknown",
        "{name} gives all names at once",
        "use a dict of your own, or ask for one name: 'x' in locals(), locals()['x']",
    ),
    Rule(
        "BJ309",
        "object-graph",
        "deny",
        "{name} reaches objects that nobody handed over",
        "keep the objects you need in variables",
    ),
    Rule(
        "BJ310",
        "tampering",
        "deny",
        "{name} changes the interpreter for everybody",
        "change objects of your own only",
    ),
    # -- files
    Rule(
        "BJ401",
        "file-open",
        "deny",
        "{name} opens a file",
        "work with values in memory, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ402",
        "file-manage",
        "deny",
        "{name} reads, changes or lists files",
        "work with values in memory, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ403",
        "table-read",
        "deny",
        "{name} reads a file",
        "take the data as variables, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ404",
        "table-write",
        "deny",
        "{name} writes a file",
        "return the value, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ405",
        "store-open",
        "deny",
        "{name} opens an archive or a database",
        "take the data as variables, or list the path in [paths] extend_allow in the policy",
    ),
    Rule(
        "BJ406",
        "path-outside",
        "deny",
        "{name} is outside the paths that are allowed",
        "use a path below one of [paths] allow in the policy",
    ),
    Rule(
        "BJ407",
        "path-unknown",
        "unknown",
        "the path of {name} cannot be told by reading",
        "write the path as a literal",
    ),
    # -- network
    Rule(
        "BJ501",
        "network",
        "deny",
        "{name} uses the network",
        "take the data as variables or files",
    ),
    Rule(
        "BJ502",
        "url-read",
        "deny",
        "{name} would be fetched from the network",
        "take the data as variables or files",
    ),
    # -- processes and the machine
    Rule(
        "BJ601",
        "process",
        "deny",
        "{name} starts a program or a process",
        "do it in Python, in this process",
    ),
    Rule(
        "BJ602",
        "native-code",
        "deny",
        "{name} reaches memory or native code",
        "use numpy, or a library that does this",
    ),
    Rule(
        "BJ603",
        "process-control",
        "deny",
        "{name} controls processes, signals or limits",
        "let the code end by itself",
    ),
    Rule(
        "BJ604",
        "machine-facts",
        "deny",
        "{name} reads the environment, users or the machine",
        "take what you need as variables",
    ),
    Rule(
        "BJ605",
        "interactive",
        "deny",
        "{name} waits for somebody at a terminal",
        "take what you need as variables",
    ),
    # -- objects from data
    Rule(
        "BJ701",
        "unpickle",
        "deny",
        "{name} makes objects, and runs code, out of data",
        "use JSON, CSV or Parquet",
    ),
    Rule(
        "BJ702",
        "yaml-objects",
        "deny",
        "{name} makes objects, and runs code, out of data",
        "use yaml.safe_load",
    ),
    # -- by the policy's own lists
    Rule(
        "BJ901",
        "name-denied",
        "deny",
        "the use of {name} is denied",
        "do without it, or remove it from [names] deny in the policy",
    ),
)

BY_NAME: dict[str, str] = {rule.name: rule.id for rule in RULES.values()}
