"""A partition with Kafka's rules for idempotent producers, and a simulated sender around it.

`World` is the sender without sockets: it drains the accumulator into requests, delivers them to the
partitions in order, answers or loses them, and lets time pass. One random generator makes all
choices. After every step it checks the accumulator's invariants.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from penstock.client.errors import ClientError, ConnectionLost
from penstock.client.metrics import ProducerMeter
from penstock.client.producing.accumulator import Accumulator
from penstock.client.producing.accumulator_config import AccumulatorConfig
from penstock.client.producing.batch_outcome import BatchOutcome
from penstock.client.producing.batches import Batch, record_bytes_max
from penstock.client.producing.produce_responses import ProduceResponses, Settled
from penstock.client.producing.sequences import Identity
from penstock.records.batch import Codec, validate
from penstock.records.record import read_records
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceResponse

LEADER = 1
RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


@dataclass
class Partition:
    """Applies Kafka's rules: no gap in sequences, the last five batches are
    recognized, epochs only grow."""

    values: list[bytes] = field(default_factory=list)
    producer: tuple[int, int] | None = None
    next_sequence: int = 0
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    batch_bytes_max: int = 1 << 30
    takes_any_first: bool = False
    """Penstock lets an unknown producer begin with any sequence; older Kafka versions required
    0."""

    def write(self, data: Any) -> tuple[ErrorCode, int]:
        header = validate(data)
        if len(data) > self.batch_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        identity = header.producer_id, header.producer_epoch
        if header.has_producer:
            known = self.producer is not None and identity[0] == self.producer[0]
            if self.producer is not None and known and identity[1] < self.producer[1]:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if identity != self.producer:
                if header.base_sequence and (known or not self.takes_any_first):
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                self.producer = identity
                self.next_sequence = header.base_sequence
                self.recent.clear()
            for first, count, offset in self.recent:
                if (first, count) == (header.base_sequence, header.record_count):
                    return ErrorCode.NONE, offset
            if header.base_sequence != self.next_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.next_sequence += header.record_count
        offset = len(self.values)
        self.recent.append((header.base_sequence, header.record_count, offset))
        self.values += [record.value or b"" for record in read_records(data)]
        return ErrorCode.NONE, offset


class _NoTopics:
    """The cluster's topics. Leaders never move here; only the lanes are tested."""

    def meet(self, brokers: object) -> None:
        pass

    def follow(self, topic_partition: object, leader_id: int, leader_epoch: int) -> bool:
        return False


@dataclass
class Sent:
    topic_partition: TopicPartition
    value: bytes
    outcome: BatchOutcome
    index: int

    def error(self) -> ClientError | None:
        return self.outcome.leaf(self.index)[0].error

    def offset(self) -> int:
        outcome, index = self.outcome.leaf(self.index)
        return outcome.base_offset + index

    @property
    def settled(self) -> bool:
        return self.outcome.leaf(self.index)[0].settled


