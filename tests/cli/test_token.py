"""`penstock token` and clients with delegation tokens, on a real cluster of two brokers."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Runner
from cli.test_live import cluster
from cli.test_secure import allow, options, send
from penstock import Admin
from penstock.client.times import parse_duration_ms
from penstock.errors import AuthenticationFailed, BrokerError
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode

PASSWORD = "a password of bob"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A cluster with the user bob, who may write to `orders`."""
    data = tmp_path_factory.mktemp("tokens")
    folder = data / "security"
    with cluster(data, "--secure", "--no-console", "--brokers", "2") as (bootstrap, _):
        with Admin(bootstrap, **options(folder)) as admin:
            admin.create_topic("orders", partitions=4, replication_factor=2)
            admin.upsert_scram_user("bob", PASSWORD)
            rule = allow("bob", AclOperation.WRITE, ResourceType.TOPIC, "orders")
            assert admin.create_acls([rule]) == {rule: None}
        yield bootstrap, folder


def with_token(folder: Path, token_id: str, hmac: str) -> dict[str, Any]:
    return {**options(folder, token_id, hmac), "sasl_tokenauth": True}


def code_of(error: pytest.ExceptionInfo[BrokerError]) -> int:
    return error.value.code


def test_a_program_works_with_a_token_until_it_is_removed(secured: tuple[str, Path]) -> None:
    """As a Spark job does: the driver gets a token, and the executors log in with it."""
    bootstrap, folder = secured
    with Admin(bootstrap, **options(folder, "bob", PASSWORD)) as admin:
        token = admin.create_delegation_token(renewers=["carol"], max_lifetime_ms=HOUR_MS)
        assert (token.owner, token.requester, token.renewers) == ("bob", "bob", ("carol",))
        assert token.max_ms - token.issued_ms == HOUR_MS
        assert token.hmac not in repr(token)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            login = with_token(folder, token.token_id, token.hmac) | {"sasl_mechanism": mechanism}
            send(bootstrap, b"by a job", **login)
        with Admin(bootstrap, **login) as job, pytest.raises(BrokerError) as error:
            job.create_delegation_token()
        assert code_of(error) == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert admin.describe_delegation_tokens() == [token]
        assert admin.describe_delegation_tokens(["carol"]) == [token]
        assert admin.describe_delegation_tokens(["nobody"]) == []
        assert admin.renew_delegation_token(token.hmac, 60_000) < token.expires_ms
        admin.expire_delegation_token(token.hmac)
        with pytest.raises(AuthenticationFailed):
            send(bootstrap, b"refused", **login)
        with pytest.raises(BrokerError) as error:
            admin.renew_delegation_token(token.hmac)
        assert code_of(error) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        with pytest.raises(BrokerError) as error:
            admin.create_delegation_token("admin")
        assert code_of(error) == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def test_tokens_are_made_listed_renewed_and_expired(
    secured: tuple[str, Path],
    penstock: Runner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap, folder = secured
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    place = ("--bootstrap", bootstrap, "--tls", "--ca", str(folder / "ca.pem"))
    login = ("--sasl", "scram-sha-512", "--user", "admin")
    password = ("--password-file", str(folder / "admin-password"))
    assert penstock("profile", "create", "prod", *place, *login, *password).code == 0
    file = tmp_path / "job-token"
    create = ("token", "create", "--owner", "bob", "--renewer", "admin", "--lifetime", "2h")
    made = penstock(*create, "--hmac-file", str(file), "--profile", "prod")
    assert made.code == 0, made.err
    hmac = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert hmac and hmac not in made.out
    again = penstock(*create, "--hmac-file", str(file), "--profile", "prod")
    assert again.code != 0 and "exists" in again.err
    listed = penstock("token", "list", "--json", "--profile", "prod")
    (token,) = listed.json["tokens"]
    assert (token["owner"], token["requester"]) == ("bob", "admin")
    assert token["max_ms"] - token["issued_ms"] == 2 * HOUR_MS
    assert hmac not in listed.out
    token_id = token["token_id"]
    assert token_id in penstock("token", "list", "--profile", "prod").out
    job = ("--sasl", "scram-sha-512", "--user", token_id, "--password-file", str(file))
    assert penstock("profile", "create", "job", *place, *job, "--tokenauth").code == 0
    assert penstock("topic", "list", "--profile", "job").code == 0
    renewed = penstock("token", "renew", token_id, "--for", "1h", "--json", "--profile", "prod")
    assert renewed.json["expires_ms"] < token["max_ms"]
    assert penstock("token", "renew", "another", "--profile", "prod").code == 1
    wrong = penstock("token", "renew", token_id, "--for", "soon", "--profile", "prod")
    assert wrong.code != 0 and "not a duration" in wrong.err
    ended = penstock("token", "expire", token_id, "--yes", "--profile", "prod")
    assert ended.code == 0 and ended.out.startswith(f"expired token {token_id}")
    assert penstock("topic", "list", "--profile", "job").code != 0
    assert penstock("token", "list", "--json", "--profile", "prod").json == {"tokens": []}
    shown = penstock("token", "create", "--json", "--profile", "prod").json
    with Admin(bootstrap, **with_token(folder, shown["token_id"], shown["hmac"])) as admin:
        assert admin.describe_cluster().brokers


@pytest.mark.parametrize(("text", "expected_ms"), [("10m", 600_000), ("1d", 86_400_000)])
def test_a_duration_is_a_number_with_a_unit(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "10", "0s", "-1h", "m", "9999999999d", "1h ago"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)
