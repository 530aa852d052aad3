"""A workspace elsewhere than at /workspace; nothing in it that can be executed; networks."""

import pytest

from belljar import InvalidOption, Mount, Sandbox, replay

pytestmark = pytest.mark.contract("native", "docker")


def test_the_workspace_is_where_it_was_asked_for(make_sandbox):
    with make_sandbox(workdir="/sandbox") as sandbox:
        made = sandbox.run_code("import os; open('a.txt', 'w').write('x'); os.getcwd()")
        assert made.value == "/sandbox"
        assert made.files.created == ("a.txt",)
        assert [each.path for each in sandbox.files.list()] == ["/sandbox/a.txt"]
        assert sandbox.files.read("a.txt") == "x"
        assert sandbox.commands.run("pwd; ls").stdout == "/sandbox\na.txt\n"
        before = sandbox.checkpoint()
        sandbox.files.write("b.txt", "y")
        sandbox.rollback(before)
        assert [each.name for each in sandbox.files.list()] == ["a.txt"]
        sandbox.restart()
        assert sandbox.run_code("os = __import__('os'); os.getcwd()").value == "/sandbox"
        assert sandbox.run_code("os.path.ismount('/workspace')").value is False


def test_it_is_kept_on_the_host_too(make_sandbox, tmp_path):
    (tmp_path / "given.txt").write_text("in")
    with make_sandbox(workdir="/sandbox", workspace=tmp_path) as sandbox:
        assert sandbox.run_code("open('/sandbox/given.txt').read()").value == "in"
        sandbox.run_code("open('/sandbox/made.txt', 'w').write('out')")
        assert (tmp_path / "made.txt").read_text() == "out"


def test_a_record_is_replayed_in_the_same_place(make_sandbox, tmp_path):
    record = tmp_path / "record"
    with make_sandbox(workdir="/sandbox", record=record) as sandbox:
        sandbox.run_code("import os; print(os.getcwd())")
    assert replay(record).same


@pytest.mark.parametrize("path", ["/", "/tmp", "/tmp/x", "/usr/local", "sandbox", "/a/../b", "", 3])
def test_it_cannot_be_anywhere(path):
    with pytest.raises(InvalidOption, match="the workspace cannot be at"):
        Sandbox(workdir=path)


def test_it_cannot_be_where_a_mount_is():
    with pytest.raises(InvalidOption, match="in one place"):
        Sandbox(workdir="/data/work", mounts=[Mount("/usr/share", "/data")])


def test_with_noexec_nothing_that_was_written_can_be_executed(make_sandbox):
    attempt = "for d in . /tmp /dev/shm; do cp /bin/echo $d/run && $d/run $d; done"
    with make_sandbox(noexec=True) as sandbox:
        result = sandbox.commands.run(attempt)
        assert result.stdout == ""
        assert result.stderr.count("ermission denied") == 3
    with make_sandbox() as sandbox:
        assert sandbox.commands.run(attempt).stdout == ".\n/tmp\n/dev/shm\n"


def test_natively_there_is_no_network_to_be_had():
    with pytest.raises(InvalidOption, match="native has no network"):
        Sandbox(backend="native", network="open")


@pytest.mark.docker
@pytest.mark.not_gvisor("it is registered without a network here")
def test_an_open_network_is_the_engines_and_is_said_to_be_open(make_sandbox):
    with make_sandbox(network="open") as sandbox:
        routes = sandbox.files.read("/proc/net/route")
        assert "00000000" in routes  # a default route
        assert sandbox.isolation.layer("network").state == "absent"
    with make_sandbox() as sandbox:
        assert "00000000" not in sandbox.files.read("/proc/net/route")
