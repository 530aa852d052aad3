"""Which Python and which packages a guest has: described, built once with uv, and cached."""

from belljar.environment.environment import Built, Environment, build, remove, resolve
from belljar.environment.store import list_built

__all__ = ["Built", "Environment", "build", "list_built", "remove", "resolve"]
