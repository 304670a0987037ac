"""Offsets committed in transactions: TxnOffsetCommit 0-5, and the markers that end them.

These offsets are records of the transaction in the group's partition, as a producer's are in its
topics. They are pending until the marker; then they take effect or are discarded. Meanwhile, a
request for stable offsets gets a retriable error, from the moment they are being appended.

From version 3 on the producer sends its consumer's generation, member id and instance id, and is
refused like a member of an old generation: a zombie must not commit offsets for partitions that
another member now reads. Without them, as in older versions, a producer is trusted: its
transactional id fences only its own zombies.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.effects import Now, Token, TransactionalProducer
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer_offsets import require_committer, stale_partitions
from penstock.groups.error_responses import offsets_append_error, txn_commit_response
from penstock.groups.formats import OffsetValue
from penstock.groups.group import UNKNOWN_MEMBER, Group, State
from penstock.groups.limits import commit_records, fits_a_string
from penstock.groups.offsets import fits
from penstock.groups.shard_state import AnyGroup, ShardState
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse


def txn_offset_commit(
    shard: ShardState, request: TxnOffsetCommitRequest, guard: int, token: Token, now: Now
) -> None:
    try:
        group = _committing_group(shard, request, now)
    except KafkaError as error:
        code = error.code
        shard.effects.reply(token, txn_commit_response(request, lambda partition: code))
        return
    metadata_max = shard.config.offset_metadata_max
    offsets: dict[TopicPartition, OffsetValue] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            if fits(partition.committed_metadata, metadata_max):
                about = TopicPartition(topic.name, partition.partition_index)
                offsets[about] = OffsetValue(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now.wall_ms,
                )
    if not offsets:
        shard.effects.reply(token, _outcome(request, metadata_max, ErrorCode.NONE))
        return
    try:
        records = commit_records(group.group_id, offsets.items(), shard.batch_bytes_max())
    except KafkaError as error:
        shard.effects.reply(token, _outcome(request, metadata_max, error.code))
        return
    stored = tuple(offsets)
    group.commits_in_flight.update(stored)
    group.unstable_in_flight.update(stored)
    shard.groups[group.group_id] = group
    # These may be several batches of one transaction, which is aborted if one of them is refused.
    shard.appends.start_batches(
        records,
        PendingStored(group.group_id, stored, request, metadata_max, token),
        now,
        TransactionalProducer(request.producer_id, request.producer_epoch, guard),
    )


def _committing_group(shard: ShardState, request: TxnOffsetCommitRequest, now: Now) -> AnyGroup:
    """Returns the group if the request may commit to it."""
    if not fits_a_string(request.group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    generation, member_id = request.generation_id, request.member_id
    group = shard.groups.get(request.group_id)
    if group is None:
        if generation < 0:
            return Group(request.group_id, now.wall_ms)
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if isinstance(group, ConsumerGroup):
        _require_epoch(shard, group, request)
        return group
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if generation < 0 and group.state is State.EMPTY:
        return group
    if generation >= 0 or member_id != UNKNOWN_MEMBER or request.group_instance_id is not None:
        group.require_member(member_id, request.group_instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return group


def _require_epoch(
    shard: ShardState, group: ConsumerGroup, request: TxnOffsetCommitRequest
) -> None:
    """Raises if the producer's consumer may not commit under its epoch to the group."""
    if group.is_dead:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    member_id, epoch = request.member_id, request.generation_id
    if epoch < 0 and member_id == UNKNOWN_MEMBER and request.group_instance_id is None:
        return
    partitions = [
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    try:
        require_committer(group, member_id, epoch)
    except KafkaError as error:
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from error
        raise
    if stale_partitions(group, shard.consumers.topics, member_id, epoch, partitions):
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


@dataclass(frozen=True, slots=True)
class PendingStored:
    group_id: str
    stored: tuple[TopicPartition, ...]
    request: TxnOffsetCommitRequest
    metadata_max: int
    token: Token

    def committed(self, shard: ShardState, now: Now) -> None:
        self._finish(shard, ErrorCode.NONE)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self._finish(shard, offsets_append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(self.token, _outcome(self.request, self.metadata_max, code))

    def _finish(self, shard: ShardState, code: ErrorCode) -> None:
        group = shard.groups[self.group_id]
        for in_flight in (group.commits_in_flight, group.unstable_in_flight):
            in_flight.subtract(self.stored)
            for about in self.stored:
                if not in_flight[about]:
                    del in_flight[about]
        shard.effects.reply(self.token, _outcome(self.request, self.metadata_max, code))


def _outcome(
    request: TxnOffsetCommitRequest, metadata_max: int, code: ErrorCode
) -> TxnOffsetCommitResponse:
    return txn_commit_response(
        request,
        lambda partition: (
            code
            if fits(partition.committed_metadata, metadata_max)
            else ErrorCode.OFFSET_METADATA_TOO_LARGE
        ),
    )
