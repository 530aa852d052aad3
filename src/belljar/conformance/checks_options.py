"""Options, paths and runtimes: whatever is asked for, no wall gets lower."""

from __future__ import annotations

import contextlib
import os

from belljar.conformance.checks import check
from belljar.conformance.programs import ANSWERED_INSIDE, named
from belljar.conformance.results import Look, NotHere
from belljar.conformance.stage import Stage
from belljar.errors import FileError, SandboxError

_WIDER: tuple[dict[str, object], ...] = (
    {"mounts": ["/"]},
    {"network": "host"},
    {"network": ""},
    {"backend": "unsafe"},
    {"backend": "native; rm -rf /"},
    {"env": {"A=B": "c"}},
    {"env": {"A": "b\0c"}},
    {"limits": {"memory": -1}},
    {"limits": {"memory": "999999g"}},
    {"limits": {"processes": 10**9}},
    {"limits": {"root": True}},
    {"environment": "../../etc"},
    {"environment": "/"},
    {"strict": "no"},
)


@check(
    74,
    what="trick an egress allow-list: odd names, rebinding, addresses",
    expected="does not apply",
)
def allow_list(stage: Stage, look: Look) -> None:
    raise NotHere(
        "there is no allow-list to trick: a sandbox has no network at all, unless its caller asks "
        "for network='open' of a container"
    )


@check(
    75,
    what="ask for a network by saying nothing, or something empty",
    expected="nothing said means none; something empty is an error",
)
def empty_network(stage: Stage, look: Look) -> None:
    sandbox = stage.open(strict=False)
    told = sandbox.run_code(
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), timeout=2)\n"
        "except OSError as error: print(error)\n[name for _, name in socket.if_nameindex()]"
    )
    look.expect("timed out" not in told.stdout, f"no way out: {told.stdout.strip()}", told.stdout)
    for network in ("", "host", "bridge", "allow:"):
        try:
            stage.open(network=network, strict=False)
            look.wrong(f"network={network!r} was taken")
        except SandboxError as error:
            look.saw(f"network={network!r} refused: {error.message}")
    look.control(sandbox.run_code("1 + 1").value == 2, "with network='none' a sandbox starts")


@check(
    87,
    what="options that would widen the walls: mounts, networks, limits, names of environments",
    expected="each is refused",
)
def wider_options(stage: Stage, look: Look) -> None:
    for options in _WIDER:
        try:
            stage.open(**options)
            look.wrong(f"{options} was taken")
        except (SandboxError, TypeError, ValueError):
            continue
    look.saw(f"{len(_WIDER)} such options were refused")
    look.control(stage.newborn_answers(), "without them a sandbox starts")


@check(
    87,
    what="paths and working directories of the caller that lead out",
    expected="refused, or resolved inside",
)
def paths_of_the_caller(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    outside = str(stage.canaries.secret_file)
    secret = stage.canaries.secret
    ways = ["../../../../etc/shadow", "/proc/1/root/etc/shadow", "//etc/shadow", outside]
    ways += [f"../../..{outside}", f"/proc/self/root{outside}", f"/proc/1/cwd/..{outside}"]
    for way in ways:
        try:
            content = sandbox.files.read(way)
            look.expect(secret not in content, f"{way}: a file of the guest's own")
        except FileError:
            continue
    look.saw(f"{len(ways)} ways to a file of the host lead nowhere")
    for cwd in ("/proc/1/root", "../../..", "/proc/self/fd/3", os.path.dirname(outside)):
        ran = sandbox.commands.run(f"cat {outside[1:]} {outside} secret.txt", cwd=cwd)
        if secret in ran.stdout:
            look.wrong(f"cwd={cwd!r} leads to the host")
    try:
        sandbox.files.write("/etc/passwd", "x")
        look.wrong("/etc/passwd was written")
    except SandboxError as error:
        look.saw(f"a write to the root is refused: {str(error).splitlines()[0]}")
    for odd in ("\ud800", "a\ud800/b"):
        with contextlib.suppress(SandboxError):
            sandbox.files.read(odd)
    for text in stage.canaries.wrongs().values():
        look.wrong(text)
    look.expect(sandbox.run_code("1 + 1").state_preserved, "the sandbox goes on")
    with open(outside) as file:
        look.control(file.read() == secret, "on the host, the path leads to the secret")


@check(
    92,
    what="a kernel, an engine or a runtime whose own rules would let through what ours refuse",
    expected="what `doctor` measures on the live guest holds; io_uring and odd sockets are refused",
)
def old_runtime(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    for layer in sandbox.isolation.layers:
        text = f"{layer.name}: {layer.state}, {layer.detail}"
        if layer.state == "enforced":
            look.saw(text)
        else:
            look.expect(layer.remedy, f"{text}; said aloud, with a remedy")
    look.control(sandbox.isolation.layers, "layers are measured on the live guest")
    for name in ("r67_io_uring", "r69_socket_families"):
        if stage.setting.gvisor and name in ANSWERED_INSIDE:
            look.saw(f"{name}: gVisor's own kernel answers")
            continue
        execution, _ = stage.release(named(name), sandbox)
        achieved = "ACHIEVED" in execution.stdout
        look.expect(not achieved, f"{name}: tried on the live guest, refused", execution.stdout)
