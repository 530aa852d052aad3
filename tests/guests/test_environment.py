"""Environments: described, built once, shared, removed. All offline but one test."""

from __future__ import annotations

import doctest
import io
import json
import os
import signal
import stat
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.environment import environment, interpreter, requirement
from belljar.environment.environment import Environment, build, remove
from belljar.environment.interpreter import Interpreter
from belljar.environment.store import Store, cache_root, list_built
from belljar.environment.uv import read_pip_files, uv_settings
from belljar.environment.uv_build import BuildProgress
from belljar.errors import EnvironmentBuildError, InvalidOption, SandboxError
from wheels import make_source_distribution, make_wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    directory.mkdir()
    make_wheel(directory, "alpha")
    make_wheel(directory, "beta", "2.5")
    return directory


@pytest.fixture
def cache(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and uv told to know nothing but the wheels of this test."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return tmp_path / "cache" / "envs"


def left_behind(envs: Path) -> list[str]:
    return sorted(path.name for path in envs.iterdir() if path.name != ".locks")


def in_another_process(code: str) -> subprocess.Popen[str]:
    source = Path(environment.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )


# --- the description -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("NumPy", "numpy"),
        ("a_b.c", "a-b-c"),
        ("pandas >= 2 , < 3", "pandas<3,>=2"),
        ("pandas (>=2)", "pandas>=2"),
        ("x[b, A]==1.0.*", "x[a,b]==1.0.*"),
        ("x; python_version  < '3.12'", "x ; python_version < '3.12'"),
        ("x @ https://example.org/x.whl", "x @ https://example.org/x.whl"),
        ("/w/x-1-py3-none-any.whl", "/w/x-1-py3-none-any.whl"),
    ],
)
def test_a_package_has_one_spelling(written, canonical):
    assert requirement.check_package(written) == canonical
    assert requirement.check_package(canonical) == canonical


@pytest.mark.parametrize(
    "package",
    ["", " ", "-e .", "--index-url=http://evil", "-r x.txt", "a b", ".", "./dir", "a\nb", "x=1", 3],
)
def test_what_is_no_package_is_refused(package):
    with pytest.raises(InvalidOption):
        Environment("x", packages=[package])


def test_a_package_that_looks_like_an_option_is_refused_with_the_reason():
    with pytest.raises(InvalidOption, match="would read it as an option"):
        Environment("x", packages=["--extra-index-url=http://evil.example"])


@pytest.mark.parametrize("name", ["", ".x", "a/b", "../x", "a b", "x" * 65, "-x", None])
def test_a_name_that_could_not_be_a_directory_is_refused(name):
    with pytest.raises(InvalidOption):
        Environment(name)


@pytest.mark.parametrize("module", ["", "a..b", "1a", "os; import x", "a-b", None])
def test_preload_takes_module_names_only(module):
    with pytest.raises(InvalidOption):
        Environment("x", preload=[module])


def test_a_string_in_place_of_a_list_is_refused():
    with pytest.raises(InvalidOption):
        Environment("x", packages="numpy")


def test_descriptions_that_mean_the_same_are_equal_and_hashable():
    one = Environment("x", packages=["b>=1", "A"], preload=["os"])
    assert one == Environment("x", packages=("a", "b >= 1"), preload=("os",))
    assert len({one, Environment("x", packages=["a", "b>=1"], preload=["os"])}) == 1


def test_an_unknown_environment_name_gives_the_nearest():
    with pytest.raises(InvalidOption, match="data"):
        environment.resolve("dta")


def test_builtin_environments_are_found_by_name():
    assert environment.resolve("python").packages == ()
    assert "pandas" in environment.resolve("data").packages


def test_documentation_examples_hold():
    for module in (environment, requirement):
        assert doctest.testmod(module).failed == 0


# --- the key ---------------------------------------------------------------------------------


def test_the_key_depends_on_content_and_not_on_name_or_preload(wheels):
    python = interpreter.find_interpreter()
    key = environment.compute_key(Environment("x", packages=["alpha"]), python)
    assert key == environment.compute_key(
        Environment("y", packages=["Alpha"], preload=["os"]), python
    )
    assert key != environment.compute_key(Environment("x", packages=["alpha", "beta"]), python)


