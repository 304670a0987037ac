"""The fast path for produce requests: serves them without decoding them completely.

Most producers send one batch for one partition per request, again and again: librdkafka never does
anything else. Such requests of one connection differ only in correlation id, partition and batch.
All bytes before the partition index are the same. So the first such request takes the regular path:
it is decoded, checked against what this module assumes, and stored as a template, which consists of
the bytes the request began with and the bytes of its answer. Later requests that begin with the
same bytes are served from the template. The batch is appended directly from the frame, and the
answer is assembled from the constant bytes and the new numbers. Nothing refers to the frame
afterwards, so its buffer can be reused for the next read.

A transactional id is part of the constant bytes. The first batch of a transaction on a partition
takes the regular path, because the coordinator must be asked. Later batches take the fast path.

A template keeps the authorizer that allowed its first request. Authorizers are replaced, never
changed, so the template is used only as long as this one is in force, and checking that costs one
comparison.

A template handles only the common case. Everything else (an error, a request of another form, an
old version) is left to `handlers/produce.py`. It gets the error of a batch that was refused here,
so a small batch is not validated again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.broker.access.authorization import Authorization
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.identity import Identity
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.parked_requests import CommitWait
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.net.outbox import in_memory
from penstock.net.session import Answer, Part
from penstock.records.batch import HEADER_SIZE
from penstock.security.acls import AclOperation, ResourceType
from penstock.security.authorizer import Authorizer
from penstock.wire.codec import RequestHeader, encode_response
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse

TEMPLATES_MAX: Final = 64
"""The limit for one connection, which has one template per topic and acks. Beyond it all templates
are dropped."""
FLEXIBLE: Final = 9
"""From this version on, lengths are varints and every struct ends with tagged fields."""
_AFTER_HEADER: Final = 8
"""The size of API key, version and correlation id. The client id follows."""
_TAGS_BYTES: Final = 3
"""The tagged fields of partition, topic and request after the batch: one zero byte each if
empty."""
_VARINT_BYTE_MAX: Final = 127
"""A string's length is stored as a varint of length + 1, which is one byte up to this value."""
_ALL: Final = -1
_ATTRIBUTES_AT: Final = 22
"""The position of the low byte of a batch's attributes."""
_TRANSACTIONAL: Final = 0x10
_partition: Final = Struct(">i4B").unpack_from
"""The partition index, and the first four bytes of the batch's length."""
_throttle_time: Final = Struct(">i").pack_into
_AFTER_RESPONSES: Final = 5
"""The size of the throttle time and of the count of tagged fields after it."""
_OUTCOME: Final = ">ihqqq"
"""Partition, error code, base offset, append time, log start offset."""
_OUTCOME_OF_SAMPLE: Final = Struct(_OUTCOME).pack(0x5A5A5A5A, 0, 0x5B5B5B5B, 0x5C5C5C5C, 0x5D5D5D5D)


Served = tuple[bytes] | asyncio.Future[Sequence[Part] | None] | Exception | None
"""The answer to a Produce request, or a future of it. None if the request must take the regular
path. An error if its batch was not appended: the regular path then answers that error, or appends
the batch later."""


class _Template(NamedTuple):
    authorizer: Authorizer | None
    """The authorizer that allowed the requests of this template; None if there is no authorizer."""
    is_transactional: bool
    """The requests have a transactional id that the client may use."""
    version: int
    topic: str
    acks: int
    timeout_s: float
    pack: Callable[..., bytes]
    """Packs an answer from its constant parts and the numbers between them."""
    length: bytes
    middle: bytes
    rest: bytes


