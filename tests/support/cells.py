"""What the tests of cells share: running code, and reading tracebacks."""

import re
from textwrap import dedent

LOOP = "while True: pass"


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


def frames(traceback):
    """(file, line, source text) of every frame; the text is None where there is none."""
    found = re.findall(r'File "(.*?)", line (\d+).*\n(?: +(.*)\n)?', traceback)
    return [(file, int(line), text or None) for file, line, text in found]


def without_marks(traceback):
    """Where the error is within the line (3.11 and later) is not compared."""
    lines = traceback.splitlines()
    return "\n".join(line for line in lines if not re.fullmatch(r"[ |]*[~^]+[ ~^]*", line))
