"""Mounts: what the caller shows is seen, and nothing else; what he did not allow is not written."""

import errno
import os
import stat
import subprocess
import sys
import time

import pytest

import census
import gvisor
import setting
from belljar import FileError, InvalidOption, Sandbox, SandboxError
from belljar.backends.mounts import Mount, check_mounts

pytestmark = pytest.mark.contract("native", "docker", "gvisor")


@pytest.fixture
def shown(tmp_path):
    """A directory that everybody may read."""
    directory = tmp_path / "shown"
    (directory / "sub").mkdir(parents=True)
    (directory / "f.txt").write_text("from the host")
    for path in (directory, directory / "sub"):
        path.chmod(0o755)
    return directory


def zygotes():
    """The processes below this one, when none of them is on its way in or out."""
    seen = []
    while len(seen) < 4 or len({tuple(pids) for pids in seen[-4:]}) > 1:
        time.sleep(0.05)
        seen.append([p.pid for p in census.descendants(os.getpid()) if p is not None])
    return seen[-1]


def test_a_directory_is_seen_and_cannot_be_written(make_sandbox, shown):
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/data")])
    assert sandbox.run_code("open('/data/f.txt').read()").value == "from the host"
    for code in (
        "open('/data/new', 'w')",
        "open('/data/f.txt', 'a')",
        "import os; os.unlink('/data/f.txt')",
        "import os; os.chmod('/data/f.txt', 0o777)",
        "import os; os.rename('/data/f.txt', '/data/g')",
        "import os; os.utime('/data/f.txt')",
        "import os; os.mkdir('/data/sub/x')",
    ):
        assert sandbox.run_code(code).error.name in ("OSError", "PermissionError"), code
    assert sorted(path.name for path in shown.rglob("*")) == ["f.txt", "sub"]
    (shown / "later").write_text("2")
    assert sandbox.files.read("/data/later") == "2"


@gvisor.WRITABLE
def test_a_writable_directory_is_the_hosts_own(make_sandbox, shown):
    shown.chmod(0o777)
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/mnt/out", read_only=False)])
    made = sandbox.run_code("open('/mnt/out/made', 'w').write('by the guest')")
    assert made.ok, made
    assert (shown / "made").read_text() == "by the guest"


@gvisor.WRITABLE
def test_a_writable_file_is_written_in_place(make_sandbox, shown):
    """No other file can take its place: the kernel does not rename over a mount."""
    file = shown / "f.txt"
    file.chmod(0o666)
    inode = file.stat().st_ino
    sandbox = make_sandbox(mounts=[Mount(str(file), "/mnt/f.txt", read_only=False)])
    assert sandbox.files.write("/mnt/f.txt", "by write").size == 8
    assert (file.read_text(), file.stat().st_ino) == ("by write", inode)


@gvisor.WRITABLE
def test_a_file_in_a_writable_directory_keeps_its_owner(make_sandbox, shown):
    shown.chmod(0o777)
    file = shown / "f.txt"
    file.chmod(0o666)
    before = file.stat()
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/mnt/out", read_only=False)])
    sandbox.files.write("/mnt/out/f.txt", "new")
    after = file.stat()
    assert file.read_text() == "new"
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE(after.st_mode) == 0o666


def test_what_has_a_mount_inside_is_not_removed(make_sandbox, shown):
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/home/user/a/with space")])
    sandbox.files.write("/home/user/b", "x")
    for path, words in (
        ("/home/user/a/with space", "is a mount point"),
        ("/home/user/a", "'/home/user/a/with space' is mounted inside"),
        ("/home/user/a/../a", "is mounted inside"),
        ("/home", "is mounted inside"),
    ):
        with pytest.raises(FileError, match=words):
            sandbox.files.remove(path)
    assert sandbox.files.read("/home/user/a/with space/f.txt") == "from the host"
    assert sandbox.files.read("/home/user/b") == "x"
    sandbox.files.remove("/home/user/b")


