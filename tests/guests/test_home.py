"""The home of the guest's user, and /var/tmp: writable, and within the limits."""

import os

import pytest

import setting
from belljar import InvalidOption, Limits, Mount, Sandbox

pytestmark = pytest.mark.contract("native", "docker", "gvisor")


def test_the_home_is_a_writable_directory_of_its_own(sandbox):
    code = "import os; (os.environ['HOME'], os.path.expanduser('~'), os.listdir('/home/user'))"
    assert sandbox.run_code(code).value == ("/home/user", "/home/user", [])
    sandbox.run_code("open(os.path.expanduser('~/.settings'), 'w').write('kept')")
    sandbox.restart()
    assert sandbox.commands.run("cat ~/.settings; ls /tmp").stdout == "kept"
    assert sandbox.files.read("/home/user/.settings") == "kept"


def test_programs_can_be_kept_in_the_home_and_in_var_tmp(sandbox):
    script = "for d in ~ /var/tmp; do cp /bin/echo $d/run && $d/run $d; done"
    assert sandbox.commands.run(script).stdout == "/home/user\n/var/tmp\n"
    code = "import os; st = os.stat('/var/tmp'); (st.st_uid == os.getuid(), oct(st.st_mode))"
    assert sandbox.run_code(code).value == (True, "0o41777")


def test_passwd_agrees(sandbox):
    code = "import os, pwd; tuple(pwd.getpwuid(os.getuid())), os.getuid()"
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    found, uid = sandbox.run_code(code).value
    assert found == ("user", "x", uid, uid, "", "/home/user", shell)
    assert uid == 1000 or setting.BACKEND != "native"
    said = sandbox.commands.run("whoami; echo $USER $LOGNAME $SHELL $HOME; id -gn").stdout
    assert said == f"user\nuser user {shell} /home/user\nuser\n"


FILL = """
import os
def fill(place):
    try:
        with open(place + "/large", "wb", buffering=0) as file:
            while file.tell() < 64 << 20:
                file.write(bytes(1 << 16))
    except OSError as error:
        return error.errno
[fill(place) for place in ("/home/user", "/var/tmp")], sum(
    os.stat(place + "/large").st_size for place in ("/home/user", "/var/tmp", "/tmp")
    if os.path.exists(place + "/large"))
"""


def test_what_is_written_there_counts_against_the_limit_of_tmp(make_sandbox):
    with make_sandbox(limits=Limits(tmp="2m")) as sandbox:
        refused, size = sandbox.run_code(FILL).value
        assert refused == [28, 28]
        assert size <= (2 << 20) * (1 if setting.BACKEND == "native" else 2)
    with make_sandbox(limits=Limits(tmp="200m")) as sandbox:
        assert sandbox.run_code(FILL).value == ([None, None], 128 << 20)


def test_the_workspace_can_be_the_home_or_in_it(make_sandbox):
    for workdir in ("/home/user", "/home/user/project/src", "/var/tmp"):
        with make_sandbox(workdir=workdir) as sandbox:
            code = "import os; open('a', 'w').write('x'); (os.getcwd(), os.environ['HOME'])"
            assert sandbox.run_code(code).value == (workdir, "/home/user")
            assert [each.path for each in sandbox.files.list()] == [f"{workdir}/a"]
            assert sandbox.commands.run("cd; pwd; touch b && ls -A").ok


@pytest.mark.contract("native", "docker")
def test_a_mount_can_be_in_the_home_or_in_its_place(make_sandbox, tmp_path):
    (tmp_path / "given").write_text("of the host")
    tmp_path.chmod(0o755)
    for mounts in (
        [Mount(tmp_path, "/home/user/a/b"), Mount(tmp_path / "given", "/var/tmp/given")],
        [Mount(tmp_path, "/home/user")],
    ):
        with make_sandbox(mounts=mounts) as sandbox:
            for mount in mounts:
                path = f"{mount.guest}/given" if mount.kind == "dir" else mount.guest
                assert sandbox.files.read(path) == "of the host"
                assert not sandbox.commands.run(f"echo x > {path}").ok
    assert (tmp_path / "given").read_text() == "of the host"


@pytest.mark.parametrize("path", ["/home", "/var"])
def test_nothing_can_hide_them(path, tmp_path):
    with pytest.raises(InvalidOption, match="would hide"):
        Mount(tmp_path, path)
    with pytest.raises(InvalidOption, match="the workspace cannot be"):
        Sandbox(workdir=path)


@pytest.mark.native_only("an engine masks /proc/sys whole, and gVisor has one of its own")
def test_each_guest_has_a_boot_id_of_its_own(make_sandbox):
    code = "open('/proc/sys/kernel/random/boot_id').read()"
    first, second = make_sandbox(), make_sandbox()
    one, other = first.run_code(code).value, second.run_code(code).value
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert len({one, other, file.read()}) == 3
    assert len(one) == len(other) == 37
    first.restart()
    assert first.run_code(code).value == one


def test_the_boot_id_of_the_host_is_not_seen(sandbox):
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert (
            file.read().strip()
            not in sandbox.commands.run("cat /proc/sys/kernel/random/boot_id").stdout
        )
