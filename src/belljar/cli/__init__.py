"""The command line. `entry` parses and answers for errors; each command is a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; see `exit_codes`."""
    if argv is None and sys.argv[1:2] == ["run"] and sys.platform == "linux":
        from belljar.backends.native import spawn

        spawn.prepare()  # its interpreter starts while ours imports the modules of the command
    from belljar.cli import entry

    return entry.main(argv)
