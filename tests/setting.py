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
        return native
    return _GIVEN


NAME = _choose()
BACKEND = NAME.partition("-")[0]
DOCKER = NAME.startswith("docker-")
GVISOR = NAME == "docker-runsc"
# Whether a guest is in control groups that limit it; an ordinary user may have some, or none.
COUNTED = ROOT or DOCKER
REQUIRED = os.environ.get("BELLJAR_TEST_REQUIRE", "").split()

# What is built on top of the contract between host and guest is the same code in every setting,
# and is run in one of them. BELLJAR_TEST_SCOPE=contract leaves it out: a container takes a hundred
# times as long to start as a native guest.
_ABOVE = {"charts", "cli", "environment", "examples", "export", "notebook_habits", "readme"}
_ABOVE |= {"record", "results", "workspace"}
_NOT_IN_CONTAINERS = {"hostile_values", "leaks", "runtime"}  # test_docker_faults has some of it
_NOT_IN_GVISOR = {"async", "docker_faults", "put_get"}
_OF_ESCAPES = ("test_hostile_guest",)  # controls show that the oracles see: natively


def leaves_out(module, name):
    """Whether a test is not for this setting, unless all are asked for."""
    if os.environ.get("BELLJAR_TEST_SCOPE") != "contract":
        return False
    if module == "results":
        return GVISOR or not DOCKER  # frames and pictures, over another wire
    if module == "escapes" and DOCKER:
        return "control" in name or (GVISOR and not name.startswith(_OF_ESCAPES))
    if DOCKER and module in _NOT_IN_CONTAINERS:
        return True
    return module in _ABOVE or (GVISOR and module in _NOT_IN_GVISOR)
