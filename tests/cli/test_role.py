"""Tests `penstock role` and `penstock access check` with a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock import Admin
from penstock.security.acls import AclOperation, PatternType, ResourcePattern, ResourceType
from penstock.security.role_edits import DefineRole, GrantRole
from penstock.security.roles import Grant, Role, RoleAssignment
from penstock.testing.broker import Broker

SETTINGS = {
    "authorizer.class.name": "penstock",
    "super.users": "User:ANONYMOUS",
    "audit.enabled": "false",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def cli(penstock: Runner, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "120")
    return penstock


def test_deleting_a_user_says_what_access_remains(cli: Runner, tmp_path: Path) -> None:
    """A new user of this name would have it."""
    (tmp_path / "password").write_text("tea-4711")
    add = ("user", "add", "carol", "--password-file", str(tmp_path / "password"))
    assert cli(*add).code == 0
    assert cli("role", "grant", "reader", "topic:orders.*", "--user", "carol").code == 0
    assert cli("acl", "add", "--user", "carol", "--allow", "write", "topic:bills").code == 0
    deleted = cli("user", "delete", "carol", "--yes")
    assert deleted.code == 0
    assert "penstock role revoke reader 'topic:orders.*' --user carol" in deleted.out
    assert "penstock acl delete topic:bills --user carol" in deleted.out
    assert "carol" in cli("acl", "list").out
    assert cli(*add).code == 0
    removed = cli("user", "delete", "carol", "--with-access", "--yes")
    assert removed.code == 0
    assert "removed: role reader" in removed.out
    assert "carol" not in cli("acl", "list").out
    assert cli("role", "list", "--user", "carol", "--json").json["assignments"] == []
    assert cli("user", "list", "--json").json == {"users": []}


def test_a_role_is_granted_explained_and_revoked(cli: Runner) -> None:
    check = ("access", "check", "alice", "read", "topic:orders.eu")
    refused = cli(*check)
    assert (refused.code, refused.out) == (1, "no: denied: no ACL names the resource\n")
    granted = cli("role", "grant", "reader", "topic:orders.*", "--user", "alice")
    assert (granted.code, granted.out) == (0, "granted reader to alice\n")
    allowed = cli(*check)
    assert allowed.code == 0
    assert allowed.out == (
        "yes: allowed: ALLOW READ on TOPIC names that start with 'orders.' for 'User:alice' from "
        "any host (role reader)\n"
    )
    assert cli(*check, "--json").json["roles"] == ["reader"]
    assert "alice" in cli("acl", "list", "topic:orders.eu").out
    listed = cli("role", "list", "--user", "alice", "--json").json
    assert listed["assignments"] == [
        {"user": "alice", "role": "reader", "resource": "topic:orders.*", "host": "*"}
    ]
    assert cli("role", "revoke", "reader", "topic:orders.*", "--user", "alice").code == 0
    assert cli(*check).code == 1
    again = cli("role", "revoke", "reader", "topic:orders.*", "--user", "alice")
    assert again.code == 1
    assert "does not have the role" in again.err


def test_a_role_of_ones_own_is_created_listed_and_deleted(cli: Runner) -> None:
    made = cli(
        *("role", "create", "watcher", "--grant", "topic:__audit=read,describe"),
        *("--grant", "group=read", "--grant", "topic:app.*=describe"),
    )
    assert made.code == 0, made.err
    shown = cli("role", "list").out
    assert "topic:__audit=read,describe; group=read; topic:app.*=describe" in shown
    assert "reader" in shown
    assert cli("role", "grant", "watcher", "group:watch", "--user", "bob").code == 0
    assert cli("access", "check", "bob", "read", "group:watch").code == 0
    in_use = cli("role", "delete", "watcher", "--yes")
    assert in_use.code == 1
    assert "revoke it first" in in_use.err
    assert cli("role", "revoke", "watcher", "group:watch", "--user", "bob").code == 0
    assert cli("role", "delete", "watcher", "--yes").out == "deleted the role watcher\n"


def test_mistakes_say_what_to_write(cli: Runner) -> None:
    assert "TYPE=OPERATIONS" in cli("role", "create", "r", "--grant", "topic").err
    assert "built in" in cli("role", "create", "reader", "--grant", "topic=read").err
    assert "needs a resource" in cli("role", "grant", "reader", "--user", "alice").err
    assert "there is no role" in cli("role", "grant", "raeder", "topic:t", "--user", "alice").err
    assert "not a prefix" in cli("access", "check", "alice", "read", "topic:o*").err
    assert "no operation" in cli("access", "check", "alice", "red", "topic:o").err


def test_the_admin_client_has_roles(broker: Broker) -> None:
    role = Role("pauser", (Grant(ResourceType.TOPIC, frozenset({AclOperation.ALTER})),))
    orders = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "orders")
    with Admin(broker.bootstrap) as admin:
        admin.alter_roles(
            [DefineRole(role), GrantRole(RoleAssignment("pauser", "User:carol", orders))]
        )
        listing = admin.describe_roles("User:carol")
        assert listing.roles["pauser"] == role
        assert listing.assignments == [RoleAssignment("pauser", "User:carol", orders)]
        assert listing.built_in == {"reader", "writer", "owner", "admin"}
        answer = admin.check_access("User:carol", AclOperation.ALTER, orders)
        assert (answer.allowed, answer.roles) == (True, ("pauser",))
        assert not admin.check_access("User:carol", AclOperation.READ, orders).allowed
