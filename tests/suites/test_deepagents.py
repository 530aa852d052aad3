"""deepagents: the 86 tests that langchain-tests has for its sandboxes, run on BaseSandbox."""

import subprocess

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

from belljar import Outcome, Sandbox, SandboxError

TESTS = 86
# The tests are older than deepagents: since 0.7 its glob gives full paths and no directories, and
# its write replaces a file.
EXPECTED_TO_FAIL = (
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
)


class BelljarBackend(BaseSandbox):
    def __init__(self, sandbox):
        self._sandbox = sandbox

    @property
    def id(self):
        return self._sandbox.id

    def execute(self, command, *, timeout=None):
        done = self._sandbox.commands.run(
            command, timeout=timeout, merge=True, output_limit="truncate"
        )
        said = f"\nstopped after {timeout} s" if done.outcome is Outcome.timeout else ""
        return ExecuteResponse(done.stdout + said, done.returncode, done.truncated)

    def upload_files(self, files):
        return [FileUploadResponse(path, self._try("write", path, data)[1]) for path, data in files]

    def download_files(self, paths):
        return [
            FileDownloadResponse(path, *self._try("read", path, format="bytes")) for path in paths
        ]

    def _try(self, operation, path, *args, **options):
        """What it gave, and deepagents' word for what went wrong."""
        if not path.startswith("/"):
            return None, "invalid_path"
        try:
            return getattr(self._sandbox.files, operation)(path, *args, **options), None
        except FileNotFoundError:
            return None, "file_not_found"
        except PermissionError:
            return None, "permission_denied"
        except IsADirectoryError:
            return None, "is_directory"
        except SandboxError as error:
            return None, str(error)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Class-scoped fixture")  # the suite itself has such fixtures
class TestBelljarBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, backend):
        with Sandbox(environment="python") as sandbox:
            yield BelljarBackend(sandbox)

    @pytest.fixture(autouse=True)
    def expect_failures(self, request):
        if request.node.name in EXPECTED_TO_FAIL:
            request.applymarker(pytest.mark.xfail(reason="older than deepagents", strict=True))


class BareSubprocess(BelljarBackend):
    """No sandbox at all: what fails here too is not Belljar's."""

    id = "bare"

    def __init__(self):
        pass

    def execute(self, command, *, timeout=None):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
        return ExecuteResponse(done.stdout + done.stderr, done.returncode)

    def upload_files(self, files):
        for path, data in files:
            with open(path, "wb") as file:
                file.write(data)
        return [FileUploadResponse(path) for path, _ in files]


def test_what_is_expected_to_fail_also_fails_without_a_sandbox(tmp_path):
    suite, bare = TestBelljarBackend(), BareSubprocess()
    suite.test_ls_lists_files(bare, str(tmp_path / "passes"))
    for name in EXPECTED_TO_FAIL:
        with pytest.raises(AssertionError):
            getattr(suite, name)(bare, str(tmp_path / name))


def test_all_tests_are_run_with_a_small_adapter(count_lines):
    assert len([name for name in dir(TestBelljarBackend) if name.startswith("test_")]) == TESTS
    assert count_lines(BelljarBackend) <= 60
