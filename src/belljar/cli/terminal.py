"""What the commands print: rich for a person at a terminal, plain text for everything else.

A guest's text is escaped before it reaches a terminal: it could clear the screen, fake a prompt or
write to the clipboard. In a pipe it passes unchanged, as a program expects.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from belljar.backends.linux.safe_dir import write_file
from belljar.errors import ExecutionError, FileError
from belljar.results.result import CHART, TABLE
from belljar.text import format_bytes, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from belljar.results.execution import Execution, Result


_STYLES = {
    "enforced": "green",
    "ok": "green",
    "best-effort": "yellow",
    "absent": "red",
    "no": "red",
}


class Writer:
    """Passes a guest's text on to a stream of this process."""

    def __init__(self, stream: TextIO, *, raw: bool = False) -> None:
        self._stream = stream
        self._escape = stream.isatty() and not raw
        self._line_is_open = False

    def write(self, text: str) -> None:
        if text:
            self._stream.write(printable(text) if self._escape else text)
            self._stream.flush()
            self._line_is_open = not text.endswith("\n")

    def write_lines(self, text: str) -> None:
        """Write on separate lines, whatever was written before."""
        self.write("\n" * self._line_is_open + text + "\n" * (not text.endswith("\n")))


def say(text: str) -> None:
    """Print a message of Belljar to stderr. It may quote the guest."""
    sys.stdout.flush()
    print(f"belljar: {printable(text)}", file=sys.stderr, flush=True)


def cannot_write(path: Path, error: OSError) -> FileError:
    message = f"cannot write {str(path)!r}: {error.strerror}"
    return FileError(message, errno=error.errno or 0, path=str(path))


size = format_bytes


def seconds(duration: float) -> str:
    return f"{duration * 1000:.1f} ms" if duration < 1 else f"{duration:.2f} s"


def one_line(text: str) -> str:
    """Escape text for one cell of a table."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def heading(text: str) -> None:
    if sys.stdout.isatty():
        from rich.text import Text

        _console().print(Text(text, style="bold"))
    else:
        print(text)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> None:
    """Columns on stdout: coloured on a terminal (unless NO_COLOR), aligned text elsewhere."""
    shown = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(shown, header)
        return
    everything = [*([header] if header else []), *shown]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    for row in everything:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {'  '.join(cells)}".rstrip())


def _rich_table(rows: Sequence[Sequence[str]], header: Sequence[str] | None) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_header=header is not None, header_style="bold", padding=(0, 2))
    for index in range(len(rows[0]) if rows else len(header or ())):
        drawn.add_column(header[index] if header else "", overflow="fold")
    for row in rows:
        # Text, not str: rich must not read a cell as markup.
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    _console().print(drawn)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


# Beginnings of notes about the value, and about later cells in the same sandbox.
_VALUE_NOTES = ("value ",)
_LATER_CELL_NOTES = ("variables ",)


class Presenter:
    """Shows a run as it goes: its output, then the value or traceback, then Belljar's messages."""

    def __init__(
        self,
        *,
        raw: bool,
        quiet: bool,  # only the code's output and errors
        later: bool,  # another cell may follow: show notes about it too
        cost: bool,
        files: ResultFiles | None = None,
    ) -> None:
        self._stdout = Writer(sys.stdout, raw=raw)
        self._stderr = Writer(sys.stderr, raw=raw)
        self._quiet = quiet
        self._hidden_notes = _VALUE_NOTES if later else (*_VALUE_NOTES, *_LATER_CELL_NOTES)
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
        # The value of the last expression is printed at the end, as in a REPL.
        if not result.is_main_result and result.text is not None and not self._quiet:
            self._stdout.write_lines(self._shown(result, result.text))
        self.save(result)
        if self._files is None and has_picture(result) and not self._said_how_to_save:
            self._said_how_to_save = True
            self.remark("the code showed a picture; --out DIR saves such results")

    def save(self, result: Result) -> None:
        """Save to the directory of --out, if one was given. A full disk does not stop the code."""
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
            say(str(error))

    def finish(self, execution: Execution, *, without: str | None = None) -> None:
        """`without`: skip notes with this text, because the caller prints a better one."""
        if execution.error is not None and execution.error.traceback:
            self._stderr.write_lines(execution.error.traceback)
        elif execution.text is not None and not self._quiet:
            main = [result for result in execution.results if result.is_main_result]
            text = execution.text
            self._stdout.write_lines(self._shown(main[-1], text) if main else text)
        if execution.outcome not in ("ok", "exit") and (
            execution.outcome != "error" or execution.error is None
        ):
            say(_outcome_message(execution))
        if execution.logs.background and not self._quiet:
            self._stderr.write_lines("".join(execution.logs.background))
        if execution.policy is not None and execution.outcome == "rejected":
            # Its notes are the first of these findings.
            for finding in execution.policy.findings:
                say(f"line {finding.line}: {finding.message} [{finding.rule}]: {finding.remedy}")
        else:
            self.say_notes(execution, without=without)
        if self._cost:
            self.remark(describe_cost(execution))

    def say_notes(self, execution: Execution, *, without: str | None = None) -> None:
        # Even --quiet prints why the sandbox ended (--lifetime) and that files were lost.
        always = execution.outcome in ("killed", "lost") or execution.saved is False
        for note in execution.notes:
            if always:
                say(note)
            elif not (note.startswith(self._hidden_notes) or (without and without in note)):
                self.remark(note)

    def _shown(self, result: Result, text: str) -> str:
        """A table is drawn on a terminal; a program gets the text unchanged."""
        if TABLE not in result.raw or not sys.stdout.isatty():
            return text
        from belljar.results import display

        table = display.render_table(result)
        return text if table is None else _draw(table)

    def remark(self, text: str) -> None:
        """Print a message of Belljar, unless --quiet."""
        if not self._quiet:
            say(text)


