"""What decides about images without an engine: keys, settings handed in, contexts, words."""

import dataclasses
import doctest
import importlib
import io
import json
import os
import random
import re
import tarfile
import time
import traceback
from pathlib import Path

import anyio
import pytest

from belljar import Docker, Environment
from belljar.backends.docker import (
    dockerfile,
    image,
    image_auth,
    image_build,
    image_context,
    image_dockerfile,
    image_index,
    image_key,
    image_share,
    image_steps,
    image_store,
    owner,
    pull,
)
from belljar.backends.docker.image_failure import explained
from belljar.backends.docker.image_luggage import Order, pack
from belljar.backends.docker.image_progress import Teller
from belljar.backends.docker.image_talk import Failure
from belljar.backends.docker.settings import check_image
from belljar.environment import BUILTIN
from belljar.errors import EnvironmentBuildError, InvalidOption
from test_environment import make_wheel


@pytest.mark.parametrize(
    "name",
    [
        "dockerfile",
        "image_auth",
        "image_context",
        "image_index",
        "image_key",
        "image_steps",
        "pull",
    ],
)
def test_examples_in_the_source_are_true(name):
    module = importlib.import_module(f"belljar.backends.docker.{name}")
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


# --- keys ------------------------------------------------------------------------------------


def want(environment=None, base="base:1", platform=None):
    return image_key.want(environment or Environment("a", packages=["numpy"]), base, platform)


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
    found = image_key.want(Environment("a", python=python), None, None)
    assert found.base == f"python:{base}-slim"


@pytest.mark.parametrize("name", ["a", "A.b_c-d", "9--x..", "x" * 64, "A__"])
def test_every_name_of_an_environment_makes_a_tag(name):
    from belljar.backends.docker.settings import check_image

    Environment(name)
    tag = f"{image_key.repository(name)}:0123456789abcdef"
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
    labels = image_key.labels(wanted, "k", {"lock": "l", "python": "3.11.2"})
    assert "S3CRET" not in str(labels)
    order = Order(wanted=wanted, key="k", base={"Architecture": "none"})
    luggage = pack(order)
    assert "S3CRET" not in str(luggage.request["description"])
    assert "S3CRET" not in image_dockerfile.written(wanted)
    lock = tmp_path / "lock"
    lock.write_text(f"b @ {address} \\\n    --hash=sha256:00\nc==1\n")
    image_steps.clean_lock(str(lock))
    assert "S3CRET" not in lock.read_text()
    assert lock.read_text().endswith("\\\n    --hash=sha256:00\nc==1\n")
    for line in (f"error: invalid value '{address}' for '--index'", f"for url ({address}), twice"):
        error = explained(Failure(line, "install", (line,)), wanted, luggage.secrets)
        assert "S3CRET" not in str(error)


def test_what_is_no_password_in_an_address_stays():
    for text in (
        "b @ git+https://example.org/b@v1#subdirectory=x",
        "for url (https://example.org:8080/simple/b/), twice",
        "https://[::1]:80/b.whl#sha256=00 me@example.org a?b",
    ):
        assert image_key.without_password(text) == text


def test_text_from_a_container_is_made_safe_in_a_time_that_grows_with_its_length():
    for piece in ("://", "a:/#", "?@", "://@?#"):
        image_key.without_password(piece * 300_000)  # or the time-out of the test


