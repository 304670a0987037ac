"""Moves of replicas from some brokers to others."""

from __future__ import annotations

import pytest

from penstock.metadata.model import NO_LEADER, Partition
from penstock.metadata.reassignment import Move, MoveAnswer, Moving, moves_under_way, reassign
from penstock.wire.errors import ErrorCode

from .cluster import Cluster
from .test_isr import ask, change
from .test_isr import elect as review


def only(cluster: Cluster) -> Partition:
    return cluster.image.topics["t"].partitions[0]


def move(cluster: Cluster, *replicas: int, same_number: bool = False) -> MoveAnswer:
    decision = reassign(
        cluster.image, [Move("t", 0, replicas)], allow_replication_factor_change=not same_number
    )
    (answer,) = cluster.commit(decision)
    return answer


def cancel(cluster: Cluster) -> MoveAnswer:
    (answer,) = cluster.commit(reassign(cluster.image, [Move("t", 0, None)]))
    return answer


def created(replicas: int = 3) -> Cluster:
    cluster = Cluster(brokers=5)
    cluster.create("t", 1, replicas)
    return cluster


def test_targets_are_added_before_anybody_goes() -> None:
    """And the move ends when all of them are in sync."""
    cluster = created()
    assert move(cluster, 3, 4, 1) == MoveAnswer("t", 0, ErrorCode.NONE)
    partition = only(cluster)
    assert partition.replicas == (3, 4, 1, 0, 2)
    assert (partition.adding_replicas, partition.removing_replicas) == ((3, 4), (0, 2))
    assert (partition.isr, partition.leader, partition.leader_epoch) == ((0, 1, 2), 0, 0)
    ask(cluster, change(cluster, 0, 1, 2, 3))
    assert moves_under_way(cluster.image) == (
        Moving("t", 0, (3, 4, 1, 0, 2), (3, 4), (0, 2), (3,)),
    )
    (answer,) = ask(cluster, change(cluster, 0, 1, 2, 3, 4))
    assert answer.error == ErrorCode.NEW_LEADER_ELECTED
    partition = only(cluster)
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4, 1), (3, 4, 1), 3)
    epochs = tuple(cluster.image.brokers[each].broker_epoch for each in (3, 4, 1))
    assert (partition.member_epochs, partition.leader_epoch) == (epochs, 1)
    assert not partition.is_moving
    assert moves_under_way(cluster.image) == ()


def test_a_leader_that_stays_leads_on_under_a_new_epoch() -> None:
    """So that who was dropped, and has not heard of it, is not counted."""
    cluster = created()
    move(cluster, 0, 1, 3)
    (answer,) = ask(cluster, change(cluster, 0, 1, 2, 3))
    assert answer.error == ErrorCode.NEW_LEADER_ELECTED
    assert (only(cluster).leader, only(cluster).leader_epoch) == (0, 1)


def test_fewer_replicas_are_had_at_once() -> None:
    """If those that stay are in sync."""
    cluster = created()
    move(cluster, 1, 0)
    partition = only(cluster)
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 0), (1, 0), 0)
    assert move(cluster, 2).error == ErrorCode.NONE
    assert only(cluster).is_moving


def test_another_order_is_another_preferred_leader() -> None:
    """Nothing moves."""
    cluster = created()
    move(cluster, 2, 1, 0)
    partition = only(cluster)
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((2, 1, 0), 0, 0)
    revision = cluster.revision
    assert move(cluster, 2, 1, 0).error == ErrorCode.NONE
    assert cluster.revision == revision


def test_a_move_is_cancelled() -> None:
    """The added replicas go, in sync or not."""
    cluster = created()
    before = only(cluster)
    assert cancel(cluster).error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(cluster, 3, 4, 1)
    ask(cluster, change(cluster, 0, 1, 2, 3))
    assert cancel(cluster).error == ErrorCode.NONE
    partition = only(cluster)
    assert {*partition.replicas} == {*before.replicas}
    assert (partition.isr, partition.leader) == ((0, 1, 2), 0)
    assert not partition.is_moving
    assert partition.leader_epoch == 1


def test_a_move_is_not_cancelled_while_only_the_new_ones_are_in_sync() -> None:
    """They have what the others lack."""
    cluster = created(replicas=1)
    move(cluster, 3, 4)
    ask(cluster, change(cluster, 0, 3))
    cluster.kill(0)
    review(cluster)
    assert only(cluster).isr == (3,)
    answer = cancel(cluster)
    assert answer.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert only(cluster).is_moving


def test_a_move_is_changed_on_the_way() -> None:
    """Who is in neither the original nor the new set goes at once, the leader included."""
    cluster = created()
    move(cluster, 3, 1, 2)
    ask(cluster, change(cluster, 0, 1, 2))
    move(cluster, 4, 1, 2)
    partition = only(cluster)
    assert partition.replicas == (4, 1, 2, 0)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4,), (0,))
    assert partition.leader_epoch == 1


def test_a_dead_target_is_waited_for() -> None:
    """A move ends with all targets in sync, no sooner."""
    cluster = created()
    move(cluster, 1, 3)
    cluster.kill(1)
    review(cluster)
    ask(cluster, change(cluster, 0, 2, 3))
    assert only(cluster).is_moving
    cluster.start(1)
    ask(cluster, change(cluster, 0, 2, 3, 1))
    assert not only(cluster).is_moving


def test_a_partition_without_a_leader_can_be_moved() -> None:
    """Whoever holds all that is committed has to stay with it until then."""
    cluster = created(replicas=1)
    cluster.kill(0)
    review(cluster)
    assert only(cluster).leader == NO_LEADER
    assert move(cluster, 3).error == ErrorCode.NONE
    assert (only(cluster).replicas, only(cluster).eligible_leaders) == ((3, 0), (0,))


@pytest.mark.parametrize(
    ("replicas", "same_number", "error"),
    [
        ((), False, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), False, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), False, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((3, 4), True, ErrorCode.INVALID_REPLICATION_FACTOR),
        ((3, 4, 1), True, ErrorCode.NONE),
    ],
)
def test_what_is_refused(replicas: tuple[int, ...], same_number: bool, error: ErrorCode) -> None:
    """By Kafka's codes, with a word on what to do."""
    answer = move(created(), *replicas, same_number=same_number)
    assert answer.error == error
    assert (answer.message is None) == (error == ErrorCode.NONE)


def test_each_partition_is_answered_for_itself() -> None:
    """Those that exist move, and are listed when asked for."""
    cluster = created()
    decision = reassign(cluster.image, [Move("x", 0, (1,)), Move("t", 9, (1,)), Move("t", 0, (3,))])
    errors = [answer.error for answer in cluster.commit(decision)]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [unknown, unknown, ErrorCode.NONE]
    assert [each.topic for each in moves_under_way(cluster.image, [("t", 0), ("t", 5)])] == ["t"]
    assert moves_under_way(cluster.image, [("t", 1)]) == ()
