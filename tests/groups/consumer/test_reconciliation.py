"""A member gives up partitions before it gets others."""

from __future__ import annotations

import pytest

from penstock.groups.consumer.reconciliation import Owned, reconcile
from penstock.groups.consumer.records import Current, MemberState, TopicIdPartition
from penstock.wire.errors import ErrorCode, KafkaError

TOPIC, OTHER = b"t" * 16, b"o" * 16
P0, P1, P2 = (TopicIdPartition(TOPIC, number) for number in range(3))
Q0 = TopicIdPartition(OTHER, 0)
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED


def step(
    current: Current,
    *target: TopicIdPartition,
    owned: Owned = None,
    taken: tuple[TopicIdPartition, ...] = (),
    epoch: int = 2,
    topics: tuple[bytes, ...] | None = None,
) -> Current:
    return reconcile(
        current,
        target=set(target),
        target_epoch=epoch,
        owned=owned,
        is_free=lambda partition: partition not in taken,
        may_read=None if topics is None else lambda partition: partition.topic_id in topics,
    )


def test_a_new_member_gets_what_is_free() -> None:
    assert step(Current(), P0, P1, owned=set()) == Current(2, 0, STABLE, {P0: 2, P1: 2})


def test_a_new_member_waits_for_the_rest() -> None:
    first = step(Current(), P0, P1, taken=(P1,), owned=set())
    assert first == Current(2, 0, UNRELEASED, {P0: 2})
    assert step(first, P0, P1, taken=(P1,)) == first
    assert step(first, P0, P1) == Current(2, 0, STABLE, {P0: 2, P1: 2})


def test_partitions_are_revoked_before_others_are_assigned() -> None:
    before = Current(1, 0, STABLE, {P0: 1, P1: 1})
    told = step(before, P1, P2)
    assert told == Current(1, 0, UNREVOKED, {P1: 1}, {P0: 1})
    assert step(told, P1, P2) == told, "the member has not said what it owns"
    assert step(told, P1, P2, owned={P0, P1}) == told
    assert step(told, P1, P2, owned={P1}) == Current(2, 1, STABLE, {P1: 1, P2: 2})


def test_a_member_that_gave_up_its_partitions_already_goes_on() -> None:
    before = Current(1, 0, STABLE, {P0: 1, P1: 1})
    assert step(before, P1, owned={P1}) == Current(2, 1, STABLE, {P1: 1})


def test_the_target_changes_again_during_a_revocation() -> None:
    told = Current(1, 0, UNREVOKED, {P1: 1}, {P0: 1})
    assert step(told, P0, epoch=3, owned={P1}) == Current(1, 0, UNREVOKED, {}, {P1: 1})
    assert step(told, P0, P1, epoch=3, owned={P1}) == Current(3, 1, STABLE, {P0: 3, P1: 1})


def test_a_stable_member_at_the_epoch_of_the_target_stays() -> None:
    before = Current(2, 1, STABLE, {P0: 1})
    assert step(before, P0, P1) is before


def test_topics_that_are_unsubscribed_are_revoked_at_once() -> None:
    """Also while the target is still the old one."""
    before = Current(2, 1, STABLE, {P0: 1, Q0: 2})
    told = step(before, P0, topics=(TOPIC,), owned={P0, Q0})
    assert told == Current(2, 1, UNREVOKED, {P0: 1}, {Q0: 2})
    assert step(told, P0, owned={P0}) == Current(2, 1, STABLE, {P0: 1})
    gone = step(before, P0, topics=(TOPIC,), owned={P0})
    assert gone == Current(2, 1, STABLE, {P0: 1})
    assert step(before, P0, Q0, topics=(TOPIC, OTHER)) is before
    more = step(told, topics=(), owned={P0, Q0})
    assert more == Current(2, 1, UNREVOKED, {}, {Q0: 2, P0: 1})


def test_a_member_of_unknown_state_must_own_nothing() -> None:
    before = Current(2, 1, MemberState.UNKNOWN, {P0: 1})
    for owned in (None, {P0}):
        with pytest.raises(KafkaError) as refused:
            step(before, P0, owned=owned)
        assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert step(before, P0, owned=set(), epoch=3).state is STABLE
