"""Inline script metadata (PEP 723): the packages and the Python that a file asks for.

    # /// script
    # requires-python = ">=3.11"
    # dependencies = ["geopandas", "shapely>=2"]
    # ///

The file is not trusted. So its header can only name packages of the index (no address, no file of
this host), nothing is built from source, and the packages are not imported outside confined guests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from belljar.cli import terminal
from belljar.environment.requirement import check_package, python_fits
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.sandbox.blocking import Sandbox

_TIMEOUT = 30.0  # seconds, for a command that takes a millisecond


@dataclass(frozen=True, kw_only=True)
class Header:
    file: str
    packages: tuple[str, ...]
    python: str | None  # conditions on its version

    def add_to(self, options: Mapping[str, Any], *, quiet: bool) -> dict[str, Any]:
        """The options of the sandbox with the packages added to its environment."""
        from belljar.backends.docker.settings import Docker
        from belljar.environment.environment import add_packages, choose_interpreter, resolve

        backend = options.get("backend", "auto")
        docker = isinstance(backend, Docker)
        if options.get("image") or options.get("dockerfile") or (docker and backend.own):
            if self.packages and not quiet:
                terminal.say(f"an image has its own packages; not added: {self._listing()}")
            return dict(options)
        environment = resolve(options.get("environment") or "data")
        environment = add_packages(environment, options.get("packages", ()))
        if not docker and backend != "docker":  # there only the guest knows its Python
            self._check_python(choose_interpreter(environment).version)
        more = add_packages(environment, self.packages)
        if more is not environment:
            more = replace(more.without_preload(), allow_builds=False)
            if not quiet:
                terminal.say(f"packages that {self.file} asks for: {self._listing()}")
        return {**options, "environment": more, "packages": ()}

    def check_guest(self, sandbox: Sandbox) -> None:
        """Raises InvalidOption if the guest's Python is not the version that the file needs."""
        if self.python is None:
            return
        code = "import sys; print(*sys.version_info[:3])"
        told = sandbox.commands.run(["python3", "-c", code], timeout=_TIMEOUT)
        version = told.stdout.split()
        if told.ok and version and all(each.isdecimal() for each in version):
            self._check_python(tuple(int(each[:9]) for each in version))

    def _check_python(self, version: tuple[int, ...]) -> None:
        if self.python is not None and not python_fits(version, self.python):
            raise InvalidOption(
                f"{self.file} requires Python {self.python}, but the sandbox has "
                f"{'.'.join(map(str, version))}",
                hint="run `belljar env build NAME --extends data --python VERSION`, then use "
                "--env NAME",
            )

    def _listing(self) -> str:
        return ", ".join(self.packages)


def read(file: str, code: str) -> Header | None:
    """The header of the code, if it has one. `file` is its name."""
    file = "the code" if file == "-" else file
    block = _block(file, code)
    if block is None:
        return None
    import tomllib  # here: few files have a header

    first, text = block
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+), column (\d+)", str(error))
        place = f"line {first + int(line[1]) - 1}" if line else "its end"
        why = re.sub(r" \(at [^)]*\)$", "", str(error))
        raise InvalidOption(
            f"{file}, {place}: the `# /// script` header is not TOML: {why}",
            hint="correct it, or ignore it with --no-script-packages",
        ) from None
    packages, python = told.get("dependencies", []), told.get("requires-python")
    if not isinstance(packages, list) or not all(isinstance(each, str) for each in packages):
        raise InvalidOption(f"{file}: `dependencies` in its header must be a list of strings")
    if not isinstance(python, (str, type(None))):
        raise InvalidOption(f"{file}: `requires-python` in its header must be a string")
    try:
        if python is not None:
            python_fits((3, 0, 0), python)  # raises if it is not a version
        return Header(file=file, packages=tuple(map(_package, packages)), python=python)
    except InvalidOption as error:
        raise InvalidOption(f"{file}, its header: {error.message}", hint=error.hint) from None


def _package(text: str) -> str:
    package = check_package(text)
    if package.startswith("/") or "@" in package:
        raise InvalidOption(
            f"{text!r}: the header of a script can only name packages of the index",
            hint="if you trust it, use --no-script-packages and --with, which also takes "
            "addresses and wheels",
        )
    return package


def _block(file: str, code: str) -> tuple[int, str] | None:
    """The number of its first line, and its lines without the `#`."""
    lines = code.splitlines()
    found: tuple[int, str] | None = None
    number = 0
    while number < len(lines):
        number += 1
        if lines[number - 1] != "# /// script":
            continue
        start = number
        while number < len(lines) and (lines[number] == "#" or lines[number].startswith("# ")):
            number += 1
        # The block ends at the last possible end; without one it is an ordinary comment.
        closing = [at for at in range(start, number) if lines[at] == "# ///"]
        if not closing:
            continue
        if found is not None:
            raise InvalidOption(f"{file}, line {start}: this is a second `# /// script` header")
        found = start + 1, "\n".join(line[2:] for line in lines[start : closing[-1]])
    return found
