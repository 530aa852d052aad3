"""The seccomp filters against the profile: every number, every class of arguments, and two
compilers. And that such a proof would notice an error."""

from __future__ import annotations

import copy
import functools
import json

import numpy as np
import pytest

import bpf
import bpf_libseccomp
from belljar.backends.linux import seccomp
from bpf_profile import (
    AUDIT,
    ENOSYS,
    KILL_PROCESS,
    KILL_THREAD,
    OTHER_ARCHITECTURES,
    U32,
    X32,
    Meaning,
    full,
)
from setting import REQUIRED

DOCUMENT = json.loads(seccomp.PROFILE.read_text())
NUMBERS = seccomp.syscall_numbers()
LAST = 512  # the highest number of any call is below
MACHINES = sorted(AUDIT)
UNNOTICED = 10  # changes of two thousand that change no verdict
ONE_SIDED = 10  # of two hundred comparisons


def compile_document(document, machine):
    return seccomp.compile_profile(seccomp.parse_profile(document), machine)


class Proof:
    """Calls, and what the profile says of each."""

    def __init__(self, machine):
        meaning = Meaning(DOCUMENT, machine, NUMBERS[machine])
        arch = AUDIT[machine]
        calls = [(arch, nr, args) for nr, args in meaning.calls(range(LAST))]
        far = (*far_numbers(), *(X32 | nr for nr in range(LAST)))
        calls += [(arch, nr, full(())) for nr in far]
        others = [each for each in OTHER_ARCHITECTURES if each != arch]
        calls += [(other, nr, full(())) for other in others for nr in (0, 1, 39, 172, X32 | 1)]
        self.calls = calls
        self.verdicts = np.array([meaning.verdict(nr, args, arch) for arch, nr, args in calls])
        self.data = bpf.words(calls)
        self.numbers = np.array([nr for _, nr, _ in calls])
        self.architectures = np.array([arch for arch, _, _ in calls])

    def difference(self, program, which=slice(None)):
        """The first call that a program decides otherwise."""
        verdicts = bpf.run_all(bpf.decode(program), self.data[:, which])
        wrong = np.flatnonzero(verdicts != self.verdicts[which])
        return self.calls[np.arange(len(self.calls))[which][wrong[0]]] if len(wrong) else None

    def of(self, numbers):
        return np.flatnonzero(np.isin(self.numbers, list(numbers)))


@functools.cache
def proof(machine):
    return Proof(machine)


def far_numbers():
    powers = (1 << bit for bit in range(9, 32))
    return sorted({number + step for number in powers for step in (-1, 0, 1)} | {U32})


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_gets_the_verdict_of_the_profile(machine):
    assert len(proof(machine).calls) > 20_000
    assert set(range(LAST)) <= set(proof(machine).numbers.tolist())
    assert proof(machine).difference(compile_document(DOCUMENT, machine)) is None


@pytest.mark.parametrize("machine", MACHINES)
def test_both_interpreters_of_this_proof_agree(machine):
    program = compile_document(DOCUMENT, machine)
    mine = proof(machine)
    for (arch, nr, args), wanted in list(zip(mine.calls, mine.verdicts, strict=True))[::23]:
        assert bpf.run(program, arch=arch, nr=nr, args=args) == wanted


def reachable(code):
    """The instructions that some way leads to: of verdicts that were copied nearer to their users,
    the first may be left without any."""
    found, pending = set(), [0]
    while pending:
        at = pending.pop()
        if at in found:
            continue
        found.add(at)
        op, yes, no, k = code[at]
        if op == bpf.JUMP:
            pending.append(at + 1 + k)
        elif op in (bpf.JEQ, bpf.JGT, bpf.JGE):
            pending += (at + 1 + yes, at + 1 + no)
        elif op != bpf.RETURN:
            pending.append(at + 1)
    return found


@functools.cache
def travelled(machine):
    """The instructions, and of each which calls come by."""
    code, stops = bpf.decode(compile_document(DOCUMENT, machine)), {}
    bpf.run_all(code, proof(machine).data, stops=stops)
    return code, stops


@pytest.mark.parametrize("machine", MACHINES)
def test_the_proof_goes_every_way_that_the_program_has(machine):
    code, stops = travelled(machine)
    assert set(stops) == reachable(code)
    assert len(stops) >= len(code) - 2
    one_sided = 0
    for at, stop in stops.items():
        if stop.held is not None and code[at].yes != code[at].no:
            assert stop.held.any(), (at, code[at])
            one_sided += bool(stop.held.all())
    # Entries that leave nothing open: where all others did not fit, the last one does.
    assert one_sided <= ONE_SIDED


