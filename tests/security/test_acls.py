"""The fields of ACLs, which ACLs are refused, and their stored form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.acls import (
    ALL_BITS,
    ANONYMOUS,
    CLUSTER_NAME,
    OPERATIONS_NOT_REQUESTED,
    SINGLE_OPERATIONS,
    SUPPORTED_BITS,
    TEXT_LENGTH_MAX,
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    StoredAclInvalid,
    allowed_bits,
    check_binding,
    decode_acls,
    denied_bits,
    encode_acls,
    host_warning,
    normalized_host,
    operation_bits,
    parse_principal,
    user_principal,
)
from penstock.wire.errors import ErrorCode

READ_ORDERS = AclBinding(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:alice",
    "*",
    AclOperation.READ,
    PermissionType.ALLOW,
)

ACLS = st.builds(
    AclBinding,
    st.sampled_from([each for each in ResourceType if each > 1 and each != ResourceType.CLUSTER]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.text(min_size=1),
    st.text().map(user_principal),
    st.one_of(st.just("*"), st.ip_addresses().map(str), st.text()),
    st.sampled_from([AclOperation.ALL, *SINGLE_OPERATIONS]),
    st.sampled_from([PermissionType.ALLOW, PermissionType.DENY]),
)


def test_the_numbers_are_those_of_kafka() -> None:
    assert [each.name for each in sorted(ResourceType)][2:] == [
        "TOPIC",
        "GROUP",
        "CLUSTER",
        "TRANSACTIONAL_ID",
        "DELEGATION_TOKEN",
        "USER",
    ]
    assert (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED) == (
        1,
        2,
        3,
        4,
    )
    assert (PermissionType.DENY, PermissionType.ALLOW) == (2, 3)
    assert [each.name for each in sorted(AclOperation)][2:] == [
        "ALL",
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
        "CREATE_TOKENS",
        "DESCRIBE_TOKENS",
        "TWO_PHASE_COMMIT",
    ]


@pytest.mark.parametrize("kind", [ResourceType, PatternType, AclOperation, PermissionType])
def test_a_number_that_kafka_does_not_know_reads_as_unknown(kind: Any) -> None:
    assert [kind(number) for number in (0, -1, 16, 127, -128)] == [kind.UNKNOWN] * 5


def test_the_bit_fields_of_all_operations_are_those_of_kafka() -> None:
    assert SUPPORTED_BITS[ResourceType.TOPIC] == 3576
    assert SUPPORTED_BITS[ResourceType.GROUP] == 3400
    assert SUPPORTED_BITS[ResourceType.CLUSTER] == 8096
    assert OPERATIONS_NOT_REQUESTED == -2147483648
    assert operation_bits([]) == 0
    assert operation_bits(SINGLE_OPERATIONS) == ALL_BITS == 0xFFF8


def test_an_allow_implies_describe_and_a_deny_implies_nothing() -> None:
    implied = {
        operation: allowed_bits(operation) & ~(1 << operation) for operation in SINGLE_OPERATIONS
    }
    describe, describe_configs = 1 << AclOperation.DESCRIBE, 1 << AclOperation.DESCRIBE_CONFIGS
    assert {operation: bits for operation, bits in implied.items() if bits} == {
        AclOperation.READ: describe,
        AclOperation.WRITE: describe,
        AclOperation.DELETE: describe,
        AclOperation.ALTER: describe,
        AclOperation.ALTER_CONFIGS: describe_configs,
    }
    assert all(denied_bits(operation) == 1 << operation for operation in SINGLE_OPERATIONS)
    assert allowed_bits(AclOperation.ALL) == denied_bits(AclOperation.ALL) == ALL_BITS


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:0A00:0001", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0:0::0001", "2001:db8::1"),
        ("fe80::1%eth0", "FE80:0::1%eth0"),
        ("fe80::1%eth0", "fe80::1"),
        ("fe80::1%eth0", "fe80::1%2"),
        ("::ffff:10.0.0.1%eth0", "10.0.0.1"),
    ],
)
def test_spellings_of_one_address_are_the_same_host(one: str, other: str) -> None:
    assert normalized_host(one) == normalized_host(other)
    assert replace(READ_ORDERS, host=one) == replace(READ_ORDERS, host=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.0.0.1", "10.0.0.2"),
        ("::10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::2%eth0"),
        ("fe80::1%", "fe80::1"),
        ("10.0.0.1%eth0", "10.0.0.1"),
        ("*", "0.0.0.0"),
        ("example.org", "EXAMPLE.org"),
        ("010.0.0.1", "10.0.0.1"),
        (" 10.0.0.1", "10.0.0.1"),
    ],
)
def test_different_hosts_stay_different(one: str, other: str) -> None:
    assert normalized_host(one) != normalized_host(other)


SCOPED = st.builds("{}%{}".format, st.ip_addresses(v=6), st.text())


@given(st.one_of(st.text(), st.ip_addresses().map(str), SCOPED))
@settings(deadline=None)
def test_a_normalized_host_does_not_change_again(host: str) -> None:
    assert normalized_host(normalized_host(host)) == normalized_host(host)


def test_principals_are_parsed_at_the_first_colon() -> None:
    assert parse_principal("User:a:b") == Principal("User", "a:b")
    assert str(parse_principal("User:CN=x,O=y: z")) == "User:CN=x,O=y: z"
    assert parse_principal(ANONYMOUS) == Principal("User", "ANONYMOUS")
    assert user_principal("alice") == "User:alice"
    for bad in ("", "alice", "User"):
        with pytest.raises(AclRefused, match="User:alice"):
            parse_principal(bad)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"resource_name": "*"},
        {"pattern_type": PatternType.PREFIXED},
        {"pattern_type": PatternType.PREFIXED, "resource_name": "*"},
        {"resource_type": ResourceType.CLUSTER, "resource_name": CLUSTER_NAME},
        {"operation": AclOperation.ALL, "permission": PermissionType.DENY},
        {"operation": AclOperation.TWO_PHASE_COMMIT},
        {"host": "not an address"},
        {"principal": "Group:staff"},
        {"resource_name": "x" * TEXT_LENGTH_MAX},
    ],
)
def test_valid_acls_are_accepted(changed: dict[str, Any]) -> None:
    """As in Kafka, also an operation that the type does not have, and a host that never matches."""
    acl = replace(READ_ORDERS, **changed)
    check_binding(acl)
    assert decode_acls(encode_acls([acl])) == {acl}


@pytest.mark.parametrize(
    "host", ["example.org", "10.0.0.0/8", "10.0.0.*", "010.0.0.1", " 10.0.0.1", "", "fe80::1%"]
)
def test_a_host_that_no_client_has_gets_a_warning_that_says_what_to_use(host: str) -> None:
    for permission in (PermissionType.ALLOW, PermissionType.DENY):
        acl = replace(READ_ORDERS, host=host, permission=permission)
        check_binding(acl)
        warning = host_warning(acl)
        assert warning is not None
        assert repr(host) in warning
        assert "use an address" in warning


@pytest.mark.parametrize("host", ["*", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "2001:DB8::"])
def test_a_host_that_is_an_address_or_an_asterisk_gets_no_warning(host: str) -> None:
    assert host_warning(replace(READ_ORDERS, host=host)) is None


def test_a_warning_about_a_host_is_one_short_line() -> None:
    warning = host_warning(replace(READ_ORDERS, host="x\n" * 10_000))
    assert warning is not None
    assert "\n" not in warning
    assert len(warning) < 600


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"resource_type": ResourceType.ANY}, "use TOPIC"),
        ({"resource_type": ResourceType.UNKNOWN}, "use TOPIC"),
        ({"pattern_type": PatternType.ANY}, "use LITERAL or PREFIXED"),
        ({"pattern_type": PatternType.MATCH}, "use LITERAL or PREFIXED"),
        ({"pattern_type": PatternType.UNKNOWN}, "use LITERAL or PREFIXED"),
        ({"operation": AclOperation.ANY}, "name one operation"),
        ({"operation": AclOperation.UNKNOWN}, "name one operation"),
        ({"permission": PermissionType.ANY}, "use ALLOW or DENY"),
        ({"permission": PermissionType.UNKNOWN}, "use ALLOW or DENY"),
        ({"resource_name": ""}, "LITERAL name *"),
        ({"resource_name": "", "pattern_type": PatternType.PREFIXED}, "LITERAL name *"),
        ({"principal": "alice"}, "User:alice"),
        ({"principal": ""}, "User:alice"),
        ({"resource_type": ResourceType.CLUSTER}, CLUSTER_NAME),
        ({"resource_type": ResourceType.CLUSTER, "resource_name": "*"}, CLUSTER_NAME),
        ({"resource_name": "x" * (TEXT_LENGTH_MAX + 1)}, "at most"),
        ({"principal": "User:" + "x" * TEXT_LENGTH_MAX}, "at most"),
        ({"host": "x" * (TEXT_LENGTH_MAX + 1)}, "at most"),
    ],
)
def test_invalid_acls_are_refused_with_advice(changed: dict[str, Any], advice: str) -> None:
    acl = replace(READ_ORDERS, **changed)
    with pytest.raises(AclRefused) as refused:
        check_binding(acl)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert advice in str(refused.value)
    assert len(str(refused.value)) < 300
    with pytest.raises(StoredAclInvalid):
        decode_acls(encode_acls([acl]))


def test_the_text_of_an_acl_reads_as_a_sentence() -> None:
    assert str(READ_ORDERS) == "ALLOW READ on TOPIC 'orders' for 'User:alice' from any host"
    prefixed = replace(READ_ORDERS, pattern_type=PatternType.PREFIXED, host="10.0.0.1")
    assert "TOPIC names that start with 'orders'" in str(prefixed)
    assert str(prefixed).endswith("from host '10.0.0.1'")
    assert "every TOPIC" in str(replace(READ_ORDERS, resource_name="*"))


def test_the_text_of_an_acl_cannot_forge_a_log_line() -> None:
    assert "\n" not in str(replace(READ_ORDERS, resource_name="a\nALLOW", principal="User:\r\n"))


@given(st.frozensets(ACLS, max_size=8), st.randoms())
@settings(max_examples=60, deadline=None)
def test_stored_acls_are_read_back_and_do_not_depend_on_the_order(
    acls: frozenset[AclBinding], random: Any
) -> None:
    shuffled = [*acls, *acls]
    random.shuffle(shuffled)
    text = encode_acls(shuffled)
    assert text == encode_acls(acls)
    assert decode_acls(text) == decode_acls(text.encode()) == acls


ROW = ["TOPIC", "LITERAL", "orders", "User:alice", "*", "READ", "ALLOW"]


def test_the_stored_form_stays_readable_for_later_versions() -> None:
    assert encode_acls([READ_ORDERS]) == (
        '{"version":1,"acls":[["TOPIC","LITERAL","orders","User:alice","*","READ","ALLOW"]]}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        b"\xff\xfe",
        "[" * 100_000,
        '{"version":2,"acls":[]}',
        '{"version":1}',
        '{"version":1,"acls":{}}',
        '{"version":1,"acls":[null]}',
        json.dumps({"version": 1, "acls": [ROW[:6]]}),
        json.dumps({"version": 1, "acls": [[*ROW, "x"]]}),
        json.dumps({"version": 1, "acls": [[*ROW[:6], 3]]}),
        json.dumps({"version": 1, "acls": [["topic", *ROW[1:]]]}),
        json.dumps({"version": 1, "acls": [["STREAM", *ROW[1:]]]}),
        json.dumps({"version": 1, "acls": [["UNKNOWN", *ROW[1:]]]}),
        json.dumps({"version": 1, "acls": [[*ROW[:2], "", *ROW[3:]]]}),
    ],
)
def test_stored_acls_that_cannot_be_read_raise_one_error(text: str | bytes) -> None:
    """A broker that skipped a row could skip a DENY."""
    with pytest.raises(StoredAclInvalid):
        decode_acls(text)
