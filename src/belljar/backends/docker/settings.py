"""`belljar.Docker`: the settings of the docker backend.

They are checked when they are made, without an engine: malformed names, missing paths, options that
exclude each other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from belljar.environment.environment import BUILTIN, Environment
from belljar.errors import InvalidOption, unknown_option

Pull = Literal["missing", "always", "never"]
PULLS: tuple[str, ...] = get_args(Pull)

# Settings that are also options of Sandbox, beside backend=Docker(...).
FLAT = ("image", "dockerfile", "runtime", "platform", "gpus", "devices")
# Environment variables for settings that the caller did not give.
VARIABLES = {
    "runtime": "BELLJAR_DOCKER_RUNTIME",
    "base": "BELLJAR_DOCKER_BASE",
    "ca_bundle": "BELLJAR_CA_BUNDLE",
    "build_network": "BELLJAR_BUILD_NETWORK",
}

# Settings that are names: their form, what they name, the hint for others.
_NAMES = {
    "runtime": (
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
        "the name of a runtime",
        'as the engine knows it: "runc", "runsc" (gVisor), "kata-runtime"; '
        "`docker info` lists them",
    ),
    "build_network": (
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}(:[A-Za-z0-9][A-Za-z0-9_.-]{0,127})?",
        "the name of a network",
        'as the engine knows it: "host" (that of its machine), "none", "bridge"; '
        "`docker network ls` lists them",
    ),
    "platform": (
        r"linux/[a-z0-9_]+(/v?[0-9]+)?",
        "a platform",
        '"linux/amd64", "linux/arm64", "linux/arm/v7"',
    ),
}
_DEVICE = re.compile(r"(?P<host>/[^:]+)(:(?P<guest>/[^:]+))?(:(?P<rights>[rwm]{1,3}))?")
_GPUS = re.compile(r"device=[A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*")

# [registry[:port]/]name[/name...][:tag][@digest]
_REGISTRY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
IMAGE = re.compile(
    rf"(?P<name>(?:{_REGISTRY}/)?{_NAME}(?:/{_NAME})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-f]{32,}))?",
    re.ASCII,
)
_MAX_NAME = 255


@dataclass(frozen=True, kw_only=True)
class Docker:
    """Settings of the docker backend: `Sandbox(backend=Docker(image="python:3.12-slim"))`.

    Sandbox also takes image, dockerfile, runtime, platform, gpus and devices; use either place.
    """

    image: str | None = None  # any with a python3 of 3.9 or later; it is not changed
    dockerfile: str | os.PathLike[str] | None = None  # or the directory with it; built once
    tag: str | None = None  # a second name for the Dockerfile's image
    runtime: str | None = None  # "runc", "runsc", ...; None: the engine's default
    platform: str | None = None  # "linux/arm64"; None: that of the engine
    gpus: str | int | None = None  # "all", how many, or "device=0,1"
    devices: Sequence[str] = ()  # "/dev/x[:/dev/y[:rwm]]": of the host, in the sandbox, rights
    host: str | None = None  # the engine's address; None: as the docker command finds it
    base: str | None = None  # the image that Environments are built on; None: python:X.Y-slim
    ca_bundle: str | os.PathLike[str] | None = None  # certificates that a build trusts
    build_network: str | None = None  # of builds: "host", "none", ...; None: the engine's default
    pull: Pull = "missing"  # when an image is fetched
    seccomp: str | os.PathLike[str] | None = None  # a profile that replaces Belljar's
    noexec: bool = False  # nothing that lies in /workspace or /tmp can be executed
    project: str | None = None  # a label of the containers, to tell them apart
    # The sandbox's user has a name, `user`, by a passwd file that replaces the image's. Needs an
    # engine that sees the files of this machine; elsewhere the user has only a number. None: yes,
    # unless the image is the caller's own.
    named_user: bool | None = None

    def __post_init__(self) -> None:
        if self.image is not None and self.dockerfile is not None:
            raise InvalidOption(
                "image and dockerfile exclude each other",
                hint="give the Dockerfile, or an image that was built from it",
            )
        if self.tag is not None and self.dockerfile is None:
            raise InvalidOption(
                "tag is given without dockerfile=: it names the image that is built from it",
                hint="give dockerfile= too, or image= for an image that exists",
            )
        if self.own and self.base is not None:
            raise InvalidOption(
                "base has no meaning together with image or dockerfile",
                hint="base is the image that the packages of an Environment are installed on",
            )
        if self.pull not in PULLS:
            raise unknown_option("pull", str(self.pull), PULLS)
        for name, kinds in (("noexec", (bool,)), ("named_user", (bool, type(None)))):
            if not isinstance(getattr(self, name), kinds):
                raise InvalidOption(f"{name} is True or False, not {getattr(self, name)!r}")
        for name, check in _CHECKS.items():
            given = getattr(self, name)
            if given is not None or name == "devices":
                object.__setattr__(self, name, check(name, given))

    @property
    def own(self) -> bool:
        """True if the caller brings the image, and with it Python and the packages."""
        return self.image is not None or self.dockerfile is not None

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the settings that differ from their defaults."""
        return tuple(
            field.name for field in fields(self) if getattr(self, field.name) != field.default
        )


