"""The hostile programs of `escapes/`. The comments at the head of each are data:

row      row(s) of the threat list            expect   the result that the caller must get
limits   limits of the sandbox                larger   limits under which the oracle must trip
timeout  time limit of the cell               within   wall-clock seconds, at most
oracle   an extra check of the live guest     machine  the only architecture it is meant for
control  where the same program must succeed: "plain" (an unprivileged process), "namespace"
         (root of a bare namespace), "saved-root"; or "simulated by" a named simulation
trips    the oracle that must see it there    keeps    what must survive the attempt
next     "later": the attempt may also cost the next cell, but no later one
expect-user  replaces `expect` for an ordinary user's sandbox without control groups
"""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from belljar.limits import Limits

ESCAPES = Path(__file__).parent / "escapes"

# gVisor's own kernel answers these programs. What they achieve inside it is not judged; what they
# achieve outside it is.
ANSWERED_INSIDE = {
    *("r06_descriptors", "r09_user_namespace", "r11_setns", "r14_devices", "r15_ptrace"),
    *("r17_proc_mem", "r18_kill_others", "r20_fork_bomb", "r20_fork_limit", "r21_thread_limit"),
    *("r28_fill", "r29_inodes", "r32_descriptors", "r35_priority", "r67_io_uring", "r68_int80"),
    *("r68_x32", "r69_socket_families", "r77_power", "r78_kernel_helpers", "r79_kernel_secrets"),
    *("x_descriptors_to_init", "x_limits_of_init", "x_linger", "x_signals_to_init"),
    "x_unaccounted",
}

Pairs = dict[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    source: str
    head: dict[str, str]
    rows: tuple[int, ...]
    what: str  # it tries
    limits: Pairs
    larger: Pairs  # the limits of its control
    timeout: float  # seconds
    within: float  # seconds
    oracle: str
    control: str

    @property
    def allowed(self) -> Limits:
        """The limits that are requested, whatever the sandbox reports."""
        return Limits(**self.limits)  # type: ignore[arg-type]

    def expect(self, *, counted: bool) -> Pairs:
        text = self.head["expect"]
        return _pairs(text if counted else self.head.get("expect-user", text))

    @property
    def control_seconds(self) -> float:
        return 0.7 if self.head.get("trips") == "hang" else 30.0

    @property
    def marks_the_machine(self) -> bool:
        """True if other processes of this machine see what it does where nothing stops it."""
        return self.head.get("trips") == "host" or self.name == "r65_keys"

    @property
    def suits_this_machine(self) -> bool:
        return self.head.get("machine") in (None, platform.machine())


def _pairs(text: str) -> Pairs:
    pairs = (word.partition("=") for word in text.split())
    decoded = {name: value.encode().decode("unicode_escape") for name, _, value in pairs}
    return {name: int(value) if value.isdigit() else value for name, value in decoded.items()}


def load(path: Path) -> Program:
    source = path.read_text()
    head: dict[str, str] = dict(re.findall(r"^# ([a-z-]+): (.*)$", source, re.M))
    limits = _pairs(head.get("limits", ""))
    return Program(
        name=path.stem,
        source=source,
        head=head,
        rows=tuple(map(int, head["row"].split(","))),
        what=head["attempt"],
        limits=limits,
        larger={**limits, **_pairs(head.get("larger", ""))},
        timeout=float(head.get("timeout", 20)),
        within=float(head.get("within", 30)),
        oracle=head.get("oracle", "none"),
        control=head.get("control", "larger").split()[0].rstrip(",:"),
    )


@functools.cache
def programs() -> tuple[Program, ...]:
    return tuple(load(path) for path in sorted(ESCAPES.glob("[rx]*.py")))


def find_program(name: str) -> Program:
    return next(program for program in programs() if program.name == name)


def shared_source() -> str:
    """The module that every hostile program imports; it is sent with each of them."""
    return (ESCAPES / "hostile.py").read_text()
