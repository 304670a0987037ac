"""A damaged replica is no longer among those that hold everything, and cannot slip in again."""

from __future__ import annotations

from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import broker_key, decode_topic, encode_broker, encode_topic, topic_key
from penstock.metadata.model import BrokerInfo, Partition, Topic
from penstock.metadata.withdrawal import withdraw


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


def after(made: ClusterImage, broker_id: int, *, offline: bool = False) -> Partition | None:
    decision = withdraw(made, broker_id, [("t", 0)], offline=offline)
    assert bool(decision.changes) == (decision.result == (("t", 0),))
    if not decision.changes:
        return None
    (change,) = decision.changes
    assert change.value is not None
    return decode_topic("t", change.value).partitions[0]


def test_a_follower_leaves_and_the_leader_begins_a_new_term() -> None:
    """In the old one it might be taken in by a fetch from before."""
    found = after(image(partition((0, 1, 2), leader=0)), 2)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((0, 1), ())
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (0, 6, 10)
    assert found.member_epochs == (1, 2)


def test_a_leader_is_succeeded_by_one_in_sync() -> None:
    """The first of the assignment."""
    found = after(image(partition((0, 1, 2), leader=0)), 0)
    assert found is not None
    assert (found.isr, found.leader, found.leader_broker_epoch) == ((1, 2), 1, 2)


def test_below_the_minimum_it_is_not_even_eligible() -> None:
    """Others that are stay so: they hold everything."""
    found = after(image(partition((0, 1), leader=0), min_insync_replicas="2"), 1)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((0,), ())
    held = partition((0,), leader=0, eligible=(1, 2))
    found = after(image(held, min_insync_replicas="3"), 1)
    assert found is not None
    assert (found.isr, found.eligible_leaders) == ((0,), (2,))


def test_one_that_counts_no_more_still_gets_a_new_term() -> None:
    """The leader might be about to take it in."""
    found = after(image(partition((0, 1), leader=0)), 2)
    assert found is not None
    assert (found.isr, found.leader, found.leader_epoch) == ((0, 1), 0, 6)


def test_the_last_one_in_sync_stays() -> None:
    """A damaged copy is better than none; the dead do not count as others."""
    assert after(image(partition((0,), leader=0)), 0) is None
    assert after(image(partition((0, 1), leader=0), living=(0,)), 0) is None


def test_an_election_that_is_due_comes_first() -> None:
    """The leader is dead: who leads next is not for the damaged one to say."""
    assert after(image(partition((0, 1, 2), leader=0), living=(1, 2)), 2) is None
    assert after(image(partition((0, 1), leader=-1)), 2) is None


def test_a_topic_that_is_gone_is_passed_over() -> None:
    """The rest is done all the same."""
    made = image(partition((0, 1, 2), leader=0))
    decision = withdraw(made, 2, [("gone", 0), ("t", 0), ("t", 7)])
    assert decision.result == (("t", 0),)


def test_a_log_that_is_offline_is_succeeded_by_an_eligible_one() -> None:
    """A damaged one stays: it can serve what is sound. One that is offline serves nothing."""
    held = image(partition((0,), leader=0, eligible=(1, 2)), min_insync_replicas="2")
    assert after(held, 0) is None
    found = after(held, 0, offline=True)
    assert found is not None
    assert (found.isr, found.eligible_leaders, found.leader) == ((1,), (2,), 1)
    assert (found.leader_epoch, found.leader_broker_epoch) == (6, 2)


def test_a_log_that_is_offline_is_succeeded_by_anybody_only_where_that_is_allowed() -> None:
    """The one that takes over holds all there is from then on."""
    alone = partition((0,), leader=0)
    assert after(image(alone), 0, offline=True) is None
    found = after(image(alone, unclean_leader_election_enable="true"), 0, offline=True)
    assert found is not None
    assert (found.isr, found.member_epochs, found.leader) == ((1,), (2,), 1)


def test_an_offline_log_is_never_led_by_nobody() -> None:
    """It would be given back to the same broker at once."""
    held = partition((0,), leader=0, eligible=(1,))
    assert after(image(held, living=(0,), min_insync_replicas="2"), 0, offline=True) is None
