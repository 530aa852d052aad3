"""The files passwd and group of a container: there while it starts, and no longer."""

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


def test_the_files_name_the_user_and_go_with_the_start(directory):
    uid = 2_000_000_001
    with profile.account_files(uid) as files:
        lines = {place: Path(path).read_text().splitlines() for place, path in files.items()}
        assert lines["/etc/passwd"][1].split(":")[:4] == ["user", "x", str(uid), str(uid)]
        assert lines["/etc/group"][1] == f"user:x:{uid}:"
        assert all(os.stat(path).st_mode & 0o777 == 0o644 for path in files.values())
        assert all(mount["ReadOnly"] for mount in profile.account_mounts(files))
        profile.remove_stale_account_files()  # another start, meanwhile
        assert set(os.listdir(directory)) == {os.path.basename(path) for path in files.values()}
    assert os.listdir(directory) == []


def test_what_a_killed_process_left_is_swept_and_nothing_else(directory):
    program = dedent("""
        import os, signal, sys, tempfile
        from belljar.backends.docker import profile
        tempfile.tempdir = sys.argv[1]
        with profile.account_files(1000):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", program, str(directory)], check=False)
    assert len(os.listdir(directory)) == 2
    (directory / "belljar-passwd-x").write_text("of somebody else")
    profile.remove_stale_account_files()
    assert os.listdir(directory) == ["belljar-passwd-x"]


def test_the_option_is_a_switch():
    assert Docker(named_user=True).given == ("named_user",)
    with pytest.raises(InvalidOption, match="named_user is True or False"):
        Docker(named_user="yes")
