"""The options of every command with a sandbox, and the Sandbox that they describe."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from belljar.backends.mounts import WORKSPACE
from belljar.cli import terminal
from belljar.errors import InvalidOption
from belljar.limits import RULES, Rule, format_size

if TYPE_CHECKING:
    from belljar.backends.mounts import Mount
    from belljar.cli.script_header import Header
    from belljar.sandbox.blocking import Sandbox
    from belljar.sandbox.options import Options, SandboxOptions

_FLAGS = {"workspace": "workspace_size"}  # --workspace names the directory


def add_environment(
    parser: argparse.ArgumentParser, default: str | None, meaning: str | None = None
) -> None:
    """`meaning`: the default in words, if it is decided later."""
    parser.add_argument(
        "--env",
        "--environment",
        "-e",
        dest="environment",
        metavar="NAME",
        default=default,
        help=f"the code's packages: python, data, or a name given to `belljar env build` "
        f"(default: {default or meaning})",
    )


def add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="append the code and its results to FILE, for `belljar replay` and `belljar export`",
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--workspace",
        metavar="DIR",
        help="keep the files of /workspace in DIR: they are copied in, and changes are copied back",
    )
    kept.add_argument(
        "--session",
        metavar="NAME",
        help="keep the files of /workspace under a name (see `belljar session`)",
    )
    parser.add_argument(
        "--mount",
        dest="mounts",
        metavar="HOST:GUEST[:rw]",
        action="append",
        default=[],
        help="show a file or directory of this host at GUEST, read-only unless `:rw` (repeatable)",
    )


def add_all(parser: argparse.ArgumentParser, *, environment: str | None = "data") -> None:
    add_environment(parser, None, environment or "the recorded one")
    parser.add_argument(
        "--set-env",
        dest="variables",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set an environment variable for the code (repeatable; --env names packages)",
    )
    parser.add_argument(
        "--backend",
        default=None if environment is not None else "auto",
        help="auto, native or docker (default: auto: $BELLJAR_BACKEND if set, else native if this "
        "host allows it, else docker)",
    )
    unenforced = parser.add_mutually_exclusive_group()
    unenforced.add_argument(
        "--require-limits",
        dest="strict",
        action="store_const",
        const=True,
        help="refuse to start if this host cannot enforce a limit (see `belljar doctor`)",
    )
    unenforced.add_argument(
        "--best-effort",
        dest="strict",
        action="store_const",
        const=False,
        help="start without a warning if this host cannot enforce a limit given here",
    )
    if environment is not None:  # a replay runs in an Environment, as it was recorded
        _add_more(parser)
        _add_docker(parser)
    limits = parser.add_argument_group("limits", "sizes are written like 64k, 512m, 1.5g")
    for name, rule in RULES.items():
        limits.add_argument(
            f"--{_FLAGS.get(name, name).replace('_', '-')}",
            dest=f"limit_{name}",
            metavar="SIZE" if rule.kind == "size" else rule.unit.upper(),
            help=f"{rule.meaning}: {rule.range.replace('None', 'none')} "
            f"(default: {_default(rule) if environment else 'as recorded'})",
        )


def add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        dest="sandbox_policy",
        metavar="NAME|FILE",
        help="reject code that this policy denies, before anything starts (see `belljar check`); "
        "none: no policy, not even the configured one",
    )


def _add_more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        dest="packages",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="add a package to --env, as for pip (repeatable, or separated by commas); it is "
        "installed once and then kept",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a file of settings for options not given here (default: your own file; see "
        "`belljar config`)",
    )
    parser.add_argument(
        "--workdir",
        metavar="PATH",
        help=f"where the code finds its workspace (default: {WORKSPACE})",
    )
    parser.add_argument(
        "--noexec",
        action="store_true",
        help="files in the workspace and in /tmp cannot be executed",
    )
    parser.add_argument(
        "--network",
        help="none, or open: everything that the engine's network reaches (docker only; default: "
        "none)",
    )


def _add_docker(parser: argparse.ArgumentParser) -> None:
    docker = parser.add_argument_group("docker", "each of these means --backend docker")
    docker.add_argument(
        "--image", metavar="NAME", help="run in this image, unchanged, instead of an environment"
    )
    docker.add_argument(
        "--dockerfile", metavar="PATH", help="build the image from a Dockerfile or its directory"
    )
    docker.add_argument(
        "--runtime", metavar="NAME", help="runc, runsc (gVisor), kata-... (default: the engine's)"
    )
    docker.add_argument("--platform", metavar="OS/ARCH", help="such as linux/arm64")
    docker.add_argument("--gpus", metavar="GPUS", help="all, how many, or device=0,1")
    docker.add_argument(
        "--device",
        dest="devices",
        metavar="HOST[:GUEST[:rwm]]",
        action="append",
        default=[],
        help="let the code use a device of the engine's host (repeatable)",
    )


def _default(rule: Rule) -> str:
    if rule.default is None:
        return "none"
    return format_size(int(rule.default)) if rule.kind == "size" else f"{rule.default:g}"


def make(args: argparse.Namespace) -> Sandbox:
    """The sandbox that the options describe, not started yet. This process makes no other one."""
    from belljar.sandbox.options import make_options

    asked = replace(make_options(cast("SandboxOptions", options(args))), once=True)
    _start_ahead(asked)
    from belljar.sandbox.blocking import Sandbox

    return Sandbox._from_options(asked)


def _start_ahead(asked: Options) -> None:
    """Start what a native sandbox needs while this process still imports modules."""
    from belljar.backends.native import spawn

    main = threading.current_thread() is threading.main_thread()
    if not main or "belljar.runtime" in sys.modules:
        return  # called by a program, for which `start_ahead` is not made or comes too late
    usual = asked.policy is None and not asked.mounts  # with a policy, perhaps nothing is started
    if usual and asked.backend in ("auto", "native"):
        from belljar.backends.native.zygote_client import start_ahead

        start_ahead(asked.environment.without_preload(), asked.workdir)
    spawn.discard()


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of the sandbox that the command line describes."""
    from belljar import config
    from belljar.backends.docker.settings import FLAT
    from belljar.environment.requirement import split_packages

    given: dict[str, object] = {
        "backend": args.backend,
        "environment": args.environment,
        "packages": [package for text in args.packages for package in split_packages(text)],
        "limits": limits(args),
        "env": variables(args.variables),
        "strict": args.strict,
        "policy": getattr(args, "sandbox_policy", None),  # not every command has it
        "network": args.network,
        "workdir": args.workdir,
        "noexec": args.noexec or None,
        "record": args.record,
        "workspace": directory(args.workspace),
        "session": args.session,
        "mounts": [mount(text) for text in args.mounts],
        **{name: getattr(args, name) for name in FLAT},
    }
    given = {name: value for name, value in given.items() if value not in (None, [], {})}
    # Without the file of the current directory, which may have come with the code.
    made = config.load(args.config, project=False).sandbox_options(**given)
    if getattr(args, "sandbox_policy", "none") == "none":  # `--policy none`, or no such option
        made.pop("policy", None)
    if args.config is None:
        _remark_project_file()
    header: Header | None = getattr(args, "header", None)  # of the file to run
    return made if header is None else header.add_to(made, quiet=args.quiet)