def _draw(table: Table) -> str:
    """As text without colours, because the Writer escapes everything for the terminal."""
    import io

    from rich.console import Console

    # rich draws lines or ASCII, depending on the encoding of its file.
    file = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding)
    width = shutil.get_terminal_size().columns
    console = Console(file=file, width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def _outcome_message(execution: Execution) -> str:
    try:
        execution.raise_for_outcome()
    except ExecutionError as failure:
        return failure.message
    return execution.outcome.value


def describe_cost(execution: Execution) -> str:
    """One line: outcome, time, memory and output."""
    usage = execution.usage
    parts = [f"{execution.outcome} in {seconds(usage.wall)}"]
    if usage.cpu is not None:
        parts.append(f"cpu {seconds(usage.cpu)}")
    if usage.peak_memory is not None:
        parts.append(f"peak memory {size(usage.peak_memory)}")
    parts.append(f"output {size(usage.output_bytes)}")
    return ", ".join(parts)


EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
    "text/markdown": "md",
    "text/latex": "tex",
    "application/json": "json",
    CHART: "chart.json",
    "text/csv": "csv",
}
# Some libraries put their version into the MIME type.
_FAMILIES = {"application/vnd.plotly.": "plotly.json", "application/vnd.vega": "vega.json"}
_PICTURES = ("image/png", "image/jpeg", "image/svg+xml", "application/pdf")


class ResultFiles:
    """Saves rich results as DIR/result-1.png, DIR/result-2.csv, ...; Belljar chooses the names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def save(self, result: Result) -> tuple[list[Path], list[str]]:
        """Save every format except plain text; a result that has no other takes no number.

        Returns the files, and remarks about formats that could not be saved.
        """
        contents = {_extension(mime): data for mime, data in result.raw.items() if _extension(mime)}
        remarks = []
        if TABLE in result.raw and "csv" not in contents:
            remarks.append("no CSV was saved: the table is too large or contains lists")
        if not contents:
            return [], remarks
        self._count += 1
        return [self._write(end, data) for end, data in contents.items()], remarks

    def _write(self, extension: str, data: str | bytes) -> Path:
        path = self._directory / f"result-{self._count}.{extension}"
        raw = data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace")
        try:
            write_file(path, raw)  # the code may be able to write there too
        except OSError as error:
            raise cannot_write(path, error) from error
        return path


def _extension(mime: str) -> str:
    families = (end for start, end in _FAMILIES.items() if mime.startswith(start))
    return EXTENSIONS.get(mime) or next(families, "")


def has_picture(result: Result) -> bool:
    return any(mime in result.raw for mime in _PICTURES)
