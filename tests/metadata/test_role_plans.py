"""A change of roles and of the ACLs that they become is one decision."""

from __future__ import annotations

import pytest

from penstock.metadata.acls import (
    COMMIT_PATTERNS_MAX,
    AclsOutdated,
    plan_creation,
    role_book,
    snapshot_of,
)
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import ACL_VERSION_KEY, ROLES_KEY, acl_key
from penstock.metadata.role_plans import plan_roles
from penstock.security.acls import AclOperation, PatternType, ResourcePattern, ResourceType
from penstock.security.role_edits import DefineRole, DeleteRole, GrantRole, RevokeRole
from penstock.security.roles import Grant, Role, RoleAssignment
from penstock.wire.errors import ErrorCode, KafkaError

from .test_acls import acl, carry_out

ORDERS = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "orders")
READER = RoleAssignment("reader", "User:a", ORDERS)
OWN = Role("own", (Grant(ResourceType.TOPIC, frozenset({AclOperation.ALTER})),))


def after(*edits: DefineRole | DeleteRole | GrantRole | RevokeRole) -> ClusterImage:
    image = ClusterImage()
    carry_out(image, plan_roles(snapshot_of(image), edits).decide(image))
    return image


def test_roles_acls_and_version_are_one_decision() -> None:
    image = ClusterImage()
    decision = plan_roles(snapshot_of(image), [GrantRole(READER)]).decide(image)
    keys = {change.key for change in decision.changes}
    assert keys == {acl_key(ORDERS), ROLES_KEY, ACL_VERSION_KEY}


def test_the_edits_of_a_request_see_those_before() -> None:
    assignment = RoleAssignment("own", "User:a", ORDERS)
    image = after(DefineRole(OWN), GrantRole(assignment), RevokeRole(assignment), DeleteRole("own"))
    assert snapshot_of(image).bindings() == frozenset()
    assert role_book(image.stored_roles).custom_roles == {}


def test_a_revoked_role_removes_its_acls_and_empty_keys() -> None:
    image = after(GrantRole(READER))
    assert {each.operation for each in snapshot_of(image).bindings()} == {
        AclOperation.READ,
        AclOperation.DESCRIBE,
    }
    carry_out(image, plan_roles(snapshot_of(image), [RevokeRole(READER)]).decide(image))
    assert snapshot_of(image).bindings() == frozenset()
    assert image.acls == {}


def test_a_change_that_is_too_large_for_one_commit_is_refused() -> None:
    image = ClusterImage()
    edits = [
        GrantRole(
            RoleAssignment(
                "reader",
                "User:a",
                ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, f"t{number}"),
            )
        )
        for number in range(COMMIT_PATTERNS_MAX + 1)
    ]
    with pytest.raises(KafkaError, match="several steps") as refused:
        plan_roles(snapshot_of(image), edits)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert plan_roles(snapshot_of(image), edits[1:]).decide(image).changes


def test_a_plan_is_outdated_once_its_acls_or_the_roles_have_changed() -> None:
    image = ClusterImage()
    plan = plan_roles(snapshot_of(image), [GrantRole(READER)])
    carry_out(image, plan_creation(snapshot_of(image), {0: acl("orders")}).decide(image))
    with pytest.raises(AclsOutdated):
        plan.decide(image)
    plan = plan_roles(snapshot_of(image), [GrantRole(READER)])
    carry_out(image, plan_roles(snapshot_of(image), [DefineRole(OWN)]).decide(image))
    with pytest.raises(AclsOutdated):
        plan.decide(image)
