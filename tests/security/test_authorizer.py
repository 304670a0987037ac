"""Decisions by ACLs, compared with an oracle that reads the rules one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security import authorizer
from penstock.security.acls import (
    CLUSTER_NAME,
    SINGLE_OPERATIONS,
    SUPPORTED_BITS,
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    ResourceType,
    normalized_host,
)
from penstock.security.authorizer import (
    MEMO_BYTES_MAX,
    MEMO_ENTRIES_MAX,
    MEMO_KEY_LENGTH_MAX,
    AccessReason,
    Authorizer,
    parse_super_users,
)

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
ALICE, HOST = "User:alice", "10.0.0.1"


def acl(name: str = "orders", **changed: Any) -> AclBinding:
    basis = AclBinding(TOPIC, LITERAL, name, ALICE, "*", READ, ALLOW)
    return replace(basis, **changed)


def may(
    acls: list[AclBinding],
    operation: AclOperation = READ,
    name: str = "orders",
    principal: str = ALICE,
    host: str = HOST,
) -> bool:
    return Authorizer(acls).authorize(principal, host, operation, TOPIC, name)


IMPLIED = {
    DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def names_resource(rule: AclBinding, resource_type: ResourceType, name: str) -> bool:
    if rule.resource_type != resource_type:
        return False
    if rule.pattern_type == PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in {name, "*"}


def oracle(
    acls: frozenset[AclBinding],
    everyone: bool,
    client: tuple[str, str],
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
) -> bool:
    """Decides as the rules are written down, by looking at every ACL."""
    principal, host = client
    if principal == "User:root":
        return True
    of_resource = [rule for rule in acls if names_resource(rule, resource_type, name)]
    of_client = [
        rule
        for rule in of_resource
        if rule.principal in {principal, "User:*"} and rule.host in {normalized_host(host), "*"}
    ]
    for rule in of_client:
        if rule.permission == DENY and rule.operation in {operation, AclOperation.ALL}:
            return False
    for rule in of_client:
        enough = {operation, AclOperation.ALL} | IMPLIED.get(operation, set())
        if rule.permission == ALLOW and rule.operation in enough:
            return True
    return everyone and not of_resource


NAMES = ["a", "ab", "abc", "b", "*"]
ACLS = st.frozensets(
    st.builds(
        AclBinding,
        st.sampled_from([TOPIC, TOPIC, ResourceType.GROUP]),
        st.sampled_from([LITERAL, PREFIXED]),
        st.sampled_from(NAMES),
        st.sampled_from(["User:a", "User:b", "User:*"]),
        st.sampled_from(["*", "10.0.0.1", "::ffff:10.0.0.2", "fe80::1%eth0", ""]),
        st.sampled_from([READ, WRITE, DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.ALL]),
        st.sampled_from([ALLOW, ALLOW, DENY]),
    ),
    max_size=8,
)
NAMED_HOSTS = ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1", "fe80::1", "fe80::1%2", ""]
OTHER_HOSTS = ["::1", "10.0.0.3", "::ffff:10.0.0.4", "*", "not an address"]
"""No ACL of these tests names them, except by `*`."""
CLIENTS = st.tuples(
    st.sampled_from(["User:a", "User:b", "User:c", "User:root", "User:*"]),
    st.sampled_from([*NAMED_HOSTS, *OTHER_HOSTS]),
)


@given(ACLS, st.booleans(), CLIENTS)
@settings(max_examples=300, deadline=None)
def test_every_decision_is_that_of_the_rules(
    acls: frozenset[AclBinding], everyone: bool, client: tuple[str, str]
) -> None:
    """Asked twice, because the second answer is remembered; and with its reason."""
    subject = Authorizer(acls, frozenset({"User:root"}), everyone)
    for name in [*NAMES, "abcd", "", "c"]:
        for operation in SINGLE_OPERATIONS:
            expected = oracle(acls, everyone, client, operation, TOPIC, name)
            assert subject.authorize(*client, operation, TOPIC, name) == expected
            assert subject.authorize(*client, operation, TOPIC, name) == expected
            decision = subject.decide(*client, operation, TOPIC, name)
            assert decision.allowed == expected
            if decision.rule is not None:
                assert decision.rule in acls
                assert names_resource(decision.rule, TOPIC, name)
                assert (decision.rule.permission == ALLOW) == expected


@given(ACLS, st.booleans(), st.lists(CLIENTS, max_size=8))
@settings(max_examples=200, deadline=None)
def test_a_remembered_answer_is_never_that_of_another_client(
    acls: frozenset[AclBinding], everyone: bool, clients: list[tuple[str, str]]
) -> None:
    """One authorizer answers for clients with hosts that ACLs name and for others, in any order."""
    subject = Authorizer(acls, frozenset({"User:root"}), everyone)
    for client in clients:
        for operation in (READ, DESCRIBE, AclOperation.CREATE):
            answers = []
            for name in ["?", *NAMES, *(f"{name}?" for name in NAMES)]:
                expected = oracle(acls, everyone, client, operation, TOPIC, name)
                answers.append(expected)
                assert subject.authorize(*client, operation, TOPIC, name) == expected
                assert subject.filter(*client, operation, TOPIC, [name]) == [name] * expected
            assert subject.authorize_any(*client, operation, TOPIC) == any(answers)


@given(ACLS, st.booleans(), CLIENTS, st.sampled_from([READ, DESCRIBE]))
@settings(max_examples=200, deadline=None)
def test_many_names_are_filtered_as_one_by_one(
    acls: frozenset[AclBinding], everyone: bool, client: tuple[str, str], operation: AclOperation
) -> None:
    subject = Authorizer(acls, frozenset({"User:root"}), everyone)
    names = [*NAMES, "c", "abcd", "a"]
    expected = [name for name in names if oracle(acls, everyone, client, operation, TOPIC, name)]
    assert subject.filter(*client, operation, TOPIC, iter(names)) == expected
    assert [name for name in names if subject.authorize(*client, operation, TOPIC, name)] == (
        expected
    )


@given(ACLS, st.booleans(), CLIENTS)
@settings(max_examples=300, deadline=None)
def test_an_operation_is_allowed_on_any_resource_if_there_is_a_name_for_it(
    acls: frozenset[AclBinding], everyone: bool, client: tuple[str, str]
) -> None:
    """No other name can give another answer: each is like one of these."""
    subject = Authorizer(acls, frozenset({"User:root"}), everyone)
    candidates = ["?", *NAMES, *(f"{name}?" for name in NAMES)]
    for operation in SINGLE_OPERATIONS:
        expected = any(
            oracle(acls, everyone, client, operation, TOPIC, name) for name in candidates
        )
        assert subject.authorize_any(*client, operation, TOPIC) == expected
        assert subject.authorize_any(*client, operation, TOPIC) == expected


@given(ACLS, st.booleans(), CLIENTS, st.sampled_from(NAMES))
@settings(max_examples=100, deadline=None)
def test_the_bit_field_has_the_operations_that_are_allowed(
    acls: frozenset[AclBinding], everyone: bool, client: tuple[str, str], name: str
) -> None:
    subject = Authorizer(acls, frozenset({"User:root"}), everyone)
    for resource_type in (TOPIC, ResourceType.GROUP):
        bits = subject.operations(*client, resource_type, name)
        for operation in AclOperation:
            supported = bool(SUPPORTED_BITS[resource_type] >> operation & 1)
            allowed = oracle(acls, everyone, client, operation, resource_type, name)
            assert bool(bits >> operation & 1) == (supported and allowed)


def test_a_deny_beats_an_allow_however_specific() -> None:
    deny_all = acl("*", operation=AclOperation.ALL, permission=DENY, principal="User:*")
    assert may([acl()])
    assert not may([acl(), deny_all])
    assert not may([acl("*"), acl("ord", pattern_type=PREFIXED, permission=DENY)])
    assert may([acl(), acl(permission=DENY, host="10.0.0.2")])
    assert may([acl(), acl(permission=DENY, principal="User:bob")])


def test_a_deny_of_read_does_not_deny_describe() -> None:
    acls = [acl(operation=WRITE), acl(permission=DENY)]
    assert may(acls, DESCRIBE)
    assert not may(acls, READ)
    assert not may([acl(operation=WRITE), acl(operation=DESCRIBE, permission=DENY)], DESCRIBE)
    assert not may([acl(operation=DESCRIBE)], READ)
    assert not may([acl(operation=AclOperation.CREATE)], DESCRIBE)


def test_hosts_are_compared_as_addresses() -> None:
    assert may([acl(host="::ffff:10.0.0.1")], host="10.0.0.1")
    assert may([acl(host="10.0.0.1")], host="::ffff:a00:1")
    assert may([acl(host="2001:db8::1")], host="2001:DB8:0:0:0:0:0:1")
    assert not may([acl(), acl(host="10.0.0.1", permission=DENY)], host="::ffff:10.0.0.1")
    assert not may([acl(host="10.0.0.1")], host="10.0.0.2")
    assert may([acl(host="fe80::1%eth0")], host="fe80::1")
    assert not may([acl(), acl(host="fe80::1", permission=DENY)], host="fe80::1%eth0")


def test_a_prefix_names_itself_and_longer_names() -> None:
    prefixed = [acl("ord", pattern_type=PREFIXED)]
    assert may(prefixed, name="ord")
    assert may(prefixed, name="orders")
    assert not may(prefixed, name="or")
    assert not may(prefixed, name="Orders")
    assert not may(prefixed, name="")


def test_a_prefix_that_is_an_asterisk_is_only_a_prefix() -> None:
    assert not may([acl("*", pattern_type=PREFIXED)])
    assert may([acl("*", pattern_type=PREFIXED)], name="*x")


def test_an_empty_prefix_is_refused_and_not_taken_for_everything() -> None:
    with pytest.raises(AclRefused):
        Authorizer([acl("", pattern_type=PREFIXED)])


def test_without_an_acl_on_the_resource_the_setting_decides() -> None:
    """An ACL for another user, or a prefix, is an ACL on the resource."""
    acls = [acl("orders", principal="User:bob"), acl("pay", pattern_type=PREFIXED, operation=WRITE)]
    for everyone in (False, True):
        subject = Authorizer(acls, allow_everyone_if_no_acl_found=everyone)
        assert subject.authorize(ALICE, HOST, READ, TOPIC, "free") is everyone
        assert not subject.authorize(ALICE, HOST, READ, TOPIC, "orders")
        assert not subject.authorize(ALICE, HOST, READ, TOPIC, "payments")
        assert subject.authorize(ALICE, HOST, READ, ResourceType.GROUP, "orders") is everyone
        assert subject.operations(ALICE, HOST, TOPIC, "free") == (3576 if everyone else 0)


def test_a_super_user_is_allowed_what_is_denied() -> None:
    acls = [acl("*", principal="User:*", operation=AclOperation.ALL, permission=DENY)]
    subject = Authorizer(acls, parse_super_users("User:root; User:CN=a,O=b;"))
    assert subject.authorize("User:root", HOST, READ, TOPIC, "orders")
    assert subject.authorize("User:CN=a,O=b", HOST, READ, TOPIC, "orders")
    assert subject.authorize_any("User:root", HOST, WRITE, TOPIC)
    assert subject.filter("User:root", HOST, READ, TOPIC, ["a", "b"]) == ["a", "b"]
    assert subject.operations("User:root", HOST, CLUSTER, CLUSTER_NAME) == 8096
    assert not subject.authorize("User:Root", HOST, READ, TOPIC, "orders")
    assert not subject.authorize("User:root2", HOST, READ, TOPIC, "orders")


def test_super_users_are_parsed_as_in_kafka() -> None:
    assert parse_super_users("") == frozenset()
    assert parse_super_users(" User:a ;; User:b;c:d ") == {"User:a", "User:b", "c:d"}
    with pytest.raises(AclRefused, match="User:alice"):
        parse_super_users("User:a,b;admin")


@pytest.mark.parametrize("entry", ["admin", ""])
def test_a_super_user_that_is_not_a_principal_is_refused(entry: str) -> None:
    """It would never match, and nobody would know why."""
    with pytest.raises(AclRefused, match="User:alice"):
        Authorizer([], frozenset({"User:root", entry}))


def test_a_super_user_with_an_asterisk_is_not_everybody() -> None:
    subject = Authorizer([], parse_super_users("User:*"))
    assert not subject.authorize(ALICE, HOST, READ, TOPIC, "orders")
    assert not subject.authorize_any(ALICE, HOST, READ, TOPIC)
    assert subject.authorize_any("User:*", HOST, READ, TOPIC)


def test_nobody_may_do_an_operation_that_is_not_a_single_one() -> None:
    """Else a request that asks for the wrong operation would pass by an ACL of ALL."""
    subject = Authorizer(
        [acl(operation=AclOperation.ALL)],
        frozenset({"User:root"}),
        allow_everyone_if_no_acl_found=True,
    )
    for operation in (AclOperation.UNKNOWN, AclOperation.ANY, AclOperation.ALL):
        for principal in (ALICE, "User:root"):
            assert not subject.authorize_any(principal, HOST, operation, TOPIC)
            for name in ("orders", "free"):
                assert not subject.authorize(principal, HOST, operation, TOPIC, name)
                assert not subject.decide(principal, HOST, operation, TOPIC, name).allowed


def test_the_cluster_shows_no_operations_without_describe() -> None:
    rule = acl(CLUSTER_NAME, resource_type=CLUSTER, operation=AclOperation.CREATE)
    subject = Authorizer([rule])
    assert subject.authorize(ALICE, HOST, AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    assert subject.operations(ALICE, HOST, CLUSTER, CLUSTER_NAME) == 0
    both = Authorizer([rule, replace(rule, operation=DESCRIBE)])
    assert both.operations(ALICE, HOST, CLUSTER, CLUSTER_NAME) == 1 << 5 | 1 << 8


@pytest.mark.parametrize(
    ("denied", "expected"),
    [
        ([], True),
        ([acl("other", operation=WRITE, permission=DENY)], True),
        ([acl("team.a.x", operation=WRITE, permission=DENY)], True),
        ([acl("team.a.", operation=WRITE, permission=DENY)], True),
        ([acl("team.a.b", pattern_type=PREFIXED, operation=WRITE, permission=DENY)], True),
        ([acl("team.a.", pattern_type=PREFIXED, operation=READ, permission=DENY)], True),
        ([acl("team.a.", pattern_type=PREFIXED, operation=WRITE, permission=DENY)], False),
        ([acl("t", pattern_type=PREFIXED, operation=AclOperation.ALL, permission=DENY)], False),
        ([acl("*", principal="User:*", operation=WRITE, permission=DENY)], False),
    ],
)
def test_a_write_on_any_topic_needs_an_allow_that_no_deny_covers(
    denied: list[AclBinding], expected: bool
) -> None:
    allowed = acl("team.a.", pattern_type=PREFIXED, operation=WRITE)
    subject = Authorizer([allowed, *denied])
    assert subject.authorize_any(ALICE, HOST, WRITE, TOPIC) is expected
    assert not subject.authorize_any("User:bob", HOST, WRITE, TOPIC)
    assert not subject.authorize_any(ALICE, HOST, WRITE, ResourceType.GROUP)


def test_a_literal_deny_covers_a_literal_allow() -> None:
    acls = [acl("x", operation=WRITE), acl("x", operation=WRITE, permission=DENY)]
    assert not Authorizer(acls).authorize_any(ALICE, HOST, WRITE, TOPIC)
    assert Authorizer([*acls, acl("y", operation=WRITE)]).authorize_any(ALICE, HOST, WRITE, TOPIC)


def test_a_decision_names_its_rule_or_reason() -> None:
    deny = acl("secret", permission=DENY)
    subject = Authorizer([acl(), deny], frozenset({"User:root"}))

    def decide(principal: str, name: str) -> Any:
        decision = subject.decide(principal, HOST, READ, TOPIC, name)
        return decision.allowed, decision.reason, decision.rule

    assert decide("User:root", "secret") == (True, AccessReason.SUPER_USER, None)
    assert decide(ALICE, "orders") == (True, AccessReason.ALLOW_RULE, acl())
    assert decide(ALICE, "secret") == (False, AccessReason.DENY_RULE, deny)
    assert decide("User:bob", "orders") == (False, AccessReason.NO_MATCH, None)
    assert decide(ALICE, "free") == (False, AccessReason.NO_ACL_DENIES, None)
    everyone = Authorizer([], allow_everyone_if_no_acl_found=True)
    free = everyone.decide(ALICE, HOST, READ, TOPIC, "free")
    assert (free.allowed, free.reason) == (True, AccessReason.NO_ACL_ALLOWS)
    assert str(subject.decide(ALICE, HOST, READ, TOPIC, "secret")) == f"denied: {deny}"
    assert str(free).startswith("allowed: no ACL names the resource")


def test_changed_acls_take_effect_with_the_new_authorizer() -> None:
    """Nothing that the old one remembered survives."""
    old = Authorizer([acl()])
    assert old.authorize(ALICE, HOST, READ, TOPIC, "orders")
    new = Authorizer([*old.acls, acl(permission=DENY)])
    assert not new.authorize(ALICE, HOST, READ, TOPIC, "orders")


def test_remembered_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can ask for as many names as it likes, and as long ones."""
    monkeypatch.setattr(authorizer, "MEMO_ENTRIES_MAX", 50)
    hosts = [f"10.0.{number // 250}.{number % 250}" for number in range(500)]
    subject = Authorizer(acl("t1", pattern_type=PREFIXED, host=host) for host in hosts)
    for number, host in enumerate(hosts):
        name = f"t{number}"
        expected = name.startswith("t1")
        assert subject.authorize(ALICE, HOST, READ, TOPIC, name) is expected
        assert subject.authorize_any(ALICE, host, READ, TOPIC)
        assert len(subject._memo) <= 50
        assert len(subject._any_memo) <= 50
        assert len(subject._host_memo) <= 50
    names = [f"t{number}" for number in range(500)]
    expected_names = [name for name in names if name.startswith("t1")]
    assert subject.filter(ALICE, HOST, READ, TOPIC, names) == expected_names
    assert len(subject._memo) <= 50


