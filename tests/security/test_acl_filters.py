"""Which ACLs filters select, and what CreateAcls and DeleteAcls change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security import acl_filters
from penstock.security.acl_filters import (
    CHANGES_MAX,
    AclFilter,
    check_filter,
    create_acls,
    delete_acls,
    describe_acls,
)
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.wire.errors import ErrorCode


def acl(name: str, pattern: PatternType = PatternType.LITERAL, **changed: Any) -> AclBinding:
    basis = AclBinding(
        ResourceType.TOPIC,
        pattern,
        name,
        "User:alice",
        "*",
        AclOperation.READ,
        PermissionType.ALLOW,
    )
    return replace(basis, **changed)


LITERAL = acl("orders")
OTHER = acl("orders-eu")
EVERY = acl("*")
SHORT_PREFIX = acl("ord", PatternType.PREFIXED)
SAME_PREFIX = acl("orders", PatternType.PREFIXED)
LONG_PREFIX = acl("orders-", PatternType.PREFIXED)
GROUP = acl("orders", resource_type=ResourceType.GROUP)
DENY_BOB = acl(
    "orders",
    principal="User:bob",
    host="10.0.0.1",
    operation=AclOperation.ALL,
    permission=PermissionType.DENY,
)
EXISTING = frozenset(
    {LITERAL, OTHER, EVERY, SHORT_PREFIX, SAME_PREFIX, LONG_PREFIX, GROUP, DENY_BOB}
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, EXISTING),
        ({"resource_name": "orders"}, {LITERAL, SAME_PREFIX, GROUP, DENY_BOB}),
        ({"resource_name": "*"}, {EVERY}),
        ({"resource_name": "*", "pattern_type": PatternType.MATCH}, {EVERY}),
        (
            {"resource_name": "orders", "pattern_type": PatternType.LITERAL},
            {LITERAL, GROUP, DENY_BOB},
        ),
        ({"resource_name": "orders", "pattern_type": PatternType.PREFIXED}, {SAME_PREFIX}),
        (
            {"resource_name": "orders", "pattern_type": PatternType.MATCH},
            {LITERAL, EVERY, SHORT_PREFIX, SAME_PREFIX, GROUP, DENY_BOB},
        ),
        ({"pattern_type": PatternType.PREFIXED}, {SHORT_PREFIX, SAME_PREFIX, LONG_PREFIX}),
        ({"pattern_type": PatternType.MATCH}, EXISTING),
        ({"resource_type": ResourceType.GROUP}, {GROUP}),
        ({"principal": "User:bob"}, {DENY_BOB}),
        ({"principal": "User:*"}, set()),
        ({"host": "*"}, EXISTING - {DENY_BOB}),
        ({"host": "::ffff:10.0.0.1"}, {DENY_BOB}),
        ({"operation": AclOperation.ALL}, {DENY_BOB}),
        ({"permission": PermissionType.DENY}, {DENY_BOB}),
        ({"resource_name": ""}, set()),
        ({"resource_name": "Orders"}, set()),
    ],
)
def test_a_filter_selects_as_in_kafka(fields: dict[str, Any], expected: set[AclBinding]) -> None:
    assert describe_acls(EXISTING, AclFilter(**fields)) == sorted(expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": ResourceType(99)},
        {"pattern_type": PatternType(99)},
        {"operation": AclOperation(99)},
        {"permission": PermissionType(99)},
    ],
)
def test_a_filter_with_an_unknown_field_is_refused(fields: dict[str, Any]) -> None:
    """It must not select everything, nor nothing."""
    wanted = AclFilter(**fields)
    with pytest.raises(AclRefused, match="or ANY") as refused:
        check_filter(wanted)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    with pytest.raises(AclRefused):
        describe_acls(EXISTING, wanted)


NAMES = st.sampled_from(["a", "ab", "*", "abc", "b"])
ACLS = st.builds(
    acl,
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:a", "User:*"]),
    host=st.sampled_from(["*", "10.0.0.1"]),
    operation=st.sampled_from([AclOperation.ALL, AclOperation.READ]),
    permission=st.sampled_from([PermissionType.ALLOW, PermissionType.DENY]),
)
FILTERS = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(sorted(PatternType)[1:]),
    st.none() | NAMES,
    st.sampled_from([None, "User:a", "User:*"]),
    st.sampled_from([None, "*", "::ffff:10.0.0.1"]),
    st.sampled_from([AclOperation.ANY, AclOperation.ALL, AclOperation.READ]),
    st.sampled_from([PermissionType.ANY, PermissionType.ALLOW, PermissionType.DENY]),
)


@given(st.frozensets(ACLS, max_size=12), FILTERS)
@settings(max_examples=300, deadline=None)
def test_a_filter_that_names_one_acl_selects_what_a_comparison_with_each_selects(
    existing: frozenset[AclBinding], wanted: AclFilter
) -> None:
    assert describe_acls(existing, wanted) == sorted(filter(wanted.matches, existing))


@given(st.frozensets(ACLS, max_size=12), st.lists(FILTERS, max_size=4))
@settings(max_examples=200, deadline=None)
def test_deleting_removes_exactly_what_the_filters_describe(
    existing: frozenset[AclBinding], filters: list[AclFilter]
) -> None:
    change = delete_acls(existing, filters)
    described = [describe_acls(existing, wanted) for wanted in filters]
    assert [list(result.matching) for result in change.results] == described
    assert change.removed == {each for found in described for each in found}
    assert change.acls == existing - change.removed


def test_creating_has_a_result_for_each_entry() -> None:
    """Duplicates succeed, whether the ACL existed or the request has it twice."""
    change = create_acls(frozenset({LITERAL}), [LITERAL, acl(""), OTHER, OTHER])
    assert [result.code for result in change.results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert "empty" in (change.results[1].message or "")
    assert change.added == {OTHER}
    assert change.acls == {LITERAL, OTHER}


def test_the_same_host_in_another_spelling_is_a_duplicate() -> None:
    change = create_acls(frozenset({acl("a", host="10.0.0.1")}), [acl("a", host="::ffff:10.0.0.1")])
    assert change.added == frozenset()
    assert len(change.acls) == 1


def test_a_filter_selects_an_address_with_and_without_its_zone() -> None:
    local = acl("a", host="fe80::1%eth0")
    for host in ("fe80::1", "fe80::1%eth0", "FE80:0::1%2"):
        assert describe_acls(frozenset({local, LITERAL}), AclFilter(host=host)) == [local]


def test_creating_too_many_acls_creates_none() -> None:
    many = [acl(f"t{number}") for number in range(CHANGES_MAX + 1)]
    change = create_acls(EXISTING, [acl(""), *many])
    assert change.acls == EXISTING
    assert not change.added
    assert len(change.results) == CHANGES_MAX + 2
    assert {result.code for result in change.results} == {ErrorCode.POLICY_VIOLATION}
    assert len(create_acls(EXISTING, many[1:]).added) == CHANGES_MAX


def test_a_bad_filter_is_refused_alone() -> None:
    bad = AclFilter(operation=AclOperation.UNKNOWN)
    change = delete_acls(EXISTING, [bad, AclFilter(principal="User:bob")])
    assert [result.code for result in change.results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert change.acls == EXISTING - {DENY_BOB}


def test_an_acl_that_two_filters_select_is_in_both_results() -> None:
    wanted = AclFilter(principal="User:bob")
    change = delete_acls(EXISTING, [wanted, wanted])
    assert [result.matching for result in change.results] == [(DENY_BOB,), (DENY_BOB,)]


def test_deleting_too_many_acls_deletes_none() -> None:
    """Filters that already selected ACLs get the error too."""
    many = frozenset(acl(f"t{number}") for number in range(CHANGES_MAX)) | {GROUP}
    kinds = (ResourceType.GROUP, ResourceType.TOPIC)
    change = delete_acls(many, [AclFilter(resource_type=kind) for kind in kinds])
    assert change.acls == many
    assert not change.removed
    assert [(result.code, result.matching) for result in change.results] == [
        (ErrorCode.INVALID_REQUEST, ()),
        (ErrorCode.INVALID_REQUEST, ()),
    ]
    assert delete_acls(many, [AclFilter(resource_type=ResourceType.TOPIC)]).acls == {GROUP}


def test_too_many_filters_delete_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that names exactly one ACL does not count: tools delete ACLs one by one."""
    monkeypatch.setattr(acl_filters, "COMPARISONS_MAX", 3 * len(EXISTING))
    wide, exact = AclFilter(principal="User:nobody"), _exact(LITERAL)
    assert delete_acls(EXISTING, [wide] * 3 + [exact] * 100).removed == {LITERAL}
    change = delete_acls(EXISTING, [exact, *[wide] * 4])
    assert change.acls == EXISTING
    assert {result.code for result in change.results} == {ErrorCode.INVALID_REQUEST}
    assert "narrower" in (change.results[0].message or "")


def _exact(binding: AclBinding) -> AclFilter:
    return AclFilter(
        binding.resource_type,
        binding.pattern_type,
        binding.resource_name,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission,
    )
