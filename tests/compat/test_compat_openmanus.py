"""OpenManus' sandbox under its own names: the document's classes and flows, and its old defects."""

import asyncio
import copy
import logging
import os
import subprocess
import sys
import tempfile
import threading
from textwrap import dedent

import anyio
import pytest

import gvisor
import setting
from belljar import InvalidOption, Limits
from belljar import SandboxError as BelljarError
from belljar.compat import openmanus
from belljar.compat.openmanus import (
    SANDBOX_CLIENT,
    AsyncDockerizedTerminal,
    BaseSandboxClient,
    DockerSandbox,
    DockerSession,
    LocalSandboxClient,
    SandboxError,
    SandboxResourceError,
    SandboxSettings,
    SandboxTimeoutError,
    create_sandbox_client,
)
from belljar.compat.openmanus.core.sandbox import SandboxSettings as SettingsOfSandbox
from project import DOCS

pytestmark = pytest.mark.contract("docker")

# How many there are, by what every image has.
SLEEPERS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep [6]' | wc -l"


@pytest.fixture(scope="module")
def shared(backend):
    """One sandbox for most tests: made on one event loop, used on many, ended on another."""
    sandbox = DockerSandbox(backend=setting.BACKEND)
    anyio.run(sandbox.create)
    yield sandbox
    anyio.run(sandbox.cleanup)


@pytest.fixture
def box(shared):
    anyio.run(shared.run_command, "cd /workspace && rm -rf ./* && unset x")
    return shared


@pytest.fixture(scope="module")
def limited(backend):
    """One with little time, memory and room for output."""
    config = SandboxSettings(timeout=1, memory_limit="256m")
    sandbox = DockerSandbox(config, backend=setting.BACKEND, limits=Limits(output="64k"))
    anyio.run(sandbox.create)
    yield sandbox
    anyio.run(sandbox.cleanup)


@pytest.fixture
def here(backend, monkeypatch):
    """Who names no backend gets that of this run."""
    monkeypatch.setenv("BELLJAR_BACKEND", setting.BACKEND)


# --- settings and names ------------------------------------------------------------------------


def test_settings_have_the_documents_defaults():
    assert SandboxSettings().model_dump() == {
        "use_sandbox": False,
        "image": "python:3.12-slim",
        "work_dir": "/workspace",
        "memory_limit": "512m",
        "cpu_limit": 1.0,
        "timeout": 300,
        "network_enabled": False,
    }
    assert SettingsOfSandbox is SandboxSettings


def test_settings_are_checked_when_given_and_when_changed():
    config = SandboxSettings.model_validate({"cpu_limit": "0.5", "timeout": 60.0})
    assert (config.cpu_limit, config.timeout) == (0.5, 60)
    assert config.model_copy(update={"timeout": 5}).timeout == 5
    assert config == SandboxSettings(cpu_limit=0.5, timeout=60)
    for given in (
        {"memory_limit": "lots"},
        {"memory_limit": "1k"},
        {"cpu_limit": 0},
        {"cpu_limit": "many"},
        {"timeout": -1},
        {"timeout": 1.5},
        {"timeout": True},
        {"network_enabled": "yes"},
        {"image": None},
    ):
        with pytest.raises(ValueError, match=next(iter(given)).partition("_")[0]):
            SandboxSettings(**given)
    with pytest.raises(InvalidOption, match="did you mean 'memory_limit'"):
        SandboxSettings(memory_limits="1g")
    with pytest.raises(InvalidOption, match="cpu"):
        config.cpu_limit = -1
    with pytest.raises(InvalidOption, match="unknown"):
        config.cpus = 1
    assert config.cpu_limit == 0.5


def test_a_dict_is_no_settings():
    for given in ({"memory_limit": "1g"}, "1g"):
        with pytest.raises(
            TypeError,
            match=r"the attributes of SandboxSettings, .*model_validate\(",
        ):
            DockerSandbox(given)


