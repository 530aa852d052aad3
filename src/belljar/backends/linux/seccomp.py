"""The seccomp filter: seccomp.json, in Docker's profile format, made into classic BPF.

The same file is handed to Docker, where libseccomp compiles it. Both must mean the same, so a
profile is read strictly, and what libseccomp would resolve silently is an error here:

* two entries for one system call with different actions must be provably disjoint;
* an unconditional entry must be the only one for its system call (libseccomp drops the others);
* one entry compares an argument once (runc would turn "and" into "or").

The program first checks the ABI: a 64-bit process can enter the kernel by other doors (`int 0x80`,
x32), where the numbers mean other calls. Then a binary search over runs of system calls that share
a verdict, then, for a few calls, comparisons of arguments.

This file is pure: loading the filter into the kernel is done elsewhere.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROFILE = Path(__file__).with_name("seccomp.json")
_NUMBERS = Path(__file__).with_name("syscall_numbers.json")

# Values of SECCOMP_RET_*; the errno is in the low 16 bits.
KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
_ACTIONS = {
    "SCMP_ACT_ALLOW": ALLOW,
    "SCMP_ACT_ERRNO": ERRNO,
    "SCMP_ACT_KILL": 0,
    "SCMP_ACT_KILL_THREAD": 0,
    "SCMP_ACT_KILL_PROCESS": KILL_PROCESS,
    "SCMP_ACT_LOG": 0x7FFC0000,
}
EPERM = 1
_MAX_ERRNO = 4095

# machine: (name in profiles, AUDIT_ARCH_*). Both are little-endian.
_MACHINES = {
    "x86_64": ("SCMP_ARCH_X86_64", 0xC000003E),
    "aarch64": ("SCMP_ARCH_AARCH64", 0xC00000B7),
}
_X32_BIT = 0x40000000

_OPERATORS = ("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ")
_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF

# BPF: load a word of seccomp_data, mask it, compare it with a constant; jump; return.
_LOAD, _AND, _JUMP, _RETURN = 0x20, 0x54, 0x05, 0x06
_JEQ, _JGT, _JGE = 0x15, 0x25, 0x35
_AT_NR, _AT_ARCH, _AT_ARGS = 0, 4, 16
_MAX_INSTRUCTIONS = 4096
_REACH = 253  # of a conditional jump, with room for the two long jumps it may need


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One comparison of a 64-bit argument."""

    index: int  # which argument, 0 to 5
    op: str  # one of NE LT LE EQ GE GT MASKED_EQ
    value: int  # MASKED_EQ: what is left of the argument under `mask`
    mask: int = _U64  # MASKED_EQ only

    def excludes(self, other: Condition) -> bool:
        """Whether no argument can satisfy both, as far as can be seen from their bits."""
        if self.index != other.index:
            return False
        if {self.op, other.op} == {"EQ", "NE"}:
            return self.value == other.value
        if {self.op, other.op} <= {"EQ", "MASKED_EQ"}:
            return (self.value ^ other.value) & self.mask & other.mask != 0
        return False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One entry: these calls, when all conditions hold, get this action."""

    names: tuple[str, ...]
    action: int  # SECCOMP_RET_* with its errno
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile that has been read and found sound."""

    default: int  # the action when no rule matches
    architectures: tuple[str, ...]
    rules: tuple[Rule, ...]


@lru_cache(maxsize=1)
def syscall_numbers() -> dict[str, dict[str, int]]:
    """Number of every system call by machine and name."""
    numbers: dict[str, dict[str, int]] = json.loads(_NUMBERS.read_text())
    return numbers


@lru_cache(maxsize=8)
def load_profile(path: Path = PROFILE) -> Profile:
    """Read a profile; ValueError names what is wrong in it and where."""
    try:
        return parse_profile(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"seccomp profile {path}: {error}") from None


def parse_profile(document: object) -> Profile:
    top = _table(
        document, "the profile", "defaultAction defaultErrnoRet architectures syscalls comment"
    )
    architectures = _strings(top.get("architectures"), "architectures")
    known = {arch for arch, _ in _MACHINES.values()}
    for arch in architectures:
        if arch not in known:
            raise ValueError(f"unknown architecture {arch!r}")
    entries = top.get("syscalls")
    if not isinstance(entries, list):
        raise ValueError("syscalls must be a list")
    rules = tuple(_rule(entry, f"syscalls[{at}]") for at, entry in enumerate(entries))
    _refuse_ambiguity(rules)
    default = _action(top, "defaultAction", "defaultErrnoRet", "the profile")
    return Profile(default=default, architectures=architectures, rules=rules)


