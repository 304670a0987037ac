"""Which replicas lead when brokers stop and start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.config_changes import (
    ConfigEdit,
    ConfigOperation,
    ResourceType,
    incremental_alter_configs,
)
from penstock.metadata.edits import TOPICS_MAX
from penstock.metadata.elections import elect_leaders
from penstock.metadata.keys import topic_key
from penstock.metadata.model import NO_LEADER, Partition
from penstock.metadata.topic_values import encode_topic

from .cluster import Cluster


def elect(cluster: Cluster) -> list[str]:
    names: list[str] = []
    for decision in elect_leaders(cluster.image):
        names.extend(cluster.commit(decision))
    assert elect_leaders(cluster.image) == ()
    return names


def only(cluster: Cluster) -> Partition:
    return cluster.image.topics["t"].partitions[0]


def set_state(cluster: Cluster, **fields: object) -> None:
    """Sets the partition's state as if its leader had reported it."""
    topic = cluster.image.topics["t"]
    fields = {"member_epochs": (), **fields}
    partition = replace(topic.partitions[0], **fields)  # type: ignore[arg-type]
    value = encode_topic(replace(topic, partitions=(partition,)))
    cluster.revision += 1
    cluster.entries[topic_key("t")] = (value, cluster.revision)
    cluster.image.apply(topic_key("t"), value, cluster.revision)


def test_nothing_is_decided_while_all_brokers_are_alive() -> None:
    """No decision, so no new revision and no work."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 6, 3)
    assert elect_leaders(cluster.image) == ()


def test_a_dead_leader_is_replaced_by_the_next_in_sync_replica() -> None:
    """In the order of the assignment, with the next leader epoch."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3)
    cluster.kill(0)
    assert elect(cluster) == ["t"]
    epochs = tuple(cluster.image.brokers[each].broker_epoch for each in (1, 2))
    assert only(cluster) == Partition((0, 1, 2), (1, 2), (), 1, 1, 1, epochs[0], epochs)


def test_a_dead_follower_leaves_the_isr() -> None:
    """The leader and its epoch stay. The partition epoch shows the change."""
    cluster = Cluster(brokers=3)
    before = cluster.create("t", 1, 3).partitions[0]
    cluster.kill(2)
    elect(cluster)
    epochs = before.member_epochs[:2]
    assert only(cluster) == replace(before, isr=(0, 1), partition_epoch=1, member_epochs=epochs)


def test_replicas_that_leave_below_min_insync_stay_eligible() -> None:
    """Nothing was committed without them, so each of them may lead."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    cluster.kill(0)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((1, 2), ())
    cluster.kill(1)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((2,), (1,))
    cluster.kill(2)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((), (1, 2))
    assert only(cluster).leader == NO_LEADER
    cluster.start(0)
    assert elect(cluster) == []
    cluster.start(1)
    elect(cluster)
    assert only(cluster).leader == 1
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((1,), (2,))


def test_lowering_min_insync_ends_eligibility() -> None:
    """The leader commits nothing while there are eligible leaders, so otherwise a lower minimum
    would have no effect until they return."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="2")
    cluster.kill(1)
    cluster.kill(2)
    elect(cluster)
    assert (only(cluster).isr, only(cluster).eligible_leaders) == ((0,), (1, 2))
    edits = [ConfigEdit("min.insync.replicas", ConfigOperation.SET, "1")]
    cluster.commit(incremental_alter_configs(cluster.image, ResourceType.TOPIC, "t", edits))
    before = only(cluster)
    assert elect(cluster) == ["t"]
    assert only(cluster) == replace(
        before,
        eligible_leaders=(),
        member_epochs=before.member_epochs[:1],
        partition_epoch=before.partition_epoch + 1,
    )


def test_the_only_replica_leads_again_with_a_new_epoch() -> None:
    """After a kill and a restart, with the lease expired in between."""
    cluster = Cluster(brokers=1)
    cluster.create("t")
    former = cluster.image.brokers[0].broker_epoch
    cluster.kill(0)
    elect(cluster)
    assert only(cluster) == Partition((0,), (), (0,), NO_LEADER, 1, 1, -1, (former,))
    epoch = cluster.start(0).broker_epoch
    elect(cluster)
    assert only(cluster) == Partition((0,), (0,), (), 0, 2, 2, epoch, (epoch,))


