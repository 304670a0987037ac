"""A replica that was found damaged gives up its place among those that hold all that is committed.

It leaves the in-sync set and the eligible leaders as well: it does not hold everything, so it must
not be elected for it. If it leads, another that is in sync does so from now on. Where there is no
other in sync it stays: the damaged copy may be the best there is.

One whose log is offline can serve nothing at all. So it is also succeeded by an eligible leader, or
by whoever is alive where the topic allows that. Where there is nobody it stays too: a partition
without a leader would be given back to it at once.

The leader epoch rises in any case, even where the leader stays. The leader may have a fetch of the
replica in mind, from before the damage was found, by which it would take it in again; in a new term
it knows of no fetch, and the replica fetches only when it has thrown the damaged part away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from penstock.metadata.decisions import Decision
from penstock.metadata.edits import NO_STATIC, TopicEdits
from penstock.metadata.elections import choose_leader
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import led_by, sound_members, with_members
from penstock.metadata.model import NO_LEADER, Partition
from penstock.wire.errors import KafkaError

Place = tuple[str, int]
_NOBODY: Final[frozenset[int]] = frozenset()


def withdraw(
    image: ClusterImage,
    broker_id: int,
    places: Sequence[Place],
    *,
    offline: bool = False,
    stopping: Collection[int] = _NOBODY,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[tuple[Place, ...]]:
    """Take a broker out of those that count in these partitions, damaged there or `offline`.

    The result is the places where it can be done; of the others, ask again later.
    """
    edits = TopicEdits(image, static)
    done: list[Place] = []
    for topic, index in places:
        try:
            partition = edits.partition(topic, index)
            after = _without(image, edits, topic, partition, broker_id, stopping, offline=offline)
            if after is not None:
                edits.put(topic, index, after)
                done.append((topic, index))
        except KafkaError:
            # The partition is gone, or there is room for no more topics in this decision.
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
) -> Partition | None:
    brokers, settings = image.brokers, edits.settings(topic)
    others = {each: broker for each, broker in brokers.items() if each != broker_id}
    members = sound_members(partition, brokers, synced_from=edits.synced_from(topic))
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
        # There is an election due, which comes first.
        return None
    return led_by(after, leader, brokers)
