"""inspect-ai: the 44 self checks of a SandboxEnvironment, and the one that Belljar cannot pass."""

import pytest
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from belljar import AsyncSandbox, Limits, Outcome

pytestmark = pytest.mark.anyio
CHECKS = 44
EXPECTED_TO_FAIL = {"test_exec_as_user": "a guest has one user, and no root"}
CANNOT_RUN = 126  # what shells say of a file that is not executable


class BelljarSandboxEnvironment(SandboxEnvironment):
    def __init__(self, sandbox):
        super().__init__()
        self._sandbox = sandbox

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        # Both streams share Belljar's limit; here each has one of its own. A command has a
        # time-out only if the caller says so.
        output = 2 * SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        limits = Limits(output=output, timeout=None)
        return {"default": cls(await AsyncSandbox.create(environment="python", limits=limits))}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        for each in environments.values():
            await each._sandbox.close()

    async def exec(
        self,
        cmd,
        input=None,
        cwd=None,
        env=None,
        user=None,
        timeout=None,
        timeout_retry=True,
        concurrency=True,
    ):
        if user is not None:
            raise SandboxUserUnsupportedError(f"a guest has one user, and not {user!r}")
        done = await self._sandbox.commands.run(cmd, stdin=input, cwd=cwd, env=env, timeout=timeout)
        if done.outcome is Outcome.timeout:
            raise TimeoutError(f"longer than {timeout} s")
        if done.outcome is Outcome.lost:
            raise SandboxUnavailableError("the sandbox ended during the command")
        if done.exit_code == CANNOT_RUN:
            raise PermissionError(done.stderr)
        for text in (done.stdout, done.stderr):
            if done.truncated or len(text) > SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
                limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
                raise OutputLimitExceededError(limit, text)
        return ExecResult(done.returncode == 0, done.returncode, done.stdout, done.stderr)

    async def write_file(self, file, contents):
        await self._sandbox.files.write(file, contents)

    async def read_file(self, file, text=True):
        info = await self._sandbox.files.stat(file, follow=True)
        if info.is_file and info.size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        data = await self._sandbox.files.read(file, format="bytes")
        return data.decode("utf-8") if text else data


@pytest.fixture
async def sandbox_env(backend, anyio_backend, request):
    if why := EXPECTED_TO_FAIL.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    made = await BelljarSandboxEnvironment.sample_init("self_check", None, {})
    yield made["default"]
    await BelljarSandboxEnvironment.sample_cleanup("self_check", None, made, False)


def test_all_checks_are_run_with_a_small_adapter(count_lines):
    assert len(self_check.__all__) == CHECKS
    assert all(globals()[name] is getattr(self_check, name) for name in self_check.__all__)
    assert count_lines(BelljarSandboxEnvironment) <= 60
