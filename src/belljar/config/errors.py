"""What is wrong with a configuration, and where."""

from __future__ import annotations

from belljar.errors import InvalidOption


class ConfigError(InvalidOption):
    """A configuration that cannot be used; the message says which file and key, or variable."""
