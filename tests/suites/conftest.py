"""The suites that frameworks ship for sandboxes, each with a small adapter to Belljar. They need
those frameworks, which have a virtual environment of their own: `scripts/test --only suites` makes
it and sets BELLJAR_TEST_SUITES. Without that they are not collected.

The adapters use the public interface only, and show how a framework is connected."""

import inspect
import os

import pytest

ASKED = bool(os.environ.get("BELLJAR_TEST_SUITES"))
collect_ignore_glob = [] if ASKED else ["test_*.py"]
if ASKED:
    os.environ["LANGSMITH_TRACING"] = "false"  # nothing here talks to a service


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A rule that a suite skips because of what the sandbox lacks is not passed."""
    report = yield
    if report.when == "call" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"the suite skipped it: {report.longrepr[2]}"
    return report


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def count_lines():
    """Of classes and functions; empty lines do not count."""

    def count(*parts):
        return sum(bool(line.strip()) for part in parts for line in inspect.getsourcelines(part)[0])

    return count