class World:
    def __init__(self, random: Random, config: AccumulatorConfig, partitions: int = 2) -> None:
        self.random = random
        self.now = 0.0
        self.accumulator = Accumulator(config)
        self.topic_partitions = [TopicPartition("topic", number) for number in range(partitions)]
        self.partitions = {
            topic_partition: Partition() for topic_partition in self.topic_partitions
        }
        self.lanes = {
            topic_partition: self.accumulator.lane(topic_partition)
            for topic_partition in self.topic_partitions
        }
        self.meter = ProducerMeter()
        topics = cast(Any, _NoTopics())
        self.responses = ProduceResponses(
            self.accumulator, topics, self.meter, lambda failures: 0.1
        )
        self.requests: deque[list[Batch]] = deque()
        self.sent: list[Sent] = []
        self.fatal: ClientError | None = None
        self.in_flight_max = 5
        self._next_producer_id = 0
        self.requests_made: list[list[Batch]] = []

    def send(self, size: int = 20, topic_partition: TopicPartition | None = None) -> bool:
        """Appends a record. Returns False if the buffer is full."""
        topic_partition = topic_partition or self.random.choice(self.topic_partitions)
        value = str(len(self.sent)).encode().ljust(size, b".")
        lane = self.lanes[topic_partition]
        timestamp = int(self.now * 1000)
        bytes_max = record_bytes_max(None, value, ())
        args = lane, timestamp, None, value, (), bytes_max
        batch = self.accumulator.append_open(*args)
        batch = batch or self.accumulator.append_new(*args, self.now)
        if batch is None:
            return False
        self.sent.append(Sent(topic_partition, value, batch.outcome, batch.count - 1))
        return True

    def pump(self) -> None:
        """Sends everything that can be sent."""
        if self.accumulator.wants_identity and self.random.random() < 0.8:
            self._next_producer_id += 1
            self.accumulator.identify(Identity(self._next_producer_id, 0))
        for batch, error in self.accumulator.expire(self.now):
            batch.outcome.fail(error)
        lanes = self.accumulator.ready(self.now)
        while len(self.requests) < self.in_flight_max:
            batches = self.accumulator.drain(lanes, LEADER, self.now)
            if not batches:
                break
            for batch in batches:
                batch.seal(Codec.NONE, None)
            self.requests.append(batches)
            self.requests_made.append(batches)
        self.accumulator.verify()

    def answer_next(self, fate: str = "written") -> None:
        """Answers the oldest request. `fate` is "written", "refused" (a retriable error), "bad" (a
        permanent error) or "deposed": the leader wrote the batch, lost its leadership, and answered
        that it is not the leader."""
        batches = self.requests.popleft()
        answers = []
        for batch in batches:
            code, offset = self._treat(batch, fate)
            answers.append(ProduceResponse.Partition(batch.topic_partition.partition, code, offset))
        response = ProduceResponse([ProduceResponse.Topic("topic", partition_responses=answers)])
        self._act(self.responses.on_answer(batches, response, self.now))

    def _treat(self, batch: Batch, fate: str) -> tuple[int, int]:
        if fate == "refused":
            return self.random.choice(RETRIABLE), -1
        if fate == "bad":
            return ErrorCode.INVALID_RECORD, -1
        code, offset = self.partitions[batch.topic_partition].write(batch.data)
        if fate == "deposed" and code == ErrorCode.NONE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        return code, offset

    def lose_connection(self, processed: int) -> None:
        """Loses all requests in flight; the broker had processed the first `processed` of them."""
        for number, batches in enumerate(self.requests):
            if number < processed:
                for batch in batches:
                    self.partitions[batch.topic_partition].write(batch.data)
        lost, self.requests = self.requests, deque()
        for batches in lost:
            error = ConnectionLost("lost")
            self._act(self.responses.on_lost(batches, error, self.now, maybe_written=True))

    def _act(self, settled: Settled) -> None:
        for settle in settled.settlements:
            settle()
        self.fatal = self.fatal or settled.fatal
        self.accumulator.verify()

    def finish(self) -> None:
        """Runs without further faults until the accumulator is empty."""
        self.accumulator.hurry()
        for _ in range(10_000):
            self.pump()
            if self.requests:
                self.answer_next()
            elif self.accumulator.is_empty:
                return
            else:
                self.now += 0.05
        raise AssertionError("the accumulator never became empty")

    def check_log(self) -> None:
        """Checks that no record is lost, duplicated or reordered."""
        assert self.fatal is None
        for topic_partition, partition in self.partitions.items():
            sent = [item for item in self.sent if item.topic_partition == topic_partition]
            order = {item.value: number for number, item in enumerate(sent)}
            written = [order[value] for value in partition.values]
            assert written == sorted(set(written)), f"{topic_partition}: duplicated or out of order"
            for item in sent:
                assert item.settled
                if item.error() is None:
                    assert partition.values[item.offset()] == item.value
        assert self.accumulator.buffered_bytes == 0
        assert self.accumulator.is_empty