def mutants(code):
    """One instruction changed: another verdict, another number, its ways exchanged."""
    for at, each in enumerate(code):
        changed = []
        if each.op == bpf.RETURN:
            changed = [each._replace(k=each.k ^ 1), each._replace(k=0x7FFE0000)]
        elif each.op in (bpf.JEQ, bpf.JGT, bpf.JGE):
            changed = [each._replace(yes=each.no, no=each.yes)]
            changed += [each._replace(k=each.k ^ 1 << bit) for bit in (0, 9, 31)]
        elif each.op == bpf.AND:
            changed = [each._replace(k=each.k & each.k - 1)]
        for new in changed:
            yield at, [*code[:at], new, *code[at + 1 :]]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_proof_notices_whatever_is_changed_in_the_program(machine):
    code, stops = travelled(machine)
    count, unnoticed = 0, []
    for at, changed in mutants(code):
        if at not in stops:
            continue
        count += 1
        which = stops[at].calls  # only they can notice; up to here nothing has changed for them
        data, before = proof(machine).data[:, which], stops[at].accumulators
        verdicts = bpf.run_all(changed, data, start=at, accumulators=before)
        if (verdicts == proof(machine).verdicts[which]).all():
            unnoticed.append((at, changed[at]))
    assert count > 1500
    # Where two entries with one verdict meet, it does not matter which of them fits.
    assert len(unnoticed) <= UNNOTICED, unnoticed


def other_profiles():
    """The profile with one entry changed, removed, or one name taken out of it."""
    for at, entry in enumerate(DOCUMENT["syscalls"]):
        # A tenth of all there are; whole programs are changed above.
        for change in ("action", "remove", "value")[at % 10 :][:1]:
            document = copy.deepcopy(DOCUMENT)
            changed = document["syscalls"][at]
            if change == "action":
                changed.pop("errnoRet", None)
                changed.update(action="SCMP_ACT_ERRNO", errnoRet=77)
            elif change == "remove" and len(entry["names"]) > 1:
                changed["names"] = entry["names"][1:]
            elif change == "remove":
                del document["syscalls"][at]
            elif "args" in entry:
                arg = changed["args"][0]
                if arg["op"] != "SCMP_CMP_MASKED_EQ":
                    arg["value"] ^= 1
                else:  # one bit less is looked at
                    bit = arg["value"] & -arg["value"]
                    arg["value"] ^= bit
                    arg["valueTwo"] &= ~bit
                    if not arg["value"]:
                        continue
            else:
                continue
            yield at, change, entry, document


@pytest.mark.parametrize("machine", MACHINES)
def test_the_proof_notices_one_entry_that_is_not_as_the_profile_has_it(machine):
    tried, unnoticed = 0, []
    for at, change, entry, document in other_profiles():
        mine = {NUMBERS[machine][name] for name in entry["names"] if name in NUMBERS[machine]}
        if not mine or (change == "remove" and entry["names"][0] not in NUMBERS[machine]):
            continue
        try:
            program = compile_document(document, machine)
        except ValueError:
            continue  # it contradicts another entry, which the compiler has noticed
        tried += 1
        calls = proof(machine).of(mine)
        seen = proof(machine).difference(program, calls) is not None
        if not seen and not is_same(machine, document, calls):
            unnoticed.append((at, change, entry))
    assert tried > 20
    assert unnoticed == []


def is_same(machine, document, calls):
    """By the meaning alone, the changed profile has the verdicts that it had: another entry says
    the same, or it is so by default."""
    meaning = Meaning(document, machine, NUMBERS[machine])
    mine = proof(machine)
    return all(
        meaning.verdict(nr, args, arch) == wanted
        for (arch, nr, args), wanted in ((mine.calls[at], mine.verdicts[at]) for at in calls)
    )


# ---------------------------------------------------------------- libseccomp


@functools.cache
def theirs():
    try:
        bpf_libseccomp.loaded()
    except OSError:
        if "libseccomp" in REQUIRED:
            pytest.fail("this run promised libseccomp, and there is none")
        pytest.skip("no libseccomp here")
    return bpf_libseccomp.compile_document(DOCUMENT)


@pytest.mark.parametrize("machine", MACHINES)
def test_libseccomp_decides_alike_wherever_it_knows_the_call(machine):
    program, known = theirs()
    heard = {NUMBERS[machine][name] for name in known if name in NUMBERS[machine]}
    unheard = set(NUMBERS[machine].values()) - heard
    mine = proof(machine)
    which = np.flatnonzero(
        (mine.architectures == AUDIT[machine])
        & ~np.isin(mine.numbers, list(unheard))
        & (mine.numbers < X32)
    )
    assert len(which) > 20_000
    assert mine.difference(program, which) is None


@pytest.mark.parametrize("machine", MACHINES)
def test_what_libseccomp_does_not_know_it_refuses(machine):
    """A newer call, in an older library: runc leaves it out, so that it gets the default."""
    program, known = theirs()
    for name, nr in NUMBERS[machine].items():
        if name not in known:
            verdict = bpf.run(program, arch=AUDIT[machine], nr=nr)
            assert verdict == ENOSYS, (name, hex(verdict))


def test_libseccomp_kills_what_comes_by_another_door():
    program, _ = theirs()
    kills = (KILL_THREAD, KILL_PROCESS)
    for arch in set(OTHER_ARCHITECTURES) - set(AUDIT.values()):
        assert bpf.run(program, arch=arch, nr=20) in kills, hex(arch)
    for nr in range(LAST):
        assert bpf.run(program, arch=AUDIT["x86_64"], nr=X32 | nr) in kills
