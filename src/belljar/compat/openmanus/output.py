"""CommandOutput: what a command wrote, as the text that OpenManus gives, and its status."""

from __future__ import annotations

from typing import Self

from belljar.sandbox.shell import ShellResult


class CommandOutput(str):
    """The output of a command as a terminal shows it: both streams, in the order in which they
    came, without the newline at the very end."""

    __slots__ = ("exit_code", "stderr", "stdout")

    exit_code: int  # as a shell has it: 128 and more if a signal ended it
    stdout: str  # exactly
    stderr: str

    @classmethod
    def of(cls, result: ShellResult) -> Self:
        made = cls(result.output.removesuffix("\n"))
        made.exit_code = result.status
        made.stdout = result.stdout
        made.stderr = result.stderr
        return made
