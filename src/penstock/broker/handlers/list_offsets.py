"""ListOffsets, versions 1 to 10: an offset for a time, or for one of the marks below.

    -1  latest: the high watermark, or with read_committed the last stable offset
    -2  earliest: the log start
    -3  of the record with the highest timestamp (version 7)
    -4  earliest on this machine's disks (8); the same as -2 without tiered storage
    -5  last that was tiered (9): there is none

A time is answered with the first record at or after it, -1 if there is none. Version 4 added the
leader epoch of the offset.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.hosted import HostedPartition
from penstock.storage.timesearch import newest_record, offset_for_time
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ListOffsetsRequest, ListOffsetsResponse

_READ_COMMITTED = 1


def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    committed = request.isolation_level == _READ_COMMITTED
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        answers = ListOffsetsResponse.Topic(name=topic.name)
        response.topics.append(answers)
        for asked in topic.partitions:
            answer = ListOffsetsResponse.Partition(partition_index=asked.partition_index)
            answers.partitions.append(answer)
            if (topic.name, asked.partition_index) in seen:
                # Searching by time costs something: twice in one request is a mistake, or worse.
                answer.error_code = ErrorCode.INVALID_REQUEST
                continue
            seen.add((topic.name, asked.partition_index))
            try:
                hosted = context.services.replicas.require(topic.name, asked.partition_index)
                term = hosted.require_leader(asked.current_leader_epoch)
                _fill(answer, hosted, asked.timestamp, committed)
                if context.version >= 4 and answer.offset >= 0:
                    # What nobody has written yet will be this leader's.
                    known = hosted.log.epochs.epoch_at(answer.offset)
                    answer.leader_epoch = term.epoch if known < 0 else known
            except EXPECTED as error:
                answer.error_code = code_of(error)
    return response


def _fill(
    answer: ListOffsetsResponse.Partition,
    hosted: HostedPartition,
    timestamp: int,
    committed: bool,
) -> None:
    log = hosted.log
    upper = hosted.last_stable_offset if committed else hosted.high_watermark
    if timestamp == -1:
        answer.offset = upper
    elif timestamp in (-2, -4):
        answer.offset = log.log_start_offset
    elif timestamp == -5:
        return
    elif timestamp >= 0 or timestamp == -3:
        found = newest_record(log) if timestamp == -3 else offset_for_time(log, timestamp)
        if found is None or found.offset >= upper:
            return
        answer.offset, answer.timestamp = found
    else:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning")


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
