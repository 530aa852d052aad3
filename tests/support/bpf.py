"""Classic BPF as seccomp has it: what the kernel takes as a filter, and what it would answer.

An interpreter to test compilers against; it knows nothing of profiles, nor of any compiler.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

import numpy as np

MOST = 4096  # instructions
SIZE = 64  # bytes of struct seccomp_data
_INSTRUCTION = struct.Struct("<HBBI")
_DATA = struct.Struct("<IIQ6Q")  # number, architecture, instruction pointer, arguments
_U32 = 2**32 - 1

LOAD, JUMP, RETURN, AND = 0x20, 0x05, 0x06, 0x54
JEQ, JGT, JGE, JSET = 0x15, 0x25, 0x35, 0x45
_CONDITIONS = {
    JEQ: lambda a, k: a == k,
    JGT: lambda a, k: a > k,
    JGE: lambda a, k: a >= k,
    JSET: lambda a, k: (a & k) != 0,
}
_ARITHMETIC = {
    0x04: lambda a, k: a + k,
    0x14: lambda a, k: a - k,
    0x44: lambda a, k: a | k,
    0x54: lambda a, k: a & k,
    0x64: lambda a, k: a << k,
    0x74: lambda a, k: a >> k,
    0xA4: lambda a, k: a ^ k,
}


class Refused(Exception):
    """The kernel would not load it."""


class Instruction(NamedTuple):
    op: int
    yes: int
    no: int
    k: int


@functools.lru_cache(maxsize=64)
def decode(program: bytes) -> tuple[Instruction, ...]:
    """The instructions, if the kernel would take them: all jumps go forward and stay inside, all
    loads are aligned words of the data, and every way ends in a return."""
    if len(program) % _INSTRUCTION.size:
        raise Refused("half an instruction")
    code = tuple(Instruction(*each) for each in _INSTRUCTION.iter_unpack(program))
    if not 0 < len(code) <= MOST:
        raise Refused(f"{len(code)} instructions")
    for at, (op, yes, no, k) in enumerate(code):
        left = len(code) - at - 1  # behind this one
        if op == LOAD:
            sound = k % 4 == 0 and k < SIZE
        elif op == JUMP:
            sound = k < left
        elif op in _CONDITIONS:
            sound = yes < left and no < left
        elif op in _ARITHMETIC:
            sound = op not in (0x64, 0x74) or k < 32
        else:
            sound = op == RETURN
        if not sound or (not left and op != RETURN):
            raise Refused(f"instruction {at}: {op:#x} {yes} {no} {k:#x}")
    return code


def encode(code: list[Instruction] | tuple[Instruction, ...]) -> bytes:
    return b"".join(_INSTRUCTION.pack(*each) for each in code)


def run(program: bytes, *, arch: int, nr: int, args: tuple[int, ...] = (), pointer: int = 0) -> int:
    """What the kernel would do with this call."""
    code = decode(program)
    data = _DATA.pack(nr, arch, pointer, *args, *[0] * (6 - len(args)))
    accumulator = at = 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        if op == LOAD:
            accumulator = int.from_bytes(data[k : k + 4], "little")
        elif op in _CONDITIONS:
            at += yes if _CONDITIONS[op](accumulator, k) else no
        elif op == JUMP:
            at += k
        elif op in _ARITHMETIC:
            accumulator = _ARITHMETIC[op](accumulator, k) & _U32
        else:
            return k


# --- many calls at once ----------------------------------------------------------------------


class Stop(NamedTuple):
    """An instruction: which calls have come there, with what, and where they have gone."""

    calls: np.ndarray
    accumulators: np.ndarray
    held: np.ndarray | None  # of a condition


def words(calls: list[tuple[int, int, tuple[int, ...]]]) -> np.ndarray:
    """(Architecture, number, six arguments) of each, as the words that a program can load."""
    data = b"".join(_DATA.pack(nr, arch, 0, *args) for arch, nr, args in calls)
    return np.frombuffer(data, dtype="<u4").reshape(len(calls), SIZE // 4).T.copy()


def run_all(
    code: tuple[Instruction, ...] | list[Instruction],
    data: np.ndarray,
    *,
    start: int = 0,
    accumulators: np.ndarray | None = None,
    stops: dict[int, Stop] | None = None,
) -> np.ndarray:
    """The verdict of each call. All jumps go forward, so that one walk through the code does."""
    count = data.shape[1]
    held: np.ndarray | None
    memory = np.zeros(count, np.uint32) if accumulators is None else accumulators.copy()
    verdicts = np.zeros(count, np.uint32)
    coming: dict[int, list[np.ndarray]] = {start: [np.arange(count)]}
    for at in range(start, len(code)):
        op, yes, no, k = code[at]
        if at not in coming:
            continue
        here, held = np.concatenate(coming.pop(at)), None
        now = memory[here]
        if op in _CONDITIONS:
            held = _CONDITIONS[op](now, np.uint32(k))
            for to, which in ((at + 1 + yes, here[held]), (at + 1 + no, here[~held])):
                if len(which):
                    coming.setdefault(to, []).append(which)
        elif op == RETURN:
            verdicts[here] = k
        else:
            if op == LOAD:
                memory[here] = data[k // 4][here]
            elif op != JUMP:
                memory[here] = _ARITHMETIC[op](now, np.uint32(k))
            coming.setdefault(at + 1 + (k if op == JUMP else 0), []).append(here)
        if stops is not None:
            stops[at] = Stop(here, now, held)
    return verdicts
