"""Tests `penstock up --secure`: a real cluster that accepts only TLS and logins."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from cli.test_live import cluster
from penstock import Admin, Consumer, Producer
from penstock.cli import secure_setup
from penstock.cli.output import CommandFailed
from penstock.errors import AuthenticationFailed, BrokerError, ClientError
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.security.certificates import describe

PASSWORD = "a password of bob"


def options(folder: Path, user: str = "admin", password: str | None = None) -> dict[str, Any]:
    secret = password or (folder / "admin-password").read_text().strip()
    return {
        "security_protocol": "SASL_SSL",
        "ssl_ca": str(folder / "ca.pem"),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": user,
        "sasl_password": secret,
    }


def allow(user: str, operation: AclOperation, kind: ResourceType, name: str) -> AclBinding:
    return AclBinding(
        kind, PatternType.LITERAL, name, f"User:{user}", "*", operation, PermissionType.ALLOW
    )


def send(bootstrap: str, value: bytes, **keywords: Any) -> None:
    with Producer(bootstrap, **keywords) as producer:
        producer.send("orders", value).result(timeout_s=60)


def test_a_secured_cluster_serves_users_by_their_rights(tmp_path: Path) -> None:
    """The admin may do everything, a new user nothing until it gets rights. All is kept for the
    next start."""
    folder = tmp_path / "data" / "security"
    with cluster(tmp_path / "data", "--secure", "--no-console") as (bootstrap, _):
        admin = options(folder)
        send(bootstrap, b"by the admin", **admin)
        with Admin(bootstrap, **admin) as client:
            client.upsert_scram_user("bob", PASSWORD)
        bob = options(folder, "bob", PASSWORD)
        with pytest.raises(BrokerError, match="not allowed"):
            send(bootstrap, b"refused", **bob)
        with pytest.raises(AuthenticationFailed):
            send(bootstrap, b"refused", **options(folder, "bob", "wrong"))
        with Admin(bootstrap, **admin) as client:
            client.create_acls(
                [
                    allow("bob", AclOperation.WRITE, ResourceType.TOPIC, "orders"),
                    allow("bob", AclOperation.READ, ResourceType.TOPIC, "orders"),
                    allow("bob", AclOperation.READ, ResourceType.GROUP, "bills"),
                ]
            )
        send(bootstrap, b"by bob", **bob)
    with cluster(tmp_path / "data", "--secure", "--no-console") as (bootstrap, _):
        with Consumer(bootstrap, group_id="bills", auto_offset_reset="earliest", **bob) as consumer:
            consumer.subscribe(["orders"])
            values: list[bytes | None] = []
            while len(values) < 2:
                values += [record.value for record in consumer.poll(timeout_ms=1_000)]
        assert values == [b"by the admin", b"by bob"]
        with pytest.raises(ClientError):
            send(bootstrap, b"without TLS", max_block_ms=2_000)


def test_the_files_are_made_once_and_only_their_owner_can_read_the_secret_ones(
    tmp_path: Path,
) -> None:
    first = secure_setup.prepare(str(tmp_path), "127.0.0.1")
    before = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    again = secure_setup.prepare(str(tmp_path), "127.0.0.1")
    assert again == first
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == before
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in first.folder.iterdir()}
    assert modes.pop("ca.pem") == 0o644
    assert {*modes.values()} == {0o600}
    assert first.password not in repr(first)
    assert first.password not in secure_setup.snippets(first, "localhost:9092")
    assert first.password in first.properties_path.read_text()


def test_a_folder_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    folder.mkdir()
    folder.chmod(0o755)
    secure_setup.prepare(str(tmp_path), "127.0.0.1")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "security").mkdir()
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(CommandFailed, match="belongs to another user"):
        secure_setup.prepare(str(tmp_path), "127.0.0.1")
    assert not [*(tmp_path / "security").iterdir()]


def test_a_certificate_for_another_host_is_replaced(tmp_path: Path) -> None:
    """The authority stays, so clients need not change."""
    setup = secure_setup.prepare(str(tmp_path), "127.0.0.1")
    authority = setup.authority_path.read_bytes()
    secure_setup.prepare(str(tmp_path), "kafka.example.com")
    assert setup.authority_path.read_bytes() == authority
    names = describe(setup.keystore_path.read_text())[0].names
    assert "kafka.example.com" in names and "localhost" in names


def test_an_empty_password_file_is_an_error(tmp_path: Path) -> None:
    setup = secure_setup.prepare(str(tmp_path), "127.0.0.1")
    setup.password_path.write_text("\n")
    with pytest.raises(CommandFailed, match="is empty"):
        secure_setup.prepare(str(tmp_path), "127.0.0.1")
