"""From a container in which everything is installed to the image: its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from belljar.backends.docker import owner
from belljar.backends.docker.client.engine import Engine
from belljar.backends.docker.facts import Facts
from belljar.backends.docker.images import key
from belljar.backends.docker.images.build_inputs import USER_ID, Order
from belljar.backends.docker.images.build_script import ROOT

PYTHON = f"{ROOT}/bin/python"
TIMEOUT = 600.0  # seconds; some hundred megabytes are copied, or at least counted
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def commit(
    engine: Engine, container: str, order: Order, told: Mapping[str, Any], facts: Facts
) -> str:
    """Make the image, and give its id. `told`: what the steps in the container said at the end."""
    repository, _, tag = order.tag.rpartition(":")
    # Its one program waits for nothing but the end, so it need not be paused.
    query = {"container": container, "repo": repository, "tag": tag, "pause": False}
    config = configuration(order, told)
    if facts.engine == "podman":  # reads a configuration, and forgets it
        query["changes"] = changes(config)
    made = await engine.request("POST", "/commit", query=query, body=config, timeout=TIMEOUT)
    image = str(made["Id"])
    if facts.engine == "podman":  # gives the name only now and then
        await engine.request("POST", f"/images/{image}/tag", query={"repo": repository, "tag": tag})
    return image


def configuration(order: Order, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a container of the image has by itself. To this the engine adds what the build
    container had, where this says nothing: that one therefore has no variables."""
    inherited = (order.base.get("Config") or {}).get("Env") or []
    path = dict(each.partition("=")[::2] for each in inherited).get("PATH") or _DEFAULT_PATH
    # Containers of the image have its labels, and labels cannot be taken away: emptied, they name
    # no owner.
    no_owner = dict.fromkeys(owner.labels(""), "")
    return {
        "Env": [f"PATH={ROOT}/bin:{path}", f"VIRTUAL_ENV={ROOT}"],
        "Entrypoint": [],
        "Cmd": [PYTHON],
        "User": f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/workspace",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": no_owner | key.labels(order.wanted, order.key, told),
    }


def changes(config: Mapping[str, Any]) -> str:
    """The same as instructions of a Dockerfile. Values go without quotes, as Podman reads them;
    none has white space."""
    return "\n".join(
        [
            *(f"ENV {each}" for each in config["Env"]),
            f"ENTRYPOINT {json.dumps(config['Entrypoint'])}",
            f"CMD {json.dumps(config['Cmd'])}",
            f"USER {config['User']}",
            f"WORKDIR {config['WorkingDir']}",
            *(f"LABEL {name}={value}" for name, value in config["Labels"].items()),
        ]
    )
