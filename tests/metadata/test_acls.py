"""Plans that change ACLs, and the brokers that have not confirmed a change."""

from __future__ import annotations

import pytest

from penstock.metadata.acl_values import AclSeen, encode_acl_seen, encode_pattern_acls
from penstock.metadata.acls import (
    COMMIT_PATTERNS_MAX,
    AclsOutdated,
    note_acls_seen,
    plan_creation,
    plan_deletion,
    refused_entries,
    snapshot_of,
    unconfirmed,
)
from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import acl_key, acl_seen_key, broker_key, pattern_of
from penstock.metadata.model import BrokerInfo
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from penstock.wire.errors import ErrorCode, KafkaError

TOPIC, LITERAL = ResourceType.TOPIC, PatternType.LITERAL


def acl(name: str, principal: str = "User:a") -> AclBinding:
    return AclBinding(TOPIC, LITERAL, name, principal, "*", AclOperation.READ, PermissionType.ALLOW)


def carry_out(image: ClusterImage, decision: Decision[object]) -> None:
    revision = image.revision + 1
    for change in decision.changes:
        assert change.expected_revision == image.revision_of(change.key)
        image.apply(change.key, change.value, revision)


def with_acls(*acls: AclBinding) -> ClusterImage:
    image = ClusterImage()
    carry_out(image, plan_creation(snapshot_of(image), dict(enumerate(acls))).decide(image))
    return image


@pytest.mark.parametrize("name", ["t", "*", "a/b", "50%", "ü \x00", "..", "/"])
def test_the_key_of_a_pattern_can_be_read_back(name: str) -> None:
    pattern = ResourcePattern(TOPIC, PatternType.PREFIXED, name)
    assert pattern_of(acl_key(pattern)) == pattern


@pytest.mark.parametrize("rest", ["TOPIC", "NOTHING/LITERAL/t", "TOPIC/LITERAL/a/b", "2/3/t"])
def test_other_keys_are_not_patterns(rest: str) -> None:
    with pytest.raises(MetadataInvalid):
        pattern_of(f"/penstock/acls/{rest}")


def test_acls_are_stored_by_pattern_and_every_change_has_a_revision() -> None:
    image = with_acls(acl("t"), acl("t", "User:b"), acl("u"))
    snapshot = snapshot_of(image)
    assert snapshot.bindings() == {acl("t"), acl("t", "User:b"), acl("u")}
    assert sorted(snapshot.by_key) == [acl_key(acl("t").pattern), acl_key(acl("u").pattern)]
    assert image.acl_revision == image.revision == 1
    carry_out(image, plan_creation(snapshot, {0: acl("t")}).decide(image))
    assert image.acl_revision == 2, "a change that finds all as it should be counts, too"
    everything = [AclFilter()]
    carry_out(image, plan_deletion(snapshot_of(image), everything).decide(image))
    assert not image.acls


def test_a_plan_is_outdated_if_its_patterns_have_changed() -> None:
    image = with_acls(acl("t"))
    plan = plan_deletion(snapshot_of(image), [AclFilter(resource_name="t")])
    other = plan_creation(snapshot_of(image), {0: acl("other")})
    carry_out(image, other.decide(image))
    plan.decide(image)  # Another pattern does not matter.
    carry_out(image, plan_creation(snapshot_of(image), {0: acl("t", "User:b")}).decide(image))
    with pytest.raises(AclsOutdated):
        plan.decide(image)


def test_a_creation_takes_as_many_patterns_as_fit_into_a_commit() -> None:
    entries = {number: acl(f"t{number}") for number in range(COMMIT_PATTERNS_MAX + 5)}
    plan = plan_creation(snapshot_of(ClusterImage()), entries)
    assert list(plan.result) == list(range(COMMIT_PATTERNS_MAX))
    assert len(plan.values) == COMMIT_PATTERNS_MAX


def test_a_pattern_cannot_have_more_acls_than_a_value_holds() -> None:
    long = "x" * 30_000
    entries = {number: acl("t", f"User:{long}{number}") for number in range(40)}
    results = plan_creation(snapshot_of(ClusterImage()), entries).result
    assert {result.code for result in results.values()} == {ErrorCode.POLICY_VIOLATION}
    wide = {number: acl(f"t{number}", f"User:{long}") for number in range(40)}
    plan = plan_creation(snapshot_of(ClusterImage()), wide)
    assert 0 < len(plan.result) < 40, "the rest is for the next commit"


def test_a_deletion_that_does_not_fit_into_a_commit_deletes_nothing() -> None:
    image = ClusterImage()
    for start in (0, COMMIT_PATTERNS_MAX):
        entries = {n: acl(f"t{n}") for n in range(start, start + COMMIT_PATTERNS_MAX)}
        carry_out(image, plan_creation(snapshot_of(image), entries).decide(image))
    plan = plan_deletion(snapshot_of(image), [AclFilter(), AclFilter(resource_name="t0")])
    assert [each.code for each in plan.result] == [ErrorCode.INVALID_REQUEST] * 2
    assert not plan.values


def test_entries_that_are_not_valid_are_refused_one_by_one() -> None:
    entries = {0: acl("t"), 1: acl(""), 2: acl("t", "nobody")}
    refused = refused_entries(entries, snapshot_of(ClusterImage()))
    assert {number: result.code for number, result in refused.items()} == {1: 42, 2: 42}


@pytest.mark.parametrize("value", [b"x", b"{}", encode_pattern_acls([acl("other")])])
def test_a_value_that_cannot_be_read_stays_in_the_image_as_a_problem(value: bytes) -> None:
    image = ClusterImage()
    key = acl_key(acl("t").pattern)
    assert image.apply(key, value, 1).acls
    problem = snapshot_of(image).problem
    assert problem is not None and key in problem
    with pytest.raises(KafkaError, match="super users"):
        plan_deletion(snapshot_of(image), [])
    image.apply(key, None, 2)
    assert snapshot_of(image).problem is None


def registered(image: ClusterImage, broker_id: int, revision: int) -> None:
    broker = BrokerInfo(broker_id, "h", 1, None, bytes(16))
    image.apply(broker_key(broker_id), encode_broker(broker), revision)


def test_a_change_waits_for_brokers_that_registered_before_it() -> None:
    image = ClusterImage()
    registered(image, 1, 5)
    registered(image, 2, 9)
    assert unconfirmed(image, 7) == [1]
    decision = note_acls_seen(image, 1, 5, 7)
    assert [change.leased for change in decision.changes] == [True]
    carry_out(image, decision)
    assert unconfirmed(image, 7) == []
    assert not note_acls_seen(image, 1, 5, 6).changes
    assert not note_acls_seen(image, 1, 4, 8).changes, "of another registration"
    image.apply(acl_seen_key(1), encode_acl_seen(AclSeen(4, 99)), 20)
    assert unconfirmed(image, 7) == [1], "a note of another registration does not count"
    image.apply(broker_key(1), None, 21)
    assert unconfirmed(image, 30) == [2]