class Foreign:
    """Settings of somebody else's class; `given` as pydantic's know it."""

    def __init__(self, given=None, **values):
        self.__dict__.update(SandboxSettings().model_dump() | values)
        if given is not None:
            self.model_fields_set = given


def test_settings_may_be_of_any_class_that_has_the_seven():
    config = DockerSandbox(Foreign(memory_limit="1g", timeout="60")).config
    assert config == SandboxSettings(memory_limit="1g", timeout=60)
    assert config.model_fields_set == {"memory_limit", "timeout"}
    config = DockerSandbox(Foreign({"cpu_limit", "other"}, cpu_limit=1.0)).config
    assert config.model_fields_set == {"cpu_limit"}  # as by default, but somebody asked for it
    with pytest.raises(InvalidOption, match="memory_limit"):
        DockerSandbox(Foreign(memory_limit="lots"))
    incomplete = Foreign()
    del incomplete.work_dir
    with pytest.raises(TypeError, match="Foreign has no work_dir: "):
        DockerSandbox(incomplete)


def test_whoever_makes_a_sandbox_takes_settings_of_any_class(here, run_async):
    async def main():
        config = Foreign(timeout=7, work_dir="/work")
        client = create_sandbox_client()
        manager = openmanus.SandboxManager()
        try:
            await client.create(config)
            assert await client.run_command("pwd") == "/work"
            made = await manager.get_sandbox(await manager.create_sandbox(config))
            assert made.config.timeout == 7
            assert await made.run_command("pwd") == "/work"
        finally:
            await client.cleanup()
            await manager.cleanup()

    run_async(main)


def test_settings_become_limits_and_only_those_given_are_insisted_on():
    asked = SandboxSettings(memory_limit="1g").limits()
    assert (asked.memory, asked.cpus, asked.timeout) == (2**30, 1.0, 300)
    assert "memory" in asked.explicit
    assert "cpus" not in asked.explicit
    more = SandboxSettings(memory_limit="1g", timeout=7).limits(Limits(processes=9, memory="2g"))
    assert (more.memory, more.timeout, more.processes) == (2**31, 7, 9)


def test_names_and_modules_are_those_of_the_original():
    assert set(openmanus.__all__) <= set(dir(openmanus))
    from belljar.compat.openmanus.client import SandboxFileOperations
    from belljar.compat.openmanus.config import SandboxSettings as of_config
    from belljar.compat.openmanus.core.exceptions import SandboxTimeoutError as of_core
    from belljar.compat.openmanus.core.manager import SandboxManager
    from belljar.compat.openmanus.tool.chart_visualization.python_execute import NormalPythonExecute
    from belljar.compat.openmanus.tool.python_execute import PythonExecute

    assert of_config is SandboxSettings
    assert of_core is SandboxTimeoutError
    assert SandboxManager is openmanus.SandboxManager
    assert issubclass(NormalPythonExecute, PythonExecute)
    assert isinstance(SANDBOX_CLIENT, LocalSandboxClient)
    assert isinstance(create_sandbox_client(), BaseSandboxClient)
    assert SandboxFileOperations


def test_errors_are_of_one_family_and_a_time_out_is_pythons_too():
    assert issubclass(SandboxTimeoutError, SandboxError)
    assert issubclass(SandboxTimeoutError, TimeoutError)
    assert issubclass(SandboxResourceError, SandboxError)
    assert issubclass(SandboxError, BelljarError)
    assert str(SandboxError()) == ""
    assert str(SandboxError("why")) == "why"


# --- one sandbox: the execution flow -------------------------------------------------------------