def test_the_key_follows_the_content_of_a_local_wheel(wheels):
    wheel = wheels / "alpha-1.0-py3-none-any.whl"
    local = Environment("x", packages=[str(wheel)])
    before = environment.compute_key(local, interpreter.find_interpreter())
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more.py", "")
    assert environment.compute_key(local, interpreter.find_interpreter()) != before


# --- the interpreter -------------------------------------------------------------------------


def test_the_running_interpreter_and_the_same_one_asked_agree():
    own = interpreter.find_interpreter()
    assert interpreter.find_interpreter(own.executable) == own
    assert interpreter.find_interpreter(sys.executable) == own
    assert own.version == sys.version_info[:3]
    assert Path(own.stdlib, "os.py").is_file()


def test_a_python_that_is_none_is_refused():
    with pytest.raises(EnvironmentBuildError, match="no usable Python"):
        interpreter.find_interpreter("/bin/true")
    with pytest.raises(EnvironmentBuildError, match="uv python install"):
        interpreter.find_interpreter("3.99")


def test_a_python_that_is_too_old_is_refused(tmp_path):
    facts = {**interpreter.find_interpreter().__dict__, "version": [3, 8, 1]}
    facts |= {"implementation": "cpython", "system": "linux"}
    fake = tmp_path / "python3.8"
    fake.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
    fake.chmod(0o755)
    with pytest.raises(EnvironmentBuildError, match=r"is Python 3\.8; 3\.9 or newer"):
        interpreter.find_interpreter(str(fake))


def test_the_guest_sees_usr_in_place_and_any_other_prefix_at_opt_python():
    def of(prefix: str) -> Interpreter:
        return Interpreter(
            executable=f"{prefix}/bin/python3.12",
            version=(3, 12, 1),
            prefix=prefix,
            stdlib=f"{prefix}/lib/python3.12",
            shared=False,
            libdir=f"{prefix}/lib",
        )

    assert interpreter.guest_python(of("/usr")) == "/usr/bin/python3.12"
    assert interpreter.guest_python(of("/home/me/py")) == "/opt/python/bin/python3.12"


# --- building --------------------------------------------------------------------------------


def test_a_built_environment_has_the_layout_guests_mount(cache, tmp_path):
    built = build(Environment("demo", packages=["alpha", "beta"]), progress=None)
    assert built.path == cache / f"demo-{built.key}"
    guest = interpreter.guest_python(built.interpreter)
    short = ".".join(map(str, sys.version_info[:2]))
    for name in ("python", "python3", f"python{short}"):
        assert os.readlink(built.path / "bin" / name) == guest
    assert f"home = {os.path.dirname(guest)}\n" in (built.path / "pyvenv.cfg").read_text()
    described = json.loads((built.path / "belljar.json").read_text())
    assert described["distributions"] == {"alpha": "1.0", "beta": "2.5"}
    site = built.path / "lib" / f"python{short}" / "site-packages"
    assert list((site / "__pycache__").glob("alpha.*.pyc"))


def test_console_scripts_run_through_the_guests_python(cache):
    built = build(Environment("demo", packages=["alpha"]), progress=None)
    script = built.path / "bin" / "alpha-tool"
    assert script.read_text().startswith("#!/opt/env/bin/python\n")
    assert script.stat().st_mode & 0o111
    site = next(built.path.glob("lib/python*/site-packages"))
    ran = subprocess.run(
        [sys.executable, script], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert ran.stdout == "alpha 1.0\n"


def test_a_build_path_too_long_for_a_first_line_gives_working_scripts(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / ("long " * 40)))
    built = build(Environment("demo", packages=["alpha"]), progress=None)
    script = (built.path / "bin" / "alpha-tool").read_text()
    assert script.startswith("#!/opt/env/bin/python\n")
    compile(script, "alpha-tool", "exec")
    assert "exec'" not in script


def test_no_file_of_a_built_environment_names_a_place_of_the_host(cache, wheels, tmp_path):
    local = str(wheels / "alpha-1.0-py3-none-any.whl")
    built = build(Environment("demo", packages=[local, "beta"]), progress=None)
    assert json.loads((built.path / "belljar.json").read_text())["distributions"]["alpha"] == "1.0"
    for path in built.path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert str(tmp_path).encode() not in path.read_bytes(), path
            assert built.interpreter.prefix == "/usr" or (
                built.interpreter.prefix.encode() not in path.read_bytes()
            ), path


