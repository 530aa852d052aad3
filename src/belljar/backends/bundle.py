"""The guest's program, to be sent to the other side.

A bundle is its modules by name, as sources and compiled: another Python than ours cannot read the
latter, and compiling takes a tenth of a second. So what each Python of this host has compiled is
kept in the cache. The other side needs nothing but a Python: `BOOTSTRAP` reads the bundle and makes
its modules importable. Their file names start with `<belljar>`, by which tracebacks know what not
to show.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.abc
import importlib.util
import json
import logging
import marshal
import os
import subprocess
import tempfile
import types
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from belljar.environment import store

log = logging.getLogger("belljar")

PACKAGE = "_belljar"  # so that it can never be mistaken for the library itself

# Packages that are sent whole, and modules of the host's packages that run on the other side too.
_WHOLE = ("protocol", "guest")
_NATIVE = ("rootfs", "launcher", "confine", "shared_pages", "preloader", "zygote")
_MODULES = ("backends.linux.syscalls", *(f"backends.native.{name}" for name in _NATIVE))

# Not one byte more than the bundle: on a container's standard input, what follows are frames.
_READ = """
import sys
if sys.version_info < (3, 9):
    sys.exit("belljar: this is Python %d.%d, and 3.9 is needed" % sys.version_info[:2])
sys.path[:] = [path for path in sys.path if path]
import importlib.util, json, os
fd, entry = int(sys.argv[1]), sys.argv[2]
def take(size):
    parts = []
    while size:
        parts.append(os.read(fd, min(size, 1 << 20)))
        if not parts[-1]:
            sys.exit(0)
        size -= len(parts[-1])
    return b"".join(parts)
sizes = take(32)
bundle, *compiled, sources = [take(int(sizes[at:at + 8], 16)) for at in (0, 8, 16, 24)]
bundle = json.loads(bundle)
magic = importlib.util.MAGIC_NUMBER.hex()
compiled = [code for code, its in zip(compiled, bundle["magics"]) if code and its == magic]
if compiled:
    import marshal
    bundle["sources"] = marshal.loads(compiled[0])
else:
    bundle["sources"] = json.loads(sources)
del compiled, sources
"""

_START = """
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        import importlib.util
        if name in bundle["sources"]:
            package = bundle["sources"][name] is None
            return importlib.util.spec_from_loader(name, Finder, is_package=package)
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        source = bundle["sources"][module.__name__]
        if source is not None:
            if type(source) is str:
                file = "<belljar>/" + module.__name__.replace(".", "/") + ".py"
                source = compile(source, file, "exec", dont_inherit=True)
            exec(source, module.__dict__)
sys.meta_path.append(Finder)
import importlib
importlib.import_module(entry).main({**bundle.pop("config"), "bundle": fd})
"""

# Run with `python -c`: argv is the descriptor of a bundle, and the module whose main() to call.
BOOTSTRAP = _READ + _START


@functools.cache
def _modules() -> dict[str, str | None]:
    """Module name -> the name of its file below that of this package; None for a package."""
    found: dict[str, str | None] = {PACKAGE: None}
    root = resources.files("belljar")
    whole = [
        f"{package}.{file.name.removesuffix('.py')}"
        for package in _WHOLE
        for file in root.joinpath(package).iterdir()
        if file.name.endswith(".py") and file.name != "__init__.py"
    ]
    for module in sorted([*whole, *_MODULES]):
        parts = module.split(".")
        for depth in range(1, len(parts)):
            found[".".join((PACKAGE, *parts[:depth]))] = None
        found[f"{PACKAGE}.{module}"] = f"{'/'.join(parts)}.py"
    return found


@functools.cache
def sources() -> dict[str, str | None]:
    """Module name -> source; None for a package."""
    root = resources.files("belljar")
    return {
        name: None if file is None else root.joinpath(file).read_text(encoding="utf-8")
        for name, file in _modules().items()
    }


MAGIC = importlib.util.MAGIC_NUMBER.hex()  # of the bytecode that this Python writes
MAGIC_SIZE = 4  # bytes


def make(config: dict[str, object], magic: str | None = None, other: bytes = b"") -> bytes:
    """For BOOTSTRAP: four lengths of eight hexadecimal digits each, then the four parts.

    `magic`: of the one Python there, "" if it is unknown; then the modules go in one form only.
    `other`: what `compile_with` made for the second Python that reads this, so that it needs no
    sources.
    """
    theirs, code_of_other = other[:MAGIC_SIZE].hex(), other[MAGIC_SIZE:]
    head = json.dumps({"magics": [MAGIC, theirs], "config": config}).encode()
    code = _compiled() if magic in (None, MAGIC) else b""
    text = b"" if magic == MAGIC or other else json.dumps(sources()).encode()
    parts = head, code, code_of_other, text
    return b"".join([*(b"%08x" % len(part) for part in parts), *parts])


# Run by another Python.
_COMPILER = """
import importlib.util, json, marshal, sys
def compiled(name, text):
    file = "<belljar>/" + name.replace(".", "/") + ".py"
    return text and compile(text, file, "exec", dont_inherit=True)
