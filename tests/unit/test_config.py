"""Configuration: where values come from, which of them holds, and what is said of wrong ones."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import AsyncSandbox, Docker, Environment, InvalidOption, Limits, Mount, config
from belljar.config.schema import schema
from belljar.limits import RULES
from belljar.observe.alerts import Rules
from belljar.observe.setup import enable
from belljar.policy import Policy
from belljar.pool.manager import AsyncSandboxManager


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project's directory, the current one, beside a home without a configuration."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    monkeypatch.chdir(project)

    class Place:
        path = project
        environ = {"HOME": str(home)}  # noqa: RUF012

        def project_file(self, text, suffix="toml"):
            path = project / f"belljar.{suffix}"
            path.write_text(text)
            return path

        def user_file(self, text):
            path = home / ".config/belljar/config.toml"
            path.parent.mkdir(parents=True)
            path.write_text(text)
            return path

        def load(self, path=None, **variables):
            return config.load(path, {**self.environ, **variables})

        def problems(self, text, suffix="toml", **variables):
            self.project_file(text, suffix)
            with pytest.raises(config.ConfigError) as caught:
                self.load(**variables)
            return str(caught.value)

    return Place()


# --- where values come from ------------------------------------------------------------------


def test_without_any_source_everything_is_default(place):
    loaded = place.load()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.sandbox_options() == {}
    assert loaded.manager_options() == {}
    assert loaded["limits.memory"] == Limits().memory


def test_each_source_wins_over_those_below_it(place, tmp_path):
    user = place.user_file("[limits]\nmemory = '1g'\ncpus = 1\nprocesses = 11\ntmp = '1m'\n")
    project = place.project_file("[limits]\nmemory = '2g'\ncpus = 2\nprocesses = 22\n")
    named = tmp_path / "named.toml"
    named.write_text("[limits]\nmemory = '3g'\ncpus = 3\n")
    loaded = place.load(BELLJAR_CONFIG=str(named), BELLJAR_LIMITS_MEMORY="4g")
    expected = {
        "memory": (4 * 2**30, "variable BELLJAR_LIMITS_MEMORY"),
        "cpus": (3.0, f"{named}:3"),
        "processes": (22, f"{project}:4"),
        "tmp": (2**20, f"{user}:5"),
        "output": (Limits().output, "default"),
    }
    for name, (value, source) in expected.items():
        assert (loaded[f"limits.{name}"], loaded.sources[f"limits.{name}"]) == (value, source)
    options = loaded.sandbox_options(limits={"memory": "5g"})
    assert options["limits"].memory == 5 * 2**30
    assert options["limits"].explicit == {"memory", "cpus", "processes", "tmp"}


def test_a_file_that_is_named_in_code_takes_the_place_of_the_variables(place, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.toml").write_text(f"record = '{name}'")
    loaded = place.load(tmp_path / "a.toml", BELLJAR_CONFIG=str(tmp_path / "b.toml"))
    assert loaded["record"] == tmp_path / "a"


def test_xdg_config_home_says_where_the_users_file_is(place, tmp_path):
    (tmp_path / "xdg/belljar").mkdir(parents=True)
    (tmp_path / "xdg/belljar/config.yaml").write_text("backend: native")
    loaded = place.load(XDG_CONFIG_HOME=str(tmp_path / "xdg"))
    assert loaded.sources["backend"] == f"{tmp_path}/xdg/belljar/config.yaml:1"


def test_the_files_of_the_user_and_the_project_can_be_left_out(place):
    place.user_file("backend = 'native'")
    place.project_file("network = 'none'")
    for wanted in ({"user", "project"}, {"user"}, {"project"}, set()):
        flags = {name: name in wanted for name in ("user", "project")}
        loaded = config.load(environ=place.environ, **flags)
        assert (loaded.sources["backend"] != "default") == ("user" in wanted)
        assert (loaded.sources["network"] != "default") == ("project" in wanted)


def test_an_empty_variable_is_as_none(place):
    assert place.load(BELLJAR_BACKEND="", BELLJAR_CONFIG="").sources["backend"] == "default"


def test_yaml_and_toml_say_the_same(place, tmp_path):
    toml, yaml = tmp_path / "a.toml", tmp_path / "a.yaml"
    toml.write_text(
        "network = 'none'\nstrict = true\n[limits]\ntimeout = 'none'\nmemory = '64m'\n"
        "[manager]\nmax_sandboxes = 7\n[env]\nA = 'b'\n"
    )
    yaml.write_text(
        "network: none\nstrict: true\nlimits:\n  timeout: null\n  memory: 64m\n"
        "manager: {max_sandboxes: 7}\nenv:\n  A: b\n"
    )
    one, other = place.load(toml), place.load(yaml)
    assert one.values == other.values
    assert other.sources["limits.memory"] == f"{yaml}:5"
    assert one.manager_options() == {
        "max_sandboxes": 7,
        "network": "none",
        "strict": True,
        "limits": {"timeout": None, "memory": 64 * 2**20},
        "env": {"A": "b"},
    }


def test_the_options_make_a_sandbox(place):
    place.project_file(
        "environment = 'python'\nnoexec = true\nworkdir = '/sandbox'\nbackend = 'native'\n"
        "[limits]\nmemory = '64m'\n[[mounts]]\nhost = '.'\nguest = '/data'\n"
        "[metadata]\nteam = 'a'\n"
    )
    loaded = place.load()
    made = AsyncSandbox(**loaded.sandbox_options())
    assert made.environment.name == "python"
    assert made.limits.explicit == {"memory"}
    assert made.metadata["team"] == "a"
    assert loaded["mounts"] == (Mount(str(place.path), "/data"),)
    AsyncSandboxManager(**loaded.manager_options(max_sandboxes=3))


def test_an_environment_can_be_described_in_place(place):
    place.project_file(
        "[environment]\nname = 'mine'\npackages = ['requests==2.32.3']\npreload = ['json']\n"
    )
    wanted = Environment("mine", packages=["requests==2.32.3"], preload=["json"])
    assert place.load().sandbox_options() == {"environment": wanted}


def test_a_policy_is_a_preset_a_file_or_its_rules(place, tmp_path):
    assert place.load(BELLJAR_POLICY="strict")["policy"] == Policy.preset("strict")
    (tmp_path / "mine.toml").write_text(Policy.preset("permissive").to_toml())
    (tmp_path / "a.toml").write_text("policy = 'mine.toml'")
    assert place.load(tmp_path / "a.toml")["policy"] == Policy.preset("permissive")
    (tmp_path / "b.toml").write_text("[policy]\nname = 'own'\nversion = '1'\n")
    assert place.load(tmp_path / "b.toml").sandbox_options()["policy"].name == "own"
    assert "did you mean 'strict'" in place.problems("policy = 'strct'")
    assert "nowhere.toml" in place.problems("policy = 'nowhere.toml'")


def test_relative_paths_are_those_of_the_file(place, tmp_path):
    below = tmp_path / "deep"
    below.mkdir()
    (below / "a.toml").write_text("record = 'r.jsonl'\n[observe]\naudit = '../audit.jsonl'\n")
    loaded = place.load(below / "a.toml")
    assert loaded["record"] == below / "r.jsonl"
    assert loaded["observe.audit"] == below / "../audit.jsonl"


# --- the backend -----------------------------------------------------------------------------


def test_settings_of_docker_count_when_the_backend_is_docker(place):
    place.project_file("[docker]\nimage = 'python:3.12-slim'\npull = 'never'\n")
    wanted = Docker(image="python:3.12-slim", pull="never")
    assert place.load(BELLJAR_BACKEND="docker").sandbox_options() == {"backend": wanted}
    assert place.load().sandbox_options() == {"backend": wanted}  # as Sandbox(image=...) means it
    assert place.load(BELLJAR_BACKEND="native").sandbox_options() == {"backend": "native"}
    assert place.load().sandbox_options(backend="docker") == {"backend": wanted}
    assert place.load().sandbox_options(backend="native") == {"backend": "native"}


def test_the_variables_of_the_machine_choose_no_backend(place):
    variables = {"BELLJAR_DOCKER_BASE": "base:1", "BELLJAR_DOCKER_RUNTIME": "runsc"}
    assert place.load(**variables).sandbox_options() == {}
    place.project_file("[docker]\nimage = 'python:3.12-slim'\n")
    made = place.load(**variables).sandbox_options()["backend"]
    assert (made.image, made.runtime, made.base) == ("python:3.12-slim", "runsc", None)


def test_settings_that_exclude_each_other_are_said_with_their_places(place):
    said = place.problems("[docker]\nimage = 'a'\nbase = 'b'\n")
    assert "belljar.toml:2" in said
    assert "belljar.toml:3" in said
    assert "base has no meaning together with image" in said


# --- wrong ones ------------------------------------------------------------------------------


def test_an_unknown_key_is_named_with_its_place_and_the_nearest(place):
    said = place.problems("backend = 'native'\n\n[limits]\nmemmory = '1g'\n")
    assert said.startswith(f"{place.path}/belljar.toml:4: limits.memmory: unknown key")
    assert "did you mean 'limits.memory'?" in said


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("memory = '1g'", "limits.memory"),
        ("[limit]\nmemory = '1g'", "limits"),
        ("[docker]\nmax_sandboxes = 3", "manager.max_sandboxes"),
        ("[observe.alert]\ncpu = 1", "observe.alerts"),
        ("enviroment = 'data'", "environment"),
    ],
)
def test_a_key_in_the_wrong_place_is_led_to_the_right_one(place, text, meant):
    assert f"did you mean {meant!r}?" in place.problems(text)


def test_a_misspelt_variable_is_an_error_and_others_of_the_prefix_are_not(place):
    with pytest.raises(config.ConfigError, match="BELLJAR_LIMITS_MEMMORY: unknown variable"):
        place.load(BELLJAR_LIMITS_MEMMORY="1g")
    place.load(BELLJAR_TEST_SETTING="native-root", BELLJAR_SOMETHING="else")


def test_everything_that_is_wrong_is_said_at_once(place):
    said = place.problems(
        "strict = 'perhaps'\nnetwork = 'wide'\nbackend = 3\n[limits]\nmemory = 'much'\ncpus = -1\n"
        "[manager]\nmax_sandboxes = 0\nidle_timeout = 'long'\n[docker]\nimage = 'UPPER'\n"
        "[observe]\nmetrics_port = 70000\ninterval = 0\naudit_code = 'some'\n"
        "[observe.alerts]\nmemory = 'x'\n",
        BELLJAR_LIMITS_TIMEOUT="soon",
    )
    wrong = ["strict", "network", "backend", "limits.memory", "limits.cpus"]
    wrong += ["manager.max_sandboxes", "manager.idle_timeout", "docker.image"]
    wrong += ["observe.metrics_port", "observe.interval", "observe.audit_code"]
    wrong += ["observe.alerts.memory", "limits.timeout"]
    for key in wrong:
        assert f": {key}: " in said
    assert said.count("hint:") <= len(wrong)
    assert len([line for line in said.splitlines() if not line.startswith("  ")]) == len(wrong)


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        ("a = ", "toml", "is not TOML"),
        ("a: [", "yaml", "belljar.yaml:1: is not YAML"),
        ("- a", "yaml", "holds a list"),
        ("limits:\n  cpus: 1\n  cpus: 2", "yaml", "belljar.yaml:3: 'cpus' is there twice"),
        ("1: a", "yaml", "a key is a text"),
        ("limits = 3", "toml", "limits: is a table"),
        ("cache = '/x'", "toml", "set the variable BELLJAR_CACHE"),
        ("mounts = ['a']", "toml", "mounts: is a list of tables"),
        ("[[mounts]]\nhost = '.'\ngust = '/a'", "toml", "did you mean 'guest'"),
        ("[[mounts]]\nhost = 'nowhere'\nguest = '/a'", "toml", "nowhere"),
        ("[env]\nA = 1", "toml", "holds texts only"),
        ("[environment]\nname = 'a'\npackges = []", "toml", "did you mean 'packages'"),
        ("[environment]\nname = 'a'\npackages = 3", "toml", "is not an environment"),
        ("environment = 'dta'", "toml", "did you mean 'data'"),
        ("workdir = '/etc'", "toml", "workdir: "),
        ("backend: !!python/object/apply:os.system [ls]", "yaml", "is not YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(place, text, suffix, words):
    assert words in place.problems(text, suffix)


def test_a_file_that_is_not_there_or_cannot_be_read_is_an_error(place, tmp_path):
    with pytest.raises(config.ConfigError, match="BELLJAR_CONFIG: there is no file"):
        place.load(BELLJAR_CONFIG="nowhere.toml")
    (tmp_path / "a.ini").write_text("")
    with pytest.raises(config.ConfigError, match=r"does not end in \.toml"):
        place.load(tmp_path / "a.ini")
    (tmp_path / "a.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(config.ConfigError, match="is not UTF-8: byte 5"):
        place.load(tmp_path / "a.toml")
    (tmp_path / "big.toml").write_text("#" * 2**21)
    with pytest.raises(config.ConfigError, match="more than"):
        place.load(tmp_path / "big.toml")


def test_two_files_of_one_project_are_an_error(place):
    place.project_file("", "yaml")
    assert "keep one of them" in place.problems("", "toml")


def test_a_file_of_somebody_else_in_the_current_directory_is_not_trusted(place):
    path = place.project_file("network = 'none'")
    path.chmod(0o666)
    with pytest.raises(config.ConfigError, match="another user can write it"):
        place.load()
    assert config.load(path, place.environ, project=False).sources["network"] == f"{path}:1"


def test_a_link_in_the_current_directory_is_not_followed(place, tmp_path):
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text("network = 'none'")
    path = place.project_file("")
    path.unlink()
    path.symlink_to(elsewhere)
    with pytest.raises(config.ConfigError, match="cannot be read"):
        place.load()


def test_yaml_without_its_library_names_the_extra(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install pyyaml" in place.problems("a: 1", "yaml")


# --- variables in texts ----------------------------------------------------------------------


def test_variables_are_put_into_texts_wherever_they_stand(place):
    place.project_file(
        "record = '${LOGS}/r.jsonl'\n[limits]\nmemory = '${MEM:64m}'\ntimeout = '${T:7}'\n"
        "[manager]\nmax_sandboxes = '${N}'\n[env]\nA = '$${B}'\nB = '${LOGS}'\n"
    )
    loaded = place.load(LOGS="/logs", N="3")
    assert str(loaded["record"]) == "/logs/r.jsonl"
    assert loaded["limits.memory"] == 64 * 2**20
    assert loaded["limits.timeout"] == 7.0
    assert loaded["manager.max_sandboxes"] == 3
    assert loaded["env"] == {"A": "${B}", "B": "/logs"}


def test_a_variable_that_is_not_set_is_named_with_the_file_and_the_key(place):
    said = place.problems("record = '${LOGS}/r.jsonl'\n")
    assert said.startswith(f"{place.path}/belljar.toml:1: record: ")
    assert "environment variable LOGS is not set" in said


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A}", "1"),
        ("x${A}y${A}z", "x1y1z"),
        ("${A:2}", "1"),
        ("${B:2}", "2"),
        ("${B:}", ""),
        ("${B:a:b/c}", "a:b/c"),
        ("${EMPTY:2}", ""),
        ("$A {A} $ 5$", "$A {A} $ 5$"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("${RAW}", "${A}"),
    ],
)
def test_substitution(text, result):
    environ = {"A": "1", "EMPTY": "", "RAW": "${A}"}
    assert config.substitute(text, environ) == result


@pytest.mark.parametrize("text", ["${}", "${", "${A", "${1A}", "${A-b}", "${A B}", "${B}", "${ä}"])
def test_what_is_no_variable_is_an_error(text):
    with pytest.raises(config.ConfigError):
        config.substitute(text, {"A": "1"})


@given(st.text())
def test_substitution_gives_a_text_or_a_config_error(text):
    try:
        assert isinstance(config.substitute(text, {}), str)
    except config.ConfigError:
        assert "${" in text


@given(st.text())
def test_a_text_without_variables_stays_as_it_is(text):
    escaped = text.replace("${", "$${") if "$${" not in text else "plain"
    expected = text if "$${" not in text else "plain"
    assert config.substitute(escaped, {}) == expected


# --- the schema ------------------------------------------------------------------------------


def keys(section):
    return {
        each.key.removeprefix(f"{section}.")
        for each in schema().values()
        if each.section == section
    }


def defaults(function, *without):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in without
    }


def test_the_schema_has_every_option_of_limits_docker_manager_and_alerts():
    assert keys("limits") == RULES.keys()
    assert keys("docker") == {field.name for field in fields(Docker)} - {"noexec"}
    assert keys("manager") == defaults(AsyncSandboxManager.__init__, "factory").keys()
    assert keys("observe.alerts") == {field.name for field in fields(Rules)} | {"enabled"}


def test_the_schema_has_every_option_of_a_sandbox_that_is_not_of_one_sandbox_alone():
    options = defaults(AsyncSandbox.__init__)
    of_one = {"functions", "workspace", "session", "limits"}
    of_docker = {"image", "dockerfile", "runtime", "platform", "gpus", "devices"}
    assert options.pop("environment") is None  # data, unless there is an image
    assert AsyncSandbox().environment.name == schema()["environment"].default
    for name in set(options) - of_one - of_docker:
        given, ours = options[name], schema()[name].default
        assert ours == given or (not ours and not given), name


def test_the_schema_has_every_option_of_the_observers():
    options = defaults(enable, "on_alert", "metrics", "alerts")
    for name, default in options.items():
        assert schema()[f"observe.{name}"].default == default


def test_every_default_is_a_value_that_is_allowed(place):
    for setting in schema().values():
        if setting.key not in ("mounts",):
            setting.kind.check(setting.default, place.path)


def test_old_variables_stay_as_they_are():
    variables = {each.variable for each in schema().values()}
    assert variables >= {
        *("BELLJAR_BACKEND", "BELLJAR_DOCKER_RUNTIME", "BELLJAR_DOCKER_BASE"),
        *("BELLJAR_CA_BUNDLE", "BELLJAR_BUILD_NETWORK", "BELLJAR_CACHE", "BELLJAR_STATE"),
    }
    assert len([each for each in schema().values() if each.variable]) == len(variables - {None})


def test_observers_are_told_what_is_configured(place):
    place.project_file(
        "[observe]\naudit = 'a.jsonl'\naudit_code = 'full'\norphans_interval = 'none'\n"
        "[observe.alerts]\nmemory = 0.5\ncpu = 'none'\n"
    )
    with place.load().observe() as watching:
        assert watching.audit.path == place.path / "a.jsonl"
        assert watching.audit._code == "full"
        assert watching.alerts.rules == Rules(memory=0.5, cpu=None)
    with place.load(BELLJAR_OBSERVE_ALERTS_ENABLED="no").observe() as watching:
        assert watching.alerts is None


def test_a_configuration_cannot_be_changed_and_unknown_keys_are_said():
    loaded = config.load(environ={})
    with pytest.raises(TypeError):
        loaded.values["backend"] = "docker"
    with pytest.raises(InvalidOption, match=r"did you mean 'limits\.memory'"):
        loaded["limits.memmory"]


def test_importing_belljar_reads_no_file(tmp_path):
    (tmp_path / "belljar.toml").write_text("this is wrong")
    program = "import belljar, belljar.config; belljar.Sandbox; print(belljar.Sandbox())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "not started" in done.stdout


def test_the_configuration_is_loaded_without_the_engine(tmp_path):
    program = (
        "import json, sys; from belljar import config; config.load(environ={});"
        "print(json.dumps([m for m in ('anyio', 'belljar.sandbox', 'yaml') if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []
