"""Preferred leaders, unclean elections by an operator, and brokers that hand over before they
stop."""

from __future__ import annotations

from penstock.metadata.edits import PARTITIONS_MAX, TOPICS_MAX
from penstock.metadata.elections import elect_leaders
from penstock.metadata.membership import announce_stop
from penstock.metadata.model import NO_LEADER, Partition
from penstock.metadata.preferred import Election, elect, hand_over, in_portions, is_due
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

from .cluster import Cluster
from .test_isr import ask, change


def only(cluster: Cluster) -> Partition:
    return cluster.image.topics["t"].partitions[0]


def review(cluster: Cluster) -> None:
    for decision in elect_leaders(cluster.image):
        cluster.commit(decision)


def prefer(cluster: Cluster, index: int = 0, **rest: object) -> Election:
    decision = elect(cluster.image, [TopicPartition("t", index)], **rest)  # type: ignore[arg-type]
    (election,) = cluster.commit(decision)
    return election


def with_leader_away() -> Cluster:
    """Returns a cluster where broker 0 has come back and is in sync, and broker 1 leads."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    cluster.kill(0)
    review(cluster)
    cluster.start(0)
    ask(cluster, change(cluster, 0, 1, 2), broker=1)
    return cluster


def test_the_preferred_replica_leads_again() -> None:
    """Once it is in sync, with a new leader epoch."""
    cluster = with_leader_away()
    before = only(cluster)
    assert prefer(cluster) == Election("t", 0, ErrorCode.NONE, 0)
    after = only(cluster)
    assert (after.leader, after.leader_epoch) == (0, before.leader_epoch + 1)
    assert after.leader_broker_epoch == cluster.image.brokers[0].broker_epoch
    assert (after.isr, after.partition_epoch) == (before.isr, before.partition_epoch + 1)
    assert prefer(cluster).error == ErrorCode.ELECTION_NOT_NEEDED
    assert prefer(cluster, 5).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_preferred_replica_that_cannot_lead_is_not_elected() -> None:
    """It is stopping, not in sync, or dead."""
    cluster = with_leader_away()
    assert prefer(cluster, stopping={0}).error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    ask(cluster, change(cluster, 1, 2), broker=1)
    election = prefer(cluster)
    assert (election.error, election.leader) == (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 1)
    assert election.message is not None
    ask(cluster, change(cluster, 0, 1, 2), broker=1)
    cluster.kill(0)
    assert prefer(cluster).error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert only(cluster).leader == 1


def test_an_operator_can_ask_for_an_unclean_election() -> None:
    """Only where there is no leader. The replica that loses least leads, and no other is eligible
    then."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2)
    ask(cluster, change(cluster, 0))
    assert prefer(cluster, unclean=True).error == ErrorCode.ELECTION_NOT_NEEDED
    cluster.kill(0, 1)
    review(cluster)
    assert prefer(cluster, unclean=True).error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    broker = cluster.start(1)
    review(cluster)
    assert only(cluster).leader == NO_LEADER
    assert prefer(cluster, unclean=True) == Election("t", 0, ErrorCode.NONE, 1)
    partition = only(cluster)
    assert (partition.isr, partition.eligible_leaders) == ((1,), ())
    assert partition.member_epochs == (broker.broker_epoch,)


