"""Reassignment: moving replicas to other brokers."""

from __future__ import annotations

import pytest

from penstock.metadata.model import NO_LEADER, Partition
from penstock.metadata.reassignment import Move, MoveAnswer, Moving, move_under_way, reassign
from penstock.topic_partition import TopicPartition
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


def test_targets_are_added_before_any_replica_is_removed() -> None:
    """The move ends when all targets are in sync."""
    cluster = created()
    assert move(cluster, 3, 4, 1) == MoveAnswer("t", 0, ErrorCode.NONE)
    partition = only(cluster)
    assert partition.replicas == (3, 4, 1, 0, 2)
    assert (partition.adding_replicas, partition.removing_replicas) == ((3, 4), (0, 2))
    assert (partition.isr, partition.leader, partition.leader_epoch) == ((0, 1, 2), 0, 0)
    ask(cluster, change(cluster, 0, 1, 2, 3))
    moving = Moving("t", 0, (3, 4, 1, 0, 2), (3, 4), (0, 2), (3,))
    assert move_under_way(cluster.image, TopicPartition("t", 0)) == moving
    (answer,) = ask(cluster, change(cluster, 0, 1, 2, 3, 4))
    assert answer.error == ErrorCode.NEW_LEADER_ELECTED
    partition = only(cluster)
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4, 1), (3, 4, 1), 3)
    epochs = tuple(cluster.image.brokers[each].broker_epoch for each in (3, 4, 1))
    assert (partition.member_epochs, partition.leader_epoch) == (epochs, 1)
    assert not partition.is_moving
    assert move_under_way(cluster.image, TopicPartition("t", 0)) is None


def test_a_leader_that_stays_gets_a_new_epoch() -> None:
    """So that a removed replica that has not learned of its removal does not count."""
    cluster = created()
    move(cluster, 0, 1, 3)
    (answer,) = ask(cluster, change(cluster, 0, 1, 2, 3))
    assert answer.error == ErrorCode.NEW_LEADER_ELECTED
    assert (only(cluster).leader, only(cluster).leader_epoch) == (0, 1)


def test_replicas_are_removed_at_once() -> None:
    """If those that stay are in sync."""
    cluster = created()
    move(cluster, 1, 0)
    partition = only(cluster)
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 0), (1, 0), 0)
    assert move(cluster, 2).error == ErrorCode.NONE
    assert only(cluster).is_moving


def test_another_order_changes_only_the_preferred_leader() -> None:
    """No records are copied."""
    cluster = created()
    move(cluster, 2, 1, 0)
    partition = only(cluster)
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((2, 1, 0), 0, 0)
    revision = cluster.revision
    assert move(cluster, 2, 1, 0).error == ErrorCode.NONE
    assert cluster.revision == revision


def test_a_move_can_be_canceled() -> None:
    """The added replicas are removed, in sync or not."""
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


def test_a_move_cannot_be_canceled_while_only_added_replicas_are_in_sync() -> None:
    """They have records that the others lack."""
    cluster = created(replicas=1)
    move(cluster, 3, 4)
    ask(cluster, change(cluster, 0, 3))
    cluster.kill(0)
    review(cluster)
    assert only(cluster).isr == (3,)
    answer = cancel(cluster)
    assert answer.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert only(cluster).is_moving


def short_of_copies() -> Cluster:
    """Returns a partition that is being moved to broker 3. Only brokers 0 and 3 are in sync."""
    cluster = Cluster(brokers=5)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    move(cluster, 0, 1, 3)
    ask(cluster, change(cluster, 0, 3))
    assert only(cluster).isr == (0, 3)
    return cluster


def test_an_added_replica_is_not_dropped_while_it_is_one_of_the_last_copies() -> None:
    """Broker 0 may be dead, and its death not yet noticed. Then broker 3 has the only copy."""
    for replicas in ((0, 1, 4), (0, 1, 2)):
        cluster = short_of_copies()
        answer = move(cluster, *replicas)
        assert answer.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "[0, 3]" in (answer.message or "") and "only [0]" in (answer.message or "")
        assert only(cluster).isr == (0, 3)
    cluster = short_of_copies()
    assert cancel(cluster).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    ask(cluster, change(cluster, 0, 2, 3))
    assert cancel(cluster).error == ErrorCode.NONE
    assert only(cluster).isr == (0, 2)


def test_fewer_copies_are_kept_if_fewer_are_wanted() -> None:
    """Whoever asks for one replica gets one, even with min.insync.replicas=2."""
    cluster = short_of_copies()
    assert move(cluster, 0).error == ErrorCode.NONE
    assert (only(cluster).replicas, only(cluster).isr) == ((0,), (0,))


def test_an_eligible_replica_counts_as_a_copy() -> None:
    """After broker 3 was removed from the ISR, it still has everything that is committed."""
    cluster = short_of_copies()
    ask(cluster, change(cluster, 0))
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((0,), (3,))
    assert cancel(cluster).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_move_can_be_changed_while_it_runs() -> None:
    """A replica that is in neither the original nor the new set is removed at once, even the
    leader."""
    cluster = created()
    move(cluster, 3, 1, 2)
    ask(cluster, change(cluster, 0, 1, 2))
    move(cluster, 4, 1, 2)
    partition = only(cluster)
    assert partition.replicas == (4, 1, 2, 0)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4,), (0,))
    assert partition.leader_epoch == 1


def test_a_move_waits_for_a_dead_target() -> None:
    """A move ends when all targets are in sync, not before."""
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
    """The replica that has everything that is committed stays until then."""
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
def test_invalid_moves_are_refused(
    replicas: tuple[int, ...], same_number: bool, error: ErrorCode
) -> None:
    """With Kafka's error codes, and a message that says what to do."""
    answer = move(created(), *replicas, same_number=same_number)
    assert answer.error == error
    assert (answer.message is None) == (error == ErrorCode.NONE)


def test_each_partition_gets_its_own_answer() -> None:
    """Those that exist are moved, and are listed on request."""
    cluster = created()
    decision = reassign(cluster.image, [Move("x", 0, (1,)), Move("t", 9, (1,)), Move("t", 0, (3,))])
    errors = [answer.error for answer in cluster.commit(decision)]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [unknown, unknown, ErrorCode.NONE]
    indexes = (0, 1, 5)
    moving = [move_under_way(cluster.image, TopicPartition("t", index)) for index in indexes]
    assert [each is not None for each in moving] == [True, False, False]
