"""Which engine is used: options, variables, contexts and sockets, without an engine."""

import hashlib
import json
import os

import pytest

from belljar import BackendUnavailable, InvalidOption
from belljar.backends.docker.client import connect, endpoint
from belljar.backends.docker.client.endpoint import Endpoint, Tls, find_endpoint


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without contexts, on a machine without sockets."""
    monkeypatch.setattr(endpoint, "SYSTEM_SOCKET", str(tmp_path / "var/docker.sock"))
    monkeypatch.setattr(endpoint, "SYSTEM_PODMAN", str(tmp_path / "run/podman.sock"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def environ(home):
    return {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run")}


def make_socket(path):
    """Any file will do: nothing is connected to it, and a socket's path must be short."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").close()
    return str(path)


def make_context(config, name, docker, *files):
    identity = hashlib.sha256(name.encode()).hexdigest()
    meta = config / "contexts/meta" / identity
    meta.mkdir(parents=True)
    text = {"Name": name, "Metadata": {}, "Endpoints": {"docker": docker}}
    (meta / "meta.json").write_text(json.dumps(text))
    tls = config / "contexts/tls" / identity / "docker"
    for file in files:
        tls.mkdir(parents=True, exist_ok=True)
        (tls / file).write_text("")
    return tls


# --- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("unix:///run/x.sock", "unix", "/run/x.sock"),
        ("/run/x.sock", "unix", "/run/x.sock"),
        ("unix:///run/with space.sock", "unix", "/run/with space.sock"),
        ("tcp://10.0.0.1", "tcp", "10.0.0.1:2375"),
        ("tcp://10.0.0.1:99/", "tcp", "10.0.0.1:99"),
        ("http://build.example:80", "tcp", "build.example:80"),
        ("TCP://[::1]:2375", "tcp", "[::1]:2375"),
        ("https://build.example", "tcp", "build.example:2376"),
        ("ssh://host", "ssh", "host"),
        ("ssh://Me.User@Host:2222/", "ssh", "Me.User@Host:2222"),
        (
            "ssh://me@[fe80::1%eth0]:22/run/user/1/x.sock",
            "ssh",
            "me@[fe80::1%eth0]:22/run/user/1/x.sock",
        ),
    ],
)
def test_an_address_is_understood_as_docker_writes_it(text, kind, address, environ):
    found = find_endpoint(text, environ)
    assert (found.kind, found.address) == (kind, address)
    assert str(found) == f"{kind}://{address}"


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "unix://relative.sock",
        "unix://",
        "unix:///a\0b",
        "npipe:////./pipe/docker_engine",
        "fd://3",
        "tcp://",
        "tcp://host:99999",
        "tcp://user@host:2375",
        "tcp://host:2375/prefix",
        "tcp://host:port",
        "tcp://ho st",
        "ssh://",
        "ssh://-oProxyCommand=id",
        "ssh://-oProxyCommand=id@host",
        "ssh://me:secret@host",
        "ssh://host:0x16",
        "ssh://host:70000",
        "ssh://host\n-oProxyCommand=id",
        "ssh://host/run/a\nb",
        "ssh://ho;st",
        "ssh://$(id)",
        "x" * 100_000,
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(text, environ):
    with pytest.raises(InvalidOption, match="not the address of an engine") as caught:
        find_endpoint(text, environ)
    assert "ssh://" in caught.value.hint
    assert len(str(caught.value)) < 500


def test_the_option_comes_before_variables_and_these_before_contexts(home, environ):
    make_context(home / ".docker", "far", {"Host": "tcp://far:1"})
    environ["CONTAINER_HOST"] = "tcp://podman:1"
    assert find_endpoint(None, environ).address == "podman:1"
    environ["DOCKER_CONTEXT"] = "far"
    assert find_endpoint(None, environ).address == "far:1"
    environ["DOCKER_HOST"] = "tcp://variable:1"
    assert find_endpoint(None, environ) == Endpoint(
        kind="tcp", address="variable:1", source="DOCKER_HOST"
    )
    assert find_endpoint("tcp://option:1", environ).address == "option:1"


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/mine.sock")
    assert find_endpoint().address == "/run/mine.sock"


# --- sockets ---------------------------------------------------------------------------------


def test_sockets_are_tried_in_order(home, environ):
    found = []
    for path in [
        endpoint.SYSTEM_PODMAN,
        home / "run/podman/podman.sock",
        home / ".docker/run/docker.sock",
        home / "run/docker.sock",
        endpoint.SYSTEM_SOCKET,
    ]:
        made = make_socket(path)
        found.append(find_endpoint(None, environ))
        assert found[-1] == Endpoint(kind="unix", address=made, source="default socket")
    assert len(set(found)) == 5


def test_a_socket_that_we_may_not_use_gives_way_to_one_that_we_may(home, environ, monkeypatch):
    make_socket(endpoint.SYSTEM_SOCKET)
    allowed = []
    monkeypatch.setattr(os, "access", lambda path, mode: path in allowed)
    assert find_endpoint(None, environ).address == endpoint.SYSTEM_SOCKET  # it will say why
    allowed.append(make_socket(home / "run/docker.sock"))
    assert find_endpoint(None, environ).address == allowed[0]


def test_without_any_engine_the_error_says_what_to_do(environ):
    with pytest.raises(BackendUnavailable, match="no container engine") as caught:
        find_endpoint(None, environ)
    assert "DOCKER_HOST" in caught.value.hint


# --- contexts --------------------------------------------------------------------------------


def test_the_context_in_use_is_honoured(home, environ):
    make_context(home / ".docker", "rootless", {"Host": "unix:///run/user/7/docker.sock"})
    (home / ".docker/config.json").write_text('{"currentContext": "rootless"}')
    found = find_endpoint(None, environ)
    assert (str(found), found.source) == (
        "unix:///run/user/7/docker.sock",
        "context 'rootless'",
    )