def test_a_sandbox_is_created_used_and_leaves_nothing(run_async, here):
    async def main():
        sandbox = DockerSandbox(SandboxSettings(memory_limit="1g", cpu_limit=0.5, timeout=30))
        assert (sandbox.container, sandbox.terminal) == (None, None)
        assert await sandbox.create() is sandbox
        assert sandbox.container.id == sandbox.terminal.container.id
        assert (len(sandbox.container.id) == 64) == setting.DOCKER
        with pytest.raises(RuntimeError, match="exists already"):
            await sandbox.create()
        await sandbox.write_file("/workspace/test.py", "print('Hello from Python!')")
        assert await sandbox.run_command("python3 test.py") == "Hello from Python!"
        container = sandbox.container
        await sandbox.cleanup()
        await sandbox.cleanup()
        assert (sandbox.container, sandbox.terminal) == (None, None)
        assert container.status == "removed"
        for used in (
            sandbox.run_command("true"),
            sandbox.read_file("f"),
            sandbox.write_file("f", ""),
            sandbox.copy_from("f", "f"),
            sandbox.copy_to(__file__, "f"),
        ):
            with pytest.raises(RuntimeError, match="Sandbox not initialized"):
                await used

    before = os.listdir(os.environ["TMPDIR"])
    run_async(main)
    assert set(os.listdir(os.environ["TMPDIR"])) <= set(before)


def test_what_cannot_be_created_is_a_runtime_error(run_async, here):
    async def main():
        for config, volumes in (
            (SandboxSettings(work_dir="/proc"), None),
            (SandboxSettings(work_dir="relative"), None),
            (SandboxSettings(image="no such image!"), None),
            (None, {"/nowhere/at/all": "/data"}),
            (None, {"relative": "/data"}),
            (None, {"/tmp": "../data"}),
            (None, {"/tmp": "/data/../../etc"}),
            (None, {"/tmp": "/"}),
            (None, {"/proc": "/data"}),
        ):
            sandbox = DockerSandbox(config, volumes)
            with pytest.raises(RuntimeError, match=r"^Failed to create sandbox: "):
                await sandbox.create()
            assert sandbox.container is None

    run_async(main)


@pytest.mark.native_only("a container may have a network")
def test_a_network_is_refused_where_there_is_none_to_give(here, backend):
    with pytest.raises(RuntimeError, match=r"Failed to create sandbox.*network"):
        anyio.run(DockerSandbox(SandboxSettings(network_enabled=True)).create)


@pytest.mark.docker
def test_a_network_is_given_only_when_enabled(here, backend):
    async def interfaces(**given):
        async with DockerSandbox(SandboxSettings(**given)) as sandbox:
            return (await sandbox.run_command("cat /proc/net/dev")).count(":")

    assert anyio.run(interfaces) == 1
    assert anyio.run(lambda: interfaces(network_enabled=True)) > 1


def test_it_is_used_on_one_event_loop_after_the_other(box):
    asyncio.run(box.run_command("x=1"))
    anyio.run(box.run_command, "x=$x$x", backend="trio")
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(box.run_command("echo $x"))))
    thread.start()
    thread.join()
    assert found == ["11"]


def test_other_tasks_run_while_a_command_does(run_async, box):
    async def main():
        ticks = 0
        async with anyio.create_task_group() as tasks:

            async def tick():
                nonlocal ticks
                while True:
                    await anyio.sleep(0.01)
                    ticks += 1
                    if ticks == 6:
                        await box.write_file("ticked", "")

            tasks.start_soon(tick)
            await box.run_command("until [ -e ticked ]; do sleep 0.02; done", timeout=60)
            tasks.cancel_scope.cancel()
        assert ticks > 5

    run_async(main)


# --- commands ------------------------------------------------------------------------------------


def test_output_keeps_digits_and_blank_lines_and_the_exit_status_is_known(run_async, box):
    """The original lost each of them."""

    async def main():
        output = await box.run_command("echo 42; echo; echo 7; echo; exit 3")
        assert isinstance(output, str)
        assert output == "42\n\n7\n"
        assert (output.exit_code, output.stdout, output.stderr) == (3, "42\n\n7\n\n", "")
        assert await box.run_command("echo $?") == "3"
        failed = await box.run_command("ls /nowhere")
        assert failed == failed.stderr.rstrip("\n")
        assert failed.exit_code == 2
        assert (await box.run_command("kill -TERM $$")).exit_code == 128 + 15

    run_async(main)


