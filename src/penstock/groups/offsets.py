"""Committed offsets: OffsetCommit 2-9, OffsetDelete 0, and expiry.

A member commits under its generation, and a stale generation is refused: its partitions may be
assigned to another member by now. Clients that are not members may commit only while the group has
no members. That is how consumers that assign partitions to themselves, and tools that reset
offsets, use a group only to store offsets.

Offsets expire a retention time after the group became Empty, or after their commit if that was
later, as when an operator sets them. In a group that only stores offsets they expire that long
after the commit. In a running consumer group they expire that long after the commit if no member is
subscribed to the topic any more. A group without members and offsets is deleted. Offsets that are
being appended do not expire.

Every change here becomes records, and takes effect when these are committed. An offset that is
pending in a transaction (`transactions`) counts as one that the group has, and does not expire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.coordination.effects import LogRecord, Now, Token
from penstock.coordination.in_flight import Outcome
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer_offsets import require_committer, stale_partitions
from penstock.groups.effects import RequestInfo, TimerKey, TimerKind
from penstock.groups.error_responses import commit_response, offsets_append_error
from penstock.groups.formats import NO_TIMESTAMP, OffsetValue, group_record, offset_record
from penstock.groups.group import CONSUMER_PROTOCOL_TYPE, UNKNOWN_MEMBER, Group, State
from penstock.groups.limits import commit_records, fits_a_string
from penstock.groups.shard_state import AnyGroup, ShardState
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.java import utf16_units
from penstock.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

_GROUP_NOT_FOUND_SINCE = 9
EXPIRY_TIMER = TimerKey(TimerKind.EXPIRY)

_TIMESTAMP_MAX: Final = 2**63 - 1


# OffsetCommit


def offset_commit(
    shard: ShardState, request: OffsetCommitRequest, info: RequestInfo, token: Token, now: Now
) -> None:
    try:
        group = _committing_group(shard, request, info, now)
    except KafkaError as error:
        code = error.code
        shard.effects.reply(token, commit_response(request, lambda topic, partition: code))
        return
    metadata_max = shard.config.offset_metadata_max
    stale = _stale_partitions(shard, group, request)
    # A partition that is named twice is committed once, with its last offset, as in Kafka.
    offsets: dict[TopicPartition, OffsetValue] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            about = TopicPartition(topic.name, partition.partition_index)
            if about not in stale and fits(partition.committed_metadata, metadata_max):
                offsets[about] = _offset_value(request, partition, now)
    if not offsets:
        shard.effects.reply(token, _commit_outcome(request, metadata_max, stale, ErrorCode.NONE))
        return
    try:
        records = commit_records(group.group_id, offsets.items(), shard.batch_bytes_max())
    except KafkaError as error:
        shard.effects.reply(token, _commit_outcome(request, metadata_max, stale, error.code))
        return
    stored = tuple(offsets)
    group.commits_in_flight.update(stored)
    shard.groups[group.group_id] = group
    shard.appends.start_batches(
        records, CommitStored(group.group_id, stored, request, metadata_max, stale, token), now
    )


def _committing_group(
    shard: ShardState, request: OffsetCommitRequest, info: RequestInfo, now: Now
) -> AnyGroup:
    """Returns the group if the request may commit to it."""
    if not fits_a_string(request.group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    group = shard.groups.get(request.group_id)
    if group is None:
        if generation < 0:
            return Group(request.group_id, now.wall_ms)
        if info.version >= _GROUP_NOT_FOUND_SINCE:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if isinstance(group, ConsumerGroup):
        if group.is_dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        require_committer(group, member_id, generation, info.version)
        return group
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if generation < 0 and group.state is State.EMPTY:
        return group
    if generation < 0 and member_id == UNKNOWN_MEMBER and request.group_instance_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.require_member(member_id, request.group_instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is State.COMPLETING:
        # It has joined but does not know its assignment yet, so it cannot own the partitions it
        # commits for.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    shard.extend_session(group, member, now)
    return group


def _stale_partitions(
    shard: ShardState, group: AnyGroup, request: OffsetCommitRequest
) -> frozenset[TopicPartition]:
    """Returns the partitions that a member of a consumer group may not commit."""
    if not isinstance(group, ConsumerGroup):
        return frozenset()
    partitions = (
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    )
    epoch = request.generation_id_or_member_epoch
    return stale_partitions(group, shard.consumers.topics, request.member_id, epoch, partitions)


def fits(metadata: str | None, metadata_max: int) -> bool:
    """Returns whether the metadata of an offset is short enough to be stored."""
    if not metadata or 2 * len(metadata) <= metadata_max:
        return True
    return len(utf16_units(metadata)) <= metadata_max and fits_a_string(metadata)


def _offset_value(
    request: OffsetCommitRequest, partition: OffsetCommitRequest.Partition, now: Now
) -> OffsetValue:
    return OffsetValue(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        now.wall_ms,
        # Up to version 4 a client may set its own retention time.
        NO_TIMESTAMP
        if request.retention_time_ms < 0
        else min(now.wall_ms + request.retention_time_ms, _TIMESTAMP_MAX),
    )


@dataclass(frozen=True, slots=True)
class CommitStored:
    group_id: str
    stored: tuple[TopicPartition, ...]
    request: OffsetCommitRequest
    metadata_max: int
    stale: frozenset[TopicPartition]
    token: Token

    def committed(self, shard: ShardState, now: Now) -> None:
        self._finish(shard, ErrorCode.NONE)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self._finish(shard, offsets_append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        self._reply(shard, code)

    def _reply(self, shard: ShardState, code: ErrorCode) -> None:
        response = _commit_outcome(self.request, self.metadata_max, self.stale, code)
        shard.effects.reply(self.token, response)

    def _finish(self, shard: ShardState, code: ErrorCode) -> None:
        in_flight = shard.groups[self.group_id].commits_in_flight
        in_flight.subtract(self.stored)
        for about in self.stored:
            if not in_flight[about]:
                del in_flight[about]
        self._reply(shard, code)


def _commit_outcome(
    request: OffsetCommitRequest,
    metadata_max: int,
    stale: frozenset[TopicPartition],
    code: ErrorCode,
) -> OffsetCommitResponse:
    def code_of(topic: str, partition: OffsetCommitRequest.Partition) -> ErrorCode:
        if stale and TopicPartition(topic, partition.partition_index) in stale:
            return ErrorCode.STALE_MEMBER_EPOCH
        if not fits(partition.committed_metadata, metadata_max):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return code

    return commit_response(request, code_of)


# OffsetDelete


def offset_delete(
    shard: ShardState, request: OffsetDeleteRequest, info: RequestInfo, token: Token, now: Now
) -> None:
    group = shard.groups.get(request.group_id)
    code = _why_not_delete_offsets(group)
    if group is None or code is not ErrorCode.NONE:
        shard.effects.reply(token, OffsetDeleteResponse(error_code=code))
        return
    topics = []
    records: list[LogRecord] = []
    for topic in request.topics:
        subscribed = group.is_subscribed_to(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        indexes = [partition.partition_index for partition in topic.partitions]
        topics.append(
            OffsetDeleteResponse.Topic(
                topic.name, [OffsetDeleteResponse.Partition(index, code) for index in indexes]
            )
        )
        if not subscribed:
            abouts = [TopicPartition(topic.name, index) for index in indexes]
            records += tombstones(group, [about for about in abouts if _holds(shard, group, about)])
    response = OffsetDeleteResponse(topics=topics)
    if records:
        shard.appends.start_batches(records, OffsetsDeleted(token, response), now)
    else:
        shard.effects.reply(token, response)


def _why_not_delete_offsets(group: AnyGroup | None) -> ErrorCode:
    if group is None or is_dead(group):
        return ErrorCode.GROUP_ID_NOT_FOUND
    if isinstance(group, ConsumerGroup):
        return ErrorCode.NONE
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return ErrorCode.NON_EMPTY_GROUP  # The coordinator cannot know what its members read.
    return ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    token: Token
    response: OffsetDeleteResponse

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.effects.reply(self.token, self.response)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self.abandoned(shard, offsets_append_error(error))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(self.token, OffsetDeleteResponse(error_code=code))


# Expiry and deletion


def tombstones(group: AnyGroup, abouts: Iterable[TopicPartition]) -> list[LogRecord]:
    return [offset_record(group.group_id, *about, None) for about in abouts]


def all_offsets(shard: ShardState, group: AnyGroup) -> list[TopicPartition]:
    """Returns the partitions with offsets in the log, pending or not, or being appended."""
    image, group_id = shard.image, group.group_id
    return list(
        dict.fromkeys(
            (*image.offsets_of(group_id), *image.pending_of(group_id), *group.commits_in_flight)
        )
    )


def _holds(shard: ShardState, group: AnyGroup, about: TopicPartition) -> bool:
    return about in shard.image.offsets_of(group.group_id) or _is_under_way(shard, group, about)


def _is_under_way(shard: ShardState, group: AnyGroup, about: TopicPartition) -> bool:
    return about in group.commits_in_flight or about in shard.image.pending_of(group.group_id)


def forget_topics(shard: ShardState, names: Collection[str], now: Now) -> None:
    """Deletes the offsets of deleted topics: a new topic of the same name must not inherit them."""
    for group in shard.groups.values():
        if not is_dead(group):
            image, group_id = shard.image, group.group_id
            held = image.offsets_of(group_id), image.pending_of(group_id), group.commits_in_flight
            gone = dict.fromkeys(about for each in held for about in each if about[0] in names)
            if gone:
                shard.appends.start_batches(tombstones(group, gone), Forgotten(), now)


def expire(shard: ShardState, now: Now) -> None:
    """Appends tombstones for everything whose retention has passed, and sets the timer again."""
    for group in list(shard.groups.values()):
        if is_dead(group):
            continue
        expired = _expired_offsets(shard, group, now)
        leftover = len(all_offsets(shard, group)) - len(expired)
        if is_deletable(group) and not leftover:
            bury(shard, [group], tombstones(group, expired), Buried((group.group_id,)), now)
        elif expired:
            shard.appends.start_batches(tombstones(group, expired), Forgotten(), now)
    shard.effects.set_timer(
        EXPIRY_TIMER, now.ticks_ms + shard.config.offsets_retention_check_interval_ms
    )


def _expired_offsets(shard: ShardState, group: AnyGroup, now: Now) -> list[TopicPartition]:
    if isinstance(group, ConsumerGroup):
        return _unsubscribed_offsets(shard, group, now)
    lapses_with_group = group.protocol_type is not None and group.state is State.EMPTY
    runs = group.protocol_type is not None and not lapses_with_group
    if runs and (group.state is not State.STABLE or group.subscribed_topics is None):
        return []
    expired = []
    for about, value in shard.image.offsets_of(group.group_id).items():
        since_ms = value.commit_timestamp
        if lapses_with_group:
            since_ms = max(since_ms, group.state_since_ms)
        ends_ms = value.expire_timestamp
        if ends_ms == NO_TIMESTAMP:
            ends_ms = since_ms + shard.config.offsets_retention_ms
        spared = _is_under_way(shard, group, about) or (runs and group.is_subscribed_to(about[0]))
        if now.wall_ms >= ends_ms and not spared:
            expired.append(about)
    return expired


def _unsubscribed_offsets(
    shard: ShardState, group: ConsumerGroup, now: Now
) -> list[TopicPartition]:
    """Returns the expired offsets of a consumer group: those of topics that nobody reads."""
    expired = []
    empty_since_ms = group.empty_since_ms
    for about, value in shard.image.offsets_of(group.group_id).items():
        ends_ms = value.expire_timestamp
        if ends_ms == NO_TIMESTAMP:
            since_ms = max(value.commit_timestamp, empty_since_ms)
            ends_ms = since_ms + shard.config.offsets_retention_ms
        spared = _is_under_way(shard, group, about) or group.is_subscribed_to(about[0])
        if now.wall_ms >= ends_ms and not spared:
            expired.append(about)
    return expired


def is_dead(group: AnyGroup) -> bool:
    """Returns whether the tombstones of the group are being appended."""
    return group.is_dead if isinstance(group, ConsumerGroup) else group.state is State.DEAD


def is_deletable(group: AnyGroup) -> bool:
    """Returns whether the group has no members and is not being changed."""
    if isinstance(group, ConsumerGroup):
        return not group.members and not group.is_writing
    return group.state is State.EMPTY and not group.pending_members


def bury(
    shard: ShardState,
    groups: Sequence[AnyGroup],
    records: list[LogRecord],
    outcome: Outcome[ShardState],
    now: Now,
) -> None:
    """Deletes groups: their own tombstones are added to `records` as the last ones."""
    for group in groups:
        if isinstance(group, ConsumerGroup):
            records += group.tombstones()
            group.is_dead = True
            continue
        if group.generation or group.group_id in shard.image.groups:
            records.append(group_record(group.group_id, None))
        group.transition(State.DEAD, group.state_since_ms)
    if records:
        shard.appends.start_batches(records, outcome, now)
    else:
        outcome.committed(shard, now)


@dataclass(frozen=True, slots=True)
class Buried:
    group_ids: tuple[str, ...]

    def committed(self, shard: ShardState, now: Now) -> None:
        for group_id in self.group_ids:
            del shard.groups[group_id]
            shard.readers.forget(group_id)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        for group_id in self.group_ids:
            group = shard.groups[group_id]
            if isinstance(group, ConsumerGroup):
                group.is_dead = False
            else:
                group.transition(State.EMPTY, group.state_since_ms)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...


@dataclass(frozen=True, slots=True)
class Forgotten:
    """No request waits for this; what failed is found again by the next expiry."""

    def committed(self, shard: ShardState, now: Now) -> None: ...

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None: ...

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...
