"""`belljar image build|list|remove|prune|dockerfile`: images for the docker backend."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import TYPE_CHECKING

from belljar.errors import InvalidOption, SandboxError, unknown_option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from belljar.backends.docker.client.engine import Engine
    from belljar.backends.docker.images.image_store import ListedImage
    from belljar.backends.docker.images.resolve import Image
    from belljar.backends.docker.settings import Docker
    from belljar.environment.environment import Environment

    Answer = TypeVar("Answer")

SUMMARY = "build, list and remove images (environments for the docker backend)"


def add_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    parser.description = "Images: what environments become for sandboxes in containers."
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    added = {
        "build": _add_build(commands),
        "list": commands.add_parser("list", help="what there is", allow_abbrev=False),
        "remove": commands.add_parser("remove", help="remove from the engine", allow_abbrev=False),
        "prune": commands.add_parser(
            "prune",
            help="remove what nobody needs any more",
            description="Remove images that Belljar has built, if no container uses them and there "
            "is a newer one of the same name. Images of anybody else are not touched.",
            allow_abbrev=False,
        ),
        "dockerfile": commands.add_parser(
            "dockerfile",
            help="print a Dockerfile that makes the same image",
            description="Print a Dockerfile that makes the image of an environment, to be built "
            "elsewhere. It needs BuildKit.",
            allow_abbrev=False,
        ),
    }
    added["list"].add_argument("--json", action="store_true", help="as JSON")
    added["list"].set_defaults(command=show)
    added["remove"].add_argument(
        "names", metavar="NAME", nargs="+", help="a name, key or tag of the list"
    )
    added["remove"].set_defaults(command=remove)
    added["prune"].add_argument(
        "names", metavar="NAME", nargs="*", help="only images of these names"
    )
    added["prune"].add_argument("--all", action="store_true", help="also the newest of each name")
    added["prune"].add_argument("--dry-run", action="store_true", help="only list them")
    added["prune"].add_argument("--json", action="store_true", help="as JSON")
    added["prune"].set_defaults(command=prune)
    added["dockerfile"].add_argument("name", metavar="ENV")
    added["dockerfile"].add_argument("--base", help="the image it starts from")
    added["dockerfile"].set_defaults(command=dockerfile)
    for name in ("build", "list", "remove", "prune"):
        added[name].add_argument("--host", help="the engine's address (default: as for docker)")
    return added


def _add_build(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    building = commands.add_parser(
        "build",
        help="build one now, instead of at its first use",
        description="Build the image of an environment, or of a Dockerfile. With --extends, "
        "--packages, --python or --preload the environment is a new one, whose name `--env` and "
        "Sandbox(environment=...) know from then on.",
        epilog="example: belljar image build geo --packages 'shapely>=2' numpy --preload shapely",
        allow_abbrev=False,
    )
    building.add_argument("name", metavar="ENV", nargs="?", help="the environment's name")
    for option, metavar, meaning in (
        ("--packages", "PACKAGE", "as for pip, or wheels"),
        ("--preload", "MODULE", "import it once, before any sandbox starts"),
    ):
        building.add_argument(
            option, metavar=metavar, nargs="+", action="extend", default=[], help=meaning
        )
    building.add_argument("--extends", metavar="ENV", help="add all this to that environment")
    building.add_argument("--python", help='a version such as "3.12"')
    building.add_argument(
        "--allow-builds",
        action="store_true",
        help="also packages without a wheel; building them runs their code in the build container",
    )
    building.add_argument(
        "--dockerfile", metavar="PATH", help="a Dockerfile, or the directory with it"
    )
    building.add_argument("--base", metavar="IMAGE", help="build on this image")
    building.add_argument(
        "--ca-bundle", metavar="FILE", help="certificates that the build shall trust"
    )
    building.add_argument("--platform", help='such as "linux/arm64"')
    building.add_argument(
        "--pull", choices=("missing", "always", "never"), default="missing", help="the base image"
    )
    building.add_argument("--json", action="store_true", help="say what was built as JSON")
    building.set_defaults(command=build)
    return building


def _ask(args: argparse.Namespace, question: Callable[[Engine], Awaitable[Answer]]) -> Answer:
    """What `question` finds out from the engine that the options mean."""
    import anyio

    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, parsing_answer

    engine = Engine(endpoint.find_endpoint(args.host))
    with parsing_answer(engine, "about its images"):
        return anyio.run(question, engine)


# -- build --------------------------------------------------------------------------------------


def build(args: argparse.Namespace) -> int:
    from belljar.cli import env, terminal
    from belljar.environment import saved_names
    from belljar.environment.environment import builtin, resolve

    docker, described = _docker(args), env.described(args)
    environment = described
    if environment is None:
        # The packages of a Dockerfile's image are its own.
        named = builtin("python") if args.dockerfile else resolve(args.name)
        environment = named
    made = _ask(args, lambda engine: _ensure(engine, environment, docker))
    if described is not None:
        saved_names.save(described)  # only now: what cannot be built is not worth a name
    if args.json:
        facts = {"name": args.name, "image": made.reference, "id": made.id, "python": made.python}
        print(json.dumps(facts, indent=2))
    else:
        print(terminal.one_line(made.reference))
    return 0


async def _ensure(engine: Engine, environment: Environment, docker: Docker) -> Image:
    from belljar.backends.docker.images.resolve import ensure_image
    from belljar.backends.docker.isolation import EngineFacts

    info = await engine.request("GET", "/info")
    version = await engine.request("GET", "/version")
    return await ensure_image(engine, environment, docker, EngineFacts.parse(info, version))


def _docker(args: argparse.Namespace) -> Docker:
    from belljar.backends.docker.settings import Docker

    if args.dockerfile:
        given = {"ENV": args.name, "--packages": args.packages, "--preload": args.preload}
        given |= {"--extends": args.extends, "--python": args.python, "--base": args.base}
        for option, value in given.items():
            if value:
                raise InvalidOption(
                    f"{option} has no meaning beside --dockerfile",
                    hint="the image is what the Dockerfile makes it",
                )
    elif args.name is None:
        raise InvalidOption(
            "what is to be built?", hint="the name of an environment, or --dockerfile PATH"
        )
    return Docker(
        dockerfile=args.dockerfile,
        base=args.base,
        ca_bundle=args.ca_bundle,
        platform=args.platform,
        host=args.host,
        pull=args.pull,
    )


# -- what there is ------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> int:
    from belljar.backends.docker.images.image_store import list_images
    from belljar.cli import terminal

    images = _ask(args, list_images)
    if args.json:
        print(json.dumps([dataclasses.asdict(each) for each in images], indent=2))
        return 0
    rows = [
        [
            each.name,
            each.key,
            each.python or "-",
            _content(each),
            terminal.size(each.size),
            str(each.containers) if each.containers else "-",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created)),
        ]
        for each in images
    ]
    header = ("NAME", "KEY", "PYTHON", "PACKAGES", "SIZE", "CONTAINERS", "CREATED")
    terminal.table(rows, header)
    return 0


def _content(image: ListedImage) -> str:
    if image.dockerfile:
        return f"({image.dockerfile})"
    return " ".join(image.packages) or "-"


def remove(args: argparse.Namespace) -> int:
    from belljar.backends.docker.images import image_store
    from belljar.cli import terminal

    async def act(engine: Engine) -> None:
        images = await image_store.list_images(engine)
        for name in args.names:  # all of them are looked up before any is removed
            if not image_store.find_by_name(images, name):
                known = {each.name for each in images} | {each.key for each in images}
                raise unknown_option("image", name, sorted(known))
        for name in args.names:
            for each in image_store.find_by_name(images, name):
                await image_store.remove_image(engine, each)
            terminal.say(f"removed {name}")

    _ask(args, act)
    return 0


# -- prune --------------------------------------------------------------------------------------


def prune(args: argparse.Namespace) -> int:
    from belljar.backends.docker.images import image_store
    from belljar.backends.docker.settings import Docker, fill_from_environment
    from belljar.cli import exit_codes, terminal
    from belljar.environment import saved_names
    from belljar.environment.environment import resolve

    known = [resolve(name) for name in saved_names.names()]

    async def act(engine: Engine) -> list[tuple[ListedImage, str | None]]:
        images = await image_store.list_images(engine)
        if args.names:
            images = [each for each in images if each.name in args.names]
        current = await image_store.current_keys(engine, known, fill_from_environment(Docker()))
        found = image_store.find_unneeded(images, current, everything=args.all)
        done: list[tuple[ListedImage, str | None]] = []
        for each in found:
            problem = None
            if not args.dry_run:
                try:
                    await image_store.remove_image(engine, each)
                except SandboxError as error:
                    problem = error.message
            done.append((each, problem))
        return done

    done = _ask(args, act)
    if args.json:
        described = [
            {**dataclasses.asdict(each), "removed": not args.dry_run and not why, "problem": why}
            for each, why in done
        ]
        print(json.dumps(described, indent=2))
    else:
        for each, problem in done:
            freed = f"{each.tag} ({terminal.size(each.size)} with what it shares)"
            word = "would remove" if args.dry_run else "removed"
            terminal.say(f"{each.tag} stays: {problem}" if problem else f"{word} {freed}")
        if not done:
            terminal.say("nothing to remove")
    return exit_codes.ERROR if any(problem for _, problem in done) else exit_codes.OK


# -- dockerfile ---------------------------------------------------------------------------------


def dockerfile(args: argparse.Namespace) -> int:
    from belljar.backends.docker.images import image_store
    from belljar.backends.docker.images.dockerfile import render_dockerfile
    from belljar.backends.docker.settings import Docker, fill_from_environment
    from belljar.environment.environment import resolve

    environment = resolve(args.name)
    settings = fill_from_environment(Docker(base=args.base))
    print(render_dockerfile(image_store.plan_image(environment, settings.base, None)), end="")
    return 0