def test_bytecode_names_the_guests_paths(cache):
    built = build(Environment("demo", packages=["alpha"]), progress=None)
    compiled = next(built.path.rglob("alpha.*.pyc")).read_bytes()
    assert b"/opt/env/lib/python" in compiled


def test_all_files_are_world_readable_under_any_umask(cache):
    before = os.umask(0o077)
    try:
        built = build(Environment("demo", packages=["alpha"]), progress=None)
    finally:
        os.umask(before)
    for path in (built.path, *built.path.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert path.is_symlink() or mode in (0o644, 0o755), (path, oct(mode))
        assert path.is_symlink() or not path.is_dir() or mode == 0o755


def test_a_bare_environment_needs_no_installer(cache, monkeypatch):
    monkeypatch.setattr("belljar.environment.uv_build.find_uv", lambda: pytest.fail("uv was used"))
    assert (build("python", progress=None).path / "pyvenv.cfg").is_file()


def test_what_is_built_is_found_again_fast_and_without_a_subprocess(cache, monkeypatch, capfd):
    demo = Environment("demo", packages=["alpha"])
    first = build(demo, progress=None)
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    took = []
    for _ in range(50):
        started = time.thread_time()
        assert build(demo).path == first.path
        took.append(time.thread_time() - started)
    assert statistics.median(took) < 0.002
    assert capfd.readouterr() == ("", "")


def test_environments_of_the_same_content_share_one_directory(cache):
    one = build(Environment("one", packages=["alpha"]), progress=None)
    two = build(Environment("two", packages=["alpha"]), progress=None)
    assert one.path == two.path


def test_the_callers_project_has_no_say(cache, tmp_path, tmp_path_factory, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "uv.toml").write_text("[pip]\nrequire-hashes = true\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path_factory.mktemp("elsewhere")))
    monkeypatch.setenv("UV_FIND_LINKS", "../wheels")  # relative to the caller all the same
    assert build(Environment("demo", packages=["alpha"]), progress=None).path.is_dir()


# --- failing ---------------------------------------------------------------------------------


def test_a_failed_build_leaves_nothing_and_says_why(cache):
    with pytest.raises(EnvironmentBuildError) as caught:
        build(Environment("demo", packages=["alpha", "no-such-package"]), progress=None)
    assert "no-such-package" in caught.value.message
    assert caught.value.hint is not None
    assert left_behind(cache) == []


def test_source_distributions_are_not_built_unless_allowed(cache, wheels, tmp_path):
    canary = tmp_path / "built-on-the-host"
    make_source_distribution(wheels, "gamma", canary)
    with pytest.raises(EnvironmentBuildError) as caught:
        build(Environment("demo", packages=["gamma"]), progress=None)
    assert "allow_builds=True" in str(caught.value.hint)
    assert not canary.exists()
    source = f"gamma @ {(wheels / 'gamma-1.0.tar.gz').as_uri()}"
    with pytest.raises(EnvironmentBuildError):
        build(Environment("demo", packages=[source]), progress=None)
    assert not canary.exists()
    built = build(Environment("demo", packages=["gamma"], allow_builds=True), progress=None)
    assert canary.exists()
    assert list(built.path.rglob("gamma.py"))


def test_a_missing_wheel_is_said_before_anything_is_built(cache):
    with pytest.raises(EnvironmentBuildError, match="cannot read wheel"):
        build(Environment("demo", packages=["/nowhere/x-1-py3-none-any.whl"]), progress=None)


def test_passwords_of_an_index_are_not_in_the_error(cache, monkeypatch):
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_INDEX_URL", "http://me:hunter2@127.0.0.1:9/simple")
    with pytest.raises(EnvironmentBuildError) as caught:
        build(Environment("demo", packages=["delta"]), progress=None)
    assert "hunter2" not in str(caught.value)
    assert "could not be reached" in str(caught.value.hint)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_directories_above_the_environments_have_their_mode_under_any_umask(
    cache, tmp_path, monkeypatch, umask
):
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "a/b"))
    before = os.umask(umask)
    try:
        build("python", progress=None)
    finally:
        os.umask(before)
    for path in ("a", "a/b", "a/b/envs", "a/b/envs/.locks"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o755, path


def test_a_cache_that_others_can_write_to_is_refused(cache):
    build("python", progress=None)
    cache.chmod(0o777)
    with pytest.raises(EnvironmentBuildError, match="another user can write"):
        build("python", progress=None)


def test_a_cache_that_cannot_be_made_is_a_clear_error(cache, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentBuildError, match="cannot use the cache directory"):
        build("python", progress=None)


# --- several at once, and killed ones --------------------------------------------------------

BUILD_AND_TELL = """
    from belljar.environment import Environment, build
    steps = []
    built = build(Environment("demo", packages=["alpha", "beta"]),
                  progress=lambda news: steps.append(news.step))
    print(built.path, "finished" in steps)
"""


def test_processes_that_want_the_same_environment_build_it_once(cache):
    others = [in_another_process(BUILD_AND_TELL) for _ in range(5)]
    said = [other.communicate(timeout=60) for other in others]
    assert [other.returncode for other in others] == [0] * 5, said
    answers = [out.split() for out, _ in said]
    assert len({path for path, _ in answers}) == 1
    assert sorted(finished for _, finished in answers) == ["False"] * 4 + ["True"]
    assert len(left_behind(cache)) == 1


def test_threads_that_want_the_same_environment_build_it_once(cache):
    steps: list[str] = []
    demo = Environment("demo", packages=["alpha"])
    threads = [
        threading.Thread(
            target=build, args=(demo,), kwargs={"progress": lambda n: steps.append(n.step)}
        )
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps.count("finished") == 1
    assert len(left_behind(cache)) == 1


def test_who_has_to_wait_for_another_build_says_so(cache):
    demo = Environment("demo", packages=["alpha", "beta"])
    key = environment.compute_key(demo, interpreter.find_interpreter())
    with Store.default().building(key, lambda: None):
        other = in_another_process("""
            from belljar.environment import Environment, build
            build(Environment("demo", packages=["alpha", "beta"]))
        """)
        assert other.stderr is not None
        assert "waiting for another process" in other.stderr.readline()
    rest = other.communicate(timeout=60)[1]
    assert other.returncode == 0, rest
    assert "built in" in rest


@pytest.mark.parametrize(
    "step", ["resolving", "downloading", "installing", "compiling", "finished"]
)
def test_a_build_killed_at_any_step_is_swept_by_the_next(cache, step):
    killed = in_another_process(f"""
        import os, signal
        from belljar.environment import Environment, build
        def progress(news):
            if news.step == "{step}":
                os.kill(os.getpid(), signal.SIGKILL)
        build(Environment("demo", packages=["alpha", "beta"]), progress=progress)
    """)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert all(name.startswith(".building-") for name in left_behind(cache)) == (step != "finished")
    built = build(Environment("demo", packages=["alpha", "beta"]), progress=None)
    assert left_behind(cache) == [built.path.name]


def test_leftovers_of_a_killed_build_are_swept_by_the_build_of_another(cache):
    (cache / ".building-0123456789abcdef-x" / "lib").mkdir(parents=True, mode=0o755)
    cache.chmod(0o755)
    built = build(Environment("demo", packages=["alpha"]), progress=None)
    assert left_behind(cache) == [built.path.name]


def test_a_build_in_progress_is_not_swept_by_the_build_of_another(cache):
    store = Store.default()
    with (
        store.building("0123456789abcdef", lambda: None),
        store.scratch("0123456789abcdef") as mine,
    ):
        build(Environment("demo", packages=["alpha"]), progress=None)
        assert mine.is_dir()
    assert not mine.exists()


def test_a_listener_that_raises_stops_the_build_and_leaves_nothing(cache):
    def listener(news: BuildProgress) -> None:
        if news.step == "downloading":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(Environment("demo", packages=["alpha"]), progress=listener)
    assert left_behind(cache) == []
    assert build(Environment("demo", packages=["alpha"]), progress=None).path.is_dir()


# --- what is said ----------------------------------------------------------------------------


def test_a_real_build_says_one_line_at_its_start_and_one_at_its_end(cache, capfd):
    build(Environment("demo", packages=["alpha", "beta"]))
    out, err = capfd.readouterr()
    assert out == ""
    start, end = err.splitlines()
    assert start == "belljar: building environment 'demo' (2 packages), once"
    assert end.startswith("belljar: environment 'demo' built in ")


def test_a_terminal_gets_a_display(cache, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    build(Environment("demo", packages=["alpha"]))
    assert "✓ environment 'demo' built in" in terminal.getvalue()


# --- list and remove -------------------------------------------------------------------------


def test_built_environments_are_listed_the_last_used_first(cache):
    build(Environment("one", packages=["alpha"]), progress=None)
    build(Environment("two", packages=["beta==2.5"]), progress=None)
    build(Environment("one", packages=["alpha"]), progress=None)
    one, two = list_built()
    assert (one.name, two.name) == ("one", "two")
    assert two.packages == ("beta==2.5",)
    assert two.distributions == {"beta": "2.5"}
    assert two.size > 0


def test_an_empty_cache_lists_nothing_and_removes_nothing(cache):
    assert list_built() == []
    assert remove("demo") == 0


def test_removal_is_by_name_or_by_key(cache):
    one = build(Environment("one", packages=["alpha"]), progress=None)
    build(Environment("two", packages=["beta"]), progress=None)
    assert remove(one.key) == 1
    assert remove("two") == 1
    assert left_behind(cache) == []


def test_removal_spares_the_files_of_who_holds_the_environment(cache):
    demo = Environment("demo", packages=["alpha"])
    built = build(demo, progress=None)
    directory = os.open(built.path, os.O_PATH)  # as a mount would, independent of the name
    held = built.hold()
    assert remove("demo") == 1
    assert list_built() == []
    os.stat("belljar.json", dir_fd=directory)
    os.close(held)
    rebuilt = build(demo, progress=None)
    with pytest.raises(FileNotFoundError):
        os.stat("belljar.json", dir_fd=directory)
    os.close(directory)
    assert left_behind(cache) == [rebuilt.path.name]


def test_what_was_removed_cannot_be_held(cache):
    built = build("python", progress=None)
    remove("python")
    with pytest.raises(SandboxError, match="was removed"):
        built.hold()


# --- settings --------------------------------------------------------------------------------


def test_the_cache_is_where_the_variables_say():
    assert cache_root({"BELLJAR_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/belljar")
    assert cache_root({"XDG_CACHE_HOME": "b"}) == Path.home() / ".cache" / "belljar"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"PIP_INDEX_URL": "https://m/simple"}, {"UV_INDEX_URL": "https://m/simple"}),
        (
            {"PIP_EXTRA_INDEX_URL": "https://a https://b"},
            {
                "UV_EXTRA_INDEX_URL": "https://a https://b",
                "UV_INDEX_STRATEGY": "unsafe-first-match",
            },
        ),
        ({"PIP_FIND_LINKS": "/a /b"}, {"UV_FIND_LINKS": "/a,/b"}),
        ({"PIP_CERT": "/ca"}, {"SSL_CERT_FILE": "/ca"}),
        ({"REQUESTS_CA_BUNDLE": "/ca"}, {"SSL_CERT_FILE": "/ca"}),
        ({"PIP_TRUSTED_HOST": "a b"}, {"UV_INSECURE_HOST": "a b"}),
        ({"PIP_PROXY": "http://p"}, {"ALL_PROXY": "http://p"}),
    ],
)
def test_pips_variables_become_uvs(given, expected):
    env, arguments = uv_settings(given)
    assert {name: env[name] for name in env if name not in given} == {"NO_COLOR": "1", **expected}
    assert arguments == []


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({"UV_INDEX_URL": "https://u", "PIP_EXTRA_INDEX_URL": "https://p"}, "UV_EXTRA_INDEX_URL"),
        ({"UV_INDEX": "https://u", "PIP_INDEX_URL": "https://p"}, "UV_INDEX_URL"),
    ],
)
def test_indexes_of_uv_and_pip_are_not_mixed(given, absent):
    env, _ = uv_settings(given)
    assert absent not in env
    assert "UV_INDEX_STRATEGY" not in env


