"""Rich results as files: DIR/result-1.png, result-2.csv, and so on. The names are ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from belljar.backends.linux.safe_dir import write_file
from belljar.errors import FileError
from belljar.results.result import CHART, TABLE

if TYPE_CHECKING:
    from belljar.results.execution import Result

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
# Of libraries that put their version into the name.
_FAMILIES = {"application/vnd.plotly.": "plotly.json", "application/vnd.vega": "vega.json"}
_PICTURES = ("image/png", "image/jpeg", "image/svg+xml", "application/pdf")


class ResultFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def save(self, result: Result) -> tuple[list[Path], list[str]]:
        """Every format but plain text; a result without any takes no number.

        Gives the files, and what there is to say about a format that could not be made.
        """
        contents = {_extension(mime): data for mime, data in result.raw.items() if _extension(mime)}
        remarks = []
        if TABLE in result.raw and "csv" not in contents:
            remarks.append("no CSV: the table is too large, or has lists in it")
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
            raise FileError(
                f"cannot write {str(path)!r}: {error.strerror}",
                errno=error.errno or 0,
                path=str(path),
            ) from error
        return path


def _extension(mime: str) -> str:
    families = (end for start, end in _FAMILIES.items() if mime.startswith(start))
    return EXTENSIONS.get(mime) or next(families, "")


def has_picture(result: Result) -> bool:
    return any(mime in result.raw for mime in _PICTURES)
