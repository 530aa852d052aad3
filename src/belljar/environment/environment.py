"""Environment: which Python and which packages a guest has; built once, found by its content.

    >>> Environment("geo", packages=["shapely>=2", "numpy"], preload=["shapely"]).packages
    ('numpy', 'shapely>=2')
    >>> Environment(extends="python", packages=["shapely>=2"]).name
    'python-with-shapely'

A built environment is a directory in the user's cache that guests see read-only at /opt/env. Its
key is a hash of everything that decides its content, so it never changes once it exists. The name
is only for people: two environments of the same content share one directory.

Longer than other files: the description, the two that come with Belljar, and the choice of their
Python belong together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from belljar.environment.interpreter import (
    NEWEST,
    Interpreter,
    find_interpreter,
    list_newest,
    load_interpreter,
)
from belljar.environment.requirement import (
    canonical_name,
    check_package,
    fingerprint_package,
    hide_secrets,
    project_name,
)
from belljar.environment.store import (
    Store,
    list_built,
    load_environment,
    save_environment,
    saved_environments,
    write_description,
)
from belljar.errors import EnvironmentBuildError, InvalidOption, unknown_option

if TYPE_CHECKING:
    from belljar.environment.uv_build import Listener, Step

_log = logging.getLogger("belljar.environment")
MOST_DESCRIBED = 60  # packages
LAYOUT = 2  # of the directory; a new number rebuilds every environment
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Environment:
    """A description; `build` makes the directory."""

    name: str = ""  # optional with `extends`
    _: KW_ONLY
    packages: Sequence[str] = ()  # PEP 508 requirements, or paths of wheels
    # A path, or a version like "3.12"; None: the one Belljar runs on; "newest": the newest one that
    # this host has, unless the environment is built for another one.
    python: str | None = None
    # For speed only: a guest for one piece of code, and a container that does not wait in a pool,
    # start without them.
    preload: Sequence[str] = ()  # modules imported once, before any guest starts
    warmup: str = ""  # code run once after them, so that guests skip what libraries do at first use
    # Building a source distribution runs its code on this host, outside any sandbox.
    allow_builds: bool = False
    # Cells may be written as for a notebook: `!ls`, `%time`. None: as the base says, else False.
    notebook: bool | None = None
    # The base: all of the above is added to it, except `python`, which replaces the base's.
    extends: InitVar[str | Environment | None] = None

    def __post_init__(self, extends: str | Environment | None) -> None:
        if self.name == "" and extends is None:
            raise InvalidOption("an environment needs a name", hint='Environment("mine", ...)')
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
            raise InvalidOption(f"warmup must be code as a str, not {type(self.warmup).__name__}")
        for module in self.preload:
            if not isinstance(module, str) or not _MODULE.fullmatch(module):
                raise InvalidOption(f"preload: {module!r} is not a module name")
        checked = {check_package(package) for package in self.packages}
        preload = tuple(self.preload)
        if extends is not None:
            base = resolve(extends)
            # A bare name adds nothing if the base has some version of the package.
            checked -= {project_name(package) for package in base.packages}
            self._inherit(base, checked)
            checked |= set(base.packages)
            preload = tuple(dict.fromkeys((*base.preload, *preload)))
        object.__setattr__(self, "packages", tuple(sorted(checked)))
        object.__setattr__(self, "preload", preload)
        if self.notebook not in (True, False, None):
            raise InvalidOption(f"notebook must be True, False or None, not {self.notebook!r}")
        object.__setattr__(self, "notebook", bool(self.notebook))

    @property
    def confines_site(self) -> bool:
        """True if code of the packages, including `.pth` files, runs only in confined guests."""
        return bool(self.packages) and not self.preload

    def without_preload(self) -> Environment:
        """The same packages; code imports what it needs."""
        return replace(self, preload=(), warmup="")

    def describe(self, *, versions: bool = True) -> str:
        """What a prompt should say of it: the version of Python, and the packages, with their
        versions if it is built. Blocks for a short time.

        >>> Environment("text", packages=["humanize>=4"]).describe(versions=False)
        'Python with the standard library and the packages humanize'
        """
        python, installed = "Python", dict[str, str]()
        if versions:
            interpreter = choose_interpreter(self)
            python, key = f"Python {interpreter.short_version}", compute_key(self, interpreter)
            for built in list_built():
                if built.key == key:
                    found = built.distributions.items()
                    installed = {canonical_name(name): version for name, version in found}
        names = [project_name(package) for package in self.packages]
        shown = [" ".join(filter(None, (name, installed.get(name)))) for name in names]
        if (more := len(shown) - MOST_DESCRIBED) > 0:
            shown[MOST_DESCRIBED:] = [f"{more} more"]
        packages = f" and the packages {', '.join(shown)}" if shown else ""
        return f"{python} with the standard library{packages}"

    def _inherit(self, base: Environment, added: set[str]) -> None:
        inherited = {
            "name": self.name or _derived_name(base.name, added),
            "python": self.python or base.python,
            "warmup": "\n".join(filter(None, (base.warmup, self.warmup))),
            "allow_builds": self.allow_builds or base.allow_builds,
            "notebook": base.notebook if self.notebook is None else self.notebook,
        }
        for field, value in inherited.items():
            object.__setattr__(self, field, value)


def _derived_name(base: str, added: set[str]) -> str:
    if not added:
        return base
    names = "-".join(sorted({project_name(package) for package in added}))
    return f"{base}-with-{names}"[:64]


# The first frame, its repr and the first figure of a process take a hundred times as long as the
# second. `scripts/bench warmup` chose it: a statement is here if it saves work over a corpus of
# cells. The figure comes first, because it leaves holes in memory that the others fill.
_WARMUP = """
import asyncio, dataclasses, io, statistics, traceback
import matplotlib.pyplot, numpy, pandas
figure, axes = matplotlib.pyplot.subplots()
axes.plot([1, 2], label="a"), axes.set_title("a"), axes.legend()
figure.savefig(io.BytesIO(), format="png")
matplotlib.pyplot.close(figure)
numpy.linalg.solve(numpy.eye(2), numpy.ones(2))
frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
repr(frame), frame.to_html(), frame.describe(), frame.groupby("b").sum(), frame["a"].sum()
frame.merge(frame, on="a"), frame.sort_values("b"), frame["b"].str.upper().value_counts()
frame["d"] = pandas.date_range("2024-01-01", periods=2)
frame["d"].dt.year, pandas.concat([frame, frame]), frame[frame["a"] > 1], frame.isna().sum()
try:
    frame["e"]
