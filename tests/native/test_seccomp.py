"""The seccomp profile: what it means, what its compiled form does, what programs notice."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bpf_libseccomp
from belljar.backends.linux import seccomp
from bpf import run as simulate
from bpf_profile import (
    ALLOW,
    AUDIT,
    AUDIT_I386,
    COMPARE,
    ENOSYS,
    EPERM,
    ERRNO,
    KILL_PROCESS,
    U32,
    U64,
    X32,
)
from bpf_shipped import DOCUMENT, MACHINE, NUMBERS, compiled, expected


def verdict(name, *args, machine="x86_64", deny=()):
    program = compiled(machine, deny)
    return simulate(program, arch=AUDIT[machine], nr=NUMBERS[machine][name], args=args)


# ---------------------------------------------------------------- what the program means

# Numbers near those that the profile compares with, alone or under a garbage upper half.
EDGES = sorted(
    {
        value + step
        for entry in DOCUMENT["syscalls"]
        for arg in entry.get("args", [])
        for value in (arg["value"], arg.get("valueTwo", 0))
        for step in (-1, 0, 1)
        if 0 <= value + step <= U64
    }
)
ARGUMENT = st.one_of(
    st.sampled_from(EDGES),
    st.builds(
        lambda high, low: (high << 32 | low) & U64, st.integers(0, U32), st.sampled_from(EDGES)
    ),
    st.integers(0, U64),
)
CONDITIONAL = sorted({n for e in DOCUMENT["syscalls"] if e.get("args") for n in e["names"]})


@pytest.mark.parametrize("machine", sorted(AUDIT))
@given(data=st.data())
@settings(max_examples=600)
def test_the_program_does_what_the_profile_says(machine, data):
    known = [NUMBERS[machine][name] for name in CONDITIONAL if name in NUMBERS[machine]]
    nr = data.draw(st.one_of(st.sampled_from(known), st.integers(0, 480), st.integers(0, U32)))
    args = tuple(data.draw(st.lists(ARGUMENT, min_size=6, max_size=6)))
    got = simulate(compiled(machine), arch=AUDIT[machine], nr=nr, args=args)
    assert got == expected(DOCUMENT, machine, nr, args)


@pytest.mark.parametrize("machine", sorted(AUDIT))
def test_every_single_number_gets_the_verdict_of_the_profile(machine):
    for nr in range(600):
        got = simulate(compiled(machine), arch=AUDIT[machine], nr=nr)
        assert got == expected(DOCUMENT, machine, nr, ()), nr


def entries_of(name):
    comparison = st.fixed_dictionaries(
        {"op": st.sampled_from(sorted(COMPARE)), "value": ARGUMENT, "index": st.integers(0, 5)}
    ).map(with_mask)
    args = st.lists(comparison, min_size=1, max_size=3, unique_by=lambda arg: arg["index"])
    verdict = st.sampled_from(
        [
            {"action": "SCMP_ACT_ALLOW"},
            {"action": "SCMP_ACT_KILL_PROCESS"},
            {"action": "SCMP_ACT_ERRNO", "errnoRet": 13},
        ]
    )
    return st.builds(
        lambda verdict, lists: [{"names": [name], "args": args, **verdict} for args in lists],
        verdict,
        st.lists(args, min_size=1, max_size=4),
    )


def with_mask(arg):
    if arg["op"] != "SCMP_CMP_MASKED_EQ":
        return arg
    return {**arg, "value": arg["value"] or 1, "valueTwo": arg["value"] & 0x5555555555555555}


@given(
    groups=st.tuples(*[entries_of(name) for name in ("read", "ioctl", "clone", "openat")]),
    nr=st.sampled_from([NUMBERS["x86_64"][n] for n in ("read", "ioctl", "clone", "openat")]),
    args=st.tuples(*[ARGUMENT] * 6),
)
@settings(max_examples=300)
def test_every_operator_compares_all_64_bits(groups, nr, args):
    document = profile(*[entry for group in groups for entry in group])
    program = seccomp.compile_profile(seccomp.parse_profile(document), "x86_64")
    got = simulate(program, arch=AUDIT["x86_64"], nr=nr, args=args)
    assert got == expected(document, "x86_64", nr, args)


@pytest.mark.parametrize("op", ["NE", "LT", "LE", "EQ", "GE", "GT"])
@pytest.mark.parametrize("value", [0, 7, U32, 1 << 32, 5 << 32 | 7, U64])
def test_operators_are_exact_at_the_edges(op, value):
    document = profile(rule(arg(3, op, value)))
    program = seccomp.compile_profile(seccomp.parse_profile(document), "x86_64")
    for step in (-(1 << 32), -1, 0, 1, 1 << 32):
        args = (0, 0, 0, (value + step) & U64)
        got = simulate(program, arch=AUDIT["x86_64"], nr=0, args=args)
        assert got == expected(document, "x86_64", 0, args), args


def test_jumps_over_more_than_255_instructions_arrive():
    many = [
        {
            "names": [name],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "op": "SCMP_CMP_EQ", "value": value << 16}],
        }
        for name in ("read", "ioctl")
        for value in range(300)
    ]
    document = profile(*many, {"names": ["write"], "action": "SCMP_ACT_ALLOW"})
    program = seccomp.compile_profile(seccomp.parse_profile(document), "x86_64")
    assert len(program) // 8 > 1000
    for nr in (0, 1, 2, 16, 17):
        for value in (0, 1, 150 << 16, 299 << 16, 300 << 16):
            got = simulate(program, arch=AUDIT["x86_64"], nr=nr, args=(value,))
            assert got == expected(document, "x86_64", nr, (value,)), (nr, value)


def test_a_filter_too_long_for_the_kernel_is_refused():
    many = [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [arg(0, "EQ", value)]}
        for value in range(1100)
    ]
    with pytest.raises(ValueError, match="instructions"):
        seccomp.compile_profile(seccomp.parse_profile(profile(*many)), "x86_64")


def test_the_search_is_no_linear_chain():
    """Length of the way to a verdict, in instructions, for every call without arguments."""
    program = compiled("x86_64")
    code = list(struct.iter_unpack("<HBBI", program))
    longest = 0
    for nr in range(470):
        at, steps, accumulator = 0, 0, 0
        while code[at][0] != 0x06 and steps < 40:
            op, yes, no, k = code[at]
            if op == 0x20:
                if k >= 16:
                    break
                accumulator = nr if k == 0 else AUDIT["x86_64"]
            taken = accumulator == k if op == 0x15 else accumulator >= k
            at += 1 + ((yes if taken else no) if op in (0x15, 0x35) else k if op == 0x05 else 0)
            steps += 1
        longest = max(longest, steps)
    assert longest <= 16


@pytest.mark.parametrize("machine", sorted(AUDIT))
def test_another_abi_is_killed(machine):
    program = compiled(machine)
    others = [AUDIT_I386, *[number for name, number in AUDIT.items() if name != machine], 0]
    for arch in others:
        assert simulate(program, arch=arch, nr=NUMBERS[machine]["getpid"]) == KILL_PROCESS
    if machine == "x86_64":
        for nr in (X32, X32 | 39, X32 | 512, U32):
            assert simulate(program, arch=AUDIT[machine], nr=nr) == KILL_PROCESS


def test_core_dumps_stay_switched_off_by_the_one_value_that_stops_pipes_too():
    core, new = 4, 0x7FFF0000
    assert verdict("setrlimit", core, new) == EPERM
    assert verdict("setrlimit", core | 1 << 32, new) == EPERM  # the kernel looks at 32 bits
    assert verdict("prlimit64", 0, core, new) == EPERM
    assert verdict("prlimit64", 0, core, 0, new) == ALLOW  # only asks
    for other in (0, 1, 2, 3, *range(5, 16)):
        assert verdict("setrlimit", other, new) == ALLOW
        assert verdict("prlimit64", 0, other, new) == ALLOW


def test_huge_pages_which_no_cgroup_counts_are_refused():
    private_anonymous, hugetlb = 0x22, 0x40000
    assert verdict("mmap", 0, 4096, 3, private_anonymous) == ALLOW
    assert verdict("mmap", 0, 4096, 3, private_anonymous | hugetlb) == EPERM
    assert verdict("memfd_create", 0, 4) == EPERM
    assert verdict("shmget", 0, 4096, 0x800) == EPERM


def test_without_a_cgroup_no_page_can_be_held_outside_of_a_process():
    shared_anonymous, validated, private, file = 0x21, 0x23, 0x22, 0x01
    deny = seccomp.HIDDEN_MEMORY
    assert verdict("mmap", 0, 4096, 3, shared_anonymous, deny=deny) == EPERM
    assert verdict("mmap", 0, 4096, 3, validated, deny=deny) == EPERM
    assert verdict("mmap", 0, 4096, 3, private, deny=deny) == ALLOW
    assert verdict("mmap", 0, 4096, 3, file, deny=deny) == ALLOW
    assert verdict("memfd_create", 0, 0, deny=deny) == EPERM


def test_deny_takes_a_call_away_and_nothing_else():
    assert verdict("memfd_create") == ALLOW
    assert verdict("memfd_create", deny=("memfd_create",)) == EPERM
    assert verdict("ioctl", 0, 0x5401, deny=("ioctl",)) == EPERM
    assert verdict("pipe2", deny=("memfd_create",)) == ALLOW
    with pytest.raises(ValueError, match="memfd_creat"):
        compiled("x86_64", ("memfd_creat",))


# ---------------------------------------------------------------- what the profile says


@pytest.mark.parametrize("machine", sorted(AUDIT))
@pytest.mark.parametrize(
    ("name", "args", "wanted"),
    [
        ("openat", (), ALLOW),
        ("memfd_create", (), ALLOW),
        ("mount", (), EPERM),
        ("fsopen", (), EPERM),
        ("unshare", (0x10000000,), EPERM),
        ("setns", (), EPERM),
        ("ptrace", (), EPERM),
        ("bpf", (), EPERM),
        ("keyctl", (), EPERM),
        ("userfaultfd", (), EPERM),
        ("open_by_handle_at", (), EPERM),
        ("sched_setaffinity", (), EPERM),
        *(("sched_setscheduler", (0, policy), EPERM) for policy in (1, 2, 3, 5, 6, 7, 1 << 30)),
        ("sched_setscheduler", (0, 0), ALLOW),
        ("setsockopt", (0, 1, 13), ERRNO),  # SO_LINGER: 0, and nothing is set
        ("setsockopt", (0, 1 << 40 | 1, 1 << 40 | 13), ERRNO),
        ("seccomp", (1, 0, 0), EPERM),
        ("clone3", (), ENOSYS),
        ("io_uring_setup", (), ENOSYS),
        ("statmount", (), ENOSYS),
        ("clone", (0x01200011,), ALLOW),
        ("clone", (0x003D0F00,), ALLOW),
        ("clone", (0x10000011,), EPERM),
        ("clone", (0x40000000,), EPERM),
        ("socket", (1, 1, 0), ALLOW),
        ("socket", (2, 1 | 0x80000, 6), ALLOW),
        ("socket", (10, 2 | 0x800, 17), ALLOW),
        ("socket", (2, 3, 1), EPERM),
        ("socket", (10, 3 | 0x80000, 58), EPERM),
        ("socket", (2, 1, 132), ENOSYS),
        ("socket", (16, 3, 0), ERRNO | errno.EOPNOTSUPP),
        ("socket", (18, 2, 0), EPERM),
        ("socket", (21, 2, 0), EPERM),
        ("socket", (29, 3, 0), EPERM),
        ("socket", (17, 3, 0), EPERM),
        ("socket", (38, 5, 0), EPERM),
        ("socket", (40, 1, 0), EPERM),
        ("socket", (1 << 32 | 40, 1, 0), EPERM),
        ("socketpair", (1, 1, 0), ALLOW),
        ("socketpair", (30, 1, 0), EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5413), ALLOW),
        ("ioctl", (0, 0xFFFFFFFF80045430), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("ioctl", (0, 0x7FFFFFFF00005412), EPERM),
        ("ioctl", (0, 1 << 32 | 0x541C), EPERM),
        ("ioctl", (0, 1 << 63 | 0x5423), EPERM),
        ("fcntl", (0, 1030), ALLOW),
        ("fcntl", (0, 1033), ALLOW),
        ("fcntl", (0, 1031), EPERM),
        ("fcntl", (0, 1 << 32 | 1031), EPERM),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), EPERM),
        ("prlimit64", (1 << 32,), EPERM),
        ("prctl", (15,), ALLOW),
        ("prctl", (0x53564D41,), ALLOW),
        ("prctl", (35,), EPERM),
        ("prctl", (1 << 32 | 22,), EPERM),
        ("personality", (U32,), ALLOW),
        ("personality", (0x40000,), EPERM),
        ("personality", (0x400008,), EPERM),
        ("mknodat", (0, 0, 0o10644), ALLOW),
        ("mknodat", (0, 0, 0o100644), ALLOW),
        ("mknodat", (0, 0, 0o20666), EPERM),
        ("mknodat", (0, 0, 0o60660), EPERM),
    ],
)
def test_the_profile_rules(machine, name, args, wanted):
    assert verdict(name, *args, machine=machine) == wanted


def test_ioctl_allows_every_request_but_those_refused():
    """By counting: the sets allowed are disjoint, and with those refused they fill 32 bits."""
    allowed, refused = [], set()
    for entry in DOCUMENT["syscalls"]:
        if entry["names"] == ["ioctl"]:
            (one,) = entry["args"]
            assert one["index"] == 1
            if entry["action"] == "SCMP_ACT_ALLOW":
                allowed.append((one["value"], one["valueTwo"]))
            else:
                size = U32 - one["value"] + 1
                refused |= set(range(one["valueTwo"], one["valueTwo"] + size))
    terminals = {0x5412, 0x541C, 0x541D, 0x5423}
    modules = {0x8940, 0x8941, 0x8982, 0x8983, 0x89A0, 0x89A1, 0x89A2, 0x89A3}
    assert refused == terminals | modules
    for at, (mask, value) in enumerate(allowed):
        for other_mask, other in allowed[:at]:
            assert (value ^ other) & mask & other_mask
    assert sum(2 ** (32 - mask.bit_count()) for mask, _ in allowed) == 2**32 - len(refused)


NEVER = """
    mount umount2 pivot_root chroot unshare setns fsopen fsmount move_mount open_tree
    ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp bpf
    perf_event_open userfaultfd keyctl add_key request_key init_module finit_module
    kexec_load reboot swapon acct open_by_handle_at name_to_handle_at clock_settime
    settimeofday adjtimex sethostname quotactl syslog iopl ioperm fanotify_init
    sched_setaffinity sched_setattr sched_setparam seccomp landlock_restrict_self io_uring_setup
    io_uring_enter clone3 memfd_secret modify_ldt io_setup statmount listmount uretprobe