def _rule(entry: object, where: str) -> Rule:
    table = _table(entry, where, "names action errnoRet args comment")
    names = _strings(table.get("names"), f"{where}.names")
    for name in names:
        if not any(name in numbers for numbers in syscall_numbers().values()):
            raise ValueError(f"{where}: unknown system call {name!r}")
    args = table.get("args", [])
    if not isinstance(args, list):
        raise ValueError(f"{where}.args must be a list")
    conditions = tuple(_condition(arg, f"{where}.args[{at}]") for at, arg in enumerate(args))
    if len({condition.index for condition in conditions}) < len(conditions):
        raise ValueError(f"{where}: compares one argument twice")
    action = _action(table, "action", "errnoRet", where)
    return Rule(names=names, action=action, conditions=conditions)


def _condition(arg: object, where: str) -> Condition:
    table = _table(arg, where, "index value valueTwo op")
    index = _number(table.get("index"), f"{where}.index", 5)
    op = str(table.get("op")).removeprefix("SCMP_CMP_")
    if f"SCMP_CMP_{op}" != table.get("op") or op not in _OPERATORS:
        raise ValueError(f"{where}: unknown operator {table.get('op')!r}")
    first = _number(table.get("value"), f"{where}.value", _U64)
    second = _number(table.get("valueTwo", 0), f"{where}.valueTwo", _U64)
    if op == "MASKED_EQ":
        if not first or second & ~first:
            raise ValueError(f"{where}: no bit is compared, or one that the mask has not")
        return Condition(index=index, op=op, value=second, mask=first)
    if second:
        raise ValueError(f"{where}: valueTwo has no meaning for {op}")
    return Condition(index=index, op=op, value=first)


def _action(table: dict[str, object], key: str, errno_key: str, where: str) -> int:
    name = table.get(key)
    if not isinstance(name, str) or name not in _ACTIONS:
        raise ValueError(f"{where}: unknown action {name!r}")
    if name == "SCMP_ACT_ERRNO":
        # Docker's errno for an entry that names none.
        return ERRNO | _number(table.get(errno_key, EPERM), f"{where}.{errno_key}", _MAX_ERRNO)
    if errno_key in table:
        raise ValueError(f"{where}: {errno_key} has no meaning for {name}")
    return _ACTIONS[name]


def _refuse_ambiguity(rules: Iterable[Rule]) -> None:
    seen: dict[str, list[Rule]] = {}
    for rule in rules:
        for name in rule.names:
            for other in seen.setdefault(name, []):
                if not (rule.conditions and other.conditions):
                    raise ValueError(f"{name}: an unconditional entry must be its only one")
                if rule.action != other.action and not any(
                    mine.excludes(theirs) for mine in rule.conditions for theirs in other.conditions
                ):
                    raise ValueError(f"{name}: entries with different actions may overlap")
            seen[name].append(rule)


