"""The directory of a Dockerfile: what of it goes to the engine."""

import io
import os
import random
import re
import tarfile
import time

import anyio
import pytest

from belljar import Docker
from belljar.backends.docker.images import context as image_context
from belljar.backends.docker.images import dockerfile
from belljar.backends.docker.settings import check_image
from belljar.errors import EnvironmentBuildError


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
    rules = image_context.IgnorePatterns(patterns)
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
    rules = image_context.IgnorePatterns([pattern])
    assert not rules.ignores(name)
    assert rules.ignores(name + ending)


def test_both_ways_to_match_a_pattern_agree():
    chance = random.Random(1)
    pieces = ["a", "b", "/", "*", "**", "**/", "?", "[ab]"]
    for _ in range(3000):
        rule = image_context.IgnoreRule("".join(chance.choices(pieces, k=chance.randint(1, 7))))
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
    found, _ = anyio.run(dockerfile.plan_dockerfile, Docker(dockerfile=directory))
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
    context = image_context.read_context(make_context(tmp_path))
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
    context = image_context.read_context(tmp_path)
    with unpacked(context) as archive:
        names = archive.getnames()
    assert f"{'d' * 120}/{'e' * 120}/ü" in names
    assert len(context.digest) == 16


def test_digest_is_of_the_content_not_of_times_and_owners(tmp_path):
    make_context(tmp_path)
    first = image_context.read_context(tmp_path).digest
    os.utime(tmp_path / "a.txt", (1, 1))
    assert image_context.read_context(tmp_path).digest == first
    (tmp_path / "a.txt").write_text("CONTENT")
    second = image_context.read_context(tmp_path).digest
    (tmp_path / "a.txt").chmod(0o755)
    third = image_context.read_context(tmp_path).digest
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc/group")
    fourth = image_context.read_context(tmp_path).digest
    assert len({first, second, third, fourth}) == 4


def test_dockerfile_of_another_name_has_the_same_directory(tmp_path):
    make_context(tmp_path)
    (tmp_path / "Other").write_text("FROM base\n")
    context = image_context.read_context(tmp_path / "Other")
    assert (context.directory, context.dockerfile) == (tmp_path, "Other")
    assert context.digest != image_context.read_context(tmp_path).digest


def test_absurd_directory_is_refused_with_its_largest_file(tmp_path):
    make_context(tmp_path)
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(3 * 2**30)  # a hole: takes no space
    with pytest.raises(EnvironmentBuildError) as caught:
        image_context.read_context(tmp_path)
    assert "3.0 GiB" in str(caught.value)
    assert "huge.bin" in str(caught.value)
    assert ".dockerignore" in caught.value.hint
    (tmp_path / ".dockerignore").write_text("*.bin\n")
    assert image_context.read_context(tmp_path).size < 1000


def shrink(path):
    path.write_text("c")


def overwrite(path):
    path.write_text("CONTENT")


def lead_elsewhere(path):
    path.unlink()
    path.symlink_to("/etc/passwd")


def replace_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by_a_twin(path):
    twin = path.with_name("twin")
    twin.write_text(path.read_text())
    os.utime(twin, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.rename(twin, path)


def vanish(path):
    path.unlink()


CHANGES = [shrink, overwrite, lead_elsewhere, replace_by_a_pipe, replace_by_a_twin, vanish]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_what_was_looked_at_is_not_sent(tmp_path, change):
    context = image_context.read_context(make_context(tmp_path))
    change(tmp_path / "a.txt")
    with pytest.raises(EnvironmentBuildError, match=r"cannot read .*/a\.txt: ") as caught:
        unpacked(context)
    assert ".dockerignore" in caught.value.hint


def test_a_directory_that_becomes_a_link_is_not_followed(tmp_path):
    make_context(tmp_path)
    secrets = tmp_path.parent / f"{tmp_path.name}-secrets"
    for directory in (tmp_path / "sub", secrets):
        directory.mkdir()
        (directory / "key").write_text("0123456789")
    context = image_context.read_context(tmp_path)
    os.rename(tmp_path / "sub", tmp_path / "moved")
    (tmp_path / "sub").symlink_to(secrets)
    with pytest.raises(EnvironmentBuildError, match="sub/key"):
        unpacked(context)


def test_a_file_that_is_changed_while_it_is_sent_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(image_context, "CHUNK", 4)
    context = image_context.read_context(make_context(tmp_path))

    async def send():
        async for piece in image_context.archive(context):
            if piece == b"cont":
                with open(tmp_path / "a.txt", "a") as file:
                    file.write("and more")

    with pytest.raises(EnvironmentBuildError, match=r"a\.txt: it was changed in the meantime"):
        anyio.run(send)


def test_other_content_with_the_same_time_and_size_has_another_digest(tmp_path):
    make_context(tmp_path)
    path = tmp_path / "a.txt"
    before, first = path.stat(), image_context.read_context(tmp_path).digest
    # Two changes within one tick of the kernel's clock have one time.
    wait_for_the_clock(tmp_path, before.st_ctime_ns)
    with open(path, "r+") as file:
        file.write("CONTENT")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert image_context.read_context(tmp_path).digest != first


def wait_for_the_clock(directory, since):
    probe = directory.parent / f"{directory.name}-probe"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        probe.write_text("")
        if probe.stat().st_ctime_ns > since:
            return
    pytest.fail("the clock of the files stands still")