def test_a_time_out_kills_the_command_and_nothing_of_it_comes_later(run_async, box):
    async def main():
        await box.run_command("x=before; cd /tmp")
        late = "x=after; echo so far; (sleep 61; echo late >> /tmp/late) & sleep 62"
        with pytest.raises(SandboxTimeoutError, match="timed out after 5 seconds") as caught:
            await box.run_command(late, timeout=5)
        assert caught.value.output == "so far"
        assert await box.run_command(f"echo $x $PWD; {SLEEPERS}") == "before /tmp\n0"

    run_async(main)


def test_the_settings_time_out_holds_for_every_command(limited):
    with pytest.raises(TimeoutError, match="after 1 seconds"):
        anyio.run(limited.run_command, "sleep 60")
    assert anyio.run(limited.run_command, "sleep 1.2; echo longer", 60) == "longer"


def test_quotes_and_dots_in_a_command_are_the_shells_business(run_async, box):
    """The original refused commands by looking for words in them."""

    async def main():
        assert await box.run_command("""echo "it's" 'a "b"' $'c\\'d' ../.. ; # rm -rf /""") == (
            "it's a \"b\" c'd ../.."
        )
        await box.run_command("mkdir -p d/e && cd d/e && echo 1 > ../f")
        assert await box.read_file("d/e/../f") == "1\n"

    run_async(main)


def test_a_background_job_lives_on(run_async, box):
    async def main():
        await box.run_command("(until [ -e go ]; do sleep 0.02; done; echo done > gone) & x=$!")
        await box.write_file("go", "")
        assert await box.run_command("until [ -e gone ]; do sleep 0.02; done; cat gone") == "done"

    run_async(main)


@gvisor.MEMORY
@pytest.mark.needs_cgroup
def test_too_much_memory_is_said(limited):
    output = anyio.run(limited.run_command, "python3 -c 'x = bytearray(10**9)'; echo $?", 60)
    assert "MemoryError" in output or "137" in output.split()
    assert anyio.run(limited.run_command, "echo usable", 60) == "usable"


def test_too_much_output_is_said_and_the_first_of_it_kept(limited):
    with pytest.raises(SandboxResourceError, match="wrote more") as caught:
        anyio.run(limited.run_command, "yes", 60)
    assert caught.value.output.startswith("y\ny\n")
    assert anyio.run(limited.run_command, "echo usable", 60) == "usable"


# --- files ---------------------------------------------------------------------------------------


def test_files_are_written_with_their_directories_and_read(run_async, box):
    async def main():
        files = {"file1.txt": "Content 1", "nested/deep/file3.txt": "é\n\n", "-odd 'name'": "7"}
        for path, content in files.items():
            await box.write_file(f"/workspace/{path}", content)
        for path, content in files.items():
            assert await box.read_file(path) == content
        with pytest.raises(FileNotFoundError, match=r"File not found: /nonexistent.txt"):
            await box.read_file("/nonexistent.txt")
        with pytest.raises(RuntimeError, match="Failed to read file"):
            await box.read_file("nested")
        with pytest.raises(RuntimeError, match="Failed to write file"):
            await box.write_file("/etc/new", "")
        await box.run_command("printf '\\377' > binary")
        with pytest.raises(RuntimeError, match="not UTF-8"):
            await box.read_file("binary")

    run_async(main)


