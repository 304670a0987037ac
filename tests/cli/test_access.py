"""Tests `penstock user`, `penstock acl` and `penstock quota`, and the admin client below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Runner
from client.fake_access import FakeAccess
from client.fake_broker import FakeBroker
from penstock import Admin
from penstock.client.errors import OptionError
from penstock.security.acls import AclOperation, PatternType, PermissionType
from penstock.security.scram_credentials import ScramMechanism, password_hash
from penstock.wire.api import ApiKey


@pytest.fixture
def access(fake: FakeBroker) -> FakeAccess:
    made = FakeAccess()
    made.serve(fake)
    return made


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text("tea-4711\n")
    return str(file)


def test_a_user_is_added_with_a_derived_key(
    penstock: Runner, access: FakeAccess, fake: FakeBroker, password: str
) -> None:
    """The password itself is never sent."""
    assert penstock("user", "add", "alice", "--password-file", password).out == "added user alice\n"
    credential = access.users["alice"][ScramMechanism.SHA_512]
    salted = password_hash(ScramMechanism.SHA_512, "tea-4711", credential.salt, 4096).run()
    assert credential.accepts(salted)
    (asked,) = fake.asked(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    assert b"tea-4711" not in bytes(asked.upsertions[0].salted_password)


def test_a_user_that_exists_is_not_added_again(
    penstock: Runner, access: FakeAccess, password: str
) -> None:
    penstock("user", "add", "alice", "--password-file", password)
    again = penstock("user", "add", "alice", "--password-file", password)
    assert again.code == 1
    assert "penstock user passwd" in again.err


def test_a_password_is_changed_for_all_mechanisms(
    penstock: Runner, access: FakeAccess, password: str, tmp_path: Path
) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        penstock("user", "add", "alice", "--mechanism", mechanism, "--password-file", password)
    (tmp_path / "new").write_text("coffee")
    assert penstock("user", "passwd", "alice", "--password-file", str(tmp_path / "new")).code == 0
    for kind, credential in access.users["alice"].items():
        assert credential.accepts(password_hash(kind, "coffee", credential.salt, 4096).run())
    assert penstock("user", "passwd", "bob", "--password-file", password).code == 1


def test_users_are_listed_and_deleted(penstock: Runner, access: FakeAccess, password: str) -> None:
    penstock("user", "add", "alice", "--password-file", password)
    listed = penstock("user", "list", "--json").json
    assert listed == {"users": [{"user": "alice", "mechanisms": {"SCRAM-SHA-512": 4096}}]}
    assert "alice" in penstock("user", "list").out
    assert penstock("user", "delete", "alice", "--yes").code == 0
    assert access.users == {}
    assert penstock("user", "delete", "alice", "--yes").code == 1


def test_deleting_a_user_says_which_rules_remain(
    penstock: Runner, access: FakeAccess, password: str
) -> None:
    """A new user of this name would have them. The fake broker has no roles, as Kafka."""
    add = ("user", "add", "alice", "--password-file", password)
    penstock(*add)
    penstock("acl", "add", "--user", "alice", "--allow", "read,write", "topic:orders")
    penstock("acl", "add", "--user", "bob", "--allow", "read", "topic:orders")
    deleted = penstock("user", "delete", "alice", "--yes")
    assert deleted.out.startswith("deleted user alice\nremaining: ALLOW READ on TOPIC 'orders'")
    assert deleted.out.endswith("\n  penstock acl delete topic:orders --user alice\n")
    assert len(access.acls) == 3
    penstock(*add)
    removed = penstock("user", "delete", "alice", "--with-access", "--yes", "--json").json
    assert removed["deleted"] == "alice"
    assert len(removed["removed"]) == 2
    assert [each.principal for each in access.acls] == ["User:bob"]
    assert access.users == {}


def test_without_a_terminal_a_password_needs_a_file(penstock: Runner, access: FakeAccess) -> None:
    ended = penstock("user", "add", "alice")
    assert ended.code != 0
    assert "--password-file" in ended.err


def test_an_unfit_password_is_refused_without_showing_it(
    penstock: Runner, access: FakeAccess, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text("tea\u00a04711", "utf-8")
    ended = penstock("user", "add", "alice", "--password-file", str(tmp_path / "bad"))
    assert "choose a password without them" in ended.err
    assert "4711" not in ended.err


def test_rules_are_added_listed_and_deleted(penstock: Runner, access: FakeAccess) -> None:
    added = penstock("acl", "add", "--user", "alice", "--allow", "read,describe", "topic:orders")
    assert added.code == 0
    penstock("acl", "add", "--user", "alice", "--deny", "write", "topic:ord*")
    assert len(access.acls) == 3
    listed: list[dict[str, Any]] = penstock("acl", "list", "topic:orders", "--json").json["acls"]
    found = {(acl["pattern_type"], acl["permission"], acl["operation"]) for acl in listed}
    assert found == {
        ("literal", "allow", "read"),
        ("literal", "allow", "describe"),
        ("prefixed", "deny", "write"),
    }
    assert "topic:ord*" in penstock("acl", "list").out
    assert penstock("acl", "delete", "topic:orders", "--user", "alice", "--yes").code == 0
    (left,) = access.acls
    assert (left.pattern_type, left.operation, left.permission) == (
        PatternType.PREFIXED,
        AclOperation.WRITE,
        PermissionType.DENY,
    )


def test_a_host_that_no_client_has_causes_a_warning(penstock: Runner, access: FakeAccess) -> None:
    ended = penstock(
        "acl", "add", "--user", "bob", "--deny", "all", "topic:a", "--host", "db.example"
    )
    assert "never matches a client" in ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topic:a", "--allow", "read"), "--user is missing"),
        (("topic:a", "--user", "a"), "add --allow or --deny"),
        (("orders", "--user", "a", "--allow", "read"), "write TYPE:NAME"),
        (("table:a", "--user", "a", "--allow", "read"), "use one of topic"),
        (("topic:a", "--user", "a", "--allow", "fly"), "use one of all, read"),
    ],
)
def test_a_wrong_rule_is_explained(
    penstock: Runner, access: FakeAccess, arguments: tuple[str, ...], says: str
) -> None:
    ended = penstock("acl", "add", *arguments)
    assert ended.code != 0
    assert says in ended.err


def test_quotas_are_set_listed_and_deleted(penstock: Runner, access: FakeAccess) -> None:
    assert penstock("quota", "set", "--user", "alice", "producer_byte_rate=1024").code == 0
    assert penstock("quota", "set", "--user", "default", "consumer_byte_rate=2048").code == 0
    listed = penstock("quota", "list", "--user", "alice", "--json").json
    assert listed == {
        "quotas": [{"entity": {"user": "alice"}, "limits": {"producer_byte_rate": 1024.0}}],
        "fair_sharing": {},
    }
    shown = penstock("quota", "list").out
    assert "default user" in shown
    assert "fair sharing: unknown" in shown
    assert penstock("quota", "delete", "--user", "alice").code == 0
    assert [str(entity) for entity in access.quotas] == ["default user"]


def test_a_quota_needs_an_owner_and_a_number(penstock: Runner, access: FakeAccess) -> None:
    assert "give --user" in penstock("quota", "set", "producer_byte_rate=1").err
    wrong = penstock("quota", "set", "--user", "a", "producer_byte_rate=fast")
    assert "is not a number" in wrong.err
    both = penstock("quota", "set", "--user", "a", "--ip", "10.0.0.1", "producer_byte_rate=1")
    assert "cannot be combined" in both.err


def test_the_admin_client_refuses_wrong_values_before_it_sends_them(
    fake: FakeBroker, access: FakeAccess
) -> None:
    with Admin(fake.address) as admin:
        for user, mechanism, iterations in (("*", "SCRAM-SHA-256", 4096), ("a", "PLAIN", 4096)):
            with pytest.raises(OptionError):
                admin.upsert_scram_user(user, "tea", mechanism, iterations)
        with pytest.raises(OptionError, match="give 4096 to 16384"):
            admin.upsert_scram_user("a", "tea", iterations=1)
        assert fake.asked(ApiKey.ALTER_USER_SCRAM_CREDENTIALS) == []
