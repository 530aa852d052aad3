"""Rich results as files: DIR/result-1.png, result-2.html, and so on. The names are ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from belljar.errors import FileError

if TYPE_CHECKING:
    from belljar.execution import Result

EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
    "text/markdown": "md",
    "text/latex": "tex",
    "application/json": "json",
}
_PICTURES = ("image/png", "image/jpeg", "image/svg+xml", "application/pdf")


class ResultFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def save(self, result: Result) -> list[Path]:
        """Every format but plain text; a result without any takes no number."""
        formats = {mime: data for mime, data in result.data.items() if mime in EXTENSIONS}
        if not formats:
            return []
        self._count += 1
        saved = []
        for mime, data in formats.items():
            path = self._directory / f"result-{self._count}.{EXTENSIONS[mime]}"
            raw = data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace")
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                path.write_bytes(raw)
            except OSError as error:
                raise FileError(
                    f"cannot write {str(path)!r}: {error.strerror}",
                    errno=error.errno or 0,
                    path=str(path),
                ) from error
            saved.append(path)
        return saved


def has_picture(result: Result) -> bool:
    return any(mime in result.data for mime in _PICTURES)