except KeyError:
    traceback.format_exc()
asyncio.run(asyncio.sleep(0))
"""

BUILTIN = MappingProxyType(
    {
        environment.name: environment
        for environment in (
            Environment(
                "python",
                preload=(
                    *("asyncio", "collections", "datetime", "decimal", "functools", "itertools"),
                    *("json", "linecache", "math", "random", "re", "statistics", "traceback"),
                ),
            ),
            Environment(
                "data",
                packages=(
                    *("numpy", "pandas", "polars", "pyarrow", "duckdb", "scipy", "scikit-learn"),
                    *("statsmodels", "sympy", "networkx"),
                    *("matplotlib", "seaborn", "plotly", "pillow"),
                    *("openpyxl", "xlsxwriter", "lxml", "beautifulsoup4", "pyyaml"),
                    *("requests", "httpx"),  # so that imports work; by default there is no network
                    *("tabulate", "tqdm"),
                    "jinja2",  # for pandas' `df.style`
                    "tzdata",  # guests do not see the host's zoneinfo
                ),
                python=NEWEST,  # from 3.12 on a guest copies half as much memory
                preload=("asyncio", "numpy", "pandas", "matplotlib", "matplotlib.pyplot"),
                warmup=_WARMUP,
                notebook=True,
            ),
        )
    }
)


def resolve(spec: str | Environment) -> Environment:
    """The environment itself, or the one that a name means: one that comes with Belljar, or one
    that `belljar env build` saved."""
    if isinstance(spec, Environment):
        return spec
    if not isinstance(spec, str):
        raise InvalidOption(f"environment is a name or an Environment, not {spec!r}")
    if spec in BUILTIN:
        return BUILTIN[spec]
    if "=" in spec:
        raise InvalidOption(
            f"{spec!r} is not the name of an environment",
            hint="it selects the packages; variables are set with env={...}, on the command line "
            f"with --set-env {spec}",
        )
    path = saved_environments().get(spec)
    if path is None:
        if any(each.name == spec for each in list_built()):
            raise InvalidOption(
                f"the environment {spec!r} was made in Python, so its description is not saved",
                hint=f"pass the Environment itself, or save it by: belljar env build {spec} "
                "--packages ...",
            )
        raise unknown_option("environment", spec, known_names())
    try:
        return Environment(**load_environment(path))
    except (OSError, ValueError, TypeError) as error:
        raise EnvironmentBuildError(
            f"cannot read the description of the environment in {path}: {error}",
            hint=f"save it again: belljar env build {path.stem} --packages ...",
        ) from error


def known_names() -> list[str]:
    """The names that `resolve` takes."""
    return list(dict.fromkeys((*BUILTIN, *saved_environments())))


def save(environment: Environment) -> None:
    """Let `resolve` find the environment by its name from now on."""
    save_environment(environment.name, asdict(environment))


def add_packages(environment: Environment, packages: Sequence[str]) -> Environment:
    """The environment with these packages too; the same object if it has them."""
    if packages == ():  # of every ordinary sandbox
        return environment
    extended = Environment(extends=environment, packages=packages)
    return environment if extended.packages == environment.packages else extended


@dataclass(frozen=True, kw_only=True)
class Built:
    """An environment that exists as a directory."""

    environment: Environment
    key: str
    path: Path
    interpreter: Interpreter

    def hold(self) -> int:
        """A descriptor that keeps the files, even if the environment is removed meanwhile.

        A process that mounts the directory opens it first and closes it last; children inherit it.
        """
        return Store(self.path.parent).hold(self.path)


def compute_key(environment: Environment, python: Interpreter) -> str:
    """The hash of everything that decides the directory's content."""
    try:
        binary = os.stat(python.executable)
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot read interpreter {python.executable}: {error.strerror}"
        ) from error
    parts = [
        LAYOUT,
        sorted(fingerprint_package(package) for package in environment.packages),
        [python.executable, python.prefix, python.version, python.abi, os.uname().machine],
        [binary.st_mtime_ns, binary.st_size],
        ["allow_builds"] if environment.allow_builds else [],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def is_built(environment: Environment) -> bool:
    """True if its directory exists. Blocks for a short time."""
    key = compute_key(environment, choose_interpreter(environment))
    return Store.default().find(environment.name, key) is not None


def build(
    environment: str | Environment, *, progress: Listener | Literal["auto"] | None = "auto"
) -> Built:
    """Return the environment's directory; build it first if it is missing. Blocks. Threads and
    processes may ask for the same one at once: one builds it, the others wait.

    `progress`: "auto" shows a display on a terminal and two lines elsewhere, both on stderr.
    """
    environment = resolve(environment)
    python = choose_interpreter(environment)
    while True:
        try:
            return _find_or_build(environment, python, progress)
        except EnvironmentBuildError as error:
            python = _choose_older(environment, python, error)


def choose_interpreter(environment: Environment) -> Interpreter:
    """The one that guests of the environment have. Blocks for a short time.

    For "newest": what is built keeps its interpreter, and so does what adds packages to it. A newer
    Python on the host causes no build that the user has not asked for."""
    if environment.python != NEWEST:
        return find_interpreter(environment.python)
    store, running = Store.default(), find_interpreter(None)
    known = [load_interpreter(fields) for fields in store.list_interpreters()]
    newer = {each for each in known if each.version[:2] > running.version[:2] and _exists(each)}
    usable = (*sorted(newer, key=lambda each: each.version, reverse=True), running)
    for python in usable:
        if store.find(environment.name, compute_key(environment, python)) is not None:
            return python
    for python in usable:
        if _find_base(environment, python, store) is not None:
            return python
    return find_interpreter(NEWEST)


def _exists(python: Interpreter) -> bool:
    return os.access(python.executable, os.X_OK)


def _choose_older(
    environment: Environment, python: Interpreter, error: EnvironmentBuildError
) -> Interpreter:
    """The next interpreter to try, if packages are not made for this one yet; else raise."""
    older = [each for each in list_newest() if each.version < python.version]
    if environment.python != NEWEST or not older or not _NOT_FOR_THIS_PYTHON.search(error.message):
        raise error
    _log.warning(
        "environment %r has a package without a wheel for Python %s; trying Python %s",
        environment.name,
        python.short_version,
        older[0].short_version,
    )
    return older[0]


# What uv says of packages that another version of Python may have.
_NOT_FOR_THIS_PYTHON = re.compile(r"no usable wheels|has no wheels|does not satisfy Python")


def _find_or_build(
    environment: Environment, python: Interpreter, progress: Listener | Literal["auto"] | None
) -> Built:
    store = Store.default()
    key = compute_key(environment, python)
    path = store.find(environment.name, key)
    if path is None:
        try:
            path = _build(environment, python, key, store, progress)
        except OSError as error:
            raise EnvironmentBuildError(
                f"environment {environment.name!r} could not be built: {error}",
                hint="is the disk full or read-only? BELLJAR_CACHE sets another directory",
            ) from error
    store.touch(path)
    if environment.python == NEWEST and python != find_interpreter(None):
        store.note_interpreter(path, asdict(python))
    return Built(environment=environment, key=key, path=path, interpreter=python)


def _build(
    environment: Environment,
    python: Interpreter,
    key: str,
    store: Store,
    progress: Listener | Literal["auto"] | None,
) -> Path:
    # Imported here: an environment that is built needs no installer.
    from belljar.environment.uv_build import BuildProgress, Recipe, fill_directory, open_listener

    name = environment.name
    if progress == "auto" and not environment.packages:
        progress = None  # without packages it takes milliseconds
    with open_listener(progress) as listener:

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
            count = _count_packages(environment.packages)
            say("resolving", f"building environment {name!r} ({count}), once")
            with store.scratch(key) as directory, _base(environment, python, store) as base:
                recipe = Recipe(
                    interpreter=python,
                    packages=environment.packages,
                    allow_builds=environment.allow_builds,
                    lock=lock,
                    base=base,
                )
                distributions = fill_directory(directory, recipe, say)
                description = {
                    "name": name,
                    "key": key,
                    "packages": [hide_secrets(package) for package in environment.packages],
                    "python": ".".join(map(str, python.version)),
                    "abi": python.abi,
                    "distributions": distributions,
                }
                size = write_description(directory, description)
                path = store.publish(directory, name, key)
            took = time.monotonic() - started
            what = f"{_count_packages(distributions)}, {size / 2**20:.1f} MiB"
            what += f", Python {python.short_version}"
            text = f"environment {name!r} built in {took:.1f} s ({what})"
            say("finished", text, len(distributions))
            return path


def _find_base(environment: Environment, python: Interpreter, store: Store) -> Path | None:
    """The built environment that has most of these packages and no others; or None.

    A new environment takes over its versions, so that adding a package changes no other version
    unless it must."""
    fitting = []
    for each in list_built():
        if each.packages and set(each.packages) < set(environment.packages):
            same = replace(environment, packages=each.packages, allow_builds=False)
            key = compute_key(same, python)
            if key == each.key and store.find(each.name, key) == each.path:
                fitting.append(each)
    return max(fitting, key=lambda each: len(each.packages)).path if fitting else None


@contextmanager
def _base(environment: Environment, python: Interpreter, store: Store) -> Iterator[Path | None]:
    """What `_find_base` finds, held meanwhile."""
    base = _find_base(environment, python, store)
    if base is None:
        yield None
        return
    hold = store.hold(base)
    try:
        yield base
    finally:
        os.close(hold)


def _count_packages(packages: Sequence[str] | dict[str, str]) -> str:
    return f"{len(packages)} package{'' if len(packages) == 1 else 's'}"


def remove(name_or_key: str) -> int:
    """Remove every built environment of this name or key from the cache; return their number."""
    store = Store.default()
    return sum(
        store.remove(each.path)
        for each in list_built()
        if name_or_key in (each.name, each.key, each.path.name)
    )
