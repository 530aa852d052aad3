"""Configuration of a host process: files and environment variables, one schema for all.

    from belljar import Sandbox, config

    with Sandbox(**config.load().sandbox_options()) as sandbox:
        ...

Nothing is read before load() is called.
"""

from belljar.config.config_files import ConfigError, substitute
from belljar.config.loading import Config, load
from belljar.config.schema import Setting, schema

__all__ = ["Config", "ConfigError", "Setting", "load", "schema", "substitute"]