def test_answers_for_long_names_are_not_remembered() -> None:
    subject = Authorizer([acl("t", pattern_type=PREFIXED)])
    long = "t" * MEMO_KEY_LENGTH_MAX
    assert subject.authorize(ALICE, HOST, READ, TOPIC, long)
    assert subject.filter(ALICE, HOST, READ, TOPIC, [long]) == [long]
    assert subject.authorize_any(f"User:{long}", f"{HOST}{long}", READ, TOPIC) is False
    assert not subject._memo
    assert not any(long in text for key in subject._any_memo for text in key[:2])
    assert not any(long in text for text in subject._host_memo)


def test_remembered_answers_take_at_most_the_stated_bytes() -> None:
    """Characters outside the basic plane take four bytes each."""
    subject = Authorizer([acl("*", host=HOST)])
    fill = MEMO_KEY_LENGTH_MAX - len(HOST) - 6
    for number in range(MEMO_ENTRIES_MAX):
        letter = chr(0x10000 + number)
        principal, name = f"User:{letter}", letter * fill
        assert not subject.authorize(principal, HOST, READ, TOPIC, name)
        assert not subject.authorize_any(principal, HOST, READ, TOPIC)
        assert not subject.authorize(principal, f"{letter}{number}", READ, TOPIC, "x" * fill * 2)
    assert len(subject._memo) == MEMO_ENTRIES_MAX
    assert all(map(str.isascii, subject._host_memo))
    size = 0
    for memo in (subject._memo, subject._any_memo, subject._host_memo):
        size += sys.getsizeof(memo)
        for key, value in memo.items():
            parts = key if isinstance(key, tuple) else ()
            size += sum(sys.getsizeof(each) for each in (key, value, *parts[:2], *parts[3:]))
    assert size <= MEMO_BYTES_MAX


