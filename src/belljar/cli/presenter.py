"""Shows a run as it goes: its output, then value or traceback, then what we have to say."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from belljar.cli import results, terminal
from belljar.cli.results import ResultFiles
from belljar.errors import ExecutionError, FileError
from belljar.results.result import TABLE

if TYPE_CHECKING:
    from rich.table import Table

    from belljar.results.execution import Execution, Result

# Notes for those who read the value, or run another cell after this one.
_OF_VALUES = ("value ",)
_OF_LATER_CELLS = ("variables ",)


class Presenter:
    def __init__(
        self,
        *,
        raw: bool,
        quiet: bool,  # nothing but the code's own output and errors
        later: bool,  # there may be another cell: say what concerns that, too
        cost: bool,
        files: ResultFiles | None = None,
    ) -> None:
        self._stdout = terminal.Writer(sys.stdout, raw=raw)
        self._stderr = terminal.Writer(sys.stderr, raw=raw)
        self._quiet = quiet
        self._unwanted = _OF_VALUES if later else (*_OF_VALUES, *_OF_LATER_CELLS)
        self._cost = cost
        self._files = files
        self.failed_to_save = False
        self._said_how_to_save = False

    @property
    def saves(self) -> bool:
        return self._files is not None

    def on_stdout(self, text: str) -> None:
        self._stdout.write(text)

    def on_stderr(self, text: str) -> None:
        self._stderr.write(text)

    def on_result(self, result: Result) -> None:
        # The value of the last expression is shown at the end, as in a REPL.
        if not result.is_main_result and result.text is not None and not self._quiet:
            self._stdout.write_lines(self._shown(result, result.text))
        self.save(result)
        if self._files is None and results.has_picture(result) and not self._said_how_to_save:
            self._said_how_to_save = True
            self.remark("the code showed a picture; save such results with --out DIR")

    def save(self, result: Result) -> None:
        """Where --out said, if it did. A disk that is full is no reason to stop the code."""
        if self._files is None:
            return
        try:
            saved, remarks = self._files.save(result)
            for path in saved:
                self.remark(f"saved {path}")
            for remark in remarks:
                self.remark(remark)
        except FileError as error:
            self.failed_to_save = True
            terminal.say(str(error))

    def finish(self, execution: Execution, *, without: str | None = None) -> None:
        """`without`: leave out notes with this text, because something better is said."""
        if execution.error is not None:
            self._stderr.write_lines(execution.error.traceback)
        elif execution.text is not None and not self._quiet:
            main = [result for result in execution.results if result.is_main_result]
            text = execution.text
            self._stdout.write_lines(self._shown(main[-1], text) if main else text)
        if execution.outcome not in ("ok", "exit") and (
            execution.outcome != "error" or execution.error is None
        ):
            terminal.say(_sentence(execution))
        if execution.outcome == "rejected" and execution.policy is not None:
            for finding in execution.policy.findings:
                terminal.say(f"line {finding.line}: {finding.message} [{finding.rule}]")
        if execution.logs.background and not self._quiet:
            self._stderr.write_lines("".join(execution.logs.background))
        self.say_notes(execution, without=without)
        if self._cost:
            self.remark(cost(execution))

    def say_notes(self, execution: Execution, *, without: str | None = None) -> None:
        # What ended it, such as --lifetime, and that files were lost, is said in any case.
        insist = execution.outcome in ("killed", "lost") or execution.saved is False
        for note in execution.notes:
            if insist:
                terminal.say(note)
            elif not note.startswith(self._unwanted) and (without is None or without not in note):
                self.remark(note)

    def _shown(self, result: Result, text: str) -> str:
        """A table is drawn for a person; a program gets the text as it is."""
        if TABLE not in result.raw or not sys.stdout.isatty():
            return text
        from belljar.results import display

        table = display.render_table(result)
        return text if table is None else _drawn(table)

    def remark(self, text: str) -> None:
        """One of our own sentences, unless nobody wants any."""
        if not self._quiet:
            terminal.say(text)


def _drawn(table: Table) -> str:
    """As text without colours: what goes to the terminal is escaped, ours with the guest's."""
    import io

    from rich.console import Console

    # rich asks the file what it can show: lines, or only ASCII.
    file = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding)
    width = shutil.get_terminal_size().columns
    console = Console(file=file, width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def _sentence(execution: Execution) -> str:
    try:
        execution.raise_for_outcome()
    except ExecutionError as failure:
        return failure.message
    return execution.outcome.value


def cost(execution: Execution) -> str:
    """One line: what it was and what it cost."""
    usage = execution.usage
    parts = [f"{execution.outcome} in {terminal.seconds(usage.wall)}"]
    if usage.cpu is not None:
        parts.append(f"cpu {terminal.seconds(usage.cpu)}")
    if usage.peak_memory is not None:
        parts.append(f"peak memory {terminal.size(usage.peak_memory)}")
    parts.append(f"output {terminal.size(usage.output_bytes)}")
    return ", ".join(parts)
