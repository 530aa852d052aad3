"""Which interpreter a peer runs on, and what all of them are told of this machine.

Ours run on the project's. The others have a virtual environment of their own (.venv/peers), with
the Environment's versions of numpy, pandas and matplotlib; PandasAI has one more, because it needs
others. Nothing of a peer is installed into the project's environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from belljar import EnvironmentBuildError, Sandbox, SandboxError
from belljar.environment.environment import BUILTIN, Built, Environment, build, resolve

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ("ipykernel", "jupyter_client", "llm-sandbox[docker]", "smolagents[docker]")
# Since 3.12 objects can be immortal: the criteria have figures for before and since.
OTHER_FROM, OTHER_NEWER, OTHER_OLDER = (3, 12), ("3.13", "3.14", "3.12"), ("3.11",)
VERSIONS = (
    "import platform, pandas\n"
    "print(f'Python {platform.python_version()}, pandas {pandas.__version__}')"
)
GATEWAY = ("ipykernel", "jupyter_client", "jupyter_kernel_gateway")

PEERS = {  # name: which interpreter
    "belljar_native": "ours",
    "belljar_other": "ours",
    "belljar_async": "ours",
    "belljar_pool": "ours",
    "belljar_docker": "ours",
    "belljar_docker_pool": "ours",
    "belljar_gvisor": "ours",
    "python_c": "peers",
    "subprocess_imports": "peers",
    "bubblewrap": "peers",
    "openmanus": "peers",
    "jupyter": "peers",
    "smolagents_local": "peers",
    "docker_run": "peers",
    "docker_exec": "peers",
    "gvisor_run": "peers",
    "llm_sandbox": "peers",
    "smolagents_docker": "peers",
    "pandasai_docker": "pandasai",
}
USES_IMAGE = re.compile("docker|gvisor|llm")


class NotInstalled(Exception):
    """An interpreter that could not be made; the words say why."""


def packages_of(built: Built) -> Path:
    version = "python{}.{}".format(*built.interpreter.version[:2])
    return built.path / "lib" / version / "site-packages"


def pinned(built: Built) -> list[str]:
    """numpy, pandas, matplotlib and pyarrow as the Environment has them."""
    found = []
    for path in sorted(packages_of(built).glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        if name in ("matplotlib", "numpy", "pandas", "pyarrow"):
            found.append(f"{name}=={version}")
    return found


def versions(built: Built) -> str:
    pandas = next((one for one in pinned(built) if one.startswith("pandas==")), "no pandas")
    return f"Python {'.'.join(map(str, built.interpreter.version))}, {pandas.replace('==', ' ')}"


def python_of_peers(built: Built) -> str:
    """Of .venv/peers, made when something about it has changed."""
    folder = Path(sys.prefix) / "peers"
    python = folder / "bin" / "python"
    wanted = [*REQUIREMENTS, *pinned(built)]
    stamp = "\n".join([built.interpreter.executable, *wanted])
    noted = folder / ".belljar-peers"
    if noted.is_file() and noted.read_text() == stamp:
        return str(python)
    print(f"installing the peers into {folder}", file=sys.stderr)
    uv = [sys.executable, "-m", "uv"]
    make = [*uv, "venv", "-q", "--clear", "--python", built.interpreter.executable, str(folder)]
    install = [*uv, "pip", "install", "-q", "--python", str(python), *wanted]
    for command in (make, install):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalled(f"{' '.join(command[2:5])}: {done.stderr.strip()[-200:]}")
    noted.write_text(stamp)
    return str(python)


def python_of_pandasai() -> str:
    """Of .venv/pandasai, which the tests of the adapter use too."""
    script = (
        "source scripts/lib/setup.sh; source scripts/lib/pandasai.sh; "
        'prepare_pandasai >&2 || { echo "$why" >&2; exit 1; }; echo "$PANDASAI_PYTHON"'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["PandasAI cannot be installed"]
        raise NotInstalled(words[-1])
    return done.stdout.strip()


class Interpreters:
    """Each made once, when the first peer needs it."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._found: dict[str, str | NotInstalled] = {"ours": sys.executable}

    def of(self, peer: str) -> str:
        kind = PEERS[peer]
        if kind not in self._found:
            try:
                made = python_of_pandasai() if kind == "pandasai" else python_of_peers(self._built)
                self._found[kind] = made
            except NotInstalled as error:
                self._found[kind] = error
        found = self._found[kind]
        if isinstance(found, NotInstalled):
            raise found
        return found


def image_of(environment: Environment | str) -> tuple[str, str]:
    """The image that our docker backend uses for it, built if it is missing; what is in it."""
    with Sandbox(backend="docker", environment=environment) as sandbox:
        versions = sandbox.run_code(VERSIONS).raise_for_outcome().stdout.strip()
        where = sandbox.whereabouts
        assert where is not None
        inspect = ["docker", "inspect", "--format={{.Image}}", str(where.container)]
        done = subprocess.run(inspect, check=True, capture_output=True, text=True)
        return done.stdout.strip(), versions


def other_python(built: Built, chosen: str | None) -> dict[str, str]:
    """Another Python of this host with the same packages, for the costs that depend on it."""
    sys.path.append(str(ROOT / "tests" / "support"))
    from interpreters import interpreters

    here = {version: path or sys.executable for version, path in interpreters().items()}
    wanted = OTHER_NEWER if built.interpreter.version < OTHER_FROM else OTHER_OLDER
    path = chosen or next((here[version] for version in wanted if version in here), "")
    if not path:
        return {"no_other_python": f"none of Python {', '.join(wanted)} is installed here"}
    try:
        found = build(Environment(extends="data", python=path))
    except EnvironmentBuildError as error:
        return {"no_other_python": str(error).splitlines()[0][:160]}
    return {"other_python": path, "other_versions": versions(found)}


def surroundings(built: Built, names: list[str], python: str | None) -> dict[str, Any]:
    """What every peer is told: the interpreter, the packages, the images."""
    told: dict[str, Any] = {
        "python": built.interpreter.executable,
        "packages": str(packages_of(built)),
        "versions": versions(built),
        "scratch": tempfile.mkdtemp(prefix="belljar-bench-"),
    }
    if "belljar_other" in names:
        told |= other_python(built, python)
    images: list[tuple[str, Environment]] = []
    if any(USES_IMAGE.search(name) for name in names):
        images.append(("image", resolve("data")))
    if "smolagents_docker" in names:
        packages = (*BUILTIN["data"].packages, *GATEWAY)
        images.append(("gateway_image", Environment(name="gateway", packages=packages)))
    for key, environment in images:
        try:
            told[key], told[f"{key}_versions"] = image_of(environment)
        except (SandboxError, OSError, subprocess.CalledProcessError) as error:
            told[f"no_{key}"] = f"no image: {str(error).strip().splitlines()[0][:160]}"
    return told
