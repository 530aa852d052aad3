"""What `import belljar` offers, and what it does not do."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import typing
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest

import belljar
from belljar.sandbox.guest_session import GuestSession

PUBLIC = [
    "AsyncPool",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxManager",
    "AsyncShell",
    "BackendUnavailable",
    "Call",
    "CannotTravel",
    "Chart",
    "ChartType",
    "Checkpoint",
    "CheckpointLost",
    "Chunk",
    "CommandResult",
    "Context",
    "Docker",
    "EndEvent",
    "Environment",
    "EnvironmentBuildError",
    "ErrorInfo",
    "Execution",
    "ExecutionError",
    "ExecutionOutOfMemory",
    "ExecutionTimeout",
    "FileChanges",
    "FileError",
    "FileEvent",
    "FileExists",
    "FileInfo",
    "FileMissing",
    "Forward",
    "GuestLost",
    "HostFunction",
    "InvalidOption",
    "IsADirectory",
    "Isolation",
    "Layer",
    "LimitNotEnforceable",
    "Limits",
    "Location",
    "Logs",
    "ManagerClosed",
    "ManagerFull",
    "ManagerStats",
    "Mount",
    "NameMissing",
    "NameTaken",
    "NotADirectory",
    "Outcome",
    "OutputEvent",
    "PermissionDenied",
    "Policy",
    "Pool",
    "PoolClosed",
    "PoolFull",
    "PoolStats",
    "Process",
    "ProcessInfo",
    "ProtocolError",
    "QuotaExceeded",
    "Replay",
    "Result",
    "ResultEvent",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "SandboxManager",
    "SandboxMissing",
    "SandboxPaused",
    "Shell",
    "Snippet",
    "StartError",
    "StreamEvent",
    "Transfer",
    "Usage",
    "UsageSample",
    "__version__",
    "replay",
    "run",
]
PACKAGE = Path(belljar.__file__).parent


def test_the_public_names_are_these():
    """A name that comes or goes is a decision: change this list with it."""
    assert sorted(belljar.__all__) == sorted(PUBLIC)


def test_every_public_name_is_there_and_says_what_it_is():
    for name in PUBLIC:
        assert getattr(belljar, name).__doc__, name


def find_classes(hint):
    """The classes of belljar in an annotation."""
    if isinstance(hint, type) and hint.__module__.startswith("belljar"):
        return {hint}
    return {each for part in typing.get_args(hint) for each in find_classes(part)}


def read_hints(given, names):
    while True:
        try:
            return typing.get_type_hints(given, None, names)
        except NameError as error:  # private, and imported for type checkers alone
            names[error.name] = object


def find_given_back(cls):
    """What methods, properties and fields of a class give, and what those give in turn."""
    names = {name: getattr(belljar, name) for name in PUBLIC}
    names |= {"Report": belljar.policy.Report}
    found, todo = set(), [cls]
    while todo:
        one = todo.pop()
        hints = [*read_hints(one, names).items()]
        for name, member in vars(one).items():
            function = getattr(member, "fget", None) or getattr(member, "func", None) or member
            if inspect.isfunction(function):
                hints.append((name, read_hints(function, names).get("return")))
        public = [hint for name, hint in hints if name[0] != "_" or name == "__next__"]
        new = {each for hint in public for each in find_classes(hint)} - found
        todo += new
        found |= new
    return found


@pytest.mark.parametrize("name", ["Sandbox", "Pool", "SandboxManager", "Replay"])
def test_what_a_user_gets_back_is_on_a_page_of_the_reference(name):
    pages = PACKAGE.parent.parent / "docs/reference/api"
    text = "\n".join(page.read_text() for page in pages.glob("*.md") if page.stem != "compat")
    told = set()
    for path in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        module, _, last = path.rpartition(".")
        told.add(getattr(importlib.import_module(module), last))
    told.add(GuestSession)  # a Checkpoint refers to it, for the sandbox alone
    assert find_given_back(getattr(belljar, name)) - told == set()


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Sandbx"):
        belljar.Sandbx  # noqa: B018


def test_completion_offers_the_public_names():
    assert set(PUBLIC) <= set(dir(belljar))


def test_every_name_is_the_one_that_type_checkers_see():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("belljar")
        for alias in node.names
    }
    assert sorted([*seen, "__version__"]) == sorted(PUBLIC)
    for name, module in seen.items():
        assert getattr(belljar, name) is getattr(importlib.import_module(module), name)


# Import paths of documents, and where they lead: from a new interpreter, each by itself.
PATHS = {
    "from belljar import functions, sessions": "functions.stubs, sessions.remove",
    "from belljar.chart import Bar": "Bar",
    "import belljar.execution": "belljar.execution.Execution, belljar.execution.printable",
    "from belljar.export import render": "render",
    "from belljar.environment import Environment, build": "Environment, build",
    "from belljar.functions import HostFunction, stubs": "HostFunction, stubs",
    "from belljar.observe.audit import verify": "verify",
    "from belljar.record import read": "read",
}


@pytest.mark.parametrize("statement", PATHS)
def test_import_paths_of_documents_stay(statement):
    code = f"{statement}\nprint({PATHS[statement]})"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_a_module_is_the_same_by_its_old_path():
    assert importlib.import_module("belljar.chart").Chart is belljar.Chart
    assert importlib.import_module("belljar.chart").__name__ == "belljar.results.chart"


def test_every_error_of_ours_has_one_root():
    for name in PUBLIC:
        value = getattr(belljar, name)
        if isinstance(value, type) and issubclass(value, BaseException):
            assert issubclass(value, belljar.SandboxError), name


def test_the_version_is_that_of_the_installed_package():
    assert belljar.__version__ == metadata.version("belljar")


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def imported(*flags):
    """What happens in a new interpreter while it imports all of belljar's names."""
    program = """
        import json, sys, threading, time
        events = []
        WATCHED = ("subprocess.", "os.fork", "os.posix_spawn", "os.exec", "os.system", "socket.",
                   "os.mkdir", "os.remove", "os.rename", "_thread.start_new", "ctypes.dlopen")
        def hook(event, args):
            if event.startswith(WATCHED):
                events.append(event)
            if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
                events.append(f"open {args[0]} {args[1]}")
        sys.dont_write_bytecode = True
        before = time.process_time()
        import asyncio, http.client, ssl, unittest.mock, xml.dom.minidom
        yardstick = time.process_time() - before
        sys.addaudithook(hook)
        before = time.process_time()
        import belljar
        for name in belljar.__all__:
            getattr(belljar, name)
        took = time.process_time() - before
        print(json.dumps({"events": events, "threads": threading.active_count(), "took": took,
                          "yardstick": yardstick, "modules": sorted(sys.modules)}))
    """
    command = [sys.executable, *flags, "-c", dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_importing_starts_nothing_and_writes_nothing():
    seen = imported("-W", "error")
    assert seen["events"] == []
    assert seen["threads"] == 1


def test_importing_is_fast():
    """In processor time, and against modules of Python: other settings run beside it."""
    seen = [imported() for _ in range(5)]
    assert min(each["took"] for each in seen) < 10 * min(each["yardstick"] for each in seen)


def test_importing_does_not_pull_in_what_most_programs_do_not_need():
    heavy = {"numpy", "pandas", "rich", "trio", "multiprocessing", "tkinter", "belljar.cli"}
    assert heavy.isdisjoint(imported()["modules"])
