"""A damaged replica leaves the ISR and cannot be added again by accident."""

from __future__ import annotations

from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import broker_key, topic_key
from penstock.metadata.model import BrokerInfo, Partition, Topic
from penstock.metadata.topic_values import decode_topic, encode_topic
from penstock.metadata.withdrawal import withdraw
from penstock.topic_partition import TopicPartition


def image(
    partition: Partition, *, living: tuple[int, ...] = (0, 1, 2), **configs: str
) -> ClusterImage:
    made = ClusterImage()
    for broker_id in living:
        info = BrokerInfo(broker_id, "h", 9, None, bytes(16))
        made.apply(broker_key(broker_id), encode_broker(info), broker_id + 1)
    texts = {name.replace("_", "."): value for name, value in configs.items()}
    topic = Topic("t", b"t" * 16, (partition,), texts)
    made.apply(topic_key("t"), encode_topic(topic), 10)
    return made


def partition(isr: tuple[int, ...], leader: int, eligible: tuple[int, ...] = ()) -> Partition:
    epochs = tuple(each + 1 for each in isr + eligible)
    return Partition((0, 1, 2), isr, eligible, leader, 5, 9, leader + 1, epochs)


def after(
    made: ClusterImage, broker_id: int, *, offline: bool = False, locked: bool = False
) -> Partition | None:
    asked = [TopicPartition("t", 0)]
    decision = withdraw(made, broker_id, asked, offline=offline, locked=asked if locked else ())
    assert bool(decision.changes) == (decision.result == (("t", 0),))
    if not decision.changes:
        return None
    (change,) = decision.changes
    assert change.value is not None
    return decode_topic("t", change.value).partitions[0]


def test_a_follower_leaves_and_the_leader_gets_a_new_epoch() -> None:
    """In the old epoch an earlier fetch could add it again."""
    found = after(image(partition((0, 1, 2), leader=0)), 2)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((0, 1), ())
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (0, 6, 10)
    assert found.member_epochs == (1, 2)


def test_a_leader_is_replaced_by_an_in_sync_replica() -> None:
    """By the first one of the assignment."""
    found = after(image(partition((0, 1, 2), leader=0)), 0)
    assert found is not None
    assert (found.isr, found.leader, found.leader_broker_epoch) == ((1, 2), 1, 2)


def test_below_min_insync_a_damaged_replica_is_not_even_eligible() -> None:
    """Other eligible replicas stay eligible: they have everything."""
    found = after(image(partition((0, 1), leader=0), min_insync_replicas="2"), 1)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((0,), ())
    held = partition((0,), leader=0, eligible=(1, 2))
    found = after(image(held, min_insync_replicas="3"), 1)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((0,), (2,))


def test_below_min_insync_a_replica_that_lacks_a_key_stays_eligible() -> None:
    """It has lost nothing. The other member of the ISR may have lost power, and its death may not
    be noticed yet. With enough replicas in sync, it does not stay eligible."""
    held = image(partition((0, 1), leader=0), min_insync_replicas="2")
    found = after(held, 1, offline=True, locked=True)
    assert found is not None
    assert (found.isr, found.eligible_leaders, found.leader) == ((0,), (1,), 0)
    found = after(held, 0, offline=True, locked=True)
    assert found is not None
    assert (found.isr, found.eligible_leaders, found.leader) == ((1,), (0,), 1)
    assert found.leader_epoch == 6
    found = after(image(partition((0, 1, 2), leader=0), min_insync_replicas="2"), 0, locked=True)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((1, 2), ())


def test_a_replica_outside_the_isr_causes_a_new_epoch_too() -> None:
    """The leader might be about to add it."""
    found = after(image(partition((0, 1), leader=0)), 2)
    assert found is not None
    assert (found.isr, found.leader, found.leader_epoch) == ((0, 1), 0, 6)


def test_the_last_in_sync_replica_stays() -> None:
    """A damaged copy is better than none. Dead replicas do not count."""
    assert after(image(partition((0,), leader=0)), 0) is None
    assert after(image(partition((0, 1), leader=0), living=(0,)), 0) is None


def test_a_pending_election_comes_first() -> None:
    """If the leader is dead, the damaged replica does not decide which one leads next."""
    assert after(image(partition((0, 1, 2), leader=0), living=(1, 2)), 2) is None
    assert after(image(partition((0, 1), leader=-1)), 2) is None


def test_a_deleted_topic_is_skipped() -> None:
    """The other partitions are still changed."""
    made = image(partition((0, 1, 2), leader=0))
    decision = withdraw(
        made, 2, [TopicPartition(*each) for each in (("gone", 0), ("t", 0), ("t", 7))]
    )
    assert decision.result == (("t", 0),)


def test_an_offline_log_is_replaced_by_an_eligible_replica() -> None:
    """A damaged leader stays: it can serve the valid records. An offline one serves nothing."""
    held = image(partition((0,), leader=0, eligible=(1, 2)), min_insync_replicas="2")
    assert after(held, 0) is None
    found = after(held, 0, offline=True)
    assert found is not None
    assert (found.isr, found.eligible_leaders, found.leader) == ((1,), (2,), 1)
    assert (found.leader_epoch, found.leader_broker_epoch) == (6, 2)


def test_an_offline_log_is_replaced_by_any_replica_only_where_allowed() -> None:
    """The new leader's log is authoritative from then on."""
    alone = partition((0,), leader=0)
    assert after(image(alone), 0, offline=True) is None
    found = after(image(alone, unclean_leader_election_enable="true"), 0, offline=True)
    assert found is not None
    assert (found.isr, found.member_epochs, found.leader) == ((1,), (2,), 1)


def test_an_offline_log_keeps_its_leader_if_there_is_no_other() -> None:
    """Without a leader, the election would choose the same broker again at once."""
    held = partition((0,), leader=0, eligible=(1,))
    assert after(image(held, living=(0,), min_insync_replicas="2"), 0, offline=True) is None
