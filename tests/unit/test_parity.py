"""Sandbox and AsyncSandbox: the same names, the same signatures, one awaited."""

import inspect
import typing

import pytest

from belljar import AsyncSandbox, Sandbox, run
from belljar.files.api import AsyncFiles
from belljar.sandbox.blocking import Commands, Contexts, Files, Process
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.contexts import AsyncContexts
from belljar.sandbox.options import DEFAULTS, SandboxOptions
from belljar.sandbox.process import AsyncProcess

PAIRS = [
    (Sandbox, AsyncSandbox),
    (Files, AsyncFiles),
    (Commands, AsyncCommands),
    (Process, AsyncProcess),
    (Contexts, AsyncContexts),
]
# What the parts of AsyncSandbox use among each other; nobody else is meant to.
INTERNAL = {
    "engaged",
    "last_used",
    "call",
    "root",
    "find",
    "check_alone",
    "running",
    "dial",
}

PLAIN = {"stream", "describe"}  # functions that neither block nor are awaited

# Written here and not derived, so that a name that vanishes from both is missed.
PROMISED = {
    Sandbox: [
        "create",
        "run_code",
        "stream",
        "describe",
        "put",
        "set",
        "get",
        "expose",
        "expose_all",
        "unexpose",
        "functions",
        "checkpoint",
        "rollback",
        "release",
        "fork",
        "interrupt",
        "pause",
        "resume",
        "paused",
        "restart",
        "kill",
        "close",
        "id",
        "metadata",
        "limits",
        "environment",
        "isolation",
        "workdir",
        "policy",
        "alive",
        "whereabouts",
        "usage",
        "start",
        "commands",
        "files",
        "ports",
        "contexts",
    ],
    Contexts: ["create", "list", "restart", "remove"],
    Files: [
        "read",
        "write",
        "list",
        "exists",
        "stat",
        "make_dir",
        "remove",
        "rename",
        "upload",
        "download",
        "realpath",
        "watch",
        "export_tar",
        "import_tar",
    ],
    Commands: ["run", "start", "connect", "list"],
    Process: [
        *("pid", "info", "returncode", "skipped", "read", "output", "wait", "detach", "send"),
        *("close_stdin", "signal", "kill", "resize"),
    ],
}


def public(cls):
    names = {name for name in dir(cls) if not name.startswith("_")}
    return names - INTERNAL


def instance_names(cls):
    return {name for name in vars(cls()) if not name.startswith("_")} - INTERNAL


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_have_the_same_names(blocking, awaited):
    assert public(blocking) == public(awaited)


def test_instances_have_no_public_names_beyond_those_of_the_class():
    assert instance_names(Sandbox) == instance_names(AsyncSandbox) == set()


@pytest.mark.parametrize("cls", PROMISED)
def test_everything_promised_is_there(cls):
    assert public(cls) == set(PROMISED[cls])


def methods():
    for blocking, awaited in PAIRS:
        for name in sorted(public(blocking) | {"__init__"}):
            if callable(getattr(blocking, name)):
                yield pytest.param(blocking, awaited, name, id=f"{blocking.__name__}.{name}")


@pytest.mark.parametrize(("blocking", "awaited", "name"), list(methods()))
def test_signatures_and_documentation_are_the_same(blocking, awaited, name):
    ours, theirs = getattr(blocking, name), getattr(awaited, name)
    ours, theirs = inspect.unwrap(ours), inspect.unwrap(theirs)
    if name != "__init__":
        # What the one returns is the blocking kind of what the other returns.
        shown = str(inspect.signature(theirs)).replace("-> 'Async", "-> '")
        assert str(inspect.signature(ours)) == shown
        assert ours.__doc__ == theirs.__doc__
    else:
        given, wanted = (inspect.signature(f).parameters for f in (ours, theirs))
        if blocking is Sandbox:
            assert dict(given) == dict(wanted)


@pytest.mark.parametrize(
    "function", [Sandbox.__init__, Sandbox.create, AsyncSandbox.__init__, AsyncSandbox.create, run]
)
def test_signatures_show_each_option_with_type_and_default(function):
    shown = inspect.signature(function).parameters
    annotations = SandboxOptions.__annotations__
    assert [name for name in shown if name in annotations] == list(annotations)
    for name, annotation in annotations.items():
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].annotation == annotation.__forward_arg__
        assert shown[name].default == DEFAULTS[name]
    assert shown["workdir"].default == "/workspace"
    assert not {"given", "unnamed"} & set(shown)


def test_run_has_the_options_of_run_code_too():
    wanted = set(inspect.signature(Sandbox.run_code).parameters) - {"self"}
    assert wanted <= set(inspect.signature(run).parameters)


@pytest.mark.parametrize(("blocking", "awaited", "name"), list(methods()))
def test_exactly_one_of_the_two_is_awaited(blocking, awaited, name):
    if name == "__init__" or name in PLAIN:
        return
    assert not inspect.iscoroutinefunction(getattr(blocking, name))
    assert inspect.iscoroutinefunction(getattr(awaited, name))


def test_overloads_of_files_read_are_the_same():
    ours, theirs = typing.get_overloads(Files.read), typing.get_overloads(AsyncFiles.read)
    assert [inspect.signature(f) for f in ours] == [inspect.signature(f) for f in theirs]
    assert len(ours) == 2


def test_plain_facts_are_properties_of_both():
    for name in ("id", "metadata", "limits", "environment", "isolation"):
        assert isinstance(getattr(Sandbox, name), property)
        assert isinstance(getattr(AsyncSandbox, name), property)
        assert getattr(Sandbox, name).__doc__ == getattr(AsyncSandbox, name).__doc__


def test_both_are_context_managers_of_their_kind():
    assert {"__enter__", "__exit__"} <= set(dir(Sandbox))
    assert {"__aenter__", "__aexit__"} <= set(dir(AsyncSandbox))
