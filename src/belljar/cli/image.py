"""`belljar image build|list|remove|prune|dockerfile`: images for the docker backend."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from belljar.cli import env, exit_codes, terminal
from belljar.cli.host_facts import ask_engine
from belljar.errors import InvalidOption, SandboxError, unknown_option
from belljar.text import format_bytes

if TYPE_CHECKING:
    from belljar.backends.docker.client.engine import Engine
    from belljar.backends.docker.images.image_store import ListedImage
    from belljar.backends.docker.images.resolve import Image
    from belljar.backends.docker.settings import Docker
    from belljar.cli.entry import Parser
    from belljar.environment.environment import Environment


def add_commands(parser: Parser) -> None:
    parser.description = "Images: environments for sandboxes in containers."
    _add_build(parser)
    listing = parser.add_command("list", show, help="list images")
    listing.add_argument("--json", action="store_true", help="print JSON")
    removing = parser.add_command("remove", remove, help="remove from the engine")
    removing.add_argument(
        "names", metavar="NAME", nargs="+", help="a name, key or tag from the list"
    )
    pruning = parser.add_command(
        "prune",
        prune,
        help="remove images that are no longer needed",
        description="Remove images that Belljar has built, if no container uses them and there "
        "is a newer one of the same name. Other images are not touched.",
    )
    pruning.add_argument("names", metavar="NAME", nargs="*", help="only images with these names")
    pruning.add_argument("--all", action="store_true", help="also the newest of each name")
    pruning.add_argument("--dry-run", action="store_true", help="only list the images")
    pruning.add_argument("--json", action="store_true", help="print JSON")
    for each in parser.commands.values():
        each.add_argument("--host", help="the engine's address (default: as for docker)")
    printing = parser.add_command(
        "dockerfile",
        dockerfile,
        help="print a Dockerfile that makes the same image",
        description="Print a Dockerfile that builds the image of an environment elsewhere. It "
        "needs BuildKit.",
    )
    printing.add_argument("name", metavar="ENV")
    printing.add_argument("--base", help="the base image")


def _add_build(parser: Parser) -> None:
    building = parser.add_command(
        "build",
        build,
        help="build an image now, instead of at its first use",
        description="Build the image of an environment, or of a Dockerfile. With --extends, "
        "--packages, --python or --preload this is a new environment, which `--env` and "
        "Sandbox(environment=...) then know by its name.",
        epilog="example: belljar image build geo --packages 'shapely>=2' numpy --preload shapely",
    )
    building.add_argument("name", metavar="ENV", nargs="?", help="the environment's name")
    env.add_description(building, 'a version such as "3.12"', "in the build container")
    building.add_argument(
        "--dockerfile", metavar="PATH", help="a Dockerfile, or the directory with it"
    )
    building.add_argument("--base", metavar="IMAGE", help="build on this image")
    building.add_argument("--ca-bundle", metavar="FILE", help="certificates that the build trusts")
    building.add_argument("--platform", help='such as "linux/arm64"')
    building.add_argument(
        "--pull",
        choices=("missing", "always", "never"),
        default="missing",
        help="when to pull the base image (default: missing)",
    )
    building.add_argument("--json", action="store_true", help="print what was built as JSON")


# -- build --------------------------------------------------------------------------------------


def build(args: argparse.Namespace) -> None:
    from belljar.environment.environment import BUILTIN, resolve, save

    docker, new = _docker(args), env.described(args)
    # A Dockerfile's image has its own packages.
    environment = new or (BUILTIN["python"] if args.dockerfile else resolve(args.name))
    made = ask_engine(args.host, lambda engine: ensure(engine, environment, docker))
    if new is not None:
        save(new)  # only after it was built
    if args.json:
        facts = {"name": args.name, "image": made.reference, "id": made.id, "python": made.python}
        terminal.print_json(facts)
    else:
        print(terminal.one_line(made.reference))


async def ensure(engine: Engine, environment: Environment, docker: Docker) -> Image:
    """Build the image of the environment, unless the engine has it."""
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
                    f"{option} cannot be used with --dockerfile",
                    hint="the Dockerfile alone describes the image",
                )
    elif args.name is None:
        raise InvalidOption(
            "there is nothing to build", hint="name an environment, or use --dockerfile PATH"
        )
    return Docker(
        dockerfile=args.dockerfile,
        base=args.base,
        ca_bundle=args.ca_bundle,
        platform=args.platform,
        host=args.host,
        pull=args.pull,
    )


# -- list and remove ----------------------------------------------------------------------------


def show(args: argparse.Namespace) -> None:
    from belljar.backends.docker.images.image_store import list_images

    images = ask_engine(args.host, list_images)
    if args.json:
        terminal.print_json([dataclasses.asdict(each) for each in images])
        return
    rows = [
        [
            each.name,
            each.key,
            each.python or "-",
            _content(each),
            format_bytes(each.size),
            str(each.containers) if each.containers else "-",
            terminal.format_time(each.created),
        ]
        for each in images
    ]
    header = ("NAME", "KEY", "PYTHON", "PACKAGES", "SIZE", "CONTAINERS", "CREATED")
    terminal.table(rows, header)


def _content(image: ListedImage) -> str:
    if image.dockerfile:
        return f"({image.dockerfile})"
    return " ".join(image.packages) or "-"


def remove(args: argparse.Namespace) -> None:
    from belljar.backends.docker.images import image_store

    async def act(engine: Engine) -> None:
        images = await image_store.list_images(engine)
        for name in args.names:  # check every name before removing any image
            if not image_store.find_by_name(images, name):
                known = {each.name for each in images} | {each.key for each in images}
                raise unknown_option("image", name, sorted(known))
        for name in args.names:
            for each in image_store.find_by_name(images, name):
                await image_store.remove_image(engine, each)
            terminal.say(f"removed {name}")

    ask_engine(args.host, act)


# -- prune --------------------------------------------------------------------------------------


def prune(args: argparse.Namespace) -> int:
    from belljar.backends.docker.images import image_store
    from belljar.backends.docker.settings import Docker, fill_from_environment
    from belljar.environment import environment
    from belljar.environment.environment import resolve

    known = [resolve(name) for name in environment.known_names()]

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

    done = ask_engine(args.host, act)
    if args.json:
        described = [
            {**dataclasses.asdict(each), "removed": not args.dry_run and not why, "problem": why}
            for each, why in done
        ]
        terminal.print_json(described)
    else:
        for each, problem in done:
            freed = f"{each.tag} ({format_bytes(each.size)}, including shared layers)"
            word = "would remove" if args.dry_run else "removed"
            terminal.say(f"{each.tag} was not removed: {problem}" if problem else f"{word} {freed}")
        if not done:
            terminal.say("nothing to remove")
    return exit_codes.ERROR if any(problem for _, problem in done) else exit_codes.OK


# -- dockerfile ---------------------------------------------------------------------------------


def dockerfile(args: argparse.Namespace) -> None:
    from belljar.backends.docker.images import image_store
    from belljar.backends.docker.images.dockerfile import render_dockerfile
    from belljar.backends.docker.settings import Docker, fill_from_environment
    from belljar.environment.environment import resolve

    environment = resolve(args.name)
    settings = fill_from_environment(Docker(base=args.base))
    print(render_dockerfile(image_store.plan_image(environment, settings.base, None)), end="")
