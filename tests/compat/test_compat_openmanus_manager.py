"""OpenManus' SandboxManager: its limits, its sweeps, and that busy ones are left alone."""

import os

import anyio
import pytest

import setting
from belljar.compat.openmanus import DockerSandbox, SandboxManager, SandboxSettings


@pytest.fixture(params=["asyncio"] if setting.DOCKER else ["asyncio", "trio"])
def managed(backend, request):
    """Runs an async function with a manager of two places, and ends that. In one event loop
    only where sandboxes are slow to start: the manager's own is the same in any."""

    def run(function, **options):
        async def main():
            given = {"max_sandboxes": 2, "idle_timeout": 60, "cleanup_interval": 30, **options}
            async with SandboxManager(**given, backend=setting.BACKEND) as manager:
                await function(manager)
            assert manager._sandboxes == {}

        anyio.run(main, backend=request.param)

    return run


def test_it_has_the_documents_defaults_and_needs_no_event_loop():
    manager = SandboxManager()
    assert manager.get_stats() == {
        "total_sandboxes": 0,
        "active_operations": 0,
        "max_sandboxes": 100,
        "idle_timeout": 3600,
        "cleanup_interval": 300,
        "is_shutting_down": False,
    }


def test_sandboxes_are_created_found_used_and_deleted(managed):
    async def main(manager):
        config = SandboxSettings(memory_limit="256m")
        first, second = await manager.create_sandbox(config), await manager.create_sandbox()
        assert {first, second} == set(manager._sandboxes) == set(manager._last_used)
        with pytest.raises(RuntimeError) as caught:
            await manager.create_sandbox()
        assert str(caught.value) == "Maximum number of sandboxes (2) reached"
        sandbox = await manager.get_sandbox(first)
        assert sandbox.config is config
        assert await sandbox.run_command("echo 'test'") == "test"
        assert manager.get_stats()["total_sandboxes"] == 2
        await manager.delete_sandbox(first)
        await manager.delete_sandbox(first)
        assert set(manager._sandboxes) == {second} == set(manager._last_used)
        assert sandbox.container is None
        with pytest.raises(KeyError, match=f"Sandbox {first} not found"):
            await manager.get_sandbox(first)
        with pytest.raises(KeyError, match="Sandbox nonexistent-id not found"):
            async with manager.sandbox_operation("nonexistent-id"):
                raise AssertionError("there is none")
        await manager.cleanup()
        await manager.cleanup()
        assert manager.get_stats()["is_shutting_down"]
        with pytest.raises(RuntimeError, match="Failed to create sandbox"):
            await manager.create_sandbox()

    managed(main)


def test_idle_sandboxes_are_swept_and_busy_ones_are_not(managed):
    """The original looked first and deleted later: what became busy meanwhile was lost."""

    async def main(manager):
        busy, operated = await manager.create_sandbox(), await manager.create_sandbox()
        sandbox = await manager.get_sandbox(busy)
        manager.idle_timeout = 0.1
        assert manager.idle_timeout == 0.1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.run_command, "until [ -e go ]; do sleep 0.02; done")
            async with manager.sandbox_operation(operated) as other:
                assert manager.get_stats()["active_operations"] == 1
                await anyio.sleep(0.3)
                await manager._cleanup_idle_sandboxes()
                assert set(manager._sandboxes) == {busy, operated}
                assert await other.run_command("echo alive") == "alive"
            await sandbox.write_file("go", "")
        await anyio.sleep(0.3)
        await manager._cleanup_idle_sandboxes()
        assert manager._sandboxes == {}
        assert sandbox.container is None

    managed(main)


def test_creation_keeps_nobody_waiting(managed, monkeypatch):
    """The original held its lock while an image was pulled and a container started."""
    start, reached = DockerSandbox.start, []

    async def main(manager):
        there = await manager.create_sandbox()
        gate = anyio.Event()

        async def slow(sandbox):
            reached.append(sandbox)
            while not gate.is_set():
                await anyio.sleep(0.01)
            return await start(sandbox)

        monkeypatch.setattr(DockerSandbox, "start", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.create_sandbox)
            while not reached:
                await anyio.sleep(0.01)
            async with manager.sandbox_operation(there) as sandbox:
                assert await sandbox.run_command("echo meanwhile") == "meanwhile"
            with pytest.raises(RuntimeError, match="Maximum number"):  # its place is taken
                await manager.create_sandbox()
            await manager.delete_sandbox(there)
            assert manager.get_stats()["total_sandboxes"] == 0
            gate.set()
        monkeypatch.undo()
        assert manager.get_stats()["total_sandboxes"] == 1

    managed(main)


def test_an_operation_that_waits_behind_a_delete_learns_that_the_sandbox_is_gone(managed):
    async def main(manager):
        name = await manager.create_sandbox()
        turn = (await manager.get_sandbox(name)).container.turn
        refused = []

        async def late():
            with pytest.raises(KeyError):
                async with manager.sandbox_operation(name):
                    pass
            refused.append(name)

        async def wait_for(waiting):
            with anyio.fail_after(30):
                while turn.statistics().tasks_waiting < waiting:
                    await anyio.sleep(0.01)

        async with anyio.create_task_group() as tasks:
            async with manager.sandbox_operation(name):
                tasks.start_soon(manager.delete_sandbox, name)
                await wait_for(1)
                tasks.start_soon(late)
                await wait_for(2)
            with anyio.fail_after(30):
                while not refused:
                    await anyio.sleep(0.01)

    managed(main)


def test_operations_on_one_sandbox_take_turns(managed):
    async def main(manager):
        name = await manager.create_sandbox()
        order = []

        async def operate(mark):
            async with manager.sandbox_operation(name) as sandbox:
                order.append(mark)
                await sandbox.run_command("sleep 0.05")
                order.append(mark)

        async with anyio.create_task_group() as tasks:
            for mark in "abc":
                tasks.start_soon(operate, mark)
        assert [order[i] == order[i + 1] for i in (0, 2, 4)] == [True] * 3
        with anyio.move_on_after(0.05):
            async with manager.sandbox_operation(name):
                await anyio.sleep(60)
        assert manager.get_stats()["active_operations"] == 0
        async with manager.sandbox_operation(name) as sandbox:  # it was given back
            assert await sandbox.run_command("echo 1") == "1"

    managed(main)


def test_a_creation_that_fails_gives_its_place_back(managed):
    async def main(manager):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="Failed to create sandbox"):
                await manager.create_sandbox(SandboxSettings(work_dir="/proc"))
        assert manager.get_stats()["total_sandboxes"] == 0
        assert await manager.create_sandbox()

    managed(main)


def test_images_are_ensured(managed):
    async def main(manager):
        assert await manager.ensure_image("python:3.12-slim")  # it stands for our environment
        assert not await manager.ensure_image("no such image!")

    managed(main)


@pytest.mark.docker
def test_an_image_of_the_engine_is_used_as_it_is(backend, managed):
    async def main(manager):
        image = os.environ["BELLJAR_DOCKER_BASE"]
        assert await manager.ensure_image(image)
        name = await manager.create_sandbox(SandboxSettings(image=image))
        sandbox = await manager.get_sandbox(name)
        assert await sandbox.run_command("ls /opt/env") != ""
        assert (await sandbox.run_command("ls /opt/env")).exit_code != 0

    managed(main)