def test_uvs_own_variables_win():
    given = {
        "UV_FIND_LINKS": "/u",
        "PIP_FIND_LINKS": "/p",
        "SSL_CERT_FILE": "/u",
        "PIP_CERT": "/p",
        "UV_NO_INDEX": "0",
        "PIP_NO_INDEX": "1",
    }
    env, arguments = uv_settings(given)
    assert (env["UV_FIND_LINKS"], env["SSL_CERT_FILE"], arguments) == ("/u", "/u", [])


def test_no_index_of_either_tool_is_honoured():
    assert uv_settings({"PIP_NO_INDEX": "true"})[1] == ["--no-index"]
    assert uv_settings({"UV_NO_INDEX": "1"})[1] == ["--no-index"]


def test_uv_gets_no_variable_that_it_does_not_need():
    """It fills in what a requirement names, also one in the metadata of somebody's wheel."""
    given = dict.fromkeys(("OPENAI_API_KEY", "CC", "HTTPS_PROXY", "UV_INDEX", "PATH"), "x")
    assert uv_settings(given)[0].keys() - {"NO_COLOR"} == {"HTTPS_PROXY", "UV_INDEX", "PATH"}
    assert uv_settings(given, allow_builds=True)[0].keys() >= given.keys()
    with pytest.raises(InvalidOption, match="a variable of this host"):
        Environment("a", packages=["x @ http://stranger.example/${OPENAI_API_KEY}/x-1.whl"])


