"""Withdrawal: a damaged replica leaves the ISR and the eligible leaders until it is repaired.

A damaged replica does not hold everything that is committed, so it must not be elected as if it
did. If it leads, another in-sync replica becomes leader. If no other replica is in sync, it stays:
the damaged copy may be the best one there is.

A replica whose log is offline cannot serve anything. So it can also be replaced by an eligible
leader, or by any live replica if the topic allows unclean elections. If there is none, it stays
too, because a partition without a leader would be given back to it at once.

A replica that is offline only because it lacks a key still holds everything that it held. It leaves
the ISR, and stays an eligible leader as a dead replica does: while fewer than min.insync.replicas
are in sync (KIP-966).

The leader epoch increases in any case, even if the leader stays. The leader may still remember a
fetch of the replica from before the damage was found, and would add the replica to the ISR again
because of it. In a new leader epoch it remembers no fetch, and the replica fetches again only after
it has removed the damaged part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from penstock.metadata.decisions import Decision
from penstock.metadata.edits import NO_STATIC, TopicEdits
from penstock.metadata.elections import choose_leader
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import led_by, sound_members, with_members
from penstock.metadata.model import NO_LEADER, Partition
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import KafkaError

_NOBODY: Final[frozenset[int]] = frozenset()


def withdraw(
    image: ClusterImage,
    broker_id: int,
    topic_partitions: Sequence[TopicPartition],
    *,
    offline: bool = False,
    locked: Collection[TopicPartition] = (),
    stopping: Collection[int] = _NOBODY,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[tuple[TopicPartition, ...]]:
    """Removes a broker from the ISR and the eligible leaders of these partitions, where it is
    damaged or `offline`. Where it is only `locked`, for want of a key, it may stay eligible.

    The result is the partitions where that is possible now. Ask again later for the others.
    """
    edits = TopicEdits(image, static)
    done: list[TopicPartition] = []
    for topic_partition in topic_partitions:
        topic, index = topic_partition
        try:
            partition = edits.partition(topic, index)
            without = partial(_without, image, edits, topic, partition, broker_id, stopping)
            after = without(offline=offline, locked=topic_partition in locked)
            if after is not None:
                edits.put(topic, index, after)
                done.append(topic_partition)
        except KafkaError:
            # The partition no longer exists, or this decision has no space for more topics.
            continue
    return edits.decision(tuple(done))


def _without(
    image: ClusterImage,
    edits: TopicEdits,
    topic: str,
    partition: Partition,
    broker_id: int,
    stopping: Collection[int],
    *,
    offline: bool,
    locked: bool,
) -> Partition | None:
    brokers, settings = image.brokers, edits.settings(topic)
    others = {each: broker for each, broker in brokers.items() if each != broker_id}
    members = sound_members(partition, brokers, synced_from=edits.synced_from(topic))
    if not locked:
        members.pop(broker_id, None)
    isr = [each for each in partition.isr if each in members and each in others]
    after = with_members(partition, isr, members, settings.min_insync_replicas)
    leader = partition.leader
    if leader == broker_id:
        unclean = offline and settings.unclean_leader_election_enable
        leader = choose_leader(after, others, stopping, unclean=unclean)
        if leader not in isr:
            if leader == NO_LEADER or not offline:
                return None
            if leader not in members:
                members = {leader: brokers[leader].broker_epoch}
            after = with_members(partition, (leader,), members, settings.min_insync_replicas)
    elif leader not in isr:
        # An election is due and comes first.
        return None
    return led_by(after, leader, brokers)