def test_labels_hold_no_password_and_no_directory(tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    environment = Environment("a", packages=[str(wheel), "b @ https://me:secret@example.org/b.whl"])
    labels = image_key.labels(want(environment), "k", {"lock": "l", "python": "3.11.2"})
    assert "secret" not in str(labels)
    assert str(tmp_path) not in str(labels)
    assert wheel.name in labels["belljar.packages"]


# --- the settings that go in -----------------------------------------------------------------


def test_only_what_decides_where_packages_come_from_is_handed_in():
    env = {
        "UV_DEFAULT_INDEX": "https://me:pw@mirror.example/simple",
        "UV_INDEX_PRIVATE_PASSWORD": "pw",
        "UV_CACHE_DIR": "/home/me/.cache",
        "HTTPS_PROXY": "http://proxy.example",
        "AWS_SECRET_ACCESS_KEY": "no",
        "HOME": "/home/me",
    }
    handed = image_index.hand_over(env, ["--no-index"], {})
    assert handed.env == {
        "UV_DEFAULT_INDEX": "https://me:pw@mirror.example/simple",
        "UV_INDEX_PRIVATE_PASSWORD": "pw",
        "HTTPS_PROXY": "http://proxy.example",
        "UV_NO_CONFIG": "1",
    }
    assert handed.arguments == ["--no-index"]
    assert handed.notes == []


def test_places_of_this_host_are_left_out_with_a_note():
    env = {
        "UV_EXTRA_INDEX_URL": "file:///srv/a https://b.example/simple",
        "UV_FIND_LINKS": "/srv/wheels,https://c.example/links",
    }
    handed = image_index.hand_over(env, [], {})
    assert handed.env["UV_EXTRA_INDEX_URL"] == "https://b.example/simple"
    assert handed.env["UV_FIND_LINKS"] == "https://c.example/links"
    [note] = handed.notes
    assert "file:///srv/a" in note
    assert "/srv/wheels" in note


def test_mirror_that_is_left_out_is_not_replaced_by_the_public_index():
    alone = image_index.hand_over({"UV_INDEX_URL": "file:///srv/simple"}, [], {})
    assert alone.arguments == ["--no-index"]
    env = {
        "UV_INDEX_URL": "file:///srv",
        "UV_EXTRA_INDEX_URL": "https://a.example https://b.example",
    }
    others = image_index.hand_over(env, [], {})
    assert others.arguments == []
    assert others.env["UV_DEFAULT_INDEX"] == "https://b.example"
    assert others.env["UV_EXTRA_INDEX_URL"] == "https://a.example"


def test_configuration_of_uv_goes_in_without_what_is_about_this_host(tmp_path):
    import tomllib

    (tmp_path / "uv.toml").write_text(
        'cache-dir = "/home/me/cache"\nindex-strategy = "unsafe-best-match"\n'
        '[[index]]\nname = "here"\nurl = "file:///srv/simple"\ndefault = true\n'
        '[[index]]\nname = "there"\nurl = "https://there.example/simple"\n'
    )
    environ = {"UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "HOME": str(tmp_path)}
    settings = image_index.read_uv_files(environ)
    handed = image_index.hand_over({}, [], settings)
    written = tomllib.loads(handed.files["uv.toml"].decode())
    assert written == {
        "index-strategy": "unsafe-best-match",
        "index": [{"name": "there", "url": "https://there.example/simple", "default": True}],
    }
    assert handed.paths == {"UV_CONFIG_FILE": "uv.toml"}
    assert "file:///srv/simple" in handed.notes[0]


def test_of_netrc_only_the_machines_of_the_indexes_go_in(tmp_path):
    netrc = tmp_path / ".netrc"
    netrc.write_text(
        "machine bank.example login me password gold\nmachine mirror.example login me password pw\n"
    )
    netrc.chmod(0o600)
    environ = {
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
    }
    handed = image_index.collect(environ, None)
    assert handed.files["netrc"] == b"machine mirror.example login me password pw\n"


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}


def test_what_was_handed_over_in_secret_is_hidden_wherever_it_turns_up(tmp_path, home, capsys):
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine mirror.example login me password of-netrc\n")
    netrc.chmod(0o600)
    (tmp_path / "uv.toml").write_text(
        '[[index]]\nname = "a"\nurl = "https://me:of-uv-toml@mirror.example/simple"\n'
    )
    environ = home | {
        "UV_CONFIG_FILE": str(tmp_path / "uv.toml"),
        "UV_DEFAULT_INDEX": "https://me:of%20index@mirror.example/simple?key=of-query",
        "UV_EXTRA_INDEX_URL": "https://a.example https://of-token@b.example",
        "UV_FIND_LINKS": "ftp:me:of-links@c.example",
        "UV_INDEX_A_USERNAME": "of-user",
        "UV_INDEX_B_USERNAME": "somebody",
        "UV_INDEX_B_PASSWORD": "of-password",
        "HTTPS_PROXY": "http://me:of-proxy@proxy.example",
    }
    handed = image_index.collect(environ, None)
    said = "of-netrc|of-uv-toml|of%20index|of index|of-query|of-token|of-links|of-user|of-proxy"
    said += "|of-password|somebody|mirror.example"
    error = explained(Failure(said, "install", (said,)), want(), handed.secrets)
    shown = "***|" * 10 + "somebody|mirror.example"
    assert str(error).count(shown) == 2
    assert "of-" not in str(error)

    news = []
    for listener, prints in ((news.append, False), (news.append, True)):
        teller = Teller("a", listener, prints=prints)
        teller.hide(handed.secrets)
        teller.say("resolving", said)
        for note in handed.notes:
            teller.note(note)
    told = "".join(each.text for each in news) + capsys.readouterr().err
    assert "c.example" in told
    assert "of-" not in told


def test_short_passwords_make_no_holes_in_messages():
    assert image_index.secrets_of(["https://a:b@example.org/?c=d"]) == frozenset()


def test_broken_files_with_passwords_are_named_by_line_only(tmp_path, home):
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine h login me\nmachine h login me S3CRETPW\n")
    netrc.chmod(0o600)
    pip = tmp_path / "pip.conf"
    failures = []
    with pytest.raises(EnvironmentBuildError, match="line 3, or the one above") as caught:
        image_index.collect(home, None)
    failures.append(caught.value)
    netrc.unlink()
    for text in ("index-url = https://me:S3CRETPW@h\n", "[global]\nS3CRETPW\n"):
        pip.write_text(text)
        with pytest.raises(EnvironmentBuildError, match=r"pip\.conf: line \d cannot") as caught:
            image_index.collect(home | {"PIP_CONFIG_FILE": str(pip)}, None)
        failures.append(caught.value)
    for each in failures:
        assert "S3CRETPW" not in "".join(traceback.format_exception(each))


@pytest.mark.parametrize(
    "text",
    [
        "pip = 5\n",
        "index = 5\n",
        "index = [5]\n",
        'index = [{name = "a"}]\n',
        "index-url = 5\n",
        'extra-index-url = "https://a.example"\n',
        "[pip]\nfind-links = [5]\n",
    ],
)
def test_configuration_that_uv_cannot_understand_is_not_passed_over(tmp_path, home, text):
    """It may name the only index that is to be asked."""
    (tmp_path / "uv.toml").write_text(text)
    with pytest.raises(EnvironmentBuildError, match=r"uv\.toml.*does not understand"):
        image_index.collect(home | {"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}, None)


def test_certificates_are_read_on_this_host(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    for variable in ("BELLJAR_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        handed = image_index.collect({**environ, variable: str(bundle)}, None)
        assert handed.files == {"ca.pem": bundle.read_bytes()}
        assert handed.paths == {"SSL_CERT_FILE": "ca.pem"}
    bundle.write_text("no certificate")
    with pytest.raises(EnvironmentBuildError, match="no certificate"):
        image_index.collect(environ, bundle)
    with pytest.raises(EnvironmentBuildError, match="cannot read"):
        image_index.collect(environ, tmp_path / "nothing")


# --- the directory of a Dockerfile -----------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "ignored", "kept"),
    [
        (["*.log"], ["a.log"], ["b/a.log", "log"]),
        (["**/*.log"], ["a.log", "b/c/a.log"], ["a.logs"]),
        (["node_modules"], ["node_modules", "node_modules/a/b"], ["a/node_modules"]),
        (["/build/"], ["build/x"], ["src/build"]),
        (["*", "!src"], ["a", "b/c"], ["src", "src/x"]),
        (["docs/*.md", "!docs/README.md"], ["docs/a.md"], ["docs/README.md", "docs/a/b.md"]),
        (["a?c", "[x-z].txt"], ["abc", "y.txt"], ["ac", "a/c", "w.txt"]),
        (["# comment", "", "  ", "!"], [], ["# comment", "a"]),
        (["a/**"], ["a/b", "a/b/c"], ["ab"]),
        (["a+b(c).txt"], ["a+b(c).txt"], ["aab(c).txt"]),
        ([r"\*"], ["*"], ["a"]),
    ],
)
def test_ignore_file_means_what_the_docker_command_means(patterns, ignored, kept):
    rules = image_context.Patterns(patterns)
    assert [name for name in ignored if not rules.ignores(name)] == []
    assert [name for name in kept if rules.ignores(name)] == []


@pytest.mark.parametrize(
    ("pattern", "name", "ending"),
    [
        ("*a" * 12 + "*b", "a" * 60, "b"),
        ("**/" * 40 + "b", "a/" * 100 + "a", "/b"),
        ("**a" * 12 + "**b", "a" * 200, "b"),
        ("*a**/" * 12 + "b", "a/" * 60 + "a", "/b"),
    ],
)
def test_no_pattern_takes_for_ever(pattern, name, ending):
    rules = image_context.Patterns([pattern])
    assert not rules.ignores(name)
    assert rules.ignores(name + ending)


def test_both_ways_to_match_a_pattern_agree():
    chance = random.Random(1)
    pieces = ["a", "b", "/", "*", "**", "**/", "?", "[ab]"]
    for _ in range(3000):
        rule = image_context.Rule("".join(chance.choices(pieces, k=chance.randint(1, 7))))
        expression = re.compile("".join(rule.parts))
        for _ in range(4):
            name = "".join(chance.choices("ab/", k=chance.randint(0, 7)))
            assert rule.matches_slowly(name) == bool(expression.fullmatch(name)), (rule.parts, name)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("my dir", "my-dir"),
        ("日本", "dockerfile"),
        ("___", "dockerfile"),
        ("A.b_c", "a-b-c"),
        ("x" * 200, "x" * 60),
        ("-" + "y" * 59 + "--z", "y" * 59),
    ],
)
def test_every_directory_of_a_dockerfile_makes_a_tag(tmp_path, name, tag):
    directory = tmp_path / name
    directory.mkdir()
    make_context(directory)
    found, _ = anyio.run(dockerfile.wanted, Docker(dockerfile=directory))
    assert re.fullmatch(rf"belljar/{tag}:[0-9a-f]{{16}}", found)
    assert check_image("image", found) == found


def make_context(directory):
    (directory / "Dockerfile").write_text("FROM base\n")
    (directory / "a.txt").write_text("content")
    (directory / "empty").mkdir()
    (directory / "link").symlink_to("/etc/passwd")
    os.mkfifo(directory / "pipe")
    return directory


def unpacked(context):
    async def read():
        return b"".join([piece async for piece in image_context.archive(context)])

    return tarfile.open(fileobj=io.BytesIO(anyio.run(read)))


def test_archive_has_files_directories_and_links_as_they_are(tmp_path):
    context = image_context.read(make_context(tmp_path))
    with unpacked(context) as archive:
        kinds = {member.name: member.type for member in archive}
        assert kinds == {
            "Dockerfile": tarfile.REGTYPE,
            "a.txt": tarfile.REGTYPE,
            "empty": tarfile.DIRTYPE,
            "link": tarfile.SYMTYPE,
        }
        assert archive.extractfile("a.txt").read() == b"content"
        assert archive.getmember("link").linkname == "/etc/passwd"
        assert archive.getmember("a.txt").uid == 0


def test_names_that_are_long_or_no_text_travel(tmp_path):
    make_context(tmp_path)
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    (deep / "ü").write_text("1")
    with open(os.path.join(os.fsencode(tmp_path), b"\xff"), "w") as file:
        file.write("2")
    context = image_context.read(tmp_path)
    with unpacked(context) as archive:
        names = archive.getnames()
    assert f"{'d' * 120}/{'e' * 120}/ü" in names
    assert len(context.digest) == 16


def test_digest_is_of_the_content_not_of_times_and_owners(tmp_path):
    make_context(tmp_path)
    first = image_context.read(tmp_path).digest
    os.utime(tmp_path / "a.txt", (1, 1))
    assert image_context.read(tmp_path).digest == first
    (tmp_path / "a.txt").write_text("CONTENT")
    second = image_context.read(tmp_path).digest
    (tmp_path / "a.txt").chmod(0o755)
    third = image_context.read(tmp_path).digest
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc/group")
    fourth = image_context.read(tmp_path).digest
    assert len({first, second, third, fourth}) == 4


def test_dockerfile_of_another_name_has_the_same_directory(tmp_path):
    make_context(tmp_path)
    (tmp_path / "Other").write_text("FROM base\n")
    context = image_context.read(tmp_path / "Other")
    assert (context.directory, context.dockerfile) == (tmp_path, "Other")
    assert context.digest != image_context.read(tmp_path).digest


def test_absurd_directory_is_refused_with_its_largest_file(tmp_path):
    make_context(tmp_path)
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(3 * 2**30)  # a hole: takes no space
    with pytest.raises(EnvironmentBuildError) as caught:
        image_context.read(tmp_path)
    assert "3.0 GiB" in str(caught.value)
    assert "huge.bin" in str(caught.value)
    assert ".dockerignore" in caught.value.hint
    (tmp_path / ".dockerignore").write_text("*.bin\n")
    assert image_context.read(tmp_path).size < 1000


def test_file_that_shrinks_while_it_is_sent_is_an_error(tmp_path):
    context = image_context.read(make_context(tmp_path))
    (tmp_path / "a.txt").write_text("c")
    with pytest.raises(EnvironmentBuildError, match="shorter"):
        unpacked(context)


# --- registries ------------------------------------------------------------------------------


def header(reference, directory):
    import base64

    async def ask():
        return await image_auth.header(reference, {"DOCKER_CONFIG": str(directory)})

    found = anyio.run(ask)
    if not found:
        return None
    return json.loads(base64.urlsafe_b64decode(found["X-Registry-Auth"]))


def test_credentials_are_found_under_each_spelling_of_a_registry(tmp_path):
    # "bWU6cHc=" is me:pw
    auths = {
        "https://index.docker.io/v1/": {"auth": "bWU6cHc="},
        "https://quay.example/v2/": {"auth": "bWU6cHc="},
        "token.example": {"identitytoken": "t"},
    }
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    hub = {"username": "me", "password": "pw", "serveraddress": "https://index.docker.io/v1/"}
    assert header("python:3.12", tmp_path) == hub
    assert header("docker.io/library/python", tmp_path) == hub
    assert header("quay.example/team/app:1", tmp_path)["password"] == "pw"
    assert header("token.example/app", tmp_path)["identitytoken"] == "t"
    assert header("other.example/app", tmp_path) is None


def test_without_a_configuration_there_are_no_credentials(tmp_path):
    assert header("python:3.12", tmp_path) is None


def test_broken_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EnvironmentBuildError, match=r"config\.json"):
        header("python:3.12", tmp_path)


def credentials(directory):
    async def ask():
        return await image_auth.all_known({"DOCKER_CONFIG": str(directory)})

    return anyio.run(ask)


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"auths": None, "credHelpers": None, "credsStore": None},
        {"auths": 5, "credHelpers": [1], "credsStore": {"a": 1}},
        {"auths": {"quay.example": None}, "credHelpers": {"quay.example": None}},
        {"auths": {"quay.example": {"username": 5, "password": [], "identitytoken": 1}}},
        {"credHelpers": {"quay.example": 5}},
    ],
)
def test_odd_configuration_has_no_credentials(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert header("quay.example/team/app", tmp_path) is None
    assert credentials(tmp_path) == {}


@pytest.mark.parametrize("auth", [5, "ü", [1], "/w=="])
def test_credentials_that_cannot_be_read_are_an_error(tmp_path, auth):
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"quay.example": {"auth": auth}}}))
    with pytest.raises(EnvironmentBuildError, match=r"unreadable credentials for quay\.example"):
        header("quay.example/team/app", tmp_path)


