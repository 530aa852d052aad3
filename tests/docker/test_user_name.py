"""The passwd file of a container's user: there while a container starts, and no longer."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

from belljar import Docker, InvalidOption
from belljar.backends.docker import profile


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_file_names_the_user_and_goes_with_the_start(directory):
    with profile.passwd_file(2_000_000_001) as path:
        lines = Path(path).read_text().splitlines()
        assert lines[1].split(":")[:4] == ["user", "x", "2000000001", "2000000001"]
        assert os.stat(path).st_mode & 0o777 == 0o644
        assert profile.passwd_mount(path)["ReadOnly"] is True
        profile.remove_stale_passwd_files()  # another start, meanwhile
        assert os.listdir(directory) == [os.path.basename(path)]
    assert os.listdir(directory) == []


def test_what_a_killed_process_left_is_swept_and_nothing_else(directory):
    program = dedent("""
        import os, signal, sys, tempfile
        from belljar.backends.docker import profile
        tempfile.tempdir = sys.argv[1]
        with profile.passwd_file(1000):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", program, str(directory)], check=False)
    assert len(os.listdir(directory)) == 1
    (directory / "belljar-passwd-x").write_text("of somebody else")
    profile.remove_stale_passwd_files()
    assert os.listdir(directory) == ["belljar-passwd-x"]


def test_the_option_is_a_switch():
    assert Docker(named_user=True).given == ("named_user",)
    with pytest.raises(InvalidOption, match="named_user is True or False"):
        Docker(named_user="yes")