def test_docker_config_names_another_directory(tmp_path, environ):
    environ["DOCKER_CONFIG"] = str(tmp_path / "elsewhere")
    make_context(tmp_path / "elsewhere", "a", {"Host": "ssh://me@a"})
    environ["DOCKER_CONTEXT"] = "a"
    assert str(find_endpoint(None, environ)) == "ssh://me@a"


def test_a_context_has_its_own_certificates_and_no_others(home, environ):
    environ |= {"DOCKER_CONTEXT": "secure", "DOCKER_TLS_VERIFY": "1"}
    tls = make_context(
        home / ".docker", "secure", {"Host": "tcp://a"}, "ca.pem", "cert.pem", "key.pem"
    )
    found = find_endpoint(None, environ)
    assert found.address == "a:2376"
    assert found.tls == Tls(ca=f"{tls}/ca.pem", cert=f"{tls}/cert.pem", key=f"{tls}/key.pem")


def test_a_context_may_skip_verification(home, environ):
    environ["DOCKER_CONTEXT"] = "lax"
    make_context(home / ".docker", "lax", {"Host": "tcp://a", "SkipTLSVerify": True}, "ca.pem")
    assert find_endpoint(None, environ).tls.verify is False


def test_the_default_context_means_none(home, environ):
    environ["DOCKER_CONTEXT"] = "default"
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text('{"currentContext": "default"}')
    environ["CONTAINER_HOST"] = "tcp://podman:1"
    assert find_endpoint(None, environ).address == "podman:1"


def test_a_context_that_is_not_there_is_an_error_and_no_other_engine(home, environ):
    make_socket(endpoint.SYSTEM_SOCKET)
    environ["DOCKER_CONTEXT"] = "../../../etc"
    with pytest.raises(BackendUnavailable, match="no Docker context") as caught:
        find_endpoint(None, environ)
    assert "DOCKER_CONTEXT" in caught.value.hint


@pytest.mark.parametrize("docker", [None, [], {}, {"Host": 7}, {"Host": ""}])
def test_a_context_without_an_address_is_an_error(docker, home, environ):
    make_context(home / ".docker", "odd", docker)
    environ["DOCKER_CONTEXT"] = "odd"
    with pytest.raises(BackendUnavailable, match="names no engine"):
        find_endpoint(None, environ)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_a_broken_configuration_is_named(text, home, environ):
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(text, encoding="latin-1")
    with pytest.raises(BackendUnavailable, match=r"config\.json is not valid JSON"):
        find_endpoint(None, environ)


@pytest.mark.parametrize("text", ["[]", "{}", '{"currentContext": 7}', '{"currentContext": ""}'])
def test_a_configuration_without_a_context_changes_nothing(text, home, environ):
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(text)
    environ["CONTAINER_HOST"] = "tcp://podman:1"
    assert find_endpoint(None, environ).address == "podman:1"


# --- TLS -------------------------------------------------------------------------------------


def test_docker_tls_verify_takes_the_files_of_the_home(home, environ):
    (home / ".docker").mkdir()
    (home / ".docker/ca.pem").write_text("")
    environ |= {"DOCKER_HOST": "tcp://a", "DOCKER_TLS_VERIFY": "1"}
    found = find_endpoint(None, environ)
    assert found.address == "a:2376"
    assert found.tls == Tls(ca=str(home / ".docker/ca.pem"))


def test_a_certificate_path_alone_means_verified_tls(tmp_path, environ):
    (tmp_path / "ca.pem").write_text("")
    environ |= {"DOCKER_HOST": "tcp://a:1", "DOCKER_CERT_PATH": str(tmp_path)}
    assert find_endpoint(None, environ).tls == Tls(ca=str(tmp_path / "ca.pem"), verify=True)


def test_docker_tls_alone_does_not_verify(environ):
    environ |= {"DOCKER_HOST": "tcp://a:1", "DOCKER_TLS": "1"}
    assert find_endpoint(None, environ).tls == Tls(verify=False)


def test_a_certificate_path_without_certificates_is_refused(tmp_path, environ):
    environ |= {"DOCKER_HOST": "tcp://a:1", "DOCKER_CERT_PATH": str(tmp_path)}
    with pytest.raises(InvalidOption, match=r"none of ca\.pem"):
        find_endpoint(None, environ)
    (tmp_path / "cert.pem").write_text("")
    with pytest.raises(InvalidOption, match="only one of"):
        find_endpoint(None, environ)


def test_tls_variables_do_not_concern_a_unix_socket(environ):
    environ |= {"DOCKER_HOST": "unix:///x", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/no"}
    assert find_endpoint(None, environ).tls is None


# --- ssh -------------------------------------------------------------------------------------


def test_ssh_is_called_so_that_the_address_can_be_nothing_but_an_address():
    called = connect.ssh_command("me@host:2222")
    assert called[0] == "ssh"
    assert called[called.index("-l") + 1] == "me"
    assert called[called.index("-p") + 1] == "2222"
    assert called[called.index("--") + 1 :] == ["host", "docker system dial-stdio"]
    assert "BatchMode=yes" in called  # it never asks


def test_a_path_in_an_ssh_address_is_quoted_for_the_shell_there():
    called = connect.ssh_command("host/run/a $(id).sock")
    assert called[-1] == "docker --host 'unix:///run/a $(id).sock' system dial-stdio"


@pytest.mark.parametrize("address", ["-oProxyCommand=id", "-x@host", "", "ho st"])
def test_an_ssh_address_that_was_made_by_hand_is_checked_too(address):
    with pytest.raises(InvalidOption):
        connect.ssh_command(address)
