"""The Pythons of this machine that a guest may run on."""

import glob
import os
import shutil
import subprocess
import sys


def interpreters():
    """Version -> path of the Pythons 3.9 to 3.14 that can be executed here."""
    here = ".".join(map(str, sys.version_info[:2]))
    found = {here: None}  # None: the one belljar runs on
    for minor in range(9, 15):
        version = f"3.{minor}"
        pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
        paths = glob.glob(f"{pyenv}/versions/{version}.*/bin/python3")
        paths += [path for path in [shutil.which(f"python{version}")] if path]
        for path in paths:
            if version not in found and _is(path, version):
                found[version] = path
    return found


def _is(path, version):
    try:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=20)
    except OSError:
        return False
    return done.stdout.strip() == version  # shims of pyenv may be for another one
