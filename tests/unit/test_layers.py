"""Imports go one way through the packages, and the tree keeps its shape."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import belljar

PACKAGE = Path(belljar.__file__).parent
# From the top down. A package imports those below its own line, and not its neighbours there.
LAYERS = [
    {"cli"},
    {"conformance", "compat"},
    {"config"},
    {"observe"},
    {"pool"},
    {"sandbox"},
    {"runtime"},
    {"record"},
    {"files", "functions", "policy", "results"},
    {"backends"},
    {"environment"},
    {"protocol"},
    {"events"},
    {"limits"},
    {"errors", "text"},
]
RANK = {name: rank for rank, names in enumerate(reversed(LAYERS)) for name in names}
# What runs inside a guest is sent there with `protocol`, and with the one file that has ctypes.
INSIDE = {"guest", "protocol"}
CTYPES = "belljar.backends.linux.syscalls"
# They become init and worker by a fork.
ZYGOTE = {"belljar.backends.native.zygote", "belljar.backends.native.preloader"}
# Within backends: these import neither each other nor, in the case of linux, the other two.
BACKENDS = {"linux": {"native", "docker"}, "native": {"docker"}, "docker": {"native"}}
MODULES = {
    ".".join(("belljar", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
    if "escapes" not in path.parts
}


def imports(name: str, path: Path) -> set[str]:
    """The modules that a module imports when it runs; not what only type checkers see."""
    tree = ast.parse(path.read_text())
    checking = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if node in checking:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            source = ".".join([*(parts if node.level else []), *filter(None, [node.module])])
            full = {f"{source}.{alias.name}" for alias in node.names}
            found |= {each if each in MODULES else source for each in full}
    return {each for each in found if each.startswith("belljar.")}


def area(module: str) -> str:
    return module.split(".")[1]


def is_wrong(module: str, target: str) -> bool:
    above, below = area(module), area(target)
    if above == below == "backends":
        inner, other = (f"{each}..".split(".")[2] for each in (module, target))
        return other in BACKENDS.get(inner, ())
    if above == below or above == "__main__":
        return False
    if above == "guest":
        return below != "protocol" and target != CTYPES
    if below == "guest":  # the host sends these files, and never runs them
        return module not in ZYGOTE
    return RANK[below] >= RANK[above]


EDGES = {
    (module, target)
    for module, path in MODULES.items()
    if module != "belljar"
    for target in imports(module, path)
}


def test_imports_go_one_way():
    assert sorted(edge for edge in EDGES if is_wrong(*edge)) == []


def test_no_module_imports_itself_by_a_detour():
    graph: dict[str, set[str]] = {}
    for module, target in EDGES:
        graph.setdefault(module, set()).add(target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


@pytest.mark.parametrize("name", sorted(INSIDE))
def test_what_runs_inside_imports_the_standard_library_alone(name):
    for path in (PACKAGE / name).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert not node.module.startswith("belljar"), f"{path.name}: relative, please"


def test_every_package_has_its_layer():
    inside = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert inside - {"__init__", "__main__", "__pycache__"} == RANK.keys() | {"guest"}


def test_the_top_is_small():
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 24


def test_base_names_are_few():
    counts = Counter(path.stem for path in MODULES.values() if path.name != "__init__.py")
    assert {name: count for name, count in counts.items() if count > 2} == {}


def test_files_are_short():
    long = {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in MODULES.values()
    }
    assert len({name for name, lines in long.items() if lines > 400}) <= 5, long


def test_modules_are_few():
    assert len(MODULES) <= 310
