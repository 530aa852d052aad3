"""DockerSandbox: pandasai_docker's class of that name, by its signature.

    from belljar.compat.pandasai import DockerSandbox

It lives in a container where an engine answers, and natively otherwise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from belljar.backends.docker.settings import Docker
from belljar.compat import where
from belljar.compat.pandasai.sandbox import BelljarSandbox
from belljar.environment.environment import Environment
from belljar.limits import Limits
from belljar.sandbox.blocking import wait

DEFAULT_IMAGE = "pandasai-sandbox"
logger = logging.getLogger("belljar")


class DockerSandbox(BelljarSandbox):
    """`image_name` is an image that the engine has. If it has none of the name, one is built of
    `dockerfile_path`, and gets the name; without that, it is Belljar's environment with numpy,
    pandas, matplotlib.
    """

    def __init__(
        self,
        image_name: str = DEFAULT_IMAGE,
        dockerfile_path: str | os.PathLike[str] | None = None,
        *,
        backend: str | Docker | None = None,
        environment: str | Environment = "data",
        limits: Limits | Mapping[str, object] | None = None,
        timeout: float | None = None,
        memory: int | str | None = None,
        charts: str | os.PathLike[str] | None = None,
        sql_timeout: float = 60.0,
    ) -> None:
        self._image_name = image_name
        self._dockerfile_path = dockerfile_path
        super().__init__(
            backend=backend,
            environment=environment,
            limits=limits,
            timeout=timeout,
            memory=memory,
            charts=charts,
            sql_timeout=sql_timeout,
        )

    def _choose(self) -> list[dict[str, Any]]:
        # Said now, as there: an image on a backend that has none, a Dockerfile that is not there.
        placed = where.place_now(
            self._backend,
            image=self._image_name,
            default_image=DEFAULT_IMAGE,
            environment=self._environment,
            dockerfile=self._dockerfile_path,
        )
        if placed.backend == "native":
            return [dict(placed.options)]
        options = {"backend": placed.options["backend"]}
        if wait(where.has_image, self._image_name):
            return [{**options, "image": self._image_name}]
        if self._dockerfile_path is not None:
            engine = self._backend if isinstance(self._backend, Docker) else Docker()
            named = replace(engine, dockerfile=self._dockerfile_path, tag=self._image_name)
            return [{**options, "backend": named}]
        logger.info("no image %r: the environment %s", self._image_name, self._environment)
        places = [{**options, "environment": self._environment}]
        if self._image_name == DEFAULT_IMAGE and not where.asks_for_docker(self._backend):
            places.append({"backend": "native", "environment": self._environment})
        return places
