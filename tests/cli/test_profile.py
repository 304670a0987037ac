"""Tests profiles: `penstock profile`, `--profile`, and `from_profile` of the clients."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Runner
from client.fake_broker import FakeBroker
from client.fake_sasl import FakeSasl
from penstock import Admin, Consumer, Producer, aio
from penstock.client import profiles
from penstock.client.errors import OptionError
from penstock.client.options import AdminOptions


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("PENSTOCK_BOOTSTRAP", "PENSTOCK_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "penstock"


@pytest.fixture
def secured() -> Iterator[FakeBroker]:
    with FakeBroker(sasl=FakeSasl()) as fake:
        fake.model.add_topic("a")
        yield fake


def values(**more: Any) -> dict[str, Any]:
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "alice"}
    return {"security_protocol": "SASL_PLAINTEXT", **login, **more}


def test_every_way_to_name_a_profile(
    penstock: Runner, secured: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option anywhere, the environment, and the profile in use."""
    profiles.save("prod", secured.address, values(sasl_password="tea"))
    for arguments in (
        ("topic", "list", "--profile", "prod"),
        ("--profile", "prod", "topic", "list"),
        ("topic", "list", "--profile=prod"),
    ):
        ended = penstock(*arguments)
        assert ended.code == 0, ended.err
        assert "a" in ended.out
    assert penstock("profile", "use", "prod").code == 0
    assert penstock("topic", "list").code == 0
    assert penstock("profile", "use", "--none").code == 0
    monkeypatch.setenv("PENSTOCK_PROFILE", "prod")
    assert penstock("topic", "list").code == 0
    assert set(secured.sasl.logins if secured.sasl else ()) == {"alice"}


def test_an_address_comes_before_a_profile(
    penstock: Runner, secured: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles.save("prod", secured.address, values(sasl_password="tea"))
    profiles.use("prod")
    with FakeBroker() as other:
        other.model.add_topic("b")
        assert "b" in penstock("topic", "list", "-b", other.address).out
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP", other.address)
        assert "b" in penstock("topic", "list").out
        both = penstock("topic", "list", "-b", other.address, "--profile", "prod")
    assert "use --profile or --bootstrap, not both" in both.err


def test_a_command_that_connects_to_nothing_refuses_a_profile(penstock: Runner) -> None:
    """But a profile in use does not disturb it."""
    profiles.save("prod", "localhost:1", {})
    profiles.use("prod")
    assert penstock("profile", "list", "--profile", "prod").code != 0
    assert penstock("profile", "list").code == 0
    assert "needs the name" in penstock("topic", "list", "--profile").err


def test_a_profile_is_created_shown_and_deleted(
    penstock: Runner, home: Path, tmp_path: Path
) -> None:
    """Only its owner can read it, and a secret is not shown."""
    password = tmp_path / "password"
    password.write_text("tea-4711\n")
    ca = tmp_path / "ca.pem"
    ended = penstock(
        *("profile", "create", "prod", "--bootstrap", "kafka1:9093", "--tls", "--ca", str(ca)),
        *("--sasl", "scram-sha-512", "--user", "alice", "--password-file", str(password)),
    )
    assert ended.code == 0, ended.err
    path = home / "profiles" / "prod.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert penstock("profile", "show", "prod", "--json").json == {
        "profile": "prod",
        "bootstrap": "kafka1:9093",
        "security_protocol": "SASL_SSL",
        "ssl_ca": str(ca),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "alice",
        "sasl_password_file": str(password),
    }
    assert "kafka1:9093" in penstock("profile", "list").out
    assert penstock("profile", "delete", "prod", "--yes").code == 0
    assert penstock("profile", "list", "--json").json == {"profiles": []}
    assert penstock("profile", "delete", "prod", "--yes").code != 0


