"""A host process that uses Belljar, to be interrupted, forked or killed by a test."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import belljar
import census

SOURCE = str(Path(belljar.__file__).parents[1])
PATIENCE = 60.0
STUBBORN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("begun")
while True: pass
"""
PREAMBLE = f"""
import os, sys, belljar, belljar.sandbox.run
from belljar import Sandbox
STUBBORN = {STUBBORN!r}
"""


class Script:
    """A host process of its own, in its own process group as a shell would start it."""

    def __init__(self, program):
        program = PREAMBLE + dedent(program)
        environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.started = census.process(self.pid).started

    def line(self):
        """What it says next."""
        text = self.process.stdout.readline()
        assert text, f"it ended: {self.process.stderr.read()}"
        return text.strip()

    def end(self):
        """Wait for its end: exit status, the rest of its output, its errors."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def kill(self):
        """SIGKILL, if it still runs; what it started is not touched."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
