"""Random seccomp profiles: the compiler refuses one with ValueError, or makes a program that the
kernel takes and that decides every class of calls as the profile says.

libseccomp is no second opinion here: of rules that overlap its 2.5.4 forgets some, and of others it
dies. For the one profile that is shipped, see test_seccomp_proof.py.

A case is a profile as JSON.
"""

import json

import bpf
import fuzzing
from belljar.backends.linux import seccomp
from bpf_profile import AUDIT, COMPARE, U32, U64, X32, Meaning

NUMBERS = seccomp.syscall_numbers()
MACHINES = {"SCMP_ARCH_X86_64": "x86_64", "SCMP_ARCH_AARCH64": "aarch64"}
MOST = 10_000  # calls that are compared


class Differs(Exception):
    pass


def attempt(data):
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        profile = seccomp.parse_profile(document)
        programs = {m: seccomp.compile_profile(profile, m) for m in _machines(document)}
    except ValueError:
        return
    finally:
        seccomp.compile_profile.cache_clear()
    for machine, program in programs.items():
        calls, wanted = _calls(document, machine)
        got = bpf.run_all(bpf.decode(program), bpf.words(calls)).tolist()
        for call, mine, theirs in zip(calls, wanted, got, strict=True):
            if mine != theirs:
                raise Differs(f"{machine}, {call}: {theirs:#x} and not {mine:#x}")


def _machines(document):
    return [MACHINES[arch] for arch in document["architectures"]]


def _calls(document, machine):
    meaning = Meaning(document, machine, NUMBERS[machine])
    named = {name for entry in document["syscalls"] for name in entry["names"]}
    numbers = {NUMBERS[machine][name] for name in named if name in NUMBERS[machine]}
    near = {number + step for number in numbers for step in (-1, 0, 1) if number + step >= 0}
    found = [*meaning.calls(sorted(near))]
    found += [(nr, (0,) * 6) for nr in (0, 1, 500, 4096, X32 - 1, X32, U32)]
    found = found[:: len(found) // MOST + 1]
    calls = [(AUDIT[machine], nr, args) for nr, args in found]
    calls += [(arch, 0, (0,) * 6) for arch in (0, 0x40000003, AUDIT[machine] ^ 1)]
    return calls, [meaning.verdict(nr, args, arch) for arch, nr, args in calls]


def allowance(data):
    return (200 << 20) + 2000 * len(data)


# --- cases -----------------------------------------------------------------------------------

NAMES = [
    *("read", "write", "open", "close", "stat", "ioctl", "clone", "socket"),
    *("openat", "prctl", "mmap", "fork", "fcntl", "faccessat2"),
]
VALUES = [
    *(0, 1, 2, 3, 7, 8, 255, 0x5412, U32 - 1, U32, 1 << 32, (1 << 32) + 1, 5 << 32 | 7, 1 << 63),
    *(U64 - 1, U64),
]
ODD = [None, True, -1, 6, 2**64, 1.0, "", "x", [], {}, "SCMP_ACT_NOTIFY", 10**30, "SCMP_CMP_EQ"]


def value(random):
    kind = random.random()
    if kind < 0.6:
        return random.choice(VALUES)
    return random.getrandbits(random.choice([8, 32, 64]))


def comparison(random, index):
    made = {"index": index, "op": random.choice(sorted(COMPARE)), "value": value(random)}
    if random.random() < 0.5:
        made["op"] = random.choice(["SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ"])
    if made["op"] == "SCMP_CMP_MASKED_EQ":
        made["value"] = made["value"] or 1
        made["valueTwo"] = made["value"] & value(random)
    return made


def entry(random, names, verdict):
    indexes = random.sample(range(6), random.choice([1, 1, 1, 1, 2, 3, 6]))
    return {"names": names, "args": [comparison(random, index) for index in indexes], **verdict}


def verdict(random):
    name = random.choice(["ALLOW", "ALLOW", "ERRNO", "KILL_PROCESS", "LOG", "KILL", "KILL_THREAD"])
    made = {"action": f"SCMP_ACT_{name}"}
    if name == "ERRNO" and random.random() < 0.8:
        made["errnoRet"] = random.choice([0, 1, 13, 38, 4095])
    return made


def document(random):
    entries = []
    for name in random.sample(NAMES, random.choice([0, 1, 2, 4, 8])):
        if random.random() < 0.25:
            entries.append({"names": [name], **verdict(random)})
            continue
        chosen = verdict(random)
        for _ in range(random.choice([1, 2, 4, 12, 12, 60])):
            given = chosen if random.random() < 0.9 else verdict(random)
            entries.append(entry(random, [name], given))
        if random.random() < 0.5:  # a partner that excludes them: mostly such are taken
            bit = 1 << random.randrange(64)
            one = {"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": bit}
            pair = [{**one, "valueTwo": value} for value in (0, bit)]
            entries = [each for each in entries if each["names"] != [name]]
            entries += [{"names": [name], "args": [one], **verdict(random)} for one in pair]
    default = verdict(random)
    made = {"defaultAction": default["action"], "syscalls": entries}
    if "errnoRet" in default:
        made["defaultErrnoRet"] = default["errnoRet"]
    both = list(MACHINES)
    made["architectures"] = random.choice([both, both[:1], both[1:], both[:1]])
    return made


def places(node):
    keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from places(node[key])


def cases(random):
    shipped = json.loads(seccomp.PROFILE.read_text())
    yield json.dumps(shipped).encode("ascii")
    while True:
        made = document(random)
        if random.random() < 0.15:
            node, key = random.choice(list(places(made)))
            node[key] = random.choice(ODD)
        if random.random() < 0.02:
            made = json.loads(json.dumps(shipped))
            del made["syscalls"][random.randrange(len(made["syscalls"]))]
        yield json.dumps(made).encode("ascii")


def main(seconds, seed):
    return fuzzing.run("seccomp", seconds, seed)
