"""Runs tests of a Python's own test package, each module in a fork, as that Python.

    python immortal_driver.py SOURCE yes|no MODULE...

Prints, as JSON, the tests that passed by module, and the others with the end of their traceback.
With "yes" every object is made immortal before the forks, as a zygote does. Runs on Python 3.12.
"""

import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
import unittest


def load_shared_pages(source):
    """Without the package's own dependencies, which this Python may lack."""
    for name in ("sent", "sent.backends", "sent.backends.native", "sent.backends.linux"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(source, *name.split(".")[1:])]
    return importlib.import_module("sent.backends.native.shared_pages")


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed = []

    def addSuccess(self, test):
        self.passed.append(test.id())


def run_module(module, answer):
    os.chdir(tempfile.mkdtemp())  # below the TMPDIR that the caller removes
    result = Result()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    failed = {test.id(): text[-300:] for test, text in result.failures + result.errors}
    with open(answer, "w") as file:
        json.dump({"passed": sorted(result.passed), "failed": failed}, file)


def in_fork(module):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(2, 1)  # what tests print is not the answer
        try:
            run_module(module, writing)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        told = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(told) if status == 0 else {"ended": status}


def main(source, immortal, *names):
    shared_pages = load_shared_pages(source)
    modules = [importlib.import_module(f"test.{name}") for name in names]
    gc.collect()
    made = shared_pages.make_immortal() if immortal == "yes" else 0
    gc.freeze()
    answers = {module.__name__: in_fork(module) for module in modules}
    json.dump({"made": made, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
