"""A replica that was found damaged gives up its place among those that hold all that is committed.

It leaves the in-sync set and the eligible leaders as well: it does not hold everything, so it must
not be elected for it. If it leads, another that is in sync does so from now on. Where there is no
other in sync it stays: the damaged copy may be the best there is.

The leader epoch rises in any case, even where the leader stays. The leader may have a fetch of the
replica in mind, from before the damage was found, by which it would take it in again; in a new term
it knows of no fetch, and the replica fetches only when it has thrown the damaged part away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from penstock.metadata.decisions import Decision
from penstock.metadata.edits import NO_STATIC, TopicEdits
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import led_by, sound_members, with_members
from penstock.metadata.model import Partition
from penstock.wire.errors import KafkaError

Place = tuple[str, int]
_NOBODY: Final[frozenset[int]] = frozenset()


def withdraw(
    image: ClusterImage,
    broker_id: int,
    places: Sequence[Place],
    *,
    stopping: Collection[int] = _NOBODY,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[tuple[Place, ...]]:
    """Take a broker out of those that count in these partitions.

    The result is the places where it can be done; of the others, ask again later.
    """
    edits = TopicEdits(image, static)
    done: list[Place] = []
    for topic, index in places:
        try:
            partition = edits.partition(topic, index)
            after = _without(image, edits, topic, partition, broker_id, stopping)
            if after is not None:
                edits.put(topic, index, after)
                done.append((topic, index))
        except KafkaError:
            # The partition is gone, or there is room for no more topics in this decision.
            continue
    return Decision(edits.changes(), tuple(done))


def _without(
    image: ClusterImage,
    edits: TopicEdits,
    topic: str,
    partition: Partition,
    broker_id: int,
    stopping: Collection[int],
) -> Partition | None:
    brokers, settings = image.brokers, edits.settings(topic)
    members = sound_members(partition, brokers, synced=settings.durability == "fsync")
    members.pop(broker_id, None)
    isr = [each for each in partition.isr if each in members and each in brokers]
    leader = partition.leader
    if leader == broker_id:
        heirs = [each for each in partition.replicas if each in isr]
        staying = [each for each in heirs if each not in stopping]
        if not heirs:
            return None
        leader = (staying or heirs)[0]
    elif leader not in isr:
        # There is an election due, which comes first.
        return None
    after = with_members(partition, isr, members, settings.min_insync_replicas)
    return led_by(after, leader, brokers)
