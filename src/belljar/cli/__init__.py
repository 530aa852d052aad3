"""The command line. `entry` parses and answers for errors; each command is a file of its own."""

from belljar.cli.entry import main

__all__ = ["main"]