class ProduceFastPath:
    """The templates of one connection."""

    __slots__ = ("_authorization", "_find", "_identity", "_name_at", "_now_ms", "_templates")

    def __init__(
        self,
        find: Callable[[str, int], HostedPartition | None],
        now_ms: Callable[[], int],
        authorization: Authorization,
        identity: Identity,
    ) -> None:
        self._find = find
        self._now_ms = now_ms
        self._authorization = authorization
        self._identity = identity
        self._templates: dict[bytes, _Template] = {}
        self._name_at = 0
        """The position of the topic's name (of its length byte). It depends only on the lengths of
        client id and transactional id."""

    def serve(self, frame: memoryview, version: int, correlation_id: int) -> Served:
        """Serves a Produce request: see `Served`. Keeps no reference to the frame."""
        name_at = self._name_at
        if not name_at or len(frame) <= name_at:
            return None
        # The length byte holds the name's length + 1. The count of partitions follows the name.
        index_at = name_at + frame[name_at] + 1
        template = self._templates.get(frame[_AFTER_HEADER:index_at].tobytes())
        if template is None or template.version != version or len(frame) < index_at + HEADER_SIZE:
            return None
        if template.authorizer is not self._authorization.current:
            return None  # The ACLs have changed.
        index, one, two, three, four = _partition(frame, index_at)
        # The varint holds the batch's size + 1. It is decoded inline for speed.
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
        if template.authorizer is not None and (
            self._authorization.is_fenced()
            or (not template.is_transactional and frame[start + _ATTRIBUTES_AT] & _TRANSACTIONAL)
        ):
            return None
        hosted = self._find(template.topic, index)
        if hosted is None:
            return None
        try:
            base_offset, end_offset, append_time_ms = hosted.append(
                frame[start:end], self._now_ms(), acks_all=template.acks == _ALL
            )
        except EXPECTED_ERRORS as error:
            return error
        # The log's property would cost a call.
        machine, log_start = hosted.machine, hosted.log.state.log_start_offset
        answer = template.pack(
            template.length,
            correlation_id,
            template.middle,
            index,
            0,
            base_offset,
            append_time_ms,
            log_start,
            template.rest,
        )
        if template.acks != _ALL:
            if not (machine.counts_synced and machine.waits_for_own_flush(end_offset)):
                return (answer,)
        elif machine.high_watermark >= end_offset:
            return (answer,)
        return self._wait(template, index, correlation_id, answer, hosted, end_offset)

    @staticmethod
    def _wait(
        template: _Template,
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
            topic = ProduceResponse.Topic(name=template.topic, partition_responses=[failed])
            return encode_response(ProduceResponse([topic]), template.version, correlation_id)

        return CommitWait(
            [(hosted, end_offset)], template.timeout_s, finish, own_disk=template.acks != _ALL
        ).future

    def learn(self, frame: memoryview, header: RequestHeader, request: ProduceRequest) -> None:
        """Stores a template for a request that took the regular path, if later ones can be served
        from it."""
        if header.api_version < FLEXIBLE or request.acks not in (1, _ALL):
            return
        transactional_bytes = len((request.transactional_id or "").encode())
        if len(request.topic_data) != 1 or transactional_bytes >= _VARINT_BYTE_MAX:
            return
        topic = request.topic_data[0]
        if topic.name in INTERNAL_TOPICS or not self._may_write(topic.name, request):
            return
        name_bytes = len(topic.name.encode())
        if len(topic.partition_data) != 1 or not 0 < name_bytes < _VARINT_BYTE_MAX:
            return
        client_bytes = len((header.client_id or "").encode())
        # The client id (two bytes of length) and the header's tagged fields; the transactional id
        # (one byte of length), acks, timeout, the count of topics.
        name_at = _AFTER_HEADER + 2 + client_bytes + 1 + 1 + transactional_bytes + 2 + 4 + 1
        index_at = name_at + 1 + name_bytes + 1
        records = topic.partition_data[0].records
        start, end = _batch_at(frame, index_at + 4)
        # Tagged fields in the header, long counts and the like change the layout. Such requests
        # always take the regular path.
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
        if len(self._templates) >= TEMPLATES_MAX or self._name_at != name_at:
            self._templates.clear()
        self._name_at = name_at
        self._templates[bytes(frame[_AFTER_HEADER:index_at])] = _Template(
            self._authorization.current,
            request.transactional_id is not None,
            header.api_version,
            topic.name,
            request.acks,
            max(0, request.timeout_ms) / 1000,
            Struct(f">4si{outcome_at - 8}s{_OUTCOME[1:]}{len(rest)}s").pack,
            answer[:4],
            answer[8:outcome_at],
            rest,
        )

    def _may_write(self, topic: str, request: ProduceRequest) -> bool:
        """Returns whether the current authorizer allows requests like this one."""
        authorizer = self._authorization.current
        if authorizer is None:
            return True
        who = (self._identity.principal, self._identity.host, AclOperation.WRITE)
        used = request.transactional_id
        if used is not None and not authorizer.authorize(*who, ResourceType.TRANSACTIONAL_ID, used):
            return False
        return authorizer.authorize(*who, ResourceType.TOPIC, topic)


def throttled(
    answer: tuple[bytes] | asyncio.Future[Sequence[Part] | None], throttle_ms: int
) -> Answer:
    """Returns the answer of a template, or a future of it, with this throttle time."""
    if not throttle_ms:
        return answer
    if not isinstance(answer, asyncio.Future):
        return _with_throttle_time(answer, throttle_ms)
    later: asyncio.Future[Sequence[Part] | None] = answer.get_loop().create_future()

    def finish(done: asyncio.Future[Sequence[Part] | None]) -> None:
        if later.done():
            return
        if done.cancelled():
            later.cancel()
        elif (error := done.exception()) is not None:
            later.set_exception(error)
        else:
            later.set_result(_with_throttle_time(done.result() or (), throttle_ms))

    answer.add_done_callback(finish)
    return later


def _with_throttle_time(parts: Sequence[Part], throttle_ms: int) -> Sequence[Part]:
    """Sets the throttle time. It is the last field of a response, before its tagged fields, of
    which there are none."""
    whole = bytearray().join(in_memory(parts))
    _throttle_time(whole, len(whole) - _AFTER_RESPONSES, throttle_ms)
    return (bytes(whole),)


def has_transactional(request: ProduceRequest) -> bool:
    """Returns whether a batch of the request is part of a transaction, by its attributes."""
    return any(
        partition.records is not None
        and len(partition.records) > _ATTRIBUTES_AT
        and partition.records[_ATTRIBUTES_AT] & _TRANSACTIONAL
        for topic in request.topic_data
        for partition in topic.partition_data
    )


def _batch_at(frame: memoryview, position: int) -> tuple[int, int]:
    """Returns the start and end of the batch whose length is at `position`, or (0, 0) if there is
    none."""
    size = shift = 0
    for at in range(position, min(position + 5, len(frame))):
        byte = frame[at]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + 1, at + size
        shift += 7
    return 0, 0
