"""Names of images: what decides them, and that nothing else does."""

import pytest

from belljar import Environment
from belljar.backends.docker.images import build_script, dockerfile, image_store
from belljar.backends.docker.images.build import explain_failure
from belljar.backends.docker.images.build_stream import BuildOrder, Failure, collect_inputs
from belljar.backends.docker.settings import check_image
from belljar.environment.addresses import hide_credentials
from wheels import make_wheel


def want(environment=None, base="base:1", platform=None):
    return image_store.plan_image(
        environment or Environment("a", packages=["numpy"]), base, platform
    )


def test_key_depends_on_all_that_decides_the_content_and_on_nothing_else(tmp_path):
    reference = want().key("id")
    same = Environment("b", packages=["numpy"], preload=["numpy"], warmup="1")
    assert want(same).key("id") == reference
    assert want(same, base="another-name-of-the-same:1").key("id") == reference
    others = [
        want().key("another id"),
        want(platform="linux/arm64").key("id"),
        want(Environment("a", packages=["numpy>1"])).key("id"),
        want(Environment("a", packages=["numpy"], python="3.12")).key("id"),
        want(Environment("a", packages=["numpy"], allow_builds=True)).key("id"),
    ]
    assert len({reference, *others}) == 6


def test_key_of_a_wheel_is_that_of_its_content(tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    first = want(Environment("a", packages=[str(wheel)])).key("id")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    wheel.rename(moved / wheel.name)
    again = Environment("a", packages=[str(moved / wheel.name)])
    assert want(again).key("id") == first


@pytest.mark.parametrize(("python", "base"), [("3.12", "3.12"), ("3.12.4", "3.12")])
def test_default_base_is_the_slim_image_of_the_python_asked_for(python, base):
    found = image_store.plan_image(Environment("a", python=python), None, None)
    assert found.base == f"python:{base}-slim"


@pytest.mark.parametrize("name", ["a", "A.b_c-d", "9--x..", "x" * 64, "A__"])
def test_every_name_of_an_environment_makes_a_tag(name):

    Environment(name)
    tag = f"{image_store.repository_name(name)}:0123456789abcdef"
    assert check_image("image", tag) == tag


# Addresses as people write them, proper or not; what must not be seen has "S3CRET" in it.
ADDRESSES = [
    "https://me:S3CRET@example.org/b.whl",
    "https://S3CRET@example.org/b.whl",
    "https://me:p@S3CRET@example.org/b.whl",
    "https://me:sec/S3CRET@example.org/b.whl",
    "https://me:a'S3CRET@example.org/b.whl",
    "https://me:a?S3CRET@example.org/b.whl",
    "https://me:a#S3CRET@example.org/b.whl",
    "https:/me:S3CRET@example.org/b.whl",
    "https://example.org/b.whl?token=S3CRET",
    "https://example.org/b.whl?mail=a@b&token=S3CRET",
    "https://me:S3CRET@example.org/b.whl?token=S3CRET#sha256=00",
    "git+https://me:S3CRET@example.org/b@v1",
    "git+https://me:a/S3CRET@example.org/b@v1",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_passwords_in_addresses_are_seen_nowhere(address, tmp_path):
    environment = Environment("a", packages=[f"b @ {address}"])
    wanted = want(environment)
    labels = image_store.image_labels(wanted, "k", {"lock": "l", "python": "3.11.2"})
    assert "S3CRET" not in str(labels)
    order = BuildOrder(plan=wanted, key="k", base={"Architecture": "none"})
    request, settings = collect_inputs(order)
    assert "S3CRET" not in str(request["description"])
    assert "S3CRET" not in dockerfile.render_dockerfile(wanted)
    lock = tmp_path / "lock"
    lock.write_text(f"b @ {address} \\\n    --hash=sha256:00\nc==1\n")
    build_script.clean_lock(str(lock))
    assert "S3CRET" not in lock.read_text()
    assert lock.read_text().endswith("\\\n    --hash=sha256:00\nc==1\n")
    for line in (f"error: invalid value '{address}' for '--index'", f"for url ({address}), twice"):
        error = explain_failure(Failure(line, "install", (line,)), wanted, settings.secrets)
        assert "S3CRET" not in str(error)


def test_what_is_no_password_in_an_address_stays():
    for text in (
        "b @ git+https://example.org/b@v1#subdirectory=x",
        "for url (https://example.org:8080/simple/b/), twice",
        "https://[::1]:80/b.whl#sha256=00 me@example.org a?b",
    ):
        assert hide_credentials(text) == text


def test_text_from_a_container_is_made_safe_in_a_time_that_grows_with_its_length():
    for piece in ("://", "a:/#", "?@", "://@?#"):
        hide_credentials(piece * 300_000)  # or the time-out of the test


def test_labels_hold_no_password_and_no_directory(tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    environment = Environment("a", packages=[str(wheel), "b @ https://me:secret@example.org/b.whl"])
    labels = image_store.image_labels(want(environment), "k", {"lock": "l", "python": "3.11.2"})
    assert "secret" not in str(labels)
    assert str(tmp_path) not in str(labels)
    assert wheel.name in labels["belljar.packages"]