def docker_settings(given: object) -> Docker:
    """The settings in a GuestSpec, which may have none."""
    return given if isinstance(given, Docker) else DEFAULT


def merge_settings(docker: Docker, flat: Mapping[str, object]) -> Docker:
    """The settings, replaced by those of `flat` that were given."""
    given = {name: value for name, value in flat.items() if value not in (None, (), [])}
    return replace(docker, **given) if given else docker  # type: ignore[arg-type]


def fill_from_environment(docker: Docker, environ: Mapping[str, str] = os.environ) -> Docker:
    """The settings, with missing ones taken from environment variables."""
    for name, variable in VARIABLES.items():
        value = environ.get(variable)
        if not value or getattr(docker, name) is not None or (name == "base" and docker.own):
            continue
        try:
            docker = replace(docker, **{name: value})  # type: ignore[arg-type]
        except InvalidOption as error:
            raise InvalidOption(f"{variable}: {error.message}", hint=error.hint) from None
    return docker


def check_environment(docker: Docker, environment: Environment) -> None:
    """Raise InvalidOption if an Environment's packages would have to be added to the caller's
    image."""
    if not docker.own or environment in BUILTIN.values():
        return
    for what, value in (("packages", environment.packages), ("python", environment.python)):
        if value:
            own = "image" if docker.image is not None else "dockerfile"
            raise InvalidOption(
                f"environment {environment.name!r} names {what}, but {own}= brings its own Python "
                "and packages",
                hint="backend=Docker(base=...) installs an Environment on top of an image",
            )


# -- one setting each -----------------------------------------------------------------------


def check_image(option: str, given: str) -> str:
    """A reference as the docker command takes it: name, name:tag, name@digest, or an id."""
    if not isinstance(given, str):
        raise InvalidOption(f"{option} is the name of an image, not {given!r}")
    match = IMAGE.fullmatch(given)
    if match is None or len(match["name"]) > _MAX_NAME:
        raise InvalidOption(
            f"{option}={given[:300]!r} is not the name of an image", hint=_image_hint(given)
        )
    algorithm, _, digits = (match["digest"] or "").partition(":")
    wanted = {"sha256": 64, "sha384": 96, "sha512": 128}.get(algorithm, len(digits))
    if len(digits) != wanted:
        raise InvalidOption(
            f"{option}={given[:300]!r} has a malformed digest",
            hint=f"{algorithm} has {wanted} digits, not {len(digits)}",
        )
    return given


def _image_hint(given: str) -> str:
    if IMAGE.fullmatch(given.lower()) and given != given.lower():
        return f"names of images are in lower case: {given.lower()!r}"
    if "://" in given and IMAGE.fullmatch(given.partition("://")[2]):
        return f"without a scheme: {given.partition('://')[2]!r}"
    if given.strip() != given and IMAGE.fullmatch(given.strip()):
        return "there is white space around it"
    if os.path.exists(given) and given:
        return f"a file or directory? dockerfile={given!r} builds an image from it"
    return 'write it as for `docker run`: "python:3.12-slim", "team/app:1.0", "app@sha256:..."'


