"""Which replicas have everything that is committed, and ISR changes that leaders propose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.metadata.config_changes import ResourceType, alter_configs
from penstock.metadata.decisions import Guard
from penstock.metadata.edits import TOPICS_MAX, SyncedFrom
from penstock.metadata.elections import elect_leaders
from penstock.metadata.isr import (
    IsrAnswer,
    IsrChange,
    alter_isrs,
    relead,
    sound_members,
    with_members,
)
from penstock.metadata.keys import broker_key
from penstock.metadata.membership import register_broker
from penstock.metadata.model import NO_LEADER, BrokerInfo, Partition
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster, Conflict


def only(cluster: Cluster, topic: str = "t") -> Partition:
    return cluster.image.topics[topic].partitions[0]


def elect(cluster: Cluster) -> None:
    for decision in elect_leaders(cluster.image):
        cluster.commit(decision)


def change(cluster: Cluster, *isr: int, topic: str = "t", **fields: Any) -> IsrChange:
    """Returns the leader's proposal for the present state, unless `fields` change it."""
    held = cluster.image.topics[topic]
    partition = held.partitions[0]
    brokers = cluster.image.brokers
    members = tuple((each, brokers[each].broker_epoch if each in brokers else 1) for each in isr)
    made = IsrChange(held.topic_id, 0, members, partition.leader_epoch, partition.partition_epoch)
    return replace(made, **fields)


def ask(cluster: Cluster, *changes: IsrChange, broker: int = 0, **rest: object) -> list[IsrAnswer]:
    epoch = cluster.image.brokers[broker].broker_epoch
    decision = alter_isrs(cluster.image, broker, epoch, changes, **rest)  # type: ignore[arg-type]
    return list(cluster.commit(decision))


def restart(
    cluster: Cluster,
    broker_id: int,
    *,
    lossless_since: int,
    synced_since: int = 0,
    fsync_since: int = 0,
) -> BrokerInfo:
    since = (lossless_since, synced_since, fsync_since)
    info = BrokerInfo(broker_id, "h", 1, None, cluster.new_id(), -1, *since)
    cluster.commit(register_broker(cluster.image, info, take_over=True))
    return cluster.image.brokers[broker_id]


def test_a_leader_removes_a_follower_and_adds_it_again() -> None:
    """In the same leader epoch, with a new partition epoch each time."""
    cluster = Cluster(brokers=3)
    before = cluster.create("t", 1, 3).partitions[0]
    (answer,) = ask(cluster, change(cluster, 0, 1))
    assert answer.error == ErrorCode.NONE
    assert answer.partition == only(cluster)
    assert only(cluster) == replace(
        before, isr=(0, 1), partition_epoch=1, member_epochs=before.member_epochs[:2]
    )
    ask(cluster, change(cluster, 0, 1, 2))
    assert only(cluster) == replace(before, partition_epoch=2)


