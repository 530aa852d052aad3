"""How a build tells what it does: a display on a terminal, two lines elsewhere, or a callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Step = Literal["waiting", "resolving", "downloading", "installing", "compiling", "finished"]


@dataclass(frozen=True, kw_only=True)
class BuildProgress:
    """One piece of news from the build of an environment."""

    environment: str  # its name
    step: Step
    text: str  # for people, one line
    packages: int | None = None  # how many are installed in all, once known
    at: float = field(default_factory=time.monotonic)


Listener = Callable[[BuildProgress], None]


@contextmanager
def listening(progress: Listener | Literal["auto"] | None) -> Iterator[Listener]:
    """The listener for what the caller asked for; the display is closed at the end."""
    if progress is None:
        yield lambda news: None
    elif progress != "auto":
        yield progress
    elif sys.stderr is not None and sys.stderr.isatty():
        with _display() as listener:
            yield listener
    else:
        yield _Lines()


class _Lines:
    """The first news and the last, as plain lines; nothing at all when nothing is built."""

    def __init__(self) -> None:
        self._said_start = False

    def __call__(self, news: BuildProgress) -> None:
        if news.step in ("waiting", "finished") or not self._said_start:
            print(f"belljar: {news.text}", file=sys.stderr, flush=True)
        self._said_start = self._said_start or news.step != "waiting"


@contextmanager
def _display() -> Iterator[Listener]:
    # Imported here: only a first build on a terminal needs it.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    # No markup: the text holds names out of package indexes.
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("…")

        def show(news: BuildProgress) -> None:
            display.update(task, description=f"{news.environment}: {news.text}")
            if news.step == "finished":
                display.console.print(f"✓ {news.text}", markup=False, highlight=False)

        yield show
