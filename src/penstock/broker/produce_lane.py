"""Produce requests for one partition, without taking them apart.

Most producers send one batch for one partition per request, over and over: librdkafka never does
anything else. Such requests of one connection differ only in correlation id, partition and batch;
everything before the partition is the same bytes. So the first of its kind goes the long way, is
decoded and checked against what is assumed here, and leaves a lane: the bytes it began with, and
the bytes of its answer. Later ones that begin with the same bytes are served from the lane: the
batch is appended where it lies and the answer is made of the bytes that never change and the new
numbers. So the frame may lie in a buffer that is used again for the next read.

A transactional id is among the bytes that never change. The first batch of a transaction on a
partition goes the long way, since the coordinator must be asked; the others need not.

A lane decides nothing: whatever is unusual (an error, a request of another shape, an old version)
is left to `handlers/produce.py`. An append that raised has changed nothing, so the long way meets
the same error and answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.broker.failures import EXPECTED
from penstock.broker.hosted import HostedPartition
from penstock.broker.purgatory import CommitWait
from penstock.broker.services import Services
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.net.session import Answer, Part
from penstock.records.batch import HEADER_SIZE
from penstock.wire.codec import RequestHeader, encode_response
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse

LANES_MAX: Final = 64
"""Topics times acks of one connection; beyond that it starts afresh."""
FLEXIBLE: Final = 9
"""From this version on lengths are varints and every struct ends in tags."""
_AFTER_HEADER: Final = 8
"""Key, version and correlation id; the client id follows."""
_TAGS_BYTES: Final = 3
"""Of partition, topic and request, behind the batch: a zero each where there are none."""
_VARINT_BYTE_MAX: Final = 127
"""Text is as long as its length says less one: up to this, that is one byte."""
_ALL: Final = -1
_partition: Final = Struct(">i4B").unpack_from
"""Its index, and the bytes that its batch's length begins with."""
_OUTCOME: Final = ">ihqqq"
"""Partition, error code, base offset, append time, log start."""
_OUTCOME_OF_SAMPLE: Final = Struct(_OUTCOME).pack(0x5A5A5A5A, 0, 0x5B5B5B5B, 0x5C5C5C5C, 0x5D5D5D5D)


class _Lane(NamedTuple):
    version: int
    topic: str
    acks: int
    timeout_s: float
    pack: Callable[..., bytes]
    """Makes an answer of the four parts of it that never change and the numbers between them."""
    length: bytes
    middle: bytes
    rest: bytes