@gvisor.WRITABLE
def test_a_writable_mount_is_not_emptied_by_removing_it(make_sandbox, shown):
    for path in (shown, shown / "sub"):
        path.chmod(0o777)
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/mnt/out", read_only=False)])
    for path in ("/mnt/out", "/mnt"):
        with pytest.raises(FileError, match="mount"):
            sandbox.files.remove(path)
    assert sorted(path.name for path in shown.rglob("*")) == ["f.txt", "sub"]
    sandbox.files.remove("/mnt/out/sub")
    assert sorted(path.name for path in shown.rglob("*")) == ["f.txt"]


SET_ID = """
import os, subprocess
def attempt(make):
    try: make()
    except OSError as error: return error.errno
os.chdir("/mnt/out")
open("file", "w").close()
made = os.O_CREAT | os.O_WRONLY
attempts = [
    lambda mode: os.chmod("file", mode),
    lambda mode: os.fchmod(os.open("file", os.O_RDONLY), mode),
    lambda mode: os.chmod("file", mode, dir_fd=os.open(".", os.O_RDONLY)),
    lambda mode: os.open(f"open-{mode}", made, mode),
    lambda mode: os.mknod(f"mknod-{mode}", mode),
    lambda mode: os.open(".", os.O_TMPFILE | os.O_RDWR, mode),
]
seen = [[attempt(lambda: each(mode)) for mode in (0o4755, 0o2755, 0o755)] for each in attempts]
seen, subprocess.run(["chmod", "u+s", "file"], capture_output=True).returncode
"""


@gvisor.WRITABLE
def test_a_writable_directory_gets_no_files_that_run_as_their_owner(make_sandbox, shown):
    shown.chmod(0o777)
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/mnt/out", read_only=False)])
    seen, status = sandbox.run_code(SET_ID).raise_for_outcome().value
    assert seen == [[errno.EPERM, errno.EPERM, None]] * 6
    assert status != 0
    assert not [path for path in shown.iterdir() if path.stat().st_mode & 0o6000]


@gvisor.WRITABLE
def test_a_single_file_can_be_mounted(make_sandbox, shown):
    (shown / "w").write_text("1")
    (shown / "w").chmod(0o666)
    sandbox = make_sandbox(
        mounts=[
            Mount(str(shown / "f.txt"), "/data/one.txt"),
            Mount(str(shown / "w"), "/data/two.txt", read_only=False),
        ]
    )
    assert sandbox.run_code("open('/data/one.txt').read()").value == "from the host"
    assert sandbox.run_code("open('/data/one.txt', 'w')").error is not None
    assert sandbox.run_code("open('/data/two.txt', 'a').write('2')").ok
    assert (shown / "w").read_text() == "12"


