"""later"""
from __future__ import annotations
from belljar.backends.docker.engine import Engine
from belljar.backends.docker.image_progress import Progress
from belljar.backends.docker.settings import Docker
async def ensure(engine: Engine, docker: Docker, progress: Progress) -> str:
    raise NotImplementedError
