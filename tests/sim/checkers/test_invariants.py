"""Each invariant detects a cluster, or metadata, that was made to break it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.keys import broker_key, topic_key
from penstock.metadata.model import BrokerInfo, Partition, Topic
from penstock.metadata.topic_values import encode_topic
from sim.two_brokers import WHOLE, Cluster, Term, breaks, sound_cluster


@pytest.fixture
def cluster() -> Cluster:
    return sound_cluster()


def test_a_sound_cluster_breaks_nothing(cluster: Cluster) -> None:
    """It appends, commits, elects a new leader, and a follower truncates uncommitted records."""
    cluster.write(0, b"c")
    cluster.check()
    cluster.partition(
        replace(WHOLE, leader=1, leader_epoch=1, partition_epoch=1, leader_broker_epoch=2)
    )
    cluster.lead(1, epoch=1, high_watermark=2)
    cluster.write(1, b"d", epoch=1)
    cluster.check()
    cluster.nodes[0].log.truncate_to(2)
    cluster.check()
    cluster.write(0, b"d", epoch=1)
    cluster.check()
    cluster.commit(3)
    cluster.check()


def test_logs_that_differ_in_the_same_epoch_are_detected(cluster: Cluster) -> None:
    """I1: a leader epoch and an offset identify one batch."""
    cluster.write(0, b"c")
    cluster.write(1, b"x")
    assert breaks(cluster) == "I1"


def test_a_leader_that_lacks_committed_records_is_detected(cluster: Cluster) -> None:
    """I2."""
    cluster.nodes[0].log.truncate_to(1)
    assert breaks(cluster) == "I2"


def test_an_in_sync_replica_that_lacks_committed_records_is_detected(cluster: Cluster) -> None:
    """I3."""
    cluster.write(0, b"c")
    cluster.commit(3)
    assert breaks(cluster) == "I3"


def test_committed_records_that_are_not_synced_are_detected(cluster: Cluster) -> None:
    """I2: with `durability=fsync`, records that are written but not synced do not count."""
    for broker_id in (0, 1):
        cluster.write_unsynced(broker_id, b"c")
    cluster.commit(3)
    assert breaks(cluster) == "I2"


def test_with_replicated_durability_written_records_may_be_committed(cluster: Cluster) -> None:
    """What the previous test detects is allowed with `durability=replicated`."""
    cluster.partition(replace(WHOLE, partition_epoch=1), "replicated")
    for broker_id in (0, 1):
        cluster.write_unsynced(broker_id, b"c")
    cluster.commit(3)
    cluster.check()


def test_records_reported_before_a_switch_to_fsync_may_be_committed_after_it(
    cluster: Cluster,
) -> None:
    """I3: a follower reported a record that it had only written, and then saw the switch. Once it
    has synced that record, the rule for `fsync` holds again."""
    cluster.partition(replace(WHOLE, partition_epoch=1), "replicated")
    follower = cluster.nodes[1].hosted
    follower.counts_synced = False
    cluster.write(0, b"c")
    cluster.write_unsynced(1, b"c")
    cluster.check()
    cluster.partition(replace(WHOLE, partition_epoch=2), "fsync")
    cluster.check()
    follower.counts_synced = True
    cluster.check()
    cluster.commit(3)
    cluster.check()
    cluster.nodes[1].log.flush()
    cluster.check()
    cluster.write(0, b"d")
    cluster.write_unsynced(1, b"d")
    cluster.commit(4)
    assert breaks(cluster) == "I3"


def test_a_replica_outside_the_isr_that_has_not_seen_a_switch_to_fsync_may_join_unsynced(
    cluster: Cluster,
) -> None:
    """I3: the leader makes it a member because of what it reported before it saw the switch."""
    alone = replace(WHOLE, isr=(0,), member_epochs=(1,), partition_epoch=1)
    cluster.partition(alone, "replicated")
    cluster.nodes[1].hosted.counts_synced = False
    cluster.write(0, b"c")
    cluster.partition(replace(alone, partition_epoch=2), "fsync")
    cluster.check()
    cluster.write_unsynced(1, b"c")
    cluster.partition(replace(WHOLE, partition_epoch=3), "fsync")
    cluster.commit(3)
    cluster.check()


def test_a_leader_that_ignores_an_in_sync_replica_is_detected(cluster: Cluster) -> None:
    """I4."""
    term = cluster.nodes[0].hosted.leadership
    assert term is not None
    term.maximal_isr = frozenset({0})
    cluster.write(0, b"c")
    assert breaks(cluster) == "I4"


def test_a_leader_that_has_not_seen_its_topic_recreated_breaks_nothing(cluster: Cluster) -> None:
    """I4: its ISR is that of the deleted topic, although name, epochs and leader are the same."""
    old = cluster.nodes[0].hosted.leadership
    assert old is not None
    old.maximal_isr = frozenset({0})
    recreated = Topic("t", bytes(15) + b"\x08", (WHOLE,), {})
    cluster.put(topic_key("t"), encode_topic(recreated))
    follower = cluster.nodes[1].hosted
    follower.topic_id, follower.known = recreated.topic_id, 0
    cluster.write(1, b"c")
    cluster.check()
    cluster.nodes[0].hosted.topic_id = recreated.topic_id
    cluster.write(0, b"c")
    assert breaks(cluster) == "I4"


def test_a_follower_whose_high_watermark_is_too_high_is_detected(cluster: Cluster) -> None:
    """I4: no leader has committed that much."""
    for broker_id in (0, 1):
        cluster.write(broker_id, b"c")
    cluster.nodes[1].hosted.known = 2
    cluster.check()
    cluster.nodes[1].hosted.known = 3
    assert breaks(cluster) == "I4"


def test_a_broker_that_missed_a_metadata_change_is_detected(cluster: Cluster) -> None:
    """I11: its image has the store's revision, but an old value."""
    image = cluster.nodes[1].image
    for number, node in enumerate(cluster.nodes, start=1):
        info = BrokerInfo(node.id, f"host{node.id}", 9092, None, bytes(16), -1, 0)
        image.apply(broker_key(node.id), encode_broker(info), number)
    cluster.partition(replace(WHOLE, partition_epoch=1))
    cluster.check()
    image.revision = cluster.revision
    cluster.partition(replace(WHOLE, partition_epoch=2))
    assert breaks(cluster) == "I11"