def test_links_in_it_lead_into_the_sandbox_and_dots_into_its_root(make_sandbox, shown, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    (shown / "link").symlink_to(secret)
    (shown / "up").symlink_to("../secret")
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/data")])
    for path in ("/data/link", "/data/up", "/data/../secret", str(secret)):
        assert sandbox.run_code(f"open({path!r})").error.name == "FileNotFoundError"
    assert "usr" in sandbox.run_code("import os; os.listdir('/data/..')").value


def test_nothing_in_it_gives_power(make_sandbox, shown):
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/data")])
    options = sandbox.run_code(
        "[l.split()[3] for l in open('/proc/self/mounts') if l.split()[1] == '/data'][-1]"
    ).value.split(",")
    # A container has no_new_privs instead, and a control group that says which devices it may open.
    needed = {"ro"} if setting.DOCKER else {"ro", "nosuid", "nodev"}
    assert needed <= set(options)


@gvisor.FILTER
@pytest.mark.root_only
def test_a_device_in_it_is_none(make_sandbox, shown):
    os.mknod(shown / "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    os.chmod(shown / "memory", 0o666)
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/data")])
    assert sandbox.run_code("open('/data/memory')").error.name == "PermissionError"


@gvisor.WRITABLE
def test_isolation_tells_of_mounts(make_sandbox, shown):
    shown.chmod(0o777)
    sandbox = make_sandbox(
        mounts=[Mount(str(shown), "/data"), Mount(str(shown), "/out", read_only=False)]
    )
    assert sandbox.isolation.layer("mount /data").state == "enforced"
    writable = sandbox.isolation.layer("mount /out")
    assert writable.state == "best-effort"
    assert "not limited" in writable.detail
    assert str(shown) in writable.detail


@pytest.mark.native_only("a container has no zygote")
def test_two_sandboxes_share_a_zygote_which_goes_with_the_last(make_sandbox, shown):
    mounts = [Mount(str(shown), "/data")]
    make_sandbox().run_code("1")  # the zygote without mounts, which stays
    before = len(zygotes())
    first = make_sandbox(mounts=mounts)
    with_one = len(zygotes())
    second = make_sandbox(mounts=[Mount(str(shown), "/data")])
    assert len(zygotes()) - with_one < with_one - before
    first.close()
    assert second.run_code("open('/data/f.txt').read()").value == "from the host"
    second.close()
    deadline = time.monotonic() + 60
    while len(zygotes()) > before + 1 and time.monotonic() < deadline:
        continue
    assert len(zygotes()) <= before + 1  # one more for the guest of the first sandbox
    assert make_sandbox(mounts=mounts).run_code("open('/data/f.txt').read()").ok


@pytest.mark.native_only("a container has no zygote")
def test_a_sandbox_that_was_forgotten_lets_its_zygote_go(make_sandbox, shown):
    make_sandbox().run_code("1")
    before = len(zygotes())
    sandbox = Sandbox.create(environment="python", mounts=[Mount(str(shown), "/data")])
    assert len(zygotes()) > before
    forgotten = [sandbox]
    del sandbox
    with pytest.warns(ResourceWarning) as told:
        census.forget(forgotten, told)
    deadline = time.monotonic() + 60
    while len(zygotes()) > before and time.monotonic() < deadline:
        continue
    assert len(zygotes()) <= before


def test_what_was_exchanged_after_the_check_is_not_mounted(backend, shown, tmp_path):
    mount = Mount(str(shown), "/data")
    shown.rename(tmp_path / "aside")
    shown.symlink_to("/etc")
    for replace in (lambda: None, lambda: (shown.unlink(), shown.mkdir())):
        replace()
        with pytest.raises(SandboxError), Sandbox(environment="python", mounts=[mount]):
            pass


def test_a_guest_that_was_killed_has_its_mounts_again(make_sandbox, shown, outside):
    sandbox = make_sandbox(mounts=[Mount(str(shown), "/data")])
    os.kill(outside(sandbox).pid, 9)
    sandbox.run_code("1")
    assert sandbox.run_code("open('/data/f.txt').read()").value == "from the host"


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["/", "//", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run", "/var/run", "/."]
)
def test_what_is_the_kernels_or_everything_is_not_mounted(host):
    with pytest.raises(InvalidOption):
        Mount(host, "/data")


def test_links_to_such_places_are_seen_through(tmp_path):
    (tmp_path / "innocent").symlink_to("/proc")
    with pytest.raises(InvalidOption, match="/proc"):
        Mount(str(tmp_path / "innocent"), "/data")


@pytest.mark.root_only
def test_a_proc_mounted_somewhere_below_is_found(tmp_path):
    (tmp_path / "a b/proc").mkdir(parents=True)
    subprocess.run(["mount", "-t", "proc", "proc", tmp_path / "a b/proc"], check=True)
    try:
        with pytest.raises(InvalidOption, match="kernel"):
            Mount(str(tmp_path), "/data")
    finally:
        subprocess.run(["umount", tmp_path / "a b/proc"], check=True)


@pytest.mark.parametrize("host", ["", "relative", "./x", "/not/there", "a\0b", 3, None, b"/tmp"])
def test_a_path_of_the_host_that_is_none_is_refused(host):
    with pytest.raises(InvalidOption):
        Mount(host, "/data")


def test_a_socket_is_not_mounted(tmp_path, monkeypatch):
    import socket

    monkeypatch.chdir(tmp_path)  # a socket's path may have no more than 107 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("docker.sock")
        with pytest.raises(InvalidOption, match="neither"):
            Mount(str(tmp_path / "docker.sock"), "/data")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidOption, match="neither"):
        Mount(str(tmp_path / "pipe"), "/data")


@pytest.mark.parametrize(
    "guest",
    [
        *("/", "/proc", "/proc/x", "/sys/x", "/dev/shm/x", "/run/x", "/usr", "/usr/local/x"),
        *("/lib/x", "/bin", "/etc/passwd", "/opt/env", "/opt/env/x", "/opt/python/x", "/opt"),
        *("/tmp", "/tmp/x", "/workspace", "/workspace/data", "/data/../etc", "/data/.", "data"),
        *("", "/da\0ta", 3, None, "/" + "x" * 256, "//etc"),
    ],
)
def test_a_place_in_the_sandbox_that_is_taken_is_refused(shown, guest):
    with pytest.raises(InvalidOption):
        Mount(str(shown), guest)


def test_paths_are_normalised(shown, monkeypatch):
    (shown / "link").symlink_to("sub")
    monkeypatch.setenv("HOME", str(shown))
    mount = Mount("~/link/", "/data//x/")
    assert (mount.host, mount.guest) == (str(shown / "sub"), "/data/x")
    assert mount == Mount(str(shown / "sub"), "/data/x")


@pytest.mark.parametrize("mounts", ["/data", 3, [3], [("/a", "/b")], None])
def test_mounts_are_a_list_of_mount(mounts):
    with pytest.raises(InvalidOption, match="mount"):
        check_mounts(mounts)


def test_two_in_one_place_are_refused(shown):
    for other in ("/data", "/data/x"):
        with pytest.raises(InvalidOption, match="one place"):
            check_mounts([Mount(str(shown), "/data"), Mount(str(shown), other)])
    assert len(check_mounts([Mount(str(shown), "/data"), Mount(str(shown), "/data2")])) == 2


@pytest.mark.root_only
def test_what_the_guests_uid_cannot_read_is_said_at_once(shown):
    shown.chmod(0o750)
    with pytest.raises(InvalidOption, match="could not read") as caught:
        check_mounts([Mount(str(shown), "/data")])
    assert "chmod o+rx" in caught.value.hint
    shown.chmod(0o755)
    check_mounts([Mount(str(shown), "/data")])
    with pytest.raises(InvalidOption, match="read and write"):
        check_mounts([Mount(str(shown), "/data", read_only=False)])


@pytest.mark.user_only
def test_what_the_user_cannot_read_himself_is_said_at_once(shown):
    shown.chmod(0)
    try:
        with pytest.raises(InvalidOption, match="could not read"):
            check_mounts([Mount(str(shown), "/data")])
    finally:
        shown.chmod(0o755)


@gvisor.WRITABLE
def test_mounts_on_the_command_line(backend, shown, tmp_path):
    shown.chmod(0o777)
    script = tmp_path / "s.py"
    script.write_text("open('/out/made', 'w').write(open('/data/f.txt').read())")

    def run(*words):
        command = [sys.executable, "-m", "belljar", "run", "--env", "python", *words, str(script)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = run("--mount", f"{shown}:/data:ro", "--mount", f"{shown}:/out:rw")
    assert done.returncode == 0, done.stderr
    assert (shown / "made").read_text() == "from the host"
    assert run("--mount", f"{shown}:/data", "--mount", f"{shown}:/out").returncode == 1
    for wrong in ("x", ":/data", f"{shown}:", "/:/data"):
        assert run("--mount", wrong).returncode == 2


def test_a_writable_mount_is_refused_where_our_filter_is_not_applied(backend, tmp_path):
    if not setting.GVISOR:
        pytest.skip("of gVisor")
    tmp_path.chmod(0o777)
    mount = Mount(str(tmp_path), "/data", read_only=False)
    with pytest.raises(InvalidOption, match="set-user-id"), Sandbox(mounts=[mount]):
        pass