def test_no_password_of_an_address_is_shown():
    given = "x @ https://me:secret@a.example/x.whl?t=1"
    assert requirement.hide_secrets(given) == "x @ https://***@a.example/x.whl?***"


def test_variables_that_would_redirect_the_installation_are_not_inherited():
    names = ("VIRTUAL_ENV", "UV_PYTHON", "PYTHONPATH", "UV_NO_BINARY", "UV_LINK_MODE")
    given = dict.fromkeys(names, "x")
    assert uv_settings(given)[0] == {"NO_COLOR": "1"}


def test_pips_configuration_file_is_read_and_its_variables_win(tmp_path):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://g\nfind-links =\n  /a\n  /b\n[install]\nindex-url = https://i%20\n"
    )
    environ = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)}
    settings = read_pip_files(environ)
    assert settings["index-url"] == "https://i%20"
    assert uv_settings(environ, settings)[0]["UV_FIND_LINKS"] == "/a,/b"
    environ["PIP_INDEX_URL"] = "https://v"
    assert uv_settings(environ, settings)[0]["UV_INDEX_URL"] == "https://v"


def test_pips_configuration_files_do_not_count_when_uv_has_its_own(tmp_path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://g\n")
    (tmp_path / "uv.toml").write_text("")
    environ = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)}
    assert read_pip_files({**environ, "UV_CONFIG_FILE": str(tmp_path / "uv.toml")}) == {}
    assert read_pip_files({**environ, "PIP_CONFIG_FILE": os.devnull}) == {}


