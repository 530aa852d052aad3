"""The benchmark's end of a peer's process: orders out, answers back, and its log."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

DRIVE = Path(__file__).parent / "peers" / "drive.py"
START = 120.0  # seconds to be ready, images and environments aside


class Failed(Exception):
    """A peer that could not do what it was asked; the words are its own."""


@dataclass
class Contender:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    about: dict[str, Any] = field(default_factory=dict)
    missing: str = ""
    failures: dict[str, str] = field(default_factory=dict)  # work: why

    @classmethod
    def start(cls, name: str, python: str, surroundings: dict[str, Any], logs: Path) -> Self:
        log = logs / f"{name}.log"
        environ = os.environ | {"BELLJAR_BENCH": json.dumps(surroundings)}
        if python != sys.executable:
            environ.pop("PYTHONPATH", None)  # ours is nothing for the others' environments
        with log.open("wb") as file:
            process = subprocess.Popen(
                [python, "-P", str(DRIVE), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environ,
                bufsize=0,
                # Ctrl-C is for the benchmark: a peer ends when its input does, and leaves nothing.
                start_new_session=True,
            )
        contender = cls(name, process, log)
        try:
            contender.about = contender._answer(START)
        except Failed as error:
            contender.missing = str(error)
        return contender

    @classmethod
    def absent(cls, name: str, why: str) -> Self:
        done = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
        return cls(name, done, Path(os.devnull), missing=why)

    @property
    def title(self) -> str:
        return str(self.about.get("title", self.name))

    def why_not(self, work: str) -> str:
        """Why this work is not measured here; nothing if it is."""
        if self.missing:
            return self.missing
        if work in self.about["works"]:
            return ""
        cannot = self.about["cannot"]
        return str(cannot.get(work, cannot.get("*", "does not apply")))

    def ask(self, work: str, timeout: float, /, **order: object) -> Any:
        if self.missing:
            raise Failed(self.missing)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"work": work, **order}).encode() + b"\n")
        except BrokenPipeError:
            raise Failed(self._gone()) from None
        return self._answer(timeout)

    def _answer(self, timeout: float) -> Any:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                # It is in the middle of something: nothing more can be asked of it.
                self.close(grace=1)
                self.missing = f"gave no answer in {timeout:.0f} seconds"
                raise Failed(self.missing)
        line = bytearray()
        while not line.endswith(b"\n"):
            part = self.process.stdout.read(1 << 20)
            if not part:
                self.missing = self._gone()
                raise Failed(self.missing)
            line += part
        answer = json.loads(line)
        if "value" not in answer:
            raise Failed(str(answer.get("missing") or answer.get("failed")))
        return answer["value"]

    def _gone(self) -> str:
        self.process.wait()
        text = self.log.read_text(errors="replace").strip() if self.log.is_file() else ""
        return f"its process ended: {text.splitlines()[-1][:160] if text else 'no words'}"

    def close(self, grace: float = 30) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