def test_files_and_directories_are_copied_in_and_out(run_async, box, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a.bin").write_bytes(bytes(range(256)))
    (tree / "sub" / "b").write_text("b")

    async def main():
        await box.copy_to(str(tree / "a.bin"), "/workspace/new/copied.bin")
        await box.copy_to(str(tree), "/workspace/copy")
        await box.copy_to(str(tree / "a.bin"), "copy")
        assert await box.run_command("find copy new | sort | tr '\\n' ' '") == (
            "copy copy/a.bin copy/sub copy/sub/b new new/copied.bin "
        )
        await box.copy_from("new/copied.bin", str(tmp_path / "out" / "back.bin"))
        assert (tmp_path / "out" / "back.bin").read_bytes() == bytes(range(256))
        await box.copy_from("/workspace/copy", str(tmp_path / "whole"))
        assert (tmp_path / "whole" / "sub" / "b").read_text() == "b"
        await box.copy_from("copy", str(tmp_path / "out"))  # into what is there
        assert (tmp_path / "out" / "copy" / "sub" / "b").read_text() == "b"
        with pytest.raises(FileNotFoundError, match="Source file not found"):
            await box.copy_from("/nonexistent.txt", str(tmp_path / "local.txt"))
        with pytest.raises(FileNotFoundError, match="Source file not found"):
            await box.copy_to(str(tmp_path / "nonexistent"), "x")
        assert not (tmp_path / "local.txt").exists()

    run_async(main)


@pytest.mark.parametrize("source", ["/workspace/sub/..", "sub/..", "sub/../sub/..", "."])
def test_a_path_that_ends_above_stays_below_the_target(box, tmp_path, source):
    target = tmp_path / "out"
    target.mkdir()
    anyio.run(box.run_command, "mkdir -p sub && echo 1 > made.txt")
    anyio.run(box.copy_from, source, str(target))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in target.iterdir()] == ["workspace"]


def test_what_has_no_name_is_not_copied_into_a_directory(box, tmp_path):
    with pytest.raises(RuntimeError, match="'/' has no file name"):
        anyio.run(box.copy_from, "/", str(tmp_path))


def test_errors_say_their_cause_once(box, tmp_path):
    async def missing():
        with pytest.raises(FileNotFoundError, match=r"^File not found: nosuch$") as caught:
            await box.read_file("nosuch")
        return caught.value

    error = anyio.run(missing)
    assert error.__suppress_context__
    assert error.__cause__ is None