def test_an_unchanged_isr_raises_the_partition_epoch() -> None:
    """So that a proposal whose outcome is unknown can no longer succeed."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    lost = change(cluster, 0)
    ask(cluster, change(cluster, 0, 1, 2))
    assert only(cluster).partition_epoch == 1
    (answer,) = ask(cluster, lost)
    assert answer == IsrAnswer(lost.topic_id, 0, ErrorCode.INVALID_UPDATE_VERSION)


def test_a_replica_that_leaves_below_min_insync_stays_eligible() -> None:
    """Until enough replicas are in sync again."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    ask(cluster, change(cluster, 0))
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((0,), (1, 2))
    ask(cluster, change(cluster, 0, 2))
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((0, 2), ())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"leader_epoch": 7}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 7}, ErrorCode.NOT_CONTROLLER),
        ({"index": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": b"\x77" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 2),)}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((0, 1), (0, 1))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((0, 1), (3, 4))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((0, 1), (2, 999))}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr": ((0, 1), (2, -1))}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr": ((0, 1), (1, 999))}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_invalid_isr_changes_are_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    """With Kafka's error codes, and nothing is written."""
    cluster = Cluster(brokers=4)
    cluster.create("t", 1, 3)
    ask(cluster, change(cluster, 0, 1))
    revision = cluster.revision
    (answer,) = ask(cluster, change(cluster, 0, 1, 2, **fields))
    assert (answer.error, answer.partition) == (error, None)
    assert cluster.revision == revision


def test_only_the_leader_of_this_epoch_may_change_the_isr() -> None:
    """Not its predecessor, not a follower, not an earlier run of the leader."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    (answer,) = ask(cluster, change(cluster, 0, 1), broker=1)
    assert answer.error == ErrorCode.INVALID_REQUEST
    old = change(cluster, 0, 1)
    old_epoch = cluster.image.brokers[0].broker_epoch
    cluster.start(0)
    (answer,) = ask(cluster, old)
    assert answer.error == ErrorCode.FENCED_LEADER_EPOCH
    elect(cluster)
    (answer,) = ask(cluster, old)
    assert answer.error == ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaError) as stale:
        alter_isrs(cluster.image, 0, old_epoch, [old])
    assert stale.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_that_is_stopping_is_not_added() -> None:
    """It may stay in the ISR until it hands over, and it may leave."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    (answer,) = ask(cluster, change(cluster, 0, 1, 2), stopping={2})
    assert answer.error == ErrorCode.NONE
    ask(cluster, change(cluster, 0, 1), stopping={2})
    (answer,) = ask(cluster, change(cluster, 0, 1, 2), stopping={2})
    assert answer.error == ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_that_is_added_must_not_restart_before_the_commit() -> None:
    """The decision is conditional on its registration."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2)
    ask(cluster, change(cluster, 0))
    epochs = [cluster.image.brokers[each].broker_epoch for each in (0, 1)]
    decision = alter_isrs(cluster.image, 0, epochs[0], [change(cluster, 0, 1)])
    assert decision.guards == (Guard(broker_key(1), epochs[1]),)
    cluster.start(1)
    with pytest.raises(Conflict):
        cluster.commit(decision)


def test_a_member_whose_epoch_the_leader_does_not_know_may_stay() -> None:
    """It has not fetched in this leader epoch. The stored broker epoch is kept."""
    cluster = Cluster(brokers=3)
    before = cluster.create("t", 1, 3).partitions[0]
    members = ((0, before.member_epochs[0]), (1, -1))
    (answer,) = ask(cluster, change(cluster, isr=members))
    assert answer.error == ErrorCode.NONE
    assert only(cluster).member_epochs == before.member_epochs[:2]


def test_many_partitions_of_many_topics_are_one_decision() -> None:
    """There is one change for each topic. Partitions are accepted or refused one by one."""
    cluster = Cluster(brokers=2)
    for number in range(TOPICS_MAX + 1):
        cluster.create(f"t{number}", 2, 2)
    changes = []
    for number in range(TOPICS_MAX + 1):
        wish = change(cluster, 0, topic=f"t{number}")
        changes += [wish, replace(wish, index=1, isr=((0, 1),))]
    decision = alter_isrs(cluster.image, 0, 1, changes)
    assert len(decision.changes) == TOPICS_MAX
    errors = [answer.error for answer in cluster.commit(decision)]
    # Broker 1 leads partition 1 of each topic.
    assert errors[:2] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert errors[-2] == ErrorCode.OPERATION_NOT_ATTEMPTED
    assert only(cluster, "t0").isr == (0,)


PARTITION = Partition((0, 1, 2), (0, 1), (2,), 0, 0, 0, 10, (10, 11, 12))


def brokers(**epochs: tuple[int, int]) -> dict[int, BrokerInfo]:
    """For example b1=(epoch, lossless since)."""
    return {
        int(name[1:]): BrokerInfo(int(name[1:]), "h", 1, None, b"i" * 16, *pair)
        for name, pair in epochs.items()
    }


def test_a_restart_that_may_have_lost_records_ends_membership() -> None:
    """Of in-sync and of eligible replicas. What a dead broker lost is unknown, so it stays."""
    living = brokers(b0=(10, -1), b1=(21, 11), b2=(22, 13))
    assert sound_members(PARTITION, living, synced_from=None) == {0: 10, 1: 21}
    assert sound_members(PARTITION, living, synced_from=SyncedFrom(0)) == {0: 10, 1: 21, 2: 22}
    assert sound_members(PARTITION, brokers(b1=(21, -1)), synced_from=None) == {0: 10, 2: 12}


def test_the_last_leader_stays_when_every_replica_may_have_lost_records() -> None:
    """Without any candidate the partition would be offline forever."""
    all_lost = brokers(b0=(20, -1), b1=(21, -1), b2=(22, -1))
    assert sound_members(PARTITION, all_lost, synced_from=None) == {0: 20}
    leaderless = replace(PARTITION, leader=NO_LEADER)
    assert sound_members(leaderless, all_lost, synced_from=None) == {0: 20}


def test_members_without_stored_epochs_are_trusted() -> None:
    """Topics stored by older versions have none. From then on the epochs are stored."""
    old = replace(PARTITION, member_epochs=())
    after = with_members(
        old, old.isr, sound_members(old, brokers(b0=(10, -1), b1=(9, -1)), synced_from=None), 3
    )
    assert after.member_epochs == (10, 9, -1)


def test_a_follower_that_lost_records_is_out_until_it_has_caught_up() -> None:
    """Although its lease did not expire, and although it was in sync."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, durability="replicated", min_insync_replicas="3")
    first = cluster.image.brokers[2].broker_epoch
    restart(cluster, 2, lossless_since=first)
    kept = restart(cluster, 2, lossless_since=first)
    elect(cluster)
    assert only(cluster).isr == (0, 1, 2)
    assert only(cluster).member_epoch(2) == kept.broker_epoch
    restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((0, 1), ())
    ask(cluster, change(cluster, 0, 1, 2))
    assert only(cluster).isr == (0, 1, 2)


def test_a_lone_leader_that_lost_records_gives_way_to_an_eligible_one() -> None:
    """The other replica has everything that is committed. If it is dead, the partition waits for
    it."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2, durability="replicated", min_insync_replicas="2")
    ask(cluster, change(cluster, 0))
    epoch = cluster.image.brokers[1].broker_epoch
    cluster.kill(1)
    restart(cluster, 0, lossless_since=-1)
    elect(cluster)
    assert (only(cluster).leader, only(cluster).eligible_leaders) == (NO_LEADER, (1,))
    restart(cluster, 1, lossless_since=epoch)
    elect(cluster)
    assert (only(cluster).leader, only(cluster).isr) == (1, (1,))


def test_a_removed_replica_is_fenced_by_a_new_leader_epoch() -> None:
    """Otherwise it could be added again, and then delete its log when it learns of its removal."""
    living = brokers(b0=(10, -1), b1=(11, -1))
    kept = replace(PARTITION, replicas=(0, 1), eligible_leaders=(), member_epochs=(10, 11))
    after = relead(PARTITION, kept, living)
    assert (after.leader, after.leader_epoch) == (0, 1)
    assert relead(kept, kept, living) == kept
    gone = replace(kept, isr=(1,), member_epochs=(11,))
    assert relead(PARTITION, gone, living).leader == 1
    assert relead(PARTITION, gone, {}).leader == NO_LEADER


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_a_broker_with_a_new_data_directory_leaves_the_isr(durability: str) -> None:
    """Even in topics where everything that counts was synced. The other replicas continue without
    it."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, durability=durability, min_insync_replicas="3")
    restart(cluster, 0, lossless_since=-1, synced_since=-1)
    elect(cluster)
    partition = only(cluster)
    assert (partition.leader, partition.isr, partition.eligible_leaders) == (1, (1, 2), ())


def test_a_new_data_directory_is_remembered_after_another_restart() -> None:
    """The controller may have seen neither the loss nor the run of the broker in which it
    happened."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2)
    lost = restart(cluster, 0, lossless_since=-1, synced_since=-1)
    since = lost.broker_epoch
    restart(cluster, 0, lossless_since=since, synced_since=since)
    elect(cluster)
    assert (only(cluster).leader, only(cluster).isr) == (1, (1,))
    epoch = cluster.image.brokers[1].broker_epoch
    restart(cluster, 1, lossless_since=-1, synced_since=1)
    elect(cluster)
    assert (only(cluster).leader, only(cluster).isr) == (1, (1,))
    assert only(cluster).leader_broker_epoch > epoch


def test_an_empty_replica_does_not_lead_while_others_have_records() -> None:
    """It was the last in-sync replica and its disk is gone. An operator, who knows that records
    are lost, must choose the leader. If it is the only replica, it starts again empty."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2)
    cluster.create("alone", 1, 1)
    ask(cluster, change(cluster, 0))
    restart(cluster, 0, lossless_since=-1, synced_since=-1)
    elect(cluster)
    assert (only(cluster).leader, only(cluster).isr) == (NO_LEADER, ())
    assert only(cluster, "alone").leader == 0


def set_durability(cluster: Cluster, value: str) -> int:
    """Changes the durability of a topic in use. Returns the revision of the change."""
    decision = alter_configs(cluster.image, ResourceType.TOPIC, "t", [("durability", value)])
    cluster.commit(decision)
    return cluster.revision


def test_after_a_change_to_fsync_earlier_runs_are_not_trusted() -> None:
    """A follower loses power before it has flushed what counted until the change. It has the same
    disk and must still catch up."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, durability="replicated", min_insync_replicas="2")
    switched = set_durability(cluster, "fsync")
    assert cluster.image.topics["t"].synced_from == switched
    restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((0, 1), ())


def test_a_run_that_started_after_the_change_is_trusted() -> None:
    """It has counted only records that were synced."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, durability="replicated", min_insync_replicas="2")
    set_durability(cluster, "fsync")
    restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    ask(cluster, change(cluster, 0, 1, 2))
    again = restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).member_epoch(2)) == ((0, 1, 2), again.broker_epoch)


