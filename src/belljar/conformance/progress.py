"""How far the suite is: one line that is written over on a terminal, nothing elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_BAR = 20


class Line:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._began = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        if not self._shown:
            return
        if not what:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            return
        filled = _BAR * done // max(total, 1)
        bar = "#" * filled + "." * (_BAR - filled)
        seconds = time.monotonic() - self._began
        text = f"[{bar}] {done}/{total}  {seconds:.0f} s  {what}"
        room = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{text[:room]}")
        self._stream.flush()
