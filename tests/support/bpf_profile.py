"""What a seccomp profile says, read from its JSON without the code that compiles it; and the calls
by which a compiled one is compared with it."""

from __future__ import annotations

import errno
import itertools

U32, U64 = 2**32 - 1, 2**64 - 1
X32 = 0x40000000
ALLOW, LOG, KILL_PROCESS, KILL_THREAD = 0x7FFF0000, 0x7FFC0000, 0x80000000, 0
ERRNO = 0x50000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
AUDIT_I386 = 0x40000003
# Every architecture of <linux/audit.h> by its ELF number, with and without the two flags.
_MACHINES = (2, 3, 4, 8, 15, 20, 21, 22, 40, 42, 45, 50, 62, 76, 84, 88, 92, 93, 94, 106, 140, 164)
_MACHINES += (167, 183, 188, 189, 191, 195, 243, 252, 258, 0x5441, 0x9026, 0x9080, 0xFEBA)
OTHER_ARCHITECTURES = sorted(
    {
        *(flags << 30 | machine for machine in _MACHINES for flags in range(4)),
        *(arch ^ 1 << bit for arch in AUDIT.values() for bit in range(32)),
        *(0, 1, U32),
    }
)

COMPARE = {
    "SCMP_CMP_NE": lambda a, v, _: a != v,
    "SCMP_CMP_LT": lambda a, v, _: a < v,
    "SCMP_CMP_LE": lambda a, v, _: a <= v,
    "SCMP_CMP_EQ": lambda a, v, _: a == v,
    "SCMP_CMP_GE": lambda a, v, _: a >= v,
    "SCMP_CMP_GT": lambda a, v, _: a > v,
    "SCMP_CMP_MASKED_EQ": lambda a, v, two: a & v == two,
}
ACTIONS = {
    "SCMP_ACT_ALLOW": ALLOW,
    "SCMP_ACT_LOG": LOG,
    "SCMP_ACT_KILL": KILL_THREAD,
    "SCMP_ACT_KILL_THREAD": KILL_THREAD,
    "SCMP_ACT_KILL_PROCESS": KILL_PROCESS,
}


def action(name, errno_value):
    return ACTIONS[name] if name in ACTIONS else ERRNO | errno_value


def full(args):
    return (*args, *[0] * (6 - len(args)))


def holds(entry, args):
    args = full(args)
    return all(
        COMPARE[arg["op"]](args[arg["index"]], arg["value"], arg.get("valueTwo", 0))
        for arg in entry.get("args", [])
    )


class Meaning:
    """One profile for one machine; `numbers`: of its system calls, by name."""

    def __init__(self, document, machine, numbers):
        self.machine = machine
        self._entries = {number: [] for number in numbers.values()}
        for entry in document["syscalls"]:
            for name in entry["names"]:
                if name in numbers:
                    self._entries[numbers[name]].append(entry)
        self._default = action(document["defaultAction"], document.get("defaultErrnoRet", 1))
        refused = [e for e in document["syscalls"] if e["action"] != "SCMP_ACT_ALLOW"]
        self._telling = list(dict.fromkeys(witness(entry) for entry in refused))

    def verdict(self, nr, args, arch=None):
        """What a call gets. All entries that fit it must agree."""
        if arch is not None and arch != AUDIT[self.machine]:
            return KILL_PROCESS
        if self.machine == "x86_64" and nr >= X32:
            return KILL_PROCESS
        fitting = [entry for entry in self._entries.get(nr, ()) if holds(entry, args)]
        verdicts = {action(entry["action"], entry.get("errnoRet", 1)) for entry in fitting}
        assert len(verdicts) <= 1, f"call {nr}{args}: entries contradict each other"
        return verdicts.pop() if verdicts else self._default

    def calls(self, numbers):
        """Of each number, a call for every class of arguments that the profile tells apart; and
        with arguments for which other numbers are refused, lest one is taken for its neighbour."""
        for nr in numbers:
            own = arguments(self._entries.get(nr, []))
            for args in dict.fromkeys((full(()), (U64,) * 6, *self._telling, *own)):
                yield nr, args


def arguments(entries):
    """Arguments on, beside and far from each border between the entries of one call."""
    values: dict[int, set[int]] = {}
    for entry in entries:
        for arg in entry.get("args", []):
            values.setdefault(arg["index"], set()).update(_near(arg))
    # With one argument alone the others do not matter; with several, each is tried while the
    # others are as some entry wants them.
    bases = [full(())] if len(values) < 2 else [*map(witness, entries)]
    for base in dict.fromkeys(bases):
        for index, near in values.items():
            for value in sorted(near):
                yield (*base[:index], value, *base[index + 1 :])
    wanted = [sorted({witness(entry)[index] for entry in entries}) for index in sorted(values)]
    if len(values) > 1:
        for chosen in itertools.islice(itertools.product(*wanted), 2000):
            args = [0] * 6
            for index, value in zip(sorted(values), chosen, strict=True):
                args[index] = value
            yield tuple(args)


def witness(entry):
    """Arguments that an entry fits, if there are any."""
    args = [0] * 6
    for arg in entry.get("args", []):
        value, op = arg["value"], arg["op"]
        if op == "SCMP_CMP_MASKED_EQ":
            value = arg.get("valueTwo", 0)
        elif op in ("SCMP_CMP_NE", "SCMP_CMP_GT"):
            value = (value + 1) & U64
        elif op == "SCMP_CMP_LT":
            value = (value - 1) & U64
        args[arg["index"]] = value
    return tuple(args)


def _near(arg):
    masked = arg["op"] == "SCMP_CMP_MASKED_EQ"
    value = arg.get("valueTwo", 0) if masked else arg["value"]
    outside = ~arg["value"] & U64 if masked else 0  # bits that must not matter
    yield from (value, (value + 1) & U64, (value - 1) & U64, value | outside, 0, U32, U64)
    yield from ((value & U32) | high << 32 for high in (1, U32, 1 << 31, value >> 33))
    yield from ((value >> 32) | (value & U32) << 32, value & U32, value & ~U32 & U64)
    yield from (value ^ 1 << bit for bit in range(64))