def watching(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """Turn on the configured audit logs, metrics and alerts for the body."""
    from belljar import config

    configured = config.load(args.config, project=False)
    is_on = configured.given("observe") or configured.given("observe.alerts")
    return configured.observe() if is_on else contextlib.nullcontext()


def _remark_project_file() -> None:
    """`belljar config show` and programs read that file; so say that this command does not."""
    from belljar.config import config_files

    found = config_files.find_file(Path.cwd() / config_files.PROJECT)
    if found is not None and not os.environ.get("BELLJAR_CONFIG"):
        terminal.say(
            f"{found.name} was not read, because it may have come with the code; to use it: "
            f"--config {found.name}"
        )


def directory(text: str | None) -> str | None:
    if text is not None and re.fullmatch(r"\d+[kmgt]?", text) and not os.path.isdir(text):
        raise InvalidOption(
            f"--workspace takes a directory, not the size {text}",
            hint=f"use --workspace-size {text} for the size, or ./{text} for a directory",
        )
    return text


def mount(text: str) -> Mount:
    from belljar.backends.mounts import Mount

    rest, colon, word = text.rpartition(":")
    writable = colon == ":" and word == "rw"
    host, colon, guest = (rest if colon and word in ("rw", "ro") else text).rpartition(":")
    if not colon or not host or not guest:
        raise InvalidOption(
            f"--mount {text!r} has no path in the sandbox", hint="write --mount HOST:GUEST[:rw]"
        )
    return Mount(os.path.abspath(os.path.expanduser(host)), guest, read_only=not writable)


def limits(args: argparse.Namespace) -> dict[str, object]:
    """Only limits that were given: those must be enforced, a default need not."""
    from belljar.config import schema

    given = {name: getattr(args, f"limit_{name}") for name in RULES}
    return {
        name: schema()[f"limits.{name}"].kind.parse(text)
        for name, text in given.items()
        if text is not None
    }


def variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidOption(
                f"--set-env {text!r} has no value", hint="write --set-env KEY=VALUE"
            )
        found[name] = value
    return found
