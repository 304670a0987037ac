"""Moves leadership while all brokers are healthy: to the preferred replica, or away before a stop.

The preferred leader is the first replica in a partition's assignment. Leaders are balanced as long
as each partition is led by its preferred leader. `elect` moves leadership there, for the given
partitions or for all. It also carries out an unclean election that an operator requests, which may
lose committed records.

`hand_over` empties a broker that is about to stop: other brokers lead its partitions, and it leaves
their ISRs, so that no write waits for it once it has stopped. If no other replica is in sync, it
stays leader until it stops. Its replicas stay eligible by the rules of `isr`, because a clean stop
loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.metadata.decisions import Decision
from penstock.metadata.edits import NO_STATIC, Slice, TopicEdits, in_loads, slice_of
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import led_by, sound_members, with_members
from penstock.metadata.model import Partition
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

_NOBODY: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Election:
    """The result for one partition. `leader` is its current leader, -1 if it has none."""

    topic: str
    index: int
    error: ErrorCode
    leader: int
    message: str | None = None


def is_due(image: ClusterImage, partition: Partition) -> bool:
    """Whether the preferred replica could lead but does not."""
    first = partition.replicas[0]
    return (
        partition.leader != first
        and first in partition.isr
        and first in image.brokers
        and first not in image.stopping
    )


def in_portions(
    image: ClusterImage, topic_partitions: Iterable[TopicPartition] | None
) -> Iterator[tuple[TopicPartition, ...]]:
    """Splits the requested partitions, or all partitions for None, into portions that each fit one
    decision."""
    if topic_partitions is None:
        topic_partitions = (
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index in range(len(topic.partitions))
        )
    by_slice: dict[tuple[str, int], list[TopicPartition]] = {}
    parts: dict[tuple[str, int], Slice] = {}
    unknown: list[TopicPartition] = []
    for topic_partition in topic_partitions:
        topic = image.topics.get(topic_partition[0])
        if topic is None or not 0 <= topic_partition[1] < len(topic.partitions):
            unknown.append(topic_partition)
            continue
        part = slice_of(topic, topic_partition[1])
        by_slice.setdefault((topic.name, part.start), []).append(topic_partition)
        parts[topic.name, part.start] = part
    for load in in_loads(parts.values()):
        portion = [
            topic_partition
            for part in load
            for topic_partition in by_slice[part.topic.name, part.start]
        ]
        yield (*unknown, *portion)
        unknown = []
    if unknown:
        yield tuple(unknown)


def elect(
    image: ClusterImage,
    topic_partitions: Sequence[TopicPartition],
    *,
    unclean: bool = False,
    stopping: Collection[int] = _NOBODY,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[tuple[Election, ...]]:
    """Makes the preferred replica of each partition its leader.

    With `unclean`, elects any live replica for partitions that have no live leader instead. Answers
    ELECTION_NOT_NEEDED for a partition that needs no change.
    """
    edits = TopicEdits(image, static)
    answers: list[Election] = []
    for topic, index in topic_partitions:
        leader = -1
        try:
            partition = edits.partition(topic, index)
            leader = partition.leader
            choose = _unclean if unclean else _preferred
            after = choose(image, edits, topic, partition, stopping)
            leader = edits.put(topic, index, after).leader
        except KafkaError as error:
            answers.append(Election(topic, index, error.code, leader, error.message))
        else:
            answers.append(Election(topic, index, ErrorCode.NONE, leader))
    return edits.decision(tuple(answers))


def _members(
    image: ClusterImage, edits: TopicEdits, topic: str, partition: Partition
) -> dict[int, int]:
    return sound_members(partition, image.brokers, synced_from=edits.synced_from(topic))


def _preferred(
    image: ClusterImage,
    edits: TopicEdits,
    topic: str,
    partition: Partition,
    stopping: Collection[int],
) -> Partition:
    first = partition.replicas[0]
    if partition.leader == first:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    members = _members(image, edits, topic, partition)
    isr = [each for each in partition.isr if each in members]
    if first not in isr or first not in image.brokers or first in stopping:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {first} cannot become leader: it is not in the ISR {isr}, not running, or "
            "stopping.",
        )
    after = with_members(partition, isr, members, edits.settings(topic).min_insync_replicas)
    return led_by(after, first, image.brokers)


def _unclean(
    image: ClusterImage,
    edits: TopicEdits,
    topic: str,
    partition: Partition,
    stopping: Collection[int],
) -> Partition:
    brokers = image.brokers
    leader = brokers.get(partition.leader)
    if leader is not None and leader.broker_epoch == partition.leader_broker_epoch:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    members = _members(image, edits, topic, partition)
    living = [each for each in partition.replicas if each in brokers]
    # The replica that loses least comes first.
    ranked = sorted(
        living,
        key=lambda each: (each in stopping, each not in members, each not in partition.isr),
    )
    if not ranked:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"None of the replicas {list(partition.replicas)} is running: start one of them.",
        )
    chosen = ranked[0]
    if chosen not in members:
        members = {chosen: brokers[chosen].broker_epoch}
    isr = [each for each in partition.isr if each in brokers and each in members]
    in_sync = isr if chosen in isr else [chosen]
    after = with_members(partition, in_sync, members, edits.settings(topic).min_insync_replicas)
    return led_by(after, chosen, brokers)


def hand_over(
    image: ClusterImage,
    broker_id: int,
    *,
    stopping: Collection[int] = _NOBODY,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[int]:
    """Removes a broker that is about to stop from a portion of the partitions that it leads or is
    in sync for.

    The result is how many partitions it will still lead. Repeat as long as there are changes.
    """
    edits = TopicEdits(image, static)
    leads = 0
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.isr:
                continue
            after = None
            if edits.has_room(topic.name, index):
                after = _without(image, edits, topic.name, partition, broker_id, stopping)
            if after is not None:
                edits.put(topic.name, index, after)
            elif partition.leader == broker_id:
                leads += 1
    return edits.decision(leads)


def _without(
    image: ClusterImage,
    edits: TopicEdits,
    topic: str,
    partition: Partition,
    broker_id: int,
    stopping: Collection[int],
) -> Partition | None:
    members = _members(image, edits, topic, partition)
    isr = [
        each
        for each in partition.isr
        if each != broker_id and each in members and each in image.brokers
    ]
    heirs = [each for each in partition.replicas if each in isr and each not in stopping]
    if not heirs or partition.leader not in (broker_id, *isr):
        # If the leader is not alive and in sync, an election is due and settles this partition.
        return None
    after = with_members(partition, isr, members, edits.settings(topic).min_insync_replicas)
    return led_by(after, heirs[0], image.brokers) if partition.leader == broker_id else after
