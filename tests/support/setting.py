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

# The same code runs in every setting, and all of it is tested in one: natively, by root. With
# BELLJAR_TEST_SCOPE=contract a run is limited to the tests that are marked `contract` for its kind.
KIND = "gvisor" if GVISOR else BACKEND
KINDS = {"native", "docker", "gvisor"}
CONTRACT_ONLY = os.environ.get("BELLJAR_TEST_SCOPE") == "contract"


def in_contract(item):
    """True if a test is marked `contract` for the kind of guest of this run."""
    kinds = {kind for mark in item.iter_markers("contract") for kind in mark.args}
    if not kinds <= KINDS:
        raise ValueError(f"{item.nodeid}: contract takes {KINDS}, not {kinds - KINDS}")
    return KIND in kinds
