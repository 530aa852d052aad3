"""Preloading: for guests that share its cost, and for containers that wait. Never for one shot."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

import belljar
from belljar import Environment, Pool, Sandbox
from setting import DOCKER

MODULE = "wave"  # nothing else imports it
LOADED = f"import sys; {MODULE!r} in sys.modules"


@pytest.fixture
def environment() -> Environment:
    """Its name is new, so no zygote of an earlier test is one of it."""
    return Environment(f"preload-{uuid.uuid4().hex[:8]}", preload=[MODULE])


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_sandbox_preloads_unless_it_is_a_container(backend, environment):
    with Sandbox(environment=environment) as sandbox:
        assert sandbox.run_code(LOADED).value is not DOCKER
        assert sandbox.run_code(f"import {MODULE}").ok
        sandbox.restart()
        assert sandbox.run_code(LOADED).value is not DOCKER


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_guest_that_waits_in_a_pool_has_preloaded(backend, environment):
    with Pool(environment=environment, min_ready=1, max_total=1) as pool:
        pool.warm_up()
        assert pool.run_code(LOADED).value is True


@pytest.mark.contract("native", "docker")
def test_a_guest_that_is_started_for_a_request_preloads_only_natively(backend, environment):
    with Pool(environment=environment, min_ready=0, max_total=1, rehearsal="") as pool:
        assert pool.run_code(LOADED).value is not DOCKER


@pytest.mark.contract("docker")
def test_a_preload_that_fails_is_told_by_the_pool_of_containers(backend):
    broken = Environment("broken", preload=["no_such_module_at_all"])
    if DOCKER:
        with Sandbox(environment=broken) as sandbox:
            assert sandbox.run_code("1").ok
    with (
        Pool(environment=broken, min_ready=1, max_total=1) as pool,
        pytest.raises(belljar.StartError, match="no_such_module_at_all"),
    ):
        pool.warm_up()


@pytest.mark.native_only("containers share no zygote")
def test_one_shots_preload_nothing_until_there_are_several(backend, environment):
    assert belljar.run(LOADED, environment=environment).value is False
    # The second starts a zygote that preloads, in the background; later ones come from it.
    found = (belljar.run(LOADED, environment=environment).value for _ in range(1000))
    assert next(each for each in found if each) is True


@pytest.mark.native_only("containers share no zygote")
def test_a_one_shot_uses_a_zygote_that_is_there(backend, environment):
    with Sandbox(environment=environment):
        assert belljar.run(LOADED, environment=environment).value is True


@pytest.mark.native_only("the command starts natively before it has a backend")
def test_what_a_command_started_ahead_ends_with_it(backend):
    code = """
from belljar.backends.native import zygote_client
from belljar.environment.environment import resolve
zygote_client.start_ahead(resolve("python").without_preload(), "/workspace")
print(zygote_client._ahead.zygote._process.pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.native_only("a container has what its image has")
def test_the_first_import_of_pyplot_says_nothing(backend):
    """It asks fontconfig, which complains about a missing configuration."""
    execution = belljar.run("import matplotlib.pyplot")
    assert (execution.ok, execution.stdout, execution.stderr) == (True, "", "")