def test_a_password_in_a_profile_is_not_shown(penstock: Runner) -> None:
    profiles.save("prod", "kafka1:9093", values(sasl_password="tea-4711"))
    for arguments in (("show", "prod"), ("show", "prod", "--json"), ("list",)):
        ended = penstock("profile", *arguments)
        assert "tea-4711" not in ended.out + ended.err
    assert "tea-4711" not in repr(profiles.load("prod"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ca", "ca.pem"), "add --tls"),
        (("--user", "alice"), "add --sasl"),
        (("--sasl", "plain"), "add --user"),
        (("--sasl", "gssapi", "--user", "a", "--password-env", "P"), "give one of"),
    ],
)
def test_what_does_not_fit_is_refused(
    penstock: Runner, arguments: tuple[str, ...], says: str
) -> None:
    ended = penstock("profile", "create", "prod", "--bootstrap", "kafka1:9093", *arguments)
    assert says in ended.err
    assert profiles.names() == []


def test_a_secret_that_others_can_read_is_refused(home: Path, tmp_path: Path) -> None:
    """In the profile, or in the file that it names. A profile without a secret may be shared."""
    path = profiles.save("prod", "kafka1:9093", values(sasl_password="tea-4711"))
    path.chmod(0o640)
    with pytest.raises(OptionError, match="chmod 600") as refused:
        Admin.from_profile("prod")
    assert "tea-4711" not in str(refused.value)
    password = tmp_path / "pass word"
    password.write_text("tea-4711")
    password.chmod(0o644)
    profiles.save("file", "kafka1:9093", values(sasl_password_file=str(password)))
    with pytest.raises(OptionError, match=r"other users may read .*chmod 600 '.*pass word'$"):
        Admin.from_profile("file")
    profiles.save("plain", "kafka1:9093", {}).chmod(0o644)
    Admin.from_profile("plain")


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles.save("prod", "kafka1:9093", values(sasl_password_env="KAFKA_PASSWORD"))
    with pytest.raises(OptionError, match="KAFKA_PASSWORD is not set"):
        Admin.from_profile("prod")
    monkeypatch.setenv("KAFKA_PASSWORD", "tea")
    assert AdminOptions.parse("profile:prod", {}).sasl_password == "tea"


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin, aio.Producer, aio.Consumer, aio.Admin])
def test_every_client_is_made_from_a_profile(kind: Any) -> None:
    """Options given to it replace those of the profile."""
    profiles.save("prod", "kafka1:9093", values(sasl_password="tea"))
    client = kind.from_profile("prod", sasl_username="bob", client_id="x")
    assert isinstance(client, kind)


def test_options_replace_those_of_the_profile() -> None:
    profiles.save("prod", "kafka1:9093", values(sasl_password="tea"))
    made = AdminOptions.parse("profile:prod", {"sasl_username": "bob"})
    assert (made.sasl_username, made.sasl_password) == ("bob", "tea")
    assert [str(address) for address in made.bootstrap] == ["kafka1:9093"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be the name of a profile"):
        profiles.load(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "needs an address"),
        ("bootstrap = 'profile:other'", "needs an address"),
        ("bootstrap = 'a:1'\nlinger_ms = 5", "unknown key 'linger_ms'"),
        ("sasl_password = 'tea-4711", "not valid TOML"),
    ],
)
def test_a_damaged_profile_is_refused_without_showing_it(home: Path, text: str, says: str) -> None:
    path = profiles.save("prod", "a:1", {})
    path.write_text(text)
    with pytest.raises(OptionError, match=says) as refused:
        profiles.load("prod")
    assert "tea-4711" not in str(refused.value)


def test_what_is_written_is_read_again() -> None:
    """Quotes, backslashes and control characters too."""
    odd = 'a"b\\c\td\x7fe\u00e9'
    profiles.save("prod", "a:1", {"sasl_username": odd, "ssl_check_hostname": False})
    assert dict(profiles.load("prod").values) == {
        "sasl_username": odd,
        "ssl_check_hostname": False,
    }