@pytest.mark.parametrize("said", ["[]", "5", "S3CRET"])
def test_helper_that_answers_something_else_is_named(tmp_path, monkeypatch, said):
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "odd"}))
    helper = tmp_path / "docker-credential-odd"
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{said}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EnvironmentBuildError, match="does not answer as it should") as caught:
        header("quay.example/team/app", tmp_path)
    assert "S3CRET" not in "".join(traceback.format_exception(caught.value))
    helper.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"Username": "<token>"}\'\n')
    assert header("quay.example/team/app", tmp_path)["identitytoken"] == ""


def test_progress_of_a_pull_counts_layers_and_bytes():
    layers = pull.Layers()
    for line in (
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Already exists", "id": "b"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 2**20, "total": 2**22}},
    ):
        layers.take(line)
    assert str(layers) == " (1 of 2 layers, 1.0 of 4.0 MiB)"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("dial tcp: lookup registry on 10.0.0.1: no such host", "docker save"),
        ("pull access denied for x, repository does not exist", "docker login"),
        ("manifest for x:9 not found: manifest unknown", "tag, right?"),
        ("no matching manifest for linux/arm64 in the manifest list", "platform"),
        ("x509: certificate signed by unknown authority", "certs.d"),
    ],
)
def test_error_of_a_pull_says_what_to_do(said, hint):
    error = pull.cannot_pull("x:9", said)
    assert said in error.message
    assert hint in error.hint


