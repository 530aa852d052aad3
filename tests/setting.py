"""In which setting this run is: native-root, native-user, docker-runc, docker-runsc.

BELLJAR_TEST_SETTING names it, and chooses the backend by the variables that users have too. Without
it, the setting is what those variables say.
"""

import os

ROOT = os.geteuid() == 0
_GIVEN = os.environ.get("BELLJAR_TEST_SETTING", "")


def _choose():
    """The name; the variables that make it true are set, for subprocesses as well."""
    native = "native-root" if ROOT else "native-user"
    if _GIVEN.startswith("native-"):
        if native != _GIVEN:
            raise RuntimeError(f"this user can test {native}, not {_GIVEN}")
        os.environ["BELLJAR_BACKEND"] = "native"
    elif _GIVEN.startswith("docker-"):
        os.environ["BELLJAR_BACKEND"] = "docker"
        os.environ["BELLJAR_DOCKER_RUNTIME"] = _GIVEN.removeprefix("docker-")
    elif _GIVEN:
        raise RuntimeError(f"there is no setting {_GIVEN!r}")
    elif os.environ.get("BELLJAR_BACKEND") == "docker":
        return f"docker-{os.environ.get('BELLJAR_DOCKER_RUNTIME', 'runc')}"
    else:
        os.environ["BELLJAR_BACKEND"] = "native"  # adapters would else look for an engine
        return native
    return _GIVEN


NAME = _choose()
BACKEND = NAME.partition("-")[0]
DOCKER = NAME.startswith("docker-")
GVISOR = NAME == "docker-runsc"
# Whether a guest is in control groups that limit it; an ordinary user may have some, or none.
COUNTED = ROOT or DOCKER
REQUIRED = os.environ.get("BELLJAR_TEST_REQUIRE", "").split()

# The same code runs in every setting, and most of it is tested in one: natively, by root. With
# BELLJAR_TEST_SCOPE=contract the others are left with what may differ there; without it, each runs
# everything, which takes an hour, as a container takes a hundred times as long to start.
_USER = {"attacks", "cgroup", "commands", "escapes", "guest", "mounts", "posture", "sandbox"}
_USER |= {"conformance", "manager_guests", "pool", "posture_golden", "siblings", "warm", "workdir"}
_GVISOR = {"escapes", "mounts", "posture", "posture_golden", "sandbox"}
_DOCKER = _GVISOR | {"checkpoint", "commands", "guest", "warm", "workdir"}
_DOCKER |= {"compat_dolphin", "compat_executor", "compat_openmanus", "compat_openmanus_tools"}
_DOCKER |= {"pool"}
# In containers, only these: controls in which nothing holds the program are the same natively; what
# a pool decides does not depend on what its guests are; and who makes a checkpoint is init, which
# is the same program.
_SAMPLES = {
    "checkpoint": (
        "test_rollback",
        "test_files",
        "test_open_files",
        "test_one_can",
        "test_checkpoints",
        "test_a_fork",
        "test_out_of_memory",
        "test_nothing_is_left",
    ),
    "escapes": ("test_hostile_guest", "test_check", "test_control_under", "test_control_that"),
    "pool": (
        "test_a_tenant_gets",
        "test_warm_guests",
        "test_close",
        "test_map_gives",
        "test_a_rehear",
    ),
}


def leaves_out(module, name):
    """Whether a test that starts guests is not for this setting, unless all are asked for."""
    if os.environ.get("BELLJAR_TEST_SCOPE") != "contract":
        return False
    if DOCKER and module in _SAMPLES and not name.startswith(_SAMPLES[module]):
        return True
    return module not in (_GVISOR if GVISOR else _DOCKER if DOCKER else _USER)
