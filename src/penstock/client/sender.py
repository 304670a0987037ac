"""Records into a topic, in batches, in order, each once.

Every partition has a lane: batches that wait, and one that is on its way. A lane sends its next
batch when the last one is acknowledged, so order holds whatever fails, and batches grow by
themselves while a broker is slow. Lanes work side by side. With acks=all the sender is idempotent:
a batch sent again after a lost answer carries the same sequence number, and the broker keeps one.

`append` only sorts a record into its lane and never waits; call `drain` every so often, which
starts the lanes and waits while more is buffered than allowed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.model import TopicPartition
from penstock.client.partitioner import partition_of
from penstock.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Codec,
)
from penstock.records.record import Record, build_batch
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

ACKS_ALL: Final = -1
_RECORD_OVERHEAD: Final = 16
"""What a record costs beside its key, value and headers, at most about this."""
_NO_TIMEOUT: Final = 0
_SEQUENCE_MASK: Final = 0x7FFFFFFF
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class SenderConfig:
    acks: int = ACKS_ALL
    codec: Codec = Codec.NONE
    batch_bytes: int = 512 << 10
    """Of records, before compression; a larger record makes a batch alone."""
    buffer_bytes: int = 32 << 20
    delivery_timeout_s: float = 60.0
    """How long a batch is tried before the sender fails."""

    def __post_init__(self) -> None:
        if self.acks not in (0, 1, ACKS_ALL):
            raise ValueError(f"acks is {self.acks}: give 0, 1 or -1 (all)")


@dataclass(slots=True)
class SenderStats:
    records: int = 0
    payload_bytes: int = 0
    """Of keys, values and headers."""
    wire_bytes: int = 0
    batches: int = 0
    partitions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition -> first offset written, next offset after the last; none with acks=0."""