def test_two_leaders_in_one_epoch_are_detected(cluster: Cluster) -> None:
    """I7."""
    cluster.nodes[1].hosted.leadership = Term(1, 0, 2, {0, 1})
    assert breaks(cluster) == "I7"


def test_leader_epochs_that_decrease_are_detected(cluster: Cluster) -> None:
    """I7: no batch of an older leader follows a batch of a newer one."""
    cluster.write(1, b"c", epoch=3)
    cluster.nodes[1].log.state.epoch = 0
    cluster.nodes[1].log.epochs.truncate_from_end(0)
    cluster.write(1, b"d", epoch=1)
    assert breaks(cluster) == "I7"


def test_a_high_watermark_that_goes_back_is_detected(cluster: Cluster) -> None:
    """I8: a new leader must not report the end until it knows it."""
    cluster.partition(
        replace(WHOLE, leader=1, leader_epoch=1, partition_epoch=1, leader_broker_epoch=2)
    )
    cluster.lead(1, epoch=1, high_watermark=1)
    assert breaks(cluster) == "I8"


@pytest.mark.parametrize("sequences", [(0, 0), (0, 2), (1,)])
def test_sequence_numbers_that_repeat_or_skip_are_detected(
    cluster: Cluster, sequences: tuple[int, ...]
) -> None:
    """I9: every batch of an idempotent producer is there once, and in order."""
    for sequence in sequences:
        for broker_id in (0, 1):
            cluster.write(broker_id, b"c", producer_id=5, producer_epoch=0, base_sequence=sequence)
    cluster.check()
    cluster.commit(2 + len(sequences))
    assert breaks(cluster) == "I9"