def test_a_broken_configuration_file_of_pip_is_named(tmp_path):
    (tmp_path / "pip.conf").write_text("index-url = nothing above me\n")
    with pytest.raises(EnvironmentBuildError, match=r"pip\.conf"):
        read_pip_files({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)})


@pytest.mark.skipif(
    not os.environ.get("BELLJAR_TEST_INDEX"),
    reason="needs a package index; set BELLJAR_TEST_INDEX=1 to use the configured one",
)
def test_a_compiled_package_comes_from_the_configured_index(tmp_path, monkeypatch):
    monkeypatch.setenv("BELLJAR_CACHE", str(tmp_path / "cache"))
    built = build(Environment("demo", packages=["numpy"]), progress=None)
    assert list(built.path.rglob("numpy/__init__.py"))


# --- on top of another ---------------------------------------------------------------------------


def test_what_extends_another_has_all_it_has_and_more():
    base = Environment(
        "base", packages=["alpha>=1"], preload=["json"], warmup="a = 1", python="3.12"
    )
    made = Environment(
        extends=base, packages=["Beta", "alpha"], preload=["decimal", "json"], warmup="b = 2"
    )
    assert made.name == "base-with-beta"
    assert made.packages == ("alpha>=1", "beta")
    assert made.preload == ("json", "decimal")
    assert made.warmup == "a = 1\nb = 2"
    assert made.python == "3.12"
    assert Environment("own", extends=base, python="3.13").python == "3.13"
    assert (
        Environment(extends="data", packages=["x"]).preload == environment.BUILTIN["data"].preload
    )


def test_a_name_is_needed_without_a_base():
    with pytest.raises(InvalidOption, match="needs a name"):
        Environment(packages=["alpha"])


def test_packages_that_are_there_change_nothing():
    data = environment.BUILTIN["data"]
    assert environment.add_packages(data, ["Pandas", "numpy"]) is data
    assert environment.add_packages(data, ["pandas>=2"]).packages == (
        *data.packages[: data.packages.index("pandas") + 1],
        "pandas>=2",
        *data.packages[data.packages.index("pandas") + 1 :],
    )


