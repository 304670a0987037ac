"""The ACLs that roles become, and what granting and revoking changes."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security import roles
from penstock.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
    check_binding,
)
from penstock.security.authorizer import Authorizer
from penstock.security.roles import (
    ADMIN,
    BUILT_IN_ROLES,
    GRANTS_MAX,
    OWNER,
    READER,
    WRITER,
    Grant,
    Role,
    RoleAssignment,
    RoleBook,
    RoleChange,
    RoleRefused,
    StoredRolesInvalid,
    check_role,
    decode_roles,
    define_role,
    delete_role,
    encode_roles,
    expand,
    grant_role,
    record_created_acls,
    revoke_all_roles,
    revoke_role,
)
from penstock.wire.errors import ErrorCode

ALICE, BOB = "User:alice", "User:bob"
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


def topic(name: str, pattern: PatternType = PatternType.LITERAL) -> ResourcePattern:
    return ResourcePattern(ResourceType.TOPIC, pattern, name)


def prefix(name: str, kind: ResourceType = ResourceType.ANY) -> ResourcePattern:
    return ResourcePattern(kind, PatternType.PREFIXED, name)


def short(acls: list[AclBinding]) -> list[str]:
    """The type, the pattern, the name and the operation of ALLOW ACLs."""
    assert all(acl.permission == PermissionType.ALLOW for acl in acls)
    return [
        f"{acl.resource_type.name} {acl.pattern_type.name} {acl.resource_name} {acl.operation.name}"
        for acl in acls
    ]


def test_the_built_in_roles_become_these_acls() -> None:
    assert short(expand(READER, ALICE, topic("orders"))) == [
        "TOPIC LITERAL orders READ",
        "TOPIC LITERAL orders DESCRIBE",
    ]
    assert short(expand(WRITER, ALICE, prefix("shop."))) == [
        "TOPIC PREFIXED shop. WRITE",
        "TOPIC PREFIXED shop. DESCRIBE",
        "TRANSACTIONAL_ID PREFIXED shop. WRITE",
        "TRANSACTIONAL_ID PREFIXED shop. DESCRIBE",
    ]
    assert short(expand(OWNER, ALICE, prefix("shop."))) == [
        "TOPIC PREFIXED shop. ALL",
        "GROUP PREFIXED shop. ALL",
        "TRANSACTIONAL_ID PREFIXED shop. ALL",
    ]
    assert short(expand(ADMIN, ALICE)) == [
        "TOPIC LITERAL * ALL",
        "GROUP LITERAL * ALL",
        *(
            f"CLUSTER LITERAL {CLUSTER_NAME} {operation}"
            for operation in (
                "CREATE",
                "ALTER",
                "DESCRIBE",
                "DESCRIBE_CONFIGS",
                "ALTER_CONFIGS",
                "IDEMPOTENT_WRITE",
            )
        ),
        "TRANSACTIONAL_ID LITERAL * ALL",
        "DELEGATION_TOKEN LITERAL * ALL",
        "USER LITERAL * ALL",
    ]


def test_an_admin_cannot_act_as_a_broker() -> None:
    subject = Authorizer(expand(ADMIN, ALICE))
    cluster = (ResourceType.CLUSTER, CLUSTER_NAME)
    assert subject.authorize(ALICE, "::1", AclOperation.ALTER, *cluster)
    assert not subject.authorize(ALICE, "::1", AclOperation.CLUSTER_ACTION, *cluster)


def test_expanded_acls_carry_principal_and_host() -> None:
    acls = expand(READER, ALICE, topic("orders"), host="::ffff:10.0.0.1")
    assert {(acl.principal, acl.host) for acl in acls} == {(ALICE, "10.0.0.1")}
    for acl in acls:
        check_binding(acl)


def test_a_grant_with_a_name_is_part_of_every_assignment() -> None:
    role = Role(
        "connector",
        (
            Grant(ResourceType.TOPIC, frozenset({READ})),
            Grant(ResourceType.GROUP, frozenset({READ}), "connect-", PatternType.PREFIXED),
            Grant(ResourceType.CLUSTER, frozenset({DESCRIBE})),
        ),
    )
    check_role(role)
    assert short(expand(role, ALICE, topic("orders"))) == [
        "TOPIC LITERAL orders READ",
        "GROUP PREFIXED connect- READ",
        f"CLUSTER LITERAL {CLUSTER_NAME} DESCRIBE",
    ]


@pytest.mark.parametrize(
    ("role", "resource", "problem"),
    [
        (READER, None, "needs a resource"),
        (ADMIN, topic("orders"), "no grant for the resource type TOPIC"),
        (READER, prefix("x", ResourceType.CLUSTER), "no grant for the resource type CLUSTER"),
        (READER, topic(""), "empty"),
        (READER, topic("x", PatternType.MATCH), "use LITERAL or PREFIXED"),
    ],
)
def test_a_role_that_does_not_fit_its_resource_is_refused(
    role: Role, resource: ResourcePattern | None, problem: str
) -> None:
    with pytest.raises(RoleRefused, match=problem) as refused:
        expand(role, ALICE, resource)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    with pytest.raises(RoleRefused):
        grant_role(RoleBook(), frozenset(), RoleAssignment(role.name, ALICE, resource))


def test_a_principal_without_a_type_gets_no_role() -> None:
    with pytest.raises(RoleRefused, match="User:alice"):
        expand(READER, "alice", topic("orders"))


ANY_TOPIC = Grant(ResourceType.TOPIC, frozenset({READ}))


@pytest.mark.parametrize(
    "role",
    [
        Role("", (ANY_TOPIC,)),
        Role("two words", (ANY_TOPIC,)),
        Role("x\n", (ANY_TOPIC,)),
        Role("x" * 65, (ANY_TOPIC,)),
        Role("reader", (ANY_TOPIC,)),
        Role("x", ()),
        Role("x", (ANY_TOPIC,) * (GRANTS_MAX + 1)),
        Role("x", (Grant(ResourceType.TOPIC, frozenset()),)),
        Role("x", (Grant(ResourceType.ANY, frozenset({READ})),)),
        Role("x", (Grant(ResourceType.TOPIC, frozenset({AclOperation.ANY})),)),
        Role("x", (Grant(ResourceType.TOPIC, frozenset({READ}), ""),)),
        Role("x", (Grant(ResourceType.TOPIC, frozenset({READ}), "a", PatternType.MATCH),)),
    ],
)
def test_invalid_roles_are_refused(role: Role) -> None:
    with pytest.raises(RoleRefused):
        define_role(RoleBook(), frozenset(), role)


class Cluster:
    """A book and the ACLs of a cluster, changed together."""

    def __init__(self, acls: frozenset[AclBinding] = frozenset()) -> None:
        self.book = RoleBook()
        self.acls = acls

    def apply(self, change: RoleChange) -> RoleChange:
        assert change.add.isdisjoint(self.acls)
        assert change.remove <= self.acls
        self.book = change.book
        self.acls = (self.acls | change.add) - change.remove
        return change

    def grant(self, assignment: RoleAssignment) -> RoleChange:
        return self.apply(grant_role(self.book, self.acls, assignment))

    def revoke(self, assignment: RoleAssignment) -> RoleChange:
        return self.apply(revoke_role(self.book, self.acls, assignment))

    def create_by_hand(self, acls: list[AclBinding]) -> None:
        self.book = record_created_acls(self.book, acls)
        self.acls |= frozenset(acls)


READS = RoleAssignment("reader", ALICE, topic("orders"))
WRITES = RoleAssignment("writer", ALICE, topic("orders"))


def test_revoking_a_role_keeps_what_another_role_needs() -> None:
    """Reader and writer both need DESCRIBE."""
    cluster = Cluster()
    cluster.grant(READS)
    cluster.grant(WRITES)
    removed = cluster.revoke(READS).remove
    assert short(sorted(removed)) == ["TOPIC LITERAL orders READ"]
    assert cluster.acls == frozenset(expand(WRITER, ALICE, topic("orders")))
    assert cluster.revoke(WRITES).remove == frozenset(expand(WRITER, ALICE, topic("orders")))
    assert not cluster.acls


def test_another_user_with_the_same_role_does_not_matter() -> None:
    cluster = Cluster()
    cluster.grant(READS)
    cluster.grant(RoleAssignment("reader", BOB, topic("orders")))
    cluster.revoke(READS)
    assert {acl.principal for acl in cluster.acls} == {BOB}


def test_revoking_a_role_keeps_acls_that_were_made_by_hand() -> None:
    read, describe = expand(READER, ALICE, topic("orders"))
    cluster = Cluster(frozenset({read}))
    assert cluster.grant(READS).add == {describe}
    assert cluster.revoke(READS).remove == {describe}
    assert cluster.acls == {read}
    assert not cluster.book.made_by_hand


def test_an_acl_that_is_created_after_the_grant_stays_too() -> None:
    read, _ = expand(READER, ALICE, topic("orders"))
    cluster = Cluster()
    cluster.grant(READS)
    cluster.create_by_hand([read])
    cluster.revoke(READS)
    assert cluster.acls == {read}


def test_an_acl_that_was_deleted_comes_back_only_by_granting_its_role_again() -> None:
    cluster = Cluster()
    cluster.grant(READS)
    cluster.acls = frozenset()
    cluster.grant(RoleAssignment("reader", BOB, topic("orders")))
    cluster.grant(RoleAssignment("reader", ALICE, topic("payments")))
    assert not any(acl.principal == ALICE and acl.resource_name == "orders" for acl in cluster.acls)
    assert cluster.grant(READS).add == frozenset(expand(READER, ALICE, topic("orders")))
    assert cluster.revoke(READS).remove == frozenset(expand(READER, ALICE, topic("orders")))


def test_revoking_what_was_deleted_removes_nothing() -> None:
    cluster = Cluster()
    cluster.grant(READS)
    cluster.acls = frozenset()
    assert cluster.revoke(READS) == RoleChange(RoleBook())


def test_an_unknown_role_or_assignment_is_refused() -> None:
    cluster = Cluster()
    cluster.grant(READS)
    for wrong in (WRITES, RoleAssignment("reader", BOB, topic("orders"))):
        with pytest.raises(RoleRefused, match="list the roles"):
            cluster.revoke(wrong)
    with pytest.raises(RoleRefused, match="create it first"):
        cluster.grant(RoleAssignment("nothing", ALICE, topic("orders")))


def test_an_assignment_can_be_revoked_with_another_spelling_of_its_host() -> None:
    cluster = Cluster()
    cluster.grant(RoleAssignment("reader", ALICE, topic("orders"), "::ffff:10.0.0.1"))
    cluster.revoke(RoleAssignment("reader", ALICE, topic("orders"), "10.0.0.1"))
    assert not cluster.acls


def test_all_roles_of_a_user_go_at_once() -> None:
    cluster = Cluster()
    cluster.grant(READS)
    cluster.grant(WRITES)
    cluster.grant(RoleAssignment("admin", BOB))
    cluster.apply(revoke_all_roles(cluster.book, cluster.acls, ALICE))
    assert {acl.principal for acl in cluster.acls} == {BOB}
    assert cluster.book.assignments_of(ALICE) == frozenset()
    change = revoke_all_roles(cluster.book, cluster.acls, "User:nobody")
    assert change == RoleChange(cluster.book)


def custom(*operations: AclOperation) -> Role:
    return Role("custom", (Grant(ResourceType.TOPIC, frozenset(operations)),))


def test_changing_a_role_changes_the_acls_of_its_users() -> None:
    cluster = Cluster()
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ, WRITE)))
    cluster.grant(RoleAssignment("custom", ALICE, topic("orders")))
    cluster.grant(READS)
    change = define_role(cluster.book, cluster.acls, custom(DESCRIBE, AclOperation.ALTER))
    assert short(sorted(change.add)) == ["TOPIC LITERAL orders ALTER"]
    assert short(sorted(change.remove)) == ["TOPIC LITERAL orders WRITE"]


def test_changing_a_role_keeps_acls_that_were_made_by_hand() -> None:
    read, write = expand(custom(READ, WRITE), ALICE, topic("orders"))
    cluster = Cluster(frozenset({write}))
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ)))
    cluster.grant(RoleAssignment("custom", ALICE, topic("orders")))
    change = cluster.apply(define_role(cluster.book, cluster.acls, custom(READ, WRITE)))
    assert not change.add
    assert change.book.made_by_hand == {write}
    change = cluster.apply(define_role(cluster.book, cluster.acls, custom(DESCRIBE)))
    assert change.remove == {read}
    assert not change.book.made_by_hand


def test_a_role_cannot_change_so_that_an_assignment_no_longer_fits() -> None:
    cluster = Cluster()
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ)))
    cluster.grant(RoleAssignment("custom", ALICE, topic("orders")))
    group_role = Role("custom", (Grant(ResourceType.GROUP, frozenset({READ})),))
    with pytest.raises(RoleRefused, match="no grant for the resource type TOPIC"):
        define_role(cluster.book, cluster.acls, group_role)


def test_only_a_custom_role_without_assignments_can_be_deleted() -> None:
    cluster = Cluster()
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ)))
    assignment = RoleAssignment("custom", ALICE, topic("orders"))
    cluster.grant(assignment)
    with pytest.raises(RoleRefused, match="revoke it first"):
        delete_role(cluster.book, "custom")
    cluster.revoke(assignment)
    assert delete_role(cluster.book, "custom") == RoleBook()
    for name in (*BUILT_IN_ROLES, "nothing"):
        with pytest.raises(RoleRefused):
            delete_role(cluster.book, name)


def test_the_number_of_roles_and_assignments_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "ROLES_MAX", 1)
    monkeypatch.setattr(roles, "ASSIGNMENTS_MAX", 1)
    cluster = Cluster()
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ)))
    cluster.apply(define_role(cluster.book, cluster.acls, custom(WRITE)))
    cluster.grant(READS)
    cluster.grant(READS)
    with pytest.raises(RoleRefused) as refused:
        define_role(cluster.book, cluster.acls, Role("second", (ANY_TOPIC,)))
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    with pytest.raises(RoleRefused) as refused:
        cluster.grant(WRITES)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION


def test_a_change_of_a_role_is_limited_in_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added and what is removed count together."""
    monkeypatch.setattr(roles, "CHANGES_MAX", 3)
    cluster = Cluster()
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ)))
    for principal in (ALICE, BOB):
        cluster.grant(RoleAssignment("custom", principal, topic("orders")))
    for wanted in ((READ, WRITE, DESCRIBE), (WRITE,)):
        with pytest.raises(RoleRefused, match="revoke the role from some principals") as refused:
            define_role(cluster.book, cluster.acls, custom(*wanted))
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ, WRITE)))
    monkeypatch.setattr(roles, "CHANGES_MAX", 1)
    with pytest.raises(RoleRefused):
        define_role(cluster.book, cluster.acls, custom(READ))


