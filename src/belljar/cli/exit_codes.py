"""The exit codes of `belljar`. The help, the commands and the tests read this table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.results.execution import Execution

OK = 0
ERROR = 1
USAGE = 2
CANNOT_RUN = 120
FILE = 121
LOST = 122
INTERRUPTED = 130
KILLED = 128  # plus the number of the signal

_BY_OUTCOME = {
    "ok": OK,
    "error": ERROR,
    "lost": LOST,
    "output_limit": 123,
    "timeout": 124,
    "out_of_memory": 125,
    "rejected": 126,
    "cancelled": INTERRUPTED,
}

HELP = """\
exit codes:
  0     the code ran to its end
  1     the code raised an exception
  N     the code called sys.exit(N); --json tells such an N from those below
  2     wrong usage, or a file of this host that cannot be read; nothing ran
  120   the sandbox could not be started or used
  121   a file could not be put, fetched or saved
  122   the sandbox was lost while the code ran
  123   the code wrote more than --output
  124   the code ran longer than --timeout
  125   the code needed more than --memory
  126   a policy rejected the code; nothing ran
  128   the code ended its process without Python's exit (os._exit)
  128+N the code's process was killed by signal N (139: it crashed)
  130   interrupted (Ctrl-C)
"""


def from_execution(execution: Execution) -> int:
    """The exit code for this outcome."""
    if execution.outcome == "exit":
        return (execution.exit_code or 0) & 0xFF
    if execution.outcome == "killed":
        return KILLED + (execution.signal or 0)
    return _BY_OUTCOME[execution.outcome.value]