class ProduceLanes:
    """Of one connection."""

    __slots__ = ("_find", "_lanes", "_name_at", "_now_ms")

    def __init__(self, services: Services) -> None:
        self._find = services.replicas.get
        self._now_ms = services.env.clock.wall_ms
        self._lanes: dict[bytes, _Lane] = {}
        self._name_at = 0
        """Where the topic's name begins, with its length; the same as long as the client id is."""

    def serve(self, frame: memoryview, version: int, correlation_id: int) -> Answer:
        """The answer, or None if the request must go the long way. It is a Produce request.

        Nothing of the frame is kept.
        """
        name_at = self._name_at
        if not name_at or len(frame) <= name_at:
            return None
        # The length is one more than the name's, and the count of partitions follows the name.
        index_at = name_at + frame[name_at] + 1
        lane = self._lanes.get(frame[_AFTER_HEADER:index_at].tobytes())
        if lane is None or lane.version != version or len(frame) < index_at + HEADER_SIZE:
            return None
        index, one, two, three, four = _partition(frame, index_at)
        # A varint, one more than the batch's size: written out, for speed.
        if three < 128 <= two and one > 127:
            start, size = index_at + 7, one + (two << 7) + (three << 14) - 16513
        elif two < 128 <= one:
            start, size = index_at + 6, one + (two << 7) - 129
        elif one < 128:
            start, size = index_at + 5, one - 1
        elif four < 128:
            start, size = index_at + 8, one + (two << 7) + (three << 14) + (four << 21) - 2113665
        else:
            return None
        end = start + size
        if end + _TAGS_BYTES != len(frame) or frame[end] | frame[end + 1] | frame[end + 2]:
            return None
        hosted = self._find(lane.topic, index)
        if hosted is None:
            return None
        try:
            if lane.acks == _ALL:
                hosted.require_insync()
            base_offset, end_offset, append_time_ms = hosted.append(
                frame[start:end], self._now_ms()
            )
        except EXPECTED:
            return None
        log_start = hosted.log.log_start_offset
        answer = lane.pack(
            lane.length,
            correlation_id,
            lane.middle,
            index,
            0,
            base_offset,
            append_time_ms,
            log_start,
            lane.rest,
        )
        if lane.acks != _ALL:
            if not (hosted.waits_for_disk and hosted.waits_for_own_disk(end_offset)):
                return (answer,)
        elif hosted.high_watermark >= end_offset:
            return (answer,)
        return self._wait(lane, index, correlation_id, answer, hosted, end_offset)

    @staticmethod
    def _wait(
        lane: _Lane,
        index: int,
        correlation_id: int,
        answer: bytes,
        hosted: HostedPartition,
        end_offset: int,
    ) -> asyncio.Future[Sequence[Part] | None]:
        def finish(outcomes: Sequence[ErrorCode | None]) -> Sequence[Part] | None:
            code = outcomes[0]
            if code is None:
                return (answer,)
            failed = ProduceResponse.Partition(
                index=index, error_code=code, base_offset=-1, error_message=code.message
            )
            topic = ProduceResponse.Topic(name=lane.topic, partition_responses=[failed])
            return encode_response(ProduceResponse([topic]), lane.version, correlation_id)

        return CommitWait(
            [(hosted, end_offset)], lane.timeout_s, finish, own_disk=lane.acks != _ALL
        ).future

    def learn(self, frame: memoryview, header: RequestHeader, request: ProduceRequest) -> None:
        """Make a lane of a request that went the long way, if others like it may take it."""
        if header.api_version < FLEXIBLE or request.acks not in (1, _ALL):
            return
        transactional_bytes = len((request.transactional_id or "").encode())
        if len(request.topic_data) != 1 or transactional_bytes >= _VARINT_BYTE_MAX:
            return
        topic = request.topic_data[0]
        if topic.name in INTERNAL_TOPICS:
            return
        name_bytes = len(topic.name.encode())
        if len(topic.partition_data) != 1 or not 0 < name_bytes < _VARINT_BYTE_MAX:
            return
        client_bytes = len((header.client_id or "").encode())
        # Client id and header tags; the transactional id, acks, timeout, one topic.
        name_at = _AFTER_HEADER + 2 + client_bytes + 1 + 1 + transactional_bytes + 2 + 4 + 1
        index_at = name_at + 1 + name_bytes + 1
        records = topic.partition_data[0].records
        start, end = _batch_at(frame, index_at + 4)
        # Header tags, long counts and the like make other layouts: those keep to the long way.
        if (
            records is None
            or frame[name_at] != name_bytes + 1
            or _partition(frame, index_at)[0] != topic.partition_data[0].index
            or end + _TAGS_BYTES != len(frame)
            or end - start != len(records)
        ):
            return
        sample = ProduceResponse.Partition(0x5A5A5A5A, 0, 0x5B5B5B5B, 0x5C5C5C5C, 0x5D5D5D5D)
        answer = b"".join(
            encode_response(
                ProduceResponse([ProduceResponse.Topic(topic.name, partition_responses=[sample])]),
                header.api_version,
                0,
            )
        )
        outcome_at = answer.find(_OUTCOME_OF_SAMPLE)
        if outcome_at < 0:
            return
        rest = answer[outcome_at + len(_OUTCOME_OF_SAMPLE) :]
        if len(self._lanes) >= LANES_MAX or self._name_at != name_at:
            self._lanes.clear()
        self._name_at = name_at
        self._lanes[bytes(frame[_AFTER_HEADER:index_at])] = _Lane(
            header.api_version,
            topic.name,
            request.acks,
            max(0, request.timeout_ms) / 1000,
            Struct(f">4si{outcome_at - 8}s{_OUTCOME[1:]}{len(rest)}s").pack,
            answer[:4],
            answer[8:outcome_at],
            rest,
        )


def _batch_at(frame: memoryview, position: int) -> tuple[int, int]:
    """Where the batch begins and ends whose length stands at `position`; (0, 0) if nowhere."""
    size = shift = 0
    for at in range(position, min(position + 5, len(frame))):
        byte = frame[at]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + 1, at + size
        shift += 7
    return 0, 0
