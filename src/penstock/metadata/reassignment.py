"""Partition reassignment: moves replicas from some brokers to others (KIP-455).

A reassignment is stored in the partition itself. As soon as it is requested, `replicas` holds the
targets, followed by the replicas to be removed; both fetch and both count. `isr.completed` ends it
with the ISR change that brings in the last target: the old replicas are dropped under a new leader
epoch, and if the leader is one of them, the first target leads. So there are never fewer copies
than before. No other state is kept, so any controller can continue it.

Cancelling a reassignment means moving back to the original replicas: the added ones are removed at
once. Starting another reassignment also removes at once the added replicas that are not part of the
new one. That is refused if only such replicas are in sync, because they have records that the
others lack. It is also refused if fewer than min.insync.replicas would stay that have all committed
records: one of those may be dead, and its death not yet noticed. Kafka does not refuse this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.metadata.decisions import Decision
from penstock.metadata.edits import NO_STATIC, TopicEdits
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import completed, relead, sound_members, with_members
from penstock.metadata.model import Partition
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Move:
    """A request: the new replicas of a partition, or None to cancel its reassignment."""

    topic: str
    index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    topic: str
    index: int
    error: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Moving:
    """An ongoing reassignment. `caught_up` are the added replicas that are in sync."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    caught_up: tuple[int, ...]


def reassign(
    image: ClusterImage,
    moves: Sequence[Move],
    *,
    allow_replication_factor_change: bool = True,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[tuple[MoveAnswer, ...]]:
    """Starts, changes or cancels reassignments. Each one is accepted or refused separately."""
    edits = TopicEdits(image, static)
    answers: list[MoveAnswer] = []
    for move in moves:
        try:
            before = edits.partition(move.topic, move.index)
            target = _target(image, before, move.replicas, allow_replication_factor_change)
            after = _moved(image, before, target, edits, move.topic)
            if after != before:
                edits.put(move.topic, move.index, after)
        except KafkaError as error:
            answers.append(MoveAnswer(move.topic, move.index, error.code, error.message))
        else:
            answers.append(MoveAnswer(move.topic, move.index, ErrorCode.NONE))
    return edits.decision(tuple(answers))


def move_under_way(image: ClusterImage, where: TopicPartition) -> Moving | None:
    """Returns the ongoing reassignment of a partition; None if there is none, or no partition."""
    found = image.partition(*where)
    if found is None or not found.is_moving:
        return None
    return Moving(
        where.topic,
        where.partition,
        found.replicas,
        found.adding_replicas,
        found.removing_replicas,
        tuple(added for added in found.adding_replicas if added in found.isr),
    )


def original_replicas(partition: Partition) -> tuple[int, ...]:
    """Returns the replicas without those that an ongoing reassignment adds."""
    return tuple(each for each in partition.replicas if each not in partition.adding_replicas)


def _target(
    image: ClusterImage,
    partition: Partition,
    replicas: tuple[int, ...] | None,
    allow_replication_factor_change: bool,
) -> tuple[int, ...]:
    original = original_replicas(partition)
    if replicas is None:
        if not partition.is_moving:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return original
    problem = None
    unknown = [each for each in replicas if each not in image.brokers and each not in original]
    if not replicas:
        problem = "The partition needs at least one replica: name a broker."
    elif len({*replicas}) != len(replicas):
        problem = f"The assignment names a broker twice: {list(replicas)}."
    elif unknown:
        problem = (
            f"The broker(s) {unknown} are not registered. The registered brokers are "
            f"{sorted(image.brokers)}."
        )
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    if not allow_replication_factor_change and len(replicas) != len(original):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The partition has {len(original)} replica(s) and would get {len(replicas)}, but "
            "the request does not allow the replication factor to change.",
        )
    return replicas


def _moved(
    image: ClusterImage, before: Partition, target: tuple[int, ...], edits: TopicEdits, topic: str
) -> Partition:
    brokers = image.brokers
    original = original_replicas(before)
    removing = tuple(each for each in original if each not in target)
    adding = tuple(each for each in target if each not in original)
    replicas = target + removing
    moved = replace(before, replicas=replicas, adding_replicas=adding, removing_replicas=removing)
    held = sound_members(before, brokers, synced_from=edits.synced_from(topic))
    members = {each: epoch for each, epoch in held.items() if each in replicas}
    isr = [each for each in before.isr if each in members]
    min_insync = edits.settings(topic).min_insync_replicas
    if not members or (before.isr and not isr):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only the brokers {list(before.isr or before.eligible_leaders)} have all committed "
            "records, and none of them would remain a replica: wait until one of "
            f"{list(replicas)} has caught up.",
        )
    least = fewest_members(min_insync, len(target), len(held))
    if len(members) < least:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only the brokers {list(held)} have all committed records, and of them only "
            f"{list(members)} would remain replicas. min.insync.replicas requires {min_insync}: "
            f"wait until more of {list(replicas)} have caught up.",
        )
    after = with_members(moved, isr, members, min_insync)
    return relead(before, completed(after), brokers)


def fewest_members(min_insync: int, targets: int, members: int) -> int:
    """Returns how many of the replicas that have all committed records must stay. Less than
    min.insync.replicas is enough only if there are not more, or not more are wanted."""
    return min(min_insync, targets, members)