def test_a_change_that_is_too_large_is_refused_before_all_its_acls_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roles, "CHANGES_MAX", 10)
    users = [f"User:{number}" for number in range(100)]
    made = frozenset(RoleAssignment("custom", user, topic("orders")) for user in users)
    book = RoleBook({"custom": custom(READ)}, made)
    counted = Mock(wraps=expand)
    monkeypatch.setattr(roles, "expand", counted)
    with pytest.raises(RoleRefused):
        define_role(book, frozenset(), custom(READ, WRITE))
    assert counted.call_count <= 22


def test_revoking_all_roles_is_limited_in_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roles are then revoked one by one: no single one is too large."""
    monkeypatch.setattr(roles, "CHANGES_MAX", 2)
    cluster = Cluster()
    cluster.grant(READS)
    cluster.grant(WRITES)
    with pytest.raises(RoleRefused, match="one by one") as refused:
        revoke_all_roles(cluster.book, cluster.acls, ALICE)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    cluster.revoke(READS)
    cluster.apply(revoke_all_roles(cluster.book, cluster.acls, ALICE))
    assert not cluster.acls


RESOURCES = st.sampled_from([topic("a"), topic("b"), prefix("a"), prefix("a", ResourceType.TOPIC)])
ASSIGNMENTS = st.builds(
    RoleAssignment,
    st.sampled_from(["reader", "writer", "owner", "custom"]),
    st.sampled_from([ALICE, BOB]),
    RESOURCES,
)
HAND_MADE = ASSIGNMENTS.filter(lambda each: each.role != "custom").map(RoleBook().acls_of)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), ASSIGNMENTS),
        st.tuples(st.just("revoke"), st.integers(0, 10)),
        st.tuples(st.just("create"), HAND_MADE),
        st.tuples(st.just("define"), st.sets(st.sampled_from([READ, WRITE, DESCRIBE]), min_size=1)),
    ),
    max_size=15,
)


@given(HAND_MADE, STEPS)
@settings(max_examples=200, deadline=None)
def test_the_acls_are_those_made_by_hand_and_those_that_assignments_need(
    first: list[AclBinding], steps: list[tuple[str, Any]]
) -> None:
    """After any sequence of changes; the book survives being stored after each."""
    by_hand = set(first)
    cluster = Cluster(frozenset(first))
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ)))
    for step, value in steps:
        if step == "grant":
            cluster.grant(value)
        elif step == "create":
            cluster.create_by_hand(value)
            by_hand.update(value)
        elif step == "define":
            cluster.apply(define_role(cluster.book, cluster.acls, custom(*value)))
        elif cluster.book.assignments:
            choices = sorted(cluster.book.assignments, key=repr)
            cluster.revoke(choices[value % len(choices)])
        assert cluster.acls == by_hand | cluster.book.needed(cluster.book.assignments)
        text = encode_roles(cluster.book)
        cluster.book = decode_roles(text)
        assert encode_roles(cluster.book) == text


def test_the_stored_form_of_a_book_is_read_back() -> None:
    cluster = Cluster(frozenset(expand(READER, ALICE, topic("orders"))))
    cluster.apply(define_role(cluster.book, cluster.acls, custom(READ, WRITE)))
    cluster.grant(READS)
    cluster.grant(RoleAssignment("admin", BOB, host="10.0.0.1"))
    assert cluster.book.made_by_hand
    assert decode_roles(encode_roles(cluster.book)) == cluster.book
    assert decode_roles(encode_roles(RoleBook()).encode()) == RoleBook()


GOOD: dict[str, Any] = {"version": 1, "roles": {}, "assignments": [], "made_by_hand": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "3",
        b"\xff",
        "[" * 100_000,
        json.dumps({**GOOD, "version": 2}),
        json.dumps({**GOOD, "roles": []}),
        json.dumps({**GOOD, "roles": {"x": []}}),
        json.dumps({**GOOD, "roles": {"reader": [["TOPIC", ["READ"], "LITERAL", None]]}}),
        json.dumps({**GOOD, "roles": {"x": [["TOPIC", "READ", "LITERAL", None]]}}),
        json.dumps({**GOOD, "roles": {"x": [["TOPIC", ["FLY"], "LITERAL", None]]}}),
        json.dumps({**GOOD, "roles": {"x": [["TOPIC", ["READ"], "LITERAL", 3]]}}),
        json.dumps({**GOOD, "roles": {"x": [["TOPIC", ["READ"]]]}}),
        json.dumps({**GOOD, "assignments": [["gone", ALICE, "*", "TOPIC", "LITERAL", "a"]]}),
        json.dumps({**GOOD, "assignments": [["reader", ALICE, "*"]]}),
        json.dumps({**GOOD, "assignments": [["reader", ALICE]]}),
        json.dumps({**GOOD, "assignments": [["admin", ALICE, 5]]}),
        json.dumps({**GOOD, "assignments": [None]}),
        json.dumps({**GOOD, "made_by_hand": [["TOPIC"]]}),
    ],
)
def test_stored_roles_that_cannot_be_read_raise_one_error(text: str | bytes) -> None:
    with pytest.raises(StoredRolesInvalid):
        decode_roles(text)
