"""Environment: which Python and which packages a guest has; built once, kept by content.

    >>> Environment("geo", packages=["shapely>=2", "numpy"], preload=["shapely"]).packages
    ('numpy', 'shapely>=2')
    >>> Environment(extends="python", packages=["shapely>=2"]).name
    'python-with-shapely'

A built environment is a directory under the user's cache that guests see read-only at /opt/env.
Its key is made of everything that decides its content, so it never changes once it exists; the
name is only for people, and two environments of the same content share one directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from belljar.environment.build_progress import BuildProgress, Listener, Step, listening
from belljar.environment.interpreter import Interpreter, guest_python, interpreter
from belljar.environment.requirement import check_package, fingerprint, project_name, shown
from belljar.environment.store import Store
from belljar.errors import EnvironmentBuildError, InvalidOption, SandboxError, unknown_option

__all__ = [
    "BUILTIN",
    "Built",
    "Environment",
    "Interpreter",
    "Listing",
    "build",
    "builtin",
    "extended",
    "guest_python",
    "interpreter",
    "key_of",
    "list_built",
    "remove",
    "resolve",
]

LAYOUT = 2  # of the directory; a new number makes every environment be built anew
DESCRIPTION = "belljar.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Environment:
    """A description; `build` makes the directory."""

    name: str = ""  # with `extends` it may be left out
    _: KW_ONLY
    packages: Sequence[str] = ()  # PEP 508 requirements, or paths of wheels
    python: str | None = None  # a path, or a version like "3.12"; None: the one Belljar runs on
    preload: Sequence[str] = ()  # modules imported once, before any guest starts
    warmup: str = ""  # code run once after them: what libraries do at first use, guests need not
    # Building a source distribution runs its code on this host, outside any sandbox.
    allow_builds: bool = False
    # All of the above is added to what this one has, but for `python`, which replaces.
    extends: InitVar[str | Environment | None] = None

    def __post_init__(self, extends: str | Environment | None) -> None:
        if self.name == "" and extends is None:
            raise InvalidOption("an environment has a name", hint='Environment("mine", ...)')
        if self.name != "" and (not isinstance(self.name, str) or not _NAME.fullmatch(self.name)):
            raise InvalidOption(
                f"environment name {self.name!r} is not allowed",
                hint="use letters, digits, '.', '_' and '-' (at most 64, first a letter or digit)",
            )
        for field, values in (("packages", self.packages), ("preload", self.preload)):
            if isinstance(values, (str, bytes)):
                raise InvalidOption(f"{field} must be a list of strings, not {values!r}")
        if not isinstance(self.python, (str, type(None))) or self.python == "":
            raise InvalidOption(f"python must be a path or a version, not {self.python!r}")
        if not isinstance(self.warmup, str):
            raise InvalidOption(f"warmup is code as a str, not {type(self.warmup).__name__}")
        for module in self.preload:
            if not isinstance(module, str) or not _MODULE.fullmatch(module):
                raise InvalidOption(f"preload: {module!r} is not a module name")
        checked = {check_package(package) for package in self.packages}
        preload = tuple(self.preload)
        if extends is not None:
            base = resolve(extends)
            # A bare name asks for nothing more, if the base has the package in some version.
            checked -= {project_name(package) for package in base.packages}
            self._inherit(base, checked)
            checked |= set(base.packages)
            preload = tuple(dict.fromkeys((*base.preload, *preload)))
        object.__setattr__(self, "packages", tuple(sorted(checked)))
        object.__setattr__(self, "preload", preload)

    @property
    def confines_site(self) -> bool:
        """Whether no code of the packages, `.pth` files among it, runs but in confined guests."""
        return bool(self.packages) and not self.preload

    def _inherit(self, base: Environment, added: set[str]) -> None:
        inherited = {
            "name": self.name or _derived_name(base.name, added),
            "python": self.python or base.python,
            "warmup": "\n".join(filter(None, (base.warmup, self.warmup))),
            "allow_builds": self.allow_builds or base.allow_builds,
        }
        for field, value in inherited.items():
            object.__setattr__(self, field, value)


def _derived_name(base: str, added: set[str]) -> str:
    if not added:
        return base
    names = "-".join(sorted({project_name(package) for package in added}))
    return f"{base}-with-{names}"[:64]


# The first frame, its text and the first figure of a process cost a hundred times the second.
_WARMUP = """
import io, pandas, matplotlib.pyplot
frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
frame.groupby("b").sum(), frame.describe(), repr(frame), frame.to_html(), frame["a"].sum()
frame.merge(frame, on="a"), frame.sort_values("b"), pandas.date_range("2024-01-01", periods=2)
figure, axes = matplotlib.pyplot.subplots()
axes.plot([1, 2], label="a"), axes.set_title("a"), axes.legend()
figure.savefig(io.BytesIO(), format="png")
matplotlib.pyplot.close(figure)
"""

BUILTIN = MappingProxyType(
    {
        environment.name: environment
        for environment in (
            Environment(
                "python",
                preload=(
                    *("collections", "datetime", "decimal", "functools", "itertools", "json"),
                    *("linecache", "math", "random", "re", "statistics", "traceback"),
                ),
            ),
            Environment(
                "data",
                packages=(
                    *("numpy", "pandas", "polars", "pyarrow", "duckdb", "scipy", "scikit-learn"),
                    *("statsmodels", "sympy", "networkx"),
                    *("matplotlib", "seaborn", "plotly", "pillow"),
                    *("openpyxl", "xlsxwriter", "lxml", "beautifulsoup4", "pyyaml"),
                    *("requests", "httpx"),  # to be imported: a guest has no network by default
                    *("tabulate", "tqdm"),
                    "jinja2",  # for pandas' `df.style`
                    "tzdata",  # guests do not see the host's zoneinfo
                ),
                preload=("numpy", "pandas", "matplotlib", "matplotlib.pyplot"),
                warmup=_WARMUP,
            ),
        )
    }
)


def builtin(name: str) -> Environment:
    """The environment of this name that comes with Belljar."""
    if name not in BUILTIN:
        raise unknown_option("environment", name, BUILTIN)
    return BUILTIN[name]


def resolve(spec: str | Environment) -> Environment:
    """The environment meant by a description, or by a name: of one that comes with Belljar, or
    that `belljar env build` has saved."""
    if isinstance(spec, Environment):
        return spec
    if not isinstance(spec, str):
        raise InvalidOption(f"environment is a name or an Environment, not {spec!r}")
    if spec in BUILTIN:
        return BUILTIN[spec]
    from belljar.environment import saved_names  # by who uses a saved name

    return saved_names.load(spec)


def extended(environment: Environment, packages: Sequence[str]) -> Environment:
    """The environment with these packages too; itself, if it has them."""
    made = Environment(extends=environment, packages=packages)
    return environment if made.packages == environment.packages else made


@dataclass(frozen=True, kw_only=True)
class Built:
    """An environment that exists as a directory."""

    environment: Environment
    key: str
    path: Path
    interpreter: Interpreter

    def hold(self) -> int:
        """A descriptor that keeps the files, even if the environment is removed meanwhile.

        Whoever mounts the directory opens it first and closes it last; children inherit it.
        """
        return Store(self.path.parent).hold(self.path)


def key_of(environment: Environment, python: Interpreter) -> str:
    """The hash of everything that decides the content of the directory."""
    try:
        binary = os.stat(python.executable)
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot read interpreter {python.executable}: {error.strerror}"
        ) from error
    parts = [
        LAYOUT,
        sorted(fingerprint(package) for package in environment.packages),
        [python.executable, python.prefix, python.version, python.abi, os.uname().machine],
        [binary.st_mtime_ns, binary.st_size],
        ["allow_builds"] if environment.allow_builds else [],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def is_built(environment: Environment) -> bool:
    """Whether its directory is there. Blocks, but not for long."""
    key = key_of(environment, interpreter(environment.python))
    return Store.default().find(environment.name, key) is not None


def build(
    environment: str | Environment, *, progress: Listener | Literal["auto"] | None = "auto"
) -> Built:
    """The environment's directory, made now if there is none. Blocks; threads and processes may
    ask for the same one at once: one builds, the others wait.

    `progress`: "auto" shows a display on a terminal and two lines elsewhere, both on stderr.
    """
    environment = resolve(environment)
    store = Store.default()
    python = interpreter(environment.python)
    key = key_of(environment, python)
    path = store.find(environment.name, key)
    if path is None:
        try:
            path = _build(environment, python, key, store, progress)
        except OSError as error:
            if isinstance(error, SandboxError):
                raise
            raise EnvironmentBuildError(
                f"environment {environment.name!r} could not be made: {error}",
                hint="is the disk full, or read-only? BELLJAR_CACHE names another place",
            ) from error
    store.touch(path)
    return Built(environment=environment, key=key, path=path, interpreter=python)


def _build(
    environment: Environment,
    python: Interpreter,
    key: str,
    store: Store,
    progress: Listener | Literal["auto"] | None,
) -> Path:
    # Imported here: what is already built needs no installer.
    from belljar.environment.uv_build import Recipe, assemble

    name = environment.name
    if progress == "auto" and not environment.packages:
        progress = None  # a bare environment takes milliseconds
    with listening(progress) as listener:

        def say(step: Step, text: str, packages: int | None = None) -> None:
            listener(BuildProgress(environment=name, step=step, text=text, packages=packages))

        def on_wait() -> None:
            say("waiting", f"waiting for another process that is building environment {name!r}")

        with store.building(key, on_wait) as lock:
            path = store.find(name, key)
            if path is not None:
                return path
            store.sweep()
            started = time.monotonic()
            say(
                "resolving", f"building environment {name!r} ({_count(environment.packages)}), once"
            )
            with store.scratch(key) as directory, _closest(environment, python, store) as base:
                recipe = Recipe(
                    interpreter=python,
                    packages=environment.packages,
                    allow_builds=environment.allow_builds,
                    lock=lock,
                    base=base,
                )
                distributions = assemble(directory, recipe, say)
                size = _describe(directory, environment, key, python, distributions)
                path = store.publish(directory, name, key)
            took = time.monotonic() - started
            what = f"{_count(distributions)}, {size / 2**20:.1f} MiB"
            say(
                "finished",
                f"environment {name!r} built in {took:.1f} s ({what})",
                len(distributions),
            )
            return path


@contextmanager
def _closest(environment: Environment, python: Interpreter, store: Store) -> Iterator[Path | None]:
    """The built environment that has the most of these packages, and nothing else; None without.

    It is held meanwhile. The new one has the versions that it has, so what is added to an
    environment changes nothing else of it, unless it must."""
    fitting = []
    for each in list_built():
        if each.packages and set(each.packages) < set(environment.packages):
            same = replace(environment, packages=each.packages, allow_builds=False)
            if key_of(same, python) == each.key and store.find(each.name, each.key) == each.path:
                fitting.append(each)
    if not fitting:
        yield None
        return
    base = max(fitting, key=lambda each: len(each.packages)).path
    hold = store.hold(base)
    try:
        yield base
    finally:
        os.close(hold)


def _count(packages: Sequence[str] | dict[str, str]) -> str:
    return f"{len(packages)} package{'' if len(packages) == 1 else 's'}"


def _describe(
    directory: Path,
    environment: Environment,
    key: str,
    python: Interpreter,
    distributions: dict[str, str],
) -> int:
    """Write the description that guests may read (so it names no place of this host)."""
    found = (
        os.lstat(os.path.join(parent, name))
        for parent, _, files in os.walk(directory)
        for name in files
    )
    size = sum(each.st_blocks * 512 for each in found if each.st_nlink == 1)  # its own
    description = {
        "name": environment.name,
        "key": key,
        "packages": [shown(package) for package in environment.packages],
        "python": ".".join(map(str, python.version)),
        "abi": python.abi,
        "distributions": distributions,
        "created": time.time(),
        "size": size,
    }
    path = directory / DESCRIPTION
    path.write_text(json.dumps(description, indent=1) + "\n")
    path.chmod(0o644)
    return size


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One environment in the cache."""

    name: str
    key: str
    path: Path
    packages: tuple[str, ...]  # as asked for
    distributions: dict[str, str]  # as installed: name -> version
    python: str  # its version
    created: float  # seconds since the epoch, as time.time()
    last_used: float
    size: int  # bytes on disk


def list_built() -> list[Listing]:
    """The environments in the cache, the last used first."""
    store = Store.default()
    found = []
    for path in store.complete():
        try:
            text = (path / DESCRIPTION).read_text()
        except FileNotFoundError:
            continue  # removed while we looked, or nothing of ours
        described = json.loads(text)
        found.append(
            Listing(
                name=described["name"],
                key=described["key"],
                path=path,
                packages=tuple(described["packages"]),
                distributions=described["distributions"],
                python=described["python"],
                created=described["created"],
                last_used=store.last_used(path),
                size=described["size"],
            )
        )
    return sorted(found, key=lambda each: each.last_used, reverse=True)


def remove(name_or_key: str) -> int:
    """Remove every built environment of this name or key from the cache; give how many."""
    store = Store.default()
    return sum(
        store.remove(each.path)
        for each in list_built()
        if name_or_key in (each.name, each.key, each.path.name)
    )