class _Batch:
    __slots__ = ("records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.size = 0


class _Lane:
    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.batches: deque[_Batch] = deque()
        self.sequence = 0
        self.wake = asyncio.Event()


class Sender:
    """Use as `async with Sender(cluster, topic) as sender`; leaving waits for everything sent."""

    def __init__(self, cluster: Cluster, topic: str, config: SenderConfig | None = None) -> None:
        self.topic = topic
        self.stats = SenderStats()
        self.partitions = 0
        self._cluster = cluster
        self._config = config or SenderConfig()
        self._lanes: dict[int, _Lane] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._sticky: _Batch | None = None
        self._sticky_partition = -1
        self._buffered = 0
        self._moved = asyncio.Event()
        self._error: ClientError | None = None
        self._producer = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self._told: set[Connection] = set()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self.partitions = await self._cluster.partitions(self.topic, auto_create=True)
        if self._config.acks == ACKS_ALL:
            self._producer = await self._new_producer()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            for task in self._running.values():
                task.cancel()
            await self._tasks.__aexit__(None, None, None)

    async def _new_producer(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TIMEOUT)

        async def attempt(fresh: bool) -> tuple[int, int]:
            answer = await self._cluster.ask_any(request, InitProducerIdResponse)
            check(answer.error_code, subject="InitProducerId")
            return answer.producer_id, answer.producer_epoch

        return await self._cluster.retry("InitProducerId", attempt)

    # -- taking records -------------------------------------------------------------------------

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        *,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Buffer one record: to the partition given, else its key's, else wherever is room."""
        size = len(value or b"") + _RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if headers:
            size += sum(len(name) + len(data or b"") for name, data in headers)
        if partition is None and key is None:
            batch = self._sticky
            if batch is None or batch.size + size > self._config.batch_bytes:
                batch = self._sticky = self._new_sticky()
        else:
            if partition is None:
                partition = partition_of(key or b"", self.partitions)
            batch = self._open_batch(partition, size)
        batch.records.append(Record(len(batch.records), timestamp, key, value, headers))
        batch.size += size
        self._buffered += size

    def append_values(self, values: Iterable[bytes], timestamp: int) -> None:
        """The same for many records that are values alone, without the cost of a call for each."""
        limit = self._config.batch_bytes
        batch = self._sticky
        added = 0
        for value in values:
            size = len(value) + _RECORD_OVERHEAD
            if batch is None or batch.size + size > limit:
                batch = self._sticky = self._new_sticky()
            records = batch.records
            records.append(Record(len(records), timestamp, None, value))
            batch.size += size
            added += size
        self._buffered += added

    def _new_sticky(self) -> _Batch:
        """Records without key fill one batch and then the next, on another partition."""
        if self._sticky_partition < 0:
            self._sticky_partition = self._cluster.random.below(self.partitions)
        else:
            self._sticky_partition = (self._sticky_partition + 1) % self.partitions
        lane = self._lane(self._sticky_partition)
        lane.batches.append(_Batch())
        return lane.batches[-1]

    def _open_batch(self, partition: int, size: int) -> _Batch:
        lane = self._lane(partition)
        if not lane.batches or lane.batches[-1].size + size > self._config.batch_bytes:
            lane.batches.append(_Batch())
        return lane.batches[-1]

    def _lane(self, partition: int) -> _Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            if not 0 <= partition < self.partitions:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {self.topic} has no partition {partition}: "
                    f"it has 0 to {self.partitions - 1}",
                )
            lane = self._lanes[partition] = _Lane(partition)
        return lane

    # -- waiting --------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Start sending what is buffered; wait while too much is. Raises what went wrong."""
        await self._send_until(self._config.buffer_bytes)

    async def flush(self) -> None:
        """Wait until everything is acknowledged; with acks=0, until the brokers have read it."""
        await self._send_until(0)
        while self._told:
            # Requests of a connection are read in order, so one answer vouches for all before it.
            connection = self._told.pop()
            await connection.call(MetadataRequest(topics=[]), MetadataResponse)

    async def _send_until(self, buffered_max: int) -> None:
        for lane in self._lanes.values():
            if lane.partition not in self._running:
                self._running[lane.partition] = self._tasks.create_task(self._run(lane))
            if lane.batches:
                lane.wake.set()
        while self._buffered > buffered_max and self._error is None:
            self._moved.clear()
            await self._moved.wait()
        # Even with room the lanes need a turn, or a fast caller would only ever fill the buffer.
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error

    # -- sending --------------------------------------------------------------------------------

    async def _run(self, lane: _Lane) -> None:
        try:
            while self._error is None:
                if not lane.batches:
                    lane.wake.clear()
                    await lane.wake.wait()
                    continue
                batch = lane.batches.popleft()
                if batch is self._sticky:
                    self._sticky = None
                await self._deliver(lane, batch.records)
                self.stats.payload_bytes += batch.size - len(batch.records) * _RECORD_OVERHEAD
                self._buffered -= batch.size
                self._moved.set()
        except ClientError as error:
            self._error = self._error or error
            self._moved.set()

    async def _deliver(self, lane: _Lane, records: list[Record]) -> None:
        data = self._encode(lane, records)
        try:
            base_offset = await self._produce(lane, data)
        except BrokerError as error:
            if error.code != ErrorCode.MESSAGE_TOO_LARGE or len(records) == 1:
                raise
            # Nothing of it was written, so both halves may go on from the same sequence.
            middle = len(records) // 2
            second = [
                record._replace(offset=number) for number, record in enumerate(records[middle:])
            ]
            await self._deliver(lane, records[:middle])
            await self._deliver(lane, second)
            return
        lane.sequence = (lane.sequence + len(records)) & _SEQUENCE_MASK
        self._count(lane.partition, len(records), len(data), base_offset)

    def _encode(self, lane: _Lane, records: list[Record]) -> bytearray:
        producer_id, producer_epoch = self._producer
        idempotent = producer_id != NO_PRODUCER_ID
        return build_batch(
            records,
            codec=self._config.codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=lane.sequence if idempotent else NO_SEQUENCE,
        )

    async def _produce(self, lane: _Lane, data: bytearray) -> int:
        """The offset of the batch's first record; -1 where it is not known."""
        place = TopicPartition(self.topic, lane.partition)
        limit_s = self._cluster.config.connection.request_timeout_s
        request = ProduceRequest(
            acks=self._config.acks,
            timeout_ms=int(limit_s * 900),
            topic_data=[
                ProduceRequest.Topic(
                    self.topic, partition_data=[ProduceRequest.Partition(lane.partition, data)]
                )
            ],
        )

        async def attempt(fresh: bool) -> int:
            leader = await self._cluster.leader(place, fresh=fresh)
            connection = await self._cluster.connection(leader)
            if self._config.acks == 0:
                await connection.tell(request)
                self._told.add(connection)
                return -1
            answer = await connection.call(request, ProduceResponse)
            partition = answer.responses[0].partition_responses[0]
            if partition.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return -1
            check(partition.error_code, partition.error_message, str(place))
            return partition.base_offset

        return await self._cluster.retry(
            f"produce to {place}", attempt, deadline_s=self._config.delivery_timeout_s
        )

    def _count(self, partition: int, records: int, wire_bytes: int, base_offset: int) -> None:
        stats = self.stats
        stats.records += records
        stats.wire_bytes += wire_bytes
        stats.batches += 1
        if base_offset >= 0:
            first, _ = stats.partitions.get(partition, (base_offset, 0))
            stats.partitions[partition] = first, base_offset + records
