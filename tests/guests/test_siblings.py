"""Guests are forks of one process: what they must not have in common, and what they may share."""

import json
import os
import subprocess
import sys
import uuid

import pytest

from belljar import Environment
from belljar.backends.linux import posture
from outside import guest_of

pytestmark = pytest.mark.contract("native")

# All of it has been used before the first guest is forked: a state that forks would share is there.
_USE = "random.random(), uuid.uuid4(), next(tempfile._get_candidate_names()), ssl.RAND_bytes(8)"
_MODULES = ("random", "uuid", "tempfile", "ssl", "secrets", "multiprocessing.process")
DRAWN = {
    "random": "random.random()",
    "a generator of its own": "random.Random().random()",
    "SystemRandom": "random.SystemRandom().random()",
    "secrets": "secrets.token_hex()",
    "urandom": "os.urandom(16).hex()",
    "uuid1": "str(uuid.uuid1())",
    "uuid4": "str(uuid.uuid4())",
    "temporary files": "next(tempfile._get_candidate_names())",
    "OpenSSL": "ssl.RAND_bytes(16).hex()",
    "multiprocessing": "bytes(multiprocessing.process.current_process().authkey).hex()",
    "mail": "email.generator.Generator._make_boundary()",
}
DRAW = (
    f"import {', '.join(_MODULES)}, os, email.generator\n"
    f"{{{', '.join(f'{name!r}: {code}' for name, code in DRAWN.items())}}}"
)


@pytest.fixture(scope="module")
def environment():
    warmup = f"import {', '.join(_MODULES)}\n{_USE}"
    return Environment("siblings", preload=_MODULES, warmup=warmup)


def draw(sandbox):
    drawn = sandbox.run_code(DRAW).value
    assert drawn is not None
    assert set(drawn) == set(DRAWN)
    return drawn


def differ(several):
    for name in DRAWN:
        assert len({drawn[name] for drawn in several}) == len(several), name


@pytest.mark.native_only
def test_siblings_and_restarted_interpreters_have_no_state_of_chance_in_common(
    make_sandbox, environment
):
    several = []
    for _ in range(2):
        sandbox = make_sandbox(environment=environment)
        several.append(draw(sandbox))
        sandbox.restart()
        several.append(draw(sandbox))
    differ(several)


@pytest.mark.native_only
def test_all_namespaces_of_siblings_differ(make_sandbox):
    seen = []
    for _ in range(2):
        sandbox = make_sandbox(environment="python")
        sandbox.run_code("1")
        pid = guest_of(sandbox).pid
        seen.append({kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in posture.NAMESPACES})
    for kind in posture.NAMESPACES:
        assert seen[0][kind] != seen[1][kind], kind


def in_a_process(code):
    """What it prints, as JSON: the allocator of a process that runs tests has seen too much."""
    line = (
        f"import json, re, mmap, ctypes\nfrom belljar.backends.native import shared_pages\n{code}"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


FREE_BLOCKS = """
def free():
    rows = [line.split() for line in shared_pages._allocator_statistics().splitlines()]
    return sum(int(r[1]) * int(r[4]) for r in rows if len(r) == 5 and all(map(str.isdigit, r)))
kept = [bytes(range(size % 200)) for size in range(200_000)][::2]
"""


def test_no_room_is_left_between_the_objects_that_guests_share():
    code = """
before = free()
held = [shared_pages.fill_holes(), shared_pages.fill_holes()]
print(json.dumps([before, free()]))
"""
    before, after = in_a_process(FREE_BLOCKS + code)
    assert before > 5_000_000
    assert after < 500_000  # of each size, the rest of the last pool


def test_arenas_that_were_reserved_and_not_used_are_given_back():
    code = """
def arenas():
    text = shared_pages._allocator_statistics()
    return int(re.search(r"arenas allocated current *= *([0-9,]+)", text)[1].replace(",", ""))
before = arenas()
reserved = shared_pages.reserve_arenas()
during = arenas()
del reserved
print(json.dumps([before, during, arenas()]))
"""
    before, during, after = in_a_process(code)
    assert during > before + 20
    assert after < before + 5


def test_huge_pages_have_the_content_that_was_there():
    code = """
memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
text = bytes(range(256)) * (len(memory) // 256)
memory[:] = text
first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
taken = shared_pages.sys_.madvise_collapse(first, first + len(memory))
print(json.dumps([taken, memory[:] == text]))
"""
    taken, same = in_a_process(code)
    assert 0 <= taken <= 4  # none before Linux 6.1, or where they are switched off
    assert same


SCAN = """
import os
wanted = os.environ["FIRST"].encode() + b"-" + os.environ["SECOND"].encode()[::-1]
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        span, access, *_ = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        if "w" in access and last - first < 1 << 28:
            memory.seek(first)
            found += memory.read(last - first).count(wanted)
found
"""


@pytest.mark.native_only("a container's guests have no zygote")
def test_no_variable_of_another_guest_is_in_the_memory_of_a_later_one(make_sandbox):
    """The zygote that forks both must never have read it."""
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    make_sandbox().run_code("1")
    owner = make_sandbox(env={"KEY": f"{first}-{second}"})
    # The scanner makes what it looks for itself: what it is told has the second half backwards.
    halves = {"FIRST": first, "SECOND": second[::-1]}
    assert owner.run_code("import os; os.environ['KEY']").value == f"{first}-{second}"
    seen = make_sandbox(env=halves).run_code(SCAN).value
    own = make_sandbox(env={**halves, "KEY": f"{first}-{second}"}).run_code(SCAN).value
    assert own > seen, "the scan does not see what is there"
    assert seen <= 3  # `wanted` itself, and what making it left behind