def test_an_unclean_election_prefers_a_replica_with_all_records() -> None:
    """An eligible leader, if one is alive."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    ask(cluster, change(cluster, 0))
    ask(cluster, change(cluster, 0, 1))
    ask(cluster, change(cluster, 0))
    assert only(cluster).eligible_leaders == (1,)
    cluster.kill(0)
    election = prefer(cluster, unclean=True)
    assert election.leader == 1
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((1,), (0,))


def test_all_partitions_are_elected_in_portions() -> None:
    """Each portion fits one decision."""
    cluster = Cluster(brokers=1)
    for number in range(TOPICS_MAX + 1):
        cluster.create(f"t{number}", 2)
    sizes = [len(portion) for portion in in_portions(cluster.image, None)]
    assert sizes == [2 * TOPICS_MAX, 2]
    named = (TopicPartition("x", 1), TopicPartition("y", 0))
    assert list(in_portions(cluster.image, named)) == [named]


def test_a_broker_hands_over_before_it_stops() -> None:
    """Other replicas lead, and the broker leaves the ISR. Where it is the only replica, it stays
    leader."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 3, 3, min_insync_replicas="2")
    cluster.create("alone", 3, 1)
    assert cluster.commit(hand_over(cluster.image, 0)) == 1
    topics = cluster.image.topics
    assert [each.leader for each in topics["t"].partitions] == [1, 1, 2]
    assert [each.isr for each in topics["t"].partitions] == [(1, 2), (1, 2), (2, 1)]
    assert [each.leader_epoch for each in topics["t"].partitions] == [1, 0, 0]
    assert [each.leader for each in topics["alone"].partitions] == [0, 1, 2]
    again = hand_over(cluster.image, 0)
    assert (again.changes, again.result) == ((), 1)


def test_a_broker_that_is_stopping_does_not_take_over() -> None:
    """It would have to hand over itself, unless it leaves the ISR."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    cluster.commit(hand_over(cluster.image, 0, stopping={0, 1}))
    assert only(cluster).leader == 2
    assert cluster.commit(hand_over(cluster.image, 1, stopping={0, 1})) == 0
    assert only(cluster).isr == (2,)
    assert cluster.commit(hand_over(cluster.image, 2, stopping={0, 1, 2})) == 1


def test_a_partition_whose_leader_died_is_left_to_the_election() -> None:
    """A follower that hands over must not leave a leader outside of the ISR."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    cluster.kill(0)
    decision = hand_over(cluster.image, 1)
    assert decision.changes == ()
    review(cluster)
    cluster.commit(hand_over(cluster.image, 1))
    assert (only(cluster).leader, only(cluster).isr) == (2, (2,))


def test_handing_over_many_topics_takes_several_rounds() -> None:
    """Each round is one decision."""
    cluster = Cluster(brokers=2)
    for number in range(TOPICS_MAX + 3):
        cluster.create(f"t{number}", 1, 2)
    assert cluster.commit(hand_over(cluster.image, 0)) == 3
    assert cluster.commit(hand_over(cluster.image, 0)) == 0


def test_when_the_preferred_replica_should_lead_again() -> None:
    """It is in sync, alive and not stopping, and another replica leads."""
    cluster = with_leader_away()
    assert is_due(cluster.image, only(cluster))
    cluster.commit(announce_stop(cluster.image, 0, cluster.image.brokers[0].broker_epoch))
    assert not is_due(cluster.image, only(cluster))
    cluster = with_leader_away()
    prefer(cluster)
    assert not is_due(cluster.image, only(cluster))
    cluster = with_leader_away()
    ask(cluster, change(cluster, 1, 2), broker=1)
    assert not is_due(cluster.image, only(cluster))


def test_large_topics_are_changed_a_few_at_a_time() -> None:
    """A commit is limited in bytes too. The topics in one commit have only a few more
    partitions than the limit, however many of them change."""
    cluster = Cluster(brokers=2)
    size = PARTITIONS_MAX // 2
    for number in range(5):
        cluster.create(f"t{number}", size, 2)
    portions = list(in_portions(cluster.image, None))
    assert [len(portion) for portion in portions] == [2 * size, 2 * size, size]
    rounds = 0
    while (decision := hand_over(cluster.image, 0)).changes:
        assert len(decision.changes) <= 2
        cluster.commit(decision)
        rounds += 1
    assert (rounds, decision.result) == (3, 0)
    cluster.kill(1)
    assert [len(decision.changes) for decision in elect_leaders(cluster.image)] == [2, 2, 1]