def _tag(option: str, given: str) -> str:
    if "@" in str(given):
        raise InvalidOption(
            f"tag={given[:300]!r} has a digest, which is known only after a build",
            hint="write it as for `docker build -t`: name, or name:tag",
        )
    return check_image(option, given)


def _dockerfile(option: str, given: str | os.PathLike[str]) -> Path:
    path = _path(option, given)
    if path.is_dir() and not (path / "Dockerfile").is_file():
        raise InvalidOption(
            f"there is no Dockerfile in {str(path)!r}",
            hint="name the file itself, if it is called something else",
        )
    if not path.exists():
        raise InvalidOption(
            f"dockerfile: {str(path)!r} does not exist",
            hint="it is the path of a Dockerfile, or of the directory with it; image= takes names",
        )
    return path


def _ca_bundle(option: str, given: str | os.PathLike[str]) -> Path:
    path = _path(option, given)
    if not path.is_file():
        raise InvalidOption(
            f"ca_bundle: {str(path)!r} is not a file",
            hint="it is a file of certificates in PEM form",
        )
    return path


def _profile(option: str, given: str | os.PathLike[str]) -> Path:
    path = _path(option, given)
    try:
        profile = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOption(f"seccomp: {str(path)!r} cannot be read: {error}") from None
    if not isinstance(profile, dict) or not isinstance(profile.get("defaultAction"), str):
        raise InvalidOption(
            f"seccomp: {str(path)!r} is not a seccomp profile",
            hint="it is a JSON file as `docker run --security-opt seccomp=FILE` takes it",
        )
    return path


def _path(option: str, given: str | os.PathLike[str]) -> Path:
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(f"{option} is a path, not {given!r}")
    return Path(text).expanduser().absolute()


def _name(option: str, given: str) -> str:
    form, what, hint = _NAMES[option]
    text = given if isinstance(given, str) else ""
    if not re.fullmatch(form, text):
        if re.fullmatch(form, f"linux/{text}"):
            hint = f'did you mean "linux/{text}"?'
        raise InvalidOption(f"{option}={given!r} is not {what}", hint=hint)
    return given


def _gpus(option: str, given: str | int) -> str | int:
    if given == "all":
        return given
    number = int(given) if isinstance(given, str) and re.fullmatch(r"[0-9]{1,3}", given) else given
    if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
        return number
    if isinstance(given, str) and _GPUS.fullmatch(given):
        return given
    raise InvalidOption(
        f"gpus={given!r} is not a set of GPUs",
        hint='"all", how many (1 or more), or "device=0,1" (numbers or ids)',
    )


def _devices(option: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InvalidOption(
            f"devices is a list of texts, not {given!r}", hint='devices=["/dev/fuse"]'
        )
    for device in given:
        parse_device(device)
    return tuple(given)


def parse_device(given: str) -> tuple[str, str, str]:
    """Its path on the host, its path in the sandbox, and the rights (read, write, mknod).

    >>> parse_device("/dev/snd/seq:/dev/seq:r")
    ('/dev/snd/seq', '/dev/seq', 'r')
    """
    match = _DEVICE.fullmatch(given) if isinstance(given, str) else None
    if match is None or ".." in given.split("/") or "\0" in given:
        raise InvalidOption(
            f"{given!r} is not a device",
            hint='"/dev/x", "/dev/x:/dev/y" for another name inside, "/dev/x:/dev/y:r" for rights',
        )
    # Without `m`, which lets the code make device files.
    return match["host"], match["guest"] or match["host"], match["rights"] or "rw"


def _text(option: str, given: str) -> str:
    most = 128 if option == "project" else 4096
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise InvalidOption(f"{option} is a text, not {given!r}")
    if len(given) > most:
        raise InvalidOption(f"{option} has {len(given)} characters, more than {most}")
    return given


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "image": check_image,
    "dockerfile": _dockerfile,
    "tag": _tag,
    "runtime": _name,
    "platform": _name,
    "gpus": _gpus,
    "devices": _devices,
    "host": _text,
    "base": check_image,
    "ca_bundle": _ca_bundle,
    "build_network": _name,
    "seccomp": _profile,
    "project": _text,
}
DEFAULT = Docker()
