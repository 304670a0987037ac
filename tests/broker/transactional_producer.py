"""A transactional producer that does one step at a time, so that tests can stop between any two
steps.

It works with any `Cluster` that can send a request to broker N, by frames or by sockets. `new`
selects the protocol of transaction.version 2: partitions join with their first batch, and each
transaction has its own epoch. Otherwise partitions are added first, as older clients do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.records.batch import iter_batches
from penstock.records.record import ControlType, Record, build_batch, read_control, read_records
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)
T = TypeVar("T")
NOW_MS = 1_700_000_000_000
GROUP, TRANSACTION = 0, 1
AGAIN = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class Cluster(Protocol):
    async def ask_broker(
        self, broker: int, request: Request, version: int, response: type[R]
    ) -> R | None:
        """Returns None if the broker is not there or did not answer."""

    def leader(self, topic: str, index: int) -> int: ...

    def any_broker(self) -> int: ...


async def again(ask: Callable[[], Awaitable[T]], code_of: Callable[[T], int]) -> T:
    """Asks until the response has no error that a client would retry. The test has the deadline."""
    while True:
        answer = await ask()
        if ErrorCode(code_of(answer)) not in AGAIN:
            return answer
        await asyncio.sleep(0.005)


class TransactionalProducer:
    def __init__(
        self, cluster: Cluster, transactional_id: str, *, new: bool = True, timeout_ms: int = 60_000
    ) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.new = new
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    async def _at_coordinator(
        self, key: str, kind: int, request: Request, version: int, response: type[R]
    ) -> R | None:
        cluster = self.cluster
        found = await cluster.ask_broker(
            cluster.any_broker(), FindCoordinatorRequest(key, kind), 3, FindCoordinatorResponse
        )
        if found is None or found.error_code:
            return None
        return await cluster.ask_broker(found.node_id, request, version, response)

    async def init(self) -> int:
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms)

        async def ask() -> InitProducerIdResponse:
            answer = await self._at_coordinator(
                self.transactional_id, TRANSACTION, request, 4, InitProducerIdResponse
            )
            return answer or InitProducerIdResponse(error_code=ErrorCode.NETWORK_EXCEPTION)

        answer = await again(ask, lambda answer: answer.error_code)
        self._go_on(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def _go_on(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def add(self, topic: str, *indexes: int) -> list[int]:
        """Adds partitions to the transaction, as older clients must before they write."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(topic, list(indexes))],
        )

        async def ask() -> list[int]:
            answer = await self._at_coordinator(
                self.transactional_id, TRANSACTION, request, 3, AddPartitionsToTxnResponse
            )
            if answer is None:
                return [ErrorCode.NETWORK_EXCEPTION]
            return [
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]

        return await again(ask, lambda codes: codes[0])

    async def write(self, topic: str, index: int, *values: bytes) -> int:
        """Writes a batch in the transaction by the selected protocol. Returns its error code."""
        if not self.new:
            codes = await self.add(topic, index)
            if codes != [0]:
                return codes[0]
        return await self.produce(topic, index, *values)

    async def produce(
        self, topic: str, index: int, *values: bytes, version: int | None = None
    ) -> int:
        batch = self.batch(topic, index, values)
        part = ProduceRequest.Partition(index, batch)
        asked = ProduceRequest.Topic(topic, partition_data=[part])
        request = ProduceRequest(self.transactional_id, -1, 5_000, [asked])
        if version is None:
            version = 12 if self.new else 9

        async def ask() -> int:
            leader = self.cluster.leader(topic, index)
            answer = await self.cluster.ask_broker(leader, request, version, ProduceResponse)
            if answer is None:
                return ErrorCode.NETWORK_EXCEPTION
            return answer.responses[0].partition_responses[0].error_code

        return await again(ask, lambda code: code)

    def batch(self, topic: str, index: int, values: Sequence[bytes]) -> bytes:
        sequence = self._sequences.get((topic, index), 0)
        self._sequences[topic, index] = sequence + len(values)
        records = [Record(at, NOW_MS + at, b"k", value) for at, value in enumerate(values)]
        return bytes(
            build_batch(
                records,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )

    async def send_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        generation: int = -1,
        member: str = "",
    ) -> list[int]:
        if not self.new:
            added = await self._add_offsets(group)
            if added:
                return [added]
        partitions = [
            TxnOffsetCommitRequest.Partition(index, offset, -1, "")
            for index, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            self.producer_id,
            self.epoch,
            generation,
            member,
            None,
            [TxnOffsetCommitRequest.Topic(topic, partitions)],
        )

        async def ask() -> list[int]:
            answer = await self._at_coordinator(
                group, GROUP, request, 5 if self.new else 3, TxnOffsetCommitResponse
            )
            if answer is None:
                return [ErrorCode.NETWORK_EXCEPTION]
            return [each.error_code for topic in answer.topics for each in topic.partitions]

        return await again(ask, lambda codes: codes[0])

    async def _add_offsets(self, group: str) -> int:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)

        async def ask() -> int:
            answer = await self._at_coordinator(
                self.transactional_id, TRANSACTION, request, 3, AddOffsetsToTxnResponse
            )
            return ErrorCode.NETWORK_EXCEPTION if answer is None else answer.error_code

        return await again(ask, lambda code: code)

    async def end(self, *, commit: bool = True) -> int:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)

        async def ask() -> EndTxnResponse:
            answer = await self._at_coordinator(
                self.transactional_id, TRANSACTION, request, 5 if self.new else 3, EndTxnResponse
            )
            return answer or EndTxnResponse(error_code=ErrorCode.NETWORK_EXCEPTION)

        answer = await again(ask, lambda answer: answer.error_code)
        if self.new and not answer.error_code:
            self._go_on(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    async def fetch_offset(
        self, group: str, topic: str, index: int = 0, *, stable: bool = True, wait: bool = False
    ) -> tuple[int, int]:
        """Returns a group's committed offset and the error code.

        With `wait`, it retries UNSTABLE_OFFSET_COMMIT as a client would.
        """
        request = OffsetFetchRequest(
            group, [OffsetFetchRequest.Topic(topic, [index])], require_stable=stable
        )

        async def ask() -> tuple[int, int]:
            answer = await self._at_coordinator(group, GROUP, request, 7, OffsetFetchResponse)
            if answer is None:
                return -1, ErrorCode.NETWORK_EXCEPTION
            if answer.error_code:
                return -1, answer.error_code
            part = answer.topics[0].partitions[0]
            if part.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT and not wait:
                return part.committed_offset, -part.error_code
            return part.committed_offset, part.error_code

        offset, code = await again(ask, lambda answer: max(answer[1], 0))
        return offset, abs(code)


def contents(hosted: HostedPartition) -> list[str]:
    """Returns a log as a list of strings: values as they are, markers as COMMIT and ABORT."""
    told: list[str] = []
    offset = hosted.log.log_start_offset
    while (piece := hosted.log.read(offset, 1 << 20)) is not None:
        for position, header in iter_batches(piece.data):
            for record in read_records(piece.data[position : position + header.size], header):
                if header.is_control:
                    told.append(ControlType(read_control(record).type).name)
                else:
                    told.append(bytes(record.value or b"").decode())
            offset = header.next_offset
    return told