def test_what_is_copied_out_cannot_lead_the_host_elsewhere(box, tmp_path, caplog):
    """The original unpacked whatever archive came."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    out = tmp_path / "out"
    out.mkdir()
    make = (
        f"mkdir t; ln -s {secret} t/link; ln -s {tmp_path} t/dir; ln -s ../../.. t/up; echo 1 > t/f"
    )
    anyio.run(box.run_command, make)
    with caplog.at_level(logging.WARNING, "belljar"):
        anyio.run(box.copy_from, "t", str(out))
    assert sorted(os.listdir(out / "t")) == ["f"]
    assert "not copied" in caplog.text
    with pytest.raises(FileNotFoundError):
        anyio.run(box.copy_from, "t/link", str(out / "secret"))
    with pytest.raises(FileNotFoundError):
        anyio.run(box.read_file, str(secret))
    assert secret.read_text() == "of the host"


# --- volumes -------------------------------------------------------------------------------------


def test_a_volume_that_is_mirrored_takes_no_room_on_the_host_beyond_the_limit(
    here, backend, tmp_path, monkeypatch
):
    """Also while the command runs, and whatever becomes of this process then: nothing is written
    to the host but what is brought back."""
    private, temporary = tmp_path / "private", tmp_path / "temporary"
    private.mkdir(0o700)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    fill = "head -c 100000000 /dev/zero > /data/large; stat -c %s /data/large"

    async def main():
        limits = Limits(workspace="16m")
        async with DockerSandbox(None, {str(private): "/data"}, limits=limits) as sandbox:
            assert os.listdir(temporary) == []
            output = await sandbox.run_command(fill)
            assert "No space left on device" in output.stderr
            assert 0 < int(output.stdout) <= 16 << 20
            await sandbox.run_command("rm /data/large; echo 1 > /data/small")
        assert os.listdir(temporary) == []

    if not setting.ROOT:
        pytest.skip("an ordinary user's directories are mounted: the sandbox is that user")
    anyio.run(main)
    assert [path.name for path in private.iterdir()] == ["small"]


def test_a_volume_that_is_too_large_to_be_mirrored_is_refused(here, backend, tmp_path):
    (tmp_path / "large").write_bytes(b"0" * (2 << 20))

    async def main():
        bindings = {str(tmp_path): "/workspace/in"}
        with pytest.raises(RuntimeError, match=r"take .* and the sandbox's workspace has 1m"):
            await DockerSandbox(None, bindings, limits=Limits(workspace="1m")).create()

    anyio.run(main)


@gvisor.WRITABLE
def test_a_volume_is_seen_and_written_on_both_sides(here, backend, tmp_path):
    """A directory that only its owner may enter; one that all may; and one within the workspace."""
    private, public, inner = (tmp_path / name for name in ("private", "public", "inner"))
    for path in (private, public, inner):
        path.mkdir()
    private.chmod(0o700)
    public.chmod(0o777)
    (private / "before").write_text("1")
    bindings = {str(private): "/data", str(public): "/mnt/pub", str(inner): "/workspace/in"}

    async def main():
        client = create_sandbox_client()
        await client.create(volume_bindings=bindings)
        try:
            for host, guest in bindings.items():
                with open(f"{host}/test.txt", "w") as file:
                    file.write("Volume test")
                os.chmod(f"{host}/test.txt", 0o644)
                assert await client.read_file(f"{guest}/test.txt") == "Volume test"
                await client.run_command(f"echo back > {guest}/out")
                with open(f"{host}/out") as file:
                    assert file.read() == "back\n"
            assert await client.run_command("cat /data/before") == "1"
        finally:
            await client.cleanup()

    anyio.run(main)
    assert sorted(os.listdir(private)) == ["before", "out", "test.txt"]
    assert not [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("belljar-vol")]


def test_the_workspace_itself_can_be_a_volume(here, backend, tmp_path):
    (tmp_path / "in").write_text("1")

    async def main():
        async with DockerSandbox(None, {str(tmp_path): "/workspace"}) as sandbox:
            assert await sandbox.run_command("cat in; echo 2 > out") == "1"

    anyio.run(main)
    assert (tmp_path / "out").read_text() == "2\n"


# --- terminals -----------------------------------------------------------------------------------


def test_a_terminal_opens_on_a_container_or_its_id(run_async, box):
    async def main():
        for container in (box.container, box.container.id, box.container.id[:12]):
            async with AsyncDockerizedTerminal(
                container, "/workspace", {"TEST_VAR": "test value"}, default_timeout=30
            ) as terminal:
                assert await terminal.run_command("pwd") == "/workspace"
                assert await terminal.run_command("echo $TEST_VAR; n=1; cd /tmp") == "test value"
                assert await terminal.run_command("echo $n $PWD") == "1 /tmp"
            assert terminal.session is not None
            with pytest.raises(RuntimeError, match="not initialized"):
                await terminal.run_command("true")
        assert await box.run_command("echo ${TEST_VAR-none} $PWD") == "none /workspace"
        with pytest.raises(SandboxError, match="No such container"):
            AsyncDockerizedTerminal("0123456789abcdef")

    run_async(main)


def test_a_terminal_makes_its_directory_and_keeps_its_time(run_async, box):
    async def main():
        terminal = AsyncDockerizedTerminal(box.container, "/workspace/new/one", default_timeout=0.4)
        with pytest.raises(RuntimeError, match="Terminal not initialized"):
            await terminal.run_command("pwd")
        await terminal.init()
        assert await terminal.run_command("pwd", timeout=60) == "/workspace/new/one"
        with pytest.raises(TimeoutError, match=r"after 0\.4 seconds"):
            await terminal.run_command("sleep 60")
        assert await terminal.run_command("echo 1", timeout=60) == "1"
        await terminal.close()
        await terminal.close()
        with pytest.raises(RuntimeError, match="Failed to create working directory"):
            await AsyncDockerizedTerminal(box.container, "/usr/new").init()

    run_async(main)


class OfTheSdk:
    """A container as docker-py has it, as far as a terminal looks at it."""

    def __init__(self, *options, command=("sleep", "600")):
        image = os.environ["BELLJAR_DOCKER_BASE"]
        started = ["docker", "run", "-d", "--rm", "--network", "none", *options, image, *command]
        self.id = subprocess.run(started, capture_output=True, text=True, check=True).stdout.strip()

    def exec_run(self, *argv):
        """What it writes."""
        done = subprocess.run(["docker", "exec", self.id, *argv], capture_output=True, text=True)
        return done.stdout

    def remove(self):
        subprocess.run(["docker", "rm", "-f", self.id], capture_output=True, check=True)


@pytest.fixture
def of_the_sdk(backend):
    container = OfTheSdk("--hostname", "theirs")
    yield container
    container.remove()


@pytest.mark.docker
def test_a_terminal_runs_in_a_container_of_the_sdk(backend, run_async, of_the_sdk):
    async def main():
        async with AsyncDockerizedTerminal(of_the_sdk, "/srv/new", {"A": "b c"}) as terminal:
            assert terminal.container is of_the_sdk
            output = await terminal.run_command("pwd; echo $A; hostname; n=5; cd /tmp; false")
            assert (output, output.exit_code) == ("/srv/new\nb c\ntheirs", 1)
            output = await terminal.run_command("echo $? $n $PWD; echo; echo 2 >&2")
            assert (output.stdout, output.stderr) == ("1 5 /tmp\n\n", "2\n")
            text = "x" * 200_000
            assert await terminal.run_command(f"echo {text} | wc -c") == "200001"
        assert of_the_sdk.exec_run("ls", "-A", "/tmp") == ""

    run_async(main)


@pytest.mark.docker
def test_a_time_out_kills_in_a_container_of_the_sdk_what_the_command_started(
    backend, run_async, of_the_sdk
):
    async def main():
        async with AsyncDockerizedTerminal(of_the_sdk, default_timeout=60) as terminal:
            await terminal.run_command("n=1")
            command = "n=2; echo first; sleep 61 & setsid sleep 62; sleep 63"
            with pytest.raises(SandboxTimeoutError, match="after 1 seconds") as caught:
                await terminal.run_command(command, timeout=1)
            assert caught.value.output == "first"
            assert await terminal.run_command("echo $n") == "1"
            assert await terminal.run_command(SLEEPERS) == "1"  # the container's own
            with pytest.raises(SandboxResourceError, match="wrote more"):
                await terminal.run_command("yes")
            assert "yes" not in of_the_sdk.exec_run("bash", "-c", "cat /proc/[0-9]*/cmdline")
            with anyio.move_on_after(1) as scope:
                await terminal.run_command("sleep 64")
            assert scope.cancelled_caught
            assert await terminal.run_command(SLEEPERS) == "1"

    run_async(main)


@pytest.mark.docker
def test_a_container_of_the_sdk_that_is_gone_is_said(backend, run_async):
    async def main():
        container = OfTheSdk()
        try:
            terminal = AsyncDockerizedTerminal(container)
            await terminal.init()
        finally:
            container.remove()
        with pytest.raises(
            RuntimeError, match=r"Failed to execute command: .*[Nn]o such container"
        ):
            await terminal.run_command("true")
        await terminal.close()
        with pytest.raises(
            RuntimeError, match=r"working directory: No such container at the engine"
        ):
            await AsyncDockerizedTerminal(container).init()

    run_async(main)


def test_a_session_is_a_shell_of_its_own(run_async, box):
    async def main():
        session = DockerSession(box.container.id)
        with pytest.raises(RuntimeError, match="Session not initialized"):
            await session.execute("true")
        await session.create("/workspace", {"A": "1"})
        assert await session.execute("echo $A $TERM; A=2", timeout=60) == "1 dumb"
        assert await session.execute("echo $A") == "2"
        await session.close()
        with pytest.raises(RuntimeError, match="Session not initialized"):
            await session.execute("true")

    run_async(main)


def test_commands_have_no_privileges(box):
    """The original ran them as a privileged root."""
    output = anyio.run(box.run_command, "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status")
    uid, *status = output.split("\n")
    assert uid != "0"
    assert sorted(line.split()[1] for line in status) == ["0000000000000000", "1"]


# --- clients -------------------------------------------------------------------------------------


def test_a_client_needs_a_sandbox_first(run_async):
    async def main():
        client = create_sandbox_client()
        for used in (
            client.run_command("true"),
            client.read_file("f"),
            client.write_file("f", ""),
            client.copy_from("f", "f"),
            client.copy_to("f", "f"),
        ):
            with pytest.raises(RuntimeError, match=r"^Sandbox not initialized$"):
                await used
        await client.cleanup()

    run_async(main)


def test_a_copy_of_a_client_is_the_client(here, run_async):
    """pydantic copies the defaults of a tool's fields, before there is a sandbox and after."""

    async def main():
        client = create_sandbox_client()
        before = copy.deepcopy({"client": client})["client"]
        try:
            await client.create()
            assert copy.deepcopy(client) is before is client
        finally:
            await before.cleanup()
        assert client.sandbox is None

    run_async(main)