def test_a_quick_restart_gets_a_new_epoch_too() -> None:
    """The broker's lease did not expire, but the end of its log may have changed."""
    cluster = Cluster(brokers=1)
    cluster.create("t")
    epoch = cluster.start(0).broker_epoch
    assert elect(cluster) == ["t"]
    assert only(cluster) == Partition((0,), (0,), (), 0, 1, 1, epoch, (epoch,))
    assert elect(cluster) == []


def test_after_a_quick_restart_another_in_sync_replica_leads() -> None:
    """The restarted one may lack uncommitted records. It has all committed ones, so it stays in
    sync."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="3")
    epoch = cluster.start(0).broker_epoch
    elect(cluster)
    partition = only(cluster)
    assert (partition.leader, partition.isr, partition.eligible_leaders) == (1, (0, 1, 2), ())
    assert partition.member_epoch(0) == epoch


def test_a_restarted_leader_leads_again_once_the_other_leases_expire() -> None:
    """All brokers die together and one comes back. It has everything that was committed, so it
    leads once the leases of the others have expired."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 3, min_insync_replicas="1")
    cluster.start(0)
    elect(cluster)
    for other in (1, 2):
        cluster.kill(other)
        elect(cluster)
    assert (only(cluster).leader, only(cluster).isr) == (0, (0,))


def test_a_replica_that_lacks_records_does_not_lead_unless_allowed() -> None:
    """It waits for a replica that has all committed records."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2)
    set_state(cluster, isr=(0,))
    cluster.kill(0)
    elect(cluster)
    assert (only(cluster).leader, only(cluster).eligible_leaders) == (NO_LEADER, (0,))


@pytest.mark.parametrize("where", ["topic", "static"])
def test_an_unclean_election_where_it_is_allowed(where: str) -> None:
    """The new leader's log is authoritative from now on, and no other replica is eligible."""
    cluster = Cluster(brokers=2)
    name = "unclean.leader.election.enable"
    overrides = {name.replace(".", "_"): "true"} if where == "topic" else {}
    cluster.create("t", 1, 2, 0, **overrides)
    set_state(cluster, isr=(0,))
    cluster.kill(0)
    static = {name: "true"} if where == "static" else {}
    for decision in elect_leaders(cluster.image, static=static):
        cluster.commit(decision)
    partition = only(cluster)
    assert (partition.leader, partition.isr, partition.eligible_leaders) == (1, (1,), ())
    assert partition.leader_epoch == 1


def test_many_topics_are_changed_in_several_commits() -> None:
    """Each commit is small enough, and if one fails the others still count."""
    cluster = Cluster(brokers=2)
    count = TOPICS_MAX * 2 + 1
    for number in range(count):
        cluster.create(f"t{number}", 1, 2)
    cluster.kill(0)
    decisions = elect_leaders(cluster.image)
    assert [len(decision.changes) for decision in decisions] == [100, 100, 1]
    for decision in reversed(decisions):
        cluster.commit(decision)
    assert {topic.partitions[0].leader for topic in cluster.image.topics.values()} == {1}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["kill", "start"]), st.integers(0, 3)), max_size=20),
    st.integers(1, 3),
)
def test_epochs_never_go_back_and_leaders_are_alive(
    steps: list[tuple[str, int]], min_insync: int
) -> None:
    """Whichever brokers stop and start, there is one leader for each epoch, in sync and alive. The
    partition never loses all candidates."""
    cluster = Cluster(brokers=4)
    cluster.create("t", 1, 3, min_insync_replicas=str(min_insync))
    leaders: dict[int, tuple[int, int]] = {}
    before = only(cluster)
    for step, broker_id in steps:
        if step == "start":
            cluster.start(broker_id)
        elif broker_id in cluster.image.brokers:
            cluster.kill(broker_id)
        elect(cluster)
        after = only(cluster)
        assert after.leader_epoch >= before.leader_epoch
        assert (after.partition_epoch > before.partition_epoch) == (after != before)
        assert not set(after.isr) & set(after.eligible_leaders)
        if len(after.isr) >= min_insync:
            assert after.eligible_leaders == ()
        if after.leader != NO_LEADER:
            assert after.leader in after.isr
            assert after.leader in cluster.image.brokers
            now = (after.leader, after.leader_broker_epoch)
            assert now[1] == cluster.image.brokers[after.leader].broker_epoch
            assert leaders.setdefault(after.leader_epoch, now) == now
        # At least one replica always has everything that is committed.
        assert after.isr or after.eligible_leaders
        before = after
    for broker_id in range(4):
        if broker_id not in cluster.image.brokers:
            cluster.start(broker_id)
    elect(cluster)
    assert only(cluster).leader != NO_LEADER
