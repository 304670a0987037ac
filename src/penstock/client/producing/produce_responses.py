"""Applies the answers of brokers to the batches that they concern.

Each batch of a request gets a verdict (`sequences.judge`), and the accumulator is updated
accordingly. The outcomes for the senders are returned as settlements. They run after the lock was
released, because the users' callbacks may send again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.client.address import Address
from penstock.client.errors import BrokerError, ClientError, ConnectionLost, Fenced, RecordTooLarge
from penstock.client.metrics import ProducerMeter
from penstock.client.producing.accumulator import Accumulator
from penstock.client.producing.batch_outcome import NO_APPEND_TIME, NO_OFFSET
from penstock.client.producing.batches import Batch
from penstock.client.producing.sequences import NOT_WRITTEN, Verdict, judge
from penstock.client.producing.topics import Topics
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceResponse

Settlement = Callable[[], object]
_NO_ANSWER: Final = "the broker's response does not contain the partition"


class Settled(NamedTuple):
    settlements: list[Settlement]
    fatal: ClientError | None = None
    look_afresh: bool = False
    """Whether the known leaders may be out of date."""


class ProduceResponses:
    def __init__(
        self,
        accumulator: Accumulator,
        topics: Topics,
        meter: ProducerMeter,
        backoff_s: Callable[[int], float],
    ) -> None:
        self._accumulator = accumulator
        self._topics = topics
        self._meter = meter
        self._backoff_s = backoff_s
        self.failure: ClientError | None = None
        """The first reason why a batch failed since this was last cleared."""

    def on_written(self, batches: Sequence[Batch]) -> Settled:
        """Handles batches whose bytes the system accepted: with acks=0 nothing more will be
        known."""
        return Settled([self._done(batch, NO_OFFSET, NO_APPEND_TIME) for batch in batches])

    def on_lost(
        self, batches: Sequence[Batch], error: ClientError, now: float, *, maybe_written: bool
    ) -> Settled:
        """Handles batches whose request got no answer."""
        settlements: list[Settlement] = []
        for batch in batches:
            batch.uncertain = batch.uncertain or maybe_written
            settlements += self._again(batch, error, now)
        return Settled(settlements, look_afresh=True)

    def on_answer(self, batches: Sequence[Batch], response: ProduceResponse, now: float) -> Settled:
        self._topics.meet(
            (broker.node_id, Address(broker.host, broker.port))
            for broker in response.node_endpoints
        )
        answers = {
            (topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        settlements: list[Settlement] = []
        fatal: ClientError | None = None
        look_afresh = False
        for batch in batches:
            answer = answers.get(batch.topic_partition)
            if answer is None:
                batch.uncertain = True
                settlements += self._again(batch, ConnectionLost(_NO_ANSWER), now)
                continue
            done, failure, stale = self._on_partition(batch, answer, now)
            settlements += done
            fatal = fatal or failure
            look_afresh = look_afresh or stale
        return Settled(settlements, fatal, look_afresh)

    def _on_partition(
        self, batch: Batch, answer: ProduceResponse.Partition, now: float
    ) -> tuple[list[Settlement], ClientError | None, bool]:
        """Returns the settlements, the error that ends the producer, and whether leaders must be
        looked up."""
        code = answer.error_code
        lane = self._accumulator.lane(batch.topic_partition)
        verdict = judge(
            code,
            numbered=batch.is_numbered,
            first=lane.is_first(batch),
            count=batch.count,
            transactional=batch.is_transactional,
        )
        if verdict is Verdict.DONE:
            offset = answer.base_offset if code == ErrorCode.NONE else NO_OFFSET
            return [self._done(batch, offset, answer.log_append_time_ms)], None, False
        batch.uncertain = batch.uncertain or code not in NOT_WRITTEN
        error = _error(code, answer, batch.topic_partition)
        if verdict is Verdict.SPLIT:
            return self._split(batch), None, False
        if verdict is Verdict.REFUSED:
            return self._refused(batch, error), None, False
        if verdict is Verdict.FATAL:
            fenced = Fenced(
                f"{batch.topic_partition}: {error}; this producer cannot continue: make a new one"
            )
            return self._refused(batch, fenced), fenced, False
        if verdict is Verdict.RENUMBER:
            return self._again(batch, error, now, renumber=True), None, False
        leader = answer.current_leader
        if leader is not None and self._topics.follow(
            batch.topic_partition, leader.leader_id, leader.leader_epoch
        ):
            return self._again(batch, error, now, at_once=True), None, False
        # This code says nothing about leaders: an earlier batch has failed.
        stale = code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return self._again(batch, error, now), None, stale

    def _done(self, batch: Batch, offset: int, append_time_ms: int) -> Settlement:
        self._accumulator.on_done(batch)
        if batch.abandoned:
            return _nothing
        meter = self._meter
        meter.records += batch.count
        meter.record_bytes += batch.record_bytes
        meter.batches += 1
        meter.wire_bytes += batch.size
        meter.distribution.add(
            batch.topic_partition.topic, batch.topic_partition.partition, batch.count
        )
        return partial(batch.outcome.succeed, offset, batch.count, append_time_ms)

    def _again(
        self,
        batch: Batch,
        error: ClientError,
        now: float,
        *,
        renumber: bool = False,
        at_once: bool = False,
    ) -> list[Settlement]:
        lane = self._accumulator.lane(batch.topic_partition)
        retry_at = now if at_once else now + self._backoff_s(lane.failures)
        if self._accumulator.on_retry(batch, error, retry_at, renumber=renumber):
            self._meter.retries += 1
            return []
        return self._failed(batch, error)

    def _refused(self, batch: Batch, error: ClientError) -> list[Settlement]:
        self._accumulator.on_refused(batch)
        return self._failed(batch, error)

    def _failed(self, batch: Batch, error: ClientError) -> list[Settlement]:
        self.failure = self.failure or error
        if batch.abandoned:
            return []
        self._meter.failed_records += batch.count
        return [partial(batch.outcome.fail, error)]

    def _split(self, batch: Batch) -> list[Settlement]:
        parts = self._accumulator.on_too_large(batch)
        if not parts:
            return []
        self._meter.splits += 1
        first, second = parts
        return [
            partial(batch.outcome.split, ((0, first.outcome), (first.count, second.outcome))),
        ]


def _error(
    code: int, answer: ProduceResponse.Partition, topic_partition: TopicPartition
) -> ClientError:
    error = BrokerError(code, answer.error_message, str(topic_partition))
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return RecordTooLarge(
            f"{error}: raise max.message.bytes of the topic, or send smaller records"
        )
    return error


def _nothing() -> None:
    """Does nothing: the batch has timed out, and its senders were told so already."""
