"""What building and fetching images tells, in the manner of environments."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from belljar.backends.docker.images.key import without_password
from belljar.environment.uv_build import BuildProgress, Listener, Step, open_listener
from belljar.text import printable

Progress = Listener | Literal["auto"] | None


class Teller:
    """Says what happens to one image; all text is made fit to be shown."""

    def __init__(self, name: str, listener: Listener, *, prints: bool) -> None:
        self._name = name
        self._listener = listener
        self._prints = prints
        self._secrets: frozenset[str] = frozenset()

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on nothing of these is said."""
        self._secrets |= frozenset(secrets)

    def _shown(self, text: str) -> str:
        return printable(without_password(text, self._secrets)).replace("\n", " ")

    def say(self, step: Step, text: str, packages: int | None = None) -> None:
        text = self._shown(text)
        self._listener(
            BuildProgress(environment=self._name, step=step, text=text, packages=packages)
        )

    def note(self, text: str) -> None:
        """Something that must be seen, not only flit by."""
        if self._prints:
            print(f"belljar: note: {self._shown(text)}", file=sys.stderr, flush=True)
        else:
            self.say("resolving", f"note: {text}")


@contextmanager
def telling(name: str, progress: Progress) -> Iterator[Teller]:
    with open_listener(progress) as listener:
        yield Teller(name, listener, prints=progress == "auto")