"""


def test_calls_that_reach_beyond_the_process_are_on_no_allow_list():
    allowed = {
        n for e in DOCUMENT["syscalls"] if e["action"] == "SCMP_ACT_ALLOW" for n in e["names"]
    }
    never = set(NEVER.split())
    assert not allowed & never
    assert not never - set(NUMBERS["x86_64"])


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/aarch64-linux-gnu/asm/unistd_64.h"),
    ],
)
def test_the_numbers_are_those_of_the_kernels_headers(machine, header):
    if not os.path.exists(header):
        pytest.skip(f"no {header}")
    compared = 0
    for line in Path(header).read_text().splitlines():
        if line.startswith("#define __NR_"):
            name, number = line.removeprefix("#define __NR_").split()
            # A header may be newer than the table; a call missing there is ENOSYS.
            assert NUMBERS[machine].get(name, int(number)) == int(number)
            compared += name in NUMBERS[machine]
    assert compared > 290


@pytest.mark.parametrize("machine", sorted(AUDIT))
def test_no_number_has_two_names(machine):
    assert len(set(NUMBERS[machine].values())) == len(NUMBERS[machine])


# ---------------------------------------------------------------- a bad profile is refused


def profile(*entries, **changes):
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": list(entries),
        **changes,
    }


def arg(index, op, value, **more):
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value, **more}


def rule(*args, name="read", action="SCMP_ACT_ALLOW", **more):
    return {"names": [name], "action": action, **({"args": list(args)} if args else {}), **more}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be an object"),
        (profile(defaultActoin=1), "unknown key 'defaultActoin'"),
        (profile(defaultAction="SCMP_ACT_ALOW"), "unknown action 'SCMP_ACT_ALOW'"),
        (profile(defaultErrnoRet=True), "defaultErrnoRet"),
        (profile(defaultAction="SCMP_ACT_ALLOW", defaultErrnoRet=1), "no meaning"),
        (profile(architectures=["SCMP_ARCH_X32"]), "unknown architecture 'SCMP_ARCH_X32'"),
        (profile(architectures=[]), "architectures"),
        (profile(syscalls={}), "syscalls must be a list"),
        (profile(rule(name="raed")), "unknown system call 'raed'"),
        (profile(rule(includes={})), "unknown key 'includes'"),
        (profile(rule(action="SCMP_ACT_NOTIFY")), "unknown action 'SCMP_ACT_NOTIFY'"),
        (profile(rule(action="SCMP_ACT_ERRNO", errnoRet=5000)), "from 0 to 4095, not 5000"),
        (profile(rule(errnoRet=1)), "no meaning"),
        (profile({"action": "SCMP_ACT_ALLOW"}), r"syscalls\[0\].names"),
        (profile(rule(args={})), "args must be a list"),
        (profile(rule(arg(0, "EQUAL", 1))), "unknown operator 'SCMP_CMP_EQUAL'"),
        (profile(rule({"index": 0, "op": "EQ", "value": 1})), "unknown operator 'EQ'"),
        (profile(rule(arg(6, "EQ", 1))), "index must be a whole number from 0 to 5"),
        (profile(rule(arg(0, "EQ", 2**64))), "value must be"),
        (profile(rule(arg(0, "EQ", "1"))), "value must be"),
        (profile(rule(arg(0, "EQ", 1, valueTwo=1))), "valueTwo has no meaning for EQ"),
        (profile(rule(arg(0, "MASKED_EQ", 0, valueTwo=0))), "no bit is compared"),
        (profile(rule(arg(0, "MASKED_EQ", 1, valueTwo=3))), "one that the mask has not"),
        (profile(rule(arg(0, "GE", 1), arg(0, "LE", 2))), "one argument twice"),
        (profile(rule(), rule(arg(0, "EQ", 1))), "read: an unconditional entry"),
        (profile(rule(arg(0, "EQ", 1)), rule()), "read: an unconditional entry"),
        (
            profile(
                rule(arg(0, "EQ", 1)), rule(arg(1, "EQ", 2), action="SCMP_ACT_ERRNO", errnoRet=2)
            ),
            "read: entries with different actions may overlap",
        ),
    ],
)
def test_a_profile_that_cannot_be_taken_at_its_word_is_an_error(document, message, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message) as caught:
        seccomp.load_profile(path)
    assert str(path) in str(caught.value)


def test_a_machine_the_profile_is_not_for_is_an_error():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.compile_profile(seccomp.load_profile(), "riscv64")
    with pytest.raises(ValueError, match="aarch64"):
        seccomp.compile_profile(seccomp.parse_profile(profile()), "aarch64")


def test_a_call_of_the_other_machine_only_is_skipped():
    parsed = seccomp.parse_profile(
        profile(rule(name="fork"), architectures=["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"])
    )
    program = seccomp.compile_profile(parsed, "aarch64")
    for nr in range(500):
        assert simulate(program, arch=AUDIT["aarch64"], nr=nr) == EPERM


# ---------------------------------------------------------------- the same file for Docker


@pytest.mark.parametrize("machine", sorted(AUDIT))
def test_libseccomp_knows_the_calls_by_the_same_numbers(machine):
    try:
        resolve = bpf_libseccomp.loaded().seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("no libseccomp here")
    theirs = {name: resolve(AUDIT[machine], name.encode()) for name in NUMBERS[machine]}
    theirs = {name: number for name, number in theirs.items() if number >= 0}
    assert len(theirs) > 290
    assert theirs == {name: NUMBERS[machine][name] for name in theirs}


# ---------------------------------------------------------------- in the real kernel

INSTALL = dedent("""
    import ctypes, os, struct, sys
    program = open(sys.argv[1], "rb").read()
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 4
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.c_char_p(head), 0, 0):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[2], sys.argv[2:])
""")

CALLS = dedent("""
    import ctypes, errno, os, socket, sys
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.argtypes = [ctypes.c_long] * 7
    def call(number, *args):
        args = [ctypes.c_long(a).value for a in (*args, *[0] * (6 - len(args)))]
        result = libc.syscall(number, *args)
        return -ctypes.get_errno() if result == -1 else result