def test_a_lossless_run_keeps_the_epoch_from_before_the_change() -> None:
    """It stays in sync. But the same process may have registered again with records that it has
    not flushed, so the next power cut must still count."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, durability="replicated", min_insync_replicas="2")
    first = cluster.image.brokers[2].broker_epoch
    set_durability(cluster, "fsync")
    restart(cluster, 2, lossless_since=first)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).member_epoch(2)) == ((0, 1, 2), first)
    restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert only(cluster).isr == (0, 1)


def test_every_change_of_durability_counts_and_no_other_change_does() -> None:
    """Also a change and its reversal, or deleting the override."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    assert cluster.image.topics["t"].synced_from == 0
    for value in ("replicated", "fsync"):
        switched = set_durability(cluster, value)
        assert cluster.image.topics["t"].synced_from == switched
    both = [("durability", "fsync"), ("retention.ms", "5")]
    cluster.commit(alter_configs(cluster.image, ResourceType.TOPIC, "t", both))
    ask(cluster, change(cluster, 0, 1))
    assert cluster.image.topics["t"].synced_from == switched
    cluster.commit(alter_configs(cluster.image, ResourceType.TOPIC, "t", []))
    assert cluster.image.topics["t"].synced_from == cluster.revision


def set_default(cluster: Cluster, *configs: tuple[str, str]) -> int:
    """Sets the configs of all brokers. Returns the revision of the change."""
    cluster.commit(alter_configs(cluster.image, ResourceType.BROKER, "", configs))
    return cluster.revision


