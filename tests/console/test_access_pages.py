"""Tests what the access page does, over HTTP, as the admin of a real secured cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.running import Browserless
from console.secured import Secured, secured_cluster, signed_in
from penstock import Admin
from penstock.errors import AuthenticationFailed

PASSWORD = "a password of carol"
OTHER = "another password of carol"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as found:
        yield found


@pytest.fixture(scope="module")
def admin(secured: Secured) -> Iterator[Browserless]:
    with secured.console() as url:
        yield signed_in(url, "admin", secured.admin_password)


def done(visitor: Browserless, change: str, **body: Any) -> dict[str, Any]:
    answer = visitor.post(f"/api/change/{change}", body)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def refused(visitor: Browserless, change: str, **body: Any) -> str:
    answer = visitor.post(f"/api/change/{change}", body)
    assert 400 <= answer.status < 500, answer.body
    return answer.error


def can_log_in(secured: Secured, user: str, password: str) -> bool:
    try:
        with Admin(secured.bootstrap, **secured.login(user, password)):
            return True
    except AuthenticationFailed:
        return False


def test_users_are_added_changed_and_deleted(admin: Browserless, secured: Secured) -> None:
    done(admin, "user", user="carol", password=PASSWORD, mechanism="SCRAM-SHA-512")
    assert can_log_in(secured, "carol", PASSWORD)
    assert "exists" in refused(admin, "user", user="carol", password=OTHER)
    found = admin.get("/api/access/users?search=CAR").json["users"]
    assert found == [{"user": "carol", "mechanisms": {"SCRAM-SHA-512": 4096}}]
    done(admin, "password", user="carol", password=OTHER)
    assert can_log_in(secured, "carol", OTHER)
    assert not can_log_in(secured, "carol", PASSWORD)
    assert "no user" in refused(admin, "password", user="dave", password=OTHER)
    assert "type the name" in refused(admin, "delete-user", user="carol", typed="caro")
    done(admin, "acl", user="carol", resource="topic:orders", operation="read", permission="allow")
    assert done(admin, "delete-user", user="carol", typed="carol")["rules_left"] == 1
    assert not can_log_in(secured, "carol", OTHER)


def test_access_rules_are_created_found_and_deleted_one_by_one(admin: Browserless) -> None:
    """A rule for a literal name that ends in a star is not taken for a prefix."""
    rule = {"user": "erin", "operation": "write", "permission": "deny"}
    done(admin, "acl", **rule, resource="topic:bills-*")
    done(admin, "acl", **rule, resource="topic:bills-1", host="10.0.0.9")
    assert "never matches" in done(admin, "acl", **rule, resource="topic:x", host="host")["warning"]
    found = admin.get("/api/access/acls?user=erin").json
    assert found["total"] == 3
    applies = admin.get("/api/access/acls?user=erin&resource=topic:bills-1").json["acls"]
    assert {each["resource"] for each in applies} == {"topic:bills-*", "topic:bills-1"}
    prefix = next(each for each in applies if each["pattern_type"] == "prefixed")
    assert done(admin, "delete-acl", acl=prefix) == {"deleted": 1}
    assert done(admin, "delete-acl", acl=prefix) == {"deleted": 0}
    assert admin.get("/api/access/acls?user=erin").json["total"] == 2


def test_rules_that_cannot_be_read_are_refused(admin: Browserless) -> None:
    rule = {"user": "erin", "operation": "read", "permission": "allow", "resource": "topic:t"}
    for field, value in (("operation", "dance"), ("permission", "perhaps"), ("resource", "orders")):
        refused(admin, "acl", **{**rule, field: value})
    refused(admin, "delete-acl", acl={"principal": "User:erin"})
    assert admin.get("/api/access/acls?resource=orders").status == 400


def test_roles_are_defined_granted_revoked_and_deleted(admin: Browserless) -> None:
    done(admin, "role", role="auditor", grants=["topic:__audit=read,describe"])
    done(admin, "grant-role", role="auditor", user="frank")
    done(admin, "grant-role", role="reader", user="frank", resource="topic:orders.*")
    found = admin.get("/api/access/roles").json
    assert {each["role"] for each in found["roles"]} >= {"reader", "admin", "auditor"}
    held = [each for each in found["assignments"] if each["user"] == "frank"]
    assert [(each["role"], each["resource"]) for each in held] == [
        ("auditor", None),
        ("reader", "topic:orders.*"),
    ]
    assert refused(admin, "delete-role", role="auditor")
    for each in held:
        done(admin, "revoke-role", **{**each, "resource": each["resource"] or ""})
    done(admin, "delete-role", role="auditor")
    assert refused(admin, "role", role="bad", grants=["topic"])
    assert refused(admin, "grant-role", role="nobody", user="frank")
    assert admin.get("/api/access/acls?user=frank").json["total"] == 0


def test_a_check_says_by_which_rule(admin: Browserless) -> None:
    done(admin, "grant-role", role="reader", user="grace", resource="topic:orders")
    asked = {"user": "grace", "operation": "read", "resource": "topic:orders"}
    answer = admin.post("/api/read/access", asked).json
    assert answer["allowed"] and answer["roles"] == ["reader"]
    answer = admin.post("/api/read/access", {**asked, "operation": "write"}).json
    assert not answer["allowed"] and answer["reason"]
    assert admin.post("/api/read/access", {**asked, "resource": "orders"}).status == 400


def test_quotas_are_set_listed_and_deleted(admin: Browserless) -> None:
    whose = {"user": "heidi", "client-id": "", "ip": ""}
    done(admin, "quota", entity=whose, key="producer_byte_rate", limit=1_000_000)
    done(admin, "quota", entity={"user": "default"}, key="consumer_byte_rate", limit=5_000)
    found = {each["shown"]: each for each in admin.get("/api/access/quotas").json["quotas"]}
    assert found["user heidi"]["limit"] == 1_000_000
    assert admin.get("/api/access/quotas").json["fair_sharing"] == "fair sharing: on"
    assert found["default user"]["key"] == "consumer_byte_rate"
    for each in found.values():
        done(admin, "delete-quota", entity=each["entity"], key=each["key"])
    assert admin.get("/api/access/quotas").json["total"] == 0
    assert "whose" in refused(admin, "quota", entity={}, key="producer_byte_rate", limit=1)
    assert refused(admin, "quota", entity=whose, key="tea_rate", limit=1)
    assert refused(admin, "quota", entity=whose, key="producer_byte_rate", limit="1")