def test_what_is_added_shares_the_files_of_what_was_there(cache):
    base = build(Environment("base", packages=["alpha"]))
    before = contents(base.path)
    made = build(Environment(extends=base.environment, packages=["beta"]))
    [listing] = [each for each in list_built() if each.key == made.key]
    assert set(listing.distributions) == {"alpha", "beta"}
    assert installed(made, "alpha.py").samefile(installed(base, "alpha.py"))
    assert installed(made, "__pycache__/alpha.cpython-*.pyc").stat().st_nlink == 2
    assert installed(made, "__pycache__/beta.cpython-*.pyc").stat().st_nlink == 1
    assert (made.path / "bin" / "alpha-tool").samefile(base.path / "bin" / "alpha-tool")
    assert (made.path / "bin" / "beta-tool").is_file()
    assert contents(base.path) == before


def test_a_version_that_must_change_does_so_in_the_new_one_only(cache, wheels):
    base = build(Environment("base", packages=["alpha"]))
    before = contents(base.path)
    make_wheel(wheels, "alpha", "0.5")
    made = build(Environment(extends=base.environment, packages=["alpha<1", "beta"]))
    [listing] = [each for each in list_built() if each.key == made.key]
    assert listing.distributions == {"alpha": "0.5", "beta": "2.5"}
    assert "alpha 0.5" in installed(made, "alpha.py").read_text()
    assert b"alpha 0.5" in installed(made, "__pycache__/alpha.cpython-*.pyc").read_bytes()
    assert [path.name for path in installed(made, "").glob("alpha-*")] == ["alpha-0.5.dist-info"]
    assert contents(base.path) == before


def test_a_package_with_the_files_of_another_does_not_write_to_it(cache, wheels):
    base = build(Environment("base", packages=["alpha"]))
    before = contents(base.path)
    hostile = make_wheel(wheels, "gamma")
    with zipfile.ZipFile(hostile, "a") as archive:
        archive.writestr("alpha.py", "evil = True\n")
        archive.writestr("gamma-1.0.data/scripts/alpha-tool", "#!python\nevil\n")
    made = build(Environment(extends=base.environment, packages=["gamma"]))
    assert installed(made, "alpha.py").read_text() == "evil = True\n"
    assert b"evil" in installed(made, "__pycache__/alpha.cpython-*.pyc").read_bytes()
    assert contents(base.path) == before


def installed(built, pattern):
    [packages] = built.path.glob("lib/python*/site-packages")
    return next(packages.glob(pattern)) if pattern else packages


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("packages", "message", "hint"),
    [
        (["no-such-package"], "^there is no package 'no-such-package' in the", "spelling"),
        (["alpha==9"], "^there is no version 'alpha==9' in the package index", "spelling"),
        (
            ["alpha==1.0", "alpha==0.5"],
            "^the packages conflict with each other; ",
            "packages conflict",
        ),
    ],
)
def test_what_cannot_be_installed_is_said_in_plain_words(cache, wheels, packages, message, hint):
    make_wheel(wheels, "alpha", "0.5")
    with pytest.raises(EnvironmentBuildError, match=message) as caught:
        build(Environment("x", packages=packages))
    assert hint in caught.value.hint


def test_saved_names_are_known_wherever_an_environment_is_named(cache):
    saved = Environment("saved", packages=["alpha"])
    environment.save(saved)
    assert environment.resolve("saved") == saved
    assert Environment(extends="saved", packages=["beta"]).packages == ("alpha", "beta")
    assert Sandbox(environment="saved", packages=["beta"]).environment.packages == ("alpha", "beta")
    with pytest.raises(InvalidOption, match="did you mean 'saved'"):
        Sandbox(environment="svaed")


@pytest.mark.parametrize(
    ("conditions", "fits"),
    [
        (">=3.9", True),
        (">=3.9, <3.11", False),
        ("==3.11.*", True),
        ("!=3.11.*", False),
        ("==3.11", False),
        ("==3.11.7", True),
        ("~=3.11", True),
        ("~=3.11.8", False),
        ("~=3.10.2", False),
        (">3.11", True),
        ("<=3.11", False),
    ],
)
def test_conditions_on_python_are_those_of_versions(conditions, fits):
    assert requirement.python_fits((3, 11, 7), conditions) is fits
