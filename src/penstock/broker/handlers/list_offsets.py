"""ListOffsets, versions 1 to 10: returns the offset for a timestamp or for one of these marks.

    -1  latest: the high watermark, or with read_committed the last stable offset
    -2  earliest: the log start
    -3  of the record with the highest timestamp (version 7)
    -4  earliest on this machine's disks (8); the same as -2 without tiered storage
    -5  last that was tiered (9): there is none

A mark in a version that does not have it, or any other negative timestamp, is UNSUPPORTED_VERSION.
For a timestamp the answer is the first record at or after it, or -1 if there is none. Version 4
added the leader epoch of the offset. A partition that is named twice is refused, and answered once.

A new leader's high watermark may be lower than the one its predecessor gave to clients. Until it
has caught up, requests that would show the difference get OFFSET_NOT_AVAILABLE (before version 5,
which introduced it, LEADER_NOT_AVAILABLE): no client sees the end of a partition go back.

A follower gets the start and end of the log itself, whether committed or not.

A search by time opens a batch. A batch that takes long to decompress is opened on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handlers.large_requests import answered
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.leadership import Leadership
from penstock.security.acls import AclOperation
from penstock.storage.timesearch import (
    Look,
    NotQuick,
    Search,
    TimedOffset,
    search_newest,
    search_time,
)
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
_SEARCH_TIMEOUT_S: Final = 30.0
"""By then a client that waits for its answer has sent the request again."""


class _Asked(NamedTuple):
    """The request for one partition, and where its answer goes."""

    hosted: HostedPartition
    term: Leadership
    timestamp: int
    committed: bool
    answer: ListOffsetsResponse.Partition


class _Unfinished(NamedTuple):
    """A search whose next look must run on a thread."""

    asked: _Asked
    search: Search
    look: Look


def handle(
    request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | asyncio.Future[ListOffsetsResponse]:
    count = sum(len(topic.partitions) for topic in request.topics)
    unfinished: list[_Unfinished] = []
    listed = answered(context, _listed(request, context, unfinished), count)
    if isinstance(listed, asyncio.Future):
        return context.spawn(_finish_later(unfinished, listed, context))
    return context.spawn(_finish(unfinished, listed, context)) if unfinished else listed


def _listed(
    request: ListOffsetsRequest, context: RequestContext, unfinished: list[_Unfinished]
) -> Steps[ListOffsetsResponse]:
    committed = request.isolation_level == _READ_COMMITTED
    # A search by time is expensive: naming a partition twice is a mistake, or an attack.
    once: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for name, asked in _asked(request):
        yield
        topic_partition = name, asked.partition_index
        (twice if topic_partition in once else once).add(topic_partition)
    is_replica = request.replica_id in context.services.image.brokers and context.may_cluster(
        AclOperation.CLUSTER_ACTION, audited=False
    )
    topics: dict[str, dict[int, ListOffsetsResponse.Partition]] = {}
    for name, asked in _asked(request):
        yield
        answer = ListOffsetsResponse.Partition(partition_index=asked.partition_index)
        topics.setdefault(name, {})[asked.partition_index] = answer
        try:
            if not is_replica:
                context.require_topic(AclOperation.DESCRIBE, name)
            if (name, asked.partition_index) in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            left = _fill(answer, name, asked, committed, context, is_replica=is_replica)
            if left is not None:
                unfinished.append(left)
        except EXPECTED_ERRORS as error:
            _fail(answer, error, context.version)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(name=name, partitions=list(answers.values()))
            for name, answers in topics.items()
        ]
    )


def _asked(request: ListOffsetsRequest) -> Iterator[tuple[str, ListOffsetsRequest.Partition]]:
    for topic in request.topics:
        for asked in topic.partitions:
            yield topic.name, asked


def _fail(answer: ListOffsetsResponse.Partition, error: Exception, version: int) -> None:
    answer.error_code = code_of(error)
    if version < 5 and answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
        answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE


async def _finish_later(
    unfinished: list[_Unfinished],
    listed: asyncio.Future[ListOffsetsResponse],
    context: RequestContext,
) -> ListOffsetsResponse:
    response = await listed
    return await _finish(unfinished, response, context)


async def _finish(
    unfinished: list[_Unfinished], response: ListOffsetsResponse, context: RequestContext
) -> ListOffsetsResponse:
    large_batches = context.services.large_batches
    for asked, search, look in unfinished:
        left: _Unfinished | None = _Unfinished(asked, search, look)
        try:
            while left is not None:
                found = await large_batches.run(left.look.run, _SEARCH_TIMEOUT_S)
                left = _go_on(asked, search, found)
            # Another broker may have become leader in the meantime.
            if asked.hosted.leadership is not asked.term:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            _tell_epoch(asked, context.version)
        except EXPECTED_ERRORS as error:
            asked.answer.offset = asked.answer.timestamp = -1
            _fail(asked.answer, error, context.version)
    return response


def _fill(
    answer: ListOffsetsResponse.Partition,
    topic: str,
    asked: ListOffsetsRequest.Partition,
    committed: bool,
    context: RequestContext,
    *,
    is_replica: bool,
) -> _Unfinished | None:
    if asked.timestamp < 0 and context.version < _MARKS_SINCE.get(asked.timestamp, _NEVER):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    hosted = context.services.replicas.require(topic, asked.partition_index)
    term = hosted.require_leader(asked.current_leader_epoch)
    about = _Asked(hosted, term, asked.timestamp, committed, answer)
    if is_replica and asked.timestamp == _LATEST:
        answer.offset = hosted.log.end_offset
    else:
        unfinished = _find(about)
        if unfinished is not None:
            return unfinished
    _tell_epoch(about, context.version)
    return None


def _tell_epoch(asked: _Asked, version: int) -> None:
    answer = asked.answer
    if version >= 4 and answer.offset >= 0:
        # An offset that is not written yet will be written in this leader epoch.
        known = asked.hosted.log.epochs.epoch_at(answer.offset)
        answer.leader_epoch = asked.term.epoch if known < 0 else known


def _find(asked: _Asked) -> _Unfinished | None:
    hosted, timestamp = asked.hosted, asked.timestamp
    if timestamp == _LATEST:
        asked.term.latest_offset()
        asked.answer.offset = _upper(asked)
    elif timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        asked.answer.offset = hosted.log.log_start_offset
    elif timestamp == _NEWEST:
        return _go_on(asked, search_newest(hosted.log), None)
    elif timestamp != _LAST_TIERED:
        return _go_on(asked, search_time(hosted.log, timestamp), None)
    return None


def _upper(asked: _Asked) -> int:
    hosted = asked.hosted
    return hosted.last_stable_offset if asked.committed else hosted.high_watermark


def _go_on(asked: _Asked, search: Search, found: TimedOffset | None) -> _Unfinished | None:
    """Searches until a record is found, or until the next look must run on a thread."""
    try:
        while True:
            look = search.send(found)
            try:
                found = look.run(quickly=True)
            except NotQuick:
                return _Unfinished(asked, search, look)
    except StopIteration as end:
        found = end.value
    if found is None or found.offset >= _upper(asked):
        asked.term.latest_offset()
    else:
        asked.answer.offset, asked.answer.timestamp = found
    return None


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