@pytest.mark.parametrize(("sequence", "verdict"), [(7, None), (0, "I9")])
def test_the_sequence_numbers_of_deleted_records_may_be_forgotten(
    cluster: Cluster, sequence: int, verdict: str | None
) -> None:
    """I9: then batches that the producer gave up may be missing, but none may be there twice."""
    for broker_id in (0, 1):
        cluster.write(broker_id, b"c", producer_id=5, producer_epoch=0, base_sequence=0)
    cluster.commit(3)
    cluster.check()
    for broker_id in (0, 1):
        cluster.nodes[broker_id].log.delete_before(3)
        cluster.write(broker_id, b"d", producer_id=5, producer_epoch=0, base_sequence=sequence)
    cluster.commit(4)
    if verdict is None:
        cluster.check()
    else:
        assert breaks(cluster) == verdict


def test_a_producer_may_continue_in_a_topic_that_was_deleted_and_created_again(
    cluster: Cluster,
) -> None:
    """I9: it sends a batch for the deleted topic again. Afterwards none may be there twice."""
    recreated = Topic("t", bytes(15) + b"\x08", (WHOLE,), {})
    cluster.put(topic_key("t"), encode_topic(recreated))
    for broker_id in (0, 1):
        cluster.nodes[broker_id].hosted.topic_id = recreated.topic_id
        cluster.write(broker_id, b"c", producer_id=5, producer_epoch=0, base_sequence=3)
    cluster.commit(3)
    cluster.check()
    for broker_id in (0, 1):
        cluster.write(broker_id, b"c", producer_id=5, producer_epoch=0, base_sequence=3)
    cluster.commit(4)
    assert breaks(cluster) == "I9"


def test_sequence_numbers_in_order_break_no_rule(cluster: Cluster) -> None:
    """A new producer epoch begins at sequence zero again."""
    for epoch, sequence in ((0, 0), (0, 1), (1, 0)):
        for broker_id in (0, 1):
            cluster.write(
                broker_id, b"c", producer_id=5, producer_epoch=epoch, base_sequence=sequence
            )
    cluster.check()
    cluster.commit(5)
    cluster.check()


METADATA: dict[str, tuple[str, Partition]] = {
    "in sync and eligible": (
        "I6",
        replace(WHOLE, partition_epoch=1, eligible_leaders=(1,), member_epochs=(1, 2, 2)),
    ),
    "a leader that is not in sync": (
        "I6",
        replace(WHOLE, partition_epoch=1, isr=(1,), member_epochs=(2,)),
    ),
    "two leaders of an epoch": (
        "I7",
        replace(WHOLE, partition_epoch=1, leader=1, leader_broker_epoch=2),
    ),
    "eligible beside enough in sync": (
        "I6",
        Partition((0, 1, 2), (0, 1), (2,), 0, 0, 1, 1, (1, 2, 3)),
    ),
    "the same partition epoch": (
        "I11",
        replace(WHOLE, isr=(0,), eligible_leaders=(1,)),
    ),
    "a life that never was": (
        "I5",
        replace(WHOLE, partition_epoch=1, member_epochs=(1, 9)),
    ),
    "a leader that was no member": (
        "I5",
        Partition((0, 1, 2), (2,), (), 2, 1, 1, 3, (3,)),
    ),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_breaks_a_rule_is_detected(cluster: Cluster, name: str) -> None:
    """The step after the metadata transaction detects it."""
    rule, partition = METADATA[name]
    info = BrokerInfo(2, "host2", 9092, None, bytes(16), -1, 0)
    cluster.put(broker_key(2), encode_broker(info))
    if name == "a leader that was no member":
        partition = replace(partition, leader_broker_epoch=4, member_epochs=(4,))
    cluster.partition(partition)
    assert breaks(cluster) == rule