# --- words about a failed build --------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("error: no usable wheels", "allow_builds"),
        ("invalid peer certificate: UnknownIssuer", "ca_bundle"),
        ("error sending request for url", "BELLJAR_BUILD_NETWORK=host"),
        ("Because x was not found in the package registry", "spelling"),
        ("No space left on device", "prune"),
    ],
)
def test_what_uv_complains_about_has_a_remedy(line, hint):
    wanted = want(Environment("a", packages=["x @ https://me:secret@example.org/x.whl"]))
    error = explained(Failure("uv: exit status 1", "install", (line,)), wanted)
    assert line in str(error)
    assert hint in error.hint
    assert "secret" not in str(error)


def test_build_that_breaks_off_says_what_was_last_heard():
    error = explained(Failure("the container ended", "ended", ("Killed",)), want())
    assert "the container ended" in str(error)
    assert "Killed" in str(error)
    assert "memory" in error.hint


# --- who builds ------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_what_many_want_is_made_by_one(loop):
    shared, made = image_share.Shared(), []

    async def make():
        made.append(1)
        await anyio.sleep(0.05)
        return len(made)

    async def main():
        results = []

        async def one():
            results.append(await shared.once("k", make))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)
        return results

    assert anyio.run(main, backend=loop) == [1] * 10
    assert anyio.run(main, backend=loop) == [2] * 10, "nothing is kept"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_error_is_for_all_but_a_cancellation_only_for_its_task(loop):
    shared, made = image_share.Shared(), []

    async def hang():
        await anyio.sleep(60)

    async def fail():
        await anyio.sleep(0.05)
        made.append(1)
        raise EnvironmentBuildError("no")

    async def main():
        errors = []

        async def one():
            try:
                await shared.once("k", fail)
            except EnvironmentBuildError as error:
                errors.append(error.message)

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(0.1):
                group.start_soon(one)
                group.start_soon(one)
                await shared.once("k", hang)
        return errors

    assert anyio.run(main, backend=loop) == ["no", "no"]
    assert made == [1]


