"""pydantic-ai: all 38 rules of its WorkspaceBackend."""

import posixpath
import uuid

import pytest
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from belljar import AsyncSandboxManager, Limits, Outcome, SandboxClosed, SandboxMissing

RULES = 38
NO_TIMEOUT = Limits(timeout=None)  # a command has one only if the caller says so


class BelljarWorkspace:
    """One sandbox of a manager: made at the first use, or found by its `ref`."""

    def __init__(self, manager, ref=None):
        self._manager, self.ref = manager, ref
        self._name = uuid.uuid4().hex if ref is None else ref.id

    async def _use(self):
        if self.ref is None:
            await self._manager.get_or_create(self._name, limits=NO_TIMEOUT)
            self.ref = WorkspaceRef(provider="belljar", id=self._name)
        try:
            return await self._manager.get(self._name)
        except SandboxMissing as error:
            raise WorkspaceUnavailableError(str(error)) from error

    async def working_dir(self):
        return (await self._use()).workdir

    async def run(self, command, *, shell=False, env=None, timeout=None):
        if isinstance(command, str) != shell:
            raise TypeError("a text needs shell=True, and a sequence shell=False")
        sandbox = await self._use()
        try:
            done = await sandbox.commands.run(command, env=env, timeout=timeout)
        except SandboxClosed as error:
            raise WorkspaceUnavailableError(str(error)) from error
        output = {"stdout": done.stdout, "stderr": done.stderr}
        if done.outcome is Outcome.timeout:
            raise WorkspaceTimeoutError(f"longer than {timeout} s", **output)
        if done.outcome is Outcome.lost:
            raise WorkspaceUnavailableError("the sandbox ended during the command")
        if done.truncated:
            limit = sandbox.limits.output
            raise WorkspaceOutputLimitError(f"more than {limit} bytes", limit=limit, **output)
        return CommandResult(exit_code=done.returncode, **output)

    async def read_bytes(self, path):
        return await (await self._use()).files.read(path, format="bytes")

    async def write_bytes(self, path, data):
        await (await self._use()).files.write(path, data)

    async def stat(self, path):
        return make_entry(await (await self._use()).files.stat(path, follow=True))

    async def list_dir(self, path):
        return [make_entry(info) for info in await (await self._use()).files.list(path)]

    async def make_dir(self, path):
        await (await self._use()).files.make_dir(path)

    async def remove(self, path):
        sandbox = await self._use()
        if posixpath.commonpath([path, sandbox.workdir]) == path:
            raise ValueError("cannot remove the working directory, or one above it")
        await sandbox.files.remove(path)

    async def exists(self, path):
        return await (await self._use()).files.exists(path)

    async def realpath(self, path):
        return await (await self._use()).files.realpath(path, strict=False)


def make_entry(info):
    size = info.size if info.type == "file" else None
    return FileEntry(name=info.name, path=info.path, is_dir=info.is_dir, size=size)


@pytest.mark.usefixtures("backend")
class TestBelljarWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    async def manager(self, anyio_backend):
        async with AsyncSandboxManager(environment="python") as manager:
            yield manager

    @pytest.fixture
    def backend(self, backend, manager):
        return BelljarWorkspace(manager)

    @pytest.fixture
    def fresh_backend(self, manager):
        return lambda: BelljarWorkspace(manager)

    @pytest.fixture
    def attach_backend(self, manager):
        return lambda ref: BelljarWorkspace(manager, ref)

    @pytest.fixture
    def destroy_environment(self, manager):
        return lambda workspace: manager.delete(workspace.ref.id)


def test_all_rules_are_run_with_a_small_adapter(count_lines):
    assert len([name for name in dir(TestBelljarWorkspace) if name.startswith("test_")]) == RULES
    assert count_lines(BelljarWorkspace, make_entry) <= 60
