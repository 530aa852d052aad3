"""What a build container is told of package indexes, and what it is not."""

import os
import traceback

import pytest
from test_image_key import want

from belljar.backends.docker.images import index
from belljar.backends.docker.images.build import explain_failure
from belljar.backends.docker.images.build_stream import Failure, Reporter
from belljar.errors import EnvironmentBuildError


def test_only_what_decides_where_packages_come_from_is_handed_in():
    env = {
        "UV_DEFAULT_INDEX": "https://me:pw@mirror.example/simple",
        "UV_INDEX_PRIVATE_PASSWORD": "pw",
        "UV_CACHE_DIR": "/home/me/.cache",
        "HTTPS_PROXY": "http://proxy.example",
        "AWS_SECRET_ACCESS_KEY": "no",
        "HOME": "/home/me",
    }
    handed = index.select_settings(env, ["--no-index"], {})
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
    handed = index.select_settings(env, [], {})
    assert handed.env["UV_EXTRA_INDEX_URL"] == "https://b.example/simple"
    assert handed.env["UV_FIND_LINKS"] == "https://c.example/links"
    [note] = handed.notes
    assert "file:///srv/a" in note
    assert "/srv/wheels" in note


def test_mirror_that_is_left_out_is_not_replaced_by_the_public_index():
    alone = index.select_settings({"UV_INDEX_URL": "file:///srv/simple"}, [], {})
    assert alone.arguments == ["--no-index"]
    env = {
        "UV_INDEX_URL": "file:///srv",
        "UV_EXTRA_INDEX_URL": "https://a.example https://b.example",
    }
    others = index.select_settings(env, [], {})
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
    settings = index.read_uv_files(environ)
    handed = index.select_settings({}, [], settings)
    written = tomllib.loads(handed.files[handed.env["UV_CONFIG_FILE"]].decode())
    assert written == {
        "index-strategy": "unsafe-best-match",
        "index": [{"name": "there", "url": "https://there.example/simple", "default": True}],
    }
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
    handed = index.collect_settings(environ, None)
    assert handed.files[handed.env["NETRC"]] == b"machine mirror.example login me password pw\n"


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
    handed = index.collect_settings(environ, None)
    said = "of-netrc|of-uv-toml|of%20index|of index|of-query|of-token|of-links|of-user|of-proxy"
    said += "|of-password|somebody|mirror.example"
    error = explain_failure(Failure(said, "install", (said,)), want(), handed.secrets)
    shown = "***|" * 10 + "somebody|mirror.example"
    assert str(error).count(shown) == 2
    assert "of-" not in str(error)

    news = []
    for listener, prints in ((news.append, False), (news.append, True)):
        teller = Reporter("a", listener, prints=prints)
        teller.hide(handed.secrets)
        teller.say("resolving", said)
        for note in handed.notes:
            teller.note(note)
    told = "".join(each.text for each in news) + capsys.readouterr().err
    assert "c.example" in told
    assert "of-" not in told


def test_short_passwords_make_no_holes_in_messages():
    assert index.find_secrets(["https://a:b@example.org/?c=d"]) == frozenset()


def test_broken_files_with_passwords_are_named_by_line_only(tmp_path, home):
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine h login me\nmachine h login me S3CRETPW\n")
    netrc.chmod(0o600)
    pip = tmp_path / "pip.conf"
    failures = []
    with pytest.raises(EnvironmentBuildError, match="line 3, or the one above") as caught:
        index.collect_settings(home, None)
    failures.append(caught.value)
    netrc.unlink()
    for text in ("index-url = https://me:S3CRETPW@h\n", "[global]\nS3CRETPW\n"):
        pip.write_text(text)
        with pytest.raises(EnvironmentBuildError, match=r"pip\.conf: line \d cannot") as caught:
            index.collect_settings(home | {"PIP_CONFIG_FILE": str(pip)}, None)
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
        index.collect_settings(home | {"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}, None)


def test_certificates_are_read_on_this_host(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    for variable in ("BELLJAR_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        handed = index.collect_settings({**environ, variable: str(bundle)}, None)
        assert handed.files == {handed.env["SSL_CERT_FILE"]: bundle.read_bytes()}
    bundle.write_text("no certificate")
    with pytest.raises(EnvironmentBuildError, match="no certificate"):
        index.collect_settings(environ, bundle)
    with pytest.raises(EnvironmentBuildError, match="cannot read"):
        index.collect_settings(environ, tmp_path / "nothing")