found = {name: compiled(name, text) for name, text in json.load(sys.stdin).items()}
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + marshal.dumps(found))
"""


def compile_with(executable: str) -> bytes:
    """The modules as another Python of this host compiles them, after its magic number; b"" if it
    cannot. Takes a moment the first time."""
    text = json.dumps(sources()).encode()

    def run() -> bytes:
        command = [executable, "-I", "-S", "-c", _COMPILER]
        return subprocess.run(
            command, input=text, capture_output=True, check=True, timeout=60
        ).stdout

    try:
        status = os.stat(executable)
        version = hashlib.sha256(text + f"{status.st_mtime_ns} {status.st_size}".encode())
        name = hashlib.sha256(executable.encode()).hexdigest()[:16]
        return _load_or_make(f"bundles/{name}", version.digest(), run)
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s does not compile the guest's program: %s", executable, error)
        return b""


def _load_or_make(name: str, version: bytes, make: Callable[[], bytes]) -> bytes:
    """The content of a file of the cache, made if the file is missing or of another version. A
    cache that another user may write to, or this one may not, is not used."""
    path = store.cache_root() / name
    try:
        with open(path, "rb") as file:
            if not store.is_foreign(os.fstat(file.fileno())):
                content = file.read()
                if content.startswith(version):
                    return content[len(version) :]
    except OSError as error:
        log.debug("%s cannot be read: %s", path, error)
    made = make()
    try:
        store.make_directory(path.parent, store.CACHE_MODE)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as new:
            new.write(version + made)
            os.fchmod(new.fileno(), 0o644)
        os.replace(new.name, path)
    except OSError as error:
        log.debug("%s cannot be written: %s", path, error)
    return made


@functools.cache
def _compiled() -> bytes:
    root = resources.files("belljar")
    if not isinstance(root, Path):  # in an archive
        return _compile()
    stamps = [os.stat(root / file) for file in _modules().values() if file is not None]
    seen = [MAGIC, str(root), *_modules(), *((each.st_mtime_ns, each.st_size) for each in stamps)]
    name = hashlib.sha256(f"{MAGIC} {root}".encode()).hexdigest()[:16]
    return _load_or_make(f"bundles/{name}", hashlib.sha256(repr(seen).encode()).digest(), _compile)


def _compile() -> bytes:
    found = {name: None if file is None else _code(name) for name, file in _modules().items()}
    return marshal.dumps(found)


def _code(name: str) -> types.CodeType:
    """As our own interpreter has it, which keeps it compiled."""
    ours = name.replace(PACKAGE, "belljar", 1)
    spec = importlib.util.find_spec(ours)
    assert spec is not None
    assert isinstance(spec.loader, importlib.abc.InspectLoader)
    code = spec.loader.get_code(ours)
    assert code is not None
    return _in_file(code, f"<belljar>/{name.replace('.', '/')}.py")


def _in_file(code: types.CodeType, file: str) -> types.CodeType:
    constants = tuple(
        _in_file(each, file) if isinstance(each, types.CodeType) else each
        for each in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=constants)
