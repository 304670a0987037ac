"""ListOffsets, versions 1 to 10: an offset for a time, or for one of the marks below.

    -1  latest: the high watermark, or with read_committed the last stable offset
    -2  earliest: the log start
    -3  of the record with the highest timestamp (version 7)
    -4  earliest on this machine's disks (8); the same as -2 without tiered storage
    -5  last that was tiered (9): there is none

A mark below its version, or one that is no mark, is UNSUPPORTED_VERSION. A time is answered with
the first record at or after it, -1 if there is none. Version 4 added the leader epoch of the
offset. A partition that is asked for twice is refused, and answered once.

A new leader may know less of what is committed than its predecessor told clients. Until it has
caught up with that, what would be behind it is OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE before
version 5, which does not know the other): no client sees the end of a partition go back.

A follower that asks is told where the log itself starts and ends, committed or not.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.handlers.admin_requests import repeated
from penstock.broker.hosted import HostedPartition
from penstock.broker.large_requests import Steps, answered
from penstock.partition.replication import Leadership
from penstock.storage.timesearch import newest_record, offset_for_time
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ListOffsetsRequest, ListOffsetsResponse

_READ_COMMITTED: Final = 1
_LATEST: Final = -1
_EARLIEST: Final = -2
_NEWEST: Final = -3
_EARLIEST_LOCAL: Final = -4
_LAST_TIERED: Final = -5
_MARKS_SINCE: Final = {
    _LATEST: 0,
    _EARLIEST: 0,
    _NEWEST: 7,
    _EARLIEST_LOCAL: 8,
    _LAST_TIERED: 9,
}
_NEVER: Final = 2**15


def handle(
    request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | asyncio.Future[ListOffsetsResponse]:
    count = sum(len(topic.partitions) for topic in request.topics)
    return answered(context, _listed(request, context), count)


def _listed(request: ListOffsetsRequest, context: RequestContext) -> Steps[ListOffsetsResponse]:
    committed = request.isolation_level == _READ_COMMITTED
    asked_for = [(topic.name, asked) for topic in request.topics for asked in topic.partitions]
    # Searching by time costs something: twice in one request is a mistake, or worse.
    twice = repeated((name, asked.partition_index) for name, asked in asked_for)
    is_replica = request.replica_id in context.services.image.brokers
    topics: dict[str, dict[int, ListOffsetsResponse.Partition]] = {}
    for name, asked in asked_for:
        yield
        answer = ListOffsetsResponse.Partition(partition_index=asked.partition_index)
        topics.setdefault(name, {})[asked.partition_index] = answer
        try:
            if (name, asked.partition_index) in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            _fill(answer, name, asked, committed, context, is_replica=is_replica)
        except EXPECTED as error:
            answer.error_code = code_of(error)
            if context.version < 5 and answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
                answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(name=name, partitions=list(answers.values()))
            for name, answers in topics.items()
        ]
    )


def _fill(
    answer: ListOffsetsResponse.Partition,
    topic: str,
    asked: ListOffsetsRequest.Partition,
    committed: bool,
    context: RequestContext,
    *,
    is_replica: bool,
) -> None:
    if asked.timestamp < 0 and context.version < _MARKS_SINCE.get(asked.timestamp, _NEVER):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    hosted = context.services.replicas.require(topic, asked.partition_index)
    term = hosted.require_leader(asked.current_leader_epoch)
    if is_replica and asked.timestamp == _LATEST:
        answer.offset = hosted.log.end_offset
    else:
        _find(answer, hosted, term, asked.timestamp, committed)
    if context.version >= 4 and answer.offset >= 0:
        # What nobody has written yet will be this leader's.
        known = hosted.log.epochs.epoch_at(answer.offset)
        answer.leader_epoch = term.epoch if known < 0 else known


def _find(
    answer: ListOffsetsResponse.Partition,
    hosted: HostedPartition,
    term: Leadership,
    timestamp: int,
    committed: bool,
) -> None:
    log = hosted.log
    upper = hosted.last_stable_offset if committed else hosted.high_watermark
    if timestamp == _LATEST:
        term.latest_offset()
        answer.offset = upper
    elif timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        answer.offset = log.log_start_offset
    elif timestamp != _LAST_TIERED:
        found = newest_record(log) if timestamp == _NEWEST else offset_for_time(log, timestamp)
        if found is None or found.offset >= upper:
            term.latest_offset()
        else:
            answer.offset, answer.timestamp = found


def refuse(request: ListOffsetsRequest, version: int, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(
                name=topic.name,
                partitions=[
                    ListOffsetsResponse.Partition(
                        partition_index=asked.partition_index, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
