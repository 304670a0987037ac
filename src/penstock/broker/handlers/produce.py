"""Produce, versions 3 to 11: append one batch to each of some partitions.

acks=0 gets no answer at all, and a closed connection when a batch is refused; acks=1 one when the
batch is in the leader's file, acks=-1 when it is committed: on every in-sync replica, by the
topic's durability. A batch seen before (an idempotent producer's retry) is answered with the offset
of its first copy.

zstd is taken from version 7 on. Version 8 added an error message. From version 10 on a client that
came to the wrong broker is told the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.hosted import HostedPartition, Written
from penstock.broker.purgatory import CommitWait
from penstock.broker.services import Services
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import ProduceRequest, ProduceResponse

_ALL = -1


def handle(
    request: ProduceRequest, context: RequestContext
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    if request.acks not in (-1, 0, 1):
        return refuse(request, context.version, ErrorCode.INVALID_REQUIRED_ACKS)
    services = context.services
    now_ms = services.now_ms()
    response = ProduceResponse()
    waits: list[tuple[HostedPartition, int]] = []
    waiting: list[ProduceResponse.Partition] = []
    for topic in request.topic_data:
        answers = ProduceResponse.Topic(name=topic.name)
        response.responses.append(answers)
        for partition in topic.partition_data:
            hosted = services.replicas.get(topic.name, partition.index)
            answer = ProduceResponse.Partition(index=partition.index)
            answers.partition_responses.append(answer)
            try:
                if hosted is None:
                    hosted = services.replicas.require(topic.name, partition.index)
                _check_room(hosted, request.acks)
                written = hosted.append(
                    _writable(partition.records), now_ms, zstd_allowed=context.version >= 7
                )
            except EXPECTED as error:
                _fill_error(answer, error)
                if context.version >= 10:
                    _tell_leader(answer, services, topic.name)
                continue
            _fill(answer, hosted, written)
            if request.acks == _ALL and hosted.high_watermark < written.end_offset:
                waits.append((hosted, written.end_offset))
                waiting.append(answer)
    if request.acks == 0:
        _close_if_refused(response)
        return None
    if not waits:
        return response
    return _wait(response, waits, waiting, request.timeout_ms)


def _close_if_refused(response: ProduceResponse) -> None:
    """Without answers, a closed connection is how a client learns to look for the leader again."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise ProtocolError(
                    f"acks=0 and the batch for {topic.name}-{answer.index} was refused: "
                    f"{answer.error_message}"
                )


def _writable(records: bytes | bytearray | memoryview | None) -> memoryview | None:
    """Frames come in writable memory, so that offsets can be stamped where the batch lies."""
    if records is None:
        return None
    view = memoryview(records)
    return memoryview(bytearray(view)) if view.readonly else view


def _check_room(hosted: HostedPartition, acks: int) -> None:
    if acks == _ALL:
        hosted.require_insync()


def _fill(answer: ProduceResponse.Partition, hosted: HostedPartition, written: Written) -> None:
    answer.base_offset = written.base_offset
    answer.log_append_time_ms = written.append_time_ms
    answer.log_start_offset = hosted.log.log_start_offset


def _fill_error(answer: ProduceResponse.Partition, error: Exception) -> None:
    answer.error_code = code_of(error)
    answer.base_offset = -1
    answer.error_message = str(error)


def _tell_leader(answer: ProduceResponse.Partition, services: Services, topic: str) -> None:
    if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        partition = services.image.partition(topic, answer.index)
        if partition is not None and partition.leader >= 0:
            answer.current_leader = ProduceResponse.Leader(partition.leader, partition.leader_epoch)


def _wait(
    response: ProduceResponse,
    waits: Sequence[tuple[HostedPartition, int]],
    answers: Sequence[ProduceResponse.Partition],
    timeout_ms: int,
) -> asyncio.Future[ProduceResponse]:
    def finish(outcomes: Sequence[ErrorCode | None]) -> ProduceResponse:
        for answer, code in zip(answers, outcomes, strict=True):
            if code is not None:
                answer.error_code = code
                answer.base_offset = -1
                answer.error_message = code.message
        return response

    return CommitWait(waits, max(0, timeout_ms) / 1000, finish).future


def refuse(request: ProduceRequest, version: int, code: ErrorCode) -> ProduceResponse:
    """Every partition gets the code."""
    return ProduceResponse(
        responses=[
            ProduceResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    ProduceResponse.Partition(
                        index=partition.index, error_code=code, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