def test_clients_with_addresses_that_no_acl_names_share_their_answers() -> None:
    """Else each new address would push out what is remembered for others."""
    subject = Authorizer([acl(), acl("other", host="10.0.0.2")])
    for number in range(1000):
        host = f"10.1.{number // 250}.{number % 250}"
        assert subject.authorize(ALICE, host, READ, TOPIC, "orders")
        assert subject.operations(ALICE, host, TOPIC, "orders") == 1 << READ | 1 << DESCRIBE
        assert subject.filter(ALICE, host, READ, TOPIC, ["orders", "other"]) == ["orders"]
        assert subject.authorize_any(ALICE, host, READ, TOPIC)
    assert len(subject._memo) == 2
    assert len(subject._any_memo) == 1
    assert subject.authorize(ALICE, "::ffff:10.0.0.2", READ, TOPIC, "other")


@pytest.mark.parametrize(
    ("extra", "operation", "expected"),
    [
        ([], WRITE, True),
        ([], READ, False),
        ([acl("last", operation=READ)], READ, True),
        ([acl("last", operation=READ), acl("last", permission=DENY)], READ, False),
        ([acl("t", pattern_type=PREFIXED, principal="User:bob", permission=DENY)], WRITE, True),
        ([acl("*", operation=WRITE, permission=DENY)], WRITE, False),
        ([acl("*", operation=WRITE)], WRITE, True),
    ],
)
def test_an_answer_for_any_name_looks_at_few_of_many_patterns(
    extra: list[AclBinding],
    operation: AclOperation,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everyone = [acl(f"t{number}", operation=WRITE, principal="User:*") for number in range(1000)]
    subject = Authorizer([*everyone, *extra])
    looked_at: list[str] = []
    compute = Authorizer._bits

    def counted(self: Any, rules: Any, of: Any, name: str, is_literal: bool = True) -> int:
        looked_at.append(name)
        return compute(self, rules, of, name, is_literal)

    monkeypatch.setattr(Authorizer, "_bits", counted)
    assert subject.authorize_any(ALICE, HOST, operation, TOPIC) is expected
    assert len(looked_at) <= 3


def test_principals_that_no_acl_names_share_the_answer_for_any_name() -> None:
    subject = Authorizer([acl(principal="User:*"), acl(permission=DENY)], frozenset({"User:root"}))
    for number in range(100):
        assert subject.authorize_any(f"User:{number}", HOST, READ, TOPIC)
    assert len(subject._any_memo) == 1
    assert not subject.authorize_any(ALICE, HOST, READ, TOPIC)
    assert subject.authorize_any("User:root", HOST, WRITE, TOPIC)
    assert not subject.authorize_any("User:*", HOST, WRITE, TOPIC)


def test_filtering_many_names_leaves_room_for_other_answers() -> None:
    subject = Authorizer([acl("*")])
    names = [f"t{number}" for number in range(MEMO_ENTRIES_MAX)]
    assert subject.filter(ALICE, HOST, READ, TOPIC, names) == names
    assert len(subject._memo) == MEMO_ENTRIES_MAX // 2


def test_a_check_looks_at_prefix_lengths_and_not_at_prefixes() -> None:
    """10,000 prefixes of one length take one lookup."""
    acls = [acl(f"team-{number:04}.", pattern_type=PREFIXED) for number in range(10_000)]
    subject = Authorizer(acls)
    rules = subject._types[TOPIC]
    assert rules.prefix_lengths == (10,)
    assert len(list(rules.rules_of("team-0042.orders"))) == 1
    assert subject.authorize(ALICE, HOST, READ, TOPIC, "team-0042.orders")
    assert not subject.authorize(ALICE, HOST, READ, TOPIC, "team-x042.orders")