def container(labels, *, running=False, created="2026-01-01T00:00:00.123456789Z", id="c"):
    return {
        "Id": id,
        "Created": created,
        "Config": {"Labels": labels},
        "State": {"Running": running},
    }


def test_build_container_is_abandoned_only_when_nobody_can_come_back():
    ours = owner.labels("build-k") | {owner.BUILD: "k"}
    assert image.is_abandoned(container(ours))
    image_build.in_use.add("c")
    try:
        assert not image.is_abandoned(container(ours))
    finally:
        image_build.in_use.discard("c")
    dead = ours | {owner.STARTED: "1"}
    assert image.is_abandoned(container(dead, running=True))
    elsewhere = ours | {owner.HOST: "0" * 16 + "." + "0" * 16}
    now = time.time()
    fresh = time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime(now - 5))
    assert not image.is_abandoned(container(elsewhere, created=fresh), now)
    assert image.is_abandoned(container(elsewhere), now)
    assert not image.is_abandoned(container(elsewhere, running=True), now)
    assert not image.is_abandoned(container({}), now), "not ours"


def test_build_container_has_no_environment_variable_of_ours():
    order = Order(wanted=want(), key="k", base={"Id": "x"})
    from belljar.backends.docker.facts import Facts

    body = image_build.created(order, Facts(runtimes=("runc",), default_runtime="runc"))
    assert "Env" not in body
    assert "Runtime" not in body["HostConfig"]
    assert "NetworkMode" not in body["HostConfig"]