def test_after_a_change_of_the_default_earlier_runs_are_not_trusted() -> None:
    """A topic without its own setting changes with the default, a topic with one does not."""
    cluster = Cluster(brokers=3)
    set_default(cluster, ("log.durability", "replicated"))
    cluster.create("t", 1, 3, min_insync_replicas="2")
    cluster.create("own", 1, 3, min_insync_replicas="2", durability="fsync")
    switched = set_default(cluster, ("log.durability", "fsync"))
    assert cluster.image.default_synced_from == switched
    restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert only(cluster).isr == (0, 1)
    assert only(cluster, "own").isr == (0, 1, 2)
    ask(cluster, change(cluster, 0, 1, 2))
    again = restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).member_epoch(2)) == ((0, 1, 2), again.broker_epoch)


def test_the_change_of_the_default_is_remembered_without_an_override() -> None:
    """When its override is deleted, the default is fsync again, and no overrides are left."""
    cluster = Cluster(brokers=3)
    assert set_default(cluster, ("log.retention.ms", "5")) > cluster.image.default_synced_from == 0
    set_default(cluster, ("log.durability", "replicated"))
    cluster.create("t", 1, 3, min_insync_replicas="2")
    switched = set_default(cluster)
    assert cluster.image.default_synced_from == switched
    set_default(cluster, ("log.retention.ms", "6"))
    set_default(cluster)
    assert cluster.image.default_synced_from == switched
    restart(cluster, 2, lossless_since=-1)
    elect(cluster)
    assert only(cluster).isr == (0, 1)


def test_a_single_broker_cannot_set_its_own_durability() -> None:
    """The controller that judges its restart must know which records the broker counted."""
    cluster = Cluster(brokers=1)
    with pytest.raises(KafkaError, match="for all brokers") as refused:
        alter_configs(cluster.image, ResourceType.BROKER, "0", [("log.durability", "replicated")])
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_config_file_that_asked_for_less_is_not_trusted() -> None:
    """The controller's config file asks for fsync. Another broker's file did not until its last
    start. This counts only for topics that use the default of the config file."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    cluster.create("own", 1, 3, min_insync_replicas="2", durability="fsync")
    first = restart(cluster, 2, lossless_since=-1, fsync_since=-1)
    elect(cluster)
    assert (only(cluster).isr, only(cluster, "own").isr) == ((0, 1), (0, 1, 2))
    ask(cluster, change(cluster, 0, 1, 2))
    restart(cluster, 2, lossless_since=-1, fsync_since=first.broker_epoch)
    elect(cluster)
    assert only(cluster).isr == (0, 1, 2)


def test_the_default_in_the_store_overrides_config_files() -> None:
    cluster = Cluster(brokers=3)
    set_default(cluster, ("log.durability", "fsync"))
    for each in range(3):
        restart(cluster, each, lossless_since=-1, fsync_since=-1)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    restart(cluster, 2, lossless_since=-1, fsync_since=-1)
    elect(cluster)
    assert only(cluster).isr == (0, 1, 2)
