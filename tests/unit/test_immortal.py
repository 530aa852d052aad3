"""Objects of the zygote made immortal: each Python of this machine behaves as before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import belljar
from interpreters import interpreters

SOURCE = Path(belljar.__file__).parent
DRIVER = Path(__file__).parents[1] / "support" / "immortal_driver.py"
PYTHONS = interpreters()
# Types that count references themselves or look at counts: in-place changes, results used again,
# weak references, frames, interned strings, the collector.
MODULES = (
    *(
        "test_gc",
        "test_weakref",
        "test_weakset",
        "test_list",
        "test_dict",
        "test_tuple",
        "test_set",
    ),
    *("test_struct", "test_memoryio", "test_fileio", "test_itertools", "test_functools"),
    *("test_enumerate", "test_ordered_dict", "test_deque", "test_generators", "test_coroutines"),
    *("test_frame", "test_code", "test_marshal", "test_types", "test_class", "test_context"),
    *("test_exceptions", "test_json", "test_userstring", "test_array", "test_bytes"),
)
# They compare what sys.getrefcount says of an object before and after.
COUNTING = [
    f"test_memoryio.CBytesIOTest.test_cow_{what}" for what in ("setstate", "truncate", "write")
]
# After gc.unfreeze(), which another test calls, the collector of 3.14 forgets immortal objects.
TRACKING = ["test_gc.GCTests.test_is_tracked", "test_gc.GCTests.test_get_referents_on_capsule"]


@pytest.fixture(params=["3.12", "3.13", "3.14"])
def python(request):
    if request.param not in PYTHONS:
        pytest.skip(f"Python {request.param} is not installed here")
    return PYTHONS[request.param] or sys.executable


def ask(python, code, **options):
    """Run code in which `make_immortal` is a name."""
    start = (
        f"import sys; sys.path.insert(0, {str(DRIVER.parent)!r})\n"
        "import gc, os, immortal_driver\n"
        f"make_immortal = immortal_driver.load_shared_pages({str(SOURCE)!r}).make_immortal\n"
    )
    return subprocess.run(
        [python, "-W", "error", "-c", start + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def run_battery(python, immortal, tmp_path):
    done = subprocess.run(
        [python, str(DRIVER), str(SOURCE), immortal, *MODULES],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(900)
def test_pythons_own_tests_give_the_same_results(python, tmp_path):
    if subprocess.run([python, "-c", "import test.test_gc"], capture_output=True).returncode:
        pytest.skip("this Python was installed without its own tests")
    before, after = (run_battery(python, immortal, tmp_path) for immortal in ("no", "yes"))
    assert after["made"] > 10_000
    assert sum(len(each["passed"]) for each in before["answers"].values()) > 2000
    for module, plain in before["answers"].items():
        immortal = after["answers"][module]
        assert "ended" not in immortal, module
        lost = set(plain["passed"]) - set(immortal["passed"])
        assert {each.removeprefix("test.") for each in lost} <= {*COUNTING, *TRACKING}, immortal[
            "failed"
        ]


def test_counts_stay_as_they_are_and_new_objects_are_freed(python):
    done = ask(
        python,
        """
import ctypes, weakref
class Old: pass
old, text, numbers = Old(), "some text".upper(), [1000.5, tuple([2000, "x"])]
watched = weakref.ref(old)
made = make_immortal()
immortal = sys.getrefcount(old)
assert made > 5000 and immortal > 2**30, (made, immortal)
def counts():
    some = (old, Old, text, numbers, numbers[1])
    return [ctypes.c_uint32.from_address(id(each)).value for each in some]
before = counts()
held = [(old, Old, text, numbers, numbers[1]) for _ in range(1000)]
assert counts() == before
del held
assert counts() == before
gone = []
class New(Old): pass
for _ in range(3):
    new = New()
    weakref.finalize(new, gone.append, 1)
    numbers.append(new)  # a new object in an immortal one
    del new, numbers[-1]
assert gone == [1, 1, 1]
text += "!"
assert text == "SOME TEXT!" and numbers == [1000.5, (2000, "x")]
del old
assert watched() is not None  # never freed
gc.freeze()
new = New()
new.me = new
watched = weakref.ref(new)
del new
gc.collect()
assert watched() is None
gc.unfreeze()
gc.collect()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_cleanly(python):
    code = "import json, decimal, asyncio, threading, enum\nmake_immortal()\nprint('x' * 3)"
    done = ask(python, code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "xxx\n", "")


def test_it_is_done_once_and_what_comes_later_can_be_added(python):
    done = ask(
        python,
        """
first = make_immortal()
later = [object() for _ in range(500)]
second = make_immortal()
assert first > 5000 > second >= 500, (first, second)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "change",
    [
        "sys.abiflags = 't'",
        "sys.byteorder = 'big'",
        "sys.implementation.name = 'pypy'",
        "sys.version_info = (3, 11, 0, 'final', 0)",
        "sys.version_info = (3, 15, 0, 'final', 0)",
    ],
)
def test_a_python_that_is_not_known_is_left_alone(python, change):
    code = f"old = object()\n{change}\nassert make_immortal() == 0\nassert sys.getrefcount(old) < 9"
    done = ask(python, code)
    assert (done.returncode, done.stderr) == (0, "")


def test_counts_that_look_otherwise_are_left_alone(python):
    code = """
module = sys.modules["sent.backends.native.shared_pages"]
module._IMMORTAL = {sys.version_info[1]: (5, 1 << 17)}
old = object()
assert make_immortal() == 0
assert sys.getrefcount(old) < 9
"""
    done = ask(python, code)
    assert (done.returncode, done.stderr) == (0, "")


def test_older_pythons_are_left_alone():
    for version, path in PYTHONS.items():
        if tuple(map(int, version.split("."))) < (3, 12):
            done = ask(path or sys.executable, "assert make_immortal() == 0")
            assert (done.returncode, done.stderr) == (0, ""), version