def test_the_global_client_is_used_over_and_over(here, backend, tmp_path):
    """By one asyncio.run after the other, as an agent's program does."""
    source = tmp_path / "src.txt"
    source.write_text("Copy to container")
    asyncio.run(SANDBOX_CLIENT.create(SandboxSettings(cpu_limit=0.5)))
    try:
        first = SANDBOX_CLIENT.sandbox.container
        assert asyncio.run(SANDBOX_CLIENT.run_command("echo 'test'")).strip() == "test"
        asyncio.run(SANDBOX_CLIENT.copy_to(str(source), "/workspace/copied.txt"))
        assert asyncio.run(SANDBOX_CLIENT.read_file("copied.txt")) == "Copy to container"
        asyncio.run(SANDBOX_CLIENT.copy_from("copied.txt", str(tmp_path / "dst.txt")))
        asyncio.run(SANDBOX_CLIENT.create())
        assert first.status == "removed"  # and not forgotten
        assert asyncio.run(SANDBOX_CLIENT.run_command("ls")) == ""
    finally:
        asyncio.run(SANDBOX_CLIENT.cleanup())
    assert SANDBOX_CLIENT.sandbox is None
    assert (tmp_path / "dst.txt").read_text() == "Copy to container"


def test_a_cancelled_creation_leaves_nothing(run_async, here):
    async def main():
        sandbox = DockerSandbox()
        with anyio.move_on_after(0.005) as scope:
            await sandbox.create()
        assert scope.cancelled_caught
        assert sandbox.container is None

    run_async(main)


def test_the_pages_own_example_runs(here, backend, capsys):
    page = DOCS / "compat" / "openmanus.md"
    blocks = page.read_text().split("```python\n")[1:]
    for block in blocks:
        exec(compile(block.split("```")[0], page.name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["hello 0", "world"]
    assert printed[2] != "0"


def test_importing_starts_nothing_and_takes_no_optional_library():
    program = dedent("""
        import sys, threading
        import belljar.compat.openmanus
        assert threading.active_count() == 1
        assert not {"docker", "pydantic", "numpy", "pandas"} & set(sys.modules)
    """)
    subprocess.run([sys.executable, "-c", program], check=True)
