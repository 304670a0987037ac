"""Tests of acknowledgements that wait: in which groups they are sent, and what answers mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import BrokerError, ClientError, LockLost
from penstock.client.sharing.ack_outcomes import Settled, settle_group
from penstock.client.sharing.acknowledgements import (
    GROUP_MAX,
    Acknowledgement,
    AckQueue,
    AckType,
    batches,
)
from penstock.client.sharing.membership import SharePart
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareAcknowledgeRequest

A, B = (SharePart(bytes(16), number) for number in range(2))
Outcomes = dict[int, ClientError | None]


def made(
    first: int,
    last: int | None = None,
    kind: AckType = AckType.ACCEPT,
    part: SharePart = A,
    outcomes: Outcomes | None = None,
    deadline: float = 30.0,
) -> Acknowledgement:
    def resolve(error: ClientError | None) -> None:
        if outcomes is not None:
            assert first not in outcomes, "an acknowledgement was resolved twice"
            outcomes[first] = error

    return Acknowledgement(part, first, first if last is None else last, kind, deadline, resolve)


def shown(group: list[Acknowledgement]) -> list[tuple[int, int, list[int]]]:
    found = batches(group, ShareAcknowledgeRequest.AcknowledgementBatch)
    return [(each.first_offset, each.last_offset, each.acknowledge_types) for each in found]


def test_neighbors_are_one_batch_in_order() -> None:
    group = [made(7), made(5), made(6, kind=AckType.REJECT), made(9)]
    assert shown(group) == [(5, 7, [1, 3, 1]), (9, 9, [1])]
    assert shown([made(2), made(1)]) == [(1, 2, [1])]


def test_a_long_gap_does_not_make_a_long_list_of_types() -> None:
    group = [made(0, 999_999, AckType.GAP), made(1_000_000, kind=AckType.GAP), made(1_000_001)]
    assert shown(group) == [(0, 1_000_000, [0]), (1_000_001, 1_000_001, [1])]
    assert shown([made(0), made(1, 9, AckType.GAP)]) == [(0, 0, [1]), (1, 9, [0])]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0, 1, 2, 3])), max_size=12))
def test_batches_say_the_same_as_the_acknowledgements(spans: list[tuple[int, int]]) -> None:
    group, expected, at = [], {}, 0
    for length, kind in spans:
        group.append(made(at, at + length - 1, AckType(kind)))
        expected.update(dict.fromkeys(range(at, at + length), kind))
        at += length + (kind == 2)
    said: dict[int, int] = {}
    for first, last, types in shown(group):
        assert len(types) in (1, last - first + 1)
        for offset in range(first, last + 1):
            assert offset not in said
            said[offset] = types[0] if len(types) == 1 else types[offset - first]
    assert said == expected


def test_no_offset_is_in_two_batches() -> None:
    """A leader that gave its session up delivers the same gap again before it is acknowledged. It
    refuses all acknowledgements of a partition if they name an offset twice."""
    gap = AckType.GAP
    assert shown([made(5, kind=gap), made(3), made(5, kind=gap)]) == [(3, 3, [1]), (5, 5, [0])]
    assert shown([made(4, 6, gap), made(5, 8, gap), made(5, 5, gap)]) == [(4, 8, [0])]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(0, 3)), max_size=8))
def test_batches_name_every_offset_once(spans: list[tuple[int, int, int]]) -> None:
    group = [made(first, first + count - 1, AckType(kind)) for first, count, kind in spans]
    said = [at for first, last, _ in shown(group) for at in range(first, last + 1)]
    assert said == sorted({at for each in group for at in range(each.first, each.last + 1)})
    for first, last, types in shown(group):
        assert len(types) in (1, last - first + 1)


def test_a_request_has_one_group_of_each_partition() -> None:
    queue = AckQueue()
    for number in range(GROUP_MAX + 5):
        queue.add(made(number))
    queue.add(made(0, part=B))
    assert sorted(map(len, queue.take())) == [1, GROUP_MAX]
    assert [len(group) for group in queue.take()] == [5]
    assert not queue
    queue.add(made(1))
    assert queue.take([B]) == []
    assert len(queue.take([A])) == 1


def test_a_refused_group_is_divided_until_the_lost_lock_is_found() -> None:
    queue, outcomes = AckQueue(), Outcomes()
    for number in range(20):
        queue.add(made(number, outcomes=outcomes))
    requests = 0
    while queue:
        requests += 1
        for group in queue.take():
            lost = any(each.first == 13 for each in group)
            code = ErrorCode.INVALID_RECORD_STATE if lost else ErrorCode.NONE
            settle_group(queue, group, code, None)
        if requests == 1:
            queue.add(made(100, outcomes=outcomes))
    assert isinstance(outcomes.pop(13), LockLost)
    assert set(outcomes) == {*range(20), 100} - {13}
    assert not any(outcomes.values())
    assert requests < 14


def test_answers_of_a_partition() -> None:
    queue, outcomes = AckQueue(), Outcomes()
    assert settle_group(queue, [made(1, outcomes=outcomes)], 0, None) is Settled.ENDED
    moved = settle_group(
        queue, [made(2, outcomes=outcomes)], ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    )
    again = settle_group(queue, [made(3, outcomes=outcomes)], ErrorCode.REQUEST_TIMED_OUT, None)
    settle_group(queue, [made(4, outcomes=outcomes)], ErrorCode.INVALID_REQUEST, "no")
    assert (moved, again) == (Settled.LEADER_CHANGED, Settled.AGAIN)
    assert isinstance(outcomes[2], LockLost)
    assert isinstance(outcomes[4], BrokerError)
    assert 3 not in outcomes
    assert queue.size == 1


@pytest.mark.parametrize("divided", [False, True])
def test_what_is_too_late_is_removed(divided: bool) -> None:
    queue = AckQueue()
    group = [made(1, deadline=5.0), made(2, deadline=9.0), made(3, deadline=5.0)]
    if divided:
        queue.divide(group)
    else:
        for each in group:
            queue.add(each)
    assert [each.first for each in queue.drop_late(5.0)] == [1, 3]
    assert queue.size == 1
    assert [each.first for each in queue.drop_late(9.0)] == [2]
    assert not queue.take()


def test_acknowledgements_of_some_partitions_are_dropped() -> None:
    queue = AckQueue()
    for offset, part in enumerate((A, B, B)):
        queue.add(made(offset, part=part))
    queue.put_back(queue.take([A]))
    dropped = queue.drop_parts(lambda part: part == B)
    assert ([each.first for each in dropped], queue.size) == ([1, 2], 1)
    assert [group[0].part for group in queue.take()] == [A]
