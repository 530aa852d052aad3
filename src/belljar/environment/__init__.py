"""Which Python and which packages a guest has: described, built once with uv, kept by content."""

from belljar.environment.environment import Built, Environment, build, list_built, remove, resolve

__all__ = ["Built", "Environment", "build", "list_built", "remove", "resolve"]