# --- which images nobody needs ---------------------------------------------------------------


def listed(name, key, created, *, containers=0, dockerfile=""):
    return image_store.Listed(
        name=name,
        key=key,
        tag=f"belljar/{name}:{key}",
        id=key,
        python="",
        packages=(),
        base="",
        dockerfile=dockerfile,
        created=created,
        size=1,
        containers=containers,
    )


def test_prune_keeps_what_is_used_current_or_newest():
    images = [
        listed("data", "current", 1),
        listed("data", "newer-but-of-another-base", 2),
        listed("data", "used", 0, containers=1),
        listed("geo", "old", 1),
        listed("geo", "new", 2),
        listed("geo", "dockerfile", 0, dockerfile="Dockerfile"),
        listed("gone", "only", 1),
    ]
    found = image_store.superfluous(images, {"data": "current", "gone": "not there"})
    assert {each.key for each in found} == {"newer-but-of-another-base", "old"}
    everything = image_store.superfluous(images, {}, everything=True)
    assert {each.key for each in images} - {each.key for each in everything} == {"used"}


def test_image_is_ours_by_its_labels_and_its_name():
    labels = {"belljar.image": "1", "belljar.key": "k"}
    tags = ["belljar/a:k", "belljar/a:other", "team/app:k", "localhost/belljar/a:k"]
    found = image_key.own_tags({"Labels": labels, "RepoTags": tags})
    assert found == ["belljar/a:k", "localhost/belljar/a:k"]
    assert image_key.own_tags({"Labels": {}, "RepoTags": tags}) == []


# --- the Dockerfile for others ---------------------------------------------------------------


def test_dockerfile_for_others_has_the_packages_and_no_password(tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    packages = ["a>=1", "b @ https://me:secret@example.org/b.whl", str(wheel)]
    text = image_dockerfile.written(want(Environment("x", packages=packages, preload=["a"])))
    assert "ARG BASE=base:1" in text
    assert "'a>=1'" in text
    assert "secret" not in text.replace("type=secret", "").replace("secrets", "").replace(
        "--secret", ""
    )
    assert f"source={wheel.name}" in text
    assert str(tmp_path) not in text
    assert "preload=['a']" in text
    assert "USER 1000:1000" in text


def test_environment_without_packages_has_no_dockerfile():
    with pytest.raises(InvalidOption, match="base:1 is its image"):
        image_dockerfile.written(want(BUILTIN["python"]))


# --- the guide -------------------------------------------------------------------------------


def test_table_of_the_guide_has_each_setting_with_its_default():
    text = (Path(__file__).parent.parent / "docs" / "docker.md").read_text()
    table = text[text.index("| setting |") :].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
    assert rows == {each.name: repr(each.default) for each in dataclasses.fields(Docker)}