def _table(value: object, where: str, keys: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    for key in value:
        if key not in keys.split():
            raise ValueError(f"{where}: unknown key {key!r}")
    return value


def _strings(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{where} must be a list of names")
    return tuple(value)


def _number(value: object, where: str, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise ValueError(f"{where} must be a whole number from 0 to {maximum}, not {value!r}")
    return value


@lru_cache(maxsize=8)
def compile_profile(profile: Profile, machine: str, *, deny: tuple[str | Rule, ...] = ()) -> bytes:
    """The filter for `machine` (as os.uname() says it): an array of struct sock_filter.

    `deny` names further calls to refuse with EPERM, whatever the profile says about them, or has
    rules that come before those of the profile.
    """
    if machine not in _MACHINES or _MACHINES[machine][0] not in profile.architectures:
        raise ValueError(f"the seccomp profile is not for {machine!r}")
    by_number: dict[int, list[Rule]] = {}
    denied = [r if isinstance(r, Rule) else Rule(names=(r,), action=ERRNO | EPERM) for r in deny]
    for rule in (*denied, *profile.rules):  # the first match wins
        for name in rule.names:
            if not any(name in numbers for numbers in syscall_numbers().values()):
                raise ValueError(f"unknown system call {name!r}")
            number = syscall_numbers()[machine].get(name)
            if number is not None:  # None: a call of the other machine only
                by_number.setdefault(number, []).append(rule)

    code = _Code()
    kill = code.returns(KILL_PROCESS)
    default = code.returns(profile.default)
    runs = [(0, default)]  # first number of a run of calls, where its verdict is
    for number in range(max(by_number, default=0) + 2):
        target = _verdict(code, by_number.get(number, ()), default)
        if target != runs[-1][1]:
            runs.append((number, target))
    start = _search(code, runs)
    if machine == "x86_64":
        start = code.branch(_JGE, _X32_BIT, kill, start)
    start = code.load(_AT_NR, start)
    start = code.branch(_JEQ, _MACHINES[machine][1], start, kill)
    code.load(_AT_ARCH, start)
    return code.assemble()


class _Code:
    """Instructions, written from the last to the first, so that every target of a jump is known.

    A label is the distance of an instruction from the end of the program.
    """

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, int, int]] = []
        self._first: dict[int, int] = {}  # action -> label: one verdict, one label
        self._nearest: dict[int, int] = {}  # action -> the copy written last

    def emit(self, op: int, k: int, yes: int = 0, no: int = 0) -> int:
        self._instructions.append((op, yes, no, k))
        return len(self._instructions) - 1

    def returns(self, action: int) -> int:
        if action not in self._first:
            self._first[action] = self._nearest[action] = self.emit(_RETURN, action)
        return self._first[action]

    def load(self, offset: int, then: int) -> int:
        here = len(self._instructions)
        if then != here - 1:
            self.emit(_JUMP, here - 1 - then)
        return self.emit(_LOAD, offset)

    def branch(self, op: int, k: int, yes: int, no: int) -> int:
        yes, no = self._within_reach(yes), self._within_reach(no)
        here = len(self._instructions)
        return self.emit(op, k, here - 1 - yes, here - 1 - no)

    def _within_reach(self, target: int) -> int:
        """A conditional jump has 8 bits: go by way of a copy, or of a long jump, if it is far."""
        here = len(self._instructions)
        op, _, _, k = self._instructions[target]
        if op == _RETURN and here - target > _REACH:
            target = self._nearest[k]
        if here - target <= _REACH:
            return target
        if op == _RETURN:
            self._nearest[k] = self.emit(_RETURN, k)
            return self._nearest[k]
        return self.emit(_JUMP, here - 1 - target)

    def assemble(self) -> bytes:
        if len(self._instructions) > _MAX_INSTRUCTIONS:
            raise ValueError(f"the seccomp filter has {len(self._instructions)} instructions")
        return b"".join(struct.pack("<HBBI", *each) for each in reversed(self._instructions))


def _verdict(code: _Code, rules: Sequence[Rule], target: int) -> int:
    """Where to go for a system call with these rules; `target`: if none matches."""
    for rule in reversed(rules):
        missed, target = target, code.returns(rule.action)
        for condition in rule.conditions:
            target = _compare(code, condition, target, missed)
    return target


def _compare(code: _Code, condition: Condition, yes: int, no: int) -> int:
    """BPF has 32-bit registers: an argument is compared in halves, the high one first."""
    op, value, mask = condition.op, condition.value, condition.mask
    if op in ("NE", "LT", "LE"):
        op, yes, no = {"NE": "EQ", "LT": "GE", "LE": "GT"}[op], no, yes
    low = _AT_ARGS + 8 * condition.index
    high = low + 4
    if op in ("GE", "GT"):
        target = code.load(low, code.branch(_JGE if op == "GE" else _JGT, value & _U32, yes, no))
        target = code.branch(_JEQ, value >> 32, target, no)
        return code.load(high, code.branch(_JGT, value >> 32, yes, target))
    for at, want, part in ((low, value & _U32, mask & _U32), (high, value >> 32, mask >> 32)):
        if part:
            target = code.branch(_JEQ, want, yes, no)
            if part != _U32:
                target = code.emit(_AND, part)
            yes = code.load(at, target)
    return yes


def _search(code: _Code, runs: list[tuple[int, int]]) -> int:
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    above = _search(code, runs[middle:])
    return code.branch(_JGE, runs[middle][0], above, _search(code, runs[:middle]))


# Pages that can be held without being in any process's memory; refused where no cgroup counts
# them. mmap: MAP_SHARED and MAP_ANONYMOUS together.
HIDDEN_MEMORY = (
    "memfd_create",
    "shmget",
    Rule(
        names=("mmap",),
        action=ERRNO | EPERM,
        conditions=(Condition(index=3, op="MASKED_EQ", mask=0x21, value=0x21),),
    ),
)


_TMPFILE = 0o20000000  # the bit of O_TMPFILE that O_DIRECTORY has not


def _refuse(names: Sequence[str], mode: int, flags: int | None = None) -> Iterator[Rule]:
    """Refuse calls that set a set-id bit: `mode` is the index of the mode argument; `flags` is the
    index of the argument that says whether a file is created."""
    action = ERRNO | EPERM
    for bit in (0o4000, 0o2000):
        has_bit = Condition(index=mode, op="MASKED_EQ", mask=bit, value=bit)
        if flags is None:
            yield Rule(names=tuple(names), action=action, conditions=(has_bit,))
            continue
        for made in (os.O_CREAT, _TMPFILE):
            makes = Condition(index=flags, op="MASKED_EQ", mask=made, value=made)
            yield Rule(names=tuple(names), action=action, conditions=(has_bit, makes))


# For guests with a writable mount: files they make there must not run with the owner's rights.
# (The guest's mounts are nosuid, the host's view of the same files is not.)
SET_ID: tuple[str | Rule, ...] = (
    *_refuse(["chmod", "fchmod", "creat", "mknod"], mode=1),
    *_refuse(["fchmodat", "fchmodat2", "mknodat"], mode=2),
    *_refuse(["open"], mode=2, flags=1),
    *_refuse(["openat"], mode=3, flags=2),
    "openat2",  # its mode is behind a pointer
)