""")

needs_this_machine = pytest.mark.skipif(
    MACHINE not in AUDIT or not sys.platform.startswith("linux"), reason=f"no filter for {MACHINE}"
)
needs_x86 = pytest.mark.skipif(MACHINE != "x86_64", reason="doors of x86_64")


@pytest.fixture
def confined(tmp_path):
    """Run a program under the filter; `program` overrides the shipped one."""
    home = tmp_path / "home"
    home.mkdir()

    def run(*argv, program=None, check=True):
        blob = tmp_path / "filter"
        blob.write_bytes(compiled(MACHINE) if program is None else program)
        done = subprocess.run(
            [sys.executable, "-I", "-c", INSTALL, str(blob), *argv],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def python(code):
    return (sys.executable, "-I", "-c", CALLS + dedent(code))


@needs_this_machine
def test_the_guest_sees_the_filter_and_no_new_privs(confined):
    status = confined(*python("print(open('/proc/self/status').read())")).stdout
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status


@needs_this_machine
def test_every_refused_call_is_refused_by_the_filter_and_not_by_chance(confined):
    """Refusals get an errno that the kernel does not have: it can only come from the filter."""
    marked = json.loads(seccomp.PROFILE.read_text())
    for entry in marked["syscalls"]:
        if entry.get("errnoRet") == errno.EPERM:
            entry["errnoRet"] = 1234
    marked["defaultErrnoRet"] = 1235
    program = seccomp.compile_profile(seccomp.parse_profile(marked), MACHINE)
    unconditional = {
        name: (NUMBERS[MACHINE][name], [0] * 6)
        for entry in marked["syscalls"]
        if entry.get("errnoRet") == 1234 and "args" not in entry
        for name in entry["names"]
        if name in NUMBERS[MACHINE]
    }
    assert len(unconditional) > 60
    code = f"""
        for name, (number, args) in {unconditional!r}.items():
            got = call(number, *args)
            assert got == -1234, (name, got)
        assert call(600) == -1235
        assert call({NUMBERS[MACHINE]["statmount"]}) == -1235
        assert call({NUMBERS[MACHINE]["io_uring_setup"]}, 1, 0) == -38
        print("done")
    """
    assert confined(*python(code), program=program).stdout == "done\n"


@needs_this_machine
def test_refused_and_absent_calls_fail_as_stated(confined):
    n = NUMBERS[MACHINE]
    code = f"""
        EPERM, ENOSYS = -errno.EPERM, -errno.ENOSYS
        assert call({n["mount"]}) == EPERM
        assert call({n["unshare"]}, 0x10000000) == EPERM
        assert call({n["clone"]}, 0x10000011) == EPERM
        assert call({n["io_uring_setup"]}, 1, 0) == ENOSYS
        assert call({n["clone3"]}, 0, 0) == ENOSYS
        assert call({n["prlimit64"]}, os.getpid(), 7, 0, 0) == EPERM
        assert call({n["prlimit64"]}, 0, 7, 0, 0) == 0
        assert call({n["prctl"]}, 22, 1) == EPERM
        assert call({n["personality"]}, 0x40000) == EPERM
        assert call({n["personality"]}, 0xFFFFFFFF) == 0
        path = ctypes.create_string_buffer(b"node")
        at = ctypes.addressof(path)
        assert call({n["mknodat"]}, -100, at, 0o20666, 0x103) == EPERM
        assert call({n["mknodat"]}, -100, at, 0o10666, 0) == 0
        read, write = os.pipe()
        assert call({n["fcntl"]}, write, 1031, 1 << 20) == EPERM
        assert call({n["fcntl"]}, write, 1032) > 0
        print("done")
    """
    assert confined(*python(code)).stdout == "done\n"


@needs_this_machine
def test_tiocsti_fails_even_with_high_bits_set(confined):
    code = f"""
        leader, terminal = os.openpty()
        letter = ctypes.create_string_buffer(b"x")
        for request in (0x5412, 1 << 32 | 0x5412, -1 << 32 | 0x5412, 0x541C, 7 << 32 | 0x5423):
            got = call({NUMBERS[MACHINE]["ioctl"]}, terminal, request, ctypes.addressof(letter))
            assert got == -errno.EPERM, (hex(request), got)
        os.set_blocking(terminal, False)
        try:
            print("read", os.read(terminal, 1))
        except BlockingIOError:
            print(os.isatty(terminal), os.get_terminal_size(terminal).columns)
    """
    assert confined(*python(code)).stdout == "True 0\n"


@needs_this_machine
def test_only_unix_and_internet_sockets_can_be_made(confined):
    code = """
        made, refused = set(), set()
        for family in range(64):
            for kind in range(1, 7):
                try:
                    socket.socket(family, kind, 0).close()
                    made.add((family, kind))
                except OSError as error:
                    if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
                        refused.add(family)
        print(sorted(made), sorted(set(range(64)) - refused))
    """
    done = confined(*python(code))
    # Type 3 of AF_UNIX is not raw: the kernel makes a datagram socket of it.
    unix = [(1, 1), (1, 2), (1, 3), (1, 5)]
    internet = [(2, 1), (2, 2)]
    internet6 = [(10, 1), (10, 2)] if socket.has_ipv6 else []
    assert done.stdout == f"{unix + internet + internet6} [1]\n"


def machine_code(data, *more):
    return python(
        f"""
        import mmap
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes.fromhex({data!r}))
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        print(ctypes.CFUNCTYPE(ctypes.c_long)(address)())
        """
    )


@needs_x86
def test_int_0x80_dies_by_sigsys(confined):
    getpid_of_i386 = machine_code("b814000000 cd80 c3")  # mov eax, 20; int 0x80; ret
    assert confined(*getpid_of_i386, check=False).returncode == -signal.SIGSYS
    # The machine code itself is sound: another number, by the ordinary door, returns.
    assert int(confined(*machine_code("b827000000 0f05 c3")).stdout) > 1  # getpid; syscall


@needs_x86
def test_x32_dies_by_sigsys(confined):
    for number in (X32 | 39, X32 | 520):
        done = confined(*python(f"call({number}); print('alive')"), check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGSYS, "")


@needs_this_machine
def test_memfd_create_works_unless_denied(confined):
    code = python("print(os.memfd_create('x') > 2)")
    assert confined(*code).stdout == "True\n"
    done = confined(*code, program=compiled(MACHINE, ("memfd_create",)), check=False)
    assert "PermissionError" in done.stderr


PROGRAMS = {
    "threads": """
        import threading
        results = []
        threads = [threading.Thread(target=results.append, args=(i,)) for i in range(20)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert sorted(results) == list(range(20))
    """,
    "subprocesses": """
        import subprocess
        assert subprocess.run(["sh", "-c", "cat | wc -c"], input=b"abc", capture_output=True,
                              timeout=20).stdout.strip() == b"3"
        assert subprocess.run(["true"], start_new_session=True, close_fds=False).returncode == 0
        assert subprocess.run(["true"], preexec_fn=os.setpgrp, cwd="/").returncode == 0
        assert os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1] == 0
        pid = os.fork()
        if not pid:
            os._exit(7)
        descriptor = os.pidfd_open(pid)
        assert os.waitid(os.P_PIDFD, descriptor, os.WEXITED).si_status == 7
    """,
    "asyncio": """
        import asyncio
        async def main():
            process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            assert (await process.communicate(b"hello"))[0] == b"hello"
            async def echo(reader, writer):
                writer.write(await reader.read(5)); await writer.drain(); writer.close()
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"12345")
            assert await reader.read() == b"12345"
            writer.close()
            server.close()
            assert await asyncio.to_thread(lambda: 5) == 5
        asyncio.run(main())
    """,
    "sockets": """
        import select
        left, right = socket.socketpair()
        left.send(b"x"); assert right.recv(1) == b"x"
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(("127.0.0.1", 0))
        one.sendto(b"y", one.getsockname()); assert one.recv(1) == b"y"
        assert socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        assert socket.getaddrinfo("localhost", 80)
        socket.gethostname()
        try:
            socket.if_nameindex()
        except OSError:
            pass
        try:
            socket.create_connection(("127.0.0.1", 1), timeout=5)
        except ConnectionRefusedError:
            pass
        socket.send_fds(left, [b"z"], [0]); assert socket.recv_fds(right, 1, 1)[1]
        poll = select.epoll(); poll.register(right); assert poll.poll(0)
    """,
    "sqlite": """
        import sqlite3
        with sqlite3.connect("data.db") as db:
            db.execute("pragma journal_mode=wal")
            db.execute("create table t (a)")
            db.executemany("insert into t values (?)", [(i,) for i in range(1000)])
        assert db.execute("select sum(a) from t").fetchone() == (499500,)
    """,
    "files": """
        import fcntl, mmap, pathlib, resource, shutil, tempfile, time
        with tempfile.TemporaryDirectory(dir=".") as name:
            path = pathlib.Path(name, "a"); path.write_text("text" * 5000)
            shutil.copy2(path, path.with_name("b")); path.with_name("b").rename(path.with_name("c"))
            os.link(path, path.with_name("l")); os.symlink("a", path.with_name("s"))
            assert len(list(os.scandir(name))) == 4
            os.chmod(path, 0o600); os.utime(path); os.truncate(path, 10); os.statvfs(path)
            with open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX)
                os.fsync(file.fileno()); os.posix_fallocate(file.fileno(), 0, 100)
                mmap.mmap(file.fileno(), 0).flush()
            os.mkfifo(path.with_name("f")); os.sync()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        os.getloadavg(); os.sched_getaffinity(0); os.cpu_count(); os.getrandom(4); os.nice(1)
        os.uname(); time.sleep(0.001); time.process_time(); os.times()
    """,
    "signals": """
        import faulthandler, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert signal.sigwait([signal.SIGALRM]) == signal.SIGALRM
        os.kill(os.getpid(), 0); signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); signal.raise_signal(10)
        assert signal.sigwait([10]) == 10
        faulthandler.enable()
    """,
    "terminals": """
        import fcntl, pty, struct, termios
        pid, terminal = pty.fork()
        if not pid:
            os.execvp("sh", ["sh", "-c", "tty >/dev/null && stty size && echo yes"])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        text = b""
        try:
            while chunk := os.read(terminal, 1000):
                text += chunk
        except OSError as error:
            assert error.errno == errno.EIO
        assert b"yes" in text, text
    """,
}


@needs_this_machine
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_ordinary_python_works(confined, name):
    confined(*python(PROGRAMS[name]))


@needs_this_machine
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works(confined, tmp_path, method):
    script = tmp_path / "pool.py"
    script.write_text(
        dedent(f"""
        import multiprocessing, multiprocessing.shared_memory, concurrent.futures
        def double(x): return 2 * x
        if __name__ == "__main__":
            multiprocessing.set_start_method({method!r})
            with multiprocessing.Pool(2) as pool:
                assert pool.map(double, range(10)) == list(range(0, 20, 2))
            with concurrent.futures.ProcessPoolExecutor(2) as pool:
                assert list(pool.map(double, [1, 2])) == [2, 4]
            memory = multiprocessing.shared_memory.SharedMemory(create=True, size=10)
            memory.close(); memory.unlink()
            with multiprocessing.Manager() as manager:
                assert manager.list([1])[0] == 1
        """)
    )
    confined(sys.executable, str(script))


COMMANDS = {
    "ls": "ls -la / >/dev/null",
    "sh": "for i in 1 2 3; do echo $i; done | sort -r | head -n1 | grep -q 3",
    "cp": "mkdir -p a/b && echo x >a/b/f && cp -a a c && mv c d && diff -r a d && rm -r a d",
    "tar": "echo x >f && tar czf t.tgz f && tar xzOf t.tgz | grep -q x",
    "find": "find /usr/bin -maxdepth 1 -name 'ls*' | xargs -n1 stat >/dev/null",
    "sync": "sync",
    "timeout": "timeout 50 sleep 0.01 && nice true && env true && id >/dev/null && date >/dev/null",
    "dd": "dd if=/dev/zero of=z bs=64k count=4 status=none && md5sum z >/dev/null && split -n2 z",
    "ps": "ps aux >/dev/null",
    "git": "git init -q r && cd r && git config user.email a@b && git config user.name n && "
    "echo x >f && git add f && git commit -qm m && git log --oneline | grep -q m && git gc -q",
    "gcc": "printf '#include <stdio.h>\\nint main(){puts(\"hi\");}' >h.c && "
    "gcc -pipe -O1 h.c -o h && ./h | grep -q hi",
    "make": "printf 'all: a b\\na b:\\n\\ttouch $@\\n' >Makefile && make -s -j2 && test -e b",
    "perl": "perl -e 'open(F, \"ls|\"); print <F>; fork; wait'",
    "node": 'node -e \'require("fs").readFile("/etc/passwd", () => console.log(1))\'',
    "curl": "curl -s --max-time 5 http://127.0.0.1:1/ || test $? = 7",
}


@needs_this_machine
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_ordinary_commands_work(confined, name):
    if not shutil.which(name):
        pytest.skip(f"no {name} here")
    confined("sh", "-ec", COMMANDS[name])


LIBRARIES = {
    "numpy": "import numpy as n; a = n.random.rand(300, 300); assert (a @ a).shape == (300, 300)",
    "pandas": "import pandas as p; p.DataFrame({'a': [1, 2]}).to_csv('f.csv'); p.read_csv('f.csv')",
    "pyarrow": "import pyarrow as p, pyarrow.parquet as q; q.write_table(p.table({'a': [1]}), 'f');"
    " assert q.read_table('f').num_rows == 1",
    "matplotlib": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as p;"
    " p.plot([1, 2]); p.savefig('f.png')",
    "sklearn": "import sklearn.ensemble as e;"
    " e.RandomForestClassifier(n_jobs=2).fit([[0], [1]] * 9, [0, 1] * 9)",
}


@functools.cache
def interpreter_with(module):
    """This interpreter, or the first one in the path, or the system's: whichever has the module."""
    for candidate in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if candidate and os.access(candidate, os.X_OK):
            probe = [candidate, "-c", f"import importlib.util as u; u.find_spec({module!r}).name"]
            if subprocess.run(probe, capture_output=True).returncode == 0:
                return candidate
    return None


@needs_this_machine
@pytest.mark.parametrize("module", sorted(LIBRARIES))
def test_libraries_for_data_work(confined, module):
    interpreter = interpreter_with(module)
    if interpreter is None:
        pytest.skip(f"no interpreter with {module} here")
    confined(interpreter, "-c", LIBRARIES[module])
