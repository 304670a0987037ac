"""A member of a share group that sends raw requests to a broker, and a broker with a fake state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from broker.harness import BrokerHarness, HarnessPeer, with_harness_of
from penstock.net.outbox import in_memory
from penstock.records.batch import iter_batches
from penstock.records.record import read_records
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import SharePartitionId
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.wire.messages.base import Request
from shares.fake_state import FakeShareState

ON = {"group.share.enable": "true"}
share_groups = with_harness_of(kafka=ON)
GROUP = "jobs"
MAX_WAIT_MS = 60_000
Ack = tuple[int, int, int]
"""First and last offset, and the type."""


def with_state(harness: BrokerHarness, broker: int = 0) -> FakeShareState:
    """Gives a broker a share coordinator in memory."""
    state = FakeShareState()
    harness.brokers[broker].shares.state = state
    return state


async def queue(
    harness: BrokerHarness, partitions: int = 1, *, start: int = 0, name: str = "orders"
) -> tuple[FakeShareState, bytes]:
    """Creates a topic whose partitions the group reads from an offset on."""
    topic_id = await harness.create(name, partitions)
    state = with_state(harness)
    for index in range(partitions):
        state.begin(SharePartitionId(GROUP, topic_id, index), start)
    return state, topic_id


def settings(harness: BrokerHarness, given: ShareSettings, broker: int = 0) -> None:
    harness.brokers[broker].shares.settings_of = lambda _: given


class Member:
    """A member with a connection of its own. It counts its session's epoch itself."""

    def __init__(
        self,
        harness: BrokerHarness,
        topic_id: bytes,
        member_id: str = "anna",
        partitions: Sequence[int] = (0,),
        *,
        broker: int = 0,
        group_id: str = GROUP,
    ) -> None:
        self._harness = harness
        self._topic_id = topic_id
        self._partitions = partitions
        self._broker = broker
        self.group_id, self.member_id = group_id, member_id
        self.epoch = 0
        self._numbers = count(1)
        self.connect()

    def connect(self) -> None:
        """Opens another connection. The session's epoch stays."""
        self.peer = HarnessPeer()
        self._session = self._harness.brokers[self._broker].server.new_session(self.peer)

    def disconnect(self) -> None:
        self.peer.turn.close()
        self._session.on_closed()

    async def send(self, request: Request, version: int) -> bytes:
        frame = b"".join(encode_request(request, version, next(self._numbers), "member"))
        answer = self._session.on_frame(memoryview(bytearray(frame[4:])))
        parts = await answer if isinstance(answer, asyncio.Future) else answer
        assert parts is not None
        return b"".join(in_memory(parts))[4:]

    def fetch_request(self, acks: dict[int, Sequence[Ack]] | None = None) -> ShareFetchRequest:
        listed = self._partitions if self.epoch == 0 else tuple(acks or ())
        partitions = [
            ShareFetchRequest.Partition(
                index,
                acknowledgement_batches=[
                    ShareFetchRequest.AcknowledgementBatch(first, last, [kind])
                    for first, last, kind in (acks or {}).get(index, ())
                ],
            )
            for index in listed
        ]
        return ShareFetchRequest(
            self.group_id,
            self.member_id,
            self.epoch,
            MAX_WAIT_MS,
            1,
            1 << 20,
            max_records=1000,
            batch_size=1000,
            topics=[ShareFetchRequest.Topic(self._topic_id, partitions)] if partitions else [],
        )

    async def ask_fetch(
        self, request: ShareFetchRequest | None = None, version: int = 2
    ) -> ShareFetchResponse:
        data = await self.send(request or self.fetch_request(), version)
        _, response = decode_response(ShareFetchResponse, memoryview(data), version)
        if not response.error_code:
            self.epoch += 1
        return response

    async def fetch(self, **fields: object) -> ShareFetchResponse.PartitionData:
        """Fetches and returns the only partition of the response."""
        request = self.fetch_request()
        for name, value in fields.items():
            setattr(request, name, value)
        return only(await self.ask_fetch(request))

    async def acknowledge(
        self,
        *acks: Ack,
        index: int = 0,
        is_renew: bool = False,
        version: int = 2,
    ) -> ErrorCode:
        """Returns the error of the partition, or of the whole request."""
        batches = [
            ShareAcknowledgeRequest.AcknowledgementBatch(first, last, [kind])
            for first, last, kind in acks
        ]
        asked = ShareAcknowledgeRequest.Partition(index, batches)
        response = await self.ask_acknowledge(
            [ShareAcknowledgeRequest.Topic(self._topic_id, [asked])] if acks else [],
            is_renew=is_renew,
            version=version,
        )
        if response.error_code or not response.responses:
            return ErrorCode(response.error_code)
        return ErrorCode(response.responses[0].partitions[0].error_code)

    async def ask_acknowledge(
        self,
        topics: list[ShareAcknowledgeRequest.Topic],
        *,
        is_renew: bool = False,
        version: int = 2,
    ) -> ShareAcknowledgeResponse:
        request = ShareAcknowledgeRequest(
            self.group_id, self.member_id, self.epoch, is_renew, topics
        )
        data = await self.send(request, version)
        _, response = decode_response(ShareAcknowledgeResponse, memoryview(data), version)
        if not response.error_code:
            self.epoch += 1
        return response


def only(response: ShareFetchResponse) -> ShareFetchResponse.PartitionData:
    assert response.error_code == 0, response.error_message
    (topic,) = response.responses
    (partition,) = topic.partitions
    return partition


def ranges(partition: ShareFetchResponse.PartitionData) -> list[tuple[int, int, int]]:
    assert partition.error_code == 0, (partition.error_code, partition.error_message)
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for each in partition.acquired_records
    ]


def values(partition: ShareFetchResponse.PartitionData) -> list[bytes]:
    """Returns the values of the acquired records, as a member does it."""
    given = partition.records or b""
    data = memoryview(b"".join(given) if isinstance(given, list) else given)
    taken = ranges(partition)
    return [
        bytes(record.value or b"")
        for position, header in iter_batches(data)
        for record in read_records(data[position : position + header.size], header)
        if any(first <= record.offset <= last for first, last, _ in taken) and not header.is_control
    ]
